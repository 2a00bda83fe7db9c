"""
How many 1 KiB records a second does one boto3 client get into, and out of, our Kinesis engine?

The engine's stand-alone server runs in a process of its own, quotas off, four shards. One client
in one thread puts 500 records per call for some seconds, then reads everything back with GetRecords
(2,000 per call) until the shards are empty; that is a round.

The client is the slower side (botocore encodes and parses every record in Python), so its own CPU
time and the server's are given per record beside the rates; and a fixed loop of plain Python is
timed before each round, so that a slow minute of the machine can be told from a slow server. The
time zone is UTC, as it is in Lambda: without one, every timestamp botocore parses asks the disk.

So that the engine is what is measured, the client is set up as a fast one would be, by botocore's
own means: no validation of parameters (`Config(parameter_validation=False)`), and timestamps left
as the numbers they are (the parser factory's `timestamp_parser`). `--plain` leaves both as they
come out of the box.

    python benchmarks/bench_kinesis_engine.py [--seconds 4] [--rounds 7] [--plain] [--folder DIR]
"""

import argparse
import json
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import boto3
import botocore.session
import side_by_side
from botocore.config import Config

SHARDS, RECORD_BYTES, PUT_BATCH, GET_BATCH = 4, 1024, 500, 2000
GOAL_PER_S = 40_000
LOOP = 2_000_000


@dataclass(frozen=True)
class Phase:
    """
    Putting or getting in one round; CPU times are microseconds per record (None: unknown).

    `cpu_bound_per_s` is a second divided by both CPU times: the rate if the two never had to wait
    for a core. They take turns, so this is the ceiling of one synchronous client.
    """

    per_s: int
    server_cpu_us: float | None
    client_cpu_us: float
    cpu_bound_per_s: int | None


@dataclass(frozen=True)
class Round:
    """One round; `loop_ms` is the time of the fixed loop before it."""

    records: int
    put: Phase
    get: Phase
    loop_ms: float
    load_average: float


def cpu_s(pid: int) -> float | None:
    """Return CPU seconds a process has used, user and system; None where there is no /proc."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8").rpartition(")")[2].split()
    except OSError:
        return None
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def measured(work: Callable[[], int], pid: int) -> tuple[int, Phase]:
    """Do the work, which returns its number of records, and put a figure to it."""
    server, client, started = cpu_s(pid), time.process_time(), time.perf_counter()
    records = work()
    wall_s = time.perf_counter() - started
    client_us = (time.process_time() - client) * 1e6 / records
    after = cpu_s(pid)
    server_us = bound = None
    if server is not None and after is not None:
        server_us = round((after - server) * 1e6 / records, 2)
        bound = round(1e6 / (server_us + client_us))
    return records, Phase(round(records / wall_s), server_us, round(client_us, 2), bound)


def put_for(client: Any, stream: str, *, seconds: float) -> int:
    data = os.urandom(RECORD_BYTES)
    batches = [
        [{"PartitionKey": f"key-{batch}-{i}", "Data": data} for i in range(PUT_BATCH)]
        for batch in range(8)
    ]
    calls, started = 0, time.perf_counter()
    while time.perf_counter() - started < seconds:
        answer = client.put_records(StreamName=stream, Records=batches[calls % len(batches)])
        assert answer["FailedRecordCount"] == 0
        calls += 1
    return calls * PUT_BATCH


def get_shard(client: Any, stream: str, *, shard: str) -> int:
    records = 0
    iterator = client.get_shard_iterator(
        StreamName=stream, ShardId=shard, ShardIteratorType="TRIM_HORIZON"
    )["ShardIterator"]
    while True:
        answer = client.get_records(ShardIterator=iterator, Limit=GET_BATCH)
        records += len(answer["Records"])
        assert all(len(record["Data"]) == RECORD_BYTES for record in answer["Records"][:1])
        if answer["MillisBehindLatest"] == 0:
            return records
        iterator = answer["NextShardIterator"]


def get_all(client: Any, stream: str) -> int:
    shards = client.list_shards(StreamName=stream)["Shards"]
    return sum(get_shard(client, stream, shard=shard["ShardId"]) for shard in shards)


def one_round(client: Any, stream: str, *, seconds: float, pid: int) -> Round:
    loop_ms = loop_time_ms()
    client.create_stream(StreamName=stream, ShardCount=SHARDS)
    records, put = measured(lambda: put_for(client, stream, seconds=seconds), pid)
    got, get = measured(lambda: get_all(client, stream), pid)
    client.delete_stream(StreamName=stream)
    assert got == records, f"{records} records were put, {got} came back"
    return Round(records, put, get, loop_ms, round(os.getloadavg()[0], 2))


def loop_time_ms() -> float:
    started = time.perf_counter()
    total = 0
    for number in range(LOOP):
        total += number
    return round((time.perf_counter() - started) * 1000, 1)


def summary(rounds: list[Round]) -> dict[str, dict[str, float]]:
    """Return best and median of every figure; the best CPU time is the lowest."""
    figures: dict[str, dict[str, float]] = {}
    for phase in ("put", "get"):
        for name, best in (
            ("per_s", max),
            ("cpu_bound_per_s", max),
            ("server_cpu_us", min),
            ("client_cpu_us", min),
        ):
            values = [getattr(getattr(each, phase), name) for each in rounds]
            known = [value for value in values if value is not None]
            if known:
                median = statistics.median(known)
                figures[f"{phase}_{name}"] = {"best": best(known), "median": round(median, 2)}
    return figures


@contextmanager
def server() -> Iterator[tuple[str, int]]:
    """Run the server; yield its endpoint and process id, its key in the environment."""
    process = subprocess.Popen(
        [sys.executable, "-P", "-m", "shardfleet_local.kinesis", "--no-quotas"],
        stdout=subprocess.PIPE,
        text=True,
    )
    try:
        assert process.stdout is not None
        told = json.loads(process.stdout.readline())
        os.environ |= told["environment"]
        yield told["endpoint"], process.pid
    finally:
        process.terminate()
        process.wait()


def make_client(endpoint: str, *, plain: bool) -> Any:
    session = botocore.session.get_session()
    if not plain:
        factory = session.get_component("response_parser_factory")
        factory.set_parser_defaults(timestamp_parser=float)
    return boto3.Session(botocore_session=session).client(
        "kinesis",
        endpoint_url=endpoint,
        region_name="us-east-1",
        config=Config(retries={"total_max_attempts": 1}, parameter_validation=plain),
    )


def run(*, seconds: float, rounds: int, plain: bool) -> list[Round]:
    done = []
    with server() as (endpoint, pid):
        client = make_client(endpoint, plain=plain)
        for number in range(rounds):
            done.append(one_round(client, f"bench-{number}", seconds=seconds, pid=pid))
            print(done[-1])
    return done


def main() -> None:
    parser = argparse.ArgumentParser(description=str(__doc__).split("\n\n", maxsplit=1)[0])
    parser.add_argument("--seconds", type=float, default=4.0, help="of putting, per round")
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--plain", action="store_true", help="a client as it comes")
    parser.add_argument("--folder", type=Path, default=side_by_side.RESULTS)
    options = parser.parse_args()
    os.environ["TZ"] = "UTC"
    time.tzset()
    rounds = run(seconds=options.seconds, rounds=options.rounds, plain=options.plain)
    found = summary(rounds)
    put, get = found["put_per_s"]["median"], found["get_per_s"]["median"]
    result = {
        "kind": "figures",
        "name": "kinesis_engine",
        "compares": "records of 1 KiB through one boto3 client and the embedded Kinesis",
        "summary": f"{put:,} put and {get:,} got a second, medians of {len(rounds)} rounds",
        "gate": "",
        "goal": f"{GOAL_PER_S:,} each way",
        "met": None,
        "time_goes_to": "the client: see README.md.",
        "details": {
            "client": "as it comes" if options.plain else "no validation, plain timestamps",
            "shards": SHARDS,
            "record_bytes": RECORD_BYTES,
            "records_per_put": PUT_BATCH,
            "records_per_get": GET_BATCH,
            "figures": found,
            "rounds": [asdict(each) for each in rounds],
        },
    }
    side_by_side.save(result, options.folder)
    print(json.dumps(found, indent=2))
    print(side_by_side.described(result))


if __name__ == "__main__":
    main()
