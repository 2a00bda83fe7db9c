"""
The ports: everything the engine asks of the world.

``Protocol``s of at most seven methods. An answer that is part of the protocol is a value (``Applied
| Lost | Gone``, ``Written | Conflict``); what is no answer is an exception of
:mod:`shardfleet.errors`. Implementations: adapters (AWS), :mod:`shardfleet_testkit` (memory).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from enum import StrEnum
from typing import TYPE_CHECKING, Any, Never, Protocol

import msgspec
from msgspec import Struct

from shardfleet.domain.delivery.hooks import Hook
from shardfleet.domain.leases.lease import ChangeResult, Lease, LeaseChange, Survey
from shardfleet.domain.reading.pages import RecordsPage, StartingPosition
from shardfleet.domain.stream.sequence import StreamIncarnation
from shardfleet.domain.stream.shards import Shard
from shardfleet.events.base import Event
from shardfleet.records import Batch, Record

if TYPE_CHECKING:  # A worker has no use for them, and would wait for them at its start.
    from shardfleet.domain.balance.kcl3 import Kcl3, WorkerRow
    from shardfleet.domain.balance.migration import IndexStatus
    from shardfleet.kpl.packing import OutgoingRecord


class Clock(Protocol):
    """Time. Only the sleeping is asynchronous; a virtual clock makes it free."""

    def now_ms(self) -> int:
        """Return wall-clock time, epoch milliseconds."""

    def monotonic_ms(self) -> int:
        """Return milliseconds that never go back."""

    async def sleep_ms(self, duration_ms: float) -> None:
        """Sleep."""


class Entropy(Protocol):
    """Randomness, seeded in tests."""

    def token(self) -> str:
        """Return a fresh unique token, 32 hexadecimal characters."""

    def uniform(self, low: float, high: float) -> float:
        """Return a number between the two."""


class LeaseStore(Protocol):
    """The lease table."""

    async def survey(self) -> Survey:
        """Return all leases (eventually consistent), and which items cannot be read."""

    async def scan(self) -> Sequence[Lease]:
        """Return all leases likewise; MalformedLease if one cannot be read."""

    async def keys_owned_by(self, worker_id: str) -> Sequence[str]:
        """Return lease keys by owner from the index (eventually consistent)."""

    async def get(self, lease_key: str) -> Lease | None:
        """Return one lease, read consistently; MalformedLease if it cannot be read."""

    async def apply(self, change: LeaseChange) -> ChangeResult:
        """
        Make one conditional write, in one attempt with a short time-out.

        Raises:
            OutcomeUnknown: sent, but no answer came.
            Throttled: refused; not applied.
            MalformedLease: the item is there and cannot be read, before the write or after it.

        """


class Document(Struct, frozen=True):
    """
    One item of the fleet-state table.

    Attributes:
        kind: e.g. ``"slot"``; see :mod:`shardfleet.engine.state.kinds`.
        id: within the kind.
        version: rises by 1 with each write; the compare-and-set token. 0: the item has none that
            counts; what is written or deleted by it is an item without one.
        body: JSON-like: str, int, bool, None, list and dict of these. What else somebody has put
            there is of another type than anything that is written.
        damage: what of the item is not as it is written, else "".

    """

    kind: str
    id: str
    version: int
    body: Mapping[str, Any]
    damage: str = ""


class Written(Struct, frozen=True):
    """The document as it is now."""

    document: Document


class Conflict(Struct, frozen=True):
    """Somebody else wrote first; ``current`` is None when there is no such document (any more)."""

    current: Document | None


class DocumentPage(Struct, frozen=True):
    """
    Some documents of the whole table.

    Attributes:
        documents: of any kind.
        after: kind and id behind which the next page begins; None: it was the last one.

    """

    documents: Sequence[Document]
    after: tuple[str, str] | None = None


class StateStore(Protocol):
    """The fleet-state table: versioned documents, never in the lease table."""

    async def read(self, kind: str, id: str) -> Document | None:  # noqa: A002 - the field's name
        """Read one document consistently."""

    async def list(self, kind: str) -> Sequence[Document]:
        """Read all documents of a kind consistently, ordered by id (manager and CLI only)."""

    async def page(self, after: tuple[str, str] | None = None) -> DocumentPage:
        """Read some documents of all kinds, eventually consistent (manager and CLI only)."""

    async def write(
        self,
        kind: str,
        id: str,  # noqa: A002 - the field's name
        body: Mapping[str, Any],
        *,
        expected_version: int | None,
        expires_ms: int | None = None,
    ) -> Written | Conflict:
        """
        Compare-and-set: version None means that it must not exist; it is gone after ``expires_ms``.

        Raises:
            OutcomeUnknown: sent, but no answer came; read again and compare.
            Throttled: refused; not applied.

        """

    async def increment(self, kind: str, id: str) -> int:  # noqa: A002 - the field's name
        """Add one to the version of a document (made when absent, empty); return the version."""

    async def delete(self, kind: str, id: str, *, expected_version: int) -> bool:  # noqa: A002
        """Delete if the version is as expected; return whether it was (manager and CLI only)."""


class ListingFilter(StrEnum):
    """The ``ShardFilter`` of an initial listing (protocol.md §4.2)."""

    NONE = "NONE"
    AT_TRIM_HORIZON = "AT_TRIM_HORIZON"
    AT_LATEST = "AT_LATEST"
    AT_TIMESTAMP = "AT_TIMESTAMP"


class StreamDirectory(Protocol):
    """What a stream is made of."""

    async def incarnation(self) -> StreamIncarnation:
        """
        Describe the stream.

        Raises:
            StreamGone: there is no such stream.

        """

    async def list_shards(
        self, listing: ListingFilter = ListingFilter.NONE, *, instant_ms: int | None = None
    ) -> Sequence[Shard]:
        """List shards, all pages."""


class Kcl3Store(Protocol):
    """What a KCL 3 keeps beside the leases (protocol.md §2)."""

    async def found(self, foreign: Sequence[str]) -> Kcl3:
        """
        Look for its workers' rows, ours among them, and for its migration item.

        Args:
            foreign: keys of items of the lease table that are no leases.

        Raises:
            Throttled: try again later.

        """

    async def write(self, row: WorkerRow) -> None:
        """Write a row of ours; OutcomeUnknown or Throttled: the next turn does."""

    async def delete(self, row: WorkerRow) -> None:
        """Delete a row of ours unless it was written since; raises as :meth:`write`."""


class OwnerIndex(Protocol):
    """The lease table's index by owner, which a KCL 2 does not make (protocol.md §1.3)."""

    async def status(self) -> IndexStatus:
        """Return how far the index is; ConfigurationError if there is no such table."""

    async def make(self) -> None:
        """Begin to make it; RightMissing, OutcomeUnknown or Throttled if that fails."""

    async def refusal(self) -> str:
        """Return why leases may not be written, "" if they may; RightMissing likewise."""


class ShardCalls(Protocol):
    """Calls for single pages of shards; what a polled source is made of."""

    async def page(
        self, shard_id: str, start: StartingPosition, *, resume_token: str | None, limit: int
    ) -> RecordsPage:
        """
        Return the next page.

        Args:
            shard_id: the shard.
            start: where to begin, without a token.
            resume_token: of an earlier page of this shard, to go on behind it.
            limit: most stream records.

        Raises:
            IteratorExpired: the token is too old; begin at a position.
            ShardGone: no such shard.
            PositionTrimmed: the service refuses the sequence number as too old.
            ForeignPosition: it refuses it as another shard's, or another stream's.
            Throttled: try again later.

        """


class ShardSubscription(Protocol):
    """
    What is pushed of a shard, until it is over.

    Attributes:
        is_over: its time has come to an end, which says nothing of the shard's (fact K37).

    """

    is_over: bool

    def take(self) -> RecordsPage | None:
        """
        Return the next event that has come, None if none has.

        An event's resume token is its continuation number. What it leaves untaken, the service
        keeps back, once it is too much.

        Raises:
            SubscriptionHeld: another one took over.
            StreamError: as of :meth:`ShardCalls.page`; nothing more will come.

        """

    def close(self) -> None:
        """Want no more of it."""


class ShardSubscriptions(Protocol):
    """Subscriptions to shards; what a pushed source is made of."""

    async def subscribe(
        self, shard_id: str, start: StartingPosition, *, wake: Callable[[], None]
    ) -> ShardSubscription:
        """
        Subscribe to a shard; once, within seconds.

        Args:
            shard_id: the shard.
            start: where to begin.
            wake: called, in the loop of the call, whenever anything comes.

        Raises:
            SubscriptionHeld: somebody did less than five seconds ago.
            StreamError: as of :meth:`ShardCalls.page`.

        """

    async def close(self) -> None:
        """End all that is open."""


class PutOutcome(msgspec.Struct, frozen=True, kw_only=True, gc=False, rename="pascal"):
    """
    The answer to one entry: either shard and sequence number, or an error code.

    ``PutRecordsResultEntry`` names its members so; a request has hundreds.
    """

    shard_id: str | None = None
    sequence_number: str | None = None
    error_code: str | None = None


class StreamWriter(Protocol):
    """Writing to one stream."""

    async def put_records(self, entries: Sequence[OutgoingRecord]) -> Sequence[PutOutcome]:
        """
        Send one request; the answer has one outcome per entry, in order.

        Raises:
            Throttled, StreamGone, OutcomeUnknown: the whole request.
            InvalidRecord: the whole request, for something that is in it; perhaps not for long if
                it is the verdict of Unsettled.

        """

    async def list_shards(self) -> Sequence[Shard]:
        """List all shards."""


class ExecutionStatus(StrEnum):
    """What Step Functions knows of one named execution."""

    RUNNING = "RUNNING"
    CLOSED = "CLOSED"
    ABSENT = "ABSENT"


class WorkerLauncher(Protocol):
    """Starting slots: Step Functions."""

    async def start(self, name: str, text: str) -> bool:
        """
        Start an execution; True when it runs (again: same name and input is the same one).

        Returns:
            False when the name is taken by a closed or different execution: describe it first (H3).

        """

    async def status(self, name: str) -> ExecutionStatus:
        """Describe one execution by name."""


class ManagerCall(Protocol):
    """Calling a manager that is a function: Lambda."""

    async def call(self, function: str) -> None:
        """Invoke it, and do not wait for it."""


class HandlerResult(Struct, frozen=True, kw_only=True):
    """
    How far one handler call got.

    Attributes:
        done_count: leading records that are done.
        error: None when the whole batch is done, else what went wrong, for a person.
        timed_out: the call outlived its deadline and may still be running: the process must
            end (H10).
        state: with tumbling windows: what the window's state is with the records that are done, as
            JSON; None: as it was.
        outgrows: with tumbling windows: it failed because the state would be too large.
        remarks: what the code does, in any call, that it should not, for a person.

    """

    done_count: int
    error: str | None = None
    timed_out: bool = False
    state: str | None = None
    outgrows: bool = False
    remarks: tuple[str, ...] = ()


class HandlerRunner(Protocol):
    """Runs the user's handler away from the engine's loop, pool and heartbeat (H17)."""

    @property
    def overlaps(self) -> bool:
        """Tell, once loaded, whether calls of different shards may overlap (``async def``)."""

    @property
    def has_hooks(self) -> bool:
        """Tell, once loaded, whether it is a class: each shard has an object, told by hooks."""

    async def load(self) -> None:
        """Import the user's code (H16); ConfigurationError if it cannot be imported."""

    async def run(self, batch: Batch) -> HandlerResult:
        """Run one batch to its end or to ``batch.deadline_ms``; never raises for user errors."""

    async def tell(self, hook: Hook, shard: Batch) -> HandlerResult:
        """
        Run a hook of the shard's object likewise; ``started`` makes it, the last one drops it.

        Args:
            hook: which one.
            shard: the shard, as a batch without records.

        """

    async def close(self) -> bool:
        """Stop, until loaded again; False if user code still runs: the process must end (H10)."""


class FailedRecords(Struct, frozen=True, kw_only=True):
    """
    Records given up after ``max_attempts``, or as too old, in full.

    Attributes:
        stream_arn: the stream.
        records: what is skipped, payload included.
        error: the last error.
        attempts: how often they were tried.
        worker_id: who tried.
        at_ms: epoch milliseconds.
        is_too_old: they are older than ``max_record_age_ms``; the handler need not have seen them.

    """

    stream_arn: str
    records: Sequence[Record]
    error: str
    attempts: int
    worker_id: str
    at_ms: int
    is_too_old: bool = False


class DeadLetters(Protocol):
    """Where given-up records are kept in full (SQS or S3)."""

    async def record(self, failed: FailedRecords) -> str:
        """Store durably and return where (URL or key); raises if it could not."""


class WindowStates(Protocol):
    """Where states of windows are kept that are too large for an item of DynamoDB (S3)."""

    async def keep(self, lease_key: str, token: str, state: str) -> str:
        """Store durably and return where; the same token again replaces it."""

    async def fetch(self, place: str) -> str:
        """Return what is kept at a place; ConfigurationError if it is gone."""

    async def drop(self, place: str) -> None:
        """Delete what is kept at a place; raises if that is not known to be done."""


class EventSink(Protocol):
    """The one stream of diagnostic events behind metrics, logs and tests."""

    def emit(self, event: Event) -> None:
        """Take one event; never raises, never blocks."""


class Process(Protocol):
    """The process itself."""

    def end(self, reason: str) -> Never:
        """End the process at once: what cannot be stopped must not outlive its turn (H10)."""
