"""
The state of one account in one region: its streams, the clock, what is due later.

Operations (the `*_operations.py` modules) are functions of an `Account` and a request; they hold no
state of their own. Phases of configurable length (CREATING, UPDATING, DELETING) are *changes due*:
with length 0 they happen at once, otherwise at the first call after their time.
"""

import re
import threading
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from shardfleet_local.kinesis.errors import (
    KinesisError,
    in_use,
    invalid_argument,
    limit_exceeded,
    not_found,
)
from shardfleet_local.kinesis.faults import ActiveFaults, FaultKind, Site
from shardfleet_local.kinesis.metrics import MetricLog
from shardfleet_local.kinesis.quotas import OperationQuota
from shardfleet_local.kinesis.requests import Request, broken, name, optional_text
from shardfleet_local.kinesis.shards import StoredShard
from shardfleet_local.kinesis.streams import Consumer, Stream, StreamStatus

_STREAM_ARN: Final = re.compile(
    r"arn:aws[a-z-]*:kinesis:[a-z0-9-]+:\d{12}:stream/([a-zA-Z0-9_.-]+)"
)
_CONSUMER_ARN: Final = re.compile(
    r"(arn:aws[a-z-]*:kinesis:[a-z0-9-]+:\d{12}:stream/[a-zA-Z0-9_.-]+)"
    r"/consumer/([a-zA-Z0-9_.-]+):\d+"
)


@dataclass(frozen=True, slots=True)
class Phases:
    """How long streams and consumers stay in their passing statuses (ms; 0 = not at all)."""

    creating_ms: int = 0
    updating_ms: int = 0
    deleting_ms: int = 0
    consumer_ms: int = 0


@dataclass(frozen=True, slots=True)
class AccountSettings:
    """
    What does not change while an engine lives.

    `quotas` switches shard limits and call rates on or off; `shard_limit` is the account's quota of
    open shards (20,000 in the largest regions). `unkind` is a seed: what AWS leaves open happens
    (faults.py), drawn from it; None: it does not.
    """

    account_id: str = "000000000000"
    region: str = "us-east-1"
    quotas: bool = True
    phases: Phases = Phases()
    shard_limit: int = 20_000  # fact K46
    on_demand_advantage: bool = False
    unkind: int | None = None


class Account:
    """Streams of one account in one region."""

    def __init__(self, settings: AccountSettings, clock: Callable[[], float]) -> None:
        self.settings = settings
        self.streams: dict[str, Stream] = {}
        self.metrics = MetricLog()
        self.operation_quota = OperationQuota()
        # Front ends may call from several threads (ministack's do); whoever touches the state of
        # the account, streams and shards included, holds this.
        self.lock = threading.RLock()
        self._clock = clock
        self._now_ms = 0
        self._due: list[tuple[int, Callable[[int], None]]] = []
        self.faults = ActiveFaults(self.now_ms, settings.unkind)

    def now_ms(self) -> int:
        """Return the time in epoch ms; it never goes backwards, whatever the clock does."""
        self._now_ms = max(self._now_ms, int(self._clock() * 1000))
        return self._now_ms

    # Changes due

    def after(self, delay_ms: int, change: Callable[[int], None]) -> None:
        """Carry out the change when the delay is over; at once if it is 0."""
        now_ms = self.now_ms()
        if delay_ms <= 0:
            change(now_ms)
        else:
            self._due.append((now_ms + delay_ms, change))

    def settle(self) -> int:
        """Carry out what has come due, in its order; return the time (epoch ms)."""
        now_ms = self.now_ms()
        while self._due:
            due_ms, change = min(self._due, key=lambda each: each[0])
            if due_ms > now_ms:
                break
            self._due.remove((due_ms, change))
            change(now_ms)
        return now_ms

    def next_due_ms(self) -> int | None:
        """Return when the next change is due (epoch ms), or None."""
        return min((due_ms for due_ms, _ in self._due), default=None)

    def begin_update(self, stream: Stream, change: Callable[[int], None]) -> None:
        """Put an ACTIVE stream into UPDATING, carry out the change at its end, and be ACTIVE."""
        self.require_active(stream)

        def finish(now_ms: int) -> None:
            change(now_ms)
            stream.status = StreamStatus.ACTIVE

        stream.status = StreamStatus.UPDATING
        self.after(self.settings.phases.updating_ms, finish)

    # Looking things up

    def arn_of(self, stream_name: str) -> str:
        """Return the ARN of a stream of this account."""
        owner = f"{self.settings.region}:{self.settings.account_id}"
        return f"arn:aws:kinesis:{owner}:stream/{stream_name}"

    def stream(self, request: Request) -> Stream:
        """
        Return the stream that StreamName, StreamARN or both name.

        Raises:
            KinesisError: InvalidArgumentException without either or with two that disagree,
                ResourceNotFoundException if there is none of that name.

        """
        arn = optional_text(request, "StreamARN")
        named = optional_text(request, "StreamName")
        if arn is None and named is None:
            raise invalid_argument("Either StreamName or StreamARN must be given.")  # fact K63
        if arn is None:
            return self.stream_named(name(request, "StreamName"))
        stream = self.stream_with_arn(arn)
        if named is not None and named != stream.name:
            raise invalid_argument(f"StreamName {named} is not the stream of {arn}.")  # fact K63
        return stream

    def stream_with_arn(self, arn: str) -> Stream:
        """Return the stream with the ARN; raise as `stream` does."""
        match = _STREAM_ARN.fullmatch(arn)
        if match is None:
            raise broken(  # fact K60
                arn, "streamARN", constraint="Member must satisfy the pattern of a stream ARN"
            )
        stream = self.stream_named(match[1])
        if stream.arn != arn:
            raise not_found(
                f"{arn} was not found; the stream of that name is {stream.arn}."
            )  # fact K62
        return stream

    def stream_named(self, stream_name: str) -> Stream:
        """Return the stream of that name, in whatever status it is."""
        stream = self.streams.get(stream_name)
        if stream is None:
            raise not_found(  # fact K62
                f"Stream {stream_name} under account {self.settings.account_id} not found."
            )
        return stream

    def usable_stream(self, request: Request) -> Stream:
        """Return the stream for reading or writing records: one that has been created."""
        stream = self.stream(request)
        if stream.status is StreamStatus.CREATING:
            raise not_found(  # fact K85
                f"Stream {stream.name} under account {self.settings.account_id} not found: "
                "it is CREATING."
            )
        return stream

    def shard(self, stream: Stream, shard_id: str) -> StoredShard:
        """Return the shard, its expired records gone; ResourceNotFoundException if it is gone."""
        shard = stream.live_shard(shard_id, self.now_ms())
        if shard is None:
            raise not_found(  # fact K62, K82
                f"Shard {shard_id} in stream {stream.name} under account "
                f"{self.settings.account_id} does not exist."
            )
        return shard

    def check_key(self, stream: Stream, action: str) -> None:
        """Raise KMSAccessDeniedException while grants of the stream's new key are not yet seen."""
        if stream.settings.key_id is None:
            return
        denied = self.faults.take(FaultKind.DENIED_KEYS, Site(stream.name))
        if denied and self.now_ms() - stream.settings.key_since_ms < denied.delay_ms:
            raise KinesisError(  # fact I01
                "KMSAccessDeniedException",
                f"User arn:aws:iam::{self.settings.account_id}:root is not authorized to {action} "
                f"records in stream {stream.name}.",
            )

    def require_active(self, stream: Stream) -> None:
        """Raise ResourceInUseException unless the stream is ACTIVE."""
        if stream.status is not StreamStatus.ACTIVE:
            raise in_use(  # fact K64
                f"Stream {stream.name} under account {self.settings.account_id} is "
                f"{stream.status}, not ACTIVE."
            )

    def consumer(self, request: Request) -> tuple[Stream, Consumer]:
        """Return the consumer that ConsumerARN, or StreamARN and ConsumerName, name."""
        arn = optional_text(request, "ConsumerARN")
        if arn is None:
            stream = self.stream(request)
            consumer = stream.consumers.get(name(request, "ConsumerName"))
            shown = f"{request['ConsumerName']} of {stream.arn}"
        else:
            match = _CONSUMER_ARN.fullmatch(arn)
            if match is None:
                raise broken(  # fact K60
                    arn,
                    "consumerARN",
                    constraint="Member must satisfy the pattern of a consumer ARN",
                )
            stream = self.stream_with_arn(match[1])
            consumer = stream.consumers.get(match[2])
            shown = arn
        if consumer is None or arn not in (None, consumer.arn):
            raise not_found(f"Consumer {shown} not found.")  # fact K62, K87
        return stream, consumer

    # Counting

    def open_shard_count(self) -> int:
        """Return the number of open shards of all streams."""
        return sum(len(stream.open_shards) for stream in self.streams.values())

    def check_shard_room(self, more: int) -> None:
        """Raise LimitExceededException where so many more open shards are too many."""
        limit, there = self.settings.shard_limit, self.open_shard_count()
        if there + more > limit:
            raise limit_exceeded(  # fact K46
                f"This request would exceed the shard limit for the account "
                f"{self.settings.account_id} in {self.settings.region}. Current shard count for "
                f"the account: {there}. Limit: {limit}. Number of additional shards that would "
                f"have resulted from this request: {more}."
            )
