"""Ask ours and the Java KCL the same: ``python -m tests.conformance``; see judge.py."""

import argparse
import json
import sys
from pathlib import Path

from tests.conformance import assignment, checkpoints, cleanup, deaggregation, shard_sync
from tests.conformance.judge import compare
from tests.conformance.kcl import Kcl, why_not

AREAS = {
    module.AREA.name: module.AREA
    for module in (deaggregation, checkpoints, shard_sync, cleanup, assignment)
}


def main(arguments):
    """Compare each area; return 1 if one has a difference or a predicate that it should not."""
    parser = argparse.ArgumentParser(prog="python -m tests.conformance")
    parser.add_argument("--area", dest="areas", action="append", choices=list(AREAS))
    parser.add_argument("--cases", type=int, default=1_000_000, help="of each area")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--output", type=Path, help="where the figures go, as JSON")
    given = parser.parse_args(arguments)
    if reason := why_not():
        parser.exit(1, f"{reason}\n")
    figures, is_good = {"seed": given.seed}, True
    with Kcl() as kcl:
        for name in given.areas or AREAS:
            found = compare(AREAS[name], kcl, cases=given.cases, seed=given.seed)
            sys.stdout.write("\n".join([*found.lines(), ""]))
            sys.stdout.flush()
            figures[name] = found.figures()
            is_good &= found.is_good
    if given.output is not None:
        given.output.parent.mkdir(parents=True, exist_ok=True)
        given.output.write_text(json.dumps(figures, indent=2) + "\n", "utf-8")
    return not is_good


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
