"""Many seeds, spread over processes, until the time is over or a seed fails."""

from __future__ import annotations

import gc
import os
import time
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from dataclasses import dataclass, field, replace
from itertools import combinations, count
from multiprocessing import parent_process
from threading import Thread
from typing import Any

from shardfleet.config import FleetConfig
from shardfleet_testkit.simulation.drawn import COMMANDS_NOT_DRAWN, NOT_DRAWN, seeds_by_value
from shardfleet_testkit.simulation.faults import DRAWN
from shardfleet_testkit.simulation.running import Options, RunResult, run_seed

_HOUR_MS = 3_600_000
_ALLOCATIONS_BETWEEN_LOOKS = 50_000
_PAIRS_NAMED = 10


@dataclass(slots=True)
class Totals:
    """
    What many runs came to together.

    Attributes:
        elapsed_s: wall-clock seconds.
        cpu_s: of a processor core, in all processes together, for runs that are all in memory.
        seeds: of the runs that are done, in the order of their ends.
        failed: results with violations.
        virtual_ms: how long the fleets lived, together.
        calls: port calls by operation, of runs that are all in memory.
        wired: of runs whose lease tables are behind the real adapter: ``seeds``, how many there
            were, ``cpu_ms`` of a core, and ``port_calls``.
        requests: what their adapters sent over the wire, by operation.
        faults: by kind.
        commands: an operator's, by the number of seeds in which each was begun.
        configs: of the fleets.
        pairs: of kinds of faults, by the number of seeds in which they met; see :class:`Pairs`.
        numbers: sums of the other counts of :class:`RunResult`.

    """

    elapsed_s: float = 0.0
    cpu_s: float = 0.0
    seeds: list[int] = field(default_factory=list)
    failed: list[RunResult] = field(default_factory=list)
    virtual_ms: int = 0
    calls: Counter[str] = field(default_factory=Counter)
    wired: Counter[str] = field(default_factory=Counter)
    requests: Counter[str] = field(default_factory=Counter)
    faults: Counter[str] = field(default_factory=Counter)
    commands: Counter[str] = field(default_factory=Counter)
    configs: list[FleetConfig] = field(default_factory=list)
    pairs: Counter[tuple[str, str]] = field(default_factory=Counter)
    numbers: Counter[str] = field(default_factory=Counter)

    def add(self, result: RunResult, *, cpu_s: float = 0.0) -> None:
        """Count one run, which took so long on one core."""
        self.seeds.append(result.seed)
        if result.violations:
            self.failed.append(result)
        self.virtual_ms += result.virtual_ms
        if result.requests:
            self.wired.update(
                seeds=1, cpu_ms=round(cpu_s * 1000), port_calls=sum(result.calls.values())
            )
            self.requests.update(result.requests)
        else:
            self.cpu_s += cpu_s
            self.calls.update(result.calls)
        self.faults.update(result.faults)
        self.commands.update(result.commands.keys())
        self.configs.append(result.config)
        self.pairs.update(result.pairs)
        for name in ("records", "repetitions", "reshards", "turns", "ended_hard", "freezes"):
            self.numbers[name] += getattr(result, name)

    def body(self) -> dict[str, Any]:
        """Return everything as plain JSON values."""
        kinds = combinations(sorted(DRAWN), 2)
        met = {f"{one}+{other}": self.pairs[one, other] for one, other in kinds}
        return {
            "violations": [str(v) for result in self.failed for v in result.violations],
            "failed_seeds": sorted(result.seed for result in self.failed),
            "seeds": len(self.seeds),
            "first_seed": min(self.seeds, default=None),
            "last_seed": max(self.seeds, default=None),
            "fleet_hours": round(self.virtual_ms / _HOUR_MS, 2),
            "elapsed_s": round(self.elapsed_s, 1),
            "port_calls": self.calls.total(),
            "port_calls_per_s": round(self.calls.total() / max(self.elapsed_s, 0.001)),
            "cpu_s": round(self.cpu_s, 1),
            "port_calls_per_core_s": round(self.calls.total() / max(self.cpu_s, 0.001)),
            "wired": {
                "seeds": self.wired["seeds"],
                "cpu_s": round(self.wired["cpu_ms"] / 1000, 1),
                "port_calls": self.wired["port_calls"],
                "requests_by_operation": dict(sorted(self.requests.items())),
            },
            "faults": self.faults.total(),
            "faults_per_s": round(self.faults.total() / max(self.elapsed_s, 0.001)),
            "killed_or_frozen": self.numbers["ended_hard"] + self.numbers["freezes"],
            **dict(sorted(self.numbers.items())),
            "port_calls_by_operation": dict(sorted(self.calls.items())),
            "faults_by_kind": dict(sorted(self.faults.items())),
            "pairs": len(met),
            "pairs_met": sum(1 for seeds in met.values() if seeds),
            "pairs_met_least": min(met.values()),
            "pairs_of_fewest_seeds": sorted(met, key=lambda pair: (met[pair], pair))[:_PAIRS_NAMED],
            "seeds_by_pair": met,
            "seeds_by_command": dict(sorted(self.commands.items())),
            "seeds_by_value": seeds_by_value(self.configs),
            "commands_not_drawn": dict(COMMANDS_NOT_DRAWN),
            "values_not_drawn": {why: list(names) for why, names in NOT_DRAWN.items()},
        }

    def line(self) -> str:
        """Return one line for a person."""
        body = self.body()
        calls, faults = f"{body['port_calls']:,} port calls", f"{body['faults']:,} faults"
        took = ""
        if self.elapsed_s:
            took = f" in {body['elapsed_s']:,} s"
            calls += f" ({body['port_calls_per_s']:,}/s, {body['port_calls_per_core_s']:,} a core)"
            faults += f" ({body['faults_per_s']:,}/s)"
        return (
            f"{body['fleet_hours']:,} fleet-hours from {body['seeds']:,} seeds{took}: "
            f"{calls}, {faults}, {body['reshards']:,} reshards, "
            f"{body['killed_or_frozen']:,} invocations killed or frozen, "
            f"{body['pairs_met']:,} of {body['pairs']:,} pairs of kinds of faults met "
            f"(each in {body['pairs_met_least']:,} seeds or more), "
            f"{len(body['violations'])} violations"
        )


def campaign(
    seeds: Iterator[int] | None = None,
    *,
    minutes: float,
    jobs: int,
    first_seed: int = 1,
    options: Options | None = None,
    done: Callable[[RunResult, Totals], None],
) -> Totals:
    """
    Run seeds until the time is over; a seed that was begun is finished.

    Args:
        seeds: which; ``first_seed`` and upwards if left out.
        minutes: wall-clock bound.
        jobs: processes.
        first_seed: where to begin.
        options: of each run, apart from its seed.
        done: called after each run.

    """
    began_s = time.monotonic()
    wanted = count(first_seed) if seeds is None else seeds
    totals = Totals()
    each = options or Options(seed=0)
    with ProcessPoolExecutor(max_workers=jobs, initializer=_begin) as pool:
        running: set[Future[tuple[RunResult, float]]] = set()
        while True:
            while len(running) < jobs and time.monotonic() - began_s < minutes * 60:
                seed = next(wanted, None)
                if seed is None:
                    break
                running.add(pool.submit(_timed, replace(each, seed=seed)))
            if not running:
                return totals
            ended, running = wait(running, return_when=FIRST_COMPLETED)
            for future in ended:
                result, cpu_s = future.result()
                totals.add(result, cpu_s=cpu_s)
                totals.elapsed_s = time.monotonic() - began_s
                done(result, totals)


def _timed(options: Options) -> tuple[RunResult, float]:
    """
    Run a seed; return how long it took on its core as well, whoever else used it meanwhile.

    What a fleet was made of is left in circles. Kept for long, it slows all that follow down.
    """
    began_s = time.process_time()
    result = run_seed(options)
    gc.collect()
    return result, time.process_time() - began_s


def _begin() -> None:
    """
    Begin a process of the pool, which ends when its parent is killed: the pool would not.

    A run keeps much until its end: circles are looked for less often meanwhile.
    """
    gc.freeze()
    gc.set_threshold(_ALLOCATIONS_BETWEEN_LOOKS, 50, 100)
    parent = parent_process()

    def watch() -> None:
        if parent is not None:
            parent.join()
        os._exit(1)

    Thread(target=watch, daemon=True).start()
