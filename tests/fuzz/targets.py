"""
What is fuzzed: every parser of what others write, with the inputs that others can write.

A target takes one input; it may refuse it with an error of ours, and must do so in little memory.
Of an aggregate the work is counted, too: it depends on its size, not on what it would expand to.
All of it is one idea, and in one file: the inputs of each parser beside what must hold of them.
"""

import base64
import json
import logging
import tempfile
import time
import tracemalloc
from contextlib import suppress
from functools import cache
from pathlib import Path
from typing import NamedTuple

from hypothesis import strategies as st

from shardfleet.adapters.dynamodb.items import ATTRIBUTES, ENTITY_TYPE, is_foreign, lease_from_item
from shardfleet.adapters.invoked_function import FunctionAnswer
from shardfleet.adapters.kinesis.decode import decode_page, decode_page_slowly
from shardfleet.adapters.sdk_errors import UnreadableAnswer
from shardfleet.config import ENV_PREFIX, FleetConfig
from shardfleet.domain.delivery.lanes import DoneAhead
from shardfleet.domain.delivery.replies import failures_of, lowest_failed
from shardfleet.domain.delivery.windows import ShardWindow, read_state
from shardfleet.domain.slots.slot import SlotInput
from shardfleet.domain.stream.sequence import ExtendedSequenceNumber
from shardfleet.engine.ports import Document
from shardfleet.engine.retry import Patience
from shardfleet.engine.state.documents import malformed, read_as
from shardfleet.engine.state.kinds import LANES, WINDOW
from shardfleet.errors import InvalidReply, ShardfleetError
from shardfleet.kpl.deaggregate import (
    ExpansionLimits,
    deaggregate,
    records_after,
)
from shardfleet.kpl.envelope import MAGIC
from shardfleet.kpl.packing import OutgoingRecord
from shardfleet.producer.aggregate import aggregate
from shardfleet.records import Batch, Record, TumblingWindow
from shardfleet.runtime.function_runner import FunctionHandlerRunner
from shardfleet.runtime.handler_call import EventSource
from shardfleet.runtime.redrive import records_of
from shardfleet_local.rig.source import RECORD_BYTES_MOST, read_source
from shardfleet_ops.operate.given_up import event_of, given_up_of
from shardfleet_testkit.clock import VirtualClock, run_virtual
from shardfleet_testkit.memory import SeededEntropy
from tests.fuzz.avro_payloads import check_avro
from tests.kpl.bombs import LOOKS_MOST, Work, read_in_worker

MEBIBYTE = 1024 * 1024


class Target(NamedTuple):
    """
    One parser.

    Attributes:
        inputs: the strategy.
        check: parses one input and asserts what must hold.
        bytes_most: of memory for one input, at the peak; None: it is not looked at.
        dearness: how many inputs of the others one of these is worth.

    """

    inputs: st.SearchStrategy
    check: object
    bytes_most: int | None
    dearness: int = 1


def run(target, given):
    """Run a target on one input: nothing but our errors, and no more memory than allowed."""
    if target.bytes_most is None:
        target.check(given)
        return
    tracemalloc.start()
    try:
        with suppress(ShardfleetError):
            target.check(given)
        used = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert used <= target.bytes_most, f"{used:,} bytes for {given!r:.200}"


# --- aggregates: damaged in every way, and bombs whose table is used by many records

LIMITS = ExpansionLimits(max_sub_records=2_000, max_expanded_bytes=MEBIBYTE)
texts = st.text(max_size=20)
outgoing = st.builds(
    OutgoingRecord,
    st.text(st.characters(exclude_categories=["Cs"]), min_size=1, max_size=20),
    st.binary(max_size=40),
    st.none() | st.integers(0, 2**128 - 1).map(str),
)


def framed(body):
    """Put a body into the envelope of an aggregate, with its true digest."""
    import hashlib  # noqa: PLC0415  # Beside its only use.

    return MAGIC + body + hashlib.md5(body, usedforsecurity=False).digest()


def varint(number):
    """Write a number as protobuf does."""
    out = bytearray()
    while number > 0x7F:
        out.append(number & 0x7F | 0x80)
        number >>= 7
    return bytes([*out, number])


def field(tag, content):
    """Write a length-delimited field."""
    return varint(tag << 3 | 2) + varint(len(content)) + content


@st.composite
def messages(draw):
    """Write a body with any fields in any order, tables and indices that do not fit included."""
    parts = []
    for _ in range(draw(st.integers(0, 8))):
        tag = draw(st.integers(1, 4))
        if tag == 3:
            index = varint(draw(st.integers(0, 2**64 - 1) | st.integers(0, 2)))
            content = b"\x08" + index + field(3, draw(st.binary(max_size=10)))
        else:
            content = draw(
                st.binary(max_size=10) | texts.map(lambda t: t.encode("utf-8", "ignore"))
            )
        parts.append(field(tag, content))
    return b"".join(parts)


@st.composite
def bombs(draw):
    """Let many records share one long key: a small record that would become a huge one."""
    key = b"k" * draw(st.integers(1, 20_000))
    record = field(3, b"\x08\x00" + field(3, b""))
    return field(1, key) + record * draw(st.integers(1, 4_000))


@st.composite
def damaged(draw):
    """Change some bytes of a valid aggregate, the digest with them or not."""
    body = bytearray(aggregate(draw(st.lists(outgoing, min_size=1, max_size=8)))[4:-16])
    for _ in range(draw(st.integers(1, 4))):
        start = draw(st.integers(0, len(body)))
        body[start : start + draw(st.integers(0, 4))] = draw(st.binary(max_size=4))
    return bytes(body)


aggregates = st.tuples(
    st.binary(max_size=200)
    | st.binary(max_size=100).map(framed)
    | messages().map(framed)
    | damaged().map(framed)
    | damaged().map(MAGIC.__add__)
    | bombs().map(framed),
    st.sampled_from(["deliver", "kpl", "in-range"]),
    st.none() | st.tuples(st.integers(0, 2**127), st.integers(2**127, 2**128 - 1)),
    st.integers(0, 5),
)


def check_aggregate(given):
    data, policy, hash_range, sub = given
    with Work() as work:
        found = deaggregate(
            data, partition_key="key", limits=LIMITS, hash_range=hash_range, policy=policy
        )
    assert work.characters <= LOOKS_MOST * len(data), f"{work.characters:,}"
    assert len(found.records) + found.dropped >= 1
    assert len(found.records) <= LIMITS.max_sub_records
    if not found.aggregated:
        assert [r.data for r in found.records] == [data]
    done = ExtendedSequenceNumber("7", sub)
    for user in records_after(found, sequence_number="7", done=done):
        Record(
            data=user.data,
            partition_key=user.partition_key,
            sequence_number="7",
            sub_sequence_number=user.sub_sequence_number,
            shard_id="shard",
            approximate_arrival_ms=0,
            explicit_hash_key=user.explicit_hash_key,
        )


# --- what an aggregate of up to 10 MiB costs beside a sound one of its size

RATIO_MOST = 20
SIZES = (MEBIBYTE // 4, MEBIBYTE, 10 * MEBIBYTE - 1024)
units = st.one_of(
    st.sampled_from(
        [b"", b"\x1a\x00", b"\x08\x00", b"\x1a\x04\x08\x00\x1a\x00", b"\x22\x02\x0a\x00"]
    ),
    st.builds(field, st.integers(1, 5), st.binary(max_size=6)),
    st.builds(
        field, st.integers(1, 2), st.sampled_from([b"\xff", b"\xc3\xa4" * 9, b"\xff" * 5_000])
    ),
    st.builds(
        lambda index, data: field(3, b"\x08" + varint(index) + field(3, data)),
        st.sampled_from([0, 0, 0, 1]),
        st.binary(max_size=40),
    ),
    messages(),
)


class Heap(NamedTuple):
    """A few fields repeated until a record is full: beside a table and a record, or inside."""

    size: int
    sound: bytes
    unit: bytes
    inside: int
    keys: bytes
    policy: str

    def data(self):
        heap = self.unit * ((self.size - 64) // len(self.unit))
        if self.inside:
            heap = field(self.inside, heap)
        return framed(self.sound + heap + self.keys)


heaps = st.builds(
    Heap,
    st.sampled_from(SIZES),
    st.sampled_from([b"", b"k", "ä".encode() * 32_768]).map(
        lambda key: key and field(1, key) + field(3, b"\x08\x00\x1a\x00")
    ),
    st.lists(units, min_size=1, max_size=2).map(lambda some: b"".join(some) or b"\x1a\x00"),
    st.sampled_from([0, 0, 1, 2, 3]),
    st.sampled_from([b"", field(1, b"k") * 4]),
    st.sampled_from(["deliver", "kpl", "in-range"]),
)


def cpu_of(data, policy):
    """Return the CPU time of taking a record apart, in seconds, as a worker does it."""
    began = time.process_time()
    read_in_worker(data, policy, hash_range=(0, 2**127))
    return time.process_time() - began


@cache
def sound_cpu(size, policy):
    """Return the same of a sound aggregate of records of 100 bytes."""
    users = [OutgoingRecord(f"user-{n:06d}", b"x" * 100) for n in range(size // 123)]
    data = aggregate(users)
    return min(cpu_of(data, policy) for _ in range(3))


def check_cost(given):
    data, policy = given.data(), given.policy
    most = RATIO_MOST * sound_cpu(given.size, policy)
    # A second look, when the machine had other things to do.
    spent = next((cpu for _ in range(3) if (cpu := cpu_of(data, policy)) <= most), None)
    assert spent is not None, f"{len(data):,} bytes cost more than {RATIO_MOST} times a sound one"


# --- items of the lease table: what DynamoDB can hold

numbers = (
    st.integers(-(10**38) + 1, 10**38 - 1).map(str)
    | st.decimals(allow_nan=False, allow_infinity=False, places=3).map(str)
    | st.sampled_from(["0", "-1", "1E+125", "9.9E-128", "12.5"])
)
words = st.sampled_from(
    ["TRIM_HORIZON", "LATEST", "AT_TIMESTAMP", "SHARD_END", "", "12", "007", "5" * 300, "\u0663"]
)
typed = st.one_of(
    st.fixed_dictionaries({"S": words | st.text(max_size=30)}),
    st.fixed_dictionaries({"N": numbers}),
    st.fixed_dictionaries({"B": st.binary(max_size=20)}),
    st.fixed_dictionaries({"SS": st.lists(st.text(max_size=8), min_size=1, max_size=3)}),
    st.fixed_dictionaries({"BOOL": st.booleans()}),
    st.fixed_dictionaries({"NULL": st.just(value=True)}),
    st.fixed_dictionaries({"M": st.dictionaries(texts, st.just({"S": "x"}), max_size=2)}),
    st.fixed_dictionaries({"L": st.lists(st.just({"N": "1"}), max_size=2)}),
)
well_typed = {
    attribute.name: typed
    | {
        "S": st.fixed_dictionaries({"S": words}),
        "N": st.fixed_dictionaries({"N": numbers}),
        "B": st.fixed_dictionaries({"B": st.binary(max_size=9)}),
        "SS": st.fixed_dictionaries({"SS": st.lists(words, min_size=1, max_size=3)}),
    }[attribute.type]
    for attributes in ATTRIBUTES.values()
    for attribute in attributes
}
items = st.builds(
    dict.__or__,
    st.fixed_dictionaries({}, optional={**well_typed, ENTITY_TYPE: typed}),
    st.dictionaries(texts, typed, max_size=2),
)


def check_item(item):
    if not is_foreign(item):
        lease = lease_from_item(item)
        assert lease.lease_counter == int(item["leaseCounter"]["N"])


# --- payloads of the worker function: whatever JSON a person sends

scalars = (
    st.none()
    | st.booleans()
    | st.integers()
    | st.integers(10**30, 10**40)
    | st.floats()
    | st.text(max_size=20)
)
json_values = st.recursive(
    scalars,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(texts, inner, max_size=4),
    max_leaves=10,
)
names = st.sampled_from(["version", "slot", "name", "start_epoch", "generation", "crashes"])
whole = st.fixed_dictionaries(
    {
        "version": st.sampled_from([0, 1, 1, 1, 2, "1", None]),
        "slot": scalars,
        "name": scalars,
        "start_epoch": scalars,
        "generation": scalars,
    },
    optional={"crashes": scalars},
)
payloads = whole | st.dictionaries(names | texts, json_values, max_size=7) | json_values


def check_payload(payload):
    given = SlotInput.from_payload(payload)
    assert SlotInput.from_payload(json.loads(given.execution_text())).name == given.name


# --- replies of handlers

identifiers = (
    st.sampled_from(["7", "7:0", "7:1", "8", "9", "007", "7:", ":1", "", "\u0667", "7" * 200])
    | st.text(max_size=8)
    | scalars
)
failures = st.lists(
    st.fixed_dictionaries({"itemIdentifier": identifiers})
    | st.dictionaries(st.just("itemIdentifier") | texts, json_values, max_size=2)
    | json_values,
    max_size=5,
)
replies = st.tuples(
    st.fixed_dictionaries({"batchItemFailures": failures | json_values})
    | json_values
    | st.builds(object)
    | st.builds(bytearray, st.binary(max_size=5)).map(lambda b: {"batchItemFailures": b}),
    st.lists(st.tuples(st.integers(7, 9), st.integers(0, 3)), max_size=6, unique=True).map(sorted),
)


def check_reply(given):
    reply, places = given
    positions = [ExtendedSequenceNumber(str(number), sub) for number, sub in places]
    with suppress(InvalidReply):
        done = lowest_failed(failures_of(reply), positions)
        assert done is None or 0 <= done <= len(positions)


# --- the environment of the functions

variables = st.sampled_from([f"{ENV_PREFIX}{name.upper()}" for name in FleetConfig.__slots__])
settings = (
    st.sampled_from(
        ["0", "1", "-1", "10_000", " 7 ", "\u0667", "1e3", "9" * 5_000, "true", "", "stop"]
    )
    | st.integers().map(str)
    | st.text(st.characters(exclude_characters="\0", exclude_categories=["Cs"]), max_size=20)
)
needed = {
    f"{ENV_PREFIX}{name}": st.just("x") | settings
    for name in ("FLEET", "STREAM_ARN", "LEASE_TABLE", "STATE_TABLE")
}
environments = st.builds(
    dict.__or__, st.fixed_dictionaries(needed), st.dictionaries(variables, settings, max_size=4)
)


def check_environment(environment):
    config = FleetConfig.from_env(environment)
    assert FleetConfig.from_env(config.to_env()) == config


# --- files that a person gives to the demo

json_lines = st.lists(
    json_values.map(json.dumps)
    | st.dictionaries(st.sampled_from(["who", "what"]), json_values).map(json.dumps)
    | st.sampled_from(['{"who": "\\ud800"}', '{"who": 1e999}', '{"who": ' + "9" * 5_000 + "}"])
    | st.integers(1, 200_000).map(lambda depth: '{"who":' + "[" * depth)
    | st.integers(1, 3_000).map(lambda depth: '{"who":' + "[" * depth + "]" * depth + "}")
    | st.text(max_size=20),
    max_size=6,
).map("\n".join)
csv_rows = st.lists(
    st.lists(st.text(max_size=6) | st.sampled_from(["who", '"', "\0"]), max_size=3).map(",".join),
    max_size=6,
).map("\n".join)
files = st.tuples(
    st.one_of(
        json_lines.map(lambda text: ("{}\n" + text).encode("utf-8", "replace")),
        csv_rows.map(lambda text: ("who,what\n" + text).encode("utf-8", "replace")),
        st.binary(max_size=60),
    ),
    st.sampled_from(["who", "what", "0", None]),
    st.booleans(),
)


def check_file(given):
    content, key, rejects = given
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "input"
        file.write_bytes(content)
        source = read_source(str(file), key, rejects=rejects)
    assert source.records
    for record in source.records:
        assert 1 <= len(record.key.encode()) <= RECORD_BYTES_MOST


# --- answers of GetRecords, as a service or a proxy may spoil them

members = st.sampled_from(
    ["Data", "PartitionKey", "SequenceNumber", "ApproximateArrivalTimestamp", "EncryptionType"]
)
payload_texts = st.binary(max_size=30).map(lambda data: base64.b64encode(data).decode())
long_payloads = st.integers(1_340, 1_360).map(lambda size: base64.b64encode(b"x" * size).decode())
arrivals = st.integers(-5, 2**40) | st.floats()
answer_records = st.dictionaries(members, json_values | payload_texts | arrivals) | st.builds(
    lambda data, key, number, arrived: {
        "SequenceNumber": number,
        "ApproximateArrivalTimestamp": arrived,
        "Data": data,
        "PartitionKey": key,
    },
    payload_texts | long_payloads,
    texts,
    st.integers(0, 10**56).map(str) | texts,
    arrivals,
)
answers = st.builds(
    lambda records, more: json.dumps({"Records": records, "MillisBehindLatest": 0} | more).encode(),
    st.lists(answer_records, max_size=5) | json_values,
    st.dictionaries(
        st.sampled_from(["NextShardIterator", "MillisBehindLatest", "ChildShards", "Records"]),
        json_values,
        max_size=2,
    ),
)


@st.composite
def spoiled_answers(draw):
    """Cut an answer off, or change some of its bytes."""
    body = bytearray(draw(answers))
    for _ in range(draw(st.integers(0, 4))):
        body[draw(st.integers(0, len(body) - 1))] = draw(st.integers(0, 255))
    return bytes(body[: draw(st.integers(0, len(body)))])


def outcome_of(decode, body):
    try:
        return repr(decode(body))  # NaN is no equal of itself.
    except UnreadableAnswer:
        return "unreadable"


def check_answer(body):
    assert outcome_of(decode_page, body) == outcome_of(decode_page_slowly, body)


# --- notes beside checkpoints, as anybody may have left them in the fleet-state table

positions = (
    st.sampled_from(["TRIM_HORIZON:0", "LATEST", "SHARD_END:0", "AT_TIMESTAMP:1700000000000"])
    | st.builds("{}:{}".format, st.integers(-1, 10**60), st.integers(-1, 10**20))
    | st.sampled_from(["7:", ":1", "7:1:2", "7:\u0667", "007:0", "9" * 5_000, "7:" + "9" * 5_000])
    | texts
)
lanes_ahead = st.dictionaries(
    st.integers(-1, 300).map(str) | texts,
    st.dictionaries(st.integers(-1, 300).map(str) | texts, positions, max_size=3),
    max_size=3,
)
kept_states = (
    json_values.map(json.dumps)
    | st.sampled_from(["", "{}", "[" * 100_000, '{"a": 1e999}', "{", "9" * 5_000])
    | texts
)
document_values = st.recursive(
    st.none() | st.booleans() | st.integers(-(10**37), 10**37) | st.text(max_size=20),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(texts, inner, max_size=3),
    max_leaves=6,
)
note_bodies = st.builds(
    dict.__or__,
    st.fixed_dictionaries(
        {"since": positions, "through": positions},
        optional={
            "ahead": lanes_ahead,
            "start_ms": st.integers(-2, 2**53),
            "state": kept_states,
            "kept_at": texts,
        },
    ),
    st.dictionaries(
        st.sampled_from(["since", "through", "ahead", "start_ms", "state", "kept_at"]) | texts,
        document_values,
        max_size=1,
    ),
)
checkpoints = st.builds(ExtendedSequenceNumber, st.integers(0, 10**57).map(str), st.integers(0, 9))
notes = st.tuples(note_bodies, checkpoints)


def read_note(kind, body):
    found = read_as(kind, Document(kind, "shard", 1, body))
    if found.body is None:
        raise malformed(kind, found)
    return found.body


def check_lanes_note(given):
    body, checkpoint = given
    note = read_note(LANES, body)
    ahead = note.done_ahead(checkpoint)
    ahead.has("key", (7, 0))
    assert DoneAhead.of(ahead.body()).body() == ahead.body()


def check_window_note(given):
    body, checkpoint = given
    note = read_note(WINDOW, body)
    if note.is_for(checkpoint):
        assert str(note.done)
        state = read_state(note.state)
        window = ShardWindow(60_000)
        window.go_on(note, state=note.state)
        assert window.end_ms > window.start_ms >= 0
        assert isinstance(state, dict)


# --- what a function of its own answers, and what was given up, as it was found

payload_bytes = (
    json_values.map(lambda value: json.dumps(value).encode())
    | replies.map(lambda given: json.dumps(given[0], default=str).encode())
    | st.dictionaries(
        st.sampled_from(["state", "batchItemFailures", "errorType", "errorMessage"]),
        json_values | failures,
    ).map(lambda value: json.dumps(value).encode())
    | st.sampled_from([b"", b"nul", b"[" * 100_000, b"9" * 5_000, b"\xff", b'{"state": 1e999}'])
    | st.binary(max_size=40)
)
function_answers = st.tuples(payload_bytes, st.booleans(), st.booleans())


class AnsweringFunction:
    """A function that answers what it is told to."""

    name = "function"

    def __init__(self, answer):
        self.answer = answer

    async def invoke(self, event):
        json.loads(event)
        return self.answer


class HerePool:
    """Calls in this thread."""

    async def run(self, call):
        return call()


def check_function_answer(given):
    payload, failed, in_window = given
    logging.disable()  # Each failure is told, which nobody is to read here.
    try:
        result = run_virtual(answered(payload, failed=failed, in_window=in_window))
    finally:
        logging.disable(logging.NOTSET)
    assert 0 <= result.done_count <= 2
    assert (result.error is None) <= (result.done_count == 2)
    if in_window and result.error is None:
        assert isinstance(json.loads(result.state), dict)


async def answered(payload, *, failed, in_window):
    clock = VirtualClock()
    runner = FunctionHandlerRunner(
        AnsweringFunction(FunctionAnswer(payload=payload, failed=failed)),
        pool=HerePool(),
        source=EventSource.of("arn:aws:kinesis:eu-west-1:1:stream/s", function_arn="arn"),
        timeout_ms=60_000,
        patience=Patience(clock=clock, entropy=SeededEntropy(1), first_ms=200, most_ms=5_000),
        tells_errors=True,
    )
    records = [
        Record(
            data=b"",
            partition_key="key",
            sequence_number=str(number),
            shard_id="shard",
            approximate_arrival_ms=0,
        )
        for number in (7, 8)
    ]
    batch = Batch(
        records,
        shard_id="shard",
        stream_arn="arn",
        millis_behind_latest=0,
        attempt=1,
        deadline_ms=clock.now_ms() + 60_000,
    )
    if in_window:
        window = TumblingWindow(
            start_ms=0, end_ms=60_000, is_final=False, is_terminated_early=False
        )
        batch.window = window
    return await runner.run(batch)


kept_info = st.fixed_dictionaries(
    {},
    optional={
        "streamArn": json_values,
        "shardId": json_values,
        "startSequenceNumber": json_values | st.integers(0, 10**60).map(str),
        "batchSize": json_values | st.integers(0, 3),
        "approximateArrivalOfFirstRecord": json_values
        | st.datetimes().map(lambda at: at.isoformat()),
        "approximateArrivalOfLastRecord": json_values
        | st.datetimes().map(lambda at: at.isoformat()),
    },
)
kept_events = st.dictionaries(
    st.just("Records"),
    json_values
    | st.lists(
        st.fixed_dictionaries(
            {
                "eventID": json_values | st.just("shard:7"),
                "kinesis": json_values
                | st.fixed_dictionaries(
                    {
                        "data": json_values | st.just("AA=="),
                        "partitionKey": json_values | texts,
                        "sequenceNumber": json_values | st.just("7"),
                        "approximateArrivalTimestamp": scalars,
                    },
                    optional={"subSequenceNumber": scalars, "explicitHashKey": scalars},
                ),
            }
        ),
        max_size=2,
    ),
).map(json.dumps)
kept_documents = st.fixed_dictionaries(
    {"KinesisBatchInfo": kept_info | json_values},
    optional={
        "payload": kept_events | json_values,
        "shardfleet": json_values
        | st.dictionaries(
            st.sampled_from(["startSubSequenceNumber", "payloadLocation"]), json_values
        ),
        "Type": st.just("Notification"),
        "Message": json_values | st.just("{}"),
    },
).map(json.dumps)
kept_lines = (
    kept_documents
    | json_values.map(json.dumps)
    | st.sampled_from(["", "[" * 100_000, "9" * 5_000, "null"])
    | st.text(max_size=30)
)


def check_given_up(text):
    found = given_up_of(text, where="s3://bucket/key")
    assert found.payload or found.location
    event = event_of(found)
    records = records_of(event)
    assert len(records) == found.count


TARGETS = {
    "notes of lanes": Target(notes, check_lanes_note, MEBIBYTE),
    "notes of windows": Target(notes, check_window_note, 2 * MEBIBYTE),
    "function answers": Target(function_answers, check_function_answer, 4 * MEBIBYTE),
    "what was given up": Target(kept_lines, check_given_up, 2 * MEBIBYTE),
    "GetRecords answers": Target(
        answers | spoiled_answers() | st.binary(max_size=200), check_answer, 4 * MEBIBYTE
    ),
    "deaggregator": Target(aggregates, check_aggregate, 8 * MEBIBYTE),
    "cost of aggregates": Target(heaps, check_cost, None, dearness=20),
    "lease items": Target(items, check_item, MEBIBYTE),
    "worker input": Target(payloads, check_payload, MEBIBYTE),
    "handler reply": Target(replies, check_reply, MEBIBYTE),
    "configuration": Target(environments, check_environment, MEBIBYTE),
    # Each input is the seed of a schema and of a hundred payloads.
    "Avro payloads": Target(st.integers(0, 2**64 - 1), check_avro, 8 * MEBIBYTE),
    "demo input": Target(files, check_file, 16 * MEBIBYTE),
}
