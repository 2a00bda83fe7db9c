"""
A fleet on more shards than a page of ListShards has, in real processes.

`make whole` runs it on 1,001; else a page of the embedded AWS has fewer than AWS's own.
"""

import json
import os

import pytest

from shardfleet.adapters.kinesis.shards import list_shards
from shardfleet_local.aws.settings import AwsBehaviour
from tests.end_to_end.cloud import deployed, wait_until
from tests.end_to_end.watching import handled, read_calls

pytestmark = pytest.mark.processes

# A page of ListShards never has more than 1,000 (API reference).
PAGE_MOST = 1_000
SHARDS = int(os.environ.get("SHARDFLEET_TEST_SHARDS", "201"))
PAGE = PAGE_MOST if SHARDS > PAGE_MOST else 100
PUT_AT_ONCE = 500
# Two workers hold them all; what repeats itself per lease is rare, so that two cores are enough.
CONFIG = {
    "leases_per_worker": 600,
    "max_workers": 2,
    "assignment": "count",
    "failover_ms": 60_000,
    "idle_read_ms": 60_000,
}


@pytest.fixture
def fleet(tmp_path):
    with deployed(
        tmp_path,
        handler="ledger",
        function="ledger:handler",
        environment={"LEDGER": str(tmp_path / "ledger.jsonl")},
        config=CONFIG,
        shards=SHARDS,
        behaviour=AwsBehaviour(page_items=PAGE),
    ) as fleet:
        yield fleet


def put_into_each_shard(fleet):
    """Put one record into each shard; return the records as (shard, 0)."""
    kinesis, stream = fleet.client("kinesis"), fleet.outputs["StreamName"]
    shards = list_shards(kinesis, fleet.outputs["StreamArn"])
    entries = [
        {
            "PartitionKey": "key",
            "ExplicitHashKey": str(shard.hash_key_range.start),
            "Data": json.dumps([shard.shard_id, 0]).encode(),
        }
        for shard in shards
    ]
    for first in range(0, len(entries), PUT_AT_ONCE):
        answer = kinesis.put_records(
            StreamName=stream, Records=entries[first : first + PUT_AT_ONCE]
        )
        assert answer["FailedRecordCount"] == 0
    return {(shard.shard_id, 0) for shard in shards}


def test_every_shard_of_a_stream_of_two_pages_has_a_lease_and_is_read(fleet, tmp_path):
    first = fleet.client("kinesis").list_shards(StreamName=fleet.outputs["StreamName"])
    assert len(first["Shards"]) == PAGE < SHARDS
    sent = put_into_each_shard(fleet)
    assert len(sent) == SHARDS

    ledger = tmp_path / "ledger.jsonl"
    wait_until(
        lambda: handled(read_calls(ledger)) >= sent,
        what="a record of each shard handled",
        within_s=600,
        fleet=fleet,
    )

    calls = read_calls(ledger)
    assert handled(calls) == sent
    assert {(call.shard, 0) for call in calls} == sent
    assert fleet.leases().keys() == {shard for shard, _ in sent}
