"""
JSON payloads for the fuzzer: many at once through Spark, judged by Python's `json`.

A row has the values that the judge reads; what the judge cannot read, or a column cannot hold, is a
bad record; and what is fine by the judge and fits the schema is a row.
"""

import json
import math
import random

from shardfleet_spark.payload.parsing import parse_payload

SCHEMA = "a int, l bigint, d double, s string, o boolean, r array<bigint>, n struct<l: bigint>"
FIELDS = ["a", "l", "d", "s", "o", "r", "n", "more"]
WHOLE = {"a": 31, "l": 63}


def draw(chance):
    """Return a payload: an object of the schema, of another one, or one with some bytes changed."""
    fields = chance.choices(FIELDS, k=chance.randrange(5))
    text = "{" + ", ".join(f'"{name}": {value_of(chance, name)}' for name in fields) + "}"
    data = bytearray(text.encode())
    if chance.random() < 0.1:
        data += chance.choice([text.encode(), b"\n" + text.encode(), b" x", b"\n", b"]", b"\0"])
    while chance.random() < 0.2:
        start = chance.randint(0, len(data))
        data[start : start + chance.randrange(3)] = bytes(chance.choices(SPOILERS, k=2))
    return bytes(data)


SPOILERS = b'{}[]",:\\ue0129.-+ \n\x00\xff\xc3tfnaN'
ODD = ["null", "1e999", "-0", "1.5", "NaN", "01", '"x"', "[]", "{}", "1e5", "true", '"\\ud800"']


def value_of(chance, name):
    """Return the text of a value for a field, now and then of another type."""
    if chance.random() < 0.06:
        return chance.choice(ODD)
    number = chance.getrandbits(chance.randrange(1, WHOLE.get(name, 63) + 2)) - chance.randrange(3)
    match name:
        case "a" | "l":
            return str(number)
        case "d":
            return repr(chance.uniform(-1, 1) * 10.0 ** chance.randrange(-300, 300))
        case "s":
            text = "".join(chance.choices('aé😀"\\\n/', k=chance.randrange(5)))
            return json.dumps(text, ensure_ascii=chance.random() < 0.5)
        case "o":
            return chance.choice(["true", "false"])
        case "r":
            return json.dumps([chance.randrange(9), None][: chance.randrange(3)])
        case "n":
            return json.dumps({"l": number, "x": [{}]})
    return json.dumps({"deep": [[{}, "}"]], "s": '"'})


class Misfit(ValueError):
    """What the judge has against a payload."""


def refuse(text):
    raise Misfit(text)


def number_of(text):
    found = float(text)
    return refuse(text) if math.isinf(found) else found


def judged(data):
    """Return the row, or raise ValueError."""
    given = json.loads(data.decode(), parse_constant=refuse)
    if not isinstance(given, dict):
        raise Misfit
    fits = {
        "a": lambda value: whole(value, 31),
        "l": lambda value: whole(value, 63),
        "d": lambda value: number_of(value) if type(value) in (int, float) else refuse(value),
        "o": lambda value: value if isinstance(value, bool) else refuse(value),
        "r": lambda value: [each if each is None else whole(each, 63) for each in listed(value)],
        "n": lambda value: (
            {"l": None if value.get("l") is None else whole(value["l"], 63)}
            if isinstance(value, dict)
            else refuse(value)
        ),
    }
    row = {
        name: None if given.get(name) is None else fit(given[name]) for name, fit in fits.items()
    }
    text = given.get("s")
    # Spark writes another value into a text column as JSON; the judge speaks of texts only.
    row["s"] = text if isinstance(text, str) else None
    if isinstance(text, str):
        text.encode()
    return row


def whole(value, bits):
    return value if type(value) is int and -(2**bits) <= value < 2**bits else refuse(value)


def listed(value):
    return value if isinstance(value, list) else refuse(value)


def may_be_refused(data):
    """Tell of a payload that is fine by the judge: halves of characters, Infinity, a name twice."""
    twice = []

    def once(pairs):
        twice.extend(pairs[len(dict(pairs)) :])
        return dict(pairs)

    found = json.loads(data, object_pairs_hook=once)
    try:
        json.dumps(found, ensure_ascii=False, allow_nan=False).encode()
    except ValueError:
        return True
    return bool(twice)


def check_json(spark, seed, count):
    """Try so many payloads; return how many gave a row."""
    chance = random.Random(seed)
    drawn = [draw(chance) for _ in range(count)]
    rows = spark.createDataFrame([(each,) for each in drawn], "data binary")
    found = parse_payload(rows, SCHEMA).collect()
    assert [bytes(row["data"]) for row in found] == drawn
    for row in found:
        assert (row["payload"] is None) != (row["bad_record"] is None), row
        check_row(bytes(row["data"]), row["payload"])
    return sum(row["payload"] is not None for row in found)


def check_row(data, payload):
    """Compare one outcome with the judge's."""
    try:
        expected = judged(data)
    except ValueError:  # As JSON, as UTF-8, as a number, or by the schema.
        assert payload is None, data
        return
    if payload is None:
        assert may_be_refused(data), data
        return
    got = payload.asDict(recursive=True)
    if expected["s"] is None:
        got["s"] = None
    assert got == expected, data
