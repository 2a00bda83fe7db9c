"""
What a checker sees, and what it says.

A checker holds one invariant. It is shown every write to the lease table that landed, every record
handled and every turn that ended, in order, and reports what must not be.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from shardfleet.domain.delivery.hooks import Hook
from shardfleet.domain.leases.lease import Lease, LeaseChange
from shardfleet.domain.stream.sequence import ExtendedSequenceNumber
from shardfleet.events.base import Event
from shardfleet_ops.positions.rewinds import RewindRow
from shardfleet_testkit.checkers.ledger import RunLedger, SourceRecord


class Suspect(Protocol):
    """What checkers know of an invocation."""

    @property
    def name(self) -> str:
        """Return its name, unique in the run."""

    @property
    def worker_id(self) -> str:
        """Return the owner's name it works under; "" for a manager."""

    @property
    def execution(self) -> tuple[int, int]:
        """Return start epoch and generation of the execution that invoked it; (0, 0) for others."""

    @property
    def frozen_ms(self) -> int:
        """Return how long it has been frozen so far."""

    @property
    def thawed_ms(self) -> int | None:
        """Return when it last thawed, None if it never froze."""

    @property
    def wall_ms(self) -> Callable[[], int]:
        """Return what tells the time by its own wall clock, epoch milliseconds."""

    @property
    def faults(self) -> Sequence[tuple[int, str]]:
        """Return what was done to it: milliseconds and what."""


def is_operator(by: Suspect) -> bool:
    """Return whether it is a person's command; managers have no worker's name either."""
    return by.name.partition("#")[0] == "operator"


def is_process(by: Suspect) -> bool:
    """Return whether it is a process, whose manager never rests: no Lambda is paid for it."""
    return by.name.partition("#")[0] == "process"


@dataclass(frozen=True, slots=True, kw_only=True)
class LeaseWrite:
    """
    A write to the lease table that landed and changed something.

    Attributes:
        at_ms: milliseconds of the simulation.
        by: who sent it.
        change: what was sent.
        before: the lease before, None when there was none.
        after: the lease after, None when it was deleted.

    """

    at_ms: int
    by: Suspect
    change: LeaseChange
    before: Lease | None
    after: Lease | None

    @property
    def is_import(self) -> bool:
        """Return whether an operator wrote the position of another reader."""
        return self.change.operation == "checkpoint" and is_operator(self.by)

    @property
    def sets_place(self) -> bool:
        """Return whether an operator put the lease elsewhere: by a rewind, or an import."""
        return self.change.operation == "rewind" or self.is_import


@dataclass(frozen=True, slots=True, kw_only=True)
class DocumentWrite:
    """
    A write to the fleet-state table that landed.

    Attributes:
        at_ms: milliseconds of the simulation.
        by: who sent it.
        kind: of the document, e.g. ``slot``.
        name: its id.
        before: its body before, None when there was none.
        after: its body now.

    """

    at_ms: int
    by: Suspect
    kind: str
    name: str
    before: Mapping[str, Any] | None
    after: Mapping[str, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class Handled:
    """
    A record that the user's handler is done with.

    Attributes:
        at_ms: milliseconds of the simulation.
        by: in whose invocation.
        entry: the record, as it was before this.
        call: in which call of the invocation.

    """

    at_ms: int
    by: Suspect
    entry: SourceRecord
    call: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class CallBegun:
    """
    A handler call with records begins.

    Attributes:
        at_ms: milliseconds of the simulation.
        by: in whose invocation.
        shard_id: of the records.
        has_hooks: it is of a shard's object.
        call: its number in the invocation.
        keys: of the records.

    """

    at_ms: int
    by: Suspect
    shard_id: str
    has_hooks: bool = False
    call: int = 0
    keys: frozenset[str] = frozenset()


@dataclass(frozen=True, slots=True, kw_only=True)
class Window:
    """
    A stretch of time in which nothing went wrong and no shard changed.

    Attributes:
        duration_ms: how long it was.
        shards: open shards.
        calls: port calls by operation.
        owner_changes: leases that changed hands.
        renew_ms: the configured time between renewals.
        uneven: how many had to before all slots hold equally many, or one more.

    """

    duration_ms: int
    shards: int
    calls: dict[str, int]
    owner_changes: int
    renew_ms: int
    uneven: int = 0


@dataclass(frozen=True, slots=True)
class Violation:
    """
    An invariant that was broken.

    Attributes:
        at_ms: milliseconds of the simulation.
        checker: the name of the checker's class.
        subject: the lease, record or actor that it is about.
        text: what happened, for a person.

    """

    at_ms: int
    checker: str
    subject: str
    text: str

    def __str__(self) -> str:
        return f"{self.checker} at {self.at_ms} ms, {self.subject}: {self.text}"


# A row that was made unreadable is mended within a minute, and those who wait look each second.
GARBLED_MS = 65_000


class Checker:
    """The root of all checkers; every hook does nothing."""

    def __init__(
        self, ledger: RunLedger, report: Callable[[Violation], None], *, renew_ms: int
    ) -> None:
        """Check against the ledger; say what is wrong to ``report``."""
        self.ledger = ledger
        self.renew_ms = renew_ms
        self._report = report

    def found(self, at_ms: int, subject: str, text: str) -> None:
        """Report a violation."""
        self._report(Violation(at_ms, type(self).__name__, subject, text))

    def lease_written(self, write: LeaseWrite) -> None:
        """See a write to the lease table that landed."""

    def update_created(self, write: LeaseWrite) -> None:
        """See an update that DynamoDB would have turned into a new, malformed item."""

    def lease_sent(self, at_ms: int, by: Suspect, change: LeaseChange) -> None:
        """See a write to the lease table that somebody is about to send."""

    def document_written(self, write: DocumentWrite) -> None:
        """See a write to the fleet-state table that landed."""

    def document_deleted(self, at_ms: int, by: Suspect, *, kind: str, name: str) -> None:
        """See a document of the fleet-state table that somebody has deleted."""

    def document_read(self, at_ms: int, by: Suspect, *, kind: str, body: Mapping[str, Any]) -> None:
        """See a document of the fleet-state table that somebody has just read."""

    def row_written(self, at_ms: int, by: Suspect) -> None:
        """See somebody about to show a worker to the leader of a KCL 3."""

    def read_begun(self, at_ms: int, by: Suspect, shard_id: str) -> None:
        """See a shard being read: a call of GetRecords or a subscription, or an event of one."""

    def get_records_begun(self, at_ms: int, by: Suspect, shard_id: str) -> None:
        """See a call of GetRecords begin."""

    def call_begun(self, call: CallBegun) -> None:
        """See a handler call begin."""

    def hook_told(self, at_ms: int, by: Suspect, shard_id: str, *, hook: Hook) -> None:
        """See a hook of a shard's object begin."""

    def hook_over(self, by: Suspect, shard_id: str, hook: Hook, *, failed: bool) -> None:
        """See a hook return, or raise."""

    def call_killed(self, at_ms: int, by: Suspect, shard_id: str, *, call: str) -> None:
        """See user code kill its process, in a call of a kind: a record, a hook, a flush."""

    def bare_call(self, at_ms: int, by: Suspect, shard_id: str, *, call: str, begins: bool) -> None:
        """See a call of a kind without records begin or come back: a flush, a window's last one."""

    def window_ended(self, at_ms: int, by: Suspect, shard_id: str, *, held: Sequence[str]) -> None:
        """See a window's last call come to a result, of records at ``sequence:sub``."""

    def record_handled(self, handled: Handled) -> None:
        """See a record that the handler is done with."""

    def record_kept(self, at_ms: int, by: Suspect, entry: SourceRecord, *, attempts: int) -> None:
        """See a record that was given up after so many attempts, and kept elsewhere."""

    def call_over(self, at_ms: int, by: Suspect, shard_id: str, *, call: int) -> None:
        """See a handler call come back, however it went; none does behind its time-out."""

    def batch_failed(self, at_ms: int, by: Suspect, shard_id: str, *, call: int = 0) -> None:
        """See a handler call that did not get through its batch."""

    def batch_done(
        self,
        at_ms: int,
        by: Suspect,
        shard_id: str,
        *,
        done: Sequence[ExtendedSequenceNumber],
        call: int = 0,
    ) -> None:
        """See a handler call that got through its batch, ``done``."""

    def told(self, at_ms: int, by: Suspect, event: Event) -> None:
        """See a diagnostic event."""

    def rewind_told(self, at_ms: int, by: Suspect, row: RewindRow) -> None:
        """See what an operator is told of a lease that was set back."""

    def leases_free(self, at_ms: int, *, keys: Collection[str]) -> None:
        """See a command told that nobody has these leases any more, which it has paused."""

    def kept_deleted(self, at_ms: int, *, where: str, entries: Sequence[SourceRecord]) -> None:
        """See a document deleted that had records which were given up."""

    def computed(self, at_ms: int, by: Suspect, *, lasted_ms: int) -> None:
        """See a stretch in which an invocation's processor did one thing only."""

    def turn_over(self, at_ms: int, by: Suspect, *, left: Sequence[str], error: str) -> None:
        """See an invocation that returned; ``left`` names the tasks of it that still run."""

    def calm_window(self, at_ms: int, window: Window) -> None:
        """See a stretch of time in which nothing went wrong."""

    def over(self, at_ms: int, *, keys: Sequence[str]) -> None:
        """See the end of the run, long after the last fault; ``keys`` are all lease keys."""
