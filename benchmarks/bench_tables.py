"""
What do the calls of the lease table cost: by the wire, and by the SDK's client?

The product's own store, compiled conditions, thread pool and all, renews a lease and scans a table
of 1,000 against a server in a process of its own that always says the same; the peer is the same
store with the SDK's client. CPU time of the client alone.

    python benchmarks/bench_tables.py [--rounds 7] [--folder DIR]
"""

from __future__ import annotations

import asyncio
import json
import multiprocessing
import socket
from collections.abc import Iterator
from functools import partial
from multiprocessing.connection import Connection

from botocore.session import Session
from side_by_side import Contest, main

from shardfleet.adapters.clients.aws_clients import AwsClients, ConnectionLimits
from shardfleet.adapters.dynamodb.items import item_from_fields
from shardfleet.adapters.dynamodb.leases import DynamoDBLeaseStore, TablePools
from shardfleet.adapters.thread_pool import ThreadPool
from shardfleet.domain.leases.changes import fields_of, renew
from shardfleet.domain.leases.lease import Applied, ChangeResult, Lease
from shardfleet.domain.stream.sequence import ExtendedSequenceNumber
from shardfleet.testing.memory import MemoryEvents

LEASES, RENEWALS = 1_000, 64


def lease(number: int) -> Lease:
    return Lease(
        lease_key=f"shardId-{number:012}",
        checkpoint=ExtendedSequenceNumber(
            "49590338271490256608559692538361571095921575989136588898"
        ),
        lease_counter=7,
        lease_owner=f"slot-{number % 16}",
        parent_shard_ids=(),
    )


def answer_of(target: str, answers: dict[str, bytes]) -> bytes:
    body = answers[target]
    head = f"HTTP/1.1 200 OK\r\ncontent-length: {len(body)}\r\n\r\n"
    return head.encode() + body


def serve(told: Connection, answers: dict[str, bytes]) -> None:
    """Answer each request of one connection after another until killed."""
    ready = {name: answer_of(name, answers) for name in answers}
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
                writer.write(ready["Scan" if b".scan\r" in head else "UpdateItem"])

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


def same_renewals(ours: list[ChangeResult], theirs: list[ChangeResult]) -> None:
    assert ours == theirs
    assert all(isinstance(each, Applied) for each in ours)


def same_scan(ours: object, theirs: object) -> None:
    assert ours == theirs


def contests() -> Iterator[Contest]:
    items = [item_from_fields(fields_of(lease(number))) for number in range(LEASES)]
    used = {"ConsumedCapacity": {"TableName": "leases", "CapacityUnits": 1.0}}
    answers = {
        "UpdateItem": json.dumps({"Attributes": items[0], **used}).encode(),
        "Scan": json.dumps({"Items": items, "Count": LEASES, **used}).encode(),
    }
    here, there = multiprocessing.Pipe()
    server = multiprocessing.Process(target=serve, args=(there, answers), daemon=True)
    server.start()
    try:
        endpoint = f"http://127.0.0.1:{here.recv()}"
        with asyncio.Runner() as runner:
            wired, plain = (store(endpoint, wired=is_wired) for is_wired in (True, False))
            for name, what, work, check, time_goes_to in (
                (
                    "table_renewals",
                    f"{RENEWALS} renewals of a lease, one after another",
                    renewals,
                    same_renewals,
                    "handing each call to a thread and back, and its system calls.",
                ),
                (
                    "table_scan",
                    f"a scan of {LEASES} leases, read into leases",
                    scan,
                    same_scan,
                    "making the leases of the items.",
                ),
            ):
                yield Contest(
                    name=name,
                    compares=what,
                    ours=partial(work, runner, wired),
                    peer=partial(work, runner, plain),
                    peer_name="the same store with botocore's client",
                    check=check,
                    time_goes_to=time_goes_to,
                )
    finally:
        server.terminate()
        server.join()


if __name__ == "__main__":
    main(__doc__, contests)
