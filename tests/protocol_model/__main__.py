"""
Search every scenario and every mutant: `python -m tests.protocol_model`.

Exit code 1 when a scenario has a counterexample or a mutant has none.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from pathlib import Path
from typing import Any

from tests.protocol_model.mutants import MUTANTS
from tests.protocol_model.rules import Rules
from tests.protocol_model.scenarios import DEEP, SMALL
from tests.protocol_model.search import search

RECOVER_ONE_IN = 25


def main(arguments: list[str]) -> int:
    """Run everything and return the exit code."""
    parser = argparse.ArgumentParser(prog="python -m tests.protocol_model")
    parser.add_argument("--states", type=int, default=100_000, help="most states per scenario")
    parser.add_argument("--output", type=Path, help="where the figures go, as JSON")
    given = parser.parse_args(arguments)
    rows, failures = [], 0
    for name, world in {**SMALL, **DEEP}.items():
        began = time.process_time()
        found = search(Rules(), world, states_most=given.states, recover_one_in=RECOVER_ONE_IN)
        row: dict[str, Any] = {
            "scenario": name,
            "states": found.states,
            "transitions": found.transitions,
            "recoveries": found.recoveries,
            "depth": found.depth,
            "complete": found.is_complete,
            "cpu_seconds": round(time.process_time() - began, 1),
        }
        rows.append(row)
        how = "all of them" if found.is_complete else "the bound"
        _say(
            f"{name}: {found.states:,} states ({how}), {found.transitions:,} transitions, "
            f"{found.depth} steps deep, {row['cpu_seconds']} s"
        )
        if found.counterexample is not None:
            failures += 1
            _say(str(found.counterexample))
    caught = [_caught(name, scenario, rules) for name, (scenario, rules) in MUTANTS.items()]
    _say(f"{sum(caught)} of {len(caught)} mutants caught")
    if given.output is not None:
        figures = {"scenarios": rows, "mutants": len(caught), "mutants_caught": sum(caught)}
        given.output.parent.mkdir(parents=True, exist_ok=True)
        given.output.write_text(json.dumps(figures, indent=2) + "\n", encoding="utf-8")
    return 1 if failures or not all(caught) else 0


def _caught(name: str, scenario: str, rules: Rules) -> bool:
    found = search(rules, SMALL[scenario], states_most=20_000, recover_one_in=RECOVER_ONE_IN)
    if found.counterexample is None:
        _say(f"not caught: {name}")
        return False
    steps = len(found.counterexample.steps)
    _say(f"mutant: {name}: {found.counterexample.reason} (after {steps} steps)")
    return True


def _say(text: str) -> None:
    sys.stdout.write(f"{text}\n")
    sys.stdout.flush()


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
