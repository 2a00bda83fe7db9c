"""Invariants about who may take a lease from whom, and about handovers."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Any

from shardfleet.domain.leases.lease import Lease
from shardfleet.domain.slots.slot import SlotState
from shardfleet.engine.state.kinds import OFFER, SLOT
from shardfleet.events.base import Event
from shardfleet.events.worker import LeaseLost, LeaseUnreadable, TurnBegun, TurnEnded, TurnEnding
from shardfleet_testkit.checkers.checker import (
    Checker,
    DocumentWrite,
    LeaseWrite,
    Suspect,
    is_operator,
)

# Kinesis Client Library 3: a leader forces a handover after 30 s (protocol.md §3.5).
_PATIENCE_MS = 30_000
# What has stood still for so long has expired; a KCL leader looks once in so long (§1.7, §3.1).
_FAILOVER_MS, _RUN_MS = 10_000, 20_000
# An owner that knows of a handover finishes its batch first; it may have to import its code before.
_BATCH_MS = 28_000
_FOREVER_MS = 10**12
_LOADED_BATCH_MS = 16_000
# A few calls, two of them as slow as calls may be.
_AT_BEGINNING_MS = 8_000
_CALLS_MS = 4_000


def _is_java(by: Suspect) -> bool:
    """Return whether it is a worker of Java's: a manager has no owner's name."""
    return bool(by.worker_id) and by.execution == (0, 0)


class NobodyIsRobbed(Checker):
    """
    A lease leaves an owner that renews it only by a steal or by its own release.

    Whoever assigns or evicts it otherwise must have seen it expire, or its owner's slot end; the
    beginning of a handover leaves the effective owner. A KCL leader assigns what was expired at its
    look, whatever the counter since (protocol.md §1.6), and what is finished at any time.
    """

    def __init__(self, *args: object, **options: object) -> None:
        """Begin with no lease and no slot known."""
        super().__init__(*args, **options)  # type: ignore[arg-type]
        # lease -> when its owner wrote again after having let it expire
        self._revived: dict[str, int] = {}
        # lease -> who wrote as its owner or was given it, and when
        self._kept: dict[str, tuple[str | None, int]] = {}
        # (lease, worker) -> when the worker itself wrote to it
        self._renewed: dict[tuple[str, str], int] = {}
        self._ended: dict[str, int] = {}
        self._handovers: dict[str, int] = {}
        self._over: set[str] = set()

    def told(self, at_ms: int, by: Suspect, event: Event) -> None:
        """Learn who has read that its slot is over: one that thaws may renew once before."""
        is_stale = isinstance(event, TurnEnded) and event.reason is TurnEnding.STALE
        if is_stale and by.worker_id in self._over:
            self._ended[by.worker_id] = max(at_ms, self._ended[by.worker_id])

    def document_written(self, write: DocumentWrite) -> None:
        """Learn which slots have ended; of a mended one the worker learns at its next look."""
        if write.kind != SLOT:
            return
        worker_id, is_by_hand = write.after["worker_id"], is_operator(write.by)
        self._over.discard(worker_id)
        if write.after["state"] == SlotState.ENDED:
            self._over.add(worker_id)
            self._ended[worker_id] = _FOREVER_MS if is_by_hand else write.at_ms
        elif self._ended.get(worker_id) == _FOREVER_MS:
            del self._ended[worker_id]

    def lease_written(self, write: LeaseWrite) -> None:
        """Look at what changes owners."""
        before, after, key = write.before, write.after, write.change.lease_key
        if before is not None and after is not None:
            self._judge(write)
        if after is None:
            self._kept.pop(key, None)
            return
        if after.effective_owner == write.by.worker_id:
            self._renewed[key, write.by.worker_id] = write.at_ms
        if before is None or after.lease_counter != before.lease_counter:
            if key in self._kept and write.at_ms - self._kept[key][1] > _FAILOVER_MS:
                self._revived[key] = write.at_ms
            self._kept[key] = (after.effective_owner, write.at_ms)
        if write.change.operation == "initiate_handover":
            self._handovers[key] = write.at_ms

    def _judge(self, write: LeaseWrite) -> None:
        before, after, key = write.before, write.after, write.change.lease_key
        if before is None or after is None:
            return
        operation, owner = write.change.operation, before.effective_owner
        if operation == "initiate_handover" and after.effective_owner != owner:
            text = f"{write.by.name} began a handover of {owner}'s lease from somebody else"
            self.found(write.at_ms, key, text)
        if operation == "initiate_handover" and before.is_finished and not write.by.worker_id:
            self.found(write.at_ms, key, f"{write.by.name} began a handover of a finished lease")
        if operation not in ("assign", "evict") or owner in (None, write.by.worker_id):
            return
        is_forced = (
            before.checkpoint_owner is not None
            and before.lease_owner == after.lease_owner
            and write.at_ms - self._handovers[key] >= min(_PATIENCE_MS, self.ledger.handover_ms)
        )
        ended_ms = self._ended.get(owner or "", -1)
        is_over = ended_ms >= max(0, self._renewed.get((key, owner or ""), 0))
        is_over = is_over or self._ended_in_silence(key, owner or "")
        age_ms = write.at_ms - self._kept[key][1]
        is_free = is_forced or is_over or is_operator(write.by) or self._is_of_the_kcl(write)
        if age_ms < 3 * self.renew_ms and not is_free:
            text = f"{write.by.name} wrote {operation} to a lease of {owner}, {age_ms} ms old"
            self.found(write.at_ms, key, text)

    def _ended_in_silence(self, key: str, owner: str) -> bool:
        """Return whether an owner has woken since, and cannot know yet that its slot is over."""
        ended_ms, woke_ms = self._ended.get(owner, -1), self._revived.get(key)
        if owner not in self._over or woke_ms is None or ended_ms - woke_ms > _CALLS_MS:
            return False
        # It looks at its slot in each renewal time.
        known_ms = max(ended_ms, woke_ms) + self.renew_ms + _CALLS_MS
        return self._renewed.get((key, owner), 0) <= known_ms

    def _is_of_the_kcl(self, write: LeaseWrite) -> bool:
        """Return whether a leader of Java's may take this lease, by what it saw in its run."""
        by, revived_ms = write.by, self._revived.get(write.change.lease_key)
        if not _is_java(by) or write.change.operation != "assign" or write.before is None:
            return False
        if write.before.is_finished:
            return True
        return revived_ms is not None and write.at_ms - revived_ms <= _RUN_MS + by.frozen_ms


class UpdatesNeverCreate(Checker):
    """No update is conditional on nothing but absence: DynamoDB would make a malformed item."""

    def update_created(self, write: LeaseWrite) -> None:
        """Report it."""
        text = f"{write.by.name} wrote {write.change.operation} to a lease that was deleted"
        self.found(write.at_ms, write.change.lease_key, text)


class RewindsOnlyUnowned(Checker):
    """A lease is set back, or on by an import, only while nobody has it (hazard H8)."""

    def lease_written(self, write: LeaseWrite) -> None:
        """Look at who has a lease that is put elsewhere."""
        before = write.before
        if before is None or not write.sets_place:
            return
        owners = {before.lease_owner, before.checkpoint_owner} - {None}
        if owners:
            text = f"{write.by.name} put it elsewhere under {', '.join(sorted(map(str, owners)))}"
            self.found(write.at_ms, write.change.lease_key, text)


class NobodyLosesToItself(Checker):
    """Nobody takes its own write for somebody else's (protocol.md §8 rows 11 and 12)."""

    def __init__(self, *args: object, **options: object) -> None:
        """Begin with no write seen."""
        super().__init__(*args, **options)  # type: ignore[arg-type]
        self._last: dict[str, str] = {}

    def lease_written(self, write: LeaseWrite) -> None:
        """Remember who wrote last what an owner would notice."""
        before, after, key = write.before, write.after, write.change.lease_key
        is_noticed = before is None or after is None or _version(before) != _version(after)
        if is_noticed or write.change.operation == "garble":
            self._last[key] = write.by.name

    def told(self, at_ms: int, by: Suspect, event: Event) -> None:
        """Look at who was the last to write to a lease that somebody says it has lost."""
        if isinstance(event, LeaseLost) and self._last.get(event.lease_key) == by.name:
            text = f"{by.name} says that it lost the lease, and was itself the last to write"
            self.found(at_ms, event.lease_key, text)


def _version(lease: Lease) -> tuple[int, str | None, str | None]:
    return (lease.lease_counter, lease.lease_owner, lease.checkpoint_owner)


class HandoversEnd(Checker):
    """An owner that renews ends a handover once a renewal time and its batch are over (§3.5)."""

    def __init__(self, *args: object, **options: object) -> None:
        """Begin with no handover."""
        super().__init__(*args, **options)  # type: ignore[arg-type]
        self._begun: dict[str, int] = {}
        # lease -> who wrote during its handover, when first, and how long it had been frozen
        self._writers: dict[str, tuple[str, int, int]] = {}
        self._loaded: set[str] = set()
        # (lease, invocation) -> when it ended the shard in the middle of a handover, and its faults
        self._left: dict[tuple[str, str], tuple[int, int]] = {}
        self._epochs: dict[str, tuple[int, str]] = {}

    def document_written(self, write: DocumentWrite) -> None:
        """Learn who has overtaken whom: only the newest invocation may end what is pending."""
        if write.kind != SLOT:
            return
        worker_id, epoch = write.after["worker_id"], write.after.get("epoch", 0)
        if epoch > self._epochs.get(worker_id, (0, ""))[0]:
            self._epochs[worker_id] = epoch, write.by.name

    def lease_written(self, write: LeaseWrite) -> None:
        """Look at writes of the old owner while a handover is pending."""
        after, key, by = write.after, write.change.lease_key, write.by
        self._look_back(write)
        if after is None or after.checkpoint_owner is None:
            self._writers.pop(key, None)
            self._left = {which: when for which, when in self._left.items() if which[0] != key}
            return
        if after.checkpoint_owner == by.worker_id and after.is_finished:
            self._left.setdefault((key, by.name), (write.at_ms, len(by.faults)))
        if after.checkpoint_owner != by.worker_id or after.is_finished:
            return
        name, since_ms, frozen_ms = self._writers.get(key, ("", 0, 0))
        if name != by.name:
            self._writers[key] = (by.name, write.at_ms, by.frozen_ms)
            return
        lasted_ms = write.at_ms - since_ms - (by.frozen_ms - frozen_ms)
        refused_ms = _PATIENCE_MS if any(at_ms >= since_ms for at_ms, _ in by.faults) else 0
        batch_ms = _LOADED_BATCH_MS if by.name in self._loaded else _BATCH_MS
        # A renewal time until it lets go, and as long for a table that throttles it.
        batch_ms += 2 * self.renew_ms + self.renew_ms // 8
        if _is_java(by):
            # A worker of Java's looks for that when it renews.
            batch_ms = _PATIENCE_MS + 2 * self.renew_ms
        if lasted_ms > batch_ms + refused_ms:
            text = f"{by.name} still renews, {lasted_ms} ms after it could know of the handover"
            self.found(write.at_ms, key, text)

    def read_begun(self, at_ms: int, by: Suspect, shard_id: str) -> None:
        """Learn whose code is imported: who reads has nothing to wait for but a batch."""
        del at_ms, shard_id
        self._loaded.add(by.name)

    def turn_over(self, at_ms: int, by: Suspect, *, left: Sequence[str], error: str) -> None:
        """Look for finished shards whose next owner still waits for them (§8 row 15)."""
        del left, error
        for (key, name), (since_ms, faults) in list(self._left.items()):
            if name == by.name and len(by.faults) == faults and not self._is_overtaken(by):
                text = f"{name} ended it at {since_ms} ms and left its handover pending"
                self.found(at_ms, key, text)

    def _is_overtaken(self, by: Suspect) -> bool:
        return self._epochs.get(by.worker_id, (0, by.name))[1] != by.name

    def _look_back(self, write: LeaseWrite) -> None:
        key, by = write.change.lease_key, write.by
        for (other, name), (since_ms, faults) in list(self._left.items()):
            waited_ms = write.at_ms - since_ms
            is_same = name == by.name and other != key and len(by.faults) == faults
            if is_same and waited_ms > _PATIENCE_MS // 3:
                text = f"{name} ended it {waited_ms} ms ago and left its handover pending"
                self.found(write.at_ms, other, text)


class RestartedOwnersHandOver(Checker):
    """An old owner that restarts in the middle of a handover ends it when it begins (§3.5)."""

    def __init__(self, *args: object, **options: object) -> None:
        """Begin with no handover."""
        super().__init__(*args, **options)  # type: ignore[arg-type]
        self._old_owners: dict[str, str] = {}
        self._held: dict[str, Collection[str]] = {}
        # lease -> which invocation has inherited its handover, when it began, and its faults
        self._inherited: dict[str, tuple[Suspect, int, int]] = {}

    def document_written(self, write: DocumentWrite) -> None:
        """Learn which leases a worker finds again when it begins."""
        if write.kind == SLOT:
            self._held[write.after["worker_id"]] = write.after.get("lags_ms", ())

    def told(self, at_ms: int, by: Suspect, event: Event) -> None:
        """Look at who begins, and who cannot read a lease that was made unreadable meanwhile."""
        if isinstance(event, LeaseUnreadable):
            inherited = self._inherited.get(event.lease_key)
            if inherited is not None and inherited[0].name == by.name:
                del self._inherited[event.lease_key]
        if not isinstance(event, TurnBegun):
            return
        for key in self._held.get(by.worker_id, ()):
            if self._old_owners.get(key) == by.worker_id:
                self._inherited[key] = (by, at_ms, len(by.faults))

    def lease_written(self, write: LeaseWrite) -> None:
        """Look at who ends a handover that somebody had inherited."""
        after, key = write.after, write.change.lease_key
        if after is not None and after.checkpoint_owner is not None and not after.is_finished:
            self._old_owners[key] = after.checkpoint_owner
            return
        self._old_owners.pop(key, None)
        by, began_ms, faults = self._inherited.pop(key, (write.by, 0, 0))
        waited_ms = write.at_ms - began_ms
        is_alive = by.worker_id != write.by.worker_id and len(by.faults) == faults
        if is_alive and waited_ms > _AT_BEGINNING_MS and not is_operator(write.by):
            text = f"{by.name} began {waited_ms} ms ago and left its handover to {write.by.name}"
            self.found(write.at_ms, key, text)


class OnlyTheHarmedLose(Checker):
    """
    A lease expires only under a worker to whom something happened (hazards H15, H16).

    Nobody runs a slot that a process has passed on, until the next one takes the offer: if that one
    dies first, its leases expire, and whoever takes the slot later goes on with what is left.
    """

    def __init__(self, *args: object, **options: object) -> None:
        """Begin with no worker known."""
        super().__init__(*args, **options)  # type: ignore[arg-type]
        self._invocations: dict[str, list[Suspect]] = {}
        self._robbed: dict[str, tuple[str, tuple[int, int]]] = {}
        self._states: dict[str, Mapping[str, Any]] = {}
        self._renewed: dict[str, str] = {}
        self._passed_on: set[str] = set()

    def document_written(self, write: DocumentWrite) -> None:
        """Remember the slots, and which of them nobody runs."""
        if write.kind == SLOT:
            self._states[write.after["worker_id"]] = write.after
        if write.kind == OFFER:
            worker_id = write.name.rsplit("-", 2)[0]
            self._passed_on.discard(worker_id)
            if write.before is not None and not write.after.get("host"):
                self._passed_on.add(worker_id)

    def told(self, at_ms: int, by: Suspect, event: Event) -> None:
        """Look at who begins a turn of the same execution after it has lost a lease."""
        if not isinstance(event, TurnBegun):
            return
        self._invocations.setdefault(by.worker_id, []).append(by)
        key, execution = self._robbed.pop(by.worker_id, ("", (0, 0)))
        # Who was frozen before it could begin is known by now only.
        if key and execution[0] == by.execution[0] and not by.faults:
            text = f"taken from {by.worker_id}, to whom nothing had happened"
            self.found(at_ms, key, text)

    def lease_written(self, write: LeaseWrite) -> None:
        """Look at assignments of leases that have an owner."""
        before, after, key = write.before, write.after, write.change.lease_key
        if write.change.operation in ("renew", "checkpoint"):
            self._renewed[key] = write.by.worker_id
        elif is_operator(write.by):
            self._renewed.pop(key, None)
        if before is None or after is None or write.change.operation != "assign":
            return
        if before.is_finished and _is_java(write.by):
            # Nobody renews what is done but the KCL, whose leader gives it to somebody else then.
            return
        owner = before.effective_owner
        if owner is None or owner in (write.by.worker_id, after.effective_owner):
            return
        known = self._invocations.get(owner)
        if self._renewed.get(key) != owner or before.checkpoint_owner is not None:
            # A leader of others gave it the lease, which the worker finds in the index only (H16).
            return
        state = self._states.get(owner, {}).get("state")
        if owner in self._passed_on:
            return
        if known and state == SlotState.RUNNING and not any(by.faults for by in known):
            self._robbed[owner] = (key, known[-1].execution)
