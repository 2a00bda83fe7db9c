"""Renewals in time, local expiry, handovers and releases (protocol.md §1.6, §3.5; H14-H17)."""

import asyncio

from msgspec.structs import replace

from shardfleet.domain.leases import changes as lease_changes
from shardfleet.domain.slots.slot import LeaseOutcome
from shardfleet.engine.ownership.lease import HeldLease, Instant
from shardfleet.engine.retry import Halt
from shardfleet.events.worker import HandoverNoticed, WriteDelayed
from shardfleet_testkit.clock import run_virtual
from tests.engine.worker_side.worker_kit import (
    ME,
    OTHER,
    Bench,
    a_lease,
    at,
    key,
    lose_answers,
    refuse,
)
from tests.virtual import within


def bench_test(scenario, *leases):
    """Run a scenario on a bench in virtual time."""

    async def main():
        return await scenario(Bench(*leases))

    return run_virtual(main())


# --- time


@within(bench_test, a_lease(0), a_lease(1))
async def test_everything_held_is_renewed_before_a_third_of_the_failover_time(bench, /):
    halt = Halt()
    await bench.checkpointer.adopt([key(0), key(1)])
    task = asyncio.create_task(bench.checkpointer.keep_renewing(halt))
    for _ in range(600):
        await bench.clock.sleep_ms(100)
        for held in bench.checkpointer.held:
            assert bench.checkpointer.is_fresh(held)
    halt.set()
    await task
    # 60 s at one renewal each 1.7 s to 3.3 s.
    assert 18 <= bench.store.operations(key(0)).count("renew") - 1 <= 36


def test_eight_times_within_a_renewal_time_is_looked_for_what_would_be_too_old_at_the_next_look():
    """So a lease is renewed as late as that allows: each renewal is a write that is paid for."""

    async def scenario(bench):
        bench.checkpointer = bench.another(failover_ms=24_000)
        halt, renewed_ms = Halt(), []
        bench.store.before = lambda change: renewed_ms.append(bench.clock.monotonic_ms())
        await bench.checkpointer.adopt([key(0)])
        task = asyncio.create_task(bench.checkpointer.keep_renewing(halt))
        await bench.clock.sleep_ms(60_500)
        halt.set()
        await task
        # A renewal time is 8 s, a look each second: at 7 s it is not too old yet.
        assert renewed_ms == list(range(0, 60_500, 8_000))

    bench_test(scenario, a_lease(0))


@within(bench_test)
async def test_a_checkpoint_counts_as_a_renewal(bench, /):
    """H14: a lease that is checkpointed each second is not renewed besides."""
    held = await bench.hold()
    halt = Halt()
    task = asyncio.create_task(bench.checkpointer.keep_renewing(halt))
    for progress in range(1, 30):
        held.note_progress(at(progress))
        await bench.checkpointer.flush(held)
        await bench.clock.sleep_ms(1_000)
    halt.set()
    await task

    assert bench.store.operations().count("renew") == 1


@within(bench_test)
async def test_a_renewal_that_waits_for_a_checkpoint_on_its_way_is_made_by_it(bench, /):
    """Found by simulation: each checkpoint that took long was followed by a renewal at once."""
    held = await bench.hold()
    halt, apply = Halt(), bench.store.apply

    async def slow(change):
        if change.operation == "checkpoint":
            await bench.clock.sleep_ms(1_500)
        return await apply(change)

    bench.store.apply = slow
    task = asyncio.create_task(bench.checkpointer.keep_renewing(halt))
    await bench.clock.sleep_ms(1_500)
    for progress in range(1, 4):
        await bench.clock.sleep_ms(900)  # Due 100 ms after this.
        held.note_progress(at(progress))
        await bench.checkpointer.flush(held)
    halt.set()
    await task

    assert bench.store.operations() == ["renew", "checkpoint", "checkpoint", "checkpoint"]


@within(bench_test)
async def test_a_delivery_that_waits_for_a_renewal_on_its_way_makes_none_of_its_own(bench, /):
    held = await bench.hold()
    await bench.clock.sleep_ms(5_000)

    assert all(await asyncio.gather(*(bench.checkpointer.confirm(held) for _ in range(3))))

    assert bench.store.operations() == ["renew", "renew"]


@within(bench_test)
async def test_a_refused_renewal_is_tried_again_soon_and_told(bench, /):
    held = await bench.hold()
    halt = Halt()
    bench.store.before = refuse(3)
    task = asyncio.create_task(bench.checkpointer.keep_renewing(halt))
    await bench.clock.sleep_ms(9_000)
    halt.set()
    await task

    assert held.is_held
    assert len(bench.told(WriteDelayed)) == 3
    assert bench.checkpointer.is_fresh(held)


@within(bench_test)
async def test_a_lease_that_expired_here_is_dropped_without_a_write_when_it_was_taken(bench, /):
    """Protocol.md §1.6: a renewer does not renew what has locally expired."""
    held = await bench.hold()
    await bench.clock.sleep_ms(10_000)
    await bench.store.apply(lease_changes.take(bench.lease(), OTHER))
    changes = len(bench.store.changes)

    assert not await bench.checkpointer.renew(held)
    assert held.outcome is LeaseOutcome.LEASE_LOST
    assert len(bench.store.changes) == changes
    assert bench.lease().lease_owner == OTHER


@within(bench_test)
async def test_a_lease_that_expired_here_but_nobody_took_is_adopted_anew(bench, /):
    held = await bench.hold()
    reads = bench.epoch_reads
    await bench.clock.sleep_ms(60_000)

    assert await bench.checkpointer.renew(held)
    assert bench.checkpointer.is_fresh(held)
    assert bench.epoch_reads == reads + 1


@within(bench_test)
async def test_expiry_uses_the_larger_difference_of_two_clocks(bench, /):
    """H15: the monotonic clock may stand still in a frozen sandbox."""
    held = await bench.hold()
    wall_ms = bench.clock.now_ms
    bench.clock.now_ms = lambda: wall_ms() + 4_000
    assert not bench.checkpointer.is_fresh(held)
    bench.clock.now_ms = lambda: wall_ms() - 4_000_000
    assert bench.checkpointer.is_fresh(held)


# --- handover: protocol.md §1.6 renewal failure (a), and §3.5


@within(bench_test)
async def test_a_handover_is_noticed_by_the_renewal_and_the_lease_is_kept_meanwhile(bench, /):
    held = await bench.hold()
    await bench.store.apply(lease_changes.initiate_handover(bench.lease(), OTHER))

    assert await bench.checkpointer.renew(held)
    assert held.in_handover
    assert bench.lease().lease_counter == 9
    assert [e.next_owner for e in bench.told(HandoverNoticed)] == [OTHER]

    held.note_progress(at(4))
    assert await bench.checkpointer.flush(held)
    await bench.checkpointer.release(held)
    assert held.outcome is LeaseOutcome.HANDED_OVER
    assert bench.lease().lease_owner == OTHER
    assert bench.lease().checkpoint_owner is None
    assert bench.lease().checkpoint == at(4)


@within(bench_test)
async def test_a_handover_is_noticed_by_a_checkpoint_too(bench, /):
    held = await bench.hold()
    await bench.store.apply(lease_changes.initiate_handover(bench.lease(), OTHER))
    held.note_progress(at(4))

    assert await bench.checkpointer.flush(held)
    assert held.in_handover
    assert len(bench.told(HandoverNoticed)) == 1


@within(bench_test)
async def test_a_handover_to_its_own_owner_is_an_illegal_state_and_a_lost_lease(bench, /):
    held = await bench.hold()
    bench.store.leases[key(0)] = replace(bench.lease(), checkpoint_owner=ME)

    assert not await bench.checkpointer.renew(held)
    assert held.outcome is LeaseOutcome.LEASE_LOST


@within(bench_test)
async def test_a_shard_that_ends_during_its_handover_ends_the_handover_too(bench, /):
    """§8 row 15: SHARD_END meanwhile."""
    held = await bench.hold()
    await bench.store.apply(lease_changes.initiate_handover(bench.lease(), OTHER))

    assert await bench.checkpointer.finish(held)
    assert held.outcome is LeaseOutcome.SHARD_END
    assert bench.lease().is_finished
    assert bench.lease().checkpoint_owner is None


@within(bench_test)
async def test_an_evicted_lease_has_no_owner_and_a_moved_counter(bench, /):
    held = await bench.hold()
    await bench.checkpointer.release(held)

    assert bench.lease().lease_owner is None
    assert bench.lease().lease_counter == 9
    assert held.outcome is LeaseOutcome.HANDED_OVER


@within(bench_test)
async def test_an_evict_whose_answer_was_lost_is_done_once(bench, /):
    held = await bench.hold()
    bench.store.after = lose_answers(1)
    await bench.checkpointer.release(held)

    assert bench.lease().lease_owner is None
    assert bench.lease().lease_counter == 9
    assert held.outcome is LeaseOutcome.HANDED_OVER


@within(bench_test)
async def test_an_evict_that_meets_a_new_handover_completes_it(bench, /):
    held = await bench.hold()
    await bench.store.apply(lease_changes.initiate_handover(bench.lease(), OTHER))
    await bench.checkpointer.release(held)

    assert bench.lease().lease_owner == OTHER
    assert bench.lease().checkpoint_owner is None
    assert held.outcome is LeaseOutcome.HANDED_OVER


def test_what_is_read_of_a_shard_is_told_as_its_throughput_in_kilobytes_a_second():
    """As KCL 3's ``throughputKBps``: 1,024 bytes are one (protocol.md §1.2)."""
    held = HeldLease(a_lease(), Instant(0, 0), stream_arn="arn")
    held.note_read(0, now_ms=4_000, size_bytes=10_240)
    held.note_read(0, now_ms=8_000, size_bytes=10_240)
    held.rate(9_999, every_ms=10_000)
    assert held.throughput_kbps is None
    held.rate(10_000, every_ms=10_000)
    assert held.throughput_kbps == 2.0
