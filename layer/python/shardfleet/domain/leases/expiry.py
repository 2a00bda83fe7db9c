"""
Which leases have lost their owner: expiry by persisted sightings.

A lease holds no timestamp. That its counter stands still is something the manager must have seen
itself, over two readings, and remember across invocations (protocol.md §0.4).

Rules: docs/protocol.md E1-E8 (§1.7; hazards H15, H16).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from msgspec import Struct
from msgspec.structs import replace

from shardfleet.domain.leases.lease import Lease


class Sighting(Struct, frozen=True, array_like=True, gc=False):
    """
    A counter as first seen; a row of the manager's documents.

    Attributes:
        counter: ``leaseCounter``.
        owner: who had to renew it (the old owner during a handover).
        first_seen_ms: the manager's clock *after* the reading that first showed it, epoch ms.
        is_renewed: that owner was seen with another counter before, so it reads the lease (E8).

    """

    counter: int
    owner: str | None
    first_seen_ms: int
    is_renewed: bool = True


class Reading(Struct, frozen=True, kw_only=True):
    """
    When the lease table was read, by one clock.

    Attributes:
        began_ms: the clock before.
        ended_ms: the clock after.
        skew_ms: how far the clocks of two who remember by it may differ.

    """

    began_ms: int
    ended_ms: int
    skew_ms: int = 0


def sighted(
    previous: Mapping[str, Sighting],
    leases: Sequence[Lease],
    *,
    reading: Reading,
    failover_ms: int,
    graces: Mapping[str, int],
    slow: Mapping[str, int] | None = None,
) -> tuple[dict[str, Sighting], frozenset[str]]:
    """
    Return the sightings after a reading of the table, and the keys of leases that have expired.

    Expired are owned, unfinished leases whose counter has stood still for too long.

    Args:
        previous: what was remembered.
        leases: what was read.
        reading: when.
        failover_ms: how long a counter may stand still.
        graces: lease key to extra grace, ms, for assignments not renewed yet (E5, hazard H16).
        slow: owner to extra grace, ms, for what it has been given and has not renewed yet (E8).

    """
    if slow:
        graces = {**graces, **_unrenewed(previous, leases, slow)}
    sightings = update_sightings(
        previous,
        leases,
        read_started_ms=reading.began_ms,
        read_finished_ms=reading.ended_ms,
        skew_ms=reading.skew_ms,
    )
    # The age runs from the clock after the first reading to the clock before this one, less the
    # skew: never more than the time that truly passed (E3).
    newest_ms = reading.began_ms - reading.skew_ms - failover_ms
    expired = frozenset(
        key
        for key, seen in sightings.items()
        if seen.first_seen_ms < newest_ms and seen.first_seen_ms < newest_ms - graces.get(key, 0)
    )
    return sightings, expired


def _unrenewed(
    previous: Mapping[str, Sighting], leases: Iterable[Lease], slow: Mapping[str, int]
) -> dict[str, int]:
    """Return the leases with which their owners have not been seen to begin."""
    return {
        lease.lease_key: slow[owner]
        for lease in leases
        if (owner := lease.effective_owner) is not None
        and owner in slow
        and (seen := previous.get(lease.lease_key)) is not None
        and not seen.is_renewed
        and _same(seen, lease)
    }


def update_sightings(
    previous: Mapping[str, Sighting],
    leases: Iterable[Lease],
    *,
    read_started_ms: int,
    read_finished_ms: int,
    skew_ms: int,
) -> dict[str, Sighting]:
    """
    Return the sightings after a reading of the table: of owned, unfinished leases only.

    A counter or an owner that changed is new. So is one first seen in the future by more than
    the allowed skew: a clock went back, and the lease would never expire (E4).

    Args:
        previous: what was remembered.
        leases: what was read.
        read_started_ms: the clock before the reading, epoch ms.
        read_finished_ms: the clock after it, epoch ms.
        skew_ms: how far the clocks of two managers may differ.

    """
    # As often as each third of the failover time, for each lease there is: few calls, no sorting.
    newest_ms = read_started_ms + skew_ms
    sightings: dict[str, Sighting] = {}
    for lease in leases:
        owner = lease.checkpoint_owner or lease.lease_owner
        if owner is None or lease.is_finished:
            continue
        key, counter = lease.lease_key, lease.lease_counter
        seen = previous.get(key)
        is_known = seen is not None and seen.owner == owner
        if (
            seen is None
            or not is_known
            or seen.counter != counter
            or seen.first_seen_ms > newest_ms
        ):
            seen = Sighting(counter, owner, read_finished_ms, is_known)
        sightings[key] = seen
    return sightings


def in_step(
    kept: Mapping[str, Sighting], *, now_ms: int, apart_most_ms: int
) -> Mapping[str, Sighting]:
    """
    Return what was kept, or nothing if even the newest of it is too old (E7).

    Then it was kept by a clock that is behind this one, and all that owners have renewed since
    would seem to have stood still; or nobody has looked for as long. Either way all begins anew.

    Args:
        kept: by whoever was the manager before.
        now_ms: the clock, epoch milliseconds.
        apart_most_ms: between a manager's last look and the next one's first.

    """
    newest_ms = max((seen.first_seen_ms for seen in kept.values()), default=now_ms)
    return kept if now_ms - newest_ms <= apart_most_ms else {}


def by_another_clock(sightings: Mapping[str, Sighting], *, ahead_ms: int) -> dict[str, Sighting]:
    """
    Return the sightings, each first seen at the same moment by another clock.

    Args:
        sightings: by one clock.
        ahead_ms: what the other one shows more at any moment, milliseconds.

    """
    return {
        key: replace(seen, first_seen_ms=seen.first_seen_ms + ahead_ms)
        for key, seen in sightings.items()
    }


def _same(sighting: Sighting, lease: Lease) -> bool:
    return (sighting.counter, sighting.owner) == (lease.lease_counter, lease.effective_owner)
