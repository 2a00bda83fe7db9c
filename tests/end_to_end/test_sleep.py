"""A fleet that sleeps and wakes, deployed, with the functions' own rights only."""

import base64

import pytest

from tests.end_to_end.cloud import UNKIND, deployed, json_lines, wait_until

pytestmark = pytest.mark.processes

CONFIG = {"sleep": True, "sleep_after_ms": 2_000, "max_wake_ms": 10_000, "idle_end_ms": 10_000}


@pytest.fixture(scope="module")
def clicks(tmp_path_factory):
    folder = tmp_path_factory.mktemp("sleep")
    with deployed(
        folder,
        handler="ledger",
        function="ledger:handler",
        environment={"LEDGER": str(folder / "ledger.jsonl")},
        config=CONFIG,
        shards=2,
        behaviour=UNKIND,
    ) as fleet:
        yield fleet


def put(fleet, text):
    fleet.client("kinesis").put_record(
        StreamName=fleet.outputs["StreamName"], PartitionKey="a", Data=text.encode()
    )


def handled(fleet):
    lines = json_lines(fleet.folder / "ledger.jsonl")
    return [base64.b64decode(data).decode() for line in lines for data in line["records"]]


def sleeps(fleet):
    leases = [le for le in fleet.leases().values() if le["checkpoint"] != "SHARD_END"]
    is_owned = any("leaseOwner" in lease for lease in leases)
    slots = fleet.documents("slot").values()
    naps = fleet.documents("nap")
    return (
        leases
        and not is_owned
        and naps.keys() >= {lease["leaseKey"] for lease in leases}
        and all(slot["state"] == "ENDED" for slot in slots)
    )


def fall_asleep(fleet):
    wait_until(lambda: sleeps(fleet), what="a sleeping fleet", within_s=120, fleet=fleet)
    running = [each for each in fleet.executions() if each["status"] == "RUNNING"]
    assert not running


def test_an_idle_fleet_runs_nothing_and_is_woken_by_records_and_by_reshards(clicks):
    put(clicks, "1")
    wait_until(lambda: handled(clicks) == ["1"], what="first record", within_s=60, fleet=clicks)
    fall_asleep(clicks)

    put(clicks, "2")
    wait_until(lambda: len(handled(clicks)) > 1, what="a waking", within_s=60, fleet=clicks)
    fall_asleep(clicks)

    kinesis, stream = clicks.client("kinesis"), clicks.outputs["StreamName"]
    kinesis.update_shard_count(StreamName=stream, TargetShardCount=4, ScalingType="UNIFORM_SCALING")
    wait_until(lambda: len(clicks.leases()) >= 6, what="children", within_s=90, fleet=clicks)
    put(clicks, "3")
    wait_until(lambda: len(handled(clicks)) > 2, what="the third", within_s=60, fleet=clicks)

    assert handled(clicks) == ["1", "2", "3"]
    assert not [line for line in clicks.logs() if '"level":"ERROR"' in line]
