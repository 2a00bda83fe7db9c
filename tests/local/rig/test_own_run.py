"""A user's own handler in a real fleet: what it prints, what it handles, and where it stops."""

import json

import pytest

from shardfleet.domain.slots.failure import FailureKind
from shardfleet_local.own import own_run as own_runs
from shardfleet_local.own.own_run import HandledSoFar, OwnRunOptions, is_hopeless, own_run
from shardfleet_local.rig.source import read_source
from shardfleet_ops.explain.fleet_view import failures
from tests.domain.builders import a_failing_slot

HANDLER = """
import json

def handle(batch):
    for record in batch:
        order = json.loads(record.data)
        if order["amount"] < 0:
            raise ValueError("a negative amount")
        batch.checkpoint(record)
    print("orders", len(batch))
"""


def run_in(folder, handler, *, key=None, shards=1, printed=lambda _: None):
    return own_run(
        OwnRunOptions(
            handler=handler,
            folder=folder,
            source=read_source(str(folder / "orders.jsonl"), key),
            shards=shards,
        ),
        say=lambda _: None,
        printed=printed,
    )


@pytest.fixture
def patient(monkeypatch):
    """However slow the machine: a run ends by what it knows, not because nothing has moved."""
    monkeypatch.setattr(own_runs, "STILL_MOST_MS", 3_600_000)


@pytest.mark.processes
def test_a_failing_record_stops_its_shard_at_its_line_and_the_others_go_on(tmp_path):
    (tmp_path / "shop").mkdir()
    (tmp_path / "shop/orders.py").write_text(HANDLER)
    orders = [{"customer": f"c{n % 20}", "amount": -1 if n == 150 else n} for n in range(300)]
    (tmp_path / "orders.jsonl").write_text("".join(json.dumps(each) + "\n" for each in orders))
    printed = []

    result = run_in(
        tmp_path, "shop.orders:handle", key="customer", shards=2, printed=printed.append
    )

    assert not result.passed
    (stop,) = result.stops
    assert stop.line == 151
    assert "a negative amount" in stop.note.error
    assert 151 in result.verdict.lost
    assert min(result.verdict.lost) == 151
    assert 150 <= result.verdict.records_handled_distinct < 300
    assert (result.verdict.out_of_order, result.verdict.foreign) == ((), 0)
    assert any(line.startswith("orders ") for line in printed)


def a_row(kind, times=1):
    return failures([a_failing_slot(kind=kind, times=times)], now_ms=1_000_000)


@pytest.mark.parametrize("kind", ["LOAD", "IMPORT", "SIGNATURE", "RIGHT"])
def test_what_only_a_person_mends_ends_the_run_at_once(kind):
    assert is_hopeless(a_row(FailureKind(kind)), stops=0, still_ms=0)


def test_a_call_that_hangs_ends_it_ten_seconds_after_its_time_out_at_most():
    assert is_hopeless(a_row(FailureKind.TIME_OUT), stops=0, still_ms=10_000)
    assert not is_hopeless(a_row(FailureKind.TIME_OUT), stops=0, still_ms=9_000)


@pytest.mark.parametrize("kind", ["MEMORY", "EXIT", "TURN"])
def test_a_crash_may_be_a_records_which_is_found_out_first(kind):
    assert not is_hopeless(a_row(FailureKind(kind), times=4), stops=0, still_ms=40_000)
    assert is_hopeless(a_row(FailureKind(kind), times=5), stops=0, still_ms=40_000)


@pytest.mark.parametrize("kind", ["MEMORY", "EXIT", "TURN"])
def test_once_it_is_found_out_the_other_shards_have_time_to_go_on(kind):
    assert not is_hopeless(a_row(FailureKind(kind), times=3), stops=1, still_ms=40_000)
    assert not is_hopeless(a_row(FailureKind(kind), times=4), stops=1, still_ms=3_000)
    assert is_hopeless(a_row(FailureKind(kind), times=4), stops=1, still_ms=4_000)


@pytest.mark.processes
def test_a_handler_that_always_ends_the_process_ends_the_run_with_a_line_that_does(
    tmp_path, patient
):
    (tmp_path / "orders.py").write_text("import os\ndef handle(batch): os._exit(3)\n")
    (tmp_path / "orders.jsonl").write_text('{"a": 1}\n' * 20)

    result = run_in(tmp_path, "orders:handle")

    (failure,) = result.failures
    assert failure.kind is FailureKind.EXIT
    assert result.stops[0].line is not None
    assert result.verdict.records_handled_distinct == 0


@pytest.mark.processes
def test_a_handler_that_works_here_and_not_in_lambda_ends_the_run_with_its_cause(tmp_path, patient):
    source = "import os\nif 'AWS_LAMBDA_FUNCTION_NAME' in os.environ:\n    raise KeyError('HOME')\n"
    (tmp_path / "orders.py").write_text(source + "def handle(batch): ...\n")
    (tmp_path / "orders.jsonl").write_text('{"a": 1}\n' * 20)

    result = run_in(tmp_path, "orders:handle")

    assert not result.passed
    (failure,) = result.failures
    assert failure.kind is FailureKind.IMPORT
    assert "KeyError: 'HOME'" in failure.said
    assert "orders.py, line 3)" in failure.said


@pytest.mark.processes
def test_a_record_of_ten_mebibytes_comes_through(tmp_path):
    (tmp_path / "orders.py").write_text(
        "def handle(batch):\n    print('largest', max(len(record.data) for record in batch))\n"
    )
    largest = json.dumps({"x": "x" * (10 * 2**20 - 20)})
    (tmp_path / "orders.jsonl").write_text(f'{{"x": 1}}\n{largest}\n')
    printed = []

    result = run_in(tmp_path, "orders:handle", printed=printed.append)

    assert result.passed
    assert f"largest {len(largest)}" in printed


def test_how_far_it_is_is_told_every_two_seconds_while_it_goes_on():
    progress = HandledSoFar(5_000, 0)
    looks = ((1_999, 1_000), (2_000, 1_200), (3_999, 3_000), (4_000, 1_200), (4_500, 3_000))

    told = [progress.news(handled, now_ms=at_ms) for at_ms, handled in looks]

    assert told == [
        None,
        "1,200 of 5,000 records handled",
        None,
        None,
        "3,000 of 5,000 records handled",
    ]
    assert progress.news(5_000, now_ms=9_000) is None
