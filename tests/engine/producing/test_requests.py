"""What a lane may send, and what goes into a request: limits that hold for any queue."""

import asyncio

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shardfleet.domain.stream.hash_ranges import WHOLE_HASH_SPACE
from shardfleet.domain.stream.shards import Shard
from shardfleet.kpl.deaggregate import ExpansionLimits, deaggregate
from shardfleet.kpl.packing import OutgoingRecord
from shardfleet.producer.calls import Part, PutCall, checked
from shardfleet.producer.lanes import Lanes
from shardfleet.producer.requests import next_request
from shardfleet.producer.settings import ENTRIES_MOST, ProducerSettings
from tests.engine.producing.memory_stream import MemoryStream
from tests.engine.producing.test_puts import producer_of
from tests.virtual import virtual

ONE = Shard(shard_id="one", hash_key_range=WHOLE_HASH_SPACE)


def lanes_with(records, *, aggregate=False, due_ms=0, **settings):
    """Return the lanes of a stream of one shard in which these wait, and their settings."""
    given = ProducerSettings(**settings)
    lanes = Lanes(given)
    lanes.learn([ONE], now_ms=0)
    columns, _ = checked(records, record_bytes=given.record_bytes)
    call = PutCall(aggregate=aggregate, until_ms=1_000, left=len(records), on_over=lambda _: None)
    lanes.accept(Part(call, columns), due_ms=due_ms, now_ms=0)
    return lanes, given


def keys_of(request):
    return [put.partition_key for put in request.puts]


def test_a_lane_that_is_in_debt_may_send_one_entry_and_no_more():
    lanes, _ = lanes_with([OutgoingRecord("a", b"x")], shard_records_per_s=10)
    (lane,) = lanes.ready(0)
    fresh = lanes.room(lane, 0)
    assert fresh[0] > 1
    lanes.depart(lane, entries=1_000, size=100_000_000, now_ms=0)
    assert lanes.room(lane, 0) == (1, 1)
    # A second pays for ten records; three of a thousand are not enough.
    assert lanes.room(lane, 3_000) == (1, 1)
    assert lanes.room(lane, 10_000_000) == fresh


@pytest.mark.parametrize(
    ("passed_over", "is_last_in"), [(4 * ENTRIES_MOST - 1, True), (5 * ENTRIES_MOST, False)]
)
def test_a_hot_key_does_not_have_a_request_look_at_all_that_waits(passed_over, is_last_in):
    """Four requests' worth of records is passed over, and then the request is full."""
    hot = [OutgoingRecord("hot", b"x")] * (1 + passed_over)
    lanes, settings = lanes_with([*hot, OutgoingRecord("cold", b"x")], shard_records_per_s=100_000)
    request = next_request(lanes, settings, now_ms=0)
    assert keys_of(request) == ["hot", "cold"] if is_last_in else ["hot"]
    (lane,) = (portion.lane for portion in request.portions)
    assert lane.waiting == passed_over + (not is_last_in)


def test_what_is_to_go_as_it_is_goes_into_no_aggregate_before_it():
    lanes, settings = lanes_with(
        [OutgoingRecord(key, b"1") for key in "ab"], aggregate=True, shard_records_per_s=1_000
    )
    plain, _ = checked([OutgoingRecord("c", b"plain")], record_bytes=settings.record_bytes)
    call = PutCall(aggregate=False, until_ms=1_000, left=1, on_over=lambda _: None)
    lanes.accept(Part(call, plain), due_ms=0, now_ms=0)
    sent = [put.data for put in next_request(lanes, settings, now_ms=0).puts]
    assert sent[1:] == [b"plain"]


def test_what_is_passed_over_stays_in_front_in_its_order():
    records = [OutgoingRecord(k, str(n).encode()) for n, k in enumerate("aabacbad")]
    lanes, settings = lanes_with(records)
    sent = []
    for _ in range(9):
        request = next_request(lanes, settings, now_ms=0)
        if request is None:
            break
        sent.append([put.data for put in request.puts])
        lanes.arrive(request.portions[0].lane, [], now_ms=0)
    assert sent == [[b"0", b"2", b"4", b"7"], [b"1", b"5"], [b"3"], [b"6"]]
    assert not lanes.anything_waits


RECORDS = st.lists(
    st.tuples(st.sampled_from("abcdefgh"), st.integers(0, 120)), min_size=1, max_size=60
)


@given(RECORDS, st.booleans(), st.sampled_from([300, 600, 5_000]), st.sampled_from([64, 200, 290]))
def test_whatever_waits_leaves_once_in_its_order_in_requests_within_their_limits(
    given_records, aggregate, request_bytes, aggregate_bytes
):
    records = [
        OutgoingRecord(key, f"{number:03d}".encode() + b"x" * size)
        for number, (key, size) in enumerate(given_records)
    ]
    lanes, settings = lanes_with(
        records,
        aggregate=aggregate,
        request_bytes=request_bytes,
        aggregate_bytes=aggregate_bytes,
        aggregate_records=7,
        shard_records_per_s=100_000,
    )
    read = []
    while (request := next_request(lanes, settings, now_ms=0)) is not None:
        (portion,) = request.portions
        sizes = [len(put.data) + len(put.partition_key) for put in request.puts]
        assert [entry.size for entry in portion.entries] == sizes
        assert sum(sizes) <= request_bytes or len(sizes) == 1
        in_entries = []
        for entry, put in zip(portion.entries, request.puts, strict=True):
            found = deaggregate(
                put.data,
                partition_key=put.partition_key,
                limits=ExpansionLimits(),
                hash_range=None,
                policy="deliver",
            ).records
            assert entry.aggregated == (len(found) > 1)
            assert len(put.data) <= aggregate_bytes or not entry.aggregated
            assert len(found) <= 7
            in_entries.append({each.partition_key for each in found})
            read += [(each.partition_key, each.data) for each in found]
            parts = [part.columns.records() for part in entry.parts]
            assert [each.data for part in parts for each in part] == [each.data for each in found]
        # The service refuses entries one by one: of a key only one may be on its way.
        assert sum(map(len, in_entries)) == len(set().union(*in_entries))
        lane = portion.lane
        assert lane.busy
        assert lanes.ready(0) == []
        lanes.arrive(lane, [], now_ms=0)
    assert sorted(data for _, data in read) == [record.data for record in records]
    for key in "abcdefgh":
        numbers = [data for its, data in read if its == key]
        assert numbers == sorted(numbers)
    (flow,) = lanes.flows()
    assert (flow.waiting, flow.waiting_bytes) == (0, 0)


@pytest.mark.parametrize("letter", ["k", "\N{LATIN SMALL LETTER E WITH ACUTE}"])
@pytest.mark.parametrize("left", [0, 1, 35, 36, 37])
def test_a_key_that_leaves_no_room_for_an_aggregate_beside_it_goes_alone(letter, left):
    """
    What Kinesis counts of an aggregate is its data and its first record's key.

    The least data has 36 bytes: magic, digest, and a message of 16.
    """
    key = letter * 120
    record_bytes = len(key.encode()) + left
    records = [OutgoingRecord(key, b"x" * min(left, 1)) for _ in range(3)]
    lanes, settings = lanes_with(
        records, aggregate=True, record_bytes=record_bytes, aggregate_bytes=record_bytes
    )
    for record in records:
        request = next_request(lanes, settings, now_ms=0)
        assert request.puts == [record]
        lanes.arrive(request.portions[0].lane, [], now_ms=0)
    assert not lanes.anything_waits


def test_a_lane_is_ready_when_both_its_paces_allow_it_and_nothing_goes_before():
    records = [OutgoingRecord("a", b"x" * 999)] * 50
    for settings, wait_ms in (
        # 100 records or 100,000 bytes a second, a tenth of a second's worth at a time.
        ({"shard_records_per_s": 100}, 5_100),
        ({"shard_bytes_per_s": 100_000}, 5_100),
    ):
        lanes, _ = lanes_with(records, **settings)
        (lane,) = lanes.ready(0)
        lanes.depart(lane, entries=550, size=550_000, now_ms=0)
        assert lanes.next_at_ms(0) == float("inf")  # One request of a lane is on its way.
        lanes.arrive(lane, [], now_ms=0)
        assert lanes.next_at_ms(0) == wait_ms
        assert lanes.ready(wait_ms - 1) == []
        assert lanes.ready(wait_ms) == [lane]


@pytest.mark.parametrize(("size", "ready_ms"), [(99, 500), (100, 0)])
def test_what_a_shard_takes_in_a_tenth_of_a_second_lingers_no_longer(size, ready_ms):
    records = [OutgoingRecord("a", b"x" * (size - 1))]
    lanes, _ = lanes_with(records, due_ms=500, shard_bytes_per_s=1_000)
    assert lanes.next_at_ms(0) == ready_ms


def test_after_a_split_nothing_passes_what_the_old_shard_may_still_refuse():
    lanes, _ = lanes_with([OutgoingRecord(key, b"x") for key in "abcdefgh"])
    (old,) = lanes.ready(0)
    lanes.depart(old, entries=0, size=0, now_ms=0)
    low, high = WHOLE_HASH_SPACE.halves
    lanes.learn(
        [Shard(shard_id=n, hash_key_range=r) for n, r in (("l", low), ("h", high))], now_ms=0
    )
    assert lanes.anything_waits
    assert lanes.ready(0) == []
    assert lanes.next_at_ms(0) == float("inf")
    lanes.arrive(old, [], now_ms=0)
    assert {lane.shard_id for lane in lanes.ready(0)} == {"l", "h"}


def test_a_listing_that_says_the_same_leaves_a_lane_as_it_is():
    lanes, _ = lanes_with([OutgoingRecord("a", b"x")])
    (lane,) = lanes.ready(0)
    lanes.learn([ONE], now_ms=0)
    assert lanes.ready(0) == [lane]


def test_what_comes_into_an_emptied_lane_lingers_as_in_a_new_one():
    lanes, settings = lanes_with([OutgoingRecord("a", b"x")])
    (portion,) = next_request(lanes, settings, now_ms=0).portions
    (part,) = portion.parts
    lanes.arrive(portion.lane, [], now_ms=0)
    assert (lanes.ready(0), lanes.next_at_ms(0)) == ([], float("inf"))
    lanes.accept(part, due_ms=500, now_ms=0)
    assert lanes.next_at_ms(0) == 500
    lanes.hurry(70)
    assert lanes.next_at_ms(70) == 70


@virtual
async def test_flushes_that_are_over_are_forgotten():
    """A producer that is flushed for a week keeps nothing of it."""
    producer = producer_of(MemoryStream(1))
    for _ in range(20):
        await producer.put(OutgoingRecord("a", b"x"))
        first = asyncio.create_task(producer.flush())
        await asyncio.gather(first, producer.flush())
        assert producer.buffered_bytes == 0
    futures = [each for each in vars(producer).values() if isinstance(each, list)]
    assert futures
    assert not any(futures)
