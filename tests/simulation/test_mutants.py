"""
The mutants: each still fits the engine's source, and some of them are caught here, each time.

All of them: ``make mutants``; the page is benchmarks/results/mutants.md.
"""

import ast
import json
import subprocess
import sys
from pathlib import Path

import pytest

from shardfleet_testkit.simulation import run_seed
from tests.simulation.mutants.arenas import ARENAS
from tests.simulation.mutants.catalogue import MUTANTS
from tests.simulation.mutants.mutant import mutant, mutated
from tests.simulation.mutants.rows import ROWS, WITHOUT_MUTANT
from tests.simulation.mutants.run import by_seeds, page_of

RESULTS = Path(__file__).parents[2] / "benchmarks/results/mutants.json"
PAGE = RESULTS.with_suffix(".md")


@pytest.mark.parametrize("found", MUTANTS, ids=lambda found: found.name)
def test_a_mutant_fits_the_source_of_the_engine(found):
    """Each old text is there exactly once, and what it becomes is Python."""
    for module, path in {edit.module: edit.path for edit in found.edits}.items():
        text = path.read_text("utf-8")
        changed = mutated(module, text, found.edits)
        ast.parse(changed)
        assert changed != text


@pytest.mark.parametrize("text", ["a = 1\n", "b = 2\nb = 2\n"])
def test_a_mutant_that_no_longer_fits_is_told(text):
    stale = mutant("stale", "nowhere", ("config.py", "b = 2", "b = 3"))

    with pytest.raises(ValueError, match="times, expected once"):
        mutated("shardfleet.config", text, stale.edits)


def test_a_mutant_uses_no_name_that_its_module_does_not_know(tmp_path):
    """It would be caught for its NameError, which says nothing about the bug it stands for."""
    for number, found in enumerate(MUTANTS):
        for module, path in {edit.module: edit.path for edit in found.edits}.items():
            text = mutated(module, path.read_text("utf-8"), found.edits)
            (tmp_path / f"{number}_{path.name}").write_text(text, "utf-8")
    command = [sys.executable, "-m", "ruff", "check", "--isolated", "--select", "F821"]

    told = subprocess.run(
        [*command, "--output-format", "concise", str(tmp_path)],
        capture_output=True,
        text=True,
        check=False,
    )

    assert told.returncode == 0, told.stdout + told.stderr


def test_mutants_have_names_of_their_own_and_known_arenas():
    names = [found.name for found in MUTANTS]

    assert sorted(set(names)) == sorted(names)
    assert {found.arena for found in MUTANTS} <= set(ARENAS)
    assert not [found.name for found in MUTANTS if found.test and found.why_not]


def test_the_page_beside_the_results_lists_every_mutant():
    page = PAGE.read_text("utf-8")

    assert [found.name for found in MUTANTS if f"| {found.name} |" not in page] == []
    assert page == page_of(json.loads(RESULTS.read_text("utf-8"))), "run: make mutants"


def test_every_row_of_the_museum_has_a_mutant_or_a_reason_on_the_page():
    page = PAGE.read_text("utf-8")
    sources = [f"{found.source}," for found in MUTANTS]
    missing = [row for row in ROWS if not any(f"{row}," in source for source in sources)]

    assert sorted(missing) == sorted(WITHOUT_MUTANT)
    assert [row for row in WITHOUT_MUTANT if row not in page] == []


# Each is caught by its first seeds, in little time, and each by another checker.
# Of a record that is passed over, the checkpoint tells or the order, whichever comes first.
_PASSED_OVER = ("OrderWithinShard", "CheckpointCoversDone")
QUICK = {
    "checkpoint over SHARD_END": ("CheckpointForward",),
    "an assignment is not announced": ("AnnouncedFirst",),
    "a shard ends without leases for its children": ("ChildrenBeforeEnd",),
    "an exception skips the batch": _PASSED_OVER,
    "progress is told before the handler is done": _PASSED_OVER,
    "records are handed over after a stall without a renewal": ("DeliveredWhileFresh",),
    # Whoever believes the end of one parent of a merge waits, and reads no more.
    "a false shard end is believed": ("ChildrenBeforeEnd", "WhoRenewsReads"),
    "reading goes on behind a checkpoint inside an aggregate": _PASSED_OVER,
    "sequence numbers are compared as text": _PASSED_OVER,
    "a merge does not wait for its other parent's lease": (
        "OrderWithinKey",
        "ParentsBeforeChildren",
    ),
    "the tip is another now each time": ("CheckpointCoversDone",),
    "a key is in several lanes": ("KeysNeverOverlap", "OrderWithinShard", "OrderWithinKey"),
    "the checkpoint follows the lane that is furthest": _PASSED_OVER,
    "what lanes are ahead is not noted": ("RepetitionsExplained",),
    "a record that kills is never given up": ("WhatKillsIsStopped",),
    "an event of a subscription is dropped": ("NoRecordLost", *_PASSED_OVER),
}


@pytest.mark.parametrize("name", QUICK)
def test_a_bug_put_into_the_engine_is_caught_by_the_first_seeds(name):
    found = by_seeds(next(found for found in MUTANTS if found.name == name), 1, 10)

    assert found["checker"] in QUICK[name], found


@pytest.mark.parametrize("arena", ["other hands", "pauses", "java", "lanes"])
def test_where_mutants_are_looked_for_the_engine_as_it_is_breaks_nothing(arena):
    for seed in (1, 2):
        assert not run_seed(ARENAS[arena](seed)).violations


def test_a_mutant_that_cannot_be_told_from_the_engine_is_not_called_caught():
    """The runner's own false alarm would make every figure worthless."""
    found = by_seeds(next(m for m in MUTANTS if m.name == "no checkpoint over a sentinel"), 1, 1)

    assert (found["seed"], found["checker"]) == (None, "")
