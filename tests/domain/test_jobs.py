"""The life of a Spark job, decided: what is started, cancelled, waited for."""

import re

import pytest
from botocore.session import get_session

from shardfleet.domain.jobs import DAY_MS, ENDED, SETTLED, BackOff, SeenRun, plan_job

MODELS = get_session()
NOW_MS = 1_800_000_000_000
MINUTE_MS = 60_000


def run(number, state, *, name="new", minutes_ago=10, lasted_minutes=1):
    ended_ms = NOW_MS - minutes_ago * MINUTE_MS
    return SeenRun(
        run_id=f"r{number}",
        name=name,
        state=state,
        created_ms=ended_ms - lasted_minutes * MINUTE_MS,
        updated_ms=ended_ms,
    )


def plan(*runs, status="UPDATE_COMPLETE", now_ms=NOW_MS, application="a"):
    return plan_job(
        "new",
        runs,
        application_id=application,
        stack_status=status,
        now_ms=now_ms,
        back_off=BackOff(),
    )


def states_of_runs():
    return MODELS.get_service_model("emr-serverless").shape_for("JobRunState").enum


def test_the_first_run_is_started():
    decided = plan()
    assert decided.start_token
    assert decided.cancel == ()


@pytest.mark.parametrize("state", sorted(set(states_of_runs()) - ENDED))
def test_nothing_is_started_while_any_run_has_not_ended(state):
    for name in ("new", "old"):
        assert plan(run(1, "SUCCESS"), run(2, state, name=name)).start_token == ""


@pytest.mark.parametrize("state", sorted(ENDED))
def test_what_has_ended_is_started_again(state):
    assert plan(run(1, state)).start_token


def test_a_run_of_a_deploy_before_is_cancelled_once_and_followed_when_it_has_ended():
    assert plan(run(1, "RUNNING", name="old")).cancel == ("r1",)
    assert plan(run(1, "CANCELLING", name="old")).cancel == ()
    assert plan(run(1, "CANCELLED", name="old")).start_token


def test_of_two_runs_the_older_one_stays():
    twins = (run(2, "QUEUED", minutes_ago=1), run(1, "RUNNING", minutes_ago=2))
    assert plan(*twins).cancel == ("r2",)


def test_nothing_is_done_while_the_stack_changes_or_goes():
    for status in MODELS.get_service_model("cloudformation").shape_for("StackStatus").enum:
        decided = plan(run(1, "RUNNING", name="old"), status=status), plan(status=status)
        acts = [bool(each.cancel or each.start_token) for each in decided]
        assert acts == [status in SETTLED] * 2, status
        if status.endswith("IN_PROGRESS") or status.startswith(("DELETE", "ROLLBACK")):
            assert status not in SETTLED


def test_a_token_is_of_the_application_and_the_last_run_alone_and_fits():
    """R06, R11: two looks that know the same last run, whatever they want, start one run."""
    pattern = MODELS.get_service_model("emr-serverless").shape_for("ClientToken").metadata
    first, again = plan(run(1, "FAILED")), plan(run(1, "FAILED"), now_ms=NOW_MS + DAY_MS)
    assert first.start_token == again.start_token
    assert len(first.start_token) <= pattern["max"]
    assert re.fullmatch(pattern["pattern"], first.start_token)
    others = plan(run(2, "FAILED")), plan(run(1, "FAILED"), application="b"), plan()
    assert len({first.start_token, *(each.start_token for each in others)}) == 4


def test_without_a_run_that_is_remembered_a_token_is_used_for_a_day():
    assert plan().start_token == plan(now_ms=NOW_MS + 1).start_token
    assert plan().start_token != plan(now_ms=NOW_MS + DAY_MS).start_token


@pytest.mark.parametrize(
    ("failures", "minutes"), [(1, 1), (2, 2), (3, 4), (4, 8), (6, 32), (7, 60), (60, 60)]
)
def test_a_failing_job_rests_longer_each_time_and_an_hour_at_most(failures, minutes):
    failed = [run(n, "FAILED", minutes_ago=failures - n) for n in range(1, failures + 1)]
    decided = [plan(*failed, now_ms=NOW_MS + minutes * MINUTE_MS + ms) for ms in (-1, 0)]
    assert [bool(each.start_token) for each in decided] == [False, True]
    assert decided[0].failures == failures


def test_a_rest_is_told_in_seconds():
    failed = run(1, "FAILED", minutes_ago=0)
    assert plan(failed, now_ms=NOW_MS + 15_500).reason == "1 failures: rests 44 s more"


def test_what_failed_before_another_deploy_a_success_or_an_hour_of_work_is_forgotten():
    failed = run(3, "FAILED", minutes_ago=1)
    for before in (
        run(2, "FAILED", name="old", minutes_ago=5),
        run(2, "SUCCESS", minutes_ago=5),
        run(2, "CANCELLED", minutes_ago=5),
    ):
        assert plan(run(1, "FAILED", minutes_ago=9), before, failed).failures == 1
    worked = run(3, "FAILED", minutes_ago=1, lasted_minutes=60)
    assert plan(run(1, "FAILED", minutes_ago=90), worked).failures == 1


def test_a_new_deploy_does_not_rest():
    assert plan(*(run(n, "FAILED", name="old", minutes_ago=0) for n in range(9))).start_token
