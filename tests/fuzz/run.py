"""The long run: `python -m tests.fuzz.run --inputs N`, new inputs each time, counted per target."""

import argparse
import json
import random
import sys
import time
from pathlib import Path

from hypothesis import HealthCheck, Phase, given, seed, settings

from tests.fuzz.targets import TARGETS, run

INPUTS = 20_000
AT_ONCE = 2_000
"""Inputs per run of hypothesis, which slows down with what it remembers."""


def fuzz(target, count, chance):
    """Try at least so many inputs; return how many there were, and what went wrong first."""
    tried = 0
    while tried < count:

        @seed(chance.randrange(2**64))
        @settings(
            max_examples=min(AT_ONCE, count),
            database=None,
            deadline=None,
            phases=(Phase.generate, Phase.shrink),
            suppress_health_check=list(HealthCheck),
        )
        @given(target.inputs)
        def try_one(value):
            nonlocal tried
            tried += 1
            run(target, value)

        before = tried
        try:
            try_one()
        except Exception as error:  # noqa: BLE001 - whatever a parser lets out is the finding
            return tried, error
        if tried == before or tried - before < min(AT_ONCE, count) // 100:
            break  # The strategy has no more different inputs.
    return tried, None


def main(arguments):
    parser = argparse.ArgumentParser(prog="python -m tests.fuzz.run")
    parser.add_argument("--inputs", type=int, default=INPUTS, help="per target, at least")
    parser.add_argument("--seed", type=int, default=None, help="of all draws; default: a new one")
    parser.add_argument("--output", type=Path, help="where the counts go, as JSON")
    options = parser.parse_args(arguments)
    first = random.SystemRandom().randrange(2**32) if options.seed is None else options.seed
    chance, results, broken = random.Random(first), {}, 0
    for name, target in TARGETS.items():
        began = time.monotonic()
        tried, error = fuzz(target, max(1, options.inputs // target.dearness), chance)
        seconds = round(time.monotonic() - began, 1)
        results[name] = {"inputs": tried, "seconds": seconds, "failed": error is not None}
        print(f"{name}: {tried:,} inputs in {seconds} s", flush=True)  # noqa: T201
        if error is not None:
            broken += 1
            notes = "\n".join(getattr(error, "__notes__", []))
            print(f"{name}: {type(error).__name__}: {error}\n{notes}")  # noqa: T201
    if options.output is not None:
        options.output.parent.mkdir(parents=True, exist_ok=True)
        found = {"seed": first, "targets": results}
        options.output.write_text(json.dumps(found, indent=2) + "\n", encoding="utf-8")
    return 1 if broken else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
