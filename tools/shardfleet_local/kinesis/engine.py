"""
The engine: every operation of one account in one region, on an injected clock.

    engine = KinesisEngine(AccountSettings(quotas=False), clock=time.time)
    engine.call("CreateStream", {"StreamName": "clicks", "ShardCount": 4})
    engine.call("PutRecord", {"StreamName": "clicks", "PartitionKey": "a", "Data": "aGVsbG8="})

Requests and answers are what the JSON protocol carries: data in base64, timestamps in seconds since
the epoch. Written from the Kinesis API reference and botocore's service model (1.43.106).

Not implemented: channels, account settings, warm throughput, record distribution strategies (all of
2025-26), DryRun, and the evaluation of resource policies (they are kept and handed back).
"""

from collections.abc import Callable, Mapping
from contextlib import suppress
from typing import Any, Final

from shardfleet_local.kinesis import (
    consumer_operations,
    get_operations,
    put_operations,
    shard_operations,
    stream_operations,
    tag_operations,
)
from shardfleet_local.kinesis.account import Account, AccountSettings
from shardfleet_local.kinesis.errors import KinesisError, limit_exceeded, validation
from shardfleet_local.kinesis.faults import ActiveFaults, FaultKind, Site, injected
from shardfleet_local.kinesis.metrics import MetricSample
from shardfleet_local.kinesis.quotas import OPERATION_RATES
from shardfleet_local.kinesis.requests import Request, check_stream_id
from shardfleet_local.kinesis.subscriptions import SUBSCRIBE, Subscription, subscribe
from shardfleet_local.kinesis.tokens import iterator_of, named_stream

OPERATIONS: Final[Mapping[str, Callable[[Account, Request], dict[str, Any]]]] = {
    **stream_operations.OPERATIONS,
    **shard_operations.OPERATIONS,
    **put_operations.OPERATIONS,
    **get_operations.OPERATIONS,
    **consumer_operations.OPERATIONS,
    **tag_operations.OPERATIONS,
}
RATE_TEXT: Final = "times a second per"
"""What tells a rate of calls from a limit of the account: both are LimitExceededException."""


class KinesisEngine:
    """
    Kinesis for one account in one region, in memory.

    `clock` returns seconds since the epoch; retention, iterator expiry, quotas, lag and phases all
    follow it. Calls are safe from any thread. `faults` breaks things on purpose.
    """

    def __init__(
        self, settings: AccountSettings | None = None, *, clock: Callable[[], float]
    ) -> None:
        self.settings = settings or AccountSettings()
        self._account = Account(self.settings, clock)

    @property
    def faults(self) -> ActiveFaults:
        """The faults in force on this engine."""
        return self._account.faults

    def call(self, operation: str, request: Request) -> dict[str, Any]:
        """
        Carry out an operation (any but SubscribeToShard) and return its answer.

        Raises:
            KinesisError: every refusal, with the API's code; UnknownOperationException for an
                operation that is not implemented.

        """
        run = OPERATIONS.get(operation)
        if run is None:
            raise KinesisError(  # fact K90
                "UnknownOperationException",
                f"{operation} is not among the operations of the local Kinesis engine: "
                f"{', '.join(sorted((*OPERATIONS, SUBSCRIBE)))}.",
            )
        with self._account.lock:
            self._admit(operation, request)
            answer = run(self._account, request)
            if self.faults.any:
                lost = self.faults.take(FaultKind.LOST_REPLY, self._site(operation, request))
                if lost is not None:
                    raise injected("InternalFailure")  # fact K32, K92
            return answer

    def subscribe(self, request: Request) -> Subscription:
        """Carry out SubscribeToShard; its `events()` yields until the subscription is over."""
        with self._account.lock:
            self._admit(SUBSCRIBE, request)
            return subscribe(self._account, request)

    def delay_ms(self, operation: str, request: Request) -> int:
        """Return how much later the answer is to be sent (a LATENCY fault); usually 0."""
        with self._account.lock:
            if not self.faults.any:
                return 0
            fault = self.faults.take(FaultKind.LATENCY, self._site(operation, request))
            return 0 if fault is None else fault.delay_ms

    def drain_metrics(self) -> list[MetricSample]:
        """Return what CloudWatch would have got since the last call, oldest first."""
        with self._account.lock:
            return self._account.metrics.drain()

    def trim(self, stream_name: str, shard_id: str) -> None:
        """
        Make every record now in the shard too old, as if its retention period had passed.

        A closed shard leaves the stream with them.

        Raises:
            KinesisError: ResourceNotFoundException if there is no such stream or shard.

        """
        with self._account.lock:
            stream = self._account.stream_named(stream_name)
            shard = self._account.shard(stream, shard_id)
            now_ms = self._account.now_ms()
            shard.log.trim(now_ms + 1)
            if not shard.is_open:
                shard.closed_ms = stream.horizon_ms(now_ms) - 1

    def _admit(self, operation: str, request: Request) -> None:
        now_ms = self._account.settle()
        if self.faults.any:
            self.faults.raise_failure(self._site(operation, request))
        check_stream_id(request)
        if request.get("DryRun"):
            raise validation("DryRun is not implemented by the local Kinesis engine.")  # fact K91
        quotas = self._account.operation_quota
        if self.settings.quotas and not quotas.take(operation, request, now_ms=now_ms):
            rate, scope = OPERATION_RATES[operation]
            raise limit_exceeded(
                f"{operation} may be called {rate:g} {RATE_TEXT} {scope}."
            )  # fact K80

    def _site(self, operation: str, request: Request) -> Site:
        stream, shard = named_stream(request), str(request.get("ShardId") or "")
        if isinstance(request.get("ShardIterator"), str):
            with suppress(KinesisError):
                iterator = iterator_of(request["ShardIterator"], self._account.now_ms())
                stream, shard = stream or iterator.stream, iterator.shard
        return Site(stream, shard, operation)
