"""Small stream records that would become huge ones, and a count of what is done to long texts."""

import hashlib
import sys

import shardfleet.kpl.messages_pb2  # noqa: F401 - so that no first import is counted as work
from shardfleet.kpl.content import at_once
from shardfleet.kpl.deaggregate import ExpansionLimits, Origin, records_in_steps
from shardfleet.kpl.hash_keys import MAX_HASH_KEY
from shardfleet.kpl.packing import varint

ORIGIN = Origin("7", "shardId-000000000000", 1_000, None)
ALL_HASHES = (0, MAX_HASH_KEY)
KEY_BYTES = 32 * 1024
# Twice as many uses of the key as the default limit of 64 MiB has room for; and half as many.
BEYOND, WITHIN = 4_096, 1_024
# The format's own work: a digest and a few looks at the body and its tables.
LOOKS_MOST = 20


def bytes_field(tag, data):
    return bytes((tag << 3 | 2,)) + varint(len(data)) + data


def bomb(shape, count):
    """Return an aggregate of so many records that share long keys."""
    tables, record = SHAPES[shape]
    records = (bytes_field(3, record(index) + b"\x1a\x00") for index in range(count))
    body = b"".join([*tables, *records])
    return b"\xf3\x89\x9a\xc2" + body + hashlib.md5(body, usedforsecurity=False).digest()


def key(number, text="ä"):
    """Return a key of 32 KiB that differs from the others."""
    start = f"{number:08d}".encode()
    return start + text.encode() * ((KEY_BYTES - len(start)) // len(text.encode()))


SHAPES = {
    "ascii key": ([bytes_field(1, key(0, "k"))], lambda _i: b"\x08\x00"),
    "key of two bytes a character": ([bytes_field(1, key(0))], lambda _i: b"\x08\x00"),
    "key of four bytes a character": ([bytes_field(1, key(0, "🔑"))], lambda _i: b"\x08\x00"),
    "the same key twice": ([bytes_field(1, key(0))] * 2, lambda i: b"\x08" + varint(i % 2)),
    "eight keys": (
        [bytes_field(1, key(number)) for number in range(8)],
        lambda i: b"\x08" + varint(i % 8),
    ),
    "explicit hash key": (
        [bytes_field(1, b"k"), bytes_field(2, key(0))],
        lambda _i: b"\x08\x00\x10\x00",
    ),
    "both": (
        [bytes_field(1, key(0)), bytes_field(2, key(1))],
        lambda i: b"\x08\x00\x10\x00" if i % 2 else b"\x08\x00",
    ),
}


class Work:
    """
    Counts, while it is entered, what methods of texts and bytes walk through, and digests.

    Attributes:
        characters: of the texts and bytes whose methods were called.
        decoded: bytes that were read as texts.
        digests: MD5 sums begun.

    """

    def __enter__(self):
        self.characters = self.digests = self.decoded = 0
        sys.setprofile(self._seen)
        return self

    def __exit__(self, *_raised):
        sys.setprofile(None)

    def _seen(self, _frame, event, called):
        if event != "c_call":
            return
        of = getattr(called, "__self__", None)
        if isinstance(of, str | bytes):
            self.characters += len(of)
        self.decoded += isinstance(of, bytes) and called.__name__ == "decode"
        self.digests += called.__name__ == "openssl_md5"


def read_in_worker(data, policy, *, hash_range=ALL_HASHES):
    """Take a record apart with all its defaults as a worker does, at one stretch."""
    return at_once(
        records_in_steps(
            data,
            partition_key="outer",
            origin=ORIGIN,
            limits=ExpansionLimits(),
            hash_range=hash_range,
            policy=policy,
        )
    )
