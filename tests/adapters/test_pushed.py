"""Records pushed by the embedded AWS, over TLS and HTTP/2: what every source of pages promises."""

import asyncio
import uuid

import pytest

from shardfleet.adapters.clients.aws_clients import AwsClients
from shardfleet.adapters.http.plain_environment import plain_environment
from shardfleet.adapters.kinesis.polling import KinesisPolling
from shardfleet.adapters.kinesis.pushed import KinesisPushing
from shardfleet.adapters.system import SystemClock
from shardfleet.adapters.thread_pool import ThreadPool
from shardfleet.domain.leases.shard_ref import ShardRef
from shardfleet.domain.reading.pages import FROM_TRIM_HORIZON, StartingPosition, StartKind
from shardfleet.engine.retry import Halt
from shardfleet.engine.shard import pushing
from shardfleet.engine.shard.polling import PolledSource
from shardfleet.engine.shard.pushing import PushedSource
from shardfleet.errors import (
    ConfigurationError,
    ForeignPosition,
)
from shardfleet_local.aws.launcher import EmbeddedAws
from shardfleet_local.aws.settings import AwsBehaviour
from shardfleet_testkit.memory import MemoryEvents
from tests.adapters.loopback import doubted
from tests.adapters.tables import LIMITS
from tests.adapters.tls import certificate
from tests.testing.shard_source_contract import PROMISES

pytestmark = pytest.mark.processes
SHARD_0, SHARD_2 = "shardId-000000000000", "shardId-000000000002"
MIB = 1 << 20


@pytest.fixture(scope="module")
def aws(tmp_path_factory):
    file = certificate(tmp_path_factory.mktemp("tls"))
    behaviour = AwsBehaviour(certificate=str(file), kinesis_quotas=False)
    with EmbeddedAws(behaviour=behaviour) as running:
        yield running


class Bench:
    """A stream of two shards with a consumer, and a source of the first one's pages."""

    shard = SHARD_0
    ref = ShardRef("arn", SHARD_0)

    def __init__(self, aws):
        self.kinesis, name = aws.client("kinesis"), f"s{uuid.uuid4().hex[:8]}"
        self.kinesis.create_stream(StreamName=name, ShardCount=2)
        described = self.kinesis.describe_stream_summary(StreamName=name)
        described = described["StreamDescriptionSummary"]
        self.name, self.arn = name, described["StreamARN"]
        self.begun_ms = int(described["StreamCreationTimestamp"].timestamp() * 1000)
        made = self.kinesis.register_stream_consumer(StreamARN=self.arn, ConsumerName="c")
        self.consumer = made["Consumer"]["ConsumerARN"]
        environment = {
            **aws.environment(),
            "AWS_ENDPOINT_URL": aws.tls_endpoint_url,
            "AWS_CA_BUNDLE": aws._behaviour.certificate,
        }
        del environment["NO_PROXY"]
        plain = plain_environment(environment)
        assert plain is not None
        self.clients = AwsClients(LIMITS, plain=plain)
        self.events = MemoryEvents()
        self.made = []
        self._make()

    def _make(self):
        pool, clock = ThreadPool("streams", threads=4), SystemClock()
        wire = self.clients.wire_to(self.arn)
        reader = KinesisPolling(self.arn, records=None, control=None, pool=pool, wire=wire)
        self.subscriptions = KinesisPushing(self.arn, self.consumer, wire=wire, pool=pool)
        polled = PolledSource(reader, clock)
        self.source = PushedSource(self.subscriptions, polled, clock=clock, events=self.events)
        self.made.append((self.source, pool))

    async def put(self, data):
        put = {"StreamName": self.name, "PartitionKey": "k", "ExplicitHashKey": "1", "Data": data}
        return (await asyncio.to_thread(self.kinesis.put_record, **put))["SequenceNumber"]

    async def close_shard(self):
        merged = {"ShardToMerge": SHARD_0, "AdjacentShardToMerge": "shardId-000000000001"}
        self.kinesis.merge_shards(StreamName=self.name, **merged)
        return [SHARD_2]

    async def begin_anew(self):
        await self.source.close()
        self._make()

    async def pause(self):
        await asyncio.sleep(0)

    async def page(self, token=None, start=FROM_TRIM_HORIZON, limit=10_000):
        return await self.source.page(self.ref, start, resume_token=token, limit=limit, halt=Halt())

    async def data(self, count, token=None):
        """Read so many records; return their data, and the token behind them."""
        found = []
        while len(found) < count:
            page = await self.page(token)
            found += [record.data for record in page.records]
            token = page.resume_token
        return found, token

    async def close(self):
        for source, pool in self.made:
            await source.close()
            assert await pool.close(within_ms=30_000)


@pytest.fixture
def on_bench(aws, monkeypatch):
    # Without quotas the engine has no five seconds, and what waits for them is tested elsewhere.
    monkeypatch.setattr(pushing, "APART_MS", 0)

    def run(scenario):
        async def main():
            bench = Bench(aws)
            try:
                return await asyncio.wait_for(scenario(bench), 120)
            finally:
                await bench.close()

        return asyncio.run(main())

    return run


@pytest.mark.parametrize("promise", PROMISES, ids=lambda promise: promise.__name__)
def test_a_source_that_is_pushed_over_tls_keeps(promise, on_bench):
    on_bench(promise)


def test_all_shards_share_one_connection(on_bench):
    async def scenario(bench):
        for number in range(2):
            shard = ShardRef("arn", f"shardId-{number:012}")
            page = bench.source.page(
                shard, FROM_TRIM_HORIZON, resume_token=None, limit=1, halt=Halt()
            )
            await page
        (connection,) = bench.subscriptions._connections._open
        assert len(connection._answers) == 2

    on_bench(scenario)


def test_more_than_a_window_of_records_comes_to_a_reader_who_takes_it(on_bench):
    async def scenario(bench):
        sent = [bytes([number]) * MIB for number in range(6)]
        for data in sent:
            await bench.put(data[:-1])
        found, _ = await bench.data(6)
        assert found == [data[:-1] for data in sent]

    on_bench(scenario)


def test_a_record_that_is_larger_than_the_window_comes(on_bench):
    async def scenario(bench):
        bench.kinesis.update_max_record_size(StreamARN=bench.arn, MaxRecordSizeInKiB=10_240)
        data = b"x" * (5 * MIB)
        await bench.put(data)
        assert (await bench.data(1))[0] == [data]

    on_bench(scenario)


def test_a_refusal_is_told_as_what_it_is(on_bench):
    async def scenario(bench):
        behind = StartingPosition(StartKind.AFTER_SEQUENCE_NUMBER, "1")
        with pytest.raises(ForeignPosition):
            await bench.page(start=behind)
        bench.kinesis.deregister_stream_consumer(ConsumerARN=bench.consumer)
        with doubted(ConfigurationError, match="Consumer"):
            await bench.page()

    on_bench(scenario)


def test_a_consumer_that_goes_while_it_is_read_is_no_shard_that_is_gone(on_bench):
    async def scenario(bench):
        page = await bench.page()
        bench.kinesis.deregister_stream_consumer(ConsumerARN=bench.consumer)
        with doubted(ConfigurationError, match="Consumer"):
            await bench.data(1, page.resume_token)

    on_bench(scenario)
