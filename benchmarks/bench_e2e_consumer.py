"""
What does a whole consumer cost: ours, async-kinesis, and the loop that one writes first?

All read the same stream of four shards from the same embedded AWS, from the oldest record to the
last, take aggregates apart, hand every record to user code, and store their progress in DynamoDB
once a second. Ours is a worker turn as Lambda runs it: leases, renewals, the slot's record, the
handler's thread, metrics. What they saw, in which order in each shard, is compared first. CPU time
of the consumer's process, from the first call to the last checkpoint; each is a process that lives
on from run to run, as a sandbox does. The peers have their own virtual environment in `build`
(`peers.txt`); where it cannot be made, their contests are skipped.

    python benchmarks/bench_e2e_consumer.py [--only NAME] [--rounds 15] [--folder DIR]
"""

from __future__ import annotations

import hashlib
import json
import os
import random
import select
import subprocess
import sys
import uuid
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import asdict, dataclass, replace
from functools import partial
from itertools import chain
from pathlib import Path
from typing import Any

import bench_aggregate as packing
import side_by_side
from consumers.protocol import SHARD_BYTES, Task
from side_by_side import Contest, Skipped

from shardfleet.adapters.dynamodb.items import item_from_fields
from shardfleet.config import ALLOCATOR
from shardfleet.domain.leases.changes import create
from shardfleet.domain.leases.lease import Lease
from shardfleet.domain.stream.sequence import AT_TRIM_HORIZON
from shardfleet.kpl.hash_keys import effective_hash
from shardfleet.kpl.packing import OutgoingRecord
from shardfleet_local.aws.launcher import EmbeddedAws
from shardfleet_local.aws.settings import AwsBehaviour

HERE = Path(__file__).parent
PINNED = HERE / "peers.txt"
PEERS = HERE.parent / "build" / "peers"
SHARDS = 4
PUT_RECORDS, PUT_BYTES = 500, 4 << 20
INSTALL_LIMIT_S, ANSWER_LIMIT_S, CLOSE_LIMIT_S = 180, 120, 20
OURS = "ours.py"
OUR_WORKER, KCL_WORKER = "bench-s0001", "java-1"
BOTO3, ASYNC_KINESIS = "boto3", "async_kinesis"
PEER_NAMES = {
    BOTO3: "a loop of boto3 and aws-kinesis-agg",
    ASYNC_KINESIS: "async-kinesis 3.0.1",
}
# About 80 % of what was measured first, as in performance.md §10, which left them open; the goals.
GATES: dict[str, tuple[float, float]] = {
    "e2e_consumer_plain_1k_vs_boto3": (2.0, 3.0),
    "e2e_consumer_kpl_100b_vs_boto3": (1.3, 2.0),
    "e2e_consumer_plain_1k_vs_async_kinesis": (7.0, 10.0),
    "e2e_consumer_kpl_100b_vs_async_kinesis": (13.0, 18.0),
}
TIME_GOES_TO = {
    "plain_1k": (
        "half to what a turn does whatever is read: some sixty calls of DynamoDB by the SDK, 1 ms "
        "each, for leases, renewals, the slot and checkpoints; the loop has a dozen."
    ),
    "kpl_100b": (
        "a quarter to the same calls of DynamoDB, a third to deaggregation (which also checks MD5 "
        "and positions), the rest to decoding, to checking and cutting batches, and to 170 calls "
        "of a handler in a thread of its own."
    ),
}


@dataclass(frozen=True)
class Load:
    """One stream to be consumed."""

    name: str
    what: str
    aggregated: bool
    records: int
    # Data of the stream records of each shard.
    data: Sequence[Sequence[bytes]]

    @property
    def size(self) -> int:
        """Bytes of all stream records."""
        return sum(len(each) for shard in self.data for each in shard)


def plain(per_shard: int = 5_000) -> Load:
    """Return records of 1 KiB."""
    chance = random.Random(5)
    data = [
        [name(shard) + chance.randbytes(1024 - SHARD_BYTES) for _ in range(per_shard)]
        for shard in range(SHARDS)
    ]
    count = SHARDS * per_shard
    return Load("plain_1k", "plain records of 1 KiB", aggregated=False, records=count, data=data)


def aggregated(per_shard: int = 155) -> Load:
    """Return aggregates of 270 user records of about 100 B."""
    # Each in the shard that its key belongs to, as the KPL does: the KCL drops all others.
    shards: list[list[OutgoingRecord]] = [[] for _ in range(SHARDS)]
    for key, payload, _ in chain.from_iterable(packing.small_records(SHARDS * per_shard)):
        shard = effective_hash(key) * SHARDS >> 128
        shards[shard].append(OutgoingRecord(key, name(shard) + payload))
    cuts = [[found[at : at + 270] for at in range(0, len(found), 270)] for found in shards]
    data = [packing.ours(groups) for groups in cuts]
    count = sum(map(len, shards))
    what = "user records of 100 B in aggregates"
    return Load("kpl_100b", what, aggregated=True, records=count, data=data)


def name(shard: int) -> bytes:
    """Return what the data of a shard's records begins with."""
    return f"{shard:02d}".encode()


class Account:
    """The embedded AWS: the streams, and fresh tables for every run."""

    def __init__(self, aws: EmbeddedAws) -> None:
        """Make the clients."""
        self._kinesis, self._dynamodb = aws.client("kinesis"), aws.client("dynamodb")
        self._tables: list[str] = []

    def stream(self, load: Load) -> Task:
        """Make a stream with the records of a load."""
        named = {"StreamName": load.name}
        self._kinesis.create_stream(ShardCount=SHARDS, **named)
        self._kinesis.get_waiter("stream_exists").wait(**named, WaiterConfig={"Delay": 1})
        summary = self._kinesis.describe_stream_summary(**named)["StreamDescriptionSummary"]
        found = self._kinesis.list_shards(**named)["Shards"]
        for shard, data in zip(found, load.data, strict=True):
            fixed = {
                "PartitionKey": "any",
                "ExplicitHashKey": shard["HashKeyRange"]["StartingHashKey"],
            }
            for part in requests(data):
                records = [{"Data": each, **fixed} for each in part]
                answer = self._kinesis.put_records(Records=records, **named)
                assert not answer["FailedRecordCount"]
        return Task(
            stream=load.name,
            arn=summary["StreamARN"],
            shards=[shard["ShardId"] for shard in found],
            records=load.records,
            aggregated=load.aggregated,
            lease_table="",
            state_table="",
            checkpoint_ms=1_000,
        )

    def our_tables(self, task: Task) -> Task:
        """Make a lease table, its shards assigned to the worker, and one for the fleet's state."""
        given = replace(task, lease_table=_unique("leases"), state_table=_unique("state"))
        self._lease_table(given, owner=OUR_WORKER)
        self._table(given.state_table, "kind", "id")
        return given

    def kcl_tables(self, task: Task) -> Task:
        """Make the three tables of a Java KCL 3, the shards assigned to its worker."""
        given = replace(task, lease_table=_unique("leases"))
        self._lease_table(given, owner=KCL_WORKER)
        self._table(f"{given.lease_table}-WorkerMetricStats", "wid")
        self._table(f"{given.lease_table}-CoordinatorState", "key")
        return given

    def peer_table(self, task: Task, *, key: str) -> Task:
        """Make an empty table."""
        given = replace(task, lease_table=_unique("leases"))
        self._table(given.lease_table, key)
        return given

    def drop_tables(self) -> None:
        """Drop the tables of a run."""
        while self._tables:
            self._dynamodb.delete_table(TableName=self._tables.pop())

    def _lease_table(self, task: Task, *, owner: str) -> None:
        self._table(task.lease_table, "leaseKey", owner_index=True)
        for shard in task.shards:
            lease = Lease(lease_key=shard, checkpoint=AT_TRIM_HORIZON, lease_owner=owner)
            item = item_from_fields(create(lease).sets)
            self._dynamodb.put_item(TableName=task.lease_table, Item=item)

    def _table(self, name: str, *keys: str, owner_index: bool = False) -> None:
        index = ("leaseOwner", "leaseKey")
        texts = {*keys, *index} if owner_index else set(keys)
        more = {
            "IndexName": "LeaseOwnerToLeaseKeyIndex",
            "KeySchema": _schema(index),
            "Projection": {"ProjectionType": "KEYS_ONLY"},
        }
        self._dynamodb.create_table(
            TableName=name,
            BillingMode="PAY_PER_REQUEST",
            KeySchema=_schema(keys),
            AttributeDefinitions=[{"AttributeName": k, "AttributeType": "S"} for k in texts],
            **({"GlobalSecondaryIndexes": [more]} if owner_index else {}),
        )
        self._tables.append(name)


def _schema(keys: Sequence[str]) -> list[dict[str, str]]:
    kinds = ("HASH", "RANGE")
    return [{"AttributeName": key, "KeyType": kind} for key, kind in zip(keys, kinds, strict=False)]


def _unique(what: str) -> str:
    return f"{what}-{uuid.uuid4().hex[:12]}"


def requests(data: Sequence[bytes]) -> Iterator[Sequence[bytes]]:
    """Cut data into requests of PutRecords."""
    part: list[bytes] = []
    for each in data:
        if len(part) == PUT_RECORDS or sum(map(len, part)) + len(each) > PUT_BYTES:
            yield part
            part = []
        part.append(each)
    yield part


def process_environment(aws: EmbeddedAws, program: str) -> dict[str, str]:
    """Return a consumer's environment; ours has in it what the construct gives a worker."""
    given = ALLOCATOR if program == OURS else {}
    return {"PATH": os.environ["PATH"], "TZ": "UTC", **aws.environment(), **given}


class Consumer:
    """
    A consumer's process, which lives from run to run.

    Attributes:
        cpu_s: CPU seconds of all its runs.
        wall_s: how long each took.

    """

    def __init__(
        self, words: Sequence[str], *, env: dict[str, str], tables: Callable[[Task], Task]
    ) -> None:
        """Start the process; `tables` makes those that a run needs."""
        self.cpu_s = 0.0
        self.wall_s: list[float] = []
        self._tables = tables
        self._process = subprocess.Popen(
            words,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env=env,
            cwd=HERE / "consumers",
        )

    def consume(self, account: Account, task: Task) -> dict[str, Any]:
        """Consume a stream anew; return the number of records and the digest of each shard."""
        given = self._tables(task)
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(json.dumps(asdict(given)) + "\n")
        self._process.stdin.flush()
        answered, _, _ = select.select([self._process.stdout], [], [], ANSWER_LIMIT_S)
        assert answered, f"the consumer has not read all within {ANSWER_LIMIT_S} s"
        line = self._process.stdout.readline()
        assert line, "the consumer died"
        account.drop_tables()
        answer = json.loads(line)
        self.cpu_s += answer["cpu_s"]
        self.wall_s.append(answer["wall_s"])
        return {"records": answer["records"], "digests": answer["digests"]}

    def close(self) -> None:
        """End the process, if need be by force."""
        assert self._process.stdin is not None
        self._process.stdin.close()
        try:
            self._process.wait(CLOSE_LIMIT_S)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()


def peers_python() -> str:
    """
    Return the interpreter of the peers' environment, which is made once per `peers.txt`.

    Raises:
        subprocess.CalledProcessError, subprocess.TimeoutExpired, OSError: it cannot be made.

    """
    digest = hashlib.sha256(PINNED.read_bytes() + sys.version.encode()).hexdigest()[:12]
    folder = PEERS / digest
    python, made = folder / "bin" / "python", folder / ".made"
    if not made.exists():
        run = partial(subprocess.run, check=True, timeout=INSTALL_LIMIT_S, capture_output=True)
        run([sys.executable, "-m", "venv", "--clear", str(folder)])
        words = ("install", "--quiet", "--disable-pip-version-check", "--no-deps")
        run([str(python), "-m", "pip", *words, "--require-hashes", "-r", str(PINNED)])
        made.touch()
    return str(python)


def same(ours: dict[str, Any], theirs: dict[str, Any]) -> None:
    """Compare what was seen, in order, shard by shard."""
    assert ours == theirs, f"not the same records: {ours} != {theirs}"
    assert ours["records"] > 0
    assert len(ours["digests"]) == SHARDS


class Table:
    """Which contests there are: both loads against one peer."""

    def __init__(
        self, account: Account, ours: Consumer, tasks: Sequence[tuple[Load, Task]]
    ) -> None:
        """Take the streams as they are filled."""
        self._account, self._ours, self._tasks = account, ours, tasks

    def against(self, peer: str, theirs: Consumer) -> Iterator[Contest]:
        """Yield the contests against a peer."""
        for load, task in self._tasks:
            name = contest_name(load, peer)
            gate, goal = GATES[name]
            yield Contest(
                name=name,
                compares=f"{load.size >> 20} MiB of {load.what}, consumed and checkpointed",
                ours=partial(self._ours.consume, self._account, task),
                peer=partial(theirs.consume, self._account, task),
                peer_name=PEER_NAMES[peer],
                check=same,
                gate=gate,
                goal=goal,
                unit_bytes=load.size,
                clock=lambda: self._ours.cpu_s + theirs.cpu_s,
                time_goes_to=TIME_GOES_TO[load.name],
            )


def contest_name(load: Load, peer: str) -> str:
    """Return the name of a contest."""
    return f"e2e_consumer_{load.name}_vs_{peer}"


def contests() -> Iterator[Contest | Skipped]:
    """Yield each load against each peer."""
    os.environ["TZ"] = "UTC"  # As in Lambda.
    loads = [plain(), aggregated()]
    with ExitStack() as stack:
        aws = stack.enter_context(EmbeddedAws(behaviour=AwsBehaviour(kinesis_quotas=False)))
        account = Account(aws)

        def started(python: str, program: str, tables: Callable[[Task], Task]) -> Consumer:
            env = process_environment(aws, program)
            consumer = Consumer([python, program], env=env, tables=tables)
            stack.callback(consumer.close)
            return consumer

        ours = started(sys.executable, OURS, account.our_tables)
        table = Table(account, ours, [(load, account.stream(load)) for load in loads])
        loop = partial(account.peer_table, key="leaseKey")
        yield from table.against(BOTO3, started(sys.executable, "boto3_loop.py", loop))
        try:
            python = peers_python()
        except (OSError, subprocess.SubprocessError) as error:
            said = (getattr(error, "stderr", None) or b"").decode().strip().splitlines()
            reason = f"{PEER_NAMES[ASYNC_KINESIS]} cannot be installed: {' '.join(said[-1:])}"
            for load in loads:
                yield Skipped(name=contest_name(load, ASYNC_KINESIS), reason=reason)
            return
        own = partial(account.peer_table, key="shard_id")
        yield from table.against(ASYNC_KINESIS, started(python, "async_kinesis.py", own))


if __name__ == "__main__":
    side_by_side.main(__doc__, contests)
