"""
The SDK clients and their settings: time-outs, attempts, connections.

The endpoint, region and credentials come from the environment as boto3 reads them
(``AWS_ENDPOINT_URL``, ``AWS_REGION``, ...). Clients are safe to share between threads and are kept
for the life of a sandbox; making one costs tens of milliseconds.

Attempts: a lease or state write is sent once, because a silent second attempt would hide whether
an outcome was ever unknown (hazard H1). Reads of records are sent once too: the engine paces and
repeats them, and a hidden repeat would count against the 5 calls/s of the shard. Everything else
is repeated by the SDK's standard mode.
"""

from __future__ import annotations

from functools import cached_property, partial
from threading import Lock, RLock
from typing import TYPE_CHECKING, Any, cast

from msgspec import Struct

from shardfleet.adapters.dynamodb.wire import TableWire, open_tables
from shardfleet.adapters.http.client_wire import ClientWire
from shardfleet.adapters.http.connections import IDLE_MS, PROBED
from shardfleet.adapters.http.json_service import JsonEndpoint, JsonService, Limits
from shardfleet.adapters.http.plain_environment import (
    DYNAMODB,
    KINESIS,
    STATES,
    PlainEnvironment,
)
from shardfleet.adapters.kinesis.control_wire import ControlWire
from shardfleet.adapters.kinesis.shards import leave_unread
from shardfleet.adapters.kinesis.wire import (
    JSON_PAGES,
    KinesisWire,
    OpenWire,
    PageFormat,
    open_wire,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from botocore.config import Config
    from botocore.session import Session
    from mypy_boto3_dynamodb.client import DynamoDBClient
    from mypy_boto3_kinesis.client import KinesisClient
    from mypy_boto3_s3.client import S3Client
    from mypy_boto3_sqs.client import SQSClient
    from mypy_boto3_stepfunctions.client import SFNClient

ATTEMPTS = 3  # of the SDK's standard mode
# Hazard H1: a lease write is given up within 2 s, well inside a renewal period of 3.3 s.
WRITE_TIMEOUT_S = 2.0
CONNECT_TIMEOUT_S = 1.0
READ_TIMEOUT_S = 5.0
_METERED_WRITES = frozenset({"PutItem", "UpdateItem", "DeleteItem"})
_METERED_READS = frozenset({"GetItem", "Query", "Scan"})
_REFUSED = "ConditionalCheckFailedException"
OF_EXECUTIONS = {"describe_execution": "DescribeExecution", "start_execution": "StartExecution"}


class ConnectionLimits(Struct, frozen=True, kw_only=True):
    """
    How many connections each kind of call may keep open: as many as it has threads.

    Attributes:
        writes: lease and state writes.
        reads: table reads.
        streams: everything else.
        calls: invocations of a handler that is a function of its own.
        call_ms: how long an answer of such a one is waited for.
        idle_ms: a connection unused for longer is not used again.

    """

    writes: int
    reads: int
    streams: int
    calls: int = 0
    call_ms: int = 0
    idle_ms: int = IDLE_MS


class CapacityMeter:
    """
    Counts units of DynamoDB over clients, as it says with each answer; safe between threads.

    The clients' calls are asked to say so (`ReturnConsumedCapacity`); what a refused conditional
    write costs DynamoDB does not say, so it counts as one unit.
    """

    def __init__(self) -> None:
        """Begin at nothing."""
        self._lock = Lock()
        self._read = 0.0
        self._written = 0.0

    def used_tenths(self) -> tuple[int, int]:
        """Return read and write units so far, in tenths: half a unit is the least."""
        with self._lock:
            return round(self._read * 10), round(self._written * 10)

    def watch(self, client: Any) -> None:
        """Count what a DynamoDB client's calls use from now on."""
        events = client.meta.events
        for operation in _METERED_READS | _METERED_WRITES:
            events.register(f"provide-client-params.dynamodb.{operation}", _ask)
            events.register(f"after-call.dynamodb.{operation}", self._count)

    def _count(self, *, parsed: dict[str, Any], model: Any, **_: Any) -> None:
        self.count(model.name, parsed)

    def count(self, operation: str, parsed: Mapping[str, Any]) -> None:
        """Count what one call used, by its answer."""
        found = parsed.get("ConsumedCapacity")
        units = float(found.get("CapacityUnits", 0)) if found else 0.0
        if parsed.get("Error", {}).get("Code") == _REFUSED:
            units = 1.0
        with self._lock:
            if operation in _METERED_WRITES:
                self._written += units
            else:
                self._read += units


class Later:
    """A client that is made when it is first asked for something."""

    def __init__(self, make: Callable[[], Any]) -> None:
        """Make nothing yet."""
        self._make = make

    def __getattr__(self, name: str) -> Any:
        """Return the attribute of the client."""
        return getattr(self._make(), name)


class AwsClients:
    """
    The clients of one sandbox, each made when first asked for.

    Args:
        limits: connections per kind of call.
        stream_region: region of the stream; None: the region of the session.
        session: has credentials and region; None: the environment's.
        endpoint: URL of all services; None: AWS's own, or the environment's.
        plain: what the environment says by itself: the wires then open without the SDK; None: as
            the SDK's clients say.

    Attributes:
        capacity: what the tables' clients have used.

    """

    records_timeout_s = 10.0  # One GetRecords returns up to 10 MiB (Kinesis quota).

    def __init__(
        self,
        limits: ConnectionLimits,
        *,
        stream_region: str | None = None,
        session: Session | None = None,
        endpoint: str | None = None,
        plain: PlainEnvironment | None = None,
    ) -> None:
        """Make no client yet."""
        self.capacity = CapacityMeter()
        self._limits = limits
        self._stream_region = stream_region
        self._endpoint = endpoint
        self._given = session
        self._plain = plain
        self._wires: dict[tuple[str, PageFormat], KinesisWire | None] = {}
        self._lock = RLock()

    @cached_property
    def _sdk(self) -> Session:
        from botocore.session import get_session  # noqa: PLC0415 - see http/connections.py

        return self._given or get_session()

    def later(self, name: str) -> Any:
        """Return the client of that name, to be made when it is first asked for something."""
        return Later(partial(self._made, name))

    def _made(self, name: str) -> Any:
        """Return the client of that name, made once, whichever threads ask for it first."""
        with self._lock:
            return getattr(self, name)

    def _client(
        self, service: str, *, connections: int = 0, region_name: str | None = None, **settings: Any
    ) -> Any:
        """
        Make a client as boto3 does; boto3 itself would load what only file transfers need.

        Args:
            service: as the SDK names it.
            connections: 0: as many as everything else than tables may keep.
            region_name: None: that of the session.
            settings: attempts and time-out, see :func:`client_config`.

        """
        client: Any = self._sdk.create_client(
            service,
            config=client_config(connections or self._limits.streams, **settings),
            region_name=region_name,
            endpoint_url=self._endpoint,
        )
        # ``tcp_keepalive`` says nothing of when: botocore has no other way in.
        client._endpoint.http_session._socket_options += PROBED  # noqa: SLF001
        return client

    def drop_connections(self) -> None:
        """Close what is kept open; the clients stay, and connect anew when they are asked."""
        for made in [*vars(self).values()]:
            if isinstance(made, ClientWire) or hasattr(made, "meta"):
                made.close()
        for wire in [*self._wires.values()]:
            if wire is not None:
                wire.close()

    @cached_property
    def table_writes(self) -> DynamoDBClient:
        """Lease and state writes: one attempt, 2 s."""
        return self._table_client(
            connections=self._limits.writes, attempts=1, read_timeout_s=WRITE_TIMEOUT_S
        )

    @cached_property
    def table_reads(self) -> DynamoDBClient:
        """Reads of both tables."""
        return self._table_client(connections=self._limits.reads)

    @cached_property
    def wired_writes(self) -> DynamoDBClient:
        """:attr:`table_writes` without the SDK's shapes (``stream_calls``)."""
        return self._wired("table_writes", self._limits.writes, read_timeout_s=WRITE_TIMEOUT_S)

    @cached_property
    def wired_reads(self) -> DynamoDBClient:
        """:attr:`table_reads` without the SDK's shapes (``stream_calls``)."""
        return self._wired("table_reads", self._limits.reads)

    def _wired(
        self, name: str, connections: int, *, read_timeout_s: float = READ_TIMEOUT_S
    ) -> DynamoDBClient:
        client, idle_ms = partial(self._made, name), self._limits.idle_ms

        def opened() -> JsonService | None:
            if self._plain is None:
                return open_tables(client(), self._sdk, idle_ms=idle_ms)
            place = self._plain.of_region(DYNAMODB)
            return self._opened(place, name, connections, read_timeout_s=read_timeout_s)

        wire = TableWire(client, opened, count=self.capacity.count)
        return cast("DynamoDBClient", wire)

    def _table_client(self, **settings: Any) -> DynamoDBClient:
        client: DynamoDBClient = self._client("dynamodb", **settings)
        self.capacity.watch(client)
        return client

    @cached_property
    def stream_records(self) -> KinesisClient:
        """GetShardIterator, GetRecords and PutRecords: one attempt, the engine repeats."""
        return cast(
            "KinesisClient",
            self._client(
                "kinesis",
                region_name=self._stream_region,
                attempts=1,
                read_timeout_s=self.records_timeout_s,
            ),
        )

    def wire_to(self, stream_arn: str, *, long_pages: PageFormat = JSON_PAGES) -> OpenWire:
        """Return what opens the quick way for GetRecords and PutRecords, once for all callers."""

        def opened() -> KinesisWire | None:
            with self._lock:
                key = (stream_arn, long_pages)
                if key not in self._wires:
                    self._wires[key] = self._open_wire(*key)
                return self._wires[key]

        return opened

    def _open_wire(self, stream_arn: str, long_pages: PageFormat) -> KinesisWire | None:
        plain, most = self._plain, self._limits.streams
        place = plain and plain.stream(stream_arn, "data")
        timeout_s = self.records_timeout_s
        service = self._opened(place, "stream_records", most, read_timeout_s=timeout_s)
        if service is None:
            return open_wire(
                stream_arn,
                client=self.stream_records,
                session=self._sdk,
                idle_ms=self._limits.idle_ms,
                long_pages=long_pages,
            )
        return KinesisWire(stream_arn, service, long_pages=long_pages)

    def _opened(
        self,
        place: JsonEndpoint | None,
        name: str,
        connections: int,
        *,
        read_timeout_s: float = READ_TIMEOUT_S,
    ) -> JsonService | None:
        """Return the service at a place with the limits of a client; None: no place is known."""
        if self._plain is None or place is None:
            return None
        timeouts = (CONNECT_TIMEOUT_S, read_timeout_s)
        limits = Limits(max(1, connections), *timeouts, self._limits.idle_ms)
        return self._plain.open(place, partial(self._made, name), limits)

    @cached_property
    def stream_control(self) -> KinesisClient:
        """DescribeStreamSummary and ListShards."""
        client: KinesisClient = self._client("kinesis", region_name=self._stream_region)
        leave_unread(client, "ListShards")
        return client

    @cached_property
    def wired_control(self) -> KinesisClient:
        """:attr:`stream_control`, without the SDK where the environment says all by itself."""

        def opened(stream_arn: str | None) -> JsonService | None:
            plain, region = self._plain, self._stream_region
            if stream_arn:
                place = plain and plain.stream(stream_arn, "control")
            else:
                place = plain and plain.of_region(KINESIS, region)
            return self._opened(place, "stream_control", self._limits.streams)

        return cast("KinesisClient", ControlWire(partial(self._made, "stream_control"), opened))

    @cached_property
    def step_functions(self) -> SFNClient:
        """StartExecution and DescribeExecution."""
        return cast("SFNClient", self._client("stepfunctions"))

    @cached_property
    def wired_states(self) -> SFNClient:
        """:attr:`step_functions`, without the SDK where the environment says all by itself."""

        def opened(_: str | None) -> JsonService | None:
            place = self._plain and self._plain.of_region(STATES)
            return self._opened(place, "step_functions", self._limits.streams)

        client = partial(self._made, "step_functions")
        return cast("SFNClient", ClientWire(client, opened, operations=OF_EXECUTIONS))

    @cached_property
    def functions(self) -> Any:
        """Invoke: one attempt, for a function that ran is not to run twice unseen."""
        seconds = self._limits.call_ms / 1000
        return self._client(
            "lambda", connections=self._limits.calls, attempts=1, read_timeout_s=seconds
        )

    @cached_property
    def sqs(self) -> SQSClient:
        """SendMessage."""
        return cast("SQSClient", self._client("sqs"))

    @cached_property
    def sns(self) -> Any:
        """Publish."""
        return self._client("sns")

    @cached_property
    def s3(self) -> S3Client:
        """PutObject."""
        return cast("S3Client", self._client("s3", read_timeout_s=self.records_timeout_s))


def client_config(
    connections: int, *, attempts: int = ATTEMPTS, read_timeout_s: float = READ_TIMEOUT_S
) -> Config:
    """Return the SDK settings of one client; ``attempts`` 1 means that nothing is repeated."""
    from botocore.config import Config  # noqa: PLC0415 - see http/connections.py

    return Config(
        connect_timeout=CONNECT_TIMEOUT_S,
        read_timeout=read_timeout_s,
        retries={"mode": "standard", "total_max_attempts": attempts},
        max_pool_connections=max(1, connections),
        user_agent_extra="lib/shardfleet",
    )


def region_of(arn: str) -> str | None:
    """Return the region that an ARN names, None when it names none."""
    parts = arn.split(":")
    return parts[3] or None if len(parts) > 3 else None  # noqa: PLR2004 - arn:partition:service:region


def _ask(*, params: dict[str, Any], **_: Any) -> dict[str, Any]:
    return {**params, "ReturnConsumedCapacity": "TOTAL"}
