"""
Which graceful handovers are pending, and which have taken too long (protocol.md §3.2, §3.5).

A lease holds no time of the beginning of its handover, so it is remembered from when it was first
seen. An owner that still renews but does not let go within the time loses the lease by force; one
that does not renew expires as ever.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping

from msgspec import Struct

from shardfleet.domain.leases.lease import Lease


class Handover(Struct, frozen=True, array_like=True):
    """
    A handover as first seen; a row of the manager's documents.

    Attributes:
        old_owner: still renews and checkpoints.
        next_owner: is to have the lease.
        since_ms: when it was first seen, epoch milliseconds.

    """

    old_owner: str
    next_owner: str
    since_ms: int


def pending_handovers(
    previous: Mapping[str, Handover], leases: Iterable[Lease], *, now_ms: int, age_most_ms: int
) -> dict[str, Handover]:
    """
    Return lease key to handover, for unfinished leases; another pair of owners is a new one.

    Args:
        previous: what was remembered.
        leases: what was read.
        now_ms: epoch milliseconds; a beginning that lies after it is forgotten.
        age_most_ms: none is older, since it is forced before; one that seems to be was first seen
            by a clock that is behind this one, and is forgotten likewise.

    """
    found: dict[str, Handover] = {}
    handed_over = (lease for lease in leases if lease.checkpoint_owner is not None)
    for lease in sorted(handed_over, key=lambda le: le.lease_key):
        if lease.is_finished or lease.checkpoint_owner is None or lease.lease_owner is None:
            continue
        seen = Handover(lease.checkpoint_owner, lease.lease_owner, now_ms)
        before = previous.get(lease.lease_key)
        is_same = before is not None and (before.old_owner, before.next_owner) == (
            seen.old_owner,
            seen.next_owner,
        )
        if before is not None and is_same and 0 <= now_ms - before.since_ms <= age_most_ms:
            seen = before
        found[lease.lease_key] = seen
    return found


def overdue_handovers(
    pending: Mapping[str, Handover],
    leases: Iterable[Lease],
    *,
    expired: frozenset[str],
    ended: Collection[str],
    now_ms: int,
    limit_ms: int,
) -> tuple[Lease, ...]:
    """
    Return the leases whose handover is to be forced, ordered by key; expired ones are assigned.

    Args:
        pending: as brought up to date with these leases.
        leases: what was read.
        expired: keys of leases whose owner is lost.
        ended: workers that have ended: nothing is forced upon one. The old owner keeps what none
            comes for (G2), or expires.
        now_ms: epoch milliseconds.
        limit_ms: how long a handover may take.

    """
    late = (
        lease
        for lease in leases
        if lease.lease_key in pending
        and lease.lease_key not in expired
        and lease.lease_owner not in ended
        and now_ms - pending[lease.lease_key].since_ms > limit_ms
    )
    return tuple(sorted(late, key=lambda le: le.lease_key))
