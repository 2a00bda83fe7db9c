"""Invariants about the fleet: turns end cleanly, leases stay put in quiet times, calls are few."""

from __future__ import annotations

from collections.abc import Sequence

from shardfleet.events.base import Event
from shardfleet.events.delivery import PositionLost
from shardfleet.events.worker import TurnFailed
from shardfleet.testing.checkers.checker import Checker, Suspect, Window

_HOUR_MS = 3_600_000
# Failures of a turn that the design provides for.
_FORESEEN = ("shard ", "still running", "HandlerTimedOut")
_WITHOUT_STREAM = ("StreamReplaced", "StreamGone")
# Renewals are due each renew_ms and sent up to half of that early; the rest is for slots.
_WRITES_OF_RENEWALS = 3.0


class TurnsEndCleanly(Checker):
    """A turn raises nothing, fails for nothing unforeseen, and leaves no task behind (H10)."""

    def turn_over(self, at_ms: int, by: Suspect, *, left: Sequence[str], error: str) -> None:
        """Look at how an invocation returned."""
        if error:
            self.found(at_ms, by.name, f"raised {error}")
        if left:
            self.found(at_ms, by.name, f"returned while tasks of it ran: {', '.join(left)}")

    def told(self, at_ms: int, by: Suspect, event: Event) -> None:
        """Look at why a turn failed."""
        is_over = self.ledger.recreated_ms is not None
        foreseen = (*_FORESEEN, *_WITHOUT_STREAM) if is_over else _FORESEEN
        if isinstance(event, TurnFailed) and not event.error.startswith(foreseen):
            self.found(at_ms, by.name, f"the turn failed: {event.error}")


class QuietFleetKeepsLeases(Checker):
    """In a quiet fleet no lease changes hands."""

    def calm_window(self, at_ms: int, window: Window) -> None:
        """Count changes of owners."""
        if window.owner_changes:
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
    """Nobody is told of a loss: a simulated stream trims nothing that is not handled."""

    def told(self, at_ms: int, by: Suspect, event: Event) -> None:
        """Look for news of records that may be lost."""
        if isinstance(event, PositionLost):
            text = f"{by.name} says that records behind {event.done} may be lost; none is"
            self.found(at_ms, event.lease_key, text)
