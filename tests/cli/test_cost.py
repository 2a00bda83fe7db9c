"""`shardfleet cost`: the ledger, beside an estimate and the stream's own price."""

import json
import time

import boto3
import pytest

from shardfleet.config import FleetConfig
from shardfleet.engine.state.ledger import day_of
from shardfleet_ops.cli import app as application
from shardfleet_ops.cli import cost as command
from tests.cli.conftest import AROUND, CONFIG
from tests.cost.fleets import FLEETS, WATCH
from tests.cost.page import said_of

HOUR_MS = 3_600_000


@pytest.fixture
def running(fleet, monkeypatch):
    """A fleet with two open shards, and half a day in its ledger."""
    stream = boto3.client("kinesis", region_name="eu-central-1")
    stream.create_stream(StreamName=CONFIG.stream_arn.rpartition("/")[2], ShardCount=2)
    now_ms = int(time.time() * 1_000)
    used = {"mb_ms": 256 * 12 * HOUR_MS, "requests": 720, "write_tenths": 1_000}
    page = {"used": used, "metrics": ["lag", "records"]}
    times = {"began_ms": now_ms - 12 * HOUR_MS, "until_ms": now_ms}
    fleet.put_document(f"ledger {day_of(now_ms)}", "manager", page | times)
    monkeypatch.setattr(command, "around_of", lambda name: AROUND)
    return fleet


def output(capsys, *arguments):
    assert application.run(["cost", *arguments]) == 0
    return capsys.readouterr().out


def test_json_has_days_rate_estimate_and_the_stream(running, capsys):
    found = json.loads(output(capsys, "--json"))

    (day,) = found["days"]
    assert day["by_item"]["lambda"] == pytest.approx(0.25 * 43_200 * 0.0000133334 + 720 * 2e-7)
    assert (day["metrics"], day["covered_ms"]) == (2, 12 * HOUR_MS)
    assert found["per_day"] == pytest.approx(2 * day["total"])
    assert (found["estimate"]["shards"], found["estimate"]["workers"]) == (2, 1)
    assert found["estimate"]["calm"]["by_item"]["alarms"] == pytest.approx(20 * 0.1 + 0.5)
    assert found["stream_per_month"] == pytest.approx(2 * 10.95)
    assert found["part_of_stream"] == pytest.approx(found["per_month"] / 21.9)


def test_in_words_every_figure_has_its_date_and_what_it_stands_beside(running, capsys):
    out = output(capsys)

    assert "List prices of 2026-11-20, us-east-1" in out
    assert "12 h" in out
    assert "At this rate: $" in out
    assert "a month, alarms and dashboards not counted" in " ".join(out.split())
    assert "Estimate for 2 shards read all the time by 1 workers: $" in out
    assert "The stream's shards themselves: $21.90 a month" in out


def test_the_objective_is_told(running, capsys, monkeypatch):
    monkeypatch.setattr(
        "shardfleet_ops.cli.fleet_access.fleet_config",
        lambda stack: CONFIG.__class__(
            **{
                **{name: getattr(CONFIG, name) for name in ("fleet", "stream_arn", "lease_table")},
                "state_table": "state",
                "lag_objective_ms": 60_000,
            }
        ),
    )
    out = output(capsys)

    assert "Objective: no shard more than 60 s behind." in out


@pytest.mark.parametrize("priced", FLEETS, ids=lambda priced: priced.name)
def test_the_command_says_of_six_fleets_what_the_page_says(fleet, capsys, monkeypatch, priced):
    stream = boto3.client("kinesis", region_name="eu-central-1")
    name = CONFIG.stream_arn.rpartition("/")[2]
    stream.create_stream(StreamName=name, ShardCount=priced.shards)
    around = {**AROUND, **WATCH, "worker_mb": priced.worker_mb}
    monkeypatch.setattr(command, "around_of", lambda _: around)
    names = {each: getattr(CONFIG, each) for each in ("fleet", "stream_arn", "lease_table")}
    monkeypatch.setattr(
        "shardfleet_ops.cli.fleet_access.fleet_config",
        lambda _: FleetConfig(**names, state_table="state", **priced.config),
    )
    found = json.loads(output(capsys, "--json"))["estimate"]
    assert round(found[priced.state.value]["per_month"], 2) == said_of(priced)


def test_ones_own_prices_are_used_and_wrong_ones_refused(running, capsys, tmp_path):
    file = tmp_path / "prices.json"
    file.write_text('{"shard_hour": 1.0, "as_of": "2027-01-01"}')
    assert "$1460.00 a month" in output(capsys, "--prices", str(file))
    for text, message in (("{", "--prices"), ("[]", "a JSON object"), ('{"x": 1}', "no such")):
        file.write_text(text)
        assert application.run(["cost", "--prices", str(file)]) == application.EXIT_WRONG_INPUT
        assert message in capsys.readouterr().err


def test_an_empty_ledger_says_so(running, capsys, monkeypatch):
    running.state.delete_item(
        Key={"kind": f"ledger {day_of(time.time() * 1_000)}", "id": "manager"}
    )
    out = output(capsys)

    assert "The ledger is empty" in out
    assert "not known yet" in out
