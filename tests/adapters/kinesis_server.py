"""The project's Kinesis engine as a server of its own, and one stream in it with its adapters."""

import asyncio
import http.client
import json
import os
import subprocess
import sys
from contextlib import contextmanager
from unittest.mock import patch
from urllib.parse import urlsplit

import cbor2

from shardfleet.adapters.clients.aws_clients import AwsClients
from shardfleet.adapters.kinesis.polling import KinesisPolling
from shardfleet.adapters.thread_pool import ThreadPool
from shardfleet.domain.reading.pages import StartingPosition, StartKind
from shardfleet.kpl.deaggregate import ExpansionLimits, deaggregate
from shardfleet.producer.kinesis_writer import KinesisWriter
from shardfleet_local.access import AccessKey
from tests.adapters.tables import LIMITS

run = asyncio.run
REGION = "us-east-1"
HORIZON = StartingPosition(StartKind.TRIM_HORIZON)


@contextmanager
def kinesis_server():
    """
    Start it without quotas (pacing is the engine's business); yields its endpoint.

    Its key is meanwhile in this process's environment.
    """
    command = [sys.executable, "-P", "-m", "shardfleet_local.kinesis", "--no-quotas"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        try:
            told = json.loads(process.stdout.readline())
            with patch.dict(os.environ, told["environment"]):
                yield told["endpoint"]
        finally:
            process.terminate()


class Stream:
    """
    A stream, its reader and writer, by way of `calls`: "wire" (ours) or "boto3".

    `sent` are the requests as (operation, parameters); `attempts` counts the SDK's repeats too.
    """

    def __init__(self, endpoint, name, calls="wire"):
        self.endpoint = endpoint
        self.calls = calls
        self.name = name
        self.clients = AwsClients(LIMITS, stream_region=REGION)
        self.sent, self.attempts = [], 0
        for client in (self.clients.stream_records, self.clients.stream_control):
            client.meta.events.register("provide-client-params.kinesis.*", self._note)
            client.meta.events.register("before-send.kinesis.*", self._count)
        self.admin = self.clients.stream_control
        self.pool = ThreadPool("streams", threads=8)
        self.at(f"arn:aws:kinesis:{REGION}:000000000000:stream/{name}")

    def at(self, arn):
        self.arn = arn
        adapters = {
            "records": self.clients.stream_records,
            "control": self.clients.stream_control,
            "pool": self.pool,
            "wire": self._opened if self.calls == "wire" else None,
        }
        self.reader = KinesisPolling(arn, **adapters)
        self.writer = KinesisWriter(arn, **adapters)
        return self

    def _opened(self):
        wire = self.clients.wire_to(self.arn)()
        if wire is None:
            return None
        service = wire.service
        call = type(service).call

        def noted(operation, body, **of):
            asked = cbor2.loads(body) if of.get("content_type") else json.loads(body)
            self.sent.append((operation, asked))
            self._count()
            return call(service, operation, body, **of)

        send = type(service).send

        def noted_if_sent(operation, body):
            request = send(service, operation, body)
            if request is not None:
                self.sent.append((operation, json.loads(body)))
                self._count()
            return request

        service.call, service.send = noted, noted_if_sent
        return wire

    def _note(self, params, model, **_):
        self.sent.append((model.name, dict(params)))

    def _count(self, **_):
        self.attempts += 1

    def create(self, shards):
        self.admin.create_stream(StreamName=self.name, ShardCount=shards)
        self.sent.clear()
        return self

    def put(self, *entries):
        return run(self.writer.put_records(entries))

    def shards(self):
        return run(self.reader.list_shards())

    def iterator(self, shard_id, start=HORIZON):
        return self.reader._shard_iterator(shard_id, start)

    def page(self, iterator, shard_id, limit=100):
        return run(self.reader.page(shard_id, HORIZON, resume_token=iterator, limit=limit))

    def users(self):
        """Return key -> data of its user records; shards in the order in which they were opened."""
        found = {}
        for shard in self.shards():
            for page in self.read(shard.shard_id, limit=10_000):
                for record in page.records:
                    expanded = deaggregate(
                        record.data,
                        partition_key=record.partition_key,
                        limits=ExpansionLimits(),
                        hash_range=None,
                        policy="deliver",
                    )
                    for user in expanded.records:
                        found.setdefault(user.partition_key, []).append(user.data)
        return found

    def read(self, shard_id, start=HORIZON, limit=100):
        """Return the pages up to the end of the shard, or to the first empty one."""
        token, found = None, []
        while not found or (token and found[-1].records):
            ask = self.reader.page(shard_id, start, resume_token=token, limit=limit)
            found.append(run(ask))
            token = found[-1].resume_token
        return found

    def inject(self, kind, **fault):
        body = {"Kind": kind, "StreamName": self.name, **fault}
        self._administer({"Action": "Inject", "Fault": body})

    def trim(self, shard_id):
        self._administer({"Action": "Trim", "StreamName": self.name, "ShardId": shard_id})

    def _administer(self, body):
        connection = http.client.HTTPConnection(urlsplit(self.endpoint).netloc)
        target = {
            "X-Amz-Target": "ShardfleetLocal.Faults",
            "Content-Type": "application/x-amz-json-1.1",
            "Authorization": AccessKey(os.environ["AWS_ACCESS_KEY_ID"]).authorization(),
        }
        connection.request("POST", "/", json.dumps(body), target)
        response = connection.getresponse()
        assert response.status == http.HTTPStatus.OK, response.read()
        connection.close()
