"""
Sleep: idle shards that nobody reads, how they are looked at, and what wakes them (H6, H14).

A worker that has found nothing at a shard's tip for long enough leaves a *nap* behind, which says
where it stood, and gives the lease up. The manager glances at such shards, with one small read
each, and takes the nap away at the first record, at the shard's end, and at whatever it does not
understand: a shard is woken rather than lost. A nap is a note, never an owner: without it, or when
it does not fit the lease, the lease is assigned as any other.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from enum import StrEnum
from typing import Any

from msgspec import Struct
from msgspec.structs import replace

from shardfleet.domain.leases.lease import Lease
from shardfleet.domain.reasons import (
    Asleep,
    IteratorTooOld,
    LeaseGone,
    LeftItsTip,
    LooksRefused,
    OwnerHasIt,
    PositionChanged,
    PositionExpired,
    ReadToItsEnd,
    Reason,
    RecordsCame,
    ShardClosed,
    ShardUnknown,
)
from shardfleet.domain.stream.sequence import ExtendedSequenceNumber

# Kinesis quota: an iterator lives 5 minutes. The two clocks may differ, and a look takes time.
ITERATOR_AGE_MOST_MS = 240_000
# A stored iterator is replaced when it is so old: two manager runs before it would be too old.
ITERATOR_STORED_MS = 110_000
# One refused look is no news: other applications read the shard, too. A second one in a row wakes.
FAILURES_MOST = 2


class Nap(Struct, frozen=True, kw_only=True):
    """
    Where a worker stood in an idle shard when it gave the lease up.

    Attributes:
        lease_key: the shard.
        worker_id: who read it.
        since_ms: when it fell asleep, epoch milliseconds; tells one nap from another.
        done: the lease's checkpoint then; with another one, somebody has been there since.
        after: the last stream record that was read, whole and handled; "" if there was none.
        iterator: where the next read would have begun; "" if unknown.
        made_ms: when the iterator was made, epoch milliseconds.

    """

    lease_key: str
    worker_id: str
    since_ms: int
    done: ExtendedSequenceNumber
    after: str = ""
    iterator: str = ""
    made_ms: int = 0

    def body(self) -> dict[str, Any]:
        """Return a document body (plain JSON values)."""
        return {
            "worker_id": self.worker_id,
            "since_ms": self.since_ms,
            "done": [self.done.sequence_number, self.done.sub_sequence_number],
            "after": self.after,
            "iterator": self.iterator,
            "made_ms": self.made_ms,
        }

    @property
    def reason(self) -> Asleep:
        """Return why the manager leaves the lease to nobody."""
        return Asleep(self.since_ms, self.worker_id)


# --- who sleeps


class NapPlan(Struct, frozen=True, kw_only=True):
    """
    Which naps last.

    Attributes:
        asleep: by lease key: those that nobody is to read.
        woken: lease key to why its nap is taken away; the lease is one like any other.

    """

    asleep: Mapping[str, Nap]
    woken: Mapping[str, Reason]


def plan_naps(
    naps: Iterable[Nap], leases: Iterable[Lease], *, off: Reason | None, now_ms: int, settle_ms: int
) -> NapPlan:
    """
    Decide about each nap.

    Args:
        naps: all there are.
        leases: all leases, as read before the naps.
        off: why nothing may sleep; None if it may.
        now_ms: epoch milliseconds.
        settle_ms: as long after its beginning a lease may still be owned: the worker writes the
            nap first, then gives the lease up, and leases are read a moment earlier.

    """
    by_key = {lease.lease_key: lease for lease in leases}
    asleep: dict[str, Nap] = {}
    woken: dict[str, Reason] = {}
    for nap in sorted(naps, key=lambda nap: nap.lease_key):
        lease = by_key.get(nap.lease_key)
        if lease is None:
            woken[nap.lease_key] = LeaseGone()
        elif lease.is_finished:
            woken[nap.lease_key] = ReadToItsEnd()
        elif off is not None:
            woken[nap.lease_key] = off
        elif lease.lease_owner is not None or lease.checkpoint_owner is not None:
            if now_ms - nap.since_ms >= settle_ms:
                woken[nap.lease_key] = OwnerHasIt(lease.effective_owner or "")
        elif lease.checkpoint != nap.done:
            woken[nap.lease_key] = PositionChanged(str(lease.checkpoint), str(nap.done))
        else:
            asleep[nap.lease_key] = nap
    return NapPlan(asleep=asleep, woken=woken)


# --- looking at those asleep


class Found(StrEnum):
    """What a look at a sleeping shard came to."""

    NOTHING = "NOTHING"  # empty, at the tip, and the shard goes on
    RECORDS = "RECORDS"
    LAG = "LAG"  # empty, but not at the tip, or not said to be: that tells nothing (H6)
    END = "END"  # the shard is closed: there is an end to be read, and there are children
    GONE = "GONE"  # the service knows no such shard
    TRIMMED = "TRIMMED"  # the position is older than the retention
    EXPIRED = "EXPIRED"  # the iterator is older than it may be
    REFUSED = "REFUSED"  # throttled, or no answer


_WAKING: Mapping[Found, Reason] = {
    Found.RECORDS: RecordsCame(),
    Found.LAG: LeftItsTip(),
    Found.END: ShardClosed(),
    Found.GONE: ShardUnknown(),
    Found.TRIMMED: PositionExpired(),
}


class Glance(Struct, frozen=True, array_like=True):
    """
    What the manager remembers of its last look at a sleeping shard; a row of its document.

    Attributes:
        since_ms: of the nap; a glance at an earlier nap is worth nothing.
        iterator: where the next look begins; "": anew, where the worker stood.
        made_ms: when the iterator was made, epoch milliseconds.
        quiet_ms: when there was last nothing to read, at the tip; epoch milliseconds.
        failures: looks in a row that failed.

    """

    since_ms: int
    iterator: str
    made_ms: int
    quiet_ms: int
    failures: int = 0


def next_glance(nap: Nap, last: Glance | None, *, now_ms: int) -> Glance:
    """Return from where to look now: the last look at this nap, or where its worker stood."""
    known = _known(nap, last)
    is_old = now_ms - known.made_ms >= ITERATOR_AGE_MOST_MS
    return replace(known, iterator="") if is_old else known


def _known(nap: Nap, last: Glance | None) -> Glance:
    if last is not None and last.since_ms == nap.since_ms:
        return last
    return Glance(
        since_ms=nap.since_ms, iterator=nap.iterator, made_ms=nap.made_ms, quiet_ms=nap.since_ms
    )


def after_look(glance: Glance, found: Found, *, iterator: str, at_ms: int) -> Glance | Reason:
    """
    Return what to remember of a look, or why the shard is woken.

    Args:
        glance: from where was looked.
        found: what the look came to.
        iterator: where the next read begins, if the answer said so, else "".
        at_ms: when, epoch milliseconds.

    """
    if found is Found.NOTHING:
        return replace(glance, iterator=iterator, made_ms=at_ms, quiet_ms=at_ms, failures=0)
    if found in _WAKING:
        return _WAKING[found]
    failures = glance.failures + 1
    if failures >= FAILURES_MOST:
        return IteratorTooOld(failures) if found is Found.EXPIRED else LooksRefused(failures)
    kept = glance.iterator if found is Found.REFUSED else ""
    return replace(glance, iterator=kept, failures=failures)


def are_due_to_be_stored(
    asleep: Iterable[Nap],
    stored: Mapping[str, Glance],
    current: Mapping[str, Glance],
    *,
    now_ms: int,
) -> bool:
    """
    Return whether the next invocation needs to know what this one does.

    An iterator as stored, or as the worker left it, may soon be too old; and a look that failed
    counts, or shards that are looked at once by each invocation would sleep through every failure.
    """

    def is_due(nap: Nap) -> bool:
        before = _known(nap, stored.get(nap.lease_key))
        now = _known(nap, current.get(nap.lease_key))
        return now_ms - before.made_ms >= ITERATOR_STORED_MS or now.failures != before.failures

    return any(is_due(nap) for nap in asleep)
