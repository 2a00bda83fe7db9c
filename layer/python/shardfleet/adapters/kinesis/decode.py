"""
From the body of a GetRecords answer to a page of records.

The quick way cuts the ``Data`` values out of the body, which is nearly all of it, and parses the
little that remains; base64 needs no quote and no escape, so a value ends at the next quote. Small
records are parsed whole, because a cut costs the same for each. Whatever does not look as expected
is parsed by botocore, the judge of what a body means: the outcome is always the one it gives
(tests/adapters/test_kinesis_decode.py), only sooner.

Why a cut cannot go wrong silently: each cut leaves a mark in the rest of the body. When the marks,
the cuts and the records are equally many and each record's ``Data`` is the mark, every record has
exactly one of the cuts, in order.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime, timedelta
from functools import cache
from math import modf
from typing import TYPE_CHECKING, Any, Generic, TypeVar

import msgspec
from pybase64 import b64decode

from shardfleet.adapters.kinesis.shards import hash_key_range
from shardfleet.adapters.sdk_errors import UnreadableAnswer
from shardfleet.domain.reading.pages import RecordsPage
from shardfleet.domain.stream.hash_ranges import HashKeyRange
from shardfleet.domain.stream.shards import ChildShard
from shardfleet.records import StreamRecord

if TYPE_CHECKING:
    from botocore.model import Shape
    from botocore.parsers import ResponseParser

NO_ARRIVAL_MS = 0
"""The arrival time of a record whose answer has none: Kinesis always says, emulators may not."""

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_MILLISECOND = timedelta(milliseconds=1)
_OPENING = b'"Data":"'
_MARK = "~cut~"
_MARKED = b'"~cut~"'
# From this many characters of base64 on, cutting a record out is quicker than parsing it whole
# (measured: benchmarks/bench_decode.py, both ways at several sizes).
_CUT_FROM = 1_400
# Further than 1 µs from a whole millisecond the rounding is done as datetime does it.
_NEARLY_WHOLE = 0.001
LAST_SECOND = 253_402_300_799
"""The last second that a datetime can hold; what lies behind is botocore's to refuse."""


class _HashKeyRange(msgspec.Struct, forbid_unknown_fields=True):
    StartingHashKey: str
    EndingHashKey: str


class _Child(msgspec.Struct, forbid_unknown_fields=True):
    ShardId: str
    ParentShards: list[str]
    HashKeyRange: _HashKeyRange


class _Whole(msgspec.Struct, gc=False, forbid_unknown_fields=True):
    """A record as it is."""

    SequenceNumber: str
    PartitionKey: str
    Data: bytes
    ApproximateArrivalTimestamp: float | None = None
    EncryptionType: str | None = None


class _Cut(msgspec.Struct, gc=False, forbid_unknown_fields=True):
    """A record whose data was cut out."""

    SequenceNumber: str
    PartitionKey: str
    Data: str
    ApproximateArrivalTimestamp: float | None = None
    EncryptionType: str | None = None


class _WholeAndMore(_Whole, gc=False, forbid_unknown_fields=False):
    """A record with a member that we do not know."""


class _CutAndMore(_Cut, gc=False, forbid_unknown_fields=False):
    """A record with a member that we do not know, its data cut out."""


_R = TypeVar("_R")


class _Answer(msgspec.Struct, Generic[_R], forbid_unknown_fields=True):
    Records: list[_R]
    NextShardIterator: str | None = None
    MillisBehindLatest: int | None = None
    ChildShards: list[_Child] | None = None


class AnswerAndMore(_Answer[_R], Generic[_R], forbid_unknown_fields=False):
    """An answer, perhaps with a member that we do not know."""


# Each with its twin for the day when Kinesis adds a member.
_WHOLE = (
    msgspec.json.Decoder(_Answer[_Whole]),
    msgspec.json.Decoder(AnswerAndMore[_WholeAndMore]),
)
_CUT = (
    msgspec.json.Decoder(_Answer[_Cut]),
    msgspec.json.Decoder(AnswerAndMore[_CutAndMore]),
)


class _Unexpected(ValueError):
    """Not what the quick way can read; says nothing about the body being wrong."""


def decode_page(body: bytes | bytearray) -> RecordsPage:
    """
    Return the page that a GetRecords answer describes.

    Args:
        body: the HTTP body of an answer with status 200, JSON 1.1.

    Raises:
        UnreadableAnswer: no JSON, or without what every answer has.

    """
    try:
        return _decode_quickly(body)
    except (ValueError, RecursionError):  # of msgspec, pybase64 and json alike
        return decode_page_slowly(body)


def decode_page_slowly(body: bytes | bytearray) -> RecordsPage:
    """Do as :func:`decode_page` with botocore alone; the two are equal on every body."""
    response = {"body": bytes(body), "headers": {}, "status_code": 200}
    try:
        return page_of(_parser().parse(response, _answer_shape()))
    except Exception as error:  # noqa: BLE001 - botocore may raise anything
        # Its kind alone: such an error holds what it could not read, records and all.
        kind = type(error).__name__
        raise UnreadableAnswer(f"GetRecords: the answer cannot be read: {kind}") from None


def page_of(answer: Mapping[str, Any]) -> RecordsPage:
    """
    Return the page of an answer that botocore has parsed.

    Raises:
        KeyError: it lacks what every answer has.

    """
    return RecordsPage(
        records=[_record(found) for found in answer["Records"]],
        resume_token=answer.get("NextShardIterator"),
        millis_behind_latest=answer.get("MillisBehindLatest"),
        child_shards=[_child(found) for found in answer.get("ChildShards", ())],
    )


def epoch_ms(instant: datetime) -> int:
    """Return epoch milliseconds, rounded: the SDK's float arithmetic is off by microseconds."""
    return round((instant - _EPOCH) / _MILLISECOND)


def _decode_quickly(body: bytes | bytearray) -> RecordsPage:
    first = body.find(_OPENING)
    start = first + len(_OPENING)
    if first < 0 or body.find(b'"', start, start + _CUT_FROM) >= 0:
        return _decode_whole(body)
    return _decode_cut(body)


def _decode_whole(body: bytes | bytearray) -> RecordsPage:
    """Parse the body in one go, base64 included."""
    answer = _typed(_WHOLE, body)
    found = answer.Records
    return page_with(answer, _stream_records(found, [each.Data for each in found]))


def _decode_cut(body: bytes | bytearray) -> RecordsPage:
    """Cut the data out, parse the rest, and put the two together."""
    payloads: list[bytes] = []
    rest: list[memoryview] = []
    view = memoryview(body)
    find, size, keep, add = body.find, len(_OPENING), rest.append, payloads.append
    after = 0
    while (start := find(_OPENING, after)) >= 0:
        start += size
        end = find(b'"', start)
        if end < 0:
            raise _Unexpected("a value without an end")
        keep(view[after:start])
        add(b64decode(view[start:end], None, True))  # noqa: FBT003 - by name it takes half as much more
        after = end
    keep(view[after:])
    small = _MARK.encode().join(rest)
    answer = _typed(_CUT, small)
    found = answer.Records
    if not len(found) == len(payloads) == small.count(_MARKED):
        raise _Unexpected("cuts and records do not match")
    if [record.Data for record in found].count(_MARK) < len(found):
        raise _Unexpected("a record that was not cut")
    return page_with(answer, _stream_records(found, payloads))


def _typed(decoders: tuple[msgspec.json.Decoder[Any], ...], text: bytes | bytearray) -> Any:
    """
    Parse, and refuse everything that :mod:`json` refuses.

    msgspec passes over members it does not know without looking into them. There are none unless
    Kinesis adds one, and only then the text is parsed a second time, to be sure of it.
    """
    known, any_member = decoders
    try:
        return known.decode(text)
    except msgspec.ValidationError:
        json.loads(text)
        return any_member.decode(text)


def _stream_records(found: Sequence[_Whole | _Cut], payloads: list[bytes]) -> list[StreamRecord]:
    """Put records and data together; no call per record but the constructor's."""
    records = []
    for record, payload in zip(found, payloads, strict=True):
        seconds = record.ApproximateArrivalTimestamp
        if seconds is None:
            arrival_ms = NO_ARRIVAL_MS
        elif not 0 <= seconds <= LAST_SECOND:
            raise _Unexpected("an arrival time out of range")
        else:
            exact = seconds * 1000
            arrival_ms = int(exact + 0.5)
            if not -_NEARLY_WHOLE < exact - arrival_ms < _NEARLY_WHOLE:
                arrival_ms = _rounded_ms(seconds)
        records.append(
            StreamRecord(
                payload,
                record.PartitionKey,
                record.SequenceNumber,
                arrival_ms,
                record.EncryptionType,
            )
        )
    return records


def _rounded_ms(seconds: float) -> int:
    """Return epoch milliseconds, rounded twice as botocore's datetime makes :func:`epoch_ms` do."""
    fraction, whole = modf(seconds)
    return round((int(whole) * 1_000_000 + round(fraction * 1_000_000)) / 1000)


def page_with(
    answer: _Answer[Any], records: Sequence[StreamRecord], *, size_bytes: int | None = None
) -> RecordsPage:
    """Return the page of an answer, its records made already, and their size if it is known."""
    return RecordsPage(
        records=records,
        size_bytes=size_bytes,
        resume_token=answer.NextShardIterator,
        millis_behind_latest=answer.MillisBehindLatest,
        child_shards=[
            ChildShard(
                shard_id=child.ShardId,
                parent_shard_ids=tuple(sorted(child.ParentShards)),
                hash_key_range=HashKeyRange(
                    int(child.HashKeyRange.StartingHashKey), int(child.HashKeyRange.EndingHashKey)
                ),
            )
            for child in answer.ChildShards or ()
        ],
    )


def _record(answer: Mapping[str, Any]) -> StreamRecord:
    arrival = answer.get("ApproximateArrivalTimestamp")
    return StreamRecord(
        data=answer["Data"],
        partition_key=answer["PartitionKey"],
        sequence_number=answer["SequenceNumber"],
        approximate_arrival_ms=NO_ARRIVAL_MS if arrival is None else epoch_ms(arrival),
        encryption_type=answer.get("EncryptionType"),
    )


def _child(answer: Mapping[str, Any]) -> ChildShard:
    return ChildShard(
        shard_id=answer["ShardId"],
        parent_shard_ids=tuple(sorted(answer["ParentShards"])),
        hash_key_range=hash_key_range(answer),
    )


@cache
def _parser() -> ResponseParser:
    from botocore.parsers import create_parser  # noqa: PLC0415 - only an odd body needs it

    return create_parser("json")


@cache
def _answer_shape() -> Shape:
    """Load botocore's model of Kinesis, which takes a while: only an odd body needs it."""
    from botocore.session import get_session  # noqa: PLC0415

    session = get_session()
    model = session.get_service_model("kinesis")
    shape = model.operation_model("GetRecords").output_shape
    assert shape is not None, "GetRecords has an answer"
    return shape
