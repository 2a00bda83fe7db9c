"""
Memory ports: lease store, state store, launcher, sink, entropy, process.

They interpret the same data as the adapters
(:func:`shardfleet.domain.leases.changes.apply_change`), so there is no second implementation of a
rule. Each awaits once per call, so that other tasks can run in between as they would around real
I/O.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Mapping, Sequence
from typing import Any, Never

from shardfleet.domain.balance.kcl3 import Kcl3, WorkerRow
from shardfleet.domain.balance.migration import IndexStatus
from shardfleet.domain.item_size import ITEM_BYTES_MOST, value_bytes
from shardfleet.domain.leases.changes import apply_change
from shardfleet.domain.leases.foreign_leases import foreign_lease
from shardfleet.domain.leases.lease import (
    Applied,
    ChangeKind,
    ChangeResult,
    ForeignLease,
    Lease,
    LeaseChange,
    Survey,
)
from shardfleet.engine.ports import Conflict, Document, DocumentPage, ExecutionStatus, Written
from shardfleet.errors import MalformedLease, ShardfleetError
from shardfleet.events.base import Event


class MemoryLeaseStore:
    """
    The ``LeaseStore`` port over a dictionary.

    Attributes:
        leases: by key, foreign ones among them.
        streams: keys of those that a multi-stream application has written, each with its stream.
        unreadable: keys of those that nobody can read, each with the reason.
        changes: every write, with its answer.

    """

    def __init__(self, leases: Sequence[Lease] = ()) -> None:
        """Begin with some leases."""
        self.leases: dict[str, Lease] = {lease.lease_key: lease for lease in leases}
        self.streams: dict[str, str] = {}
        self.unreadable: dict[str, str] = {}
        self.changes: list[tuple[LeaseChange, ChangeResult]] = []

    async def survey(self) -> Survey:
        """Return all leases, ordered by key, which cannot be read, and which are foreign."""
        await asyncio.sleep(0)
        foreign = {key: found for key in sorted(self.leases) if (found := self._foreign(key))}
        keys = sorted(self.leases.keys() - self.unreadable.keys() - foreign.keys())
        return Survey(
            leases=tuple(self.leases[key] for key in keys),
            unreadable=dict(self.unreadable),
            foreign_leases=tuple(foreign.values()),
        )

    def _foreign(self, lease_key: str) -> ForeignLease | None:
        lease = self.leases.get(lease_key)
        owner = None if lease is None else lease.lease_owner
        return foreign_lease(lease_key, stream=self.streams.get(lease_key), owner=owner)

    async def scan(self) -> Sequence[Lease]:
        """Return all leases, ordered by key; MalformedLease if one cannot be read."""
        return list((await self.survey()).whole())

    async def keys_owned_by(self, worker_id: str) -> Sequence[str]:
        """Return lease keys by owner."""
        await asyncio.sleep(0)
        return sorted(
            key
            for key, lease in self.leases.items()
            if lease.lease_owner == worker_id and foreign_lease(key) is None
        )

    async def get(self, lease_key: str) -> Lease | None:
        """Return one lease, None if it is foreign; MalformedLease if it cannot be read."""
        await asyncio.sleep(0)
        self._must_be_readable(lease_key)
        return None if self._foreign(lease_key) else self.leases.get(lease_key)

    async def apply(self, change: LeaseChange) -> ChangeResult:
        """Apply a change atomically; MalformedLease if the lease cannot be read."""
        await asyncio.sleep(0)
        self._must_be_readable(change.lease_key)
        if (foreign := self._foreign(change.lease_key)) is not None:
            raise MalformedLease(f"{change.operation}: {foreign}: not written")
        result = apply_change(change, self.leases.get(change.lease_key))
        if isinstance(result, Applied):
            if change.kind is ChangeKind.DELETE:
                del self.leases[change.lease_key]
            else:
                self.leases[change.lease_key] = result.lease
        self.changes.append((change, result))
        return result

    def _must_be_readable(self, lease_key: str) -> None:
        if lease_key in self.unreadable:
            raise MalformedLease(self.unreadable[lease_key])


class MemoryOwnerIndex:
    """
    The ``OwnerIndex`` port without a table.

    Attributes:
        found: how far the index is; one that is made is there at once.
        refused: why leases may not be written; empty: they may.

    """

    def __init__(self) -> None:
        """Begin with an index."""
        self.found = IndexStatus.ACTIVE
        self.refused = ""

    async def status(self) -> IndexStatus:
        """Return what the test has set."""
        await asyncio.sleep(0)
        return self.found

    async def make(self) -> None:
        """Make it."""
        await asyncio.sleep(0)
        self.found = IndexStatus.ACTIVE

    async def refusal(self) -> str:
        """Return what the test has set."""
        await asyncio.sleep(0)
        return self.refused


class MemoryKcl3Store:
    """
    The ``Kcl3Store`` port over a dictionary.

    Attributes:
        rows: worker id to the epoch seconds of its last row.
        version: of the migration item; empty: none.

    """

    def __init__(self) -> None:
        """Begin without a KCL 3."""
        self.rows: dict[str, int] = {}
        self.version = ""

    async def found(self, foreign: Sequence[str]) -> Kcl3:
        """Return all rows."""
        del foreign
        await asyncio.sleep(0)
        rows = tuple(WorkerRow(worker_id, at_s) for worker_id, at_s in self.rows.items())
        return Kcl3(rows=rows, version=self.version)

    async def write(self, row: WorkerRow) -> None:
        """Write a row."""
        await asyncio.sleep(0)
        self.rows[row.worker_id] = row.updated_s

    async def delete(self, row: WorkerRow) -> None:
        """Delete a row unless it was written since."""
        await asyncio.sleep(0)
        if self.rows.get(row.worker_id) == row.updated_s:
            del self.rows[row.worker_id]


class MemoryStateStore:
    """
    The ``StateStore`` port over a dictionary; it keeps what has expired, as DynamoDB may.

    A document larger than an item of DynamoDB is refused as there (``ShardfleetError``).
    """

    def __init__(self) -> None:
        """Begin empty."""
        self.documents: dict[tuple[str, str], Document] = {}
        self.expires_ms: dict[tuple[str, str], int] = {}

    async def read(self, kind: str, id: str) -> Document | None:  # noqa: A002 - the port's name
        """Read one document."""
        await asyncio.sleep(0)
        return self.documents.get((kind, id))

    async def list(self, kind: str) -> Sequence[Document]:
        """Read all documents of a kind, ordered by id."""
        await asyncio.sleep(0)
        return [self.documents[key] for key in sorted(k for k in self.documents if k[0] == kind)]

    async def page(self, after: tuple[str, str] | None = None) -> DocumentPage:
        """Read all documents behind one."""
        await asyncio.sleep(0)
        keys = sorted(key for key in self.documents if after is None or key > after)
        return DocumentPage([self.documents[key] for key in keys])

    async def write(
        self,
        kind: str,
        id: str,  # noqa: A002 - the port's name
        body: Mapping[str, Any],
        *,
        expected_version: int | None,
        expires_ms: int | None = None,
    ) -> Written | Conflict:
        """Compare-and-set."""
        await asyncio.sleep(0)
        current = self.documents.get((kind, id))
        if (current.version if current else None) != expected_version:
            return Conflict(current)
        if expires_ms is not None:
            self.expires_ms[kind, id] = expires_ms
        return Written(self._store(kind, id, body, version=(expected_version or 0) + 1))

    async def increment(self, kind: str, id: str) -> int:  # noqa: A002 - the port's name
        """Add one to the version of a document."""
        await asyncio.sleep(0)
        current = self.documents.get((kind, id)) or Document(kind, id, 0, {})
        return self._store(kind, id, current.body, version=current.version + 1).version

    async def delete(self, kind: str, id: str, *, expected_version: int) -> bool:  # noqa: A002
        """Delete if the version is as expected."""
        await asyncio.sleep(0)
        current = self.documents.get((kind, id))
        if current is None or current.version != expected_version:
            return False
        del self.documents[kind, id]
        return True

    def _store(self, kind: str, name: str, body: Mapping[str, Any], *, version: int) -> Document:
        # In JSON nothing is shorter than a fourth of what it takes in an item; this is quicker.
        is_large = 4 * len(repr(body)) > ITEM_BYTES_MOST
        if is_large and (size := value_bytes(body)) > ITEM_BYTES_MOST:
            message = f"{kind} {name}: item size of {size} bytes found, {ITEM_BYTES_MOST} allowed"
            raise ShardfleetError(message)
        document = Document(kind, name, version, _copied(body))
        self.documents[kind, name] = document
        return document


_PLAIN = (str, int, float, type(None))


def _copied(value: Any) -> Any:
    """Copy what JSON can say, and tuples; everything else in it never changes."""
    if isinstance(value, dict | Mapping):
        return {
            key: item if isinstance(item, _PLAIN) else _copied(item) for key, item in value.items()
        }
    if isinstance(value, (list, tuple)):
        return type(value)([_copied(item) for item in value])
    return value


class MemoryLauncher:
    """The ``WorkerLauncher`` port: remembers executions; a test closes them."""

    def __init__(self) -> None:
        """Begin with no executions."""
        self.executions: dict[str, tuple[str, ExecutionStatus]] = {}

    async def start(self, name: str, text: str) -> bool:
        """Start, or find the same one running."""
        await asyncio.sleep(0)
        found = self.executions.get(name)
        if found is None:
            self.executions[name] = (text, ExecutionStatus.RUNNING)
            return True
        return found == (text, ExecutionStatus.RUNNING)

    async def status(self, name: str) -> ExecutionStatus:
        """Describe one execution."""
        await asyncio.sleep(0)
        found = self.executions.get(name)
        return ExecutionStatus.ABSENT if found is None else found[1]

    def close(self, name: str) -> None:
        """Let an execution end."""
        self.executions[name] = (self.executions[name][0], ExecutionStatus.CLOSED)


class MemoryEvents:
    """The ``EventSink`` port: a list."""

    def __init__(self) -> None:
        """Begin empty."""
        self.events: list[Event] = []

    def emit(self, event: Event) -> None:
        """Keep the event."""
        self.events.append(event)


class SeededEntropy:
    """The ``Entropy`` port from one seed."""

    def __init__(self, seed: int) -> None:
        """Seed the generator."""
        self._random = random.Random(seed)

    def token(self) -> str:
        """Return 32 hexadecimal characters."""
        return f"{self._random.getrandbits(128):032x}"

    def uniform(self, low: float, high: float) -> float:
        """Return a number between the two."""
        return self._random.uniform(low, high)


class ProcessEndedError(BaseException):
    """A memory process has 'ended': not an Exception, so nothing in between swallows it."""


class MemoryProcess:
    """The ``Process`` port: ends by raising :class:`ProcessEndedError`."""

    def end(self, reason: str) -> Never:
        """Raise instead of ending."""
        raise ProcessEndedError(reason)
