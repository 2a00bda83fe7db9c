"""
What is inside an aggregated record: ``AggregatorUtil.deaggregate`` of the KCL.

Rules: protocol.md §5.3; ``kpl/deaggregate.py`` lists what is different on purpose. The bodies are
put together here, field by field, since no encoder of ours makes the wrong ones.
"""

import base64
import hashlib
import re
from contextlib import suppress

from google.protobuf.message import DecodeError

from shardfleet.kpl.content import at_once
from shardfleet.kpl.deaggregate import ExpansionLimits, Origin, Verdict, records_in_steps
from shardfleet.kpl.messages_pb2 import AggregatedRecord
from tests.conformance.judge import Area, Deliberate

MAGIC = b"\xf3\x89\x9a\xc2"
ORIGIN = Origin("1", "shardId-000000000000", 0, None)
KEYS = ("a", "b", "key", "k" * 256, "\u00e9\u4e16", "\U0001f600", "0", "user 17")
RING = 2**128
HASH_KEYS = ("0", "1", str(RING - 1), str(RING // 2), str(RING // 2 - 1))
NO_HASH_KEYS = ("-1", "+5", "007", "", "x", str(RING), " 1", "1e3", "\u0663", "9" * 60, "1_0")
# Bytes at which a reader of UTF-8 may go wrong.
EDGES = bytes.fromhex("61 80 8f 90 9f a0 bf c0 c2 c3 df e0 e2 ed ef f0 f1 f4 f5 f8 ff")
LIMITS = ExpansionLimits()
FEW = 3


def varint(value, *, more=0):
    """Return a number as protobuf writes it, with so many needless bytes."""
    out = bytearray()
    while value > 127 or more:
        if value <= 127:
            more -= 1
        out.append(value & 127 | 128)
        value >>= 7
    out.append(value)
    return bytes(out)


def field(number, content):
    """Return a field: bytes, or a number."""
    if isinstance(content, bytes):
        return varint(number << 3 | 2) + varint(len(content)) + content
    return varint(number << 3) + varint(content)


def framed(body):
    """Return a body in its frame."""
    return MAGIC + body + hashlib.md5(body, usedforsecurity=False).digest()


def draw(chance):
    """Draw a Kinesis record's data, where it was read, and how far it may expand."""
    match chance.randrange(12):
        case 0:
            data = chance.randbytes(chance.randint(0, 40))
        case 1:
            data = MAGIC[: chance.randint(0, 4)] + chance.randbytes(chance.choice((0, 15, 16, 17)))
        case 2:
            data = _damaged(chance, framed(_body(chance)))
        case 3:
            data = framed(_damaged(chance, _body(chance)))
        case 4:
            data = framed(field(1, b"outer") + _record(chance, 1, 0, framed(_body(chance))))
        case _:
            data = framed(_body(chance))
    return {
        "data": base64.b64encode(data).decode(),
        "key": chance.choice(KEYS),
        "range": _range(chance),
        "few": not chance.randrange(30),
    }


def _range(chance):
    match chance.randrange(6):
        case 0 | 1:
            return None
        case 2:
            return ["0", str(RING - 1)]
        case 3:
            return [str(RING // 2), str(RING - 1)]
        case 4:
            return ["0", str(RING // 2 - 1)]
        case _:
            shards = chance.choice((3, 4, 16))
            place = chance.randrange(shards)
            return [str(RING * place // shards), str(RING * (place + 1) // shards - 1)]


def _damaged(chance, data):
    if not data:
        return data
    at = chance.randrange(len(data))
    match chance.randrange(4):
        case 0:
            return data[:at]
        case 1:
            return data[:at] + data[at + 1 :]
        case 2:
            return data + chance.randbytes(1)
        case _:
            return data[:at] + bytes([data[at] ^ 1 << chance.randrange(8)]) + data[at + 1 :]


def _body(chance):
    """Draw a body that is right, but for at most one oddity."""
    oddity = chance.choice(ODDITIES) if not chance.randrange(3) else ""
    keys = [key.encode() for key in chance.choices(KEYS, k=chance.randint(1, 4))]
    hash_keys = [key.encode() for key in _hash_keys(chance)]
    count = chance.choice((1, 1, 2, 3, 5, 12))
    if oddity == "no records":
        count = 0
    elif oddity == "no hash key":
        hash_keys = [*hash_keys, chance.choice(NO_HASH_KEYS).encode()]
    elif oddity == "no text":
        (keys if chance.randrange(2) else hash_keys).append(_edgy(chance))
    elif oddity == "no tables":
        keys, hash_keys = ([], hash_keys) if chance.randrange(2) else (keys, [])
    records = [_record(chance, len(keys), len(hash_keys)) for _ in range(count)]
    if oddity in RECORDS and records:
        records[chance.randrange(count)] = RECORDS[oddity](chance, len(keys), len(hash_keys))
    parts = [
        *(field(1, key) for key in keys),
        *(field(2, key) for key in hash_keys),
        *records,
    ]
    if oddity == "unknown field":
        parts.insert(chance.randint(0, len(parts)), _unknown(chance))
    elif oddity == "out of order":
        chance.shuffle(parts)
    return b"".join(parts)


def _edgy(chance):
    return bytes(chance.choices(EDGES, k=chance.randint(1, 6)))


def _hash_keys(chance):
    if chance.randrange(3):
        return []
    return [
        chance.choice((*HASH_KEYS, str(chance.randrange(RING))))
        for _ in range(chance.randint(1, 3))
    ]


def _unknown(chance):
    number = chance.choice((4, 5, 100))
    match chance.randrange(7):
        case 0:
            return varint((number << 3) + 2**32 * chance.randint(1, 9)) + varint(7)
        case 1:
            return varint(number << 3 | 3) + b"\0\7" + varint(number << 3 | 4)
        case 2:
            return field(number, chance.randrange(2**40))
        case 3:
            return field(number, chance.randbytes(5))
        case 4:
            return varint(number << 3 | 5) + chance.randbytes(4)
        case 5:
            return varint(number << 3 | 1) + chance.randbytes(8)
        case _:
            return varint(number << 3 | 3) + field(1, 7) + varint(number << 3 | 4)


def _record(chance, keys, hash_keys, data=None):
    parts = [field(1, chance.randrange(max(1, keys)))]
    if hash_keys and chance.randrange(2):
        parts.append(field(2, chance.randrange(hash_keys)))
    parts.append(field(3, chance.randbytes(chance.choice((0, 1, 20))) if data is None else data))
    if not chance.randrange(20):
        parts.append(field(4, field(1, b"tag") + field(2, b"value")))
    if not chance.randrange(20):
        chance.shuffle(parts)
    return field(3, b"".join(parts))


def _without(chance, keys, hash_keys):
    del hash_keys
    return field(3, chance.choice((field(1, chance.randrange(max(1, keys))), field(3, b"x"), b"")))


def _twice(chance, keys, hash_keys):
    inner = field(1, 0) + field(1, chance.randrange(max(1, keys))) + field(3, b"x") + field(3, b"y")
    if hash_keys:
        inner += field(2, 0) * chance.randint(0, 2)
    return field(3, inner)


def _beyond(chance, keys, hash_keys):
    index = chance.choice((keys, keys + 7, 2**31, 2**32, 2**32 + keys, 2**63, 2**64 - 1))
    if hash_keys and chance.randrange(2):
        beyond = chance.choice((hash_keys, 2**31, 2**32, 2**32 + hash_keys, 2**64 - 1))
        return field(3, field(1, 0) + field(2, beyond) + field(3, b"x"))
    return field(3, field(1, index) + field(3, b"x"))


def _points_nowhere(chance, keys, hash_keys):
    inner = field(1, chance.randrange(max(1, keys)))
    return field(3, inner + field(2, chance.choice((hash_keys, 9))) + field(3, b"x"))


def _bad_tag(chance, keys, hash_keys):
    del hash_keys
    inner = field(1, chance.randrange(max(1, keys))) + field(3, b"x")
    return field(
        3, inner + field(4, chance.choice((b"", field(2, b"v"), b"\xff", field(1, b"\xff"))))
    )


def _padded(chance, keys, hash_keys):
    del hash_keys
    index = varint(1 << 3) + varint(chance.randrange(max(1, keys)), more=chance.choice((1, 3, 8)))
    return field(3, index + field(3, b"x"))


def _other_type(chance, keys, hash_keys):
    del keys, hash_keys
    return field(3, chance.choice((field(1, b"0"), field(1, 0) + field(2, b"0"))) + field(3, b"x"))


RECORDS = {
    "required field missing": _without,
    "field twice": _twice,
    "index beyond the table": _beyond,
    "hash index nowhere": _points_nowhere,
    "bad tag": _bad_tag,
    "padded number": _padded,
    "other wire type": _other_type,
}
ODDITIES = (
    *RECORDS,
    "no records",
    "no hash key",
    "no text",
    "no tables",
    "unknown field",
    "out of order",
)


def ours(case):
    """Return (records as the driver tells the KCL's, verdict)."""
    limits = ExpansionLimits(max_sub_records=FEW) if case["few"] else LIMITS
    ends = case["range"]
    found = at_once(
        records_in_steps(
            base64.b64decode(case["data"]),
            partition_key=case["key"],
            origin=ORIGIN,
            limits=limits,
            hash_range=(int(ends[0]), int(ends[1])) if ends else None,
            policy="kpl",
        )
    )
    records = [
        [
            each.partition_key,
            each.explicit_hash_key,
            base64.b64encode(each.data).decode(),
            each.sub_sequence_number,
            each.aggregated,
        ]
        for each in found.records
    ]
    return records, found.verdict


class Difference:
    """
    Two answers to one case that differ, and what the body says to protobuf's own parser.

    Attributes:
        ours, theirs: records.
        raw: the Kinesis record as it is.
        verdict: ours.
        few: whether it may expand to a few records only.
        hash_keys: the table of explicit hash keys.
        records: those of the body; None: not what the schema says.

    """

    def __init__(self, case, our, their):
        self.ours, self.verdict = our
        self.theirs, self.few = their, case["few"]
        self.raw = [[case["key"], None, case["data"], 0, False]]
        self.keys, self.hash_keys, self.records = (), (), None
        self.body = base64.b64decode(case["data"])[4:-16]
        with suppress(DecodeError):
            message = AggregatedRecord.FromString(self.body)
            self.keys, self.hash_keys = message.partition_key_table, message.explicit_hash_key_table
            if message.IsInitialized():
                self.records = message.records

    def __str__(self):
        """Say how each side sees it."""
        return f"ours {self.verdict}, theirs {len(self.theirs)} records"

    @property
    def expands(self):
        """Tell whether we take it apart."""
        return self.verdict in (Verdict.EXPANDED, Verdict.MISROUTED)

    @property
    def is_cut(self):
        """Tell whether the KCL gives some of the first records, not all, and not the raw one."""
        if self.records is None or not len(self.theirs) < len(self.records):
            return False
        data = [base64.b64encode(record.data).decode() for record in self.records]
        given = [record[2:] for record in self.theirs]
        return given == [[each, at, True] for at, each in enumerate(data[: len(given)])]

    def indexes(self):
        """Yield (index, length of its table) of each record's keys."""
        for record in self.records or ():
            yield record.partition_key_index, len(self.keys)
            if record.HasField("explicit_hash_key_index"):
                yield record.explicit_hash_key_index, len(self.hash_keys)


def _tags(body):
    """Yield each tag of a body, and of the records and tags in it, as far as it can be read."""
    at = 0
    with suppress(IndexError):
        while at < len(body):
            tag, at = _number(body, at)
            yield tag
            match tag & 7:
                case 0:
                    _, at = _number(body, at)
                case 1:
                    at += 8
                case 2:
                    size, at = _number(body, at)
                    if tag >> 3 in (3, 4):
                        yield from _tags(body[at : at + size])
                    at += size
                case 5:
                    at += 4


def _number(body, at):
    value = shift = 0
    while body[at] & 128:
        value |= (body[at] & 127) << shift
        at, shift = at + 1, shift + 7
    return value | body[at] << shift, at + 1


def differences(case, our, their):
    """Yield the one difference there can be."""
    if our[0] != their:
        yield Difference(case, our, their)


def _is_fault_inside(found):
    return found.verdict == Verdict.BAD_INDEX and found.ours == found.raw and found.is_cut


def _is_index_of_int(found):
    wrapped = [(index % 2**32, size) for index, size in found.indexes() if index >= size]
    return (
        found.verdict == Verdict.BAD_INDEX
        and found.ours == found.raw
        and len(found.theirs) == len(found.records)
        and all(index < size for index, size in wrapped)
    )


def _is_empty(found):
    return found.verdict == Verdict.EMPTY and found.ours == found.raw and found.theirs == []


def _is_beyond_limit(found):
    return found.few and found.verdict == Verdict.TOO_MANY_RECORDS and found.ours == found.raw


def _is_bad_tag(found):
    return found.expands and found.records is None and found.theirs == found.raw


def _is_no_hash_key(found):
    if not (found.expands and found.hash_keys):
        return False
    used = [
        found.hash_keys[record.explicit_hash_key_index]
        for record in found.records or ()
        if record.HasField("explicit_hash_key_index")
    ]
    return any(not isinstance(key, str) or not _is_hash_key(key) for key in used)


def _is_hash_key(text):
    return re.fullmatch("0|[1-9][0-9]*", text, re.ASCII) is not None and int(text) < RING


def _is_index_into_nothing(found):
    return (
        found.expands
        and found.is_cut
        and not found.hash_keys
        and any(record.HasField("explicit_hash_key_index") for record in found.records)
    )


def _is_forbidden_tag(found):
    bad = any(tag >= 2**32 or tag >> 3 == 0 for tag in _tags(found.body))
    return bad and (found.verdict == Verdict.BAD_ENCODING or found.theirs == found.raw)


AREA = Area(
    "deaggregation",
    draw,
    ours,
    differences,
    (
        Deliberate(
            "a fault inside: delivered whole, as the plain record; the KCL gives what came before",
            "kpl/deaggregate.py; AggregatorUtil, catch Exception",
            _is_fault_inside,
        ),
        Deliberate(
            "an index of 2**32 or more is no index; the KCL takes its low 32 bits",
            "kpl/deaggregate.py, malformed; AggregatorUtil, (int) getPartitionKeyIndex",
            _is_index_of_int,
        ),
        Deliberate(
            "an aggregate without records: delivered plain; the KCL gives nothing",
            "kpl/deaggregate.py",
            _is_empty,
        ),
        Deliberate(
            "more records than allowed: delivered plain; the KCL has no limit",
            "kpl/deaggregate.py, ExpansionLimits",
            _is_beyond_limit,
        ),
        Deliberate(
            "a malformed tag spoils nothing; to the KCL it is no aggregate then",
            "kpl/deaggregate.py; AggregatorUtil, InvalidProtocolBufferException",
            _is_bad_tag,
        ),
        Deliberate(
            "an explicit hash key that is none discards nothing; the KCL compares or cuts",
            "kpl/deaggregate.py; AggregatorUtil.effectiveHashKey",
            _is_no_hash_key,
        ),
        Deliberate(
            "an index into an empty table of hash keys spoils nothing; the KCL cuts there",
            "kpl/deaggregate.py",
            _is_index_into_nothing,
        ),
        Deliberate(
            "a tag that protobuf forbids is a fault to one of two parsers",
            "protobuf's encoding: a tag has 32 bits, no field has number 0; either is plain to us",
            _is_forbidden_tag,
        ),
    ),
)
