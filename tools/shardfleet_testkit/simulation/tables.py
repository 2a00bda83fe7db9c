"""The two DynamoDB tables: the memory stores, with a past to read stale answers from."""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from shardfleet.domain.balance.kcl3 import Kcl3, WorkerRow
from shardfleet.domain.leases.changes import failing
from shardfleet.domain.leases.lease import (
    Applied,
    ChangeKind,
    ChangeResult,
    Gone,
    Lease,
    LeaseChange,
    Survey,
)
from shardfleet.engine.ports import Conflict, Document, DocumentPage, Written
from shardfleet_testkit.checkers import Suspect, is_operator
from shardfleet_testkit.memory import MemoryKcl3Store, MemoryLeaseStore, MemoryStateStore
from shardfleet_testkit.simulation.surroundings import Surroundings
from shardfleet_testkit.simulation.wire import Wire

# How far behind an eventually consistent read may be; "usually consistent within one second".
_SCAN_BEHIND_MS = 2_000
_INDEX_BEHIND_MS = 5_000


class LeaseTable:
    """
    The lease table itself, with its recent past.

    Attributes:
        store: the truth.
        owner_changes: how often a lease changed hands.
        created: called with each lease as it is created.
        set_back: called with each lease as an operator has set it back.
        imported: called with each lease as an operator has written another reader's position.
        requests: what came over a wire, by operation: nothing, in memory.

    """

    def __init__(self, around: Surroundings) -> None:
        """Begin empty."""
        self.store = MemoryLeaseStore()
        self.owner_changes = 0
        self.created: Callable[[Lease], None] = lambda _lease: None
        self.set_back: Callable[[Lease], None] = lambda _lease: None
        self.imported: Callable[[Lease], None] = lambda _lease: None
        self.requests: Counter[str] = Counter()
        self._around = around
        self._past: dict[str, deque[tuple[int, Lease | None]]] = {}

    async def survey(self, then: Sequence[Lease] | None = None) -> Survey:
        """Return all leases that can be read, as they are or as they were ``then``."""
        if then is None:
            return await self.store.survey()
        unreadable = dict(self.store.unreadable)
        leases = tuple(lease for lease in then if lease.lease_key not in unreadable)
        return Survey(leases=leases, unreadable=unreadable)

    async def keys_owned_by(
        self, worker_id: str, then: Sequence[Lease] | None = None
    ) -> Sequence[str]:
        """Return lease keys by owner, as they are or as they were ``then``."""
        if then is None:
            return await self.store.keys_owned_by(worker_id)
        return [lease.lease_key for lease in then if lease.lease_owner == worker_id]

    async def get(self, lease_key: str) -> Lease | None:
        """Return one lease; MalformedLease if it cannot be read."""
        return await self.store.get(lease_key)

    async def apply(self, change: LeaseChange, by: Suspect) -> ChangeResult:
        """Apply a change; remember what was before, and show it to the checkers."""
        result = await self.store.apply(change)
        self.store.changes.clear()
        is_update = change.kind is ChangeKind.UPDATE
        if isinstance(result, Gone) and is_update and not failing(change, None):
            # An UpdateItem whose conditions hold on nothing makes an item (protocol.md §0.2).
            self._around.wrote_nothing(by, change)
        if not isinstance(result, Applied):
            return result
        self._landed(change, result.lease, by)
        return result

    def write_by_hand(self, lease: Lease, change: LeaseChange, by: Suspect) -> None:
        """Overwrite a lease unconditionally, as no part of a fleet may."""
        self.store.leases[lease.lease_key] = lease
        self._landed(change, lease, by)

    def delete_by_hand(self, change: LeaseChange, by: Suspect) -> None:
        """Delete a lease unconditionally, as no part of a fleet may."""
        self._landed(change, self.store.leases.pop(change.lease_key), by)

    def _landed(self, change: LeaseChange, lease: Lease, by: Suspect) -> None:
        key = change.lease_key
        past = self._past.setdefault(key, deque(maxlen=64))
        before = past[-1][1] if past else None
        after = None if change.kind is ChangeKind.DELETE else lease
        past.append((self._around.now_ms, after))
        owners = [None if lease is None else lease.effective_owner for lease in (before, after)]
        self.owner_changes += owners[0] != owners[1] and None not in owners
        if before is None and after is not None:
            self.created(after)
        if change.operation == "checkpoint" and is_operator(by) and after is not None:
            self.imported(after)
        self._around.wrote(by, change, before=before, after=after)
        if change.operation == "rewind" and after is not None:
            self.set_back(after)

    def as_of(self, behind_most_ms: int) -> Sequence[Lease]:
        """Return leases by key, each as it was at some moment of its own in the recent past."""
        found = []
        for key in sorted(self._past):
            behind_ms = self._around.faults.whole("stale_read", 0, behind_most_ms)
            moment_ms = self._around.now_ms - behind_ms
            lease = None
            for at_ms, version in reversed(self._past[key]):
                if at_ms <= moment_ms:
                    lease = version
                    break
            if lease is not None:
                found.append(lease)
        return found


class FaultyLeases:
    """The ``LeaseStore`` port of one invocation."""

    def __init__(self, table: LeaseTable, wire: Wire, *, around: Surroundings, by: Suspect) -> None:
        """Reach the table over a wire."""
        self._table = table
        self._wire = wire
        self._around = around
        self._faults = around.faults
        self._by = by

    async def survey(self) -> Survey:
        """Return all leases, some of them as they were a moment ago."""

        async def work() -> Survey:
            is_stale = self._faults.strike("stale_read")
            return await self._table.survey(
                self._table.as_of(_SCAN_BEHIND_MS) if is_stale else None
            )

        return await self._wire.read("lease.scan", work)

    async def scan(self) -> Sequence[Lease]:
        """Return all leases likewise."""
        return (await self.survey()).whole()

    async def keys_owned_by(self, worker_id: str) -> Sequence[str]:
        """Return lease keys by owner, as the index had them a moment ago."""

        async def work() -> Sequence[str]:
            is_stale = self._faults.strike("stale_read")
            then = self._table.as_of(_INDEX_BEHIND_MS) if is_stale else None
            return await self._table.keys_owned_by(worker_id, then)

        return await self._wire.read("lease.query", work, about=worker_id)

    async def get(self, lease_key: str) -> Lease | None:
        """Return one lease, consistently."""
        return await self._wire.read(
            "lease.get", lambda: self._table.get(lease_key), about=lease_key
        )

    async def apply(self, change: LeaseChange) -> ChangeResult:
        """Make one conditional write."""
        self._around.about_to_write(self._by, change)
        return await self._wire.write(
            "lease.apply",
            lambda: self._table.apply(change, self._by),
            about=f"{change.operation} {change.lease_key}",
            may_repeat=True,
        )


class FaultyKcl3:
    """The ``Kcl3Store`` port of one invocation."""

    def __init__(
        self, store: MemoryKcl3Store, wire: Wire, *, around: Surroundings, by: Suspect
    ) -> None:
        """Reach the tables over a wire."""
        self._store = store
        self._wire = wire
        self._around = around
        self._by = by

    async def found(self, foreign: Sequence[str]) -> Kcl3:
        """Return all rows."""
        return await self._wire.read("kcl3.found", lambda: self._store.found(foreign))

    async def write(self, row: WorkerRow) -> None:
        """Write a row."""
        for shown in self._around.seers["row_written"]:
            shown(self._around.now_ms, self._by)
        await self._wire.write(
            "kcl3.write", lambda: self._store.write(row), about=row.worker_id, may_repeat=True
        )

    async def delete(self, row: WorkerRow) -> None:
        """Delete a row unless it was written since."""
        await self._wire.write(
            "kcl3.delete", lambda: self._store.delete(row), about=row.worker_id, may_repeat=True
        )


class FaultyState:
    """The ``StateStore`` port of one invocation."""

    def __init__(
        self, store: MemoryStateStore, wire: Wire, *, around: Surroundings, by: Suspect
    ) -> None:
        """Reach the table over a wire."""
        self._store = store
        self._wire = wire
        self._around = around
        self._by = by

    async def read(self, kind: str, id: str) -> Document | None:  # noqa: A002 - the port's name
        """Read one document."""
        found = await self._wire.read(
            "state.read", lambda: self._store.read(kind, id), about=f"{kind} {id}"
        )
        if found is not None and (kind, id) not in self._around.spoilt:
            self._around.read(self._by, kind, found.body)
        return found

    async def list(self, kind: str) -> Sequence[Document]:
        """Read all documents of a kind."""
        return await self._wire.read("state.list", lambda: self._store.list(kind), about=kind)

    async def page(self, after: tuple[str, str] | None = None) -> DocumentPage:
        """Read all documents behind one."""
        return await self._wire.read("state.page", lambda: self._store.page(after), about="*")

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
        kept = dict(body)

        async def work() -> Written | Conflict:
            before = self._store.documents.get((kind, id))
            result = await self._store.write(
                kind, id, kept, expected_version=expected_version, expires_ms=expires_ms
            )
            if isinstance(result, Written):
                was = self._around.spoilt.pop((str(kind), id), None)
                old = None if before is None else was or before.body
                self._around.stored(self._by, kind, id, before=old, after=kept)
            return result

        return await self._wire.write(
            "state.write", work, about=f"{kind} {id} over {expected_version}", may_repeat=True
        )

    async def increment(self, kind: str, id: str) -> int:  # noqa: A002 - the port's name
        """Add one to a counter document."""
        return await self._wire.write(
            "state.increment", lambda: self._store.increment(kind, id), about=f"{kind} {id}"
        )

    async def delete(self, kind: str, id: str, *, expected_version: int) -> bool:  # noqa: A002
        """Delete if the version is as expected."""

        async def work() -> bool:
            is_deleted = await self._store.delete(kind, id, expected_version=expected_version)
            if is_deleted:
                self._around.spoilt.pop((str(kind), id), None)
                self._around.deleted(self._by, kind, id)
            return is_deleted

        return await self._wire.write("state.delete", work, about=f"{kind} {id}")
