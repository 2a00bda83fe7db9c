"""
From the body of a GetRecords answer, or of a SubscribeToShardEvent, to a page of records.

The quick way cuts the ``Data`` values out of the body, which is nearly all of it, and parses the
little that remains; base64 needs no quote and no escape, so a value ends at the next quote. Small
records are parsed whole, because a cut costs the same for each. Whatever does not look as expected
is parsed by botocore, the judge of what a body means: the outcome is always the one it gives
(tests/adapters/test_kinesis_decode.py), only sooner. Where botocore guesses (base64 with other
characters in it, a NaN, a number for a text) the answer is unreadable: exactly, or not at all.

Why a cut cannot go wrong silently: each cut leaves a mark in the rest of the body. When the marks,
the cuts and the records are equally many and each record's ``Data`` is the mark, every record has
exactly one of the cuts, in order.
"""

from __future__ import annotations

import binascii
import json
import re
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime, timedelta
from functools import cache
from math import modf
from typing import TYPE_CHECKING, Annotated, Any, Generic, NamedTuple, TypeVar

import msgspec
from pybase64 import b64decode

from shardfleet.adapters.kinesis.shards import HashKeyText
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

# An instant in a text: a number, ISO 8601, or HTTP's.
_INSTANT = re.compile(
    r"[0-9]+(\.[0-9]*)?|[0-9]{4}-?[0-9]{2}-?[0-9]{2}T[0-9:.]+(Z|[+-][0-9:]+)|[A-Z][a-z]{2}, [0-9].*"
)
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
    StartingHashKey: HashKeyText
    EndingHashKey: HashKeyText


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


class _RawChild(msgspec.Struct):
    ParentShards: list[Any]


class _Raw(msgspec.Struct):
    """The lists of an answer: botocore takes anything for one that can be iterated over."""

    Records: list[Any]
    ChildShards: list[_RawChild] | None = None


class _Parsed(msgspec.Struct):
    """A record as botocore has parsed it."""

    SequenceNumber: str
    PartitionKey: str
    Data: bytes
    ApproximateArrivalTimestamp: datetime | None = None
    EncryptionType: str | None = None


class _Answer(msgspec.Struct, Generic[_R], forbid_unknown_fields=True):
    Records: list[_R]
    NextShardIterator: str | None = None
    MillisBehindLatest: Annotated[int, msgspec.Meta(ge=0)] | None = None
    ChildShards: list[_Child] | None = None


class AnswerAndMore(_Answer[_R], Generic[_R], forbid_unknown_fields=False):
    """An answer, perhaps with a member that we do not know."""


class _Event(msgspec.Struct, Generic[_R], forbid_unknown_fields=True):
    Records: list[_R]
    ContinuationSequenceNumber: str | None = None
    MillisBehindLatest: Annotated[int, msgspec.Meta(ge=0)] | None = None
    ChildShards: list[_Child] | None = None

    @property
    def NextShardIterator(self) -> str | None:  # noqa: N802 - as an answer has it
        return self.ContinuationSequenceNumber


class _EventAndMore(_Event[_R], Generic[_R], forbid_unknown_fields=False):
    """An event, perhaps with a member that we do not know."""


_Decoders = tuple[msgspec.json.Decoder[Any], msgspec.json.Decoder[Any]]


class _Form(NamedTuple):
    """
    One of the two forms in which Kinesis tells of records.

    Attributes:
        name: of botocore's shape.
        whole: decoders of records as they are, the second for the day when Kinesis adds a member.
        cut: of records whose data was cut out, likewise.
        parsed: what botocore's parser gives.

    """

    name: str
    whole: _Decoders
    cut: _Decoders
    parsed: Any


_ANSWER = _Form(
    "GetRecordsOutput",
    (msgspec.json.Decoder(_Answer[_Whole]), msgspec.json.Decoder(AnswerAndMore[_WholeAndMore])),
    (msgspec.json.Decoder(_Answer[_Cut]), msgspec.json.Decoder(AnswerAndMore[_CutAndMore])),
    AnswerAndMore[_Parsed],
)


@cache
def _event() -> _Form:
    """Make the decoders of events: only a fleet whose records are pushed needs them."""
    return _Form(
        "SubscribeToShardEvent",
        (msgspec.json.Decoder(_Event[_Whole]), msgspec.json.Decoder(_EventAndMore[_WholeAndMore])),
        (msgspec.json.Decoder(_Event[_Cut]), msgspec.json.Decoder(_EventAndMore[_CutAndMore])),
        _EventAndMore[_Parsed],
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
    return _decoded(body, _ANSWER)


def decode_event(body: bytes | bytearray) -> RecordsPage:
    """
    Return the page that a SubscribeToShardEvent describes: its continuation is the resume token.

    Args:
        body: the payload of the event, JSON 1.1.

    Raises:
        UnreadableAnswer: no JSON, or without what every event has.

    """
    return _decoded(body, _event())


def _decoded(body: bytes | bytearray, form: _Form) -> RecordsPage:
    try:
        return _decode_quickly(body, form)
    except (ValueError, RecursionError):  # of msgspec, pybase64 and json alike
        return _decoded_slowly(body, form)


def decode_page_slowly(body: bytes | bytearray) -> RecordsPage:
    """Do as :func:`decode_page` with botocore alone; the two are equal on every body."""
    return _decoded_slowly(body, _ANSWER)


def _decoded_slowly(body: bytes | bytearray, form: _Form) -> RecordsPage:
    response = {"body": bytes(body), "headers": {}, "status_code": 200}
    try:
        msgspec.convert(json.loads(body), _Raw)
        answer = _parser().parse(response, _shape(form.name))
    except Exception as error:  # noqa: BLE001 - botocore may raise anything
        raise _unreadable(error) from None
    return page_of(answer, form)


def page_of(answer: Mapping[str, Any], form: _Form = _ANSWER) -> RecordsPage:
    """
    Return the page of an answer that botocore has parsed.

    Raises:
        UnreadableAnswer: it lacks what every answer has, or has something else in its place.

    """
    try:
        page = msgspec.convert(answer, form.parsed, builtin_types=(bytes, datetime))
        return page_with(page, [_record(each) for each in page.Records])
    except ValueError as error:
        raise _unreadable(error) from None


def _unreadable(error: Exception) -> UnreadableAnswer:
    """Return what says the kind of an error alone: it may hold what could not be read."""
    return UnreadableAnswer(f"GetRecords: the answer cannot be read: {type(error).__name__}")


def epoch_ms(instant: datetime) -> int:
    """Return epoch milliseconds, rounded: the SDK's float arithmetic is off by microseconds."""
    return round((instant - _EPOCH) / _MILLISECOND)


def _decode_quickly(body: bytes | bytearray, form: _Form) -> RecordsPage:
    first = body.find(_OPENING)
    start = first + len(_OPENING)
    if first < 0 or body.find(b'"', start, start + _CUT_FROM) >= 0:
        return _decode_whole(body, form)
    return _decode_cut(body, form)


def _decode_whole(body: bytes | bytearray, form: _Form) -> RecordsPage:
    """Parse the body in one go, base64 included."""
    answer = _typed(form.whole, body)
    found = answer.Records
    return page_with(answer, _stream_records(found, [each.Data for each in found]))


def _decode_cut(body: bytes | bytearray, form: _Form) -> RecordsPage:
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
    answer = _typed(form.cut, small)
    found = answer.Records
    if not len(found) == len(payloads) == small.count(_MARKED):
        raise _Unexpected("cuts and records do not match")
    if [record.Data for record in found].count(_MARK) < len(found):
        raise _Unexpected("a record that was not cut")
    return page_with(answer, _stream_records(found, payloads))


def _typed(decoders: _Decoders, text: bytes | bytearray) -> Any:
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
    answer: _Answer[Any] | _Event[Any],
    records: Sequence[StreamRecord],
    *,
    size_bytes: int | None = None,
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


def _record(found: _Parsed) -> StreamRecord:
    arrival = found.ApproximateArrivalTimestamp
    return StreamRecord(
        data=found.Data,
        partition_key=found.PartitionKey,
        sequence_number=found.SequenceNumber,
        approximate_arrival_ms=NO_ARRIVAL_MS if arrival is None else epoch_ms(arrival),
        encryption_type=found.EncryptionType,
    )


def _blob(value: str) -> bytes:
    from botocore.parsers import ResponseParserError  # noqa: PLC0415 - see _parser

    try:
        return binascii.a2b_base64(value, strict_mode=True)
    except (ValueError, TypeError):
        raise ResponseParserError("data that is no base64") from None


def _timestamp(value: Any) -> datetime:
    from botocore.parsers import ResponseParserError  # noqa: PLC0415 - see _parser
    from botocore.utils import parse_timestamp  # noqa: PLC0415 - see _parser

    is_text = isinstance(value, str) and _INSTANT.fullmatch(value)
    try:
        if is_text or type(value) in (int, float):
            return parse_timestamp(value)
    except (ValueError, OverflowError):
        pass
    raise ResponseParserError("a time that is none")


@cache
def _parser() -> ResponseParser:
    from botocore.parsers import ResponseParserFactory  # noqa: PLC0415 - only an odd body needs it

    factory = ResponseParserFactory()
    factory.set_parser_defaults(blob_parser=_blob, timestamp_parser=_timestamp)
    return factory.create_parser("json")


@cache
def _shape(name: str) -> Shape:
    """Load botocore's model of Kinesis, which takes a while: only an odd body needs it."""
    from botocore.session import get_session  # noqa: PLC0415

    return get_session().get_service_model("kinesis").shape_for(name)
