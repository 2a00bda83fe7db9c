"""
GetRecords in CBOR, its records as Arrow columns, without an object for each: for Spark.

Data travels as it is (fact K100), so nothing is decoded but places: where each record and each of
its values begins. Records of one service differ in nothing but the characters of their sequence
numbers, their arrival times, and what data and keys say: the first one is taken apart, and what it
has besides is compared with every other in one step. An answer that is short, of aggregates, or of
records that are not alike is read value by value (:mod:`shardfleet.adapters.http.cbor`); the page
is the same (tests/adapters/test_kinesis_columns.py). Needs pyarrow and numpy: nothing that runs in
Lambda may import this.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from threading import Lock
from typing import Annotated, Any, NamedTuple, overload

import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.lib.stride_tricks import sliding_window_view

from shardfleet.adapters.http import cbor
from shardfleet.adapters.kinesis.decode import (
    LAST_SECOND,
    NO_ARRIVAL_MS,
    AnswerAndMore,
    decode_page,
    page_with,
)
from shardfleet.adapters.kinesis.put_records_body import CBOR
from shardfleet.adapters.kinesis.wire import PageFormat
from shardfleet.adapters.sdk_errors import UnreadableAnswer
from shardfleet.domain.reading.pages import RecordsPage
from shardfleet.kpl.envelope import MAGIC
from shardfleet.records import StreamRecord
from shardfleet_spark.aws.arrow import gathered

FEWEST = 64
"""Records from which columns are worth their constant cost."""

_SCHEMA = pa.schema(
    [
        ("data", pa.binary()),
        ("partition_key", pa.string()),
        ("sequence_number", pa.string()),
        ("approximate_arrival_ms", pa.int64()),
        ("encryption_type", pa.string()),
    ]
)
"""The members of a :class:`shardfleet.records.StreamRecord`, in their order."""
_LAST_MS = LAST_SECOND * 1000 + 999
_MEMBERS = {"Data", "PartitionKey", "SequenceNumber"}
_ARRIVAL, _ENCRYPTION = "ApproximateArrivalTimestamp", "EncryptionType"
# Of a head (RFC 8949, 3): the kind is in the three high bits, the number in the others, or its
# width: in 1, 2 or 4 bytes behind. A time in milliseconds has 8.
_LOW, _KIND = 0x1F, 5
_ONE, _TWO, _FOUR, _EIGHT = 24, 25, 26, 27
_TIME_BYTES = 8
_END = 0xFF
_ZERO, _DIGITS = ord("0"), 10

# One page at a time: threads that decode at once only take the interpreter from one another, some
# hundred times a page, which costs a sixth of the time of a task that reads 64 shards.
_turn = Lock()

_Ints = np.ndarray[Any, np.dtype[np.int64]]
_Bytes = np.ndarray[Any, np.dtype[np.uint8]]


class RecordColumns(Sequence[StreamRecord]):
    """
    Records of one shard as columns; as a sequence it makes them one by one, which is slow.

    Args:
        batch: a row per record, a column per member of a stream record.

    """

    def __init__(self, batch: pa.RecordBatch) -> None:
        self.batch = batch
        self._made: dict[int, StreamRecord] = {}  # The first and the last one are asked for often.

    def __len__(self) -> int:
        """Return how many there are."""
        return int(self.batch.num_rows)

    @overload
    def __getitem__(self, index: int) -> StreamRecord: ...
    @overload
    def __getitem__(self, index: slice) -> Sequence[StreamRecord]: ...
    def __getitem__(self, index: int | slice) -> StreamRecord | Sequence[StreamRecord]:
        """Return a record, or the columns of some that follow each other."""
        if isinstance(index, slice):
            first, end, step = index.indices(len(self))
            if step != 1:
                return list(self)[index]
            if (first, end) == (0, len(self)):
                return self
            return RecordColumns(self.batch.slice(first, max(0, end - first)))
        if index not in self._made:
            values = (column[index].as_py() for column in self.batch.columns)
            self._made[index] = StreamRecord(*values)
        return self._made[index]

    def __iter__(self) -> Iterator[StreamRecord]:
        """Make the records: the first by itself, for often nobody wants more."""
        if len(self):
            yield self[0]
            values = (column.to_pylist() for column in self.batch.slice(1).columns)
            yield from map(StreamRecord, *values)

    def __eq__(self, other: object) -> bool:
        """Return whether others are the same records, in order."""
        return list(self) == list(other) if isinstance(other, Sequence) else NotImplemented

    __hash__ = None  # type: ignore[assignment]

    def __reduce__(self) -> tuple[Any, ...]:
        """Travel without the rest of what this is a part of, which Arrow's own pickles have."""
        return _from_ipc, (self.batch.serialize().to_pybytes(),)

    def __repr__(self) -> str:
        """Say how many; not what is in them."""
        return f"RecordColumns({len(self)} records)"

    @property
    def size(self) -> int:
        """Return data and keys in bytes, as :attr:`RecordsPage.size` counts them."""
        data, keys = self.batch.column(0), self.batch.column(1)
        lengths = pc.binary_length(data), pc.utf8_length(keys)
        return sum(pc.sum(each).as_py() or 0 for each in lengths)

    @property
    def last_arrival_ms(self) -> int:
        """Return the latest arrival, 0 if there is no record."""
        return pc.max(self.batch.column(3)).as_py() or 0

    @property
    def sequence_numbers(self) -> list[str]:
        """Return the sequence numbers, in order."""
        return self.batch.column(2).to_pylist()  # type: ignore[no-any-return]

    @property
    def data_sizes(self) -> list[int]:
        """Return the bytes of each record's data."""
        return pc.binary_length(self.batch.column(0)).to_pylist()  # type: ignore[no-any-return]

    @property
    def have_aggregates(self) -> bool:
        """Return whether the data of any begins as an aggregate does."""
        return bool(pc.any(pc.starts_with(self.batch.column(0), MAGIC)).as_py())


def _from_ipc(data: bytes) -> RecordColumns:
    return RecordColumns(pa.ipc.read_record_batch(pa.py_buffer(data), _SCHEMA))


class _Record(msgspec.Struct, gc=False):
    """``Record``, its time in milliseconds."""

    SequenceNumber: str
    PartitionKey: str
    # Some emulators have base64 as in JSON, which the SDK for Java reads, too: Jackson's
    # `getBinaryValue` takes a text for that.
    Data: bytes
    ApproximateArrivalTimestamp: Annotated[int, msgspec.Meta(ge=0, le=_LAST_MS)] = NO_ARRIVAL_MS
    EncryptionType: str | None = None


def encode_get_records(iterator: str, limit: int, stream_arn: str) -> bytes:
    """Return the CBOR body of a GetRecords request."""
    asked = {
        "ShardIterator": cbor.text(iterator),
        "Limit": cbor.number(limit),
        "StreamARN": cbor.text(stream_arn),
    }
    pairs = (cbor.text(name) + value for name, value in asked.items())
    return b"\xbf" + b"".join(pairs) + b"\xff"


def decode_columns(body: bytes | bytearray) -> RecordsPage:
    """
    Return the page that a GetRecords answer describes, in CBOR or JSON.

    Args:
        body: the HTTP body of an answer with status 200.

    Raises:
        UnreadableAnswer: neither, or without what every answer has.

    """
    if not cbor.is_cbor(body):
        return decode_page(body)
    with _turn:
        return _decode(body)


def _decode(body: bytes | bytearray) -> RecordsPage:
    try:
        answer = cbor.decode(body, readers={"Records": _columns})
        records = answer.get("Records")
        if isinstance(records, RecordColumns):
            answer["Records"] = ()
        found = msgspec.convert(answer, AnswerAndMore[_Record])
        if isinstance(records, RecordColumns):
            return page_with(found, records, size_bytes=records.size)
        return page_with(found, [_stream_record(each) for each in found.Records])
    except (ValueError, RecursionError) as error:
        # Its kind alone: such an error may hold what it could not read.
        kind = type(error).__name__
        raise UnreadableAnswer(f"GetRecords: the answer cannot be read: {kind}") from None


CBOR_PAGES = PageFormat(CBOR, encode_get_records, decode_columns)
"""The format in which data is not base64; what comes in JSON all the same is read, too."""


def _stream_record(found: _Record) -> StreamRecord:
    return StreamRecord(
        found.Data,
        found.PartitionKey,
        found.SequenceNumber,
        found.ApproximateArrivalTimestamp,
        found.EncryptionType,
    )


def _columns(body: bytes | bytearray, at: int) -> tuple[RecordColumns, int] | None:
    """Return the records of an array, and where it ends; None if columns are no gain, or none."""
    try:
        count, first = cbor.items(body, at)
        layout = None if 0 <= count < FEWEST else _layout_of(body, first)
        begins = None if layout is None else _begins(body, first, layout, count=count)
        if layout is None or begins is None:
            return None
        batch, end = _batch(body, begins, layout)
    except (ValueError, IndexError, pa.ArrowException):
        return None  # If it is none at all, whoever reads it value by value finds out why.
    return RecordColumns(batch), end + (count < 0)


class _Layout(NamedTuple):
    """
    What the first record is like, so all that follow.

    Attributes:
        pieces: what lies before, between and behind the values of data and key, without the heads
            of those values.
        is_any: of each piece, which of its bytes may differ.
        sequence: piece and places of the characters of the sequence number.
        arrival: piece and places of the arrival's 8 bytes; None if it is not told.
        encryption: the encryption type; None if it is not told.
        data_first: whether the data comes before the key.

    """

    pieces: tuple[_Bytes, ...]
    is_any: tuple[np.ndarray[Any, np.dtype[np.bool_]], ...]
    sequence: tuple[int, slice]
    arrival: tuple[int, slice] | None
    encryption: str | None
    data_first: bool


def _layout_of(body: bytes | bytearray, at: int) -> _Layout | None:
    """Return the layout of the record at a place; None if it is none that can be told."""
    record, places, end = cbor.members(body, at)
    if not places.keys() >= _MEMBERS:
        return None
    data, key = places["Data"], places["PartitionKey"]
    first, second = sorted((data, key), key=lambda place: place.start)
    spans = (range(at, first.start), range(first.stop, second.start), range(second.stop, end))
    pieces = tuple(np.frombuffer(bytes(body[each.start : each.stop]), np.uint8) for each in spans)
    is_any = tuple(np.zeros(len(each), np.bool_) for each in pieces)

    def open_up(stop: int, size: int) -> tuple[int, slice]:
        (piece,) = (number for number, span in enumerate(spans) if span.start < stop <= span.stop)
        place = slice(stop - size - spans[piece].start, stop - spans[piece].start)
        is_any[piece][place] = True
        return piece, place

    number, encryption = record["SequenceNumber"], record.get(_ENCRYPTION)
    is_aggregate = isinstance(record["Data"], bytes) and record["Data"].startswith(MAGIC)
    if is_aggregate or not isinstance(number, str) or not isinstance(encryption, str | None):
        return None
    sequence, arrival = open_up(places["SequenceNumber"].stop, len(number.encode())), None
    if (told := places.get(_ARRIVAL)) is not None:
        # A number in 8 bytes, tagged or not.
        is_time = isinstance(record[_ARRIVAL], int) and len(told) > _TIME_BYTES
        if not is_time or body[told.stop - _TIME_BYTES - 1] != _EIGHT:
            return None
        arrival = open_up(told.stop, _TIME_BYTES)
    return _Layout(pieces, is_any, sequence, arrival, encryption, data.start < key.start)


def _begins(body: bytes | bytearray, at: int, layout: _Layout, *, count: int) -> list[int] | None:
    """Return where records of a layout would begin, as many as are said or up to the end's mark."""
    before, between, behind = map(len, layout.pieces)
    begins: list[int] = []
    add = begins.append
    for _ in range(count if count >= 0 else len(body)):
        if body[at] == _END:
            break
        add(at)
        for size in (before, between):  # The values of data and key, whichever comes first.
            at += size
            low = body[at] & _LOW
            if low == _TWO:
                at += 3 + (body[at + 1] << 8 | body[at + 2])
            elif low < _ONE:
                at += 1 + low
            elif low == _ONE:
                at += 2 + body[at + 1]
            elif low == _FOUR:
                at += 5 + int.from_bytes(body[at + 1 : at + 5], "big")
            else:
                return None
        at += behind
    return begins if len(begins) >= max(count, FEWEST) else None


def _batch(
    body: bytes | bytearray, begins: Sequence[int], layout: _Layout
) -> tuple[pa.RecordBatch, int]:
    """
    Return the records that begin at some places, and where the last one ends.

    Raises:
        ValueError, IndexError, ArrowException: not all are like the first.

    """
    characters, starts = np.frombuffer(body, np.uint8), np.array(begins, np.int64)
    data_kind, text_kind = cbor.bytes_head(0)[0] >> _KIND, cbor.text_head(0)[0] >> _KIND
    kinds = (data_kind, text_kind) if layout.data_first else (text_kind, data_kind)
    rows, values = [_piece(characters, starts, layout, number=0)], []
    at = starts + len(layout.pieces[0])
    for number, kind in enumerate(kinds, start=1):
        value_begins, value_ends = _value_places(characters, at, kind)
        values.append(gathered(pa.py_buffer(body), value_begins, value_ends))
        rows.append(_piece(characters, value_ends, layout, number=number))
        at = value_ends + len(layout.pieces[number])
    data, keys = values if layout.data_first else reversed(values)
    piece, place = layout.sequence
    columns = [
        data,
        keys.cast(pa.string()),
        _numbers(np.ascontiguousarray(rows[piece][:, place])),
        pa.array(_arrivals(rows, layout)),
        pa.array([layout.encryption] * len(starts), pa.string()),
    ]
    return pa.RecordBatch.from_arrays(columns, schema=_SCHEMA), int(at[-1])


def _piece(characters: _Bytes, at: _Ints, layout: _Layout, *, number: int) -> _Bytes:
    """Return a piece of each record; all are as the layout says."""
    piece = layout.pieces[number]
    if not len(piece):
        return np.empty((len(at), 0), np.uint8)
    found: _Bytes = sliding_window_view(characters, len(piece))[at]
    if not ((found == piece) | layout.is_any[number]).all():
        raise ValueError("records that are not alike")
    return found


def _value_places(characters: _Bytes, at: _Ints, kind: int) -> tuple[_Ints, _Ints]:
    """Return where values begin behind their heads, and where they end."""
    heads = characters[at]
    if (heads >> _KIND != kind).any():
        raise ValueError("a value of another kind")
    low = (heads & _LOW).astype(np.int64)
    width = np.select([low < _ONE, low == _ONE, low == _TWO], [0, 1, 2], 4)
    size = np.where(width == 0, low, 0)
    for place in range(1, int(width.max()) + 1):
        is_in = width >= place
        size[is_in] = size[is_in] << 8 | characters[at[is_in] + place]
    begins = at + 1 + width
    ends = begins + size
    if ends.max() > len(characters):  # Arrow would read what lies there.
        raise ValueError("a length that the body does not have")
    return begins, ends


def _numbers(digits: _Bytes) -> pa.Array:
    """Return texts of one length, which are nothing but digits."""
    if (digits - _ZERO >= _DIGITS).any():  # What is less than zero is large here.
        raise ValueError("a sequence number that is none")
    count, size = digits.shape
    offsets = np.arange(0, (count + 1) * size, size, dtype=np.int32)
    buffers = [None, pa.py_buffer(offsets), pa.py_buffer(digits)]
    return pa.Array.from_buffers(pa.string(), count, buffers)


def _arrivals(rows: Sequence[_Bytes], layout: _Layout) -> _Ints:
    """Return epoch milliseconds."""
    if layout.arrival is None:
        return np.full(len(rows[0]), NO_ARRIVAL_MS, np.int64)
    piece, place = layout.arrival
    found = np.ascontiguousarray(rows[piece][:, place]).view(">u8").ravel()
    if (found > _LAST_MS).any():
        raise ValueError("an arrival time out of range")
    arrivals: _Ints = found.astype(np.int64)
    return arrivals
