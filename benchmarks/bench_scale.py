"""
How long until every shard of a large fleet is read again after a tenth of its workers is lost?

10,000 shards and 1,000 worker slots in the simulation, in virtual time: the manager, the workers,
their renewals and the slots are the production engine on memory tables, each call to a table takes
2 to 40 ms there and back, and nothing fails but what is lost on purpose. From nothing to full
ownership; then a quiet time, in which calls are counted; then the processes of a tenth of the slots
are killed at once (their state machines invoke them again); then the executions of a tenth are gone
(nobody invokes them again: the manager has to find out, by leases that are no longer renewed).

Simplified: no records flow, and an idle shard is read each minute instead of each second.

    python benchmarks/bench_scale.py [--shards 10000] [--slots 1000] [--plot-only]
"""

import argparse
import json
import os
import platform
import time
from collections.abc import Iterable
from dataclasses import asdict
from itertools import pairwise
from pathlib import Path
from typing import Any

from shardfleet_testkit.simulation.scale import Scale, ScaleResult, run_scale

RESULT = Path(__file__).parent / "results" / "scale.json"
PICTURE = Path(__file__).parent.parent / "docs" / "img" / "scale.svg"
DEFAULT = Scale()
GOAL_S = 60.0

COLOURS = {
    "from nothing": "#3b6fd4",
    "processes killed": "#2d9d78",
    "executions gone": "#e0803a",
}
WIDTH, HEIGHT, LEFT, TOP, BOTTOM, GAP = 960, 400, 70, 84, 340, 60
LEASE_WRITES = ("lease.apply",)
STATE_WRITES = ("state.write", "state.increment", "state.delete")
READS = ("lease.get", "lease.query", "lease.scan", "state.read", "state.list")


def body_of(scale: Scale, result: ScaleResult, elapsed_s: float) -> dict[str, Any]:
    rates = result.per_shard_hour

    def rate(names: Iterable[str]) -> float:
        return round(sum(rates.get(name, 0) for name in names), 2)

    return {
        "benchmark": "scale",
        "scale": asdict(scale),
        "quiet": {
            "lease_writes_per_shard_hour": rate(LEASE_WRITES),
            "state_writes_per_shard_hour": rate(STATE_WRITES),
            "table_reads_per_shard_hour": rate(READS),
            "leases_scanned_per_shard_hour": round(rates.get("lease.scan", 0) * scale.shards, 2),
            "owner_changes": result.quiet.owner_changes,
            "calls_per_shard_hour": rates,
        },
        "recoveries": [asdict(recovery) for recovery in result.recoveries],
        "violations": [str(violation) for violation in result.violations],
        "virtual_s": result.virtual_ms // 1000,
        "elapsed_s": round(elapsed_s),
        "machine": {
            "python": platform.python_version(),
            "cpus": os.cpu_count(),
            "load_average": [round(load, 2) for load in os.getloadavg()],
        },
    }


def picture(body: dict[str, Any]) -> str:
    """Draw how many leases wait for a living owner, as a part of those lost, over time."""
    starts, losses = body["recoveries"][:1], body["recoveries"][1:]
    half = (WIDTH - 2 * LEFT - GAP) / 2
    shards, slots = body["scale"]["shards"], body["scale"]["slots"]
    quiet = body["quiet"]
    parts = [
        (
            f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}" '
            'font-family="system-ui, sans-serif" font-size="13" fill="#333">'
        ),
        f'<rect width="{WIDTH}" height="{HEIGHT}" fill="#fff"/>',
        _text(
            LEFT,
            26,
            f"{shards:,} shards, {slots:,} worker slots: leases that no living worker"
            " has renewed yet",
            size=17,
        ),
        *_panel("the fleet is started", starts, LEFT, half),
        *_panel("a tenth of the slots is lost at once", losses, LEFT + half + GAP, half),
        _text(
            LEFT,
            HEIGHT - 12,
            f"Quiet fleet, per shard and hour: {quiet['lease_writes_per_shard_hour']:,.0f} lease "
            f"writes, {quiet['state_writes_per_shard_hour']:,.0f} writes of fleet state, "
            f"{quiet['table_reads_per_shard_hour']:,.0f} reads; "
            f"{quiet['owner_changes']} leases changed hands.",
        ),
        "</svg>",
    ]
    return "\n".join(parts) + "\n"


def _panel(title: str, curves: list[dict[str, Any]], left: float, width: float) -> list[str]:
    longest_s = max(float(curve["curve"][-1][0]) for curve in curves)
    end_s = next(s for s in (5, 10, 20, 30, 60, 120, 300, 600, 1_200, 2_400) if s >= longest_s)
    most = max(float(curve["leases_lost"]) for curve in curves)

    def x(at_s: float) -> float:
        return left + at_s / end_s * width

    def y(leases: float) -> float:
        return BOTTOM - leases / most * (BOTTOM - TOP - 20)

    parts = [_text(left, TOP - 28, title)]
    for step in range(5):
        leases, at_s = most * step / 4, end_s * step / 4
        parts += [
            (
                f'<line x1="{left}" x2="{left + width}" y1="{y(leases):.1f}" y2="{y(leases):.1f}" '
                'stroke="#ddd"/>'
            ),
            _text(left - 6, y(leases) + 4, f"{leases:,.0f}", anchor="end"),
            _text(x(at_s), BOTTOM + 18, f"{at_s:g} s", anchor="middle"),
        ]
    for row, curve in enumerate(curves):
        colour = COLOURS[curve["name"]]
        steps = [f"M{x(0):.1f},{y(curve['curve'][0][1]):.1f}"]
        for (_, before), (at_s, after) in pairwise(curve["curve"]):
            steps.append(f"L{x(at_s):.1f},{y(before):.1f}L{x(at_s):.1f},{y(after):.1f}")
        parts.append(
            f'<path d="{"".join(steps)}" fill="none" stroke="{colour}" stroke-width="2.5"/>'
        )
        label = f"{curve['name']}: all within {curve['full_s']:g} s"
        parts.append(_text(left + width, TOP - 10 + 18 * row, label, anchor="end", fill=colour))
    return parts


def _text(
    x: float, y: float, text: str, *, anchor: str = "start", size: int = 13, fill: str = "#333"
) -> str:
    return (
        f'<text x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}" font-size="{size}" '
        f'fill="{fill}">{text}</text>'
    )


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[1])
    parser.add_argument("--shards", type=int, default=DEFAULT.shards)
    parser.add_argument("--slots", type=int, default=DEFAULT.slots)
    parser.add_argument("--output", type=Path, default=RESULT)
    parser.add_argument("--picture", type=Path, default=PICTURE)
    parser.add_argument("--plot-only", action="store_true", help="draw the last result again")
    options = parser.parse_args()
    if not options.plot_only:
        scale = Scale(shards=options.shards, slots=options.slots)
        began_s = time.monotonic()
        result = run_scale(scale, lambda line: print(line, flush=True))
        body = body_of(scale, result, time.monotonic() - began_s)
        options.output.write_text(json.dumps(body, indent=1) + "\n", encoding="utf-8")
    body = json.loads(options.output.read_text("utf-8"))
    slowest_s = [recovery["full_s"] for recovery in body["recoveries"]]
    if body["violations"] or None in slowest_s:
        print(f"not well: {body['violations']}, recoveries of {slowest_s} s")
        return 1
    options.picture.parent.mkdir(parents=True, exist_ok=True)
    options.picture.write_text(picture(body), encoding="utf-8")
    for recovery in body["recoveries"]:
        print(
            f"{recovery['name']}: {recovery['leases_lost']:,} leases, half within "
            f"{recovery['half_s']:g} s, all within {recovery['full_s']:g} s; {recovery['moved']} "
            f"changed hands, {recovery['moved_in_vain']} of them in vain"
        )
    print({name: value for name, value in body["quiet"].items() if name != "calls_per_shard_hour"})
    is_met = max(slowest_s) < GOAL_S
    print(f"bound: full ownership within {GOAL_S:.0f} s: {'met' if is_met else 'MISSED'}")
    return 0 if is_met else 1


if __name__ == "__main__":
    raise SystemExit(main())
