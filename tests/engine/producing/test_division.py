"""Several aggregates of few keys in one request: each key in one of them, whatever is refused."""

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shardfleet.kpl.packing import OutgoingRecord
from shardfleet.producer.calls import Part, PutCall, checked
from shardfleet.producer.division import divided, is_recurring
from shardfleet.producer.lanes import Lanes
from shardfleet.producer.requests import next_request
from shardfleet.producer.settings import ProducerSettings
from tests.engine.producing.test_requests import ONE

PACE = {"shard_records_per_s": 1 << 30, "shard_bytes_per_s": 1 << 30}


def lanes_with_calls(calls, **settings):
    """Return the lanes of a stream of one shard with these calls' records, and their settings."""
    given_settings = ProducerSettings(**{**PACE, **settings})
    lanes = Lanes(given_settings)
    lanes.learn([ONE], now_ms=0)
    for aggregate, records in calls:
        columns, _ = checked(records, record_bytes=given_settings.record_bytes)
        call = PutCall(
            aggregate=aggregate, until_ms=1_000, left=len(records), on_over=lambda _: None
        )
        lanes.accept(Part(call, columns), due_ms=0, now_ms=0)
    return lanes, given_settings


def records_of(keys, size=1_000):
    return [OutgoingRecord(key, b"%06d" % n + bytes(size)) for n, key in enumerate(keys)]


def entries_of(request):
    """Return of each entry its keys, and its records' numbers."""
    found = []
    for portion in request.portions:
        for entry in portion.entries:
            columns = [part.columns for part in entry.parts]
            found.append(
                [(k, d[:6]) for each in columns for k, d in zip(each.keys, each.data, strict=True)]
            )
    return found


def keys_by_entry(request):
    return [{key for key, _ in entry} for entry in entries_of(request)]


def test_a_request_has_several_full_aggregates_of_few_keys():
    chance = random.Random(1)
    keys = [f"k{chance.randrange(50)}" for _ in range(1_000)]
    lanes, settings = lanes_with_calls([(True, records_of(keys))])
    request = next_request(lanes, settings, now_ms=0)
    by_entry = keys_by_entry(request)
    assert len(by_entry) >= 8
    assert sum(map(len, by_entry)) == len(set().union(*by_entry)) == 50
    sizes = [entry.size for entry in request.portions[0].entries]
    assert sum(sizes) / len(sizes) > 0.8 * settings.aggregate_bytes


@pytest.mark.parametrize(
    ("settings", "most"),
    [({"request_bytes": 200_000}, 3), ({"shard_records_per_s": 8}, 4)],
)
def test_no_more_aggregates_than_the_request_and_the_pace_have_room_for(settings, most):
    lanes, given_settings = lanes_with_calls(
        [(True, records_of([f"k{n % 20}" for n in range(400)]))], **settings
    )
    request = next_request(lanes, given_settings, now_ms=0)
    assert len(request.puts) == most
    left = [len(part) for part in request.portions[0].lane.queue]
    assert sum(left) + sum(map(len, request.portions[0].parts)) == 400
    assert request.portions[0].lane.waiting == sum(left)


def test_of_a_hot_key_an_aggregate_goes_and_the_rest_waits_in_its_order():
    keys = ["hot" if n % 10 else f"k{n % 70}" for n in range(2_000)]
    lanes, settings = lanes_with_calls([(True, records_of(keys))])
    request = next_request(lanes, settings, now_ms=0)
    hot = [numbers for numbers in entries_of(request) if numbers[0][0] == "hot"]
    assert len(hot) == 1
    assert 40 < len(hot[0]) < 52
    lane = request.portions[0].lane
    waiting = [
        (key, data[:6])
        for part in lane.queue
        for key, data in zip(part.columns.keys, part.columns.data, strict=True)
    ]
    expected = [b"%06d" % n for n, key in enumerate(keys) if key == "hot"]
    in_order = [data for key, data in [*hot[0], *waiting] if key == "hot"]
    assert in_order == expected


def test_a_group_that_has_no_room_waits_in_its_order():
    keys = [f"k{n % 5}" for n in range(400)]
    records = records_of(keys)
    calls = [(True, records[n : n + 10]) for n in range(0, 400, 10)]
    lanes, settings = lanes_with_calls(calls, request_bytes=110_000)
    request = next_request(lanes, settings, now_ms=0)
    assert len(request.puts) == 2
    waiting = [each for part in request.portions[0].lane.queue for each in part.columns.records()]
    for key in set(keys):
        data = [record.data for record in waiting if record.partition_key == key]
        assert data == sorted(data)


def test_small_records_are_not_divided():
    """To divide them would cost more than the requests that it saves."""
    keys = [f"k{n % 50}" for n in range(4_000)]
    lanes, settings = lanes_with_calls([(True, records_of(keys, size=80))])
    assert len(next_request(lanes, settings, now_ms=0).puts) == 1


def test_keys_recur_where_more_than_a_quarter_of_the_records_have_one_again():
    def recurring(keys):
        columns, _ = checked(records_of(keys, size=1), record_bytes=100)
        return is_recurring([Part(None, columns)])

    assert recurring("aabca")
    assert not recurring("abca")
    assert not recurring("abcd")


@given(
    st.lists(st.lists(st.sampled_from("abcdef"), min_size=1, max_size=9), min_size=1, max_size=9),
    st.integers(1, 9),
)
def test_groups_have_no_key_in_common_and_every_record_in_its_order(calls, records):
    every = records_of([key for keys in calls for key in keys], size=1)
    parts, rest = [], iter(every)
    for keys in calls:
        columns, _ = checked([next(rest) for _ in keys], record_bytes=100)
        parts.append(Part(None, columns))
    groups = [
        [record for part in group for record in part.columns.records()]
        for group in divided(parts, records=records)
    ]
    keys = [{record.partition_key for record in group} for group in groups]
    assert sum(map(len, keys)) == len(set().union(*keys))
    assert all(
        len(group) <= records or len(its) == 1 for group, its in zip(groups, keys, strict=True)
    )
    assert all(group == sorted(group, key=lambda record: record.data) for group in groups)
    assert sorted(record.data for group in groups for record in group) == [
        record.data for record in every
    ]


CALLS = st.lists(
    st.tuples(
        st.sampled_from([True, True, True, False]),
        st.lists(
            st.tuples(st.sampled_from("aaaabcdefgh"), st.integers(0, 60)), min_size=1, max_size=40
        ),
    ),
    min_size=1,
    max_size=6,
)


@given(CALLS, st.sampled_from([200, 400, 1_000]), st.randoms(use_true_random=False))
def test_whatever_entries_are_refused_every_key_keeps_its_order(calls, aggregate_bytes, chance):
    """Refused entries come back before what follows; of a key, only one entry is on its way."""
    number, made = 0, []
    for aggregate, given_records in calls:
        records = []
        for key, size in given_records:
            records.append(OutgoingRecord(key, b"%06d" % number + bytes(size)))
            number += 1
        made.append((aggregate, records))
    lanes, settings = lanes_with_calls(made, aggregate_bytes=aggregate_bytes, request_bytes=3_000)
    accepted, requests = [], 0
    while (request := next_request(lanes, settings, now_ms=0)) is not None:
        requests += 1
        by_entry = keys_by_entry(request)
        assert sum(map(len, by_entry)) == len(set().union(*by_entry))
        (portion,) = request.portions
        refused = []
        for entry, numbers in zip(portion.entries, entries_of(request), strict=True):
            if requests < 20 and chance.random() < 0.4:
                refused += entry.parts
            else:
                accepted += numbers
        lanes.arrive(portion.lane, refused, now_ms=0)
    assert len(accepted) == number
    for key in "abcdefgh":
        numbers = [data for its, data in accepted if its == key]
        assert numbers == sorted(numbers)
    (flow,) = lanes.flows()
    assert (flow.waiting, flow.waiting_bytes) == (0, 0)
