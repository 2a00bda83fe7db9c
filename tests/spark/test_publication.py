"""A query's positions as leases: order, ownership, races, failures; over a table in memory."""

import asyncio
import dataclasses
from threading import Event

import pytest
from msgspec.structs import replace

from shardfleet.adapters.system import SystemClock
from shardfleet.domain.leases.changes import evict, renew, take
from shardfleet.domain.leases.lease import Lease
from shardfleet.domain.stream.hash_ranges import HASH_KEY_MAX, HashKeyRange
from shardfleet.domain.stream.sequence import (
    AT_LATEST,
    AT_SHARD_END,
    AT_TRIM_HORIZON,
    ExtendedSequenceNumber,
    PointKind,
    Position,
)
from shardfleet.domain.stream.shards import Shard, ShardGraph
from shardfleet.errors import OutcomeUnknown, Throttled
from shardfleet_spark.offsets.lineage import CommittedStanding, Family, Listing
from shardfleet_spark.offsets.plan_token import Stand
from shardfleet_spark.publish.publication import owner_of
from shardfleet_spark.publish.publisher import TAKEN_AFTER_MS, LeaseTaken, Publication, Publisher
from shardfleet_spark.publish.publishing import Publishing
from shardfleet_spark.read.shard_pages import FetchPorts, ReadPolicy
from shardfleet_testkit.clock import VirtualClock, run_virtual
from shardfleet_testkit.memory import MemoryLeaseStore, SeededEntropy
from shardfleet_testkit.memory_stream import MemoryStream
from tests.spark.memory_seals import INCARNATION, stand
from tests.virtual import within

ME = owner_of("sid")
S0, S1, S2, S3 = (f"shardId-{number:012d}" for number in range(4))
HALF = HASH_KEY_MAX // 2
LISTED_MS = 1_000_000
GRAPH = ShardGraph(
    [
        Shard(shard_id=S0, hash_key_range=HashKeyRange(0, HASH_KEY_MAX)),
    ]
)
SPLIT = ShardGraph(
    [
        Shard(
            shard_id=S0,
            hash_key_range=HashKeyRange(0, HASH_KEY_MAX),
            ending_sequence_number="99",
        ),
        Shard(shard_id=S1, hash_key_range=HashKeyRange(0, HALF), parent_shard_id=S0),
        Shard(shard_id=S2, hash_key_range=HashKeyRange(HALF + 1, HASH_KEY_MAX), parent_shard_id=S0),
    ]
)


class Table(MemoryLeaseStore):
    """A lease table whose calls can be made to fail: `fault(operation)` raises what it likes."""

    def __init__(self, leases=()):
        super().__init__(leases)
        self.before = self.after = lambda _operation: None

    async def apply(self, change):
        self.before(change.operation)
        result = await super().apply(change)
        self.after(change.operation)
        return result


class Query:
    def __init__(self, leases=(), *, owner=ME):
        self.clock = VirtualClock()
        self.table = Table(leases)
        self.publisher = self.another(owner)

    def another(self, owner=ME):
        return Publisher(self.table, self.clock, Publication(application="app", owner=owner))

    @property
    def checkpoints(self):
        return {key: str(lease.checkpoint) for key, lease in sorted(self.table.leases.items())}

    def operations(self):
        return [(change.operation, change.lease_key) for change, _ in self.table.changes]


def in_query(scenario, *leases, owner=ME):
    async def main():
        return await scenario(Query(leases, owner=owner))

    return run_virtual(main())


def standing(*stands, waiting=None, graph=GRAPH):
    listing = None if graph is None else Listing(graph, LISTED_MS)
    family = Family({s.position.shard_id: s for s in stands}, waiting or {})
    return CommittedStanding("sid", family, listing)


def lease(key=S0, at="7", *, owner=None, **fields):
    return Lease(lease_key=key, checkpoint=ExtendedSequenceNumber(at), lease_owner=owner, **fields)


@within(in_query)
async def test_a_query_owns_the_leases_of_its_shards_before_it_reads_and_moves_them_as_it_commits(
    query, /
):
    await query.publisher.begin(standing(stand(S0)))
    made = query.table.leases[S0]
    assert made == replace(
        lease(owner=ME), checkpoint=AT_TRIM_HORIZON, hash_key_range=made.hash_key_range
    )
    assert made.hash_key_range == HashKeyRange(0, HASH_KEY_MAX)
    done = ExtendedSequenceNumber("5", 3)
    inside = Stand(Position(INCARNATION, S0, PointKind.SEQUENCE, done=done))
    await query.publisher.publish(standing(inside))
    await query.publisher.publish(standing(inside))
    assert query.table.leases[S0].checkpoint == done
    assert query.operations() == [("create", S0), ("checkpoint", S0), ("renew", S0)]
    assert query.table.leases[S0].lease_counter == 2


@within(in_query)
async def test_children_have_leases_before_their_parent_says_that_it_is_at_its_end(query, /):
    await query.publisher.begin(standing(stand(S0)))
    children = {S1: (S0,), S2: (S0,)}
    ended = standing(stand(S0, "END"), waiting=children, graph=SPLIT)
    await query.publisher.publish(ended)
    assert query.operations()[1:] == [
        *[("create", S1), ("create", S2)],
        *[("set_children", S0), ("renew", S1), ("renew", S2), ("checkpoint", S0)],
    ]
    assert query.table.leases[S0].child_shard_ids == (S1, S2)
    assert query.checkpoints == {S0: "SHARD_END", S1: "TRIM_HORIZON", S2: "TRIM_HORIZON"}
    assert query.table.leases[S1].parent_shard_ids == (S0,)
    # When both have begun, the parent's lease is of no use any more.
    await query.publisher.publish(
        standing(stand(S0, "END"), stand(S1, 101), stand(S2, 102), graph=SPLIT)
    )
    assert query.checkpoints == {S1: "101", S2: "102"}


@within(in_query)
async def test_a_parent_does_not_end_while_its_children_are_unknown_or_could_not_be_leased(
    query, /
):
    await query.publisher.begin(standing(stand(S0)))
    await query.publisher.publish(standing(stand(S0, "END")))
    assert query.checkpoints == {S0: "TRIM_HORIZON"}

    def refuse(operation):
        if operation == "create":
            raise Throttled("slow down")

    query.table.before = refuse
    ended = standing(stand(S0, "END"), stand(S1), stand(S2), graph=SPLIT)
    await query.publisher.publish(ended)
    assert query.checkpoints == {S0: "TRIM_HORIZON"}
    assert query.publisher.trouble == "slow down"
    query.table.before = lambda _operation: None
    await query.publisher.publish(ended)
    assert query.checkpoints[S0] == "SHARD_END"
    assert query.publisher.trouble == ""


@within(in_query)
async def test_a_child_of_a_merge_is_leased_with_both_parents_when_the_first_one_ends(query, /):
    halves = ShardGraph(
        [
            Shard(shard_id=S1, hash_key_range=HashKeyRange(0, HALF)),
            Shard(shard_id=S2, hash_key_range=HashKeyRange(HALF + 1, HASH_KEY_MAX)),
        ]
    )
    await query.publisher.begin(standing(stand(S1), stand(S2), graph=halves))
    merge = {S3: (S1, S2)}
    await query.publisher.publish(
        standing(stand(S1, "END"), stand(S2, 9), waiting=merge, graph=ShardGraph([]))
    )
    assert query.checkpoints == {S1: "SHARD_END", S2: "9", S3: "TRIM_HORIZON"}
    assert query.table.leases[S3].parent_shard_ids == (S1, S2)


@within(in_query, lease(at="99"))
async def test_positions_never_go_backwards_and_an_older_one_renews_only(query, /):
    await query.publisher.begin(standing(stand(S0, 50)))
    await query.publisher.publish(standing(stand(S0, 50)))
    await query.publisher.publish(standing(stand(S0, 101)))
    assert query.checkpoints == {S0: "101"}
    assert query.table.leases[S0].lease_counter == 3
    # Text would say that 101 comes before 99.


@within(in_query, replace(lease(), checkpoint=AT_LATEST))
async def test_a_word_does_not_replace_what_a_lease_says_already(query, /):
    await query.publisher.begin(standing(stand(S0)))
    await query.publisher.publish(standing(stand(S0)))
    assert query.table.leases[S0].checkpoint == AT_LATEST


@within(in_query, lease(owner="worker-7"))
async def test_a_lease_of_somebody_who_lives_stops_the_query(query, /):
    async def renewing():
        while True:
            await query.clock.sleep_ms(3_000)
            await query.table.apply(renew(query.table.leases[S0]))

    other = asyncio.ensure_future(renewing())
    with pytest.raises(LeaseTaken, match=rf"{S0} of application app: worker-7 renews it"):
        await query.publisher.begin(standing(stand(S0)))
    other.cancel()
    assert query.table.leases[S0].lease_owner == "worker-7"


@within(in_query, lease(owner="worker-7"))
async def test_a_lease_of_somebody_who_is_gone_is_taken_after_twice_the_failover_time(query, /):
    await query.publisher.begin(standing(stand(S0)))
    assert query.clock.monotonic_ms() >= TAKEN_AFTER_MS
    assert query.table.leases[S0].lease_owner == ME
    assert query.operations() == [("take", S0)]


@within(in_query)
async def test_leases_of_a_former_run_are_taken_at_once_and_that_run_is_stopped_if_it_lives(
    query, /
):
    old, new = query.publisher, query.another()
    await old.begin(standing(stand(S0)))
    began_ms = query.clock.monotonic_ms()
    await new.begin(standing(stand(S0)))
    assert query.clock.monotonic_ms() == began_ms
    with pytest.raises(LeaseTaken, match="another run of this very query"):
        await old.publish(standing(stand(S0, 5)))
    await new.publish(standing(stand(S0, 6)))
    assert query.checkpoints == {S0: "6"}


@pytest.mark.parametrize("how", ["stolen", "evicted"])
@within(in_query)
async def test_a_lease_that_is_lost_stops_the_query_with_the_name_of_who_has_it(query, /, how):
    await query.publisher.begin(standing(stand(S0)))
    mine = query.table.leases[S0]
    await query.table.apply(take(mine, "worker-7") if how == "stolen" else evict(mine))
    with pytest.raises(LeaseTaken, match="worker-7" if how == "stolen" else "nobody"):
        await query.publisher.publish(standing(stand(S0, 5)))


@pytest.mark.parametrize("applied", [True, False])
@within(in_query)
async def test_a_write_whose_answer_is_lost_is_looked_up_before_the_next_one(query, /, applied):
    await query.publisher.begin(standing(stand(S0)))

    def lose(_operation):
        query.table.before = query.table.after = lambda _operation: None
        raise OutcomeUnknown("no answer")

    if applied:
        query.table.after = lose
    else:
        query.table.before = lose
    await query.publisher.publish(standing(stand(S0, 5)))
    assert query.publisher.trouble == "no answer"
    await query.publisher.publish(standing(stand(S0, 8)))
    assert query.checkpoints == {S0: "8"}
    assert query.table.leases[S0].lease_counter == (2 if applied else 1)


@within(in_query)
async def test_a_lease_that_was_deleted_by_hand_is_made_again_where_the_query_stands(query, /):
    await query.publisher.begin(standing(stand(S0)))
    query.table.leases.clear()
    await query.publisher.publish(standing(stand(S0, 5)))
    await query.publisher.publish(standing(stand(S0, 6)))
    assert query.checkpoints == {S0: "6"}


@within(in_query)
async def test_a_shard_of_which_no_list_tells_the_parents_is_leased_when_one_does(query, /):
    await query.publisher.begin(standing(stand(S1), graph=None))
    assert query.checkpoints == {}
    await query.publisher.publish(standing(stand(S1, 5), graph=SPLIT))
    assert query.table.leases[S1].parent_shard_ids == (S0,)


@within(in_query)
async def test_a_child_that_only_its_parent_named_gets_its_hash_range_from_the_next_list(query, /):
    waiting = {S1: (S0,), S2: (S0,)}
    await query.publisher.begin(standing(stand(S0, "END"), waiting=waiting))
    assert query.table.leases[S1].hash_key_range is None
    await query.publisher.publish(standing(stand(S1, 5), stand(S2), graph=SPLIT))
    assert query.table.leases[S1].hash_key_range == HashKeyRange(0, HALF)
    assert query.checkpoints[S1] == "5"


@within(in_query)
async def test_leases_that_are_given_up_keep_their_checkpoints_and_have_no_owner(query, /):
    await query.publisher.begin(standing(stand(S0)))
    await query.publisher.publish(standing(stand(S0, 5)))
    await query.publisher.release()
    assert query.table.leases[S0].lease_owner is None
    assert query.checkpoints == {S0: "5"}


@within(in_query, lease())
async def test_a_shard_that_the_query_never_had_to_read_gets_no_lease_and_ends_none(query, /):
    state = standing(stand(S0, "END"), stand(S1), stand(S2), graph=SPLIT)
    await query.publisher.begin(state)
    await query.publisher.publish(state)
    # S0 is a fleet's, with a backlog that this query was told to leave out.
    assert query.table.leases[S0] == lease(owner=None)


@within(in_query)
async def test_a_shard_whose_end_was_committed_when_its_run_died_is_ended_by_the_next_run(query, /):
    """Spark's commit of a last batch is heard of at the next start only (hazard H5)."""
    await query.publisher.begin(standing(stand(S0, 5)))
    await query.publisher.release()
    ended = dataclasses.replace(stand(S0, "END"), arrived_ms=LISTED_MS)
    state = standing(ended, stand(S1), stand(S2), graph=SPLIT)
    after = query.another()
    await after.begin(state)
    await after.publish(state)
    assert query.checkpoints[S0] == "SHARD_END"
    assert query.table.leases[S0].child_shard_ids == (S1, S2)


@within(in_query)
async def test_finished_leases_of_others_are_left_alone(query, /):
    ended = replace(lease(owner="worker-7"), checkpoint=AT_SHARD_END)
    query.table.leases[S0] = ended
    state = standing(stand(S0, "END"), stand(S1, 5), stand(S2, 6), graph=SPLIT)
    await query.publisher.begin(state)
    await query.publisher.publish(state)
    assert query.table.leases[S0] == ended


@within(in_query)
async def test_a_shard_that_was_born_and_ended_between_two_rounds_has_a_lease_that_says_so(
    query, /
):
    await query.publisher.begin(standing(stand(S0)))
    again = ShardGraph(
        [
            *SPLIT.shards.values(),
            Shard(
                shard_id=S3,
                hash_key_range=HashKeyRange(0, HASH_KEY_MAX),
                parent_shard_id=S1,
                adjacent_parent_shard_id=S2,
            ),
        ]
    )
    ended = [stand(S0, "END"), stand(S1, "END"), stand(S2, "END"), stand(S3, 200)]
    await query.publisher.publish(standing(*ended, graph=again))
    await query.publisher.publish(standing(*ended, graph=again))
    assert query.checkpoints == {S3: "200"}  # The others came, ended, and were cleaned up.
    created = [key for operation, key in query.operations() if operation == "create"]
    assert created == [S0, S3, S2, S1]  # None ends before its children are there.


@within(in_query)
async def test_a_former_run_that_ends_late_takes_nothing_away_from_the_next_one(query, /):
    old, new = query.publisher, query.another()
    await old.begin(standing(stand(S0)))
    await new.begin(standing(stand(S0)))
    await old.release()
    assert query.table.leases[S0].lease_owner == ME
    await new.publish(standing(stand(S0, 6)))
    assert query.checkpoints == {S0: "6"}


@within(in_query)
async def test_a_former_run_that_gives_up_while_the_next_one_begins_is_no_obstacle(query, /):
    old, new = query.publisher, query.another()
    await old.begin(standing(stand(S0)))

    def give_up(operation):
        query.table.before = lambda _operation: None
        assert operation == "take"
        mine = query.table.leases[S0]
        query.table.leases[S0] = replace(
            mine, lease_owner=None, lease_counter=mine.lease_counter + 1
        )

    query.table.before = give_up
    await new.begin(standing(stand(S0)))
    assert query.table.leases[S0].lease_owner == ME
    assert new.leases[S0].lease_counter == 2


@pytest.mark.parametrize(
    ("error", "applied"), [(Throttled, 0), (OutcomeUnknown, 0), (OutcomeUnknown, 1)]
)
@within(in_query)
async def test_giving_up_is_repeated_until_it_has_worked(query, /, error, applied):
    await query.publisher.begin(standing(stand(S0), stand(S1), graph=SPLIT))
    failures = [error("busy")] * 3

    def fail(_operation):
        if failures:
            raise failures.pop()

    setattr(query.table, "after" if applied else "before", fail)
    await query.publisher.release()
    assert [each.lease_owner for each in query.table.leases.values()] == [None, None]


def test_an_error_that_nobody_foresaw_stops_the_query_and_not_its_thread_alone():
    table, clock = Table(), SystemClock()
    ports = FetchPorts(
        stream=(stream := MemoryStream(clock, shards=1)),
        source=stream,
        clock=clock,
        entropy=SeededEntropy(1),
        policy=ReadPolicy(),
    )
    publisher = Publisher(table, clock, Publication(application="app", owner=ME))
    publishing = Publishing(publisher, ports, interval_ms=1)
    publishing.committed(standing(stand(S0)))

    broken = Event()

    def break_(operation):
        broken.set()
        raise ZeroDivisionError(operation)

    table.before = break_
    assert broken.wait(60)
    publishing.finish()

    with pytest.raises(ZeroDivisionError, match="renew"):
        publishing.committed(standing(stand(S0)))
