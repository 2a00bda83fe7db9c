"""
What do the calls of the lease table cost: by the wire, and by the SDK's client?

The product's own store, compiled conditions, thread pool and all, renews a lease and scans a table
of 1,000 against a server in a process of its own that always says the same; the peer is the same
store with the SDK's client. CPU time of the client alone.

The third contest is what a manager does between its turns: a look for lost owners at 10,000 leases,
all of which have been renewed, and its waking up to see whether it is time for the next one.

    python benchmarks/bench_tables.py [--rounds 15] [--folder DIR]
"""

from __future__ import annotations

import asyncio
import json
import multiprocessing
import socket
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from itertools import cycle
from multiprocessing.connection import Connection
from typing import Any

from botocore.session import Session
from side_by_side import Contest, main

from shardfleet.adapters.clients.aws_clients import AwsClients, ConnectionLimits
from shardfleet.adapters.dynamodb.items import item_from_fields
from shardfleet.adapters.dynamodb.leases import DynamoDBLeaseStore, TablePools
from shardfleet.adapters.thread_pool import ThreadPool
from shardfleet.config import FleetConfig
from shardfleet.domain.leases.changes import fields_of, renew
from shardfleet.domain.leases.lease import Applied, ChangeResult, Lease
from shardfleet.domain.stream.hash_ranges import HASH_KEY_MAX, HashKeyRange
from shardfleet.domain.stream.sequence import ExtendedSequenceNumber
from shardfleet.engine.manager.loop import PROMPT_POLL_MS
from shardfleet.engine.manager.losses import LossWatch
from shardfleet_testkit.memory import MemoryEvents

LEASES, RENEWALS = 1_000, 64
MANY = 10_000
CONFIG = FleetConfig(fleet="bench", stream_arn="-", lease_table="-", state_table="-")


def lease(number: int, *, counter: int = 7) -> Lease:
    width = (HASH_KEY_MAX + 1) // MANY
    return Lease(
        lease_key=f"shardId-{number:012}",
        checkpoint=ExtendedSequenceNumber(
            "49590338271490256608559692538361571095921575989136588898"
        ),
        lease_counter=counter,
        lease_owner=f"slot-{number % 16}",
        parent_shard_ids=(),
        hash_key_range=HashKeyRange(number * width, (number + 1) * width - 1),
    )


def answer_of(body: bytes) -> bytes:
    head = f"HTTP/1.1 200 OK\r\ncontent-length: {len(body)}\r\n\r\n"
    return head.encode() + body


def scans(count: int) -> Iterator[bytes]:
    """Yield two answers of a scan, between which each lease is renewed."""
    for counter in (7, 8):
        items = [item_from_fields(fields_of(lease(n, counter=counter))) for n in range(count)]
        used = {"TableName": "leases", "CapacityUnits": 1.0}
        told = {"Items": items, "Count": count, "ConsumedCapacity": used}
        yield json.dumps(told).encode()


def serve(told: Connection, answers: dict[str, Sequence[bytes]]) -> None:
    """Answer each request of one connection after another until killed."""
    ready = {name: cycle(map(answer_of, bodies)) for name, bodies in answers.items()}
    with socket.create_server(("127.0.0.1", 0)) as server:
        told.send(server.getsockname()[1])

        async def client(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            while True:
                try:
                    head = (await reader.readuntil(b"\r\n\r\n")).lower()
                except asyncio.IncompleteReadError:
                    writer.close()
                    return
                length = int(head.partition(b"content-length: ")[2].partition(b"\r")[0])
                await reader.readexactly(length)
                writer.write(next(ready["Scan" if b".scan\r" in head else "UpdateItem"]))

        async def forever() -> None:
            started = await asyncio.start_server(client, sock=server)
            await started.serve_forever()

        asyncio.run(forever())


def store(endpoint: str, *, wired: bool) -> DynamoDBLeaseStore:
    session = Session()
    session.set_credentials("AKIDEXAMPLE", "secret")
    session.set_config_variable("region", "eu-central-1")
    limits = ConnectionLimits(writes=1, reads=1, streams=1)
    clients = AwsClients(limits, session=session, endpoint=endpoint)
    pools = TablePools(
        writes=ThreadPool("writes", threads=1),
        reads=ThreadPool("reads", threads=1),
        write_client=clients.wired_writes if wired else clients.table_writes,
        read_client=clients.wired_reads if wired else clients.table_reads,
    )
    return DynamoDBLeaseStore("leases", pools, events=MemoryEvents())


def renewals(runner: asyncio.Runner, leases: DynamoDBLeaseStore) -> list[ChangeResult]:
    async def all_of_them() -> list[ChangeResult]:
        return [await leases.apply(renew(lease(0))) for _ in range(RENEWALS)]

    return runner.run(all_of_them())


def scan(runner: asyncio.Runner, leases: DynamoDBLeaseStore) -> object:
    return runner.run(leases.survey())


class Between:
    """A manager between its turns: looks for lost owners by its own clock, none of which is."""

    def __init__(self, leases: DynamoDBLeaseStore) -> None:
        """Have a first look."""
        self._now_ms = 0
        nothing: Any = None
        self._watch = LossWatch(CONFIG, leases=leases, state=nothing, clock=self)

    def monotonic_ms(self) -> int:
        """Return what the clock says."""
        return self._now_ms

    def now_ms(self) -> int:
        """Return the same."""
        return self._now_ms

    async def sleep_ms(self, duration_ms: float) -> None:
        """Let time go by at once."""
        self._now_ms += round(duration_ms)

    async def look(self) -> bool:
        """Wake up until it is time, as the manager's loop does; look, and return what it says."""
        due_ms = self._watch.next_ms
        while self._now_ms < due_ms:
            assert not await self._watch.look()
            await self.sleep_ms(min(PROMPT_POLL_MS, self._watch.next_ms - self._now_ms))
        return await self._watch.look()


def looks(runner: asyncio.Runner, between: Between) -> bool:
    return runner.run(between.look())


def same_renewals(ours: list[ChangeResult], theirs: list[ChangeResult]) -> None:
    assert ours == theirs
    assert all(isinstance(each, Applied) for each in ours)


def same_scan(ours: object, theirs: object) -> None:
    assert ours == theirs


def nobody_lost(ours: bool, theirs: bool) -> None:  # noqa: FBT001 - outcomes
    assert ours is theirs is False


@contextmanager
def answering(answers: dict[str, Sequence[bytes]]) -> Iterator[str]:
    """Run the server; yield its endpoint."""
    here, there = multiprocessing.Pipe()
    server = multiprocessing.Process(target=serve, args=(there, answers), daemon=True)
    server.start()
    try:
        yield f"http://127.0.0.1:{here.recv()}"
    finally:
        server.terminate()
        server.join()


def contests() -> Iterator[Contest]:
    item = item_from_fields(fields_of(lease(0)))
    used = {"ConsumedCapacity": {"TableName": "leases", "CapacityUnits": 1.0}}
    update = [json.dumps({"Attributes": item, **used}).encode()]
    few, many = list(scans(LEASES))[:1], list(scans(MANY))
    with (
        answering({"UpdateItem": update, "Scan": few}) as endpoint,
        answering({"Scan": many}) as of_many,
        asyncio.Runner() as runner,
    ):
        peer_name = "the same store with botocore's client"
        wired, plain = (store(endpoint, wired=is_wired) for is_wired in (True, False))
        yield Contest(
            name="table_renewals",
            compares=f"{RENEWALS} renewals of a lease, one after another",
            ours=partial(renewals, runner, wired),
            peer=partial(renewals, runner, plain),
            peer_name=peer_name,
            check=same_renewals,
            time_goes_to="handing each call to a thread and back, and its system calls.",
        )
        yield Contest(
            name="table_scan",
            compares=f"a scan of {LEASES:,} leases, read into leases",
            ours=partial(scan, runner, wired),
            peer=partial(scan, runner, plain),
            peer_name=peer_name,
            check=same_scan,
            time_goes_to="making the leases of the items.",
        )
        ours, theirs = (Between(store(of_many, wired=is_wired)) for is_wired in (True, False))
        yield Contest(
            name="manager_looks",
            compares=f"a look for lost owners at {MANY:,} leases, as each third of a failover time",
            ours=partial(looks, runner, ours),
            peer=partial(looks, runner, theirs),
            peer_name=peer_name,
            check=nobody_lost,
            time_goes_to="making the leases of the items.",
        )


if __name__ == "__main__":
    main(__doc__, contests)
