"""One mutant in one process: seeds from one on until a checker complains, told as JSON."""

from __future__ import annotations

import json
import sys
import time

from tests.simulation.mutants.catalogue import MUTANTS
from tests.simulation.mutants.hook import infect


def main(name: str, first: int, last: int) -> None:
    """Run the seeds; print what was found."""
    mutant = next(mutant for mutant in MUTANTS if mutant.name == name)
    infect(mutant)
    # Only now: what is imported before the infection stays sound.
    from shardfleet_testkit.simulation import run_seed  # noqa: PLC0415
    from tests.simulation.mutants.arenas import ARENAS  # noqa: PLC0415

    found: dict[str, object] = {"seed": None, "checker": "", "text": ""}
    began_s = time.process_time()
    for seed in range(first, last + 1):
        violations = run_seed(ARENAS[mutant.arena](seed)).violations
        if violations:
            first_one = violations[0]
            found = {"seed": seed, "checker": first_one.checker, "text": str(first_one)}
            break
    sys.stdout.write(json.dumps({**found, "cpu_s": round(time.process_time() - began_s, 1)}))


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]), int(sys.argv[3]))
