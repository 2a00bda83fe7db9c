"""
Other applications that share the lease table, as far as they show: owners that are not ours.

To them a lease that nobody renews is free, so nothing may sleep while they are about (H6); and one
that has lost all its leases for the moment is still about. What they hold in good health needs no
slot of ours (Z1).
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence

from msgspec import Struct

from shardfleet.domain.leases.lease import Lease

# As long after another application was last seen in the lease table, nothing falls asleep.
FOREIGN_REST_MS = 3_600_000
# While it is there it is noted again so often.
FOREIGN_NOTED_MS = 600_000


class Foreign(Struct, frozen=True):
    """
    Another application that shares the lease table: to it, a lease that nobody renews is free.

    Attributes:
        owner: one of its workers.
        seen_ms: when it was last noted, epoch milliseconds.

    """

    owner: str
    seen_ms: int

    def is_recent(self, now_ms: int) -> bool:
        """Return whether it may still be about."""
        return now_ms - self.seen_ms < FOREIGN_REST_MS


def foreign_owners(
    leases: Iterable[Lease], *, ours: Collection[str], expired: Collection[str]
) -> list[str]:
    """Return who else has an unfinished lease that has not expired, in order."""
    owners = {
        owner
        for lease in leases
        if not lease.is_finished and lease.lease_key not in expired
        for owner in (lease.lease_owner, lease.checkpoint_owner)
        if owner is not None and owner not in ours
    }
    return sorted(owners)


def read_by_others(
    unfinished: Iterable[Lease], *, ours: Collection[str], expired: Collection[str]
) -> frozenset[str]:
    """Return the keys of leases that somebody else reads, who alone knows how far."""
    return frozenset(
        lease.lease_key
        for lease in unfinished
        if lease.lease_key not in expired
        and (owner := lease.effective_owner) is not None
        and owner not in ours
    )


def noted_foreign(before: Foreign | None, owners: Sequence[str], *, now_ms: int) -> Foreign | None:
    """Return whom to remember, None when nobody else has been about for long enough."""
    if owners:
        if (
            before is not None
            and before.owner in owners
            and now_ms - before.seen_ms < FOREIGN_NOTED_MS
        ):
            return before
        return Foreign(owners[0], now_ms)
    if before is not None and not before.is_recent(now_ms):
        return None
    return before
