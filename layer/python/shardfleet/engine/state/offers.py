"""
The offers of slots and the processes that take them, as documents of the fleet state.

Here processes stand where Step Functions does elsewhere: an offer is an execution, its document's
name the execution's. A process that was stopped for long finds its document changed or gone, and
ends the slot; what it writes meanwhile is refused by the slot's epoch and the leases' counters.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import Any

from shardfleet.domain.slots.offers import LAMBDA, Board, Offer, Seen, seen_again
from shardfleet.domain.slots.rooms import Rooms
from shardfleet.domain.slots.usage import UNKNOWN
from shardfleet.engine.ports import Clock, ExecutionStatus, StateStore, Written
from shardfleet.engine.state.documents import Documents, FoundDocument, read_as
from shardfleet.engine.state.kinds import HOST, OFFER
from shardfleet.errors import ShardfleetError

# A process that is silent for so many failover times does not come back under its name.
FORGOTTEN_AFTER = 10


class Offers:
    """
    The ``WorkerLauncher`` port: an offer is an execution.

    Args:
        store: the fleet-state table.
        host: this process's name, which no other one has; Lambda's.
        clock: this machine's.
        failover_ms: a process whose document is unchanged for so long is taken for dead.

    Attributes:
        host: as given.
        hosts: how many processes took offers at the last look.
        cpu: utilisation of where each worker's process runs, by worker id, at the last look.

    """

    def __init__(self, store: StateStore, *, host: str, clock: Clock, failover_ms: int) -> None:
        """Nothing is seen yet."""
        self._store = Documents.of(store)
        self.host = host
        self.hosts = 0
        self.cpu: Mapping[str, int] = {}
        self._clock = clock
        self._failover_ms = failover_ms
        self._open: frozenset[str] = frozenset()
        self._offers_seen: dict[str, Seen] = {}
        self._hosts_seen: dict[str, Seen] = {}
        self._versions: dict[str, int] = {}  # of what was written here

    # --- for the manager

    async def start(self, name: str, text: str) -> bool:
        """
        Offer an execution; True when it is offered or runs (same name and text: the same one).

        Raises:
            OutcomeUnknown: sent, but no answer came; a repeat is harmless.
            Throttled: try again later.

        """
        result = await self._store.raw.write(OFFER, name, {"text": text}, expected_version=None)
        if isinstance(result, Written):
            version, now_ms = result.document.version, self._clock.monotonic_ms()
            self._offers_seen[name] = Seen(version, now_ms)
            await self._clear(name)
            return True
        found = None if result.current is None else read_as(OFFER, result.current)
        if found is None or found.body is None or found.body.text != text:
            return False
        return not await self._is_closed(found)

    async def status(self, name: str) -> ExecutionStatus:
        """
        Return what is known of an offer; what nobody has taken yet runs.

        Raises:
            Throttled: try again later.

        """
        found = await self._store.get(OFFER, name)
        if found is None:
            return ExecutionStatus.ABSENT
        is_closed = await self._is_closed(found)
        return ExecutionStatus.CLOSED if is_closed else ExecutionStatus.RUNNING

    async def _is_closed(self, found: FoundDocument[Offer]) -> bool:
        """Return whether nobody runs it: it is over, its process dead, or it cannot be read."""
        offer = found.body
        if offer is None or offer.is_over or not offer.host:
            return offer is None or offer.is_over
        began_ms = self._clock.monotonic_ms()
        process = await self._store.get(HOST, offer.host)
        if process is None:
            return True
        now_ms = self._clock.monotonic_ms()
        seen = seen_again(self._hosts_seen, {process.id: process.version}, at_ms=now_ms)
        self._hosts_seen = self._hosts_seen | seen
        return seen[process.id].stands_still(at_ms=began_ms, failover_ms=self._failover_ms)

    async def _clear(self, name: str) -> None:
        """Delete what was offered of the same slot before."""
        with suppress(ShardfleetError):
            for found in await self._store.all(OFFER):
                if found.id != name and worker_of(found.id) == worker_of(name):
                    await self._store.raw.delete(OFFER, found.id, expected_version=found.version)

    # --- for every process

    async def look(self) -> Board:
        """
        Read what is offered and who is there; call it each third of the failover time.

        Raises:
            Throttled: try again later.

        """
        began_ms = self._clock.monotonic_ms()
        offers, processes = await self._store.all(OFFER), await self._store.all(HOST)
        now_ms = self._clock.monotonic_ms()
        self._offers_seen = seen_again(self._offers_seen, _versions(offers), at_ms=now_ms)
        self._hosts_seen = seen_again(self._hosts_seen, _versions(processes), at_ms=now_ms)
        alive = frozenset(self._hosts_seen) - self._still(self._hosts_seen, began_ms)
        hosts = alive & {each.id for each in processes if each.body and not each.body.is_leaving}
        self.hosts = len(hosts)
        running = {o.id: o.body for o in offers if o.body and not o.body.is_over}
        self._open = frozenset(name for name, offer in running.items() if not offer.host)
        cpu = {each.id: each.body.cpu for each in processes if each.body}
        self.cpu = {worker_of(name): cpu.get(o.host, UNKNOWN) for name, o in running.items()}
        return Board(
            offers=running,
            waiting=self._still(self._offers_seen, began_ms),
            alive=alive,
            hosts=hosts,
        )

    async def rooms(self) -> Rooms:
        """
        Look, and return which processes there are, and whose slots are theirs.

        Raises:
            Throttled: try again later.

        """
        board = await self.look()
        theirs = {worker_of(name) for name, it in board.offers.items() if it.host != LAMBDA}
        return Rooms(hosts=board.hosts, carried=frozenset(theirs))

    def is_overdue(self, after_ms: int) -> bool:
        """Return whether, by the last look, an offer has been there for so long, and is open."""
        return any(self.has_waited(name, after_ms) for name in self._open)

    def has_waited(self, name: str, after_ms: int) -> bool:
        """Return whether an offer has been seen as it is for so long."""
        seen, now_ms = self._offers_seen.get(name), self._clock.monotonic_ms()
        return seen is not None and seen.stands_still(at_ms=now_ms, failover_ms=after_ms)

    def _still(self, seen: Mapping[str, Seen], at_ms: int, times: int = 1) -> frozenset[str]:
        after_ms = times * self._failover_ms
        return frozenset(
            name for name, it in seen.items() if it.stands_still(at_ms=at_ms, failover_ms=after_ms)
        )

    async def take(self, name: str, offer: Offer, *, host: str = "") -> bool:
        """
        Take an offer, for Lambda if it is said; False: somebody else has it, or it is gone.

        Raises:
            OutcomeUnknown, Throttled: try again.

        """
        body, seen = {"text": offer.text, "host": host or self.host}, self._offers_seen.get(name)
        self._open -= {name}
        return seen is not None and await self._write(OFFER, name, body, version=seen.version)

    async def forget_the_dead(self, *, times: int = FORGOTTEN_AFTER) -> None:
        """Delete processes that have been silent for so many failover times (the manager's)."""
        now_ms, seen = self._clock.monotonic_ms(), self._hosts_seen  # A look makes another one.
        for name in self._still(seen, now_ms, times):
            await self._store.raw.delete(HOST, name, expected_version=seen[name].version)

    async def _write(
        self, kind: str, name: str, body: Mapping[str, object], *, version: int | None = None
    ) -> bool:
        """Write what is this process's own; False: somebody else has, or has deleted it."""
        key = f"{kind}/{name}"
        version = self._versions.get(key, version)
        result = await self._store.raw.write(kind, name, body, expected_version=version)
        current = result.document if isinstance(result, Written) else result.current
        self._versions.pop(key, None)
        if current is None or current.body != body:
            return False
        self._versions[key] = current.version  # Or it is there by a write that had no answer.
        return True


def _versions(found: Sequence[FoundDocument[Any]]) -> dict[str, int]:
    return {each.id: each.version for each in found}


def worker_of(name: str) -> str:
    """Return what an execution's name has before its start epoch and generation: its worker's."""
    return name.rsplit("-", 2)[0]
