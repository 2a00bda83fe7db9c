"""
Avro payloads for the fuzzer: schemas at random, bytes by the specification, spoiled on the way.

The judge is fastavro, another reader: where ours gives a row, it has the judge's values; where the
judge's value, written again, is the payload byte by byte, ours gives a row. A judge takes more than
there is (numbers of any length, negative indices), so a bad record of ours needs no other reason.
"""

import io
import json
import random
import sys

import pandas as pd  # noqa: F401 - Arrow does at its first array, in some input's memory.
import pyarrow as pa
from fastavro import parse_schema, schemaless_reader, schemaless_writer
from fastavro.validation import validate

from shardfleet.errors import ConfigurationError
from shardfleet_spark.payload.avro_payload import avro_reader

PAYLOADS = 100
"""Of one schema, for each input of the fuzzer."""

CALLS_MOST = 6
"""Function calls for each byte and type of the schema: a number is one or two, an item more."""

PLAIN = ["boolean", "int", "long", "float", "double", "bytes", "string"]
LOGICAL = {
    "date": "int",
    "time-millis": "int",
    "timestamp-millis": "long",
    "timestamp-micros": "long",
    "uuid": "string",
}


class Schemas:
    """Draws a schema; `size` counts its types."""

    def __init__(self, chance):
        self.chance, self.size, self.named = chance, 0, []

    def record(self, depth=0):
        names = [f"f{n}" for n in range(self.chance.randrange(5))]
        fields = [{"name": name, "type": self.kind(depth + 1)} for name in names]
        return {"type": "record", "name": self.name(), "fields": fields}

    def name(self):
        return f"N{self.size}_{len(self.named)}_{self.chance.randrange(10**9)}"

    def kind(self, depth):
        self.size += 1
        chance = self.chance
        pick = chance.randrange(8 if depth > 3 else 14)
        if pick < 4:
            return chance.choice(PLAIN)
        if pick == 4:
            name = chance.choice(list(LOGICAL))
            return {"type": LOGICAL[name], "logicalType": name}
        if pick == 5:
            digits = chance.randrange(1, 39)
            whole = {"logicalType": "decimal", "precision": digits, "scale": digits // 2}
            return {"type": "bytes", **whole}
        if pick == 6:
            if self.named and chance.random() < 0.3:
                return chance.choice(self.named)
            symbols = [f"S{n}" for n in range(chance.randrange(1, 4))]
            enum = {"type": "enum", "name": self.name(), "symbols": symbols}
            self.named.append(enum["name"])
            return enum
        if pick == 7:
            return {"type": "fixed", "name": self.name(), "size": chance.randrange(4)}
        if pick < 10:
            return {"type": "array", "items": self.kind(depth + 1)}
        if pick == 10:
            return {"type": "map", "values": self.kind(depth + 1)}
        if pick == 11:
            return self.record(depth)
        inner = self.kind(depth + 1)
        return inner if isinstance(inner, list) else chance.sample(["null", inner], 2)


class Payloads:
    """Writes bytes of a schema; of `spoiling` of the places, what is wrong or unusual there."""

    def __init__(self, chance, spoiling):
        self.chance, self.spoiling, self.named = chance, spoiling, {}
        self.places, self.wrong = 0, False

    def spoils(self):
        found = self.chance.random() < self.spoiling
        self.places += found
        return found

    def is_wrong(self):
        """Tell whether the last payload has one place where it is spoiled, and is none for that."""
        return self.places == 1 and self.wrong

    def number(self, number):
        """Write a number: zigzag, seven bits a byte, now and then in more bytes than it takes."""
        rest, out = (number << 1) ^ (number >> 70), bytearray()
        while rest > 0x7F:
            out.append(rest & 0x7F | 0x80)
            rest >>= 7
        if self.spoils():
            out += bytes([rest | 0x80]) + b"\x80" * self.chance.randrange(12)
            rest = self.chance.randrange(3) if self.spoils() else 0
            self.wrong = len(out) >= 10
        return bytes([*out, rest])

    def within(self, bits):
        if self.spoils():
            number = self.chance.choice([-1, 1]) << self.chance.randrange(66)
            self.wrong = number.bit_length() > (32 if bits <= 32 else 64)
            return self.number(number)
        number = self.chance.getrandbits(self.chance.randrange(1, bits))
        return self.number(number if self.chance.random() < 0.5 else -number)

    def index(self, most):
        found = self.below(most)
        if self.spoils():
            found = self.chance.choice([-2, -1, most, most + 1])
            self.wrong = True
        return self.number(found)

    def below(self, most):
        return self.chance.randrange(most)

    def sized(self, data):
        size = len(data)
        if self.spoils():
            size = self.chance.choice([-1, size + 1, 2**40])
            self.wrong = size < 0
        return self.number(size) + data

    def text(self):
        data = "".join(self.chance.choices("aé😀\0{", k=self.below(4))).encode()
        return self.sized(data[:-1] if self.spoils() else data)

    def block(self, item):
        count = self.below(4)
        items = b"".join(item() for _ in range(count))
        if not count:
            return b""
        if self.below(4) == 0:
            size = len(items)
            if self.spoils():
                size, self.wrong = size + 1, True
            return self.number(-count) + self.number(size) + items
        return self.number(2 ** self.below(62) if self.spoils() else count) + items

    def of(self, schema):  # noqa: C901, PLR0912 - one case for each kind of type
        if isinstance(schema, list):
            index = self.index(len(schema))
            branch = index[0] // 2 if index in (b"\0", b"\2") else 0
            return index + (b"" if schema[branch] == "null" else self.of(schema[branch]))
        if isinstance(schema, str):
            return self.of(self.named[schema]) if schema in self.named else self.plain(schema)
        if "name" in schema:
            self.named[schema["name"]] = schema
        match schema["type"]:
            case "record":
                return b"".join(self.of(field["type"]) for field in schema["fields"])
            case "enum":
                return self.index(len(schema["symbols"]))
            case "fixed":
                return self.chance.randbytes(schema["size"])
            case "array":
                return self.block(lambda: self.of(schema["items"])) + self.number(0)
            case "map":
                entry = lambda: self.text() + self.of(schema["values"])  # noqa: E731
                return self.block(entry) + self.number(0)
        match schema["logicalType"]:
            case "uuid" if not self.spoils():
                return self.sized(b"00000000-0000-4000-8000-00000000%04x" % self.below(2**16))
            case "decimal":
                number = self.below(10 ** schema["precision"])
                if self.spoils():
                    number, self.wrong = 10 ** schema["precision"], True
                return self.sized(
                    (-number).to_bytes(number.bit_length() // 8 + 1, "big", signed=True)
                )
            case "date":
                return self.within(22)
            case "timestamp-millis":
                return self.within(46)
        return self.plain(schema["type"])

    def plain(self, kind):
        match kind:
            case "boolean":
                self.wrong = self.spoils() or self.wrong
                return bytes([self.below(2) + 2 * (self.wrong and self.places == 1)])
            case "int" | "long":
                return self.within(32 if kind == "int" else 64)
            case "float" | "double":
                return self.chance.randbytes(4 if kind == "float" else 8)
            case "bytes":
                return self.sized(self.chance.randbytes(self.below(5)))
        return self.text()

    def payload(self, schema):
        """Write a payload: mostly by the schema, then cut, lengthened or with other bytes in it."""
        self.places, self.wrong = 0, False
        data = bytearray(
            self.of(schema) if self.chance.random() < 0.95 else self.chance.randbytes(30)
        )
        while self.spoils():
            start = self.chance.randint(0, len(data))
            data[start : start + self.below(3)] = self.chance.randbytes(self.below(3))
        return bytes(data)


def judged(payload, schema):
    """Return the judge's value, whether all bytes are in it, and whether it is written so."""
    source, again = io.BytesIO(payload), io.BytesIO()
    try:
        value = schemaless_reader(source, schema, None)
    except Exception:  # noqa: BLE001 - whatever the bytes make the judge raise
        return None, False
    try:
        schemaless_writer(again, schema, value)
        written = again.getvalue() == payload and validate(value, schema, raise_errors=False)
    except Exception:  # noqa: BLE001 - as above
        written = False
    return value, written


def plain_schema(schema):
    """Leave out the logical types that Spark lacks: the judge has Python types for them."""
    text = json.dumps(schema).replace(', "logicalType": "time-millis"', "")
    return parse_schema(json.loads(text))


def as_arrow(values, kind):
    """Return what a column of the values would hold, as text: NaN is no equal of itself."""
    return [repr(each) for each in pa.array(values, kind).to_pylist()]


def told(value):
    """Return a value of the judge's as Arrow takes it."""
    match value:
        case dict():
            return {name: told(each) for name, each in value.items()}
        case list():
            return [told(each) for each in value]
        case int() | float() | str() | bytes() | None:
            return value
    return str(value) if type(value).__name__ == "UUID" else value


def calls_of(function, argument):
    """Return what a function returns, and how many calls it took."""
    calls = 0

    def count(_frame, event, _argument):
        nonlocal calls
        calls += event in ("call", "c_call")

    sys.setprofile(count)
    try:
        found = function(argument)
    finally:
        sys.setprofile(None)
    return found, calls


def check_avro(seed):
    """Try a schema and payloads of it; return how many gave a row."""
    chance = random.Random(seed)
    drawn = Schemas(chance)
    schema = drawn.record()
    try:
        read, kind = avro_reader(json.dumps(schema))
    except ConfigurationError:
        return 0  # Items that take no bytes.
    parsed, writer = plain_schema(schema), Payloads(chance, chance.choice([0, 0.02, 0.1]))
    ours, theirs = [], []
    for _ in range(PAYLOADS):
        payload = writer.payload(schema)
        (value, problem), calls = calls_of(read, payload)
        assert calls <= CALLS_MOST * (len(payload) + 1) * (drawn.size + 1), payload
        judge, written = judged(payload, parsed)
        if problem is None:
            assert judge is not None, (schema, payload)
            assert not writer.is_wrong(), (schema, payload)
            ours.append(value)
            theirs.append(told(judge))
        else:
            # The judge rounds a decimal that is too long.
            assert not written or "a decimal of more" in problem, (schema, payload, problem)
    assert as_arrow(ours, kind) == as_arrow(theirs, kind), schema
    return len(ours)
