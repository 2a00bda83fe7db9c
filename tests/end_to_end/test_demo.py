"""The demo in short form: the default stack, IAM enforced, disturbed on purpose, and judged."""

import json

import pytest

from shardfleet_local.aws.settings import AwsBehaviour
from shardfleet_local.rig.fleet import FleetPlan
from shardfleet_local.rig.incidents import Incident
from shardfleet_local.rig.outcome import RunOptions, write_result
from shardfleet_local.rig.report import write_report
from shardfleet_local.rig.run import run_rig
from shardfleet_local.rig.source import click_stream
from tests.local.dashboard.browser import CHROMIUM, look

pytestmark = pytest.mark.processes

RECORDS = 3_000
FEED_MS = 30_000
# The whole scenario but the throttled minute, which is as long as this test.
SCENARIO = (
    Incident(at=0.10, kind="kill worker"),
    Incident(at=0.25, kind="split"),
    Incident(at=0.40, kind="kill manager"),
    Incident(at=0.55, kind="merge"),
    Incident(at=0.70, kind="kill worker"),
)
RESULT = {
    "records_in",
    "records_handled_distinct",
    "duplicates",
    "lost",
    "out_of_order_per_key",
    "parents_before_children",
    "crash_recovery_seconds",
    "reshards",
    "workers_started",
    "template_sha256",
    "wall_seconds",
}


def test_a_short_demo_with_iam_enforced_keeps_every_promise(tmp_path, seed):
    told = []
    options = RunOptions(
        source=click_stream(RECORDS, seed=seed),
        folder=tmp_path,
        seed=seed,
        plan=FleetPlan(
            enforce_iam=True,
            # As in a new account (L08), and each minute's schedule fires twice (E01).
            behaviour=AwsBehaviour(
                unkind=seed, page_items=3, account_concurrency=10, schedule_firings=2
            ),
        ),
        scenario=SCENARIO,
        feed_ms=FEED_MS,
    )

    outcome = run_rig(options, told.append)
    write_result(outcome, tmp_path)
    write_report(outcome, tmp_path)

    result = json.loads((tmp_path / "result.json").read_text("utf-8"))
    assert outcome.problems() == [], "\n".join(told)
    assert outcome.passed
    assert result.keys() >= RESULT
    assert (result["records_in"], result["records_handled_distinct"]) == (RECORDS, RECORDS)
    assert (result["lost"], result["out_of_order_per_key"]) == (0, 0)
    assert result["parents_before_children"] is True
    assert result["reshards"] == 2
    assert None not in result["crash_recovery_seconds"]
    assert outcome.aggregated >= RECORDS // 5
    assert "<svg" in (tmp_path / "report.html").read_text("utf-8")
    if CHROMIUM is not None:
        shows_the_report(tmp_path)


def shows_the_report(folder):
    """A browser draws the verdict, the charts and the story."""
    picture = folder / "seen.png"
    text = look((folder / "report.html").as_uri(), folder, picture=picture, size=(1000, 1280))

    assert "Nothing was lost, and every key kept its order." in text
    assert text.count("<svg") == 2
    assert "kill -9 of worker process" in text
    assert picture.stat().st_size > 50_000
