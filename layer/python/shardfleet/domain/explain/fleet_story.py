"""What became of the fleet as a whole: its size, its slots, its regime."""

from __future__ import annotations

from shardfleet.domain.explain.answer import Explanation, Known, story_of
from shardfleet.domain.explain.fleet_view import summary
from shardfleet.domain.explain.turn_log import FLEET


def explain_fleet(known: Known) -> Explanation:
    """Return how the fleet is, and what was decided about all of it and about its workers."""
    found = summary(known.reading)
    leases = _counted({str(state): count for state, count in found.leases.items()})
    slots = _counted({str(state): count for state, count in found.slots.items()})
    others = ""
    if found.workers:
        others = f" Others that share the lease table: {', '.join(found.workers)}."
    waits = "; ".join(sorted(set(known.waits.values())))
    story = story_of(known, lambda e: e.subject == FLEET or e.what.startswith("SLOT_"), named=True)
    return Explanation(
        subject=FLEET,
        kind="fleet",
        state="FLEET",
        owner=None,
        since_ms=None,
        now=f"Leases: {leases}. Workers: {slots}.{others}",
        why=f"What waits: {waits}." if waits else "",
        leases=(),
        story=tuple(story),
    )


def _counted(counts: dict[str, int]) -> str:
    return ", ".join(f"{count} {state.lower()}" for state, count in counts.items()) or "none"
