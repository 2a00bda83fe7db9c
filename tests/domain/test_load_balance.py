"""Balancing by load: scenarios with reasons, properties, and the even spread of uneven shards."""

import json
import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shardfleet.domain.balance.by_count import AssignmentKind, WorkerView, plan_balanced
from shardfleet.domain.balance.by_load import BalanceLimits, plan_by_load
from shardfleet.domain.balance.worker_loads import throughputs
from shardfleet.domain.leases.lease import Lease
from shardfleet.domain.stream.sequence import ExtendedSequenceNumber
from tests.domain.builders import SCENARIOS, a_lease
from tests.domain.test_assignment import carried_out
from tests.domain.zipf import SHARDS, WORKERS, most_loaded, zipf_fleet

CASES = json.loads((SCENARIOS / "load_balance.json").read_text("utf-8"))["cases"]
READ = ExtendedSequenceNumber("5")


def lease_of(text):
    words = text.split()
    kbps = None
    if "kbps" in words:
        at = words.index("kbps")
        kbps = float(words[at + 1])
        del words[at : at + 2]
    return a_lease(" ".join(words), throughput_kbps=kbps)


def worker_of(text):
    worker_id, *rest = text.split()
    values = {name: float(value) for name, value in zip(rest[::2], rest[1::2], strict=True)}
    return WorkerView(
        worker_id=worker_id, leases_most=int(values.pop("most", 8)), utilisation=values
    )


def planned(case, turn=list):
    return plan_by_load(
        turn([lease_of(text) for text in case["leases"]]),
        expired=frozenset(case.get("expired", ())),
        workers=turn([worker_of(text) for text in case["workers"]]),
        limits=BalanceLimits(),
        rebalance=case.get("rebalance", True),
    )


@pytest.mark.parametrize("case", CASES, ids=[case["why"][:70] for case in CASES])
def test_load_is_balanced(case):
    plan = planned(case)

    assert [
        f"{a.lease.lease_key} to {a.worker_id} as {a.kind}: {a.reason}" for a in plan.assignments
    ] == case["moves"]
    assert {key: str(why) for key, why in plan.left} == case.get("left", {})


@pytest.mark.parametrize("case", CASES, ids=[case["why"][:70] for case in CASES])
def test_the_order_of_table_and_workers_does_not_matter(case):
    assert planned(case, turn=lambda items: items[::-1]) == planned(case)


def by_load(leases, workers):
    return plan_by_load(
        leases, expired=frozenset(), workers=workers, limits=BalanceLimits(), rebalance=True
    )


@pytest.mark.parametrize("exponent", [0.5, 1.0])
@pytest.mark.parametrize("start", ["in turn", "heaviest together", "shuffled"])
def test_uneven_shards_are_even_within_ten_runs_and_then_hardly_move(exponent, start, seed):
    fleet = zipf_fleet(exponent, start=start, chance=random.Random(seed))
    moves = fleet.run(by_load, runs=10)
    later = fleet.run(by_load, runs=60)  # one run a minute: an hour

    assert most_loaded(fleet) <= 1.1, f"after {moves} moves"
    assert later < 1
    assert fleet.run(by_load, runs=60, noise=0.01) <= 3


@pytest.mark.parametrize("exponent", [0.5, 1.0])
def test_what_workers_tell_roughly_moves_hardly_a_lease_in_an_hour(exponent, seed):
    fleet = zipf_fleet(exponent, start="heaviest together", chance=random.Random(seed))
    fleet.run_on_use(by_load, runs=10, noise=0.05)

    assert most_loaded(fleet) <= 1.15
    assert fleet.run_on_use(by_load, runs=60, noise=0.05) <= 6


@pytest.mark.parametrize("start", ["in turn", "heaviest together", "shuffled"])
def test_a_fleet_without_a_free_place_is_evened_out_by_exchanges(start, seed):
    fleet = zipf_fleet(0.5, start=start, chance=random.Random(seed), leases_most=8)
    fleet.run(by_load, runs=10)

    assert most_loaded(fleet) <= 1.15
    assert fleet.run(by_load, runs=60) == 0


@pytest.mark.parametrize("seed", [406, 550, 558])
def test_a_worker_with_large_leases_only_is_evened_out_by_exchanges(seed):
    """Nothing small enough is left to move: these stood at 1.10 to 1.14 for good."""
    fleet = zipf_fleet(0.5, start="shuffled", chance=random.Random(seed))
    fleet.run(by_load, runs=10)

    assert most_loaded(fleet) <= 1.1
    assert fleet.run(by_load, runs=60) == 0


@pytest.mark.parametrize("exponent", [0.5, 1.0])
def test_balancing_by_count_leaves_the_same_shards_uneven(exponent, seed):
    fleet = zipf_fleet(exponent, start="heaviest together", chance=random.Random(seed))
    fleet.run(lambda leases, workers: plan_balanced(leases, expired=frozenset(), workers=workers))

    assert most_loaded(fleet) > 2
    assert (SHARDS, WORKERS) == (64, 8)


KBPS = st.one_of(
    st.none(),
    st.sampled_from([0.0, float("nan"), float("inf"), -1.0, 1e-9, 1e12]),
    st.floats(0, 5_000),
)
PER_CENT = st.one_of(st.floats(0, 100), st.sampled_from([float("nan"), float("inf")]))
NAMES = st.sampled_from(["a", "b", "c", "d"])


@st.composite
def fleets(draw):
    count = draw(st.integers(0, 12))
    leases = [
        Lease(
            lease_key=f"{n:02}",
            checkpoint=READ,
            lease_owner=draw(st.one_of(st.none(), NAMES, st.just("java"))),
            throughput_kbps=draw(KBPS),
        )
        for n in range(count)
    ]
    names = draw(st.lists(NAMES, unique=True))
    metric = st.dictionaries(st.sampled_from(["busy", "cpu"]), PER_CENT)
    workers = [
        WorkerView(worker_id=n, leases_most=draw(st.integers(0, 9)), utilisation=draw(metric))
        for n in names
    ]
    return leases, workers


@given(fleets(), st.booleans(), st.randoms())
def test_any_fleet_is_balanced_within_the_rules(fleet, rebalance, shuffler):
    leases, workers = fleet
    options = {"expired": frozenset(), "limits": BalanceLimits(), "rebalance": rebalance}
    plan = plan_by_load(leases, workers=workers, **options)

    most = {worker.worker_id: worker.leases_most for worker in workers}
    held = {w: sum(lease.lease_owner == w for lease in leases) for w in most}
    for a in plan.assignments:
        assert a.kind is (
            AssignmentKind.UNOWNED if a.lease.lease_owner is None else AssignmentKind.STEAL
        )
        assert a.lease.lease_owner != "java"
        assert a.lease.lease_owner != a.worker_id
        if a.lease.lease_owner is not None:
            held[a.lease.lease_owner] -= 1
        held[a.worker_id] += 1
        assert a.reason
        assert "nan" not in str(a.reason)
    assert all(held[w] <= max(most[w], sum(le.lease_owner == w for le in leases)) for w in most)
    keys = [a.lease.lease_key for a in plan.assignments]
    assert len(keys) == len(set(keys))
    free = {lease.lease_key for lease in leases if lease.lease_owner is None}
    assert {key for key, _ in plan.left} == free - set(keys)
    shuffler.shuffle(leases)
    shuffler.shuffle(workers)
    again = plan_by_load(leases, workers=workers, **options)
    assert repr(again) == repr(plan)


@given(st.lists(st.integers(0, 5_000), min_size=1, max_size=16), st.integers(1, 5))
def test_balancing_steady_loads_comes_to_rest(rates, workers_count):
    workers = [WorkerView(worker_id=f"w{n}", leases_most=20) for n in range(workers_count)]
    leases = [
        Lease(lease_key=f"{n:02}", checkpoint=READ, lease_owner="w0", throughput_kbps=float(rate))
        for n, rate in enumerate(rates)
    ]
    for _ in range(60):
        plan = by_load(leases, workers)
        if not plan.assignments:
            return
        leases = carried_out(leases, plan)
    pytest.fail("leases still move after 60 runs")


def test_a_load_that_goes_up_and_down_about_what_is_noise_moves_no_lease_to_and_fro():
    """By load a lease leaves its busy worker; by count another one would come back each time."""
    rates, owners, moves = [9.0, 3.0, 0.5, 0.5], ["a", "a", "b", "b"], 0
    for turn in range(20):
        used = [rate * (0.8 if turn % 2 else 1.0) for rate in rates]
        leases = [
            a_lease(f"{n} by {owner}", throughput_kbps=kbps / 100)
            for n, (owner, kbps) in enumerate(zip(owners, used, strict=True))
        ]
        workers = [
            WorkerView(
                worker_id=w,
                leases_most=8,
                utilisation={"busy": sum(u for u, o in zip(used, owners, strict=True) if o == w)},
            )
            for w in "ab"
        ]
        for a in by_load(leases, workers).assignments:
            owners[int(a.lease.lease_key)] = a.worker_id
            moves += 1

    assert owners == ["a", "b", "b", "b"]
    assert moves == 1


def test_an_unknown_throughput_counts_as_the_average_of_the_known_ones():
    leases = [a_lease("0", throughput_kbps=10.0), a_lease("1", throughput_kbps=30.0), a_lease("2")]

    assert throughputs(leases) == {"0": 10, "1": 30, "2": 20}
    assert throughputs([a_lease("0"), a_lease("1 at SHARD_END")]) == {"0": 0}
