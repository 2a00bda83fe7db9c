"""Invariants about the fleet: turns end cleanly, leases stay put in quiet times, calls are few."""

from __future__ import annotations

from collections.abc import Sequence

from shardfleet.domain.reasons import LoadedMore
from shardfleet.domain.stream.sequence import ExtendedSequenceNumber
from shardfleet.events.base import Event
from shardfleet.events.delivery import PositionLost, PositionOutlived
from shardfleet.events.manager import LeaseAssigned
from shardfleet.events.worker import ShardExpired, TurnBegun, TurnFailed
from shardfleet_testkit.checkers.checker import (
    Checker,
    LeaseWrite,
    Suspect,
    Window,
    is_operator,
)
from shardfleet_testkit.checkers.ledger import SourceRecord

_HOUR_MS = 3_600_000
# Failures of a turn that the design provides for.
_FORESEEN: tuple[str, ...] = ("shard ", "still running", "HandlerTimedOut")
# And of one that was frozen, or began late, for longer than an import leaves of its time.
_WHEN_LATE = ("its import",)
LONGEST_IMPORT_MS = 60_000
"""
Of a handler. Longer than the failover time: leases are renewed meanwhile (hazard H16); and longer
than what suspicion lasted when it ended by the clock (H21).
"""
_WITHOUT_STREAM = ("StreamReplaced", "StreamGone")
# Renewals are due each renew_ms and sent up to half of that early; the rest is for slots.
_WRITES_OF_RENEWALS = 3.0
# One exchange.
_EXCHANGED_MOST = 2


class TurnsEndCleanly(Checker):
    """A turn raises nothing, fails for nothing unforeseen, and leaves no task behind (H10)."""

    def __init__(self, *args: object, **options: object) -> None:
        """Begin with no turn."""
        super().__init__(*args, **options)  # type: ignore[arg-type]
        self._begun_ms: dict[str, int] = {}

    def turn_over(self, at_ms: int, by: Suspect, *, left: Sequence[str], error: str) -> None:
        """Look at how an invocation returned."""
        if error:
            self.found(at_ms, by.name, f"raised {error}")
        if left:
            self.found(at_ms, by.name, f"returned while tasks of it ran: {', '.join(left)}")

    def told(self, at_ms: int, by: Suspect, event: Event) -> None:
        """Look at why a turn failed."""
        foreseen = _FORESEEN
        if self.ledger.recreated_ms is not None:
            foreseen += _WITHOUT_STREAM
        if isinstance(event, TurnBegun):
            self._begun_ms[by.name] = at_ms
        begun_ms = self._begun_ms.get(by.name)
        if by.frozen_ms or (begun_ms is not None and at_ms - begun_ms < LONGEST_IMPORT_MS):
            foreseen += _WHEN_LATE
        if isinstance(event, TurnFailed) and not event.error.startswith(foreseen):
            self.found(at_ms, by.name, f"the turn failed: {event.error}")


class QuietFleetKeepsLeases(Checker):
    """
    In a quiet fleet no lease changes hands, but to even out what the noise has left uneven.

    Loads about what is noise come and go; once they are gone numbers decide (B2, A6). A lease that
    was refused its move before may have it now, or be exchanged: two changes, and no more.
    """

    def __init__(self, *args: object, **options: object) -> None:
        """Begin with no move."""
        super().__init__(*args, **options)  # type: ignore[arg-type]
        self._by_load_ms: list[int] = []

    def told(self, at_ms: int, by: Suspect, event: Event) -> None:
        """Learn which leases the manager moves to even out loads."""
        del by
        if isinstance(event, LeaseAssigned) and isinstance(event.reason, LoadedMore):
            self._by_load_ms.append(at_ms)

    def calm_window(self, at_ms: int, window: Window) -> None:
        """Count changes of owners."""
        begun_ms = at_ms - window.duration_ms
        by_load = sum(moved_ms >= begun_ms for moved_ms in self._by_load_ms)
        if window.owner_changes > window.uneven + min(by_load, _EXCHANGED_MOST):
            text = f"{window.owner_changes} leases changed hands in {window.duration_ms} quiet ms"
            self.found(at_ms, "fleet", text)


class CallsAreBounded(Checker):
    """In a quiet fleet a shard costs a known number of lease writes and reads per hour."""

    def calm_window(self, at_ms: int, window: Window) -> None:
        """Compare with what the configuration implies."""
        shard_hours = window.shards * window.duration_ms / _HOUR_MS
        # A checkpoint after each handler call, on top of the renewals.
        per_hour = _HOUR_MS / window.renew_ms * _WRITES_OF_RENEWALS
        per_hour += window.calls.get("handler.run", 0) / shard_hours
        writes = window.calls.get("lease.apply", 0) / shard_hours
        if writes > per_hour:
            text = f"{writes:.0f} lease writes per shard-hour, {per_hour:.0f} expected at most"
            self.found(at_ms, "fleet", text)
        # Kinesis allows five reads per second and shard; a shard that is idle needs one.
        reads = window.calls.get("stream.get_records", 0) / shard_hours
        if reads > 5 * 3_600:
            self.found(at_ms, "fleet", f"{reads:.0f} reads per shard-hour, 18000 expected at most")


class AlarmsAreTrue(Checker):
    """
    Nobody is told of a loss where there is none, and each record that is lost is told (§5.1).

    A loss is told by shard, behind a position; of one that was left at its tip nothing is known,
    which is told as well, as it is where its last reader died. Of a shard of which nothing has been
    done there is no position, and news of a loss is not asked for: docs/proof.md says where it is
    silent yet.
    """

    def __init__(self, *args: object, **options: object) -> None:
        """Begin with nothing told."""
        super().__init__(*args, **options)  # type: ignore[arg-type]
        self._told: set[str] = set()
        # Of which something was done before records were trimmed, and who read them last.
        self._numbered: set[str] = set()
        self._readers: dict[str, Suspect] = {}
        # How far those were that an operator has set back, and that are not as far again.
        self._set_back: dict[str, ExtendedSequenceNumber] = {}

    def read_begun(self, at_ms: int, by: Suspect, shard_id: str) -> None:
        """Remember who read a shard last before the trimming; a person's count notes no tip."""
        del at_ms
        if self.ledger.trimmed_ms is None and not is_operator(by):
            self._readers[shard_id] = by

    def lease_written(self, write: LeaseWrite) -> None:
        """Remember of which shards something was done, or is wanted again, before the trimming."""
        before, after = write.before, write.after
        if self.ledger.trimmed_ms is not None or after is None:
            return
        if before is not None and write.change.operation == "rewind":
            was = self._set_back.get(after.lease_key, before.checkpoint)
            self._set_back[after.lease_key] = max(was, before.checkpoint)
        if after.checkpoint >= self._set_back.get(after.lease_key, after.checkpoint):
            self._set_back.pop(after.lease_key, None)
        self._numbered.discard(after.lease_key)
        if not after.checkpoint.is_sentinel:
            self._numbered.add(after.lease_key)

    def told(self, at_ms: int, by: Suspect, event: Event) -> None:
        """Look for news of records that may be lost."""
        if isinstance(event, PositionLost) and not self._may_be_lost(event.lease_key):
            text = f"{by.name} says that records behind {event.done} may be lost; none is"
            self.found(at_ms, event.lease_key, text)
        if self.ledger.trimmed_ms is None:
            return
        if isinstance(event, PositionLost | PositionOutlived | ShardExpired):
            self._told.add(event.lease_key)

    def over(self, at_ms: int, *, keys: Sequence[str]) -> None:
        """Look for shards of which something was lost that nobody was told."""
        del keys
        for key in sorted(self._numbered - self._told):
            if lost := self._lost(key):
                text = f"{len(lost)} records were trimmed unread, {lost[0]} first, and nobody told"
                self.found(at_ms, key, text)

    def _may_be_lost(self, key: str) -> bool:
        """Return whether any are lost or wanted again, or the last reader's note may be missing."""
        if self.ledger.trimmed_ms is None:
            return False
        if key in self._set_back:
            return True
        return bool(self._lost(key) or key not in self._readers or self._readers[key].faults)

    def _lost(self, key: str) -> Sequence[SourceRecord]:
        return [entry for entry in self.ledger.shards[key].entries if entry.is_trimmed]
