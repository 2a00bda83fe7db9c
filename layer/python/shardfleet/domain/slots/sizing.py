"""
How many worker slots there should be: by leases, by load, by lag; up at once, down slowly.

Rules: docs/protocol.md Z1-Z8. Pure: a snapshot of the slots in, a number with its reason out. What
must outlive a turn (how long there have been too many, when there were last too few) is the
:class:`Pace`, which the manager keeps.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import ceil

from msgspec import Struct
from msgspec.structs import replace

from shardfleet.domain.reasons import (
    CappedSize,
    CatchingUp,
    LeasesToRead,
    LeastSlots,
    LoadToCarry,
    MostSlots,
    NothingToRead,
    Reason,
    SlotForEachLease,
    SurplusToLast,
    TooFarBehind,
)

# A slot leaves only if the others would not come nearer to the target than this part of it: else
# the next turn would start one again.
_MARGIN = 0.8
# Figures are rounded to thousandths, which must not make a slot more.
_ROUNDING = 0.001


class SizingLimits(Struct, frozen=True, kw_only=True):
    """
    The part of the configuration that sizes the fleet.

    Attributes:
        leases_per_worker: most leases one slot holds.
        min_workers: slots kept while there is anything to read.
        max_workers: most slots at once.
        target: part of its time or CPU that a slot should use.
        lag_most_ms: a lease further behind asks for a slot more.
        scale_down_ms: how long there must have been too many before one leaves, and after it the
            next; and how long after a raise by lag before another one.
        shares_by_load: a lease goes to the slot with least to do, as far as that is known; else
            to the one with fewest leases.

    """

    leases_per_worker: int
    min_workers: int
    max_workers: int
    target: float
    lag_most_ms: int
    scale_down_ms: int
    shares_by_load: bool = True


class SlotNeed(Struct, frozen=True, kw_only=True):
    """
    What one slot that stays has to do.

    Attributes:
        slot_id: which.
        leases: unfinished ones that it holds or is to get.
        used: part of its time or CPU in use, the greater; None unknown.
        lag_ms: of the lease furthest behind, without those that are stopped; -1 unknown.

    """

    slot_id: str
    leases: int = 0
    used: float | None = None
    lag_ms: int = -1


class Pace(Struct, frozen=True, kw_only=True):
    """
    What outlives a turn.

    Attributes:
        surplus_ms: since when there have been more slots than needed, epoch ms; 0: there are not.
        raised_ms: when lag last asked for more, epoch ms; 0: never.

    """

    surplus_ms: int = 0
    raised_ms: int = 0


class Sizing(Struct, frozen=True, kw_only=True):
    """
    How many slots there should be now.

    Attributes:
        wanted: slots.
        reason: why so many.
        pace: to be kept.

    """

    wanted: int
    reason: Reason
    pace: Pace


def plan_size(
    needs: Sequence[SlotNeed],
    *,
    unfinished: int,
    pace: Pace,
    limits: SizingLimits,
    now_ms: int,
    bought: int = 0,
) -> Sizing:
    """
    Decide how many slots there should be.

    Args:
        needs: one for each slot that starts or runs, and is neither asked to leave nor silent.
        unfinished: leases that are to be read.
        pace: as kept.
        limits: the configuration.
        now_ms: epoch milliseconds.
        bought: slots that Lambda runs beside processes: these leave together.

    """
    present = len(needs)
    if unfinished == 0:
        return Sizing(wanted=0, reason=NothingToRead(), pace=Pace(raised_ms=pace.raised_ms))
    needed, reason = _needed(needs, unfinished, limits, pace=pace, now_ms=now_ms)
    if needed >= present:
        # Only lag has a pace upwards; the raise is remembered when lag was what decided.
        decisive = reason.why if isinstance(reason, CappedSize) else reason
        is_raise = needed > present and isinstance(decisive, TooFarBehind | CatchingUp)
        raised_ms = now_ms if is_raise else pace.raised_ms
        return Sizing(wanted=needed, reason=reason, pace=Pace(raised_ms=raised_ms))
    surplus_ms = pace.surplus_ms if 0 < pace.surplus_ms <= now_ms else now_ms
    lasted_ms = now_ms - surplus_ms
    kept = replace(pace, surplus_ms=surplus_ms)
    if present > limits.max_workers:
        # No measurement that may be wrong: somebody has said so.
        most = max(needed, limits.max_workers)
        return Sizing(wanted=most, reason=MostSlots(most), pace=kept)
    if lasted_ms < limits.scale_down_ms:
        return Sizing(wanted=present, reason=SurplusToLast(reason), pace=kept)
    # One at a time: the next one when this one has gone and nobody has missed it.
    fewer = max(needed, present - max(1, bought))
    return Sizing(wanted=fewer, reason=reason, pace=replace(pace, surplus_ms=now_ms))


def _needed(
    needs: Sequence[SlotNeed],
    unfinished: int,
    limits: SizingLimits,
    *,
    pace: Pace,
    now_ms: int,
) -> tuple[int, Reason]:
    """Return what is needed now, and why: the greatest of what count, load and lag ask for."""
    per_slot = limits.leases_per_worker
    needed = ceil(unfinished / per_slot)
    reason: Reason = LeasesToRead(unfinished, per_slot)
    by_load, why = _by_load(needs, limits)
    if by_load > needed:
        needed, reason = by_load, why
    by_lag, why = _by_lag(needs, unfinished, limits, pace=pace, now_ms=now_ms)
    if by_lag > needed:
        needed, reason = by_lag, why
    if needed > unfinished:
        needed, reason = unfinished, SlotForEachLease(unfinished)
    if needed > limits.max_workers:
        needed, reason = limits.max_workers, CappedSize(reason, limits.max_workers)
    if needed < limits.min_workers:
        needed, reason = limits.min_workers, LeastSlots(limits.min_workers)
    return needed, reason


def _by_load(needs: Sequence[SlotNeed], limits: SizingLimits) -> tuple[int, Reason]:
    """Spread what all slots do over so many that each has the target; 0: unknown."""
    known = [need.used for need in needs if need.used is not None]
    if not known or len(known) < len(needs):
        return 0, NothingToRead()
    total = sum(known)
    needed = ceil(total / limits.target - _ROUNDING)
    if needed < len(needs):
        # With one less than now the others must stay well below the target.
        needed = ceil(total / (limits.target * _MARGIN) - _ROUNDING)
        needed = min(needed, len(needs))
    return needed, LoadToCarry(round(10 * total), round(100 * limits.target))


def _by_lag(
    needs: Sequence[SlotNeed],
    unfinished: int,
    limits: SizingLimits,
    *,
    pace: Pace,
    now_ms: int,
) -> tuple[int, Reason]:
    """
    One more for each slot that is behind, has enough to do, and has a lease to give; 0: none.

    Who is behind with a single lease gains nothing by another slot, but loses by one less if it is
    given a lease of that one: at the next turn it would ask for a slot again.
    """
    behind = [
        need
        for need in needs
        if need.lag_ms > limits.lag_most_ms
        and need.leases
        and (need.used is None or need.used >= limits.target)
    ]
    asking = [need for need in behind if need.leases > 1]
    if not behind:
        return 0, NothingToRead()
    if asking and 0 <= now_ms - pace.raised_ms < limits.scale_down_ms:
        return len(needs), CatchingUp()
    worst = max(asking or behind, key=lambda need: (need.lag_ms, need.slot_id))
    why = TooFarBehind(worst.slot_id, worst.lag_ms, worst.leases, limits.lag_most_ms)
    if not asking and limits.shares_by_load and all(need.used is not None for need in needs):
        # Those left get what another one leaves, as long as they may have so many.
        others = ceil((unfinished - len(behind)) / limits.leases_per_worker)
        return min(len(needs), len(behind) + others), why
    return len(needs) + len(asking), why
