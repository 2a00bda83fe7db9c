"""One lease in a worker's hands: every answer of the table, and every answer that never comes."""

import asyncio

import pytest
from msgspec.structs import replace

from shardfleet.domain.leases.changes import initiate_handover
from shardfleet.domain.slots.slot import LeaseOutcome
from shardfleet.domain.stream.sequence import AT_SHARD_END, AT_TRIM_HORIZON
from shardfleet.engine.ownership.checkpointer import Adoption
from shardfleet.errors import OutcomeUnknown, StaleEpoch, Throttled
from shardfleet.events.worker import (
    BackwardCheckpoint,
    LeaseLost,
    LeaseReleased,
    OwnWriteRecognised,
    ShardEnded,
)
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


# --- adoption


@within(bench_test)
async def test_a_lease_that_names_this_worker_is_adopted_by_renewing_it(bench, /):
    found = await bench.checkpointer.adopt([key(0)])

    assert found == {key(0): Adoption.ADOPTED}
    assert bench.lease().lease_counter == 8
    assert bench.checkpointer.held[0].lease == bench.lease()
    assert bench.epoch_reads == 2


@pytest.mark.parametrize(
    ("lease", "expected"),
    [
        (a_lease(lease_owner=OTHER), Adoption.NOT_MINE),
        (a_lease(lease_owner=None), Adoption.NOT_MINE),
        (a_lease(checkpoint=AT_SHARD_END), Adoption.FINISHED),
        (a_lease(checkpoint_owner=OTHER), Adoption.AWAITED),
        (a_lease(9), Adoption.ABSENT),
    ],
    ids=["of another", "of nobody", "finished", "still being handed over", "absent"],
)
def test_nothing_is_written_to_a_lease_that_is_not_ours_to_adopt(lease, expected):
    async def scenario(bench):
        before = dict(bench.store.leases)

        assert await bench.checkpointer.adopt([key(0)]) == {key(0): expected}
        assert bench.store.leases == before
        assert bench.checkpointer.held == []

    bench_test(scenario, lease)


@within(bench_test, a_lease(lease_owner=OTHER, checkpoint_owner=ME))
async def test_an_old_owner_that_restarted_completes_the_handover_it_was_in(bench, /):
    assert await bench.checkpointer.adopt([key(0)]) == {key(0): Adoption.NOT_MINE}
    assert bench.lease().lease_owner == OTHER
    assert bench.lease().checkpoint_owner is None
    assert bench.lease().lease_counter == 8


def test_an_old_owner_that_restarted_completes_the_handover_of_a_shard_that_it_had_ended():
    async def scenario(bench):
        assert await bench.checkpointer.adopt([key(0)]) == {key(0): Adoption.NOT_MINE}
        assert bench.lease().lease_owner == OTHER
        assert bench.lease().checkpoint_owner is None
        assert bench.lease().is_finished

    ended = a_lease(lease_owner=OTHER, checkpoint_owner=ME, checkpoint=AT_SHARD_END)
    bench_test(scenario, ended)


@within(bench_test)
async def test_an_invocation_that_was_overtaken_while_adopting_holds_nothing(bench, /):
    bench.epoch_is_current = False

    with pytest.raises(StaleEpoch):
        await bench.checkpointer.adopt([key(0)])
    assert bench.checkpointer.held == []
    with pytest.raises(StaleEpoch):
        await bench.checkpointer.create(a_lease(5))
    assert key(5) not in bench.store.leases


@within(bench_test)
async def test_a_deleted_lease_is_not_resurrected_by_any_write_of_its_old_owner(bench, /):
    """§8 row 9: deleting meets a renewal, a checkpoint, an evict, child ids, SHARD_END."""
    writes = [
        bench.checkpointer.renew,
        bench.checkpointer.flush,
        bench.checkpointer.release,
        lambda held: bench.checkpointer.store_children(held, [key(1), key(2)]),
        bench.checkpointer.finish,
    ]
    for write in writes:
        bench.store.leases[key(0)] = a_lease()
        held = await bench.hold()
        held.note_progress(at(5))
        del bench.store.leases[key(0)]

        await write(held)

        assert key(0) not in bench.store.leases
        assert held.outcome is not LeaseOutcome.HELD
        assert held.halt.is_set


@within(bench_test)
async def test_a_shard_end_that_cannot_be_written_any_more_ends_nothing(bench, /):
    held = await bench.hold()
    bench.store.leases[key(0)] = a_lease(lease_owner=OTHER, lease_counter=99)
    assert not await bench.checkpointer.finish(held)
    assert held.outcome is LeaseOutcome.LEASE_LOST
    assert not bench.told(ShardEnded)
    assert not bench.lease().is_finished


# --- losing


@within(bench_test)
async def test_a_lost_condition_with_no_unknown_outcome_before_it_is_a_lost_lease(bench, /):
    """H1: counter one higher and our own name is somebody else's write, unless one was unsure."""
    held = await bench.hold()
    bench.store.leases[key(0)] = replace(bench.lease(), lease_counter=9)

    assert not await bench.checkpointer.renew(held)
    assert held.outcome is LeaseOutcome.LEASE_LOST
    assert bench.lease().lease_counter == 9
    assert bench.told(LeaseLost)
    assert not bench.told(OwnWriteRecognised)


@within(bench_test)
async def test_what_a_clear_answer_has_settled_recognises_no_later_write(bench, /):
    """H1: a request that was lost is no licence for ever."""
    held = await bench.hold()
    bench.store.before = refuse(1, OutcomeUnknown)
    with pytest.raises(OutcomeUnknown):
        await bench.checkpointer.renew(held)
    assert await bench.checkpointer.renew(held)
    bench.store.leases[key(0)] = replace(bench.lease(), lease_counter=10)

    assert not await bench.checkpointer.renew(held)
    assert held.outcome is LeaseOutcome.LEASE_LOST
    assert not bench.told(OwnWriteRecognised)


@pytest.mark.parametrize("progress", [None, 5], ids=["renewal", "checkpoint"])
@within(bench_test)
async def test_an_own_write_whose_answer_was_lost_is_recognised(bench, /, progress):
    """§8 row 11 and H1: counter + 1, our name, the checkpoint we sent, and our epoch."""
    held = await bench.hold()
    if progress:
        held.note_progress(at(progress))
    bench.store.after = lose_answers(1)
    reads = bench.epoch_reads

    assert await bench.checkpointer.renew(held)
    assert held.is_held
    assert held.lease == bench.lease()
    assert bench.lease().lease_counter == 9
    assert bench.epoch_reads == reads + 1
    assert len(bench.told(OwnWriteRecognised)) == 1
    assert await bench.checkpointer.renew(held)


@within(bench_test)
async def test_an_own_write_is_recognised_although_a_tool_has_moved_the_checkpoint_since(bench, /):
    """H8 and §8 row 11: a tool of another making stores progress and leaves the counter alone."""
    held = await bench.hold()
    held.note_progress(at(5))
    lose = lose_answers(1)

    def after(change, result):
        bench.store.leases[key(0)] = replace(bench.lease(), checkpoint=at(8))
        lose(change, result)

    bench.store.after = after

    assert await bench.checkpointer.flush(held)
    assert held.is_held
    assert held.lease == bench.lease()
    assert bench.lease().checkpoint == at(8)
    assert len(bench.told(OwnWriteRecognised)) == 1
    assert not bench.told(LeaseLost)


@within(bench_test)
async def test_an_outdated_invocation_does_not_complete_the_handover_of_its_successor(bench, /):
    """Found by the protocol model: a release has no counter among its conditions (H1)."""
    await bench.checkpointer.adopt([key(0)])
    (held,) = bench.checkpointer.held
    by_successor = replace(bench.lease(), lease_counter=9, lease_owner=OTHER, checkpoint_owner=ME)
    bench.store.leases[key(0)] = by_successor

    await bench.checkpointer.release(held)

    assert bench.lease() == by_successor
    assert not held.is_held


@within(bench_test)
async def test_a_release_that_lands_after_a_later_renewal_is_no_loss(bench, /):
    """It has no counter among its conditions, so a renewal in between does not refuse it."""
    held = await bench.hold()
    begun = initiate_handover(bench.lease(), OTHER)
    await bench.store.apply(begun)
    await bench.checkpointer.renew(held)
    sent = []

    def on_its_way(change):
        if change.operation == "assign":
            sent.append(change)
            raise OutcomeUnknown("no answer")

    bench.store.before = on_its_way
    with pytest.raises(OutcomeUnknown):
        await bench.checkpointer.release(held)
    assert await bench.checkpointer.renew(held)
    bench.store.before = lambda change: None
    await bench.store.apply(sent[0])

    assert not await bench.checkpointer.renew(held)
    assert held.outcome is LeaseOutcome.HANDED_OVER
    assert not bench.told(LeaseLost)


@within(bench_test)
async def test_an_own_write_is_not_ours_under_an_outdated_epoch(bench, /):
    """H1: the other invocation's renewal looks just like ours; only the epoch tells."""
    held = await bench.hold()
    bench.epoch_is_current = False
    bench.store.after = lose_answers(1)

    with pytest.raises(StaleEpoch):
        await bench.checkpointer.renew(held)
    changes = len(bench.store.changes)
    with pytest.raises(StaleEpoch):
        await bench.checkpointer.renew(held)
    assert len(bench.store.changes) == changes


@within(bench_test)
async def test_a_foreign_write_after_a_lost_request_is_a_lost_lease(bench, /):
    held = await bench.hold()
    held.note_progress(at(5))

    def before(change):
        bench.store.leases[key(0)] = replace(bench.lease(), lease_counter=9)
        raise OutcomeUnknown("request lost")

    bench.store.before = before
    assert not await bench.checkpointer.flush(held)
    assert held.outcome is LeaseOutcome.LEASE_LOST


@within(bench_test)
async def test_a_write_that_is_seen_late_is_recognised_and_the_newer_progress_follows(bench, /):
    """The answer is lost, the table still shows the old counter, then the write lands."""
    held = await bench.hold()
    held.note_progress(at(5))
    late = []

    def before(change):
        late.append(change)
        bench.store.before = lambda change: None
        raise OutcomeUnknown("still on its way")

    bench.store.before = before
    with pytest.raises(OutcomeUnknown):
        await bench.checkpointer.flush(held)
    assert held.lease.checkpoint == AT_TRIM_HORIZON
    await bench.store.apply(late[0])
    held.note_progress(at(8))

    assert await bench.checkpointer.flush(held)
    assert bench.lease().checkpoint == at(8)
    assert held.lease == bench.lease()


# --- checkpoints


def _every_second(bench, progress):
    """Let the n-th write go wrong in one of three ways, then right, and so on."""
    ways = [
        (refuse(1), None),
        (refuse(1, OutcomeUnknown), None),
        (None, lose_answers(1)),
    ]
    before, after = ways[progress % 3]
    bench.store.before = before or (lambda change: None)
    bench.store.after = after or (lambda change, result: None)


@within(bench_test)
async def test_memory_never_says_checkpointed_when_the_table_does_not(bench, /):
    """§8 row 10: throttled, lost requests and lost answers on every write, then read back."""
    held = await bench.hold()
    for progress in range(1, 40):
        held.note_progress(at(progress))
        _every_second(bench, progress)
        for _ in range(3):
            try:
                await bench.checkpointer.flush(held)
            except (Throttled, OutcomeUnknown):
                assert held.unstored == at(progress)
            assert held.lease.checkpoint <= bench.lease().checkpoint
        assert held.lease == bench.lease()
        assert bench.lease().checkpoint == at(progress)
        assert held.unstored is None
        await bench.clock.sleep_ms(500)


@within(bench_test)
async def test_concurrent_renewals_and_checkpoints_never_lose_the_lease(bench, /):
    """§8 row 12: they race for one counter, many times, with answers lost in between."""
    held = await bench.hold()

    async def renewing():
        for _ in range(200):
            await bench.checkpointer.renew(held)
            await asyncio.sleep(0)

    async def checkpointing():
        for progress in range(1, 201):
            held.note_progress(at(progress))
            await bench.checkpointer.flush(held)
            await asyncio.sleep(0)

    lost = [0]

    def after(change, result):
        lost[0] += 1
        if lost[0] % 7 == 0:
            raise OutcomeUnknown("answer lost")

    bench.store.after = after
    await asyncio.gather(renewing(), checkpointing())

    assert held.is_held
    assert bench.lease().checkpoint == at(200)
    assert not bench.told(LeaseLost)
    counters = [r.lease.lease_counter for c, r in bench.store.changes if hasattr(r, "lease")]
    assert counters == list(range(8, 8 + len(counters)))


@pytest.mark.parametrize(
    ("stored", "refused"), [(at(100), at(99)), (at(7, 3), at(7, 2)), (AT_SHARD_END, at(5))]
)
@within(bench_test)
async def test_a_backward_checkpoint_is_refused_told_and_the_lease_is_kept(
    bench, /, stored, refused
):
    """H8: a guard failure is a bug of ours, not a lost lease."""
    held = await bench.hold()
    held.note_progress(refused)
    bench.store.leases[key(0)] = replace(bench.lease(), checkpoint=stored)

    assert await bench.checkpointer.flush(held)
    assert held.is_held
    assert bench.lease().checkpoint == stored
    (event,) = bench.told(BackwardCheckpoint)
    assert (event.stored, event.refused) == (str(stored), str(refused))
    assert event.level.name == "ERROR"
    assert held.unstored is None
    if stored != AT_SHARD_END:
        assert await bench.checkpointer.renew(held)


@within(bench_test)
async def test_progress_is_compared_as_numbers_and_never_goes_back_in_memory(bench, /):
    """§8 row 22: 100 is more than 99, whatever their texts say."""
    held = await bench.hold()
    held.note_progress(at(99))
    await bench.checkpointer.flush(held)
    held.note_progress(at(100))
    held.note_progress(at(99))
    await bench.checkpointer.flush(held)

    assert held.unstored is None
    assert bench.lease().checkpoint == at(100)
    assert not bench.told(BackwardCheckpoint)


@within(bench_test)
async def test_a_renewal_carries_unstored_progress_at_the_same_price(bench, /):
    held = await bench.hold()
    held.note_progress(at(3))
    await bench.checkpointer.renew(held)

    assert bench.lease().checkpoint == at(3)
    assert bench.store.operations() == ["renew", "checkpoint"]


@pytest.mark.parametrize("outage_ms", [0, 60_000])
@within(bench_test)
async def test_a_release_whose_answer_was_lost_is_no_loss_for_a_renewal_that_meets_it(
    bench, /, outage_ms
):
    """Found by simulation: a renewal between two attempts told of a lost lease."""
    held = await bench.hold()
    bench.store.after = lose_answers(1, operation="evict")
    refused = [1]

    def throttled(_lease_key):
        if refused[0]:
            refused[0] -= 1
            raise Throttled("refused")

    bench.store.reading = throttled
    with pytest.raises(Throttled):
        await bench.checkpointer.release(held)
    await bench.clock.sleep_ms(outage_ms)
    assert not await bench.checkpointer.renew(held)
    await bench.checkpointer.release(held)
    assert held.outcome is LeaseOutcome.HANDED_OVER
    assert bench.told(LeaseLost) == []
    assert len(bench.told(LeaseReleased)) == 1
