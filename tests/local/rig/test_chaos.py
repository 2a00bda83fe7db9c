"""The plan of reshards, the result file, and the command's exit code."""

import json
from dataclasses import replace
from pathlib import Path

import pytest

from shardfleet_local.rig import run
from shardfleet_local.rig.incidents import FleetDisturbance, chaos_scenario
from shardfleet_local.rig.outcome import chaos_options, result_of, write_result
from shardfleet_local.rig.verdict import RunVerdict
from shardfleet_ops.cli import app as application
from tests.local.rig.builders import BEGAN_MS, an_outcome

VERDICT = RunVerdict(
    records_in=100,
    records_handled_distinct=100,
    duplicates=7,
    lost=(),
    foreign=0,
    out_of_order=(),
    parents_before_children=True,
)
DONE = {"kill worker": 5, "kill manager": 2, "freeze": 1, "split": 1, "merge": 1}


def a_chaos(text=""):
    options = chaos_options(minutes=1, records_per_minute=60, folder=Path(), seed=3)
    options.plan.dice.calls = 1_000
    options.plan.dice.drawn.update({"late": 40, "cut": 50, "slow": 10})
    return replace(
        an_outcome(seconds=1),
        options=options,
        verdict=VERDICT,
        happenings=[
            FleetDisturbance(at_ms=BEGAN_MS, kind=kind, text=text)
            for kind, times in DONE.items()
            for _ in range(times)
        ],
    )


OUTCOME = a_chaos()


@pytest.mark.parametrize("seed", range(20))
def test_reshards_come_each_half_minute_and_keep_three_to_six_shards(seed):
    scenario = chaos_scenario(600_000, seed=seed)

    assert scenario == chaos_scenario(600_000, seed=seed)
    assert 63 <= sum(each.kind == "strike" for each in scenario) <= 150
    plan = [each for each in scenario if each.kind in ("split", "merge")]
    assert len(plan) == 20
    count, seen = 4, []
    for incident in plan:
        count += 1 if incident.kind == "split" else -1
        seen.append(count)
    assert min(seen) >= 3
    assert max(seen) <= 6
    assert [round(i.at * 600) for i in plan] == list(range(15, 600, 30))


def test_the_result_counts_everything():
    result = result_of(OUTCOME)

    assert result["passed"] is True
    assert (result["kills"], result["worker_kills"], result["manager_kills"]) == (7, 5, 2)
    assert (result["freezes"], result["reshards"], result["injected_errors"]) == (1, 2, 90)
    assert (result["records"], result["lost"], result["out_of_order"]) == (100, 0, 0)
    assert result["duplicates"] == 7


BROKEN = [
    {"verdict": replace(VERDICT, lost=(4, 5), records_handled_distinct=98)},
    {"verdict": replace(VERDICT, out_of_order=(9,))},
    {"verdict": replace(VERDICT, foreign=1)},
    {"verdict": replace(VERDICT, parents_before_children=False)},
    {"unsettled": {"shard": "not at its end"}},
]


@pytest.mark.parametrize("change", BROKEN)
def test_a_broken_promise_is_a_failure_with_its_records_named(change, tmp_path):
    outcome = replace(OUTCOME, **change)

    write_result(outcome, tmp_path)

    assert json.loads((tmp_path / "result.json").read_text("utf-8"))["passed"] is False
    named = json.loads((tmp_path / "broken.json").read_text("utf-8"))
    assert named["lost"] == list(outcome.verdict.lost)
    write_result(OUTCOME, tmp_path)
    assert not (tmp_path / "broken.json").exists()


@pytest.fixture
def chaos(monkeypatch, tmp_path, capsys):
    def run_it(outcome, *arguments):
        given = []
        monkeypatch.setattr(run, "run_rig", lambda options, _: given.append(options) or outcome)
        code = application.run(["chaos", "--output", str(tmp_path), *arguments])
        return code, capsys.readouterr().out, given[0]

    return run_it


def test_the_command_says_what_it_did_and_exits_with_zero(chaos, tmp_path):
    code, told, options = chaos(OUTCOME, "--minutes", "2", "--seed", "9")

    assert code == 0
    assert "7 kills, 1 freeze, 2 reshards, 90 injected errors" in told
    assert "PASSED: 100 records, 0 lost" in told
    assert (options.duration_ms, options.seed) == (120_000, 9)
    assert (tmp_path / "result.json").exists()


@pytest.mark.parametrize("change", BROKEN)
def test_the_command_exits_with_one_when_a_promise_is_broken(chaos, change):
    code, told, _ = chaos(replace(OUTCOME, **change))

    assert code == application.EXIT_FAILED
    assert "FAILED" in told


def test_the_defaults_are_ten_times_enough_for_the_goal_of_ten_minutes(chaos):
    options = chaos(OUTCOME, "--minutes", "10")[2]

    assert len(options.source.records) >= 100_000
