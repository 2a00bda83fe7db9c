"""The witness in the workers, and reading what it wrote."""

import asyncio
import base64
import importlib
import inspect
import threading

import pytest

from shardfleet.records import Batch, Record
from shardfleet.runtime.handler_loading import as_handler
from shardfleet_local.rig.ledger import DemoLedger
from shardfleet_local.rig.probe import ledger_probe
from shardfleet_local.rig.probe.ledger_probe import append, digest, witnessed, witnessed_class


def a_batch(count):
    records = [
        Record(
            data=f"data {number}".encode(),
            partition_key=f"key-{number}",
            sequence_number=str(100 + number // 2),
            sub_sequence_number=number % 2,
            shard_id="shardId-000000000003",
            approximate_arrival_ms=0,
        )
        for number in range(count)
    ]
    return Batch(
        records,
        shard_id="shardId-000000000003",
        stream_arn="arn",
        millis_behind_latest=0,
        attempt=1,
        deadline_ms=0,
    )


def an_event(count):
    return {
        "Records": [
            {
                "eventID": f"shardId-000000000003:{100 + number}",
                "kinesis": {
                    "sequenceNumber": str(100 + number),
                    "partitionKey": f"key-{number}",
                    "data": base64.b64encode(f"data {number}".encode()).decode(),
                },
            }
            for number in range(count)
        ]
    }


def rows(count):
    return [
        (str(100 + n // 2), n % 2, digest(f"key-{n}", f"data {n}".encode())) for n in range(count)
    ]


@pytest.fixture
def notes():
    return []


@pytest.fixture
def note(notes):
    return lambda shard_id, rows: notes.append((shard_id, rows))


def test_a_native_handler_is_called_and_its_batch_is_noted(notes, note):
    seen = []

    witnessed(seen.append, note)(batch := a_batch(3))

    assert seen == [batch]
    assert notes == [("shardId-000000000003", rows(3))]


def test_of_a_failing_native_handler_only_what_it_declared_done_is_noted(notes, note):
    def handle(batch):
        batch.checkpoint(batch[1])
        raise ValueError(len(batch))

    with pytest.raises(ValueError, match="4"):
        witnessed(handle, note)(a_batch(4))
    assert notes == [("shardId-000000000003", rows(2))]


def test_of_a_native_reply_with_failures_only_what_came_before_them_is_noted(notes, note):
    replies = [{"batchItemFailures": [{"itemIdentifier": name}]} for name in ("101:1", "", "100")]
    handle = witnessed(lambda batch: replies.pop(0), note)

    for _ in range(3):
        handle(a_batch(4))

    assert notes == [("shardId-000000000003", rows(3))]


@pytest.mark.parametrize("event", [False, True])
def test_a_reply_that_means_nothing_is_passed_on_and_not_noted(notes, note, event):
    handle = witnessed((lambda event, context: "ok") if event else (lambda batch: "ok"), note)

    assert (handle(an_event(2), None) if event else handle(a_batch(2))) == "ok"
    assert notes == []


def test_a_coroutine_behind_an_ordinary_function_is_noted_when_it_has_ended(notes, note):
    async def inside():
        assert notes == []

    asyncio.run(witnessed(lambda batch: inside(), note)(a_batch(1)))

    assert len(notes) == 1


def test_an_async_handler_stays_async_and_is_noted_after_it(notes, note):
    async def handle(batch):
        await asyncio.sleep(0)
        assert notes == []

    wrapped = witnessed(handle, note)

    assert inspect.iscoroutinefunction(wrapped)
    asyncio.run(wrapped(a_batch(1)))
    assert len(notes) == 1


def test_a_class_is_noted_by_its_handle_and_keeps_its_hooks(notes, note):
    seen = []

    class Handler:
        def __init__(self):
            self.mine = []

        def handle(self, batch):
            self.mine.extend(batch)

        def ended(self, shard):
            seen.append((shard, len(self.mine)))

    found = as_handler(witnessed_class(Handler, note), name="orders:Handler")
    first, second = found.function(), found.function()
    first.handle(a_batch(2))
    second.handle(a_batch(3))
    first.ended("a shard")
    assert [len(rows) for _, rows in notes] == [2, 3]
    assert seen == [("a shard", 2)]


def test_an_event_handler_keeps_its_signature_and_its_reply(notes, note):
    def handler(event, context):
        return {"batchItemFailures": [{"itemIdentifier": "102"}]}

    wrapped = witnessed(handler, note)

    assert list(inspect.signature(wrapped).parameters) == ["event", "context"]
    assert wrapped(an_event(4), None) == handler(None, None)
    ((shard_id, noted),) = notes
    assert shard_id == "shardId-000000000003"
    assert [row[:2] for row in noted] == [("100", -1), ("101", -1)]
    assert noted[0][2] == digest("key-0", b"data 0")


def test_a_failing_event_handler_has_handled_nothing(notes, note):
    def handler(event, context):
        raise KeyError("x")

    with pytest.raises(KeyError):
        witnessed(handler, note)(an_event(2), None)
    assert notes == []


def test_the_probe_calls_the_handler_that_the_environment_names(tmp_path, monkeypatch):
    ledger = DemoLedger(tmp_path / "ledger.jsonl")
    (tmp_path / "clicks_for_probe.py").write_text(
        "def handle(batch):\n    return {'batchItemFailures': []}\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    for name, value in ledger.environment("clicks_for_probe:handle").items():
        monkeypatch.setenv(name, value)

    reply = importlib.import_module(ledger_probe.__name__).handle(a_batch(2))

    assert reply == {"batchItemFailures": []}
    (line,) = ledger.read()
    assert line.shard_id == "shardId-000000000003"
    assert [tuple(record) for record in line.records] == rows(2)


def test_lines_of_many_writers_never_mix(tmp_path):
    path = tmp_path / "ledger.jsonl"
    many = [(str(10**55 + n), 0, "0" * 16) for n in range(2_000)]
    writers = [
        threading.Thread(target=lambda: [append(str(path), "s", rows=many) for _ in range(20)])
        for _ in range(4)
    ]
    for writer in writers:
        writer.start()
    for writer in writers:
        writer.join()

    assert [len(line.records) for line in DemoLedger(path).read()] == [2_000] * 80


def test_reading_goes_on_where_it_stopped_and_leaves_an_unfinished_line(tmp_path):
    path = tmp_path / "ledger.jsonl"
    ledger = DemoLedger(path)
    assert ledger.read() == []
    append(str(path), "s", rows=[("1", 0, "a")])
    text = path.read_bytes()
    path.write_bytes(text + text[:10])

    assert len(ledger.read()) == 1
    path.write_bytes(text + text)
    assert len(ledger.read()) == 1
    assert len(ledger.lines) == 2


def test_a_process_has_the_shards_that_it_was_the_last_to_handle(tmp_path):
    path = tmp_path / "ledger.jsonl"
    for pid, shard in ((1, "a"), (1, "b"), (2, "a")):
        with path.open("a") as file:
            file.write(f'{{"at_ms":1,"pid":{pid},"shard":"{shard}","rows":[]}}\n')
    ledger = DemoLedger(path)
    ledger.read()

    assert ledger.shards_of(1) == {"b"}
    assert ledger.shards_of(2) == {"a"}
