"""Invariants about leases: one writer, counters, checkpoints, children, nothing foreign."""

from __future__ import annotations

from collections.abc import Sequence

from shardfleet.domain.leases.lease import ChangeKind
from shardfleet.events.base import Event
from shardfleet.events.worker import BackwardCheckpoint, LeaseAdopted, LeaseLost, TurnBegun
from shardfleet_testkit.checkers.checker import CallBegun, Checker, LeaseWrite, Suspect

# The operations with which an owner says that it is the owner.
_AS_OWNER = ("renew", "checkpoint")
# What moves no counter: the beginning of a handover, and tools of others (kcl-rust).
_WITHOUT_COUNTER = ("initiate_handover", "foreign_checkpoint")
# Between the look at a lease's age and the handler's first instruction a note may be written.
_CALL_SLACK_MS = 2_500
# An adoption that began before the other invocation's may end after it, by as much as a read, a
# write and the settling of a lost answer take: it costs the other one a tick, and changes nothing.
_CROSSING_MS = 10_000


class CounterByOne(Checker):
    """A counter begins at 0 and moves by one, with every change of the owner but a handover's."""

    def lease_written(self, write: LeaseWrite) -> None:
        """Compare the counters before and after."""
        before, after, key = write.before, write.after, write.change.lease_key
        if after is None:
            return
        if before is None:
            if after.lease_counter:
                self.found(write.at_ms, key, f"created with counter {after.lease_counter}")
            return
        step = after.lease_counter - before.lease_counter
        if step not in (0, 1):
            self.found(write.at_ms, key, f"{write.change.operation} moved the counter by {step}")
        changed = (before.lease_owner, before.checkpoint) != (after.lease_owner, after.checkpoint)
        if changed and not step and write.change.operation not in _WITHOUT_COUNTER:
            text = f"{write.change.operation} changed owner or checkpoint without the counter"
            self.found(write.at_ms, key, text)


class CheckpointForward(Checker):
    """A checkpoint never goes back but by a rewind, and SHARD_END is final."""

    def __init__(self, *args: object, **options: object) -> None:
        """Begin with no lease that a tool of others has written to."""
        super().__init__(*args, **options)  # type: ignore[arg-type]
        self._foreign: set[str] = set()

    def lease_written(self, write: LeaseWrite) -> None:
        """Compare the checkpoints before and after."""
        before, after = write.before, write.after
        if write.change.operation == "foreign_checkpoint":
            self._foreign.add(write.change.lease_key)
        if before is None or after is None or write.change.operation == "rewind":
            return
        if after.checkpoint < before.checkpoint:
            text = f"{write.by.name} moved {before.checkpoint} back to {after.checkpoint}"
            self.found(write.at_ms, after.lease_key, text)

    def told(self, at_ms: int, by: Suspect, event: Event) -> None:
        """Take the engine's own alarm seriously: it is one of its bugs (hazard H8)."""
        if isinstance(event, BackwardCheckpoint) and event.lease_key not in self._foreign:
            text = f"{by.name} wanted to move {event.stored} back to {event.refused}"
            self.found(at_ms, event.lease_key, text)


class OneEffectiveOwner(Checker):
    """
    Of two invocations only the later owner's writes land, and the other soon stops delivering.

    Whoever begins a handler call must have had the lease confirmed within the renewal time; so
    after somebody else's first write as owner it may begin calls for that long, and no longer.
    """

    def __init__(self, *args: object, **options: object) -> None:
        """Begin with no owner."""
        super().__init__(*args, **options)  # type: ignore[arg-type]
        # lease -> who wrote as owner, in the order of their first writes since they lost it
        self._owners: dict[str, list[str]] = {}
        self._ousted: dict[tuple[str, str], tuple[int, int]] = {}
        self._known: dict[str, Suspect] = {}
        self._epochs: dict[str, int] = {}
        self._given_up: set[tuple[str, str]] = set()
        self._to_themselves: set[tuple[str, str]] = set()
        # lease -> who took it in a handover of which the KCL 2 knows nothing, and left it pending
        self._taken: dict[str, str | None] = {}

    def told(self, at_ms: int, by: Suspect, event: Event) -> None:
        """Learn which invocation claimed its slot later, and what each knows to have lost."""
        del at_ms
        match event:
            case TurnBegun():
                self._epochs[by.name] = event.epoch
            case LeaseLost():
                self._given_up.add((event.lease_key, by.name))
            case LeaseAdopted():
                self._given_up.discard((event.lease_key, by.name))
            case _:
                pass

    def lease_written(self, write: LeaseWrite) -> None:
        """Look at who writes as the owner."""
        before, key, by = write.before, write.change.lease_key, write.by
        if write.change.operation == "take":
            self._now_of(key, write)
        if write.after is None or write.after.checkpoint_owner is None:
            self._taken.pop(key, None)
        elif write.change.operation == "take":
            self._taken[key] = by.worker_id
        owner = write.after.lease_owner if write.after is not None else None
        if write.change.operation == "initiate_handover" and owner == by.worker_id:
            self._to_themselves.add((key, by.name))
        if write.change.operation not in _AS_OWNER or before is None or write.is_import:
            return
        if self._is_a_takeover_of_the_kcl(write):
            return
        owner = self._taken.get(key, before.effective_owner)
        if owner != by.worker_id:
            operation = write.change.operation
            text = f"{by.name} wrote {operation} to a lease of {owner}"
            self.found(write.at_ms, key, text)
        elif (ousted := self._ousted.get((key, by.name))) is not None and self._is_overtaken(
            key, by
        ):
            is_crossing = write.at_ms - ousted[0] <= _CROSSING_MS + by.frozen_ms - ousted[1]
            if write.change.operation == "checkpoint" or not is_crossing:
                later = self._owners[key][-1]
                text = f"{by.name} wrote as owner again, after {later} had at {ousted[0]} ms"
                self.found(write.at_ms, key, text)
        self._now_of(key, write)

    def _is_a_takeover_of_the_kcl(self, write: LeaseWrite) -> bool:
        """
        Return whether a KCL leader takes another owner's counter for its own lost renewal.

        A renewal that fails counts as done if the item then shows this worker as the owner, and a
        counter of one more (``DynamoDBLeaseRefresher.renewLease``). That is what a leader finds
        that was frozen, lost the lease, and began to hand it over to itself meanwhile.
        """
        before, by = write.before, write.by
        return (
            (write.change.lease_key, by.name) in self._to_themselves
            and before is not None
            and before.lease_owner == by.worker_id != before.checkpoint_owner
        )

    def _is_overtaken(self, key: str, by: Suspect) -> bool:
        """Return whether the owner now is a later invocation of the same worker."""
        owner = self._known[self._owners[key][-1]]
        return owner.worker_id == by.worker_id and (
            self._epochs.get(owner.name, 0) > self._epochs.get(by.name, 0)
        )

    def _now_of(self, key: str, write: LeaseWrite) -> None:
        by = write.by
        self._known[by.name] = by
        owners = self._owners.setdefault(key, [])
        if owners and (owners[-1] == by.name or self._is_overtaken(key, by)):
            return
        if owners:
            last = self._known[owners[-1]]
            self._ousted[key, last.name] = (write.at_ms, last.frozen_ms)
        self._ousted.pop((key, by.name), None)
        owners.append(by.name)

    def call_begun(self, call: CallBegun) -> None:
        """Look for calls that begin long after somebody else became the owner."""
        if (call.shard_id, call.by.name) in self._given_up:
            text = f"{call.by.name} began a handler call although it knows that the lease is lost"
            self.found(call.at_ms, call.shard_id, text)
        ousted = self._ousted.get((call.shard_id, call.by.name))
        if ousted is None:
            return
        since_ms, frozen_ms = ousted
        late_ms = call.at_ms - since_ms - (call.by.frozen_ms - frozen_ms)
        if late_ms > self.renew_ms + _CALL_SLACK_MS:
            owner = self._owners[call.shard_id][-1]
            text = f"{call.by.name} began a handler call {late_ms} ms after {owner} took over"
            self.found(call.at_ms, call.shard_id, text)


class ChildrenBeforeEnd(Checker):
    """A shard is not marked as ended before all of its children have leases."""

    def __init__(self, *args: object, **options: object) -> None:
        """Begin with no lease ever seen."""
        super().__init__(*args, **options)  # type: ignore[arg-type]
        self._ever: set[str] = set()

    def lease_written(self, write: LeaseWrite) -> None:
        """Look for the children of a shard that ends."""
        after = write.after
        if after is None:
            return
        self._ever.add(after.lease_key)
        ended = write.before is not None and not write.before.is_finished and after.is_finished
        if not ended:
            return
        children = self.ledger.shards[after.lease_key].children
        # A child without a record left to read leaves the stream by itself, lease or no lease.
        truths = self.ledger.shards
        missing = [c for c in children if c not in self._ever and not truths[c].has_left]
        if missing or not children:
            text = f"{write.by.name} ended it without leases of {', '.join(missing) or 'children'}"
            self.found(write.at_ms, after.lease_key, text)


class DeletedOnlyFinished(Checker):
    """A lease is deleted only when it is finished, and comes back at its end, if ever (S12)."""

    def __init__(self, *args: object, **options: object) -> None:
        """Begin with nothing deleted."""
        super().__init__(*args, **options)  # type: ignore[arg-type]
        self._deleted: set[str] = set()

    def lease_written(self, write: LeaseWrite) -> None:
        """Look at deletions and creations."""
        before, after, key = write.before, write.after, write.change.lease_key
        is_begun_anew = before is None and after is not None and not after.is_finished
        if write.change.operation == "vanish":
            return
        if after is None and before is not None:
            if not before.is_finished:
                self.found(write.at_ms, key, f"{write.by.name} deleted it at {before.checkpoint}")
            self._deleted.add(key)
        elif is_begun_anew and key in self._deleted and self.ledger.recreated_ms is None:
            text = f"{write.by.name} created it again after it was finished and deleted"
            self.found(write.at_ms, key, text)


class NothingForeign(Checker):
    """The lease table holds leases of the stream's shards and nothing else."""

    def lease_written(self, write: LeaseWrite) -> None:
        """Look at what is created."""
        key = write.change.lease_key
        if write.change.kind is ChangeKind.PUT and key not in self.ledger.shards:
            self.found(write.at_ms, key, f"{write.by.name} put an item that is no shard's lease")

    def over(self, at_ms: int, *, keys: Sequence[str]) -> None:
        """Look at everything once more."""
        for key in keys:
            if key not in self.ledger.shards:
                self.found(at_ms, key, "an item that is no shard's lease is in the table")
