"""
JSON payloads for the fuzzer: many at once through Spark, judged by Python's `json`.

A row has the values that the judge reads; what the judge cannot read, or a column cannot hold, is a
bad record; and what is fine by the judge and fits the schema is a row. Spark's tasks spend no more
than so many times the CPU time of plain payloads of the same lengths.
"""

import json
import math
import random
import re

import pyarrow as pa

from shardfleet_spark.payload.parsing import parse_payload

SCHEMA = "a int, l bigint, d double, s string, o boolean, r array<bigint>, n struct<l: bigint>"
FIELDS = ["a", "l", "d", "s", "o", "r", "n", "more"]
WHOLE = {"a": 31, "l": 63}

RATIO_MOST = 20
"""CPU time of Spark's tasks beside that for plain payloads of the same lengths."""

HEAP_BYTES_MOST = 40_000
"""Jackson refuses names of more than 50,000 characters, which the judge takes."""


UNITS = (
    rb"""[ [] {"n": " \ \" \u \ud800 1 0 1e9 . 1, "a":1, "r":[1], 1e999, "Infinity", /* """.split()
)
BEFORE = rb"""{"more": {"s":" {"a": {"d":1e {"r":[ {""".split()


def draw_heap(chance):
    """Return a payload that is mostly one thing many times, in the place of a value or alone."""
    unit = chance.choice(
        [*UNITS, b" ", b"\n", bytes(chance.choices(SPOILERS, k=chance.randrange(1, 6)))]
    )
    heap = unit * (chance.randrange(HEAP_BYTES_MOST) // len(unit))
    return chance.choice(BEFORE) + heap + chance.choice([b"", b"}", b'"}', b"]}", b' "a": 1}'])


def draw(chance):
    """Return a payload: an object of the schema, of another one, or one with some bytes changed."""
    if chance.random() < 0.002:
        return draw_heap(chance)
    fields = chance.choices(FIELDS, k=chance.randrange(5))
    text = "{" + ", ".join(f'"{name}": {value_of(chance, name)}' for name in fields) + "}"
    data = bytearray(text.encode())
    if chance.random() < 0.1:
        data += chance.choice([text.encode(), b"\n" + text.encode(), b" x", b"\n", b"]", b"\0"])
    while chance.random() < 0.2:
        start = chance.randint(0, len(data))
        data[start : start + chance.randrange(3)] = bytes(chance.choices(SPOILERS, k=2))
    return bytes(data)


SPOILERS = b"{}[]\",:\\ue0129.-+ \n\x00\xff\xc3tfnaN'#/*"
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
            text += chance.choice(["", "", '"Infinity"', "1e9"])
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
    """Return the row, None if it is nested too deeply for the judge, or raise ValueError."""
    try:
        given = json.loads(data.decode(), parse_constant=refuse)
    except RecursionError:
        return None
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
    """
    Tell of a payload that is fine by the judge, and may be a bad record for another reason.

    Halves of characters, Infinity or a text of that name beside digits that would be it, a name
    twice, and what Jackson limits: a number of a thousand digits and a thousand levels.
    """
    twice = []

    def once(pairs):
        twice.extend(pairs[len(dict(pairs)) :])
        return dict(pairs)

    found = json.loads(data, object_pairs_hook=once)
    try:
        json.dumps(found, ensure_ascii=False, allow_nan=False).encode()
    except ValueError:
        return True
    infinite = any(float(each) == math.inf for each in re.findall(rb"\d+(?:e\d+)?", data))
    beyond = (b"Infinity" in data and infinite) or re.search(rb"[0-9.]{1000}", data)
    return bool(twice or beyond or re.search(rb"(?:[\[{][^\[{\]}]*){900}", data))


def parse(spark, payloads):
    """Return the rows, and the CPU time that Spark's tasks took for them, in seconds."""
    rows = spark.createDataFrame(pa.table({"data": pa.array(payloads, pa.binary())}))
    group, context = random.randbytes(8).hex(), spark.sparkContext
    context.setJobGroup(group, "JSON payloads")
    found = parse_payload(rows, SCHEMA).toArrow()
    scala = context._jsc.sc()
    scala.listenerBus().waitUntilEmpty()
    jobs = context.statusTracker().getJobIdsForGroup(group)
    stages = {stage for job in jobs for stage in context.statusTracker().getJobInfo(job).stageIds}
    assert stages
    spent = [scala.statusStore().lastStageAttempt(each).executorCpuTime() for each in stages]
    return found, sum(spent) / 1e9


def check_cost(spark, drawn, spent):
    """Compare a cost with that of plain payloads; a second look, if Java was busy with itself."""
    sound = [b'{"s": "%s"}' % (b"x" * max(0, len(each) - 9)) for each in drawn]
    for _ in range(3):
        most = RATIO_MOST * parse(spark, sound)[1]
        if spent <= most:
            return
        spent = parse(spark, drawn)[1]
    raise AssertionError(f"{spent} s: more than {RATIO_MOST} times as much as plain ones")


def check_json(spark, seed, count):
    """Try so many payloads, drawn by the seed; return how many gave a row."""
    chance = random.Random(seed)
    drawn = [draw(chance) for _ in range(count)]
    found, spent = parse(spark, drawn)
    assert found["data"].to_pylist() == drawn
    payloads, problems = found["payload"].to_pylist(), found["bad_record"].to_pylist()
    for data, payload, problem in zip(drawn, payloads, problems, strict=True):
        assert (payload is None) != (problem is None), (seed, data)
        check_row(data, payload)
    check_cost(spark, drawn, spent)
    return sum(payload is not None for payload in payloads)


def check_row(data, got):
    """Compare one outcome with the judge's."""
    try:
        expected = judged(data)
    except ValueError:  # As JSON, as UTF-8, as a number, or by the schema.
        assert got is None, data
        return
    if expected is None:
        return
    if got is None:
        assert may_be_refused(data), data
        return
    if expected["s"] is None:
        got["s"] = None
    assert got == expected, data
