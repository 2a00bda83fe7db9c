"""
Faults on demand: what Kinesis does to its clients on a bad day, switched on by a test or the demo.

A fault is in force for a time (`duration_ms`, on the engine's clock), for a number of times
(`count`), or until `clear`. It applies to a stream, a shard, an operation, or to everything where
these are left out, and each time with its `chance`. `ShardfleetLocal.Faults` (see admin.py) is the
same over HTTP.

An engine that is *unkind* has those of :data:`UNKIND` in force for ever: all that AWS leaves open,
other people have met, and no documentation promises to stay away. `clear` leaves them.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from enum import StrEnum
from random import Random
from typing import Any, Final, NamedTuple

from shardfleet_local.kinesis.errors import KinesisError, validation


class FaultKind(StrEnum):
    """What can go wrong; the values are the names used over HTTP."""

    THROTTLE_READS = "ThrottleReads"
    """GetRecords fails with ProvisionedThroughputExceededException."""
    THROTTLE_WRITES = "ThrottleWrites"
    """PutRecord fails, and each entry of PutRecords, with the same exception."""
    FAILED_ENTRIES = "FailedEntries"
    """An entry of PutRecords fails with InternalFailure (K31, vectordotdev/vector#359)."""
    SHUFFLED_PUTS = "ShuffledPuts"
    """The entries of a PutRecords request are stored in another order (K30)."""
    EMPTY_READS = "EmptyReads"
    """GetRecords answers no records, lag above zero, and an iterator for the same place."""
    EXPIRED_ITERATORS = "ExpiredIterators"
    """GetRecords fails with ExpiredIteratorException however young the iterator is."""
    SILENT_POSITIONS = "SilentPositions"
    """An iterator at a number older than the retention brings nothing, with the lag of all of it,
    while one at TRIM_HORIZON brings records at once (harlow/kinesis-consumer#125, #98)."""
    REFUSED_POSITIONS = "RefusedPositions"
    """GetShardIterator refuses a number older than the retention with InvalidArgumentException
    (K14, harlow/kinesis-consumer#175)."""
    EMPTY_STARTS = "EmptyStarts"
    """The first pages of a new iterator, up to a dozen, are empty and have lag (K20,
    boto/boto3#1301)."""
    PHANTOM_LAG = "PhantomLag"
    """GetRecords at the end of a shard has lag above zero; only the next iterator says 0 (K21,
    awslabs/spark-sql-kinesis-connector#49)."""
    FIRST_READ_LAG = "FirstReadLag"
    """The first read at TRIM_HORIZON or LATEST has the lag of a whole retention, whatever it brings
    (K22, awslabs/amazon-kinesis-client#158)."""
    UNEVEN_ARRIVALS = "UnevenArrivals"
    """Records say that they arrived up to `DelayMs` before they did, so that their order of arrival
    is not theirs (K28). AT_TIMESTAMP and the retention go by the truth."""
    CHILDREN_UNLISTED = "ChildrenUnlisted"
    """A listing lacks the children of a reshard for `DelayMs`, its parents closed (K05,
    awslabs/amazon-kinesis-scaling-utils#72)."""
    PARENTS_LISTED_OPEN = "ParentsListedOpen"
    """A listing has closed parents open for `DelayMs`, beside their children (K06,
    awslabs/amazon-kinesis-client#282)."""
    DENIED_KEYS = "DeniedKeys"
    """Records of a stream whose key is in use since less than `DelayMs` are refused with
    KMSAccessDeniedException: grants take a while to be seen everywhere (I01, K47)."""
    END_WITHOUT_CHILDREN = "EndWithoutChildren"
    """GetRecords answers neither NextShardIterator nor ChildShards (KCL #624: a false end)."""
    CHILDREN_WITHOUT_END = "ChildrenWithoutEnd"
    """GetRecords answers both NextShardIterator and ChildShards (the other inconsistent form)."""
    SILENCE = "Silence"
    """A subscription says nothing, not even that it is over; for its life where it is counted (K36,
    redpanda-data/connect#4724)."""
    RESET = "Reset"
    """The connection of a subscription breaks off."""
    TAKE_OVER = "TakeOver"
    """A subscription ends as if another one had taken over (K34)."""
    LATENCY = "Latency"
    """Answers come `DelayMs` later."""
    FAILURE = "Failure"
    """The operation fails with `Code` before it does anything (default InternalFailure, a 500)."""
    LOST_REPLY = "LostReply"
    """The operation is carried out, then answered with InternalFailure (500)."""


class Site(NamedTuple):
    """Where something happens: stream name, shard id and operation (empty if unknown)."""

    stream: str = ""
    shard: str = ""
    operation: str = ""


EVERYWHERE: Final = Site()


@dataclass(slots=True)
class ActiveFault:
    """One fault in force; `until_ms` and `remaining` are None when not limited."""

    kind: FaultKind
    site: Site = EVERYWHERE
    until_ms: int | None = None
    remaining: int | None = None
    delay_ms: int = 0
    code: str = "InternalFailure"
    chance: float = 1.0

    def applies(self, site: Site) -> bool:
        """Return whether the fault covers the place; an empty part of its own site covers all."""
        return all(not mine or mine == its for mine, its in zip(self.site, site, strict=True))

    def is_over(self, now_ms: int) -> bool:
        """Return whether its time or its count has run out."""
        late = self.until_ms is not None and now_ms >= self.until_ms
        return late or self.remaining == 0


UNKIND: Final[tuple[tuple[FaultKind, float, int], ...]] = (  # ours
    (FaultKind.CHILDREN_UNLISTED, 0.5, 3_000),
    (FaultKind.PARENTS_LISTED_OPEN, 0.5, 3_000),
    (FaultKind.EMPTY_STARTS, 0.5, 0),
    (FaultKind.PHANTOM_LAG, 0.1, 0),
    (FaultKind.FIRST_READ_LAG, 0.5, 0),
    (FaultKind.UNEVEN_ARRIVALS, 0.3, 2_000),
    (FaultKind.REFUSED_POSITIONS, 0.5, 0),
    (FaultKind.SILENT_POSITIONS, 1.0, 0),
    (FaultKind.DENIED_KEYS, 1.0, 5_000),
)
"""What an unkind engine does all the time: the kind, with which chance, and its `DelayMs`."""


class ActiveFaults:
    """The faults in force on one engine; with a seed it is unkind, and else chances go by 0."""

    def __init__(self, now_ms: Callable[[], int], unkind: int | None = None) -> None:
        self._now_ms = now_ms
        self.random = Random(unkind or 0)
        """What the faults draw from."""
        self._standing = [
            ActiveFault(kind, delay_ms=delay_ms, chance=chance)
            for kind, chance, delay_ms in (UNKIND if unkind is not None else ())
        ]
        self._faults = list(self._standing)

    def throttle_reads(self, stream: str = "", *, shard: str = "", duration_ms: int) -> None:
        """Refuse every GetRecords for that long."""
        self._add(
            ActiveFault(FaultKind.THROTTLE_READS, Site(stream, shard)), duration_ms, count=None
        )

    def throttle_writes(self, stream: str = "", *, shard: str = "", duration_ms: int) -> None:
        """Refuse every record for that long."""
        self._add(
            ActiveFault(FaultKind.THROTTLE_WRITES, Site(stream, shard)), duration_ms, count=None
        )

    def failed_entries(self, stream: str = "", *, shard: str = "", count: int) -> None:
        """Fail the next `count` entries of PutRecords with InternalFailure."""
        self._add(ActiveFault(FaultKind.FAILED_ENTRIES, Site(stream, shard)), None, count=count)

    def shuffled_puts(self, stream: str = "", *, count: int) -> None:
        """Store the entries of the next `count` PutRecords requests in another order."""
        self._add(ActiveFault(FaultKind.SHUFFLED_PUTS, Site(stream)), None, count=count)

    def empty_reads(self, stream: str = "", *, shard: str = "", count: int) -> None:
        """Answer the next `count` GetRecords with nothing, lag, and the same place."""
        self._add(ActiveFault(FaultKind.EMPTY_READS, Site(stream, shard)), None, count=count)

    def silent_positions(self, stream: str = "", *, shard: str = "", count: int) -> None:
        """Let the next `count` iterators at numbers that are too old bring nothing, for ever."""
        self._add(ActiveFault(FaultKind.SILENT_POSITIONS, Site(stream, shard)), None, count=count)

    def expired_iterators(self, stream: str = "", *, shard: str = "", count: int) -> None:
        """Let the next `count` iterators be expired."""
        self._add(ActiveFault(FaultKind.EXPIRED_ITERATORS, Site(stream, shard)), None, count=count)

    def false_end(
        self, stream: str = "", *, shard: str = "", count: int, with_children: bool = False
    ) -> None:
        """
        Let the next `count` GetRecords report an inconsistent end of shard.

        Without children: no iterator and no ChildShards. With children: both of them.
        """
        kind = FaultKind.CHILDREN_WITHOUT_END if with_children else FaultKind.END_WITHOUT_CHILDREN
        self._add(ActiveFault(kind, Site(stream, shard)), None, count=count)

    def latency(
        self, stream: str = "", *, operation: str = "", delay_ms: int, duration_ms: int
    ) -> None:
        """Delay the answers of an operation (or of all) for that long."""
        site = Site(stream, "", operation)
        self._add(ActiveFault(FaultKind.LATENCY, site, delay_ms=delay_ms), duration_ms, count=None)

    def failure(
        self, stream: str = "", *, operation: str = "", count: int, code: str = "InternalFailure"
    ) -> None:
        """Let the next `count` calls fail with the code, doing nothing."""
        self._add(
            ActiveFault(FaultKind.FAILURE, Site(stream, "", operation), code=code),
            None,
            count=count,
        )

    def lost_reply(self, stream: str = "", *, operation: str = "", count: int) -> None:
        """Carry out the next `count` calls and answer InternalFailure all the same."""
        self._add(ActiveFault(FaultKind.LOST_REPLY, Site(stream, "", operation)), None, count=count)

    @property
    def any(self) -> bool:
        """Whether there may be a fault in force: the quick question of every call."""
        return bool(self._faults)

    def clear(self) -> None:
        """Lift every fault that was asked for."""
        self._faults = list(self._standing)

    def take(self, kind: FaultKind, site: Site) -> ActiveFault | None:
        """Return the first fault of that kind in force at the place, counting this use of it."""
        if not self._faults:
            return None
        now_ms = self._now_ms()
        self._faults = [fault for fault in self._faults if not fault.is_over(now_ms)]
        for fault in self._faults:
            if fault.kind is kind and fault.applies(site) and self._is_drawn(fault):
                if fault.remaining is not None:
                    fault.remaining -= 1
                return fault
        return None

    def _is_drawn(self, fault: ActiveFault) -> bool:
        return fault.chance >= 1 or self.random.random() < fault.chance

    def raise_failure(self, site: Site) -> None:
        """Raise the KinesisError of a FAILURE fault in force at the place, if there is one."""
        fault = self.take(FaultKind.FAILURE, site)
        if fault is not None:
            raise injected(fault.code)  # fact K92

    def inject(self, request: Mapping[str, Any]) -> None:
        """
        Add a fault given in wire form.

        `Kind` and at least one of `DurationMs` and `Count`; optionally `StreamName`, `ShardId`,
        `Operation`, `DelayMs`, `Code`, `Chance` (above 0, at most 1). Raises a ValidationException
        that lists what is allowed.
        """
        kinds = ", ".join(kind.value for kind in FaultKind)
        if request.get("Kind") not in tuple(FaultKind):
            raise validation(f"Fault.Kind is {request.get('Kind')!r}; allowed: {kinds}.")  # ours
        numbers = {name: request.get(name) for name in ("DurationMs", "Count", "DelayMs")}
        for name, value in numbers.items():
            if value is not None and (not isinstance(value, int) or value < 0):
                raise validation(  # ours
                    f"Fault.{name} is {value!r}; it must be a whole number, 0 or more."
                )
        if numbers["DurationMs"] is None and numbers["Count"] is None:
            raise validation("A fault needs DurationMs, Count, or both, so that it ends.")  # ours
        chance = request.get("Chance", 1)
        if not isinstance(chance, int | float) or not 0 < chance <= 1:
            raise validation(
                f"Fault.Chance is {chance!r}; it must be above 0 and at most 1."
            )  # ours
        texts = [str(request.get(name) or "") for name in ("StreamName", "ShardId", "Operation")]
        fault = ActiveFault(
            FaultKind(request["Kind"]),
            Site(*texts),
            delay_ms=numbers["DelayMs"] or 0,
            code=str(request.get("Code") or "InternalFailure"),
            chance=chance,
        )
        self._add(fault, numbers["DurationMs"], count=numbers["Count"])

    def in_force(self) -> list[dict[str, Any]]:
        """Return the faults asked for and in force, in wire form, with what is left of them."""
        now_ms = self._now_ms()
        return [
            {
                "Kind": fault.kind.value,
                "StreamName": fault.site.stream,
                "ShardId": fault.site.shard,
                "Operation": fault.site.operation,
                "DurationMs": None if fault.until_ms is None else fault.until_ms - now_ms,
                "Count": fault.remaining,
                "DelayMs": fault.delay_ms,
                "Code": fault.code,
                "Chance": fault.chance,
            }
            for fault in self._faults
            if fault not in self._standing and not fault.is_over(now_ms)
        ]

    def _add(self, fault: ActiveFault, duration_ms: int | None, *, count: int | None) -> None:
        fault.until_ms = None if duration_ms is None else self._now_ms() + duration_ms
        fault.remaining = count
        self._faults.append(fault)


def injected(code: str) -> KinesisError:
    """Return the error of a fault that was asked for; a 500 if it is InternalFailure."""
    status = 500 if code.startswith("InternalFailure") else 400
    return KinesisError(code, "This failure was injected (ShardfleetLocal.Faults).", status=status)
