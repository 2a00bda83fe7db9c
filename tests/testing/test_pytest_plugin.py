"""The plugin: every kind of handler and of records, checks, options, and what it says is wrong."""

import subprocess
import sys
from importlib.metadata import entry_points

import pytest

from shardfleet.errors import ConfigurationError
from shardfleet_testkit.pytest_plugin import Fleet
from shardfleet_testkit.simulation.play import records_of
from shardfleet_testkit.simulation.sink import Sink, SinkError, current_sink

HOURS = 0.05
# Which seed shows what depends on every call that a fleet makes: the first that does will do.
SEEDS_MOST = 60
RECORDS = [(f"key-{n % 3}", {"n": n}) for n in range(60)]


class Config:
    """A command line."""

    def __init__(self, **options):
        self.options = {"--fleet-seed": None, "--fleet-only": None, "--fleet-log": None} | options

    def getoption(self, name):
        return self.options[name]


def fleet_of(sink, **options):
    options = {f"--fleet-{name}": value for name, value in options.items()}
    return Fleet(Config(**options), sink, test="test_mine.py::test_it")


def test_the_plugin_is_found_by_pytest_and_needs_neither_boto3_nor_the_simulation_to_load():
    [found] = entry_points(group="pytest11", name="shardfleet")
    program = (
        f"import sys, {found.value}\n"
        "assert not {'boto3', 'botocore', 'google'} & set(sys.modules)\n"
        "assert 'shardfleet.engine' not in sys.modules\n"
        "import shardfleet_testkit.simulation\n"
        "assert not {'boto3', 'botocore'} & set(sys.modules)"
    )

    subprocess.run([sys.executable, "-c", program], check=True, timeout=120)


def test_a_handler_of_lambda_events_runs_with_partial_failures(fleet, sink):
    failed = set()

    def handler(event, context):
        assert 0 < context.get_remaining_time_in_millis() <= 10_000
        assert context.function_name
        for record in event["Records"]:
            number = record["kinesis"]["sequenceNumber"]
            if number not in failed:
                failed.add(number)
                return {"batchItemFailures": [{"itemIdentifier": number}]}
            sink.put(number, record["kinesis"]["data"])
        return None

    [run] = fleet.run(handler, RECORDS, hours=HOURS)

    assert run.records == len(RECORDS)
    assert 20 < len(sink) <= len(RECORDS)


def test_a_native_handler_runs_with_partial_failures(fleet, sink):
    failed = set()

    def handle(batch):
        for record in batch:
            name = f"{record.sequence_number}:{record.sub_sequence_number}"
            if name not in failed:
                failed.add(name)
                return {"batchItemFailures": [{"itemIdentifier": name}]}
            sink.put(name, record.partition_key)
        return None

    [run] = fleet.run(handle, RECORDS, hours=HOURS)

    assert run.records == len(sink) == len(RECORDS)


def test_a_reply_that_means_nothing_is_found_with_what_is_allowed(sink):
    with pytest.raises(pytest.fail.Exception, match="InvalidReply: the handler returned a str; it"):
        fleet_of(sink).run(lambda batch: "ok", RECORDS, hours=HOURS)


def test_a_coroutine_function_sleeps_in_virtual_time(fleet, sink):
    async def handle(batch):
        import asyncio  # noqa: PLC0415  # As a user's function has it.

        for record in batch:
            await asyncio.sleep(2)
            await sink.pause()
            sink.put(f"{record.sequence_number}:{record.sub_sequence_number}", record.shard_id[:5])

    [run] = fleet.run(handle, RECORDS, hours=HOURS)

    assert len(sink) == len(RECORDS)
    assert run.virtual_ms > HOURS * 3_600_000


def test_a_synchronous_handler_may_run_a_loop_of_its_own(fleet, sink):
    def handle(batch):
        import asyncio  # noqa: PLC0415  # As a user's function has it.

        async def inside():
            await sink.pause()
            sink.put(batch[0].partition_key, 1)

        asyncio.run(inside())

    fleet.run(handle, RECORDS, hours=HOURS)

    assert len(sink) == 3


def test_old_state_written_back_by_a_worker_that_was_frozen_is_found(sink):
    def handle(batch):
        for record in batch:
            position = (int(record.sequence_number), record.sub_sequence_number)
            row = sink.get(record.partition_key, {"count": 0, "last": (0, 0)})
            if row["last"] < position:
                sink.put(record.partition_key, {"count": row["count"] + 1, "last": position})

    fleet = fleet_of(sink, only="freeze_at_sink")

    with pytest.raises(pytest.fail.Exception, match="EffectsAsWithoutFaults"):
        fleet.run(handle, RECORDS * 5, hours=HOURS, seeds=SEEDS_MOST)


def test_a_record_that_is_never_handled_is_found_with_the_handlers_own_words(sink):
    def handle(batch):
        for record in batch:
            if b'"n": 17' in record.data:
                raise KeyError(record.partition_key)

    with pytest.raises(pytest.fail.Exception) as caught:
        fleet_of(sink).run(handle, RECORDS, hours=HOURS)

    assert "NoRecordLost" in str(caught.value)
    assert "KeyError" in str(caught.value)
    assert "without any fault" in str(caught.value)


def test_a_check_of_ones_own_is_told_with_its_message(sink):
    def handle(batch):
        sink.append("log", batch[0].sequence_number)

    def check(seen):
        assert len(seen["log"]) < 5, "too many batches"

    with pytest.raises(pytest.fail.Exception, match="too many batches"):
        fleet_of(sink, only="").run(handle, RECORDS, hours=HOURS, effects="any", check=check)


def test_a_seed_of_the_command_line_replaces_those_of_the_test(sink, tmp_path):
    log = tmp_path / "events.log"
    fleet = fleet_of(sink, seed=9, log=log)

    runs = fleet.run(lambda batch: None, RECORDS, hours=HOURS, seeds=3)

    assert [run.seed for run in runs] == [9]
    assert sum("handler.run" in line for line in log.read_text().splitlines()) > 10


def test_one_seed_gives_one_run_with_a_handler_in_threads_too(sink):
    def handle(batch):
        for record in batch:
            sink.append(record.partition_key, record.data.decode())

    runs, effects = [], []
    for _ in range(2):
        runs += fleet_of(sink).run(handle, RECORDS, hours=HOURS, effects="any", seed=3)
        effects.append(list(sink.effects))

    assert runs[0] == runs[1]
    assert effects[0] == effects[1]
    assert runs[0].faults


def test_a_module_that_is_named_forgets_what_it_knew_with_each_invocation(
    fleet, sink, tmp_path, monkeypatch
):
    (tmp_path / "forgetful_shop.py").write_text(
        "from shardfleet_testkit.simulation.sink import current_sink\n"
        "calls = []\n"
        "def handle(batch):\n"
        "    calls.append(batch)\n"
        "    if len(calls) == 1:\n"
        "        current_sink().append('fresh', 1)\n"
    )
    monkeypatch.syspath_prepend(str(tmp_path))

    fleet.run("forgetful_shop:handle", RECORDS, hours=HOURS, effects="any")

    assert len(sink["fresh"]) > 1


def test_outside_of_a_fleet_the_sink_is_a_plain_store():
    sink = Sink()
    sink.add("a")
    sink.append("b", 1)
    sink.update("c", lambda old: old + 1, default=1)

    assert dict(sink.values) == {"a": 1, "b": [1], "c": 2}
    assert [effect.by for effect in sink.effects] == ["", "", ""]
    with pytest.raises(RuntimeError, match="simulated fleet"):
        current_sink()


def test_a_sink_that_refuses_or_does_not_answer_raises_and_says_so(sink):
    seen = set()

    def handle(batch):
        try:
            for _ in range(10):  # One call in a hundred meets a fault.
                sink.put(batch[0].partition_key, 1)
        except SinkError as error:
            seen.add(str(error).partition(": ")[2])
            raise

    fleet = fleet_of(sink, only="sink_refuses,sink_no_answer")
    for seed in range(1, SEEDS_MOST):
        fleet.run(handle, RECORDS, hours=HOURS, seed=seed)
        if len(seen) > 1:
            break

    assert seen == {"refused, nothing happened", "no answer, it may have happened or not"}


@pytest.mark.parametrize(
    ("given", "key", "message"),
    [
        ([], None, "none found"),
        ([("a", b"", 1)], None, "record 1: .* a pair of key and data expected"),
        ([("", b"x")], None, "a partition key of 0 characters"),
        ([("a", {1, 2})], None, "record 1: the data is no JSON"),
        ([{"b": 1}], "a", "record 1: no field 'a'; found: b"),
    ],
)
def test_records_that_cannot_be_put_are_named(given, key, message, sink):
    with pytest.raises(ConfigurationError, match=message):
        fleet_of(sink).run(lambda batch: None, given, key=key)


def test_a_file_of_json_lines_is_read_and_its_wrong_line_named(tmp_path):
    path = tmp_path / "views.jsonl"
    path.write_text('{"who": "a", "n": 1}\n\n{"who": 7}\n{"who"\n')

    with pytest.raises(ConfigurationError, match=r"views.jsonl, line 4: no JSON"):
        records_of(path, key="who")
    with pytest.raises(ConfigurationError, match=r"line 1: no field 'whom'; found: who, n"):
        records_of(path, key="whom")
    path.write_text('{"who": "a", "n": 1}\n\n{"who": 7}\n')

    assert records_of(str(path), key="who") == (
        ("a", b'{"who": "a", "n": 1}'),
        ("7", b'{"who": 7}'),
    )


def test_a_kind_of_fault_that_there_is_not_is_refused_with_the_right_names(sink):
    with pytest.raises(ConfigurationError, match=r"earthquakes found, of throttle, .* allowed"):
        fleet_of(sink, only="earthquakes").run(lambda batch: None, RECORDS, hours=HOURS)
