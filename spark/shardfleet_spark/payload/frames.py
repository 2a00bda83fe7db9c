"""
Frames of the schema registries: which schema a payload is written in, and where it begins.

* Confluent's wire format: a byte 0, the schema's id in four bytes, the Avro.
* AWS Glue's: a byte 3 (the header's version), a byte 0 or 5 (no compression, or zlib), the id of
  the schema's version as a UUID in 16 bytes, the Avro (`AWSSchemaRegistryConstants` of AWS's
  serializers).
"""

from __future__ import annotations

import zlib
from collections.abc import Callable
from uuid import UUID

from shardfleet_spark.payload.kinds import REGISTERED

AVRO_CONFLUENT, AVRO_GLUE = REGISTERED

_CONFLUENT_HEAD = 5
_GLUE_VERSION, _GLUE_PLAIN, _GLUE_ZLIB = 3, 0, 5
_GLUE_HEAD = 18
_INFLATED_BYTES_MOST = 64 * 1024 * 1024


def confluent_frame(data: bytes) -> tuple[str, bytes]:
    """
    Return a schema's id and the Avro behind it.

    Raises:
        ValueError: it is no such frame.

    """
    if len(data) < _CONFLUENT_HEAD or data[0] != 0:
        raise ValueError("no frame of a Confluent registry: it begins with 0 and four bytes of id")
    return str(int.from_bytes(data[1:_CONFLUENT_HEAD], "big")), data[_CONFLUENT_HEAD:]


def glue_frame(data: bytes) -> tuple[str, bytes]:
    """
    Return the id of a schema's version and the Avro behind it.

    Raises:
        ValueError: it is no such frame.

    """
    if len(data) < _GLUE_HEAD or data[0] != _GLUE_VERSION:
        raise ValueError(
            "no frame of a Glue registry: it begins with 3, 0 or 5, and 16 bytes of id"
        )
    body = data[_GLUE_HEAD:]
    if data[1] == _GLUE_ZLIB:
        body = _inflated(body)
    elif data[1] != _GLUE_PLAIN:
        raise ValueError(f"a Glue frame of compression {data[1]}: 0 and 5 are known")
    return str(UUID(bytes=data[2:_GLUE_HEAD])), body


def _inflated(body: bytes) -> bytes:
    inflating = zlib.decompressobj()
    try:
        found = inflating.decompress(body, _INFLATED_BYTES_MOST)
    except zlib.error as error:
        raise ValueError(f"a Glue frame that says zlib and is none: {error}") from error
    if not inflating.eof or inflating.unused_data:
        raise ValueError("a Glue frame whose zlib is cut off, too long, or has bytes behind it")
    return found


FRAMES: dict[str, Callable[[bytes], tuple[str, bytes]]] = {
    AVRO_CONFLUENT: confluent_frame,
    AVRO_GLUE: glue_frame,
}
