"""What a lease costs its worker, and what its children cost after a split."""

from shardfleet.domain.slots.slot import Slot, SlotState
from shardfleet_ops.explain.forecast import LeaseCosts
from tests.domain.builders import a_lease

A_SLOT = Slot(
    slot_id="s",
    worker_id="w",
    state=SlotState.RUNNING,
    name="s",
    start_epoch=1,
    busy=300,
    cpu=200,
)


def test_leases_share_what_their_worker_uses_by_their_throughput():
    large, small = (
        a_lease(f"{key} by w", throughput_kbps=kbps) for key, kbps in (("large", 30), ("small", 10))
    )
    costs = LeaseCosts([large, small], [A_SLOT])

    alone = costs.loaded(A_SLOT, [large]), costs.loaded(A_SLOT, [small])
    assert [(slot.busy, slot.cpu) for slot in alone] == [(225, 150), (75, 50)]


def test_each_child_of_a_split_costs_half_of_what_its_parent_did():
    parent, slot = a_lease("parent by w"), A_SLOT
    costs = LeaseCosts([parent], [slot])
    rate = costs.rate("parent")

    costs.split(parent, ["one", "other"])

    one, other = a_lease("one by w"), a_lease("other by w")
    assert (costs.loaded(slot, [one]).busy, costs.loaded(slot, [one]).cpu) == (150, 100)
    both = costs.loaded(slot, [one, other])
    assert (both.busy, both.cpu) == (300, 200)
    assert costs.rate("one") == costs.rate("other") == rate / 2
