"""
A page of records on its way from a process that decodes to the one with the handler.

Each message is its length and MessagePack. Aggregates are taken apart on the way
(:mod:`shardfleet.kpl.columns`); an error of shardfleet travels by its name.
"""

from __future__ import annotations

import socket
import struct

import msgspec

from shardfleet import errors
from shardfleet.domain.reading.pages import RecordsPage
from shardfleet.domain.stream.hash_ranges import HashKeyRange
from shardfleet.domain.stream.shards import ChildShard
from shardfleet.errors import ShardfleetError
from shardfleet.kpl.columns import take_apart
from shardfleet.kpl.deaggregate import ExpansionLimits, MisroutedPolicy
from shardfleet.kpl.envelope import is_framed
from shardfleet.records import StreamRecord

_LENGTH = struct.Struct("!Q")
MESSAGE_BYTES_MOST = 1 << 30
"""A longer message is a broken one: a page has 10 MiB of data (Kinesis quota)."""


class Asked(msgspec.Struct, array_like=True):
    """What :meth:`KinesisPolling.page` is asked."""

    iterator: str
    shard_id: str
    limit: int


class _Child(msgspec.Struct, array_like=True):
    shard_id: str
    parents: list[str]
    # Decimal, because a hash key has 128 bits.
    start: str
    end: str


class _Sent(msgspec.Struct, array_like=True):
    """A page; or ``error``, the class and the text of one."""

    records: list[StreamRecord] = []
    resume_token: str | None = None
    millis_behind_latest: int | None = None
    child_shards: list[_Child] = []
    size_bytes: int = 0
    error: tuple[str, str] | None = None


_ENCODER = msgspec.msgpack.Encoder()
_ASKED = msgspec.msgpack.Decoder(Asked)
_SENT = msgspec.msgpack.Decoder(_Sent)


class Hung(OSError):
    """The other process closed the connection."""


class NotAnswered(Exception):
    """The other process could not send what was asked for."""


def ask(connection: socket.socket, asked: Asked) -> None:
    """Send a question."""
    _send(connection, _ENCODER.encode(asked))


def asked(connection: socket.socket) -> Asked:
    """
    Wait for the next question.

    Raises:
        Hung: the other side is gone.

    """
    return _ASKED.decode(_received(connection))


def answer(
    connection: socket.socket,
    page: RecordsPage,
    *,
    limits: ExpansionLimits,
    policy: MisroutedPolicy,
) -> None:
    """Send a page, its aggregates taken apart."""
    records, size = [], 0
    for record in page.records:
        size += len(record.data) + len(record.partition_key)
        users = None
        if is_framed(record.data):
            users = take_apart(record.data, limits=limits, policy=policy)
        if users is not None:
            record = msgspec.structs.replace(record, data=b"", users=users)  # noqa: PLW2901
        records.append(record)
    children = [
        _Child(
            child.shard_id,
            list(child.parent_shard_ids),
            str(child.hash_key_range.start),
            str(child.hash_key_range.end),
        )
        for child in page.child_shards
    ]
    sent = _Sent(records, page.resume_token, page.millis_behind_latest, children, size)
    _send(connection, _ENCODER.encode(sent))


def answer_error(connection: socket.socket, error: Exception) -> None:
    """Send an error; of one that is not shardfleet's only that there was one."""
    name = type(error).__name__ if isinstance(error, ShardfleetError) else ""
    _send(connection, _ENCODER.encode(_Sent(error=(name, ascii(str(error))))))


def answered(connection: socket.socket) -> RecordsPage:
    """
    Wait for the page.

    Raises:
        Hung, OSError: the other side is gone, or takes too long (TimeoutError).
        msgspec.MsgspecError: it sent something else.
        NotAnswered: it could not, for a reason of its own.
        ShardfleetError: the other side's, of the same class.

    """
    sent = _SENT.decode(_received(connection))
    if sent.error is not None:
        name, text = sent.error
        raise getattr(errors, name or "-", NotAnswered)(text)
    return RecordsPage(
        records=sent.records,
        resume_token=sent.resume_token,
        millis_behind_latest=sent.millis_behind_latest,
        child_shards=[
            ChildShard(
                shard_id=child.shard_id,
                parent_shard_ids=tuple(child.parents),
                hash_key_range=HashKeyRange(int(child.start), int(child.end)),
            )
            for child in sent.child_shards
        ],
        size_bytes=sent.size_bytes,
    )


def _send(connection: socket.socket, message: bytes) -> None:
    connection.sendall(_LENGTH.pack(len(message)))
    connection.sendall(message)


def _received(connection: socket.socket) -> bytearray:
    (length,) = _LENGTH.unpack(_exactly(connection, _LENGTH.size))
    if length > MESSAGE_BYTES_MOST:
        raise Hung(f"a message of {length} bytes")
    return _exactly(connection, length)


def _exactly(connection: socket.socket, size: int) -> bytearray:
    message = bytearray(size)
    view, filled = memoryview(message), 0
    while filled < size:
        got = connection.recv_into(view[filled:])
        if not got:
            raise Hung("the other process is gone")
        filled += got
    return message
