"""
The body of a PutRecords request and of its answer, without the SDK's encoder.

Keys and names are written by msgspec; base64 comes from pybase64 and goes into one join as it is,
so that nobody looks through it again for characters to escape (performance.md §6: encoding is most
of what a PutRecords call costs; measured here, orjson takes 4 times as long, msgspec as a whole
twice). Equal to botocore's body in meaning, not in bytes: a test compares them.
"""

from __future__ import annotations

from collections.abc import Sequence

import msgspec
import pybase64

from shardfleet.engine.ports import PutOutcome
from shardfleet.kpl.packing import OutgoingRecord


class _Answer(msgspec.Struct, gc=False):
    """``PutRecordsOutput``."""

    Records: list[PutOutcome]


_ENCODER = msgspec.json.Encoder()
_DECODER = msgspec.json.Decoder(_Answer)


def encode_put_records(stream_arn: str, entries: Sequence[OutgoingRecord]) -> bytes:
    """Return the JSON body of a PutRecords request, UTF-8."""
    base64, text = pybase64.b64encode, _ENCODER.encode
    parts = [b'{"StreamARN":', text(stream_arn), b',"Records":[']
    before = b'{"Data":"'
    for entry in entries:
        parts += (before, base64(entry.data), b'","PartitionKey":', text(entry.partition_key))
        if entry.explicit_hash_key is not None:
            parts += (b',"ExplicitHashKey":', text(entry.explicit_hash_key))
        before = b'},{"Data":"'
    parts.append(b"}]}" if entries else b"]}")
    return b"".join(parts)


def decode_put_records(body: bytes) -> list[PutOutcome]:
    """
    Return the outcomes of a PutRecords answer, one per entry, in their order.

    Raises:
        ValueError: the body is no such answer.

    """
    return _DECODER.decode(body).Records
