"""What is done to a fleet: to the right process and shard, and noted; what cannot be, waits."""

import asyncio
from types import SimpleNamespace

import pytest
from botocore.exceptions import ClientError

from shardfleet.domain.stream.hash_ranges import HashKeyRange
from shardfleet.domain.stream.shards import Shard
from shardfleet_local.aws.launcher import WorkerProcess
from shardfleet_local.rig.incidents import (
    THROTTLED_MS,
    Incident,
    IncidentFailed,
    Troublemaker,
    short,
)
from tests.local.rig.builders import a_lease, shard_id


class StepClock:
    """Time passes by sleeping alone, so that threads may be used beside it."""

    def __init__(self):
        self.ms = 0.0

    def now_ms(self):
        return 1_000_000 + round(self.ms)

    def monotonic_ms(self):
        return round(self.ms)

    async def sleep_ms(self, duration_ms):
        self.ms += duration_ms
        await asyncio.sleep(0)


class Fleet:
    """As much of a `RunningFleet` as incidents touch."""

    stream_arn = "arn"
    is_pushed = False

    def __init__(self, shards=4):
        self.open = [
            Shard(shard_id=shard_id(n), hash_key_range=HashKeyRange(10 * n, 10 * n + 9))
            for n in range(shards)
        ]
        self.writers = {}  # shard id -> pid
        self.busy, self.managing = [], []
        self.killed, self.faults, self.calls = [], [], []
        self.refusals = 0
        self.finished = ()
        self.ledger = SimpleNamespace(
            shards_of=lambda pid: frozenset(s for s, p in self.writers.items() if p == pid)
        )
        self.aws = SimpleNamespace(client=lambda _: self)

    def workers(self):
        return [WorkerProcess(pid, "worker", "1", True, False) for pid in self.busy]

    def managers(self):
        return [WorkerProcess(pid, "manager", "1", True, False) for pid in self.managing]

    def shards(self):
        return self.open

    def leases(self):
        return [a_lease(n) for n in range(4) if n not in self.finished]

    def kill(self, pid):
        self.killed.append(pid)
        return pid in self.busy + self.managing

    def inject(self, fault):
        self.faults.append(fault)

    def split_shard(self, **request):
        if self.refusals:
            self.refusals -= 1
            raise ClientError({"Error": {"Code": "ResourceInUseException"}}, "SplitShard")
        self.calls.append(request)

    merge_shards = split_shard


def trouble(fleet, *kinds, clock=None, seed=1):
    maker = Troublemaker(fleet, clock=clock or StepClock(), seed=seed)
    scenario = tuple(Incident(at=place / 10, kind=kind) for place, kind in enumerate(kinds))
    asyncio.run(maker.run(scenario, duration_ms=10_000))
    return maker.happenings


def at_work():
    fleet = Fleet()
    fleet.busy = [11, 22, 33]
    fleet.writers = {shard_id(0): 11, shard_id(1): 11, shard_id(2): 22, shard_id(3): 44}
    return fleet


def test_a_killed_worker_was_at_work_and_its_shards_are_noted():
    fleet = at_work()

    log = trouble(fleet, "kill worker")

    (kill,) = log
    assert fleet.killed == [kill.pid]
    assert kill.pid in (11, 22)
    assert kill.shard_ids == tuple(sorted(fleet.ledger.shards_of(kill.pid)))


def test_shards_that_are_done_are_not_among_those_that_a_kill_hits():
    fleet = at_work()
    fleet.busy, fleet.finished = [11], (0,)

    assert trouble(fleet, "kill worker")[0].shard_ids == (shard_id(1),)


def test_kills_go_round_instead_of_hitting_one_worker_again():
    for seed in range(8):
        log = trouble(at_work(), "kill worker", "kill worker", seed=seed)

        assert {kill.pid for kill in log} == {11, 22}


def test_a_kill_waits_until_a_worker_has_handled_something():
    fleet, clock = at_work(), StepClock()
    writers, fleet.writers = fleet.writers, {}
    sleep = clock.sleep_ms

    async def sleep_and_begin(duration_ms):
        await sleep(duration_ms)
        if clock.ms > 3_000:
            fleet.writers = writers

    clock.sleep_ms = sleep_and_begin

    assert len(trouble(fleet, "kill worker", clock=clock)) == 1
    assert clock.ms > 3_000


def test_an_incident_that_stays_impossible_is_given_up_with_its_reason():
    with pytest.raises(IncidentFailed, match=r"kill manager: .* the manager is not running"):
        trouble(Fleet(), "kill manager")


def test_the_manager_is_killed_while_it_runs():
    fleet = Fleet()
    fleet.managing = [7]

    assert [each.pid for each in trouble(fleet, "kill manager")] == [7]
    assert fleet.killed == [7]


def test_a_split_halves_a_shard_and_a_merge_takes_neighbours():
    fleet = Fleet()

    log = trouble(fleet, "split", "merge")

    split, merge = fleet.calls
    parent = int(split["ShardToSplit"][-2:])
    assert split["NewStartingHashKey"] == str(10 * parent + 5)
    assert int(merge["AdjacentShardToMerge"][-2:]) == int(merge["ShardToMerge"][-2:]) + 1
    assert [each.kind for each in log] == ["split", "merge"]


def test_a_reshard_that_the_stream_refuses_for_now_is_tried_again():
    fleet = Fleet()
    fleet.refusals = 3

    assert len(trouble(fleet, "split")) == 1


def test_a_throttled_shard_is_neither_merged_nor_a_reason_to_kill():
    for seed in range(8):
        fleet = at_work()
        log = trouble(fleet, "throttle", "merge", "kill worker", seed=seed)

        fault, silence = fleet.faults
        assert fault["DurationMs"] == THROTTLED_MS
        assert (fault["Kind"], silence) == ("ThrottleReads", fault | {"Kind": "Silence"})
        throttle, _, kill = log
        assert throttle.shard_ids == (fault["ShardId"],)
        assert 0 <= throttle.until_ms - throttle.at_ms - THROTTLED_MS <= 1
        (merge,) = fleet.calls
        assert fault["ShardId"] not in (merge["ShardToMerge"], merge["AdjacentShardToMerge"])
        assert set(kill.shard_ids) != {fault["ShardId"]}


@pytest.mark.parametrize("is_pushed", [False, True])
def test_answers_that_are_wrong_are_of_the_way_in_which_records_are_read(is_pushed):
    fleet = Fleet()
    fleet.is_pushed = is_pushed
    for seed in range(30):
        trouble(fleet, "wrong answer", seed=seed)
    of_subscriptions = {"Reset", "TakeOver", "Silence"}
    kinds = {fault["Kind"] for fault in fleet.faults}
    assert kinds & of_subscriptions == (of_subscriptions if is_pushed else set())
    assert {"EmptyReads", "EndWithoutChildren"} <= kinds


def test_incidents_happen_at_their_time_and_are_told():
    fleet, clock, told = Fleet(), StepClock(), []
    maker = Troublemaker(fleet, clock=clock, seed=1, say=told.append)

    scenario = (Incident(at=0.2, kind="split"), Incident(at=0.7, kind="merge"))
    asyncio.run(maker.run(scenario, duration_ms=10_000))

    assert [each.at_ms - 1_000_000 for each in told] == [2_000, 7_000]
    assert [each.kind for each in told] == ["split", "merge"]
    assert maker.happenings == told


def test_a_shards_number_is_how_people_say_it():
    assert short("shardId-000000000012") == "shard 12"
    assert short("odd") == "odd"
