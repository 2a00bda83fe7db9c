"""
A fleet of one shard whose worker is about to begin, on the embedded AWS behind TLS.

    with waiting_fleet() as fleet:
        fleet.set_back()
        subprocess.run([sys.executable, "-c", fleet.worker], env=fleet.environment)

The worker's process runs `worker_handler` as Lambda would, and ends itself in the handler's first
call; the peer's makes boto3's clients of Kinesis and DynamoDB, and reads the same record. TLS ends
in a process of its own, so that neither pays for the services.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import multiprocessing
import os
import ssl
import tempfile
import time
from collections.abc import Iterator
from multiprocessing.connection import Connection
from pathlib import Path
from urllib.parse import urlsplit

from botocore.httpsession import get_cert_path
from tls_server import HOST, STARTED_S, certificate_in

from shardfleet.adapters.dynamodb.items import item_from_fields
from shardfleet.adapters.dynamodb.tables import ensure_lease_table
from shardfleet.config import FleetConfig
from shardfleet.domain.leases.changes import fields_of
from shardfleet.domain.leases.lease import Lease
from shardfleet.domain.slots.slot import intend_start
from shardfleet.domain.stream.hash_ranges import WHOLE_HASH_SPACE
from shardfleet.domain.stream.sequence import AT_TRIM_HORIZON
from shardfleet.engine.state.fleet_state import slot_body
from shardfleet.runtime import bootstrap
from shardfleet.runtime.bootstrap import TurnThreads, open_sandbox
from shardfleet_local.aws.launcher import EmbeddedAws

NAME, STATE, SHARD = "bench", "bench-state", "shardId-000000000000"
END = """
import os, resource, sys
print(len(sys.modules), resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024, flush=True)
os._exit(0)
"""
HANDLER = f"""
def handle(batch):
    assert len(batch) == 1
    exec({END!r})
"""
WORKER = """
from shardfleet.runtime.entry_points import worker_handler

class Context:
    aws_request_id = "request-1"
    invoked_function_arn = "arn:aws:lambda:us-east-1:111122223333:function:worker:live"
    memory_limit_in_mb = "512"

    def get_remaining_time_in_millis(self):
        return 900_000

worker_handler({event!r}, Context())
raise SystemExit("the turn ended without a batch")
"""
FUNCTION = """
import boto3
stream, tables = boto3.client("kinesis"), boto3.client("dynamodb")
first = stream.get_shard_iterator(
    StreamARN={arn!r}, ShardId={shard!r}, ShardIteratorType="TRIM_HORIZON"
)
page = stream.get_records(StreamARN={arn!r}, ShardIterator=first["ShardIterator"])
assert len(page["Records"]) == 1
"""


class WaitingFleet:
    """
    Tables, a stream with a record, and what a manager has written.

    Attributes:
        environment: of the function.
        worker: program of its first invocation.
        function: the peer's program.

    """

    def __init__(self, aws: EmbeddedAws, *, url: str, bundle: Path, folder: Path) -> None:
        kinesis, self._tables = aws.client("kinesis"), aws.client("dynamodb")
        kinesis.create_stream(StreamName=NAME, ShardCount=1)
        kinesis.get_waiter("stream_exists").wait(StreamName=NAME)
        kinesis.put_record(StreamName=NAME, PartitionKey="k", Data=b"first")
        ensure_lease_table(self._tables, NAME)
        keys = {"kind": "HASH", "id": "RANGE"}
        self._tables.create_table(
            TableName=STATE,
            KeySchema=[{"AttributeName": name, "KeyType": kind} for name, kind in keys.items()],
            AttributeDefinitions=[{"AttributeName": name, "AttributeType": "S"} for name in keys],
            BillingMode="PAY_PER_REQUEST",
        )
        arn = kinesis.describe_stream_summary(StreamName=NAME)["StreamDescriptionSummary"][
            "StreamARN"
        ]
        config = FleetConfig(
            fleet=NAME,
            stream_arn=arn,
            lease_table=NAME,
            state_table=STATE,
            handler="first_batch_handler:handle",
        )
        (folder / "first_batch_handler.py").write_text(HANDLER)
        account = aws.environment() | {"AWS_ENDPOINT_URL": url, "AWS_CA_BUNDLE": str(bundle)}
        folders = filter(None, [str(folder), os.environ.get("PYTHONPATH")])
        self.environment = {**account, **config.to_env(), "PYTHONPATH": ":".join(folders)}
        self._slot = intend_start(
            None,
            slot_id="s0001",
            worker_id=f"{NAME}-s0001",
            name_prefix=NAME,
            now_ms=int(time.time() * 1000),
        )
        self._lease = Lease(
            lease_key=SHARD,
            checkpoint=AT_TRIM_HORIZON,
            lease_owner=self._slot.worker_id,
            lease_counter=7,
            hash_key_range=WHOLE_HASH_SPACE,
        )
        self._sandbox = open_sandbox({**aws.environment(), **config.to_env()})
        event = json.loads(self._slot.slot_input().execution_text())
        self.worker = WORKER.format(event=event)
        self.function = FUNCTION.format(arn=arn, shard=SHARD) + END

    def set_back(self) -> None:
        """Let everything be as a manager left it: a slot that is to begin, and its lease."""
        for item in self._tables.scan(TableName=STATE, ConsistentRead=True)["Items"]:
            key = {name: item[name] for name in ("kind", "id")}
            self._tables.delete_item(TableName=STATE, Key=key)
        self._tables.put_item(TableName=NAME, Item=item_from_fields(fields_of(self._lease)))
        asyncio.run(self._write_slot())

    async def _write_slot(self) -> None:
        threads = TurnThreads(self._sandbox.config)
        store = bootstrap.state_store(self._sandbox, threads)
        slot = self._slot
        await store.write("slot", slot.slot_id, slot_body(slot), expected_version=None)
        await threads.close(within_ms=10_000)


@contextlib.contextmanager
def waiting_fleet() -> Iterator[WaitingFleet]:
    """Start the embedded AWS and what ends TLS before it."""
    with tempfile.TemporaryDirectory() as name, EmbeddedAws() as aws:
        folder = Path(name)
        certificate = certificate_in(folder)
        # Whom a function trusts as a rule, and this one.
        bundle = folder / "bundle.pem"
        usual = Path(str(get_cert_path(verify=True)))
        bundle.write_text(usual.read_text() + certificate.read_text())
        ours, theirs = multiprocessing.Pipe()
        process = multiprocessing.get_context("spawn").Process(
            target=_serve, args=(aws.endpoint_url, str(certificate), theirs), daemon=True
        )
        process.start()
        try:
            assert ours.poll(STARTED_S), "the end of TLS did not start"
            url = f"https://{HOST}:{ours.recv()}"
            yield WaitingFleet(aws, url=url, bundle=bundle, folder=folder)
        finally:
            process.terminate()
            process.join()


def _serve(behind: str, pem: str, ready: Connection) -> None:
    asyncio.run(_serve_until_killed(behind, pem, ready))


async def _serve_until_killed(behind: str, pem: str, ready: Connection) -> None:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(pem)
    at = urlsplit(behind)

    async def handed_on(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        there, back = await asyncio.open_connection(at.hostname, at.port)
        # It answers to its own name alone.
        names = f"{HOST}:{port}".encode(), at.netloc.encode()
        await asyncio.gather(_copy(reader, back, names), _copy(there, writer))

    server = await asyncio.start_server(handed_on, HOST, 0, ssl=context)
    port = server.sockets[0].getsockname()[1]
    ready.send(port)
    await server.serve_forever()


async def _copy(
    source: asyncio.StreamReader,
    target: asyncio.StreamWriter,
    names: tuple[bytes, bytes] = (b"", b""),
) -> None:
    with contextlib.suppress(OSError):
        while data := await source.read(1 << 16):
            target.write(data.replace(*names) if names[0] else data)
            await target.drain()
    target.close()
