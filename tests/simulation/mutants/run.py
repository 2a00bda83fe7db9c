"""
The long run: ``python -m tests.simulation.mutants.run --seeds 200 --jobs 2 --output FILE.json``.

FILE.md beside it has the same as a page. Each mutant gets a process of its own, which runs seeds until a checker complains; a mutant with a
test instead is given to that test. One line per mutant, the sums last.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from shardfleet_testkit.simulation import run_seed
from tests.simulation.mutants.arenas import ARENAS
from tests.simulation.mutants.catalogue import MUTANTS
from tests.simulation.mutants.mutant import Mutant
from tests.simulation.mutants.rows import WITHOUT_MUTANT

ROOT = Path(__file__).parents[3]
_SEEDS = 200
# For those that make no difference, as is argued: a few, so that the argument is seen to hold.
_SEEDS_IN_VAIN = 5
LEAST_SHARE = 0.95


def main(arguments: Sequence[str] | None = None) -> int:
    """Run all mutants, or those whose name or source contains a text; 1 if too few are caught."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seeds", type=int, default=_SEEDS, help="most seeds per mutant")
    parser.add_argument("--jobs", type=int, default=2, help="mutants at a time")
    parser.add_argument("--only", default="", help="names or sources, parts of them, by commas")
    parser.add_argument("--output", type=Path, help="result file, JSON")
    parser.add_argument("--page", type=Path, help="write the page of this result file, no run")
    given = parser.parse_args(arguments)
    if given.page is not None:
        _write_page(given.page)
        return 0
    texts = given.only.split(",")
    wanted = [m for m in MUTANTS if any(text in m.name or text in m.source for text in texts)]
    began_s = time.monotonic()
    with ThreadPoolExecutor(given.jobs) as pool:
        rows = list(pool.map(lambda mutant: _tell(_row(mutant, given.seeds)), wanted))
    body = {**_sums(rows), "seeds_most": given.seeds, "mutants": rows}
    body["elapsed_s"] = round(time.monotonic() - began_s)
    if given.output is not None:
        given.output.write_text(json.dumps(body, indent=1) + "\n", "utf-8")
        _write_page(given.output)
    sys.stdout.write(_summary(body) + "\n")
    return 0 if body["share"] >= LEAST_SHARE else 1


def _write_page(results: Path) -> None:
    body = json.loads(results.read_text("utf-8"))
    results.with_suffix(".md").write_text(page_of(body), "utf-8")


def page_of(body: dict[str, Any]) -> str:
    """Return a result file's body as a page: every mutant, and the bugs that have none."""
    lines = [
        "# Mutants",
        "",
        "Written by `make mutants`; docs/proof.md says what this is.",
        "",
        _summary(body),
        "",
        "| bug | source | arena | seed | found by |",
        "|---|---|---|---|---|",
    ]
    for row in body["mutants"]:
        arena, seed, found = row["arena"], row["seed"] or "", f"`{row['checker']}`"
        if row["test"]:
            arena, found = "", f"`{row['test'].removeprefix('tests/')}`"
        elif not row["seed"]:
            found = f"nobody: {row['why_not']}" if row["why_not"] else "**missed**"
        lines.append(f"| {row['name']} | {row['source']} | {arena} | {seed} | {found} |")
    lines += ["", "Bugs of others that have no mutant:", "", "| bug | why not |", "|---|---|"]
    lines += [f"| {row} | {reason} |" for row, reason in WITHOUT_MUTANT.items()]
    return "\n".join(lines) + "\n"


def _summary(body: dict[str, Any]) -> str:
    return (
        f"With {body['seeds_most']} seeds each, {body['caught_by_seed']} of {body['expressible']} "
        f"mutants are caught by a seed ({body['share']:.1%}), {body['caught_by_test']} more by a "
        f"test, {body['equivalent']} make no difference, {len(body['missed'])} are missed: "
        f"{', '.join(body['missed']) or 'none'}."
    )


def _row(mutant: Mutant, seeds: int) -> dict[str, Any]:
    row = {
        "name": mutant.name,
        "source": mutant.source,
        "arena": mutant.arena,
        "seed": None,
        "checker": "",
        "test": mutant.test,
        "why_not": mutant.why_not,
    }
    if mutant.test:
        return {**row, **by_test(mutant)}
    most = min(seeds, _SEEDS_IN_VAIN) if mutant.why_not else seeds
    return {**row, **by_seeds(mutant, 1, most)}


def by_seeds(mutant: Mutant, first: int, last: int) -> dict[str, Any]:
    """
    Look for a mutant with these seeds, in a process of its own.

    A seed that shows a violation of the engine as it is, too, does not count: ``unsound`` names it.

    Raises:
        RuntimeError: the process failed for another reason than a violation.

    """
    unsound: list[int] = []
    while True:
        found = _in_a_process(mutant.name, first, last)
        seed = found["seed"]
        if seed is None or not run_seed(ARENAS[mutant.arena](seed)).violations:
            return {**found, "unsound": unsound}
        unsound.append(seed)
        first = seed + 1


def _in_a_process(name: str, first: int, last: int) -> dict[str, Any]:
    command = [sys.executable, "-m", "tests.simulation.mutants.child"]
    ended = subprocess.run(
        [*command, name, str(first), str(last)],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    if ended.returncode:
        message = f"mutant {name!r}: {ended.stderr.strip()}"
        raise RuntimeError(message)
    found: dict[str, Any] = json.loads(ended.stdout)
    return found


def by_test(mutant: Mutant) -> dict[str, Any]:
    """Run a mutant's test with it; caught if the test fails, and not for another reason."""
    command = [sys.executable, "-m", "pytest", "-q", "-x", "-p", "no:cacheprovider"]
    plugin = ["-p", "tests.simulation.mutants.plugin", mutant.test]
    environment = {**os.environ, "SHARDFLEET_MUTANT": mutant.name}
    ended = subprocess.run(
        [*command, *plugin], cwd=ROOT, env=environment, capture_output=True, text=True, check=False
    )
    lines = ended.stdout.strip().splitlines()
    is_caught = ended.returncode == 1
    return {"checker": "test" if is_caught else "", "text": lines[-1] if lines else ended.stderr}


def _tell(row: dict[str, Any]) -> dict[str, Any]:
    found = f"seed {row['seed']}, {row['checker']}" if row["seed"] else row["checker"] or "missed"
    sys.stdout.write(f"{row['source']:<28} {row['name']:<60} {found} ({row.get('cpu_s', 0)} s)\n")
    sys.stdout.flush()
    return row


def _sums(rows: Sequence[dict[str, Any]]) -> dict[str, Any]:
    expressible = [row for row in rows if not row["test"] and not row["why_not"]]
    caught = [row for row in expressible if row["seed"]]
    missed = [row["name"] for row in expressible if not row["seed"]]
    missed += [row["name"] for row in rows if row["test"] and not row["checker"]]
    return {
        "expressible": len(expressible),
        "caught_by_seed": len(caught),
        "share": round(len(caught) / max(1, len(expressible)), 4),
        "caught_by_test": sum(bool(row["test"] and row["checker"]) for row in rows),
        "equivalent": sum(bool(row["why_not"]) for row in rows),
        "missed": missed,
    }


if __name__ == "__main__":
    sys.exit(main())
