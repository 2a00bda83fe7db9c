"""
Two ways of doing the same work, measured side by side; and the result files of all benchmarks.

The candidates take turns in one process, round after round, so that a slow minute of the machine
falls on all of them: a gate is judged by the lower end of the interval that the ratios of the
rounds give. What the candidates return is compared first. The clock is the process's CPU time (user
and system) unless a benchmark is about waiting. A contest may have a third runner, the *bound*:
work that no implementation can leave out, on the same data; nobody may be faster than it.

Each benchmark file ends with

    if __name__ == "__main__":
        side_by_side.main(__doc__, contests)

where `contests()` yields `Contest`s, or `Figures` that were measured some other way. Each becomes
`results/<name>.json` and a row of RESULTS.md, which `run.py` writes.
"""

from __future__ import annotations

import argparse
import gc
import json
import math
import os
import platform
import statistics
import subprocess
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict, dataclass, field
from datetime import UTC, datetime
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

from quiet import Quiet

RESULTS = Path(__file__).parent / "results"
# What benchmarks write, from this folder.
WRITTEN = ("results", "RESULTS.md", "ratios.svg", "../docs/img")
ROUNDS = 15
# A candidate is repeated within a round until it has used this much CPU time.
ROUND_S = 0.1
# How sure a confidence interval is to hold the true ratio, if there are rounds enough for it.
CONFIDENCE = 0.95
PACKAGES = (
    "aws-kinesis-agg",
    "async-kinesis",
    "boto3",
    "botocore",
    "msgspec",
    "orjson",
    "protobuf",
    "pyarrow",
    "pybase64",
)

Work = Callable[[], object]
Clock = Callable[[], float]


@dataclass(frozen=True, kw_only=True)
class Contest:
    """
    Our way of doing some work against somebody else's.

    Attributes:
        name: of the result file and the row.
        compares: what is done, e.g. `"body -> records"`.
        ours: does it once and returns its outcome.
        peer: does it once and returns an equal outcome.
        peer_name: whose way that is.
        check: raises unless two outcomes (ours, the peer's) are equal.
        bound: the least work there is, None if there is no such thing to state.
        bound_name: what that work is.
        gate: the benchmark fails unless the interval of the ratio lies above; None: it has none.
        goal: the ambition.
        unit_bytes: payload bytes of one run, for MB/s; 0: not about bytes.
        time_goes_to: where the time of ours goes, said where the goal is missed.
        clock: seconds; of CPU time if not said otherwise.
        wall: the clock is wall time, so the machine must be quiet; where it is not, the gate is not
            judged.
        others: further candidates by name, for comparison only.

    """

    name: str
    compares: str
    ours: Work
    peer: Work
    peer_name: str
    check: Callable[[Any, Any], None]
    bound: Work | None = None
    bound_name: str = ""
    gate: float | None = None
    goal: float | None = None
    unit_bytes: int = 0
    time_goes_to: str = ""
    clock: Clock = time.process_time
    wall: bool = False
    others: dict[str, Work] = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True)
class Timing:
    """
    What one candidate took, milliseconds per run.

    Attributes:
        median_ms: of all rounds.
        best_ms: the quickest round.
        spread: slowest less quickest round, as a share of the median.
        rounds_ms: each round.

    """

    median_ms: float
    best_ms: float
    spread: float
    rounds_ms: list[float]


@dataclass(frozen=True, kw_only=True)
class Figures:
    """
    A benchmark that is no contest: named figures with limits of its own.

    Attributes:
        name: of the result file and the row.
        compares: what is measured.
        summary: the one sentence of figures for the table.
        gate: the requirement in words, "" if there is none.
        goal: the ambition in words.
        met: whether the requirement holds; None: there is none.
        details: everything else, JSON-like.
        time_goes_to: what to say about the figures below the table.

    """

    name: str
    compares: str
    summary: str
    gate: str = ""
    goal: str = ""
    met: bool | None = None
    details: dict[str, Any] = field(default_factory=dict)
    time_goes_to: str = ""


@dataclass(frozen=True, kw_only=True)
class Skipped:
    """
    A contest that cannot be held on this machine.

    Attributes:
        name: of the result file and the row.
        reason: why not.

    """

    name: str
    reason: str


def run_contest(contest: Contest, *, rounds: int = ROUNDS) -> dict[str, Any]:
    """
    Run one contest and return its result, JSON-like.

    Raises:
        AssertionError: the outcomes differ, or a candidate beat the bound, which is then none.

    """
    contest.check(contest.ours(), contest.peer())
    candidates = {"ours": contest.ours, "peer": contest.peer, **contest.others}
    if contest.bound is not None:
        candidates["bound"] = contest.bound
    quiet = Quiet() if contest.wall else None
    timings = take_turns(candidates, rounds=rounds, clock=contest.clock, quiet=quiet)
    ours, peer = timings["ours"], timings["peer"]
    ratio = peer.median_ms / ours.median_ms
    low, high = interval([b / a for a, b in zip(ours.rounds_ms, peer.rounds_ms, strict=True)])
    result: dict[str, Any] = {
        "kind": "contest",
        "name": contest.name,
        "compares": contest.compares,
        "peer": contest.peer_name,
        "clock": "wall" if contest.wall else "CPU",
        "ratio": round(ratio, 2),
        "ratio_between": [round(low, 2), round(high, 2)],
        "ours": asdict(ours),
        "peer_timing": asdict(peer),
        "gate": contest.gate,
        "goal": contest.goal,
        "quiet": quiet is None or not quiet.disturbed,
        "meets_gate": contest.gate is None or low >= contest.gate,
        "meets_goal": contest.goal is None or ratio >= contest.goal,
        "time_goes_to": contest.time_goes_to,
    }
    if contest.unit_bytes:
        result["payload_mb_per_s"] = round(contest.unit_bytes / ours.median_ms / 1000)
    if contest.others:
        result["others"] = {name: asdict(timings[name]) for name in contest.others}
    if contest.bound is not None:
        bound = timings["bound"]
        result["bound"] = {"what": contest.bound_name, **asdict(bound)}
        result["bound_share"] = round(bound.median_ms / ours.median_ms, 2)
        quickest = min(ours.best_ms, peer.best_ms)
        assert bound.best_ms <= quickest, (
            f"{contest.name}: a candidate took {quickest:.2f} ms, the bound {bound.best_ms:.2f} ms:"
            " it is no bound"
        )
    return result


def interval(ratios: Sequence[float]) -> tuple[float, float]:
    """
    Return between what the median of all such ratios lies, by the sign test.

    As many of the lowest and the highest are left out as :data:`CONFIDENCE` allows; of fewer than
    six none, and then it is less sure.
    """
    ordered, count = sorted(ratios), len(ratios)
    beyond, left_out = 1 / 2**count, 0
    while True:
        beyond += math.comb(count, left_out + 1) / 2**count
        if 1 - 2 * beyond < CONFIDENCE:
            return ordered[left_out], ordered[-1 - left_out]
        left_out += 1


def take_turns(
    candidates: dict[str, Work],
    *,
    rounds: int = ROUNDS,
    clock: Clock = time.process_time,
    quiet: Quiet | None = None,
) -> dict[str, Timing]:
    """Time the candidates in turn; exceptions of a candidate are raised."""
    repeats = {}
    for name, work in candidates.items():
        started = clock()
        work()
        repeats[name] = max(1, round(ROUND_S / max(clock() - started, 1e-6)))
    times: dict[str, list[float]] = {name: [] for name in candidates}
    for _ in range(rounds):
        for name, work in candidates.items():
            gc.collect()
            if quiet is not None:
                quiet.wait()
            started = clock()
            for _ in range(repeats[name]):
                work()
            times[name].append((clock() - started) * 1000 / repeats[name])
    return {name: _timing(found) for name, found in times.items()}


def _timing(times: list[float]) -> Timing:
    median = statistics.median(times)
    return Timing(
        median_ms=round(median, 4),
        best_ms=round(min(times), 4),
        spread=round((max(times) - min(times)) / median, 3),
        rounds_ms=[round(each, 4) for each in times],
    )


def machine() -> dict[str, Any]:
    """Return the facts of machine and software that a figure depends on."""
    facts: dict[str, Any] = {
        "cores": os.cpu_count(),
        "system": f"{platform.system()} {platform.machine()}",
        "processor": _processor(),
        "python": platform.python_version(),
        "load_average": [round(each, 2) for each in os.getloadavg()],
    }
    for package in PACKAGES:
        try:
            facts[package] = version(package)
        except PackageNotFoundError:
            continue
    return facts


def _processor() -> str:
    try:
        text = Path("/proc/cpuinfo").read_text(encoding="utf-8")
    except OSError:
        return platform.processor()
    for line in text.splitlines():
        if line.startswith("model name"):
            return line.partition(":")[2].strip()
    return platform.processor()


def commit() -> str:
    """Return the commit that is measured, with `-dirty` if more was changed than results."""

    def git(*words: str) -> str:
        found = subprocess.run(
            ["git", *words],  # noqa: S607 - whichever is on PATH
            capture_output=True,
            text=True,
            check=False,
            cwd=RESULTS.parent,
        )
        return found.stdout.strip()

    found = git("rev-parse", "--short=12", "HEAD")
    paths = ("..", *(f":(exclude){each}" for each in WRITTEN))
    changed = found and git("status", "--porcelain", "--untracked-files=no", "--", *paths)
    return f"{found}-dirty" if changed else found


def save(result: dict[str, Any], folder: Path = RESULTS) -> Path:
    """Write one result with the date, the commit and the machine; return the file."""
    folder.mkdir(parents=True, exist_ok=True)
    file = folder / f"{result['name']}.json"
    date = datetime.now(UTC).isoformat(timespec="seconds")
    whole = {**result, "date": date, "commit": commit(), "machine": machine()}
    file.write_text(json.dumps(whole, indent=2) + "\n", encoding="utf-8")
    return file


def described(result: dict[str, Any]) -> str:
    """Return a result as the lines that a benchmark prints."""
    if result["kind"] == "figures":
        return f"{result['name']}: {result['summary']}"
    if result["kind"] == "skipped":
        return f"{result['name']}: skipped, {result['reason']}"
    ours, peer = result["ours"], result["peer_timing"]
    lines = [
        f"{result['name']}: {result['ratio']}x {result['peer']} ({result['compares']})",
        f"  between {result['ratio_between'][0]} and {result['ratio_between'][1]} by paired rounds",
        f"  ours {_timed(ours)}, peer {_timed(peer)}, {result['clock']} time",
        f"  gate {result['gate'] or '-'}, goal {result['goal'] or '-'}",
    ]
    if not result["quiet"]:
        lines.append("  the machine was busy: not judged")
    if "bound" in result:
        bound = result["bound"]
        lines.append(
            f"  bound {bound['median_ms']:.2f} ms ({bound['what']}): "
            f"ours runs at {result['bound_share']:.0%} of it"
        )
    for name, timing in result.get("others", {}).items():
        lines.append(f"  {name}: {timing['median_ms']:.2f} ms")
    return "\n".join(lines)


def _timed(timing: dict[str, Any]) -> str:
    return f"{timing['median_ms']:.2f} ms (spread {timing['spread']:.0%})"


def misses_gate(result: dict[str, Any]) -> bool:
    """Tell whether a result says that a requirement does not hold."""
    if result["kind"] == "contest":
        return bool(result.get("quiet", True) and not result["meets_gate"])
    return result["kind"] == "figures" and result["met"] is False


def _result(contest: Contest | Figures | Skipped, *, rounds: int) -> dict[str, Any]:
    if isinstance(contest, Contest):
        return run_contest(contest, rounds=rounds)
    kind = "figures" if isinstance(contest, Figures) else "skipped"
    return {"kind": kind, **asdict(contest)}


def main(doc: str | None, contests: Callable[[], Iterable[Contest | Figures | Skipped]]) -> None:
    """
    Run a benchmark file: print and save every result; `--only NAME` runs some of them.

    Exits with 1 if a gate is missed.
    """
    parser = argparse.ArgumentParser(description=(doc or "").strip().split("\n\n", maxsplit=1)[0])
    parser.add_argument("--rounds", type=int, default=ROUNDS)
    parser.add_argument("--only", action="append", help="names of contests; all if not given")
    parser.add_argument("--folder", type=Path, default=RESULTS, help="of the result files")
    options = parser.parse_args()
    missed = []
    for contest in contests():
        if options.only and contest.name not in options.only:
            continue
        result = _result(contest, rounds=options.rounds)
        save(result, options.folder)
        print(described(result), flush=True)
        if misses_gate(result):
            missed.append(contest.name)
    if missed:
        raise SystemExit(f"below the gate: {', '.join(missed)}")
