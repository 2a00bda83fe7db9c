"""Workers and manager are killed at random; nothing is lost, nothing is owned twice."""

import os
import random
import signal
import time

import pytest

from tests.end_to_end.cloud import deployed, wait_until
from tests.end_to_end.watching import (
    Feed,
    LeaseWatch,
    handled,
    out_of_order,
    read_calls,
    returned,
)

pytestmark = pytest.mark.processes

KILLS = 20
PAUSE_S = (0.3, 2.0)
# Short turns, so that kills also meet turns that end, and executions that continue as new.
TURNS = {"max_turn_ms": 15_000, "handler_timeout_ms": 5_000}
EXECUTIONS = {"timeout_s": 60, "max_loops": 6}


@pytest.fixture
def clicks(tmp_path):
    with deployed(
        tmp_path,
        handler="ledger",
        function="ledger:handler",
        environment={"LEDGER": str(tmp_path / "ledger.jsonl")},
        config={**TURNS, "leases_per_worker": 2},
        worker=EXECUTIONS,
        shards=4,
    ) as fleet:
        yield fleet


def kill_one(fleet, chance):
    """Kill a busy process of the workers' or the manager's function; return which."""
    names = (fleet.outputs["WorkerFunction"], fleet.outputs["ManagerFunction"])
    busy = [each for each in fleet.aws.worker_processes() if each.busy]
    candidates = [each for each in busy if each.function_name in names]
    if not candidates:
        return None
    victim = chance.choice(candidates)
    os.kill(victim.pid, signal.SIGKILL)
    return victim


def reshard(fleet):
    """Split the first open shard and merge the two last ones."""
    kinesis, stream = fleet.client("kinesis"), fleet.outputs["StreamName"]
    shards = kinesis.list_shards(StreamName=stream)["Shards"]
    first, *_, third, fourth = sorted(
        shards, key=lambda shard: int(shard["HashKeyRange"]["StartingHashKey"])
    )
    ends = [int(first["HashKeyRange"][f"{end}HashKey"]) for end in ("Starting", "Ending")]
    kinesis.split_shard(
        StreamName=stream, ShardToSplit=first["ShardId"], NewStartingHashKey=str(sum(ends) // 2)
    )
    kinesis.get_waiter("stream_exists").wait(StreamName=stream, WaiterConfig={"Delay": 1})
    kinesis.merge_shards(
        StreamName=stream,
        ShardToMerge=third["ShardId"],
        AdjacentShardToMerge=fourth["ShardId"],
    )
    return kinesis.list_shards(StreamName=stream)["Shards"]


def parents_of(shards):
    return {
        shard["ShardId"]: {
            shard[name] for name in ("ParentShardId", "AdjacentParentShardId") if name in shard
        }
        for shard in shards
    }


def first_and_last_new(calls):
    """Return, per shard, when its first and its last record was handled for the first time."""
    times, seen = {}, set()
    for call in calls:
        if not seen.issuperset(call.records):
            first, _ = times.get(call.shard, (call.at, None))
            times[call.shard] = (first, call.at)
        seen.update(call.records)
    return times


def test_twenty_random_kills_lose_nothing_and_no_lease_has_two_owners(clicks, tmp_path, seed):
    chance = random.Random(seed)
    ledger = tmp_path / "ledger.jsonl"
    killed = []
    with LeaseWatch(clicks) as watch:
        with Feed(clicks) as feed:
            wait_until(lambda: read_calls(ledger), what="a first call", within_s=90, fleet=clicks)
            while len(killed) < KILLS:
                time.sleep(chance.uniform(*PAUSE_S))
                if victim := kill_one(clicks, chance):
                    killed.append(victim.function_name)
                    if len(killed) == KILLS // 2:
                        shards = reshard(clicks)
        wait_until(
            lambda: handled(read_calls(ledger)) >= feed.expected,
            what="every record handled",
            within_s=180,
            fleet=clicks,
        )

    calls = read_calls(ledger)
    times = first_and_last_new(calls)
    assert killed.count(clicks.outputs["ManagerFunction"]) > 0
    assert handled(calls) == feed.expected
    assert out_of_order(calls) == []
    assert [
        (parent, child)
        for child, parents in parents_of(shards).items()
        for parent in parents & times.keys()
        if child in times and times[child][0] < times[parent][1]
    ] == []
    assert watch.problems() == []
    assert returned(calls, watch.moves()) == []
