"""The filters of the mapping, by AWS's own examples, and beside another implementation."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st
from moto.events.models import EventPattern, EventPatternParser

from shardfleet.domain.delivery.filters import RecordFilter
from shardfleet.errors import ConfigurationError
from shardfleet.records import Record


def a_record(data, *, key="user-1"):
    return Record(
        data=data if isinstance(data, bytes) else json.dumps(data).encode(),
        partition_key=key,
        sequence_number="1",
        shard_id="shardId-000000000000",
        approximate_arrival_ms=0,
    )


def passes(pattern, data, **record):
    return RecordFilter(json.dumps([pattern])).passes(a_record(data, **record))


# Lambda developer guide, "Control which events Lambda sends to your function": the table of
# comparison operators; what matches, and what does not.
OPERATORS = {
    "null": ({"UserID": [None]}, {"UserID": None}, {"UserID": "null"}),
    "empty": ({"LastName": [""]}, {"LastName": ""}, {"LastName": None}),
    "equals": ({"Name": ["Alice"]}, {"Name": "Alice"}, {"Name": "alice"}),
    "equals, ignore case": (
        {"Name": [{"equals-ignore-case": "alice"}]},
        {"Name": "ALICE"},
        {"Name": "Alicia"},
    ),
    "and": (
        {"Location": ["New York"], "Day": ["Monday"]},
        {"Location": "New York", "Day": "Monday"},
        {"Location": "New York", "Day": "Sunday"},
    ),
    "or": ({"PaymentType": ["Credit", "Debit"]}, {"PaymentType": "Debit"}, {"PaymentType": "Cash"}),
    "or of fields": (
        {"$or": [{"Location": ["New York"]}, {"Day": ["Monday"]}]},
        {"Location": "Rome", "Day": "Monday"},
        {"Location": "Rome", "Day": "Sunday"},
    ),
    "not": (
        {"Weather": [{"anything-but": ["Raining"]}]},
        {"Weather": "Dry"},
        {"Weather": "Raining"},
    ),
    "numeric equals": ({"Price": [{"numeric": ["=", 100]}]}, {"Price": 1e2}, {"Price": 100.5}),
    "numeric range": (
        {"Price": [{"numeric": [">", 10, "<=", 20]}]},
        {"Price": 20},
        {"Price": 10},
    ),
    "exists": ({"ProductName": [{"exists": True}]}, {"ProductName": None}, {"Product": "x"}),
    "does not exist": ({"ProductName": [{"exists": False}]}, {"Product": "x"}, {"ProductName": ""}),
    "begins with": ({"Region": [{"prefix": "us-"}]}, {"Region": "us-east-1"}, {"Region": "eu-us-"}),
    "ends with": (
        {"FileName": [{"suffix": ".png"}]},
        {"FileName": "a.png"},
        {"FileName": "a.png "},
    ),
}


@pytest.mark.parametrize("name", OPERATORS)
def test_each_operator_of_lambdas_table_is_there(name):
    pattern, matching, other = OPERATORS[name]

    assert passes({"data": pattern}, matching)
    assert not passes({"data": pattern}, other)


def test_the_example_of_the_kinesis_page_keeps_the_orders_to_buy():
    # "Using event filtering with a Kinesis event source"
    pattern = {"data": {"order": {"type": ["buy"]}}}
    order = {"record": 12345, "order": {"type": "buy", "stock": "ANYCO", "quantity": 1000}}

    assert passes(pattern, order)
    assert not passes(pattern, {**order, "order": {"type": "sell"}})


def test_numbers_are_equal_only_as_they_are_written():
    # The same page: "300, 300.0, and 3.0e2 are not considered equal".
    for written, other in (("300", "300.0"), ("300.0", "3.0e2"), ("3.0e2", "300")):
        found = RecordFilter(f'[{{"data": {{"x": [{written}]}}}}]')
        assert found.passes(a_record(f'{{"x": {written}}}'.encode()))
        assert not found.passes(a_record(f'{{"x": {other}}}'.encode()))
        assert not found.passes(a_record(f'{{"x": "{written}"}}'.encode()))


def test_a_number_whose_exponent_is_beyond_what_can_be_counted_is_in_no_range():
    found = RecordFilter('[{"data": {"x": [{"numeric": [">", 0]}]}}]')

    assert found.passes(a_record(b'{"x": 1e99}'))
    assert not found.passes(a_record(b'{"x": 1e99999999999999999999}'))


def test_exists_asks_for_leaves_only():
    # The same page, its person with an address.
    person = {"person": {"name": "John Doe", "address": {"city": "Anytown"}}}

    assert not passes({"data": {"person": {"address": [{"exists": True}]}}}, person)
    assert passes({"data": {"person": {"address": [{"exists": False}]}}}, person)
    assert passes({"data": {"person": {"address": {"city": [{"exists": True}]}}}}, person)


# Event Ruler's README, "Ruler by Example".
EVENT = {
    "resources": ["arn:aws:ec2:us-east-1:123456789012:instance/i-000000aaaaaa00000"],
    "time": "2017-10-02T16:24:49Z",
    "source": "aws.ec2",
    "detail": {"c-count": 5, "d-count": 3, "x-limit": 301.8, "state": "running"},
}


@pytest.mark.parametrize(
    "pattern",
    [
        {"resources": EVENT["resources"], "detail": {"state": ["initializing", "running"]}},
        {"time": [{"prefix": "2017-10-02"}]},
        {"source": [{"suffix": "ec2"}]},
        {"source": [{"equals-ignore-case": "AWS.EC2"}]},
        {"detail": {"state": [{"anything-but": "initializing"}]}},
        {"detail": {"x-limit": [{"anything-but": 123}]}},
        {"detail": {"state": [{"anything-but": ["stopped", "overloaded"]}]}},
        {"detail": {"x-limit": [{"anything-but": [100, 200, 300]}]}},
        {
            "detail": {
                "c-count": [{"numeric": [">", 0, "<=", 5]}],
                "d-count": [{"numeric": ["<", 10]}],
                "x-limit": [{"numeric": ["=", 3.018e2]}],
            }
        },
        {"detail": {"$or": [{"state": ["stopped"]}, {"c-count": [5]}]}},
    ],
)
def test_event_rulers_own_examples_match_its_own_event(pattern):
    assert passes({"data": pattern}, EVENT)


def test_of_a_list_of_objects_one_and_the_same_must_match():
    # Event Ruler's README, "JSON Array Matching": otherwise it "would be a false match".
    data = {"employees": [{"name": "Anna", "role": "cook"}, {"name": "Ben", "role": "clerk"}]}

    assert passes({"data": {"employees": {"name": ["Ben"], "role": ["clerk"]}}}, data)
    assert not passes({"data": {"employees": {"name": ["Ben"], "role": ["cook"]}}}, data)


BINARY = b"\xff\x00 no JSON"


@pytest.mark.parametrize("data", [BINARY, b"", b"plain text", b'{"a": NaN}', b"[" * 100_000])
@pytest.mark.parametrize("rule", [["x"], [None], [{"exists": False}]])
def test_data_that_is_no_json_is_dropped_by_a_pattern_for_data_alone(data, rule):
    assert not passes({"data": {"a": rule}}, data)
    assert passes({"partitionKey": ["user-1"]}, data)
    either = RecordFilter(json.dumps([{"data": {"a": rule}}, {"partitionKey": ["user-1"]}]))
    assert either.passes(a_record(data))
    assert not either.passes(a_record(data, key="user-2"))


def test_a_record_passes_that_matches_one_of_the_patterns():
    found = RecordFilter('[{"data": {"a": [1]}}, {"data": {"b": [2]}}]')

    assert found.passes(a_record({"a": 1}))
    assert found.passes(a_record({"b": 2}))
    assert not found.passes(a_record({"a": 2, "b": 1}))
    assert passes({"data": {"a": [1]}, "partitionKey": [{"prefix": "user-"}]}, {"a": 1})
    assert not passes({"data": {"a": [1]}, "partitionKey": [{"prefix": "shop-"}]}, {"a": 1})


def test_without_filters_everything_passes_unread():
    assert RecordFilter("").passes(a_record(BINARY))


NAMES = st.sampled_from("abc")
TEXTS = st.sampled_from(["", "x", "X", "xy", "yx", "5"])
NUMBERS = st.integers(-3, 3)
# No booleans: for moto true is 1, and false is 0, because they are for Python.
SCALARS = st.none() | TEXTS | NUMBERS
LISTS = st.lists(SCALARS, min_size=1, max_size=3)
DATA = st.recursive(SCALARS | LISTS, lambda inner: st.dictionaries(NAMES, inner, max_size=3))
SIGNS = st.sampled_from(["<", "<=", "=", ">=", ">"])
RULES = (
    SCALARS
    | st.booleans().map(lambda found: {"exists": found})
    | TEXTS.map(lambda text: {"prefix": text})
    | TEXTS.map(lambda text: {"suffix": text})
    | TEXTS.map(lambda text: {"equals-ignore-case": text})
    | (st.lists(TEXTS, min_size=1) | st.lists(NUMBERS, min_size=1)).map(
        lambda excluded: {"anything-but": excluded}
    )
    | st.tuples(SIGNS, NUMBERS).map(lambda pair: {"numeric": list(pair)})
)


def patterns_of(inner):
    fields = st.dictionaries(NAMES, inner, min_size=1, max_size=3)
    return fields | st.lists(fields, min_size=2, max_size=3).map(lambda found: {"$or": found})


PATTERNS = patterns_of(
    st.recursive(st.lists(RULES, min_size=1, max_size=3), patterns_of, max_leaves=6)
)


@given(PATTERNS, st.dictionaries(NAMES, DATA, max_size=3))
def test_moto_decides_the_same(pattern, data):
    if not plain(data):
        return
    judge = EventPatternParser(json.dumps(pattern)).parse()
    wanted = EventPattern(None, judge).matches_event(data)
    assert passes({"data": pattern}, data) == wanted


def plain(data):
    """Tell whether data has no empty object, which moto takes for a leaf."""
    return all(value and plain(value) for value in data.values() if isinstance(value, dict))


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("[{", "filters: no JSON"),
        ("{}", "filters: {} found; allowed: a list of 1 to 10 patterns"),
        ("[]", "filters: [] found; allowed: a list"),
        ("[{}]", "filters[0]: {} found; allowed: an object with at least one field"),
        ('[{"kinesis": {}}]', 'filters[0].kinesis: {} found; allowed: "data" with an object'),
        ('[{"data": ["x"]}]', 'filters[0].data: ["x"] found; allowed: "data" with an object'),
        ('[{"partitionKey": "x"}]', 'filters[0].partitionKey: "x" found'),
        ('[{"data": {"a": "x"}}]', 'filters[0].data.a: "x" found; allowed: a list of at least one'),
        ('[{"data": {"a": []}}]', "filters[0].data.a: [] found"),
        ('[{"data": {"a": [[1]]}}]', "filters[0].data.a[0]: "),
        ('[{"data": {"a": [{"cidr": "10.0.0.0/8"}]}}]', "filters[0].data.a[0].cidr: "),
        ('[{"data": {"a": [{"wildcard": "*x"}]}}]', "with one of exists, prefix"),
        ('[{"data": {"a": [{"exists": "yes"}]}}]', '"yes" found; allowed: true or false'),
        ('[{"data": {"a": [{"prefix": 5}]}}]', "filters[0].data.a[0].prefix: "),
        ('[{"data": {"a": [{"anything-but": ["x", 1]}]}}]', "of strings or of numbers alone"),
        ('[{"data": {"a": [{"anything-but": {"prefix": "x"}}]}}]', "anything-but: "),
        ('[{"data": {"a": [{"numeric": [">"]}]}}]', "filters[0].data.a[0].numeric: "),
        ('[{"data": {"a": [{"numeric": [">", 1e99999999999999999999]}]}}]', "a[0].numeric: "),
        ('[{"data": {"a": [{"numeric": ["<", 5, ">", 0]}]}}]', "numeric: "),
        ('[{"data": {"a": [{"numeric": ["=", "5"]}]}}]', "numeric: "),
        ('[{"data": {"a": [{"prefix": "x", "suffix": "y"}]}}]', "filters[0].data.a[0]: "),
        ('[{"data": {"$or": [{"a": [1]}]}}]', "filters[0].data.$or: "),
        ('[{"$or": [{"data": {"a": [1]}}, {"key": ["x"]}]}]', "filters[0].$or[1].key: "),
        (json.dumps([{"data": {"a": [1]}}] * 11), "a list of 1 to 10 patterns"),
    ],
)
def test_a_wrong_filter_is_refused_by_its_field_with_what_is_allowed(text, told):
    with pytest.raises(ConfigurationError) as refused:
        RecordFilter(text)

    assert told in str(refused.value)
