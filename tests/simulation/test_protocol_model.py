"""The model of the lease protocol: nothing is violated, and everything that is broken is seen."""

import os
from dataclasses import replace

import pytest

from tests.protocol_model import __main__ as program
from tests.protocol_model.checks import ModelViolation, check_state
from tests.protocol_model.mutants import MUTANTS
from tests.protocol_model.recovery import obstacle
from tests.protocol_model.rules import Rules
from tests.protocol_model.scenarios import SMALL, free_parent, owned_parent
from tests.protocol_model.search import search, successors
from tests.protocol_model.state import Budget

# `make model` looks at 100,000 states of each, and at the larger scenarios.
STATES_MOST = int(os.environ.get("SHARDFLEET_TEST_MODEL_STATES", "4000"))


@pytest.mark.parametrize("name", SMALL)
def test_no_interleaving_violates_the_protocol(name):
    found = search(Rules(), SMALL[name], states_most=STATES_MOST, recover_one_in=50)

    assert found.counterexample is None, f"\n{found.counterexample}"
    assert found.is_complete or found.states > STATES_MOST
    assert found.recoveries > 0


@pytest.mark.parametrize("name", MUTANTS)
def test_a_broken_rule_leads_to_a_short_counterexample(name):
    scenario, rules = MUTANTS[name]

    found = search(rules, SMALL[scenario], states_most=10_000, recover_one_in=25)

    assert found.counterexample is not None
    told = str(found.counterexample)
    assert told.startswith("violated: ")
    assert len(told.splitlines()) <= 24
    assert all(len(line) <= 100 for line in told.splitlines())


def test_the_same_search_finds_the_same():
    world = SMALL["a steal, a drain"]

    assert search(Rules(), world, states_most=500) == search(Rules(), world, states_most=500)


def test_a_search_that_ends_has_tried_everything_from_every_state():
    world = SMALL["the first assignment, a slot that ends"]
    found = search(Rules(), world, states_most=10_000)

    known, open_ = {world}, [world]
    while open_:
        for _, following in successors(Rules(), open_.pop()):
            if following not in known:
                known.add(following)
                open_.append(following)
    assert found.is_complete
    assert found.states == len(known)


def test_everything_is_handled_by_a_fleet_that_begins_with_nothing():
    assert obstacle(Rules(), free_parent(2, budget=Budget())) is None


def test_a_lease_that_nobody_gives_away_is_an_obstacle():
    silent = replace(Rules(), announce=lambda *_: None)

    told = obstacle(silent, free_parent(2, budget=Budget()))

    assert told == "does not recover: of (2, 1) records only (0, 0) are handled"


def test_two_invocations_that_can_both_write_are_a_violation():
    world = owned_parent(2, budget=Budget())
    holder = world.running[0]
    twice = replace(world, running=(holder, replace(holder, epoch=2), *world.running[1:]))

    check_state(world)
    with pytest.raises(ModelViolation, match=r"w0/1 and w0/2 can both write to parent at 1"):
        check_state(twice)


def test_the_program_prints_and_writes_its_figures(tmp_path, monkeypatch, capsys):
    small = {"a steal, a drain": SMALL["a steal, a drain"]}
    monkeypatch.setattr(program, "SMALL", small)
    monkeypatch.setattr(program, "DEEP", {})
    monkeypatch.setattr(program, "MUTANTS", {"evict": MUTANTS["evict without the owner as seen"]})

    code = program.main(["--states", "200", "--output", str(tmp_path / "model.json")])

    assert code == 0
    assert "a steal, a drain: 20" in capsys.readouterr().out
    assert '"mutants_caught": 1' in (tmp_path / "model.json").read_text("utf-8")
    monkeypatch.setattr(program, "MUTANTS", {"none": ("a steal, a drain", Rules())})
    assert program.main(["--states", "200"]) == 1
