"""That pairs of kinds of faults meet, and that those that met are counted, and no others."""

from collections import Counter
from itertools import combinations
from math import comb
from types import SimpleNamespace

from shardfleet_testkit.memory import MemoryLeaseStore
from shardfleet_testkit.simulation.campaign import Totals
from shardfleet_testkit.simulation.faults import DRAWN, often_in
from shardfleet_testkit.simulation.pairs import Pairs
from shardfleet_testkit.simulation.running import Options, run_seed
from tests.engine.worker_side.worker_kit import a_lease, key

LINES = 56  # of the affine plane of order 7: 7 slopes and the vertical, 7 parallel lines each


def met(*faults, owner="fleet-s0001"):
    now = SimpleNamespace(ms=0)
    leases = SimpleNamespace(store=MemoryLeaseStore([a_lease(lease_owner=owner)]))
    pairs = Pairs(lambda: now.ms, leases, within_ms=10_000)
    for at_ms, kind, about in faults:
        now.ms = at_ms
        pairs.struck(kind, about)
    return pairs.met


def test_of_56_seeds_one_after_the_other_each_pair_is_frequent_in_exactly_one():
    for first in (1, 1_000):
        seeds = range(first, first + LINES)
        together = Counter(p for seed in seeds for p in combinations(sorted(often_in(seed)), 2))
        assert together == Counter(combinations(sorted(DRAWN), 2))


def test_faults_meet_on_a_lease_within_the_failover_time():
    one, other = (0, "false_end", key(0)), f"checkpoint {key(0)}"
    assert met(one, (10_000, "reply_lost", other)) == {("false_end", "reply_lost")}
    assert not met(one, (10_001, "reply_lost", other))
    assert not met(one, (1, "reply_lost", f"checkpoint {key(1)}"))


def test_a_fault_of_a_lease_is_one_of_its_owner_too():
    frozen = (1, "freeze", "fleet-s0001")
    assert met((0, "false_end", key(0)), frozen) == {("false_end", "freeze")}
    assert not met((0, "false_end", key(0)), frozen, owner="fleet-s0002")


def test_a_table_that_refuses_concerns_everybody_before_and_after():
    outage = (1, "table_outage", "fleet-s0003")
    assert met((0, "freeze", "fleet-s0001"), outage) == {("freeze", "table_outage")}
    assert met(outage, (2, "freeze", "fleet-s0001")) == {("freeze", "table_outage")}


def test_the_sums_of_a_run_tell_in_how_many_seeds_each_pair_met():
    totals = Totals()
    results = [run_seed(Options(seed=seed, is_small=True, busy_s=20.0)) for seed in (1, 2)]
    for result in results:
        totals.add(result)
    body = totals.body()
    own = {p for result in results for p in result.pairs if p[0] != p[1]}
    told = {tuple(p.split("+")): seeds for p, seeds in body["seeds_by_pair"].items()}
    assert told.keys() == set(combinations(sorted(DRAWN), 2))
    assert {p for p, seeds in told.items() if seeds} == own
    assert (body["pairs"], body["pairs_met"], body["pairs_met_least"]) == (
        comb(len(DRAWN), 2),
        len(own),
        0,
    )
