"""Events as metrics and log lines."""

import io
import json
import logging
import threading

import pytest
from msgspec.structs import replace

from shardfleet.adapters.telemetry import metrics as measured
from shardfleet.adapters.telemetry.emf import FLUSH_MS, EmfEventSink, Telling
from shardfleet.domain.reasons import HoldsFewest
from shardfleet.events.base import Event, LeaseEvent, Level
from shardfleet.events.delivery import (
    BatchFailed,
    BatchHandled,
    ReadDelayed,
    RecordsFiltered,
)
from shardfleet.events.manager import (
    LeaseAssigned,
    ManagerTurnDone,
    ManagerTurnFailed,
)
from shardfleet.events.worker import SlotDelayed, TurnBegun, TurnEnded, TurnEnding, WorkerBeat
from tests.event_kinds import event_kinds

TURN = ManagerTurnDone(
    total_leases=4,
    total_shards=5,
    unclaimed_leases=1,
    expired_leases=0,
    stopped_shards=2,
    unreadable_leases=1,
    paused_leases=0,
    sleeping_leases=3,
    sleep_off=0,
    unread_shards=0,
    hash_range_holes=0,
    millis_behind_latest_max=7_000,
    millis_behind_latest_min=30,
    leases_of_unknown_lag=1,
    slots_wanted=3,
    slots_running=2,
    slots_missing=1,
    duration_ms=120,
)
TURN_ENDED = TurnEnded(
    slot_id="s0001",
    worker_id="orders-s0001",
    outcome="CONTINUE",
    reason=TurnEnding.TIME,
    held_leases=6,
    duration_ms=1,
)


class StoppedClock:
    def __init__(self):
        self.ms = 1_000

    def now_ms(self):
        return 1_767_225_600_000 + self.ms

    def monotonic_ms(self):
        return self.ms


@pytest.fixture
def clock():
    return StoppedClock()


@pytest.fixture
def out():
    return io.StringIO()


@pytest.fixture
def sink(clock, out):
    return EmfEventSink("orders", clock=clock, stream=out, telling=Telling(all_metrics=True))


def lines(out):
    return [json.loads(line) for line in out.getvalue().splitlines()]


def logs(out):
    return [line for line in lines(out) if "_aws" not in line]


def metrics(out):
    return [line for line in lines(out) if "_aws" in line]


def handled(shard_id, *, done=3, lag_ms=50):
    return BatchHandled(
        lease_key=shard_id,
        worker_id="orders-s0001",
        records=5,
        done=done,
        attempt=1,
        duration_ms=12,
        millis_behind_latest=lag_ms,
    )


TOLD = {
    "fleet": "orders",
    "total_leases": [4],
    "total_shards": [5],
    "unclaimed_leases": [1],
    "expired_leases": [0],
    "stopped_shards": [2],
    "unreadable_leases": [1],
    "paused_leases": [0],
    "sleeping_leases": [3],
    "sleep_off": [0],
    "unread_shards": [0],
    "hash_range_holes": [0],
    "millis_behind_latest": [7_000],
    "least_millis_behind_latest": [30],
    "leases_of_unknown_lag": [1],
    "slots_wanted": [3],
    "slots_running": [2],
    "slots_missing": [1],
    "manager_turn_ms": [120],
    "records": [0],
    "broken": [3],
    "uncovered": [1],
    "trouble": [6],
}


IN_MILLISECONDS = {"millis_behind_latest", "least_millis_behind_latest", "manager_turn_ms"}


def test_a_manager_turn_is_these_metrics_of_the_fleet_and_no_others_told_at_once(sink, out):
    sink.emit(TURN)
    (line,) = metrics(out)
    (directive,) = line.pop("_aws")["CloudWatchMetrics"]
    assert directive == {
        "Namespace": "shardfleet",
        "Dimensions": [["fleet"]],
        "Metrics": [
            {"Name": name, "Unit": "Milliseconds" if name in IN_MILLISECONDS else "Count"}
            for name in TOLD
            if name != "fleet"
        ],
    }
    assert line == TOLD


def test_records_are_added_up_per_shard_and_the_greatest_lag_of_each_counts(sink, out):
    sink.emit(handled("shardId-000000000000", lag_ms=50))
    sink.emit(handled("shardId-000000000001", done=4, lag_ms=60))
    sink.emit(handled("shardId-000000000001", done=5, lag_ms=10))
    sink.flush()
    amounts, by_shard = metrics(out)
    assert (amounts["handler_calls"], amounts["handler_busy_ms"]) == ([3], [36])
    assert by_shard["records"] == [3, 9]
    assert by_shard["records_by_shard"] == {"shardId-000000000000": 3, "shardId-000000000001": 9}
    assert by_shard["handler_ms"] == [12, 12]
    assert by_shard["millis_behind_latest"] == [50, 60]


def test_a_fleet_whose_filters_leave_nothing_is_not_silent(sink, out):
    sink.emit(RecordsFiltered(lease_key="shardId-000000000000", count=4))
    sink.emit(handled("shardId-000000000000", done=2))
    sink.flush()

    assert (total(out, "records_filtered"), total(out, "records")) == (4, 6)


def test_shard_ids_are_metadata_of_the_lags_and_no_dimension(sink, out):
    sink.emit(handled("shardId-000000000000", lag_ms=50))
    sink.emit(handled("shardId-000000000001", lag_ms=60))
    sink.flush()
    line = metrics(out)[-1]
    assert line["millis_behind_latest_by_shard"] == {
        "shardId-000000000000": 50,
        "shardId-000000000001": 60,
    }
    assert line["_aws"]["CloudWatchMetrics"][0]["Dimensions"] == [["fleet"]]


def test_worker_leases_are_told_at_the_end_of_a_turn(sink, out):
    sink.emit(TURN_ENDED)
    sink.flush()
    assert metrics(out)[0]["worker_leases"] == [6]


def test_every_warning_and_error_is_a_metric_named_after_its_event(sink, out):
    sink.emit(ManagerTurnFailed(error="no"))
    sink.emit(a_failure("ValueError"))
    sink.flush()
    assert (total(out, "manager_turn_failed"), total(out, "batch_failed")) == (1, 1)


def test_metrics_are_written_each_minute_without_being_asked(sink, clock, out):
    sink.emit(handled("shardId-000000000000"))
    assert metrics(out) == []
    clock.ms += FLUSH_MS
    sink.emit(handled("shardId-000000000000"))
    assert sum(sum(line.get("records", [])) for line in metrics(out)) == 6
    told = len(metrics(out))
    sink.emit(handled("shardId-000000000000"))
    assert len(metrics(out)) == told


def test_what_was_counted_is_told_within_a_minute_although_nothing_happens_any_more(
    sink, clock, out
):
    """A stopped shard, or a handler that hangs, brings no event: the worker's sign of life does."""
    sink.emit(a_failure("ValueError"))
    clock.ms += FLUSH_MS
    sink.emit(WorkerBeat(slot_id="s0001", worker_id="orders-s0001", held_leases=6))
    assert (total(out, "batch_failed"), total(out, "worker_leases")) == (1, 6)


def test_metrics_are_written_as_often_as_the_configuration_says(clock, out):
    sink = EmfEventSink(
        "orders", clock=clock, stream=out, telling=Telling(flush_ms=2_000, all_metrics=True)
    )
    clock.ms += 2_000
    sink.emit(handled("shardId-000000000000"))
    assert metrics(out)


def test_an_unknown_lag_is_no_lag_of_zero(sink, out):
    sink.emit(handled("shardId-000000000000", lag_ms=-1))
    sink.flush()
    assert not [line for line in metrics(out) if "millis_behind_latest" in line]


def an_assignment(kind):
    return LeaseAssigned(lease_key="a", worker_id="w", kind=kind, reason=HoldsFewest(2))


def total(out, metric):
    return sum(sum(line.get(metric, [])) for line in metrics(out))


def test_a_lease_that_changes_its_owner_is_a_switch_and_a_first_owner_is_none(sink, out):
    for kind in ("UNOWNED", "EXPIRED", "STEAL"):
        sink.emit(an_assignment(kind))
    sink.flush()
    assert total(out, "lease_switches") == 2


def test_throttled_calls_of_any_service_are_throttles_and_other_failures_are_not(sink, out):
    sink.emit(ReadDelayed(lease_key="a", error="Throttled", failures=1))
    sink.emit(ReadDelayed(lease_key="a", error="OutcomeUnknown", failures=2))
    sink.emit(SlotDelayed(slot_id="s0001", worker_id="w", error="Throttled"))
    sink.flush()
    assert (total(out, "throttles"), total(out, "read_delayed")) == (2, 2)
    assert total(out, "slot_delayed") == 1


def test_turn_and_recovery_times_are_metrics_and_an_orderly_turn_has_no_recovery(sink, out):
    begun = {"slot_id": "s0001", "worker_id": "w", "epoch": 2}
    sink.emit(TurnBegun(**begun, suspicious=True, recovery_ms=1_700))
    sink.emit(TurnBegun(**begun, suspicious=False))
    sink.flush()
    assert metrics(out)[0]["recovery_ms"] == [1_700]


def test_a_metric_per_shard_is_an_option_and_comes_besides_the_fleets(clock, out):
    sink = EmfEventSink(
        "orders", clock=clock, stream=out, telling=Telling(all_metrics=True, shard_metrics=True)
    )
    sink.emit(handled("shardId-000000000000", lag_ms=50))
    sink.emit(handled("shardId-000000000001", lag_ms=60))
    sink.flush()
    dimensions = [line["_aws"]["CloudWatchMetrics"][0]["Dimensions"] for line in metrics(out)]
    assert dimensions == [[["fleet"]], [["fleet"]], [["fleet", "shard"]], [["fleet", "shard"]]]
    last = metrics(out)[-1]
    assert (last["shard"], last["records"]) == ("shardId-000000000001", [3])
    assert last["millis_behind_latest"] == [60]


def a_failure(error):
    return BatchFailed(
        lease_key="a", worker_id="w", position="1:0", attempt=1, reason="retried", error=error
    )


def test_a_text_in_an_event_forges_no_line_and_no_metric(sink, out):
    """CloudWatch takes any line with a member `_aws` for metrics: ours begin lines of their own."""
    metric = {"Namespace": "x", "Dimensions": [[]], "Metrics": [{"Name": "forged"}]}
    forged = json.dumps({"_aws": {"Timestamp": 1, "CloudWatchMetrics": [metric]}, "forged": 1})
    sink.emit(a_failure(f"ValueError: x\n{forged}\r{forged}\u2028{forged}"))
    line, rest = out.getvalue().split("\n")
    assert "_aws" not in json.loads(line)
    assert (rest, "\r" in line) == ("", False)


def test_no_event_has_a_field_for_a_payload_or_a_partition_key():
    private = {"data", "payload", "record", "partition_key", "explicit_hash_key", "key"}
    for kind in event_kinds():
        assert not private & set(kind.__struct_fields__)


def test_a_line_never_passes_the_limits_of_the_format(sink, out):
    """EMF: 100 metrics of 100 values per line; nothing is lost by the splitting."""
    for n in range(250):
        sink.emit(handled(f"shardId-{n:012d}", lag_ms=n))
        sink.emit(TURN_ENDED)
    sink.emit(TURN)
    told = {"worker_leases": [], "total_leases": [], "millis_behind_latest": [], "records": []}
    for line in metrics(out):
        for metric, values in told.items():
            assert len(line.get(metric, [])) <= 100
            values.extend(line.get(metric, []))
    assert told["worker_leases"] == [6] * 250
    assert told["total_leases"] == [4]
    assert sorted(told["millis_behind_latest"]) == sorted([*range(250), 7_000])
    assert sum(told["records"]) == 750


def test_all_metrics_that_there_are_fit_one_line():
    """EMF: a line of more than 100 metrics is dropped; Powertools prints at 100, not as we do."""
    known = [measured.READINGS, measured.AMOUNTS, measured.SHARD_AMOUNTS, measured.SHARD_PEAKS]
    names = {name for kind in known for fields_ in kind.values() for name in fields_.values()}
    names |= {*measured.COUNTED.values(), "throttles", "lease_switches"}
    # Any of them may be a metric of its own, by its level.
    names |= {kind.__name__ for kind in event_kinds() if kind is not Event}
    assert len(names) < 100


@pytest.mark.parametrize("value", [float("nan"), float("inf"), -float("inf"), 2**361])
def test_a_value_that_cloudwatch_refuses_spoils_no_line(sink, out, value):
    """MetricDatum: no NaN, no infinity, nothing beyond 2^360 (in JSON, there is no such number)."""
    sink.emit(replace(TURN, duration_ms=value))
    (line,) = metrics(out)
    assert "manager_turn_ms" not in line
    assert line["total_leases"] == [4]


def test_nothing_is_written_when_there_is_nothing_to_tell(sink, out):
    sink.flush()
    assert out.getvalue() == ""


def test_an_event_is_one_line_of_json_with_its_name_level_and_fields(sink, out):
    sink.about(request_id="request-1")
    sink.emit(ManagerTurnFailed(error="no"))
    (line,) = logs(out)
    assert line.pop("timestamp")
    assert line == {
        "level": "ERROR",
        "message": "ManagerTurnFailed",
        "service": "shardfleet",
        "fleet": "orders",
        "request_id": "request-1",
        "error": "no",
    }


def test_events_below_the_level_are_measured_and_not_logged(clock, out):
    sink = EmfEventSink("orders", clock=clock, stream=out, telling=Telling(level=Level.ERROR))
    sink.emit(TURN)
    sink.flush()
    assert logs(out) == []
    assert metrics(out)


class Awkward(LeaseEvent, frozen=True, kw_only=True):
    """Has fields that a line has, too."""

    name: str
    message: str
    timestamp: tuple


def test_a_field_named_like_one_of_a_line_is_told_all_the_same(sink, out):
    sink.emit(Awkward(lease_key="a", name="n", message="m", timestamp=("x",)))
    (line,) = logs(out)
    assert (line["name"], line["message_"], line["timestamp_"]) == ("n", "m", ["x"])
    assert line["message"] == "Awkward"


def test_a_line_is_as_powertools_would_write_it(clock, out, monkeypatch):
    """Text for text, with the trace that Lambda names: queries of the logs know the form."""
    from aws_lambda_powertools.logging.formatter import (  # noqa: PLC0415 - for this test alone
        LambdaPowertoolsFormatter,
    )

    monkeypatch.setenv("_X_AMZN_TRACE_ID", "Root=1-5759e988-bd862e3fe1be46a9;Parent=x;Sampled=1")
    sink = EmfEventSink("orders", clock=clock, stream=out)
    sink.about(request_id="request-1")
    sink.emit(BatchFailed(lease_key="ä", position="1:0", attempt=1, reason="x", error="é"))

    theirs = LambdaPowertoolsFormatter(
        service="shardfleet", utc=True, location=None, fleet="orders", request_id="request-1"
    )
    told = {"lease_key": "ä", "position": "1:0", "attempt": 1, "reason": "x", "error": "é"}
    record = logging.makeLogRecord({"msg": "BatchFailed", "levelname": "WARNING", **told})
    record.created, record.msecs = clock.now_ms() / 1000, clock.now_ms() % 1000
    assert out.getvalue() == theirs.format(record) + "\n"


class ManagerTurnDoneInWords(Event, frozen=True, kw_only=True):
    total_leases: object = "four"


def test_an_event_that_cannot_be_told_stops_nothing(sink, out, capsys, monkeypatch):
    words = {"total_leases": "total_leases"}
    monkeypatch.setattr(measured, "READINGS", {"ManagerTurnDoneInWords": words})
    sink.emit(ManagerTurnDoneInWords())
    assert "ManagerTurnDoneInWords lost" in capsys.readouterr().err
    sink.emit(ManagerTurnFailed(error="no"))
    assert logs(out)


def test_the_users_powertools_settings_and_metrics_do_not_mix_with_ours(
    clock, out, capsys, monkeypatch
):
    """The handler shares the process: neither its namespace nor its dimensions are ours."""
    from aws_lambda_powertools import Metrics  # noqa: PLC0415 - has state of the whole process

    monkeypatch.setenv("POWERTOOLS_SERVICE_NAME", "theirs")
    monkeypatch.setenv("POWERTOOLS_METRICS_NAMESPACE", "theirs")
    sink = EmfEventSink("orders", clock=clock, stream=out)
    theirs = Metrics()
    theirs.add_metric(name="their_metric", unit="Count", value=1)
    sink.emit(TURN)
    sink.flush()
    theirs.flush_metrics()
    assert "their_metric" not in out.getvalue()
    (line,) = metrics(out)
    assert line["_aws"]["CloudWatchMetrics"][0]["Dimensions"] == [["fleet"]]
    assert line["_aws"]["CloudWatchMetrics"][0]["Namespace"] == "shardfleet"
    assert "total_leases" not in capsys.readouterr().out


def test_events_from_many_threads_make_whole_lines_and_all_count(clock, out):
    sink = EmfEventSink("orders", clock=clock, stream=out, telling=Telling(level=Level.DEBUG))

    def emit():
        for _ in range(50):
            sink.emit(handled("shardId-000000000000"))

    threads = [threading.Thread(target=emit) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    sink.flush()
    assert len(logs(out)) == 400
    assert sum(sum(line.get("records", [])) for line in metrics(out)) == 1_200


def test_a_line_is_written_by_one_thread_at_a_time(clock):
    class Watched(io.StringIO):
        def write(self, text):
            held.append(sink._lock.locked())
            return super().write(text)

    held = []
    sink = EmfEventSink("orders", clock=clock, stream=Watched())
    sink.emit(ManagerTurnFailed(error="no"))
    clock.ms += FLUSH_MS
    sink.emit(TURN)
    sink.flush()
    assert held
    assert all(held)


def test_every_measured_field_is_one_of_its_event():
    """A renamed field would silence a metric (hazard H18)."""
    tables = (measured.READINGS, measured.AMOUNTS, measured.SHARD_AMOUNTS, measured.SHARD_PEAKS)
    kinds = {kind.__name__: kind for kind in event_kinds()}
    for name, wanted in (item for table in tables for item in table.items()):
        known = set(kinds[name].__struct_fields__)
        assert not set(wanted) - known


def test_it_tells_how_many_bytes_it_wrote_and_which_metrics_are_billed(clock, out):
    sink = EmfEventSink(
        "orders", clock=clock, telling=Telling(all_metrics=True, shard_metrics=True), stream=out
    )
    sink.emit(TURN)
    sink.emit(handled("shard-1"))
    sink.flush()
    assert sink.told_bytes == len(out.getvalue().encode())
    assert {"total_leases", "records", "records@shard-1"} <= sink.metric_names


def test_a_reason_is_logged_in_words(sink, out):
    sink.emit(LeaseAssigned(lease_key="a", worker_id="w", kind="UNOWNED", reason=HoldsFewest(2)))

    assert logs(out)[0]["reason"] == "that worker had the fewest shards (2)"
