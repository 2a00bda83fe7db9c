"""
Runs every benchmark, one after the other, and writes RESULTS.md with its plot.

Each `bench_*.py` runs in a process of its own. The table is made from the files in `results/`, so
`--table` alone writes it anew without measuring. A missed gate makes the exit code 1, after all
benchmarks have run, and is named. Run it on a quiet machine: all but the slow ones (Spark, whole
fleets) take about half an hour; `--all` runs those, too.

    python benchmarks/run.py [--all] [--table] [bench_decode.py ...]
"""

from __future__ import annotations

import argparse
import json
import math
import re
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

from entry_points import CONTESTS, page_with_figures
from side_by_side import misses_gate

HERE = Path(__file__).parent
RESULTS = HERE / "results"
TABLE = HERE / "RESULTS.md"
PLOT = HERE / "ratios.svg"
# Minutes each: left out unless they are named or asked for.
SLOW = re.compile(r"bench_(spark_.*|scale|balance|handover|latency|time_lines|sleep)\.py")
LEGEND = """Ratio: the peer's time through ours, medians of all rounds.
Behind it, where it was told: between what it lies by the ratios of the rounds (sign test, 95 %).
A gate has to be reached by the lower end.
Spread: slowest less quickest round, as a share of the median.
Of bound: how near ours is to work that nobody can leave out.

"""
COLUMNS = (
    *("name", "what", "peer", "ratio", "ours ms (spread)", "peer ms (spread)"),
    *("of bound", "gate", "goal"),
)
BAR_PX, ROW_PX, LABEL_PX = 520, 26, 200


def run_all(files: list[Path]) -> list[str]:
    """Run benchmark files; return the names of those that failed, with how."""
    failed = []
    for file in files:
        print(f"== {file.name}", flush=True)
        began_s, before = time.monotonic(), stamps()
        broke = subprocess.run([sys.executable, str(file)], check=False).returncode != 0
        print(f"   {time.monotonic() - began_s:.0f} s", flush=True)
        written = [name for name, stamp in stamps().items() if before.get(name) != stamp]
        missed = [each["name"] for each in load_results() if misses_gate(each)]
        below = [name for name in missed if name in written]
        if broke:
            failed.append(f"{file.name} ({', '.join(below) or 'it broke'})")
    return failed


def stamps() -> dict[str, int]:
    """Return when each result was written."""
    return {file.stem: file.stat().st_mtime_ns for file in RESULTS.glob("*.json")}


def load_results() -> list[dict[str, Any]]:
    """Return the results that belong into the table, by name."""
    found = [
        json.loads(file.read_text(encoding="utf-8")) for file in sorted(RESULTS.glob("*.json"))
    ]
    return [each for each in found if each.get("kind") in ("contest", "figures", "skipped")]


def table(results: list[dict[str, Any]]) -> str:
    """Return RESULTS.md."""
    contests = [each for each in results if each["kind"] == "contest"]
    figures = [each for each in results if each["kind"] == "figures"]
    skipped = [each for each in results if each["kind"] == "skipped"]
    parts = [
        "# Results\n",
        "Written by `make bench` from the files in `results/`; see README.md for what is asked.\n",
        *_machines(results),
        "\n![ratios to the peers](ratios.svg)\n",
        "\n## Side by side\n\n",
        LEGEND,
        f"| {' | '.join(COLUMNS)} |\n",
        f"|{'---|' * len(COLUMNS)}\n",
        *map(_contest_row, contests),
    ]
    if figures:
        parts += [
            "\n## Figures\n\n",
            "| name | what | found | gate | goal |\n",
            "|---|---|---|---|---|\n",
        ]
        parts += map(_figures_row, figures)
    lines = [each["details"]["time_line"] for each in figures if "time_line" in each["details"]]
    if lines:
        parts += [
            "\n## Time lines\n\n",
            "Seconds, on the embedded AWS; beside them what KCL's documentation and code say.\n",
            "\n",
            "| what | median | maximum | repetitions | allowed | KCL | measured |\n",
            "|---|---|---|---|---|---|---|\n",
        ]
        parts += map(_time_line_row, lines)
    if skipped:
        parts.append("\n## Skipped\n\n")
        parts += [f"* `{each['name']}`: {each['reason']}.\n" for each in skipped]
    notes = [each for each in (*contests, *figures) if each["time_goes_to"] and _needs_words(each)]
    if notes:
        parts.append("\n## Where the time goes\n\n")
        parts += [f"* `{each['name']}`: {each['time_goes_to']}\n" for each in notes]
    return "".join(parts)


def _needs_words(result: dict[str, Any]) -> bool:
    return result["kind"] == "figures" or not result["meets_goal"]


def _machines(results: list[dict[str, Any]]) -> list[str]:
    """Return a line per machine, commit and day that the results are from."""
    seen: dict[str, list[str]] = {}
    for each in results:
        facts = each["machine"]
        packages = ", ".join(
            f"{name} {facts[name]}"
            for name in ("botocore", "msgspec", "pybase64", "protobuf", "pyarrow")
            if name in facts
        )
        where = (
            f"{each['date'][:10]}, {facts['cores']} cores, {facts['processor']}, "
            f"{facts['system']}, Python {facts['python']}, {packages}"
        )
        seen.setdefault(where, []).append(each["commit"])
    return [
        f"\nMeasured on {where}; commit {', '.join(sorted(set(commits)))}.\n"
        for where, commits in seen.items()
    ]


def _contest_row(result: dict[str, Any]) -> str:
    ours, peer = result["ours"], result["peer_timing"]
    mark = "" if result["meets_gate"] else " (missed)"
    if not result.get("quiet", True):
        mark = " (not judged: the machine was busy)"
    goal = "-" if result["goal"] is None else f"{result['goal']}x"
    if result["goal"] is not None and not result["meets_goal"]:
        goal += " (missed)"
    gate = "-" if result["gate"] is None else f"{result['gate']}x{mark}"
    share = f"{result['bound_share']:.0%}" if "bound_share" in result else "-"
    cells = [
        f"`{result['name']}`",
        result["compares"] + (", wall time" if result["clock"] == "wall" else ""),
        result["peer"],
        f"**{result['ratio']}x**" + _between(result),
        f"{ours['median_ms']:.2f} ({ours['spread']:.0%})",
        f"{peer['median_ms']:.2f} ({peer['spread']:.0%})",
        *(share, gate, goal),
    ]
    return f"| {' | '.join(cells)} |\n"


def _between(result: dict[str, Any]) -> str:
    low, high = result.get("ratio_between", (None, None))
    return "" if low is None else f" ({low} to {high})"


def _figures_row(result: dict[str, Any]) -> str:
    mark = " (missed)" if result["met"] is False else ""
    gate = result["gate"] + mark if result["gate"] else "-"
    cells = [
        f"`{result['name']}`",
        result["compares"],
        result["summary"],
        gate,
        result["goal"] or "-",
    ]
    return f"| {' | '.join(cells)} |\n"


def _time_line_row(line: dict[str, Any]) -> str:
    mark = "" if line["met"] else " (missed)"
    cells = [
        line["name"],
        f"{line['median_s']}",
        f"{line['max_s']}",
        f"{line['repetitions']}",
        f"{line['allowed_s']:g}{mark}",
        line["kcl"],
        line["remark"],
    ]
    return f"| {' | '.join(cells)} |\n"


def plot(results: list[dict[str, Any]]) -> str:
    """Return an SVG: a bar per contest on a logarithmic axis, gate and goal as ticks."""
    contests = [each for each in results if each["kind"] == "contest"]
    most = max((max(each["ratio"], each["goal"] or 0) for each in contests), default=1)
    scale = BAR_PX / math.log2(max(2.0, most * 1.15))

    def across(ratio: float) -> float:
        return LABEL_PX + max(0.0, math.log2(max(ratio, 1.0)) * scale)

    height = ROW_PX * len(contests) + 60
    size = f'width="{LABEL_PX + BAR_PX + 80}" height="{height}"'
    lines = [
        f'<svg xmlns="http://www.w3.org/2000/svg" {size} font-family="sans-serif" font-size="12">',
        "<style>text{fill:#333}@media(prefers-color-scheme:dark){text{fill:#ddd}}</style>",
    ]
    for power in range(int(math.log2(max(2.0, most * 1.15))) + 1):
        x = across(2**power)
        lines.append(f'<line x1="{x}" y1="20" x2="{x}" y2="{height - 30}" stroke="#8888"/>')
        lines.append(f'<text x="{x}" y="14" text-anchor="middle">{2**power}x</text>')
    for row, each in enumerate(contests):
        y = 28 + row * ROW_PX
        colour = "#d1495b" if misses_gate(each) else "#2a9d8f"
        width = across(each["ratio"]) - LABEL_PX
        lines.append(
            f'<text x="{LABEL_PX - 8}" y="{y + 13}" text-anchor="end">{each["name"]}</text>'
        )
        lines.append(
            f'<rect x="{LABEL_PX}" y="{y}" width="{width:.1f}" height="16" fill="{colour}"/>'
        )
        lines.append(f'<text x="{LABEL_PX + width + 6:.1f}" y="{y + 13}">{each["ratio"]}x</text>')
        for limit, dash in ((each["gate"], ""), (each["goal"], ' stroke-dasharray="3 2"')):
            if limit is not None:
                x = across(limit)
                lines.append(
                    f'<line x1="{x:.1f}" y1="{y - 2}" x2="{x:.1f}" y2="{y + 18}" '
                    f'stroke="#e76f51" stroke-width="2"{dash}/>'
                )
    lines.append(
        f'<text x="{LABEL_PX}" y="{height - 8}">'
        "times quicker than the peer; line: gate, dashes: goal</text></svg>"
    )
    return "\n".join(lines) + "\n"


def main() -> None:
    """Run what is asked for, then write the table and the plot."""
    parser = argparse.ArgumentParser(description=str(__doc__).strip().split("\n\n", maxsplit=1)[0])
    parser.add_argument("--all", action="store_true", help="the slow ones, too")
    parser.add_argument("--table", action="store_true", help="only write the table anew")
    parser.add_argument("files", nargs="*", help="bench_*.py; all if none is named")
    options = parser.parse_args()
    names = options.files or sorted(
        file.name for file in HERE.glob("bench_*.py") if options.all or not SLOW.match(file.name)
    )
    failed = [] if options.table else run_all([HERE / Path(name).name for name in names])
    results = load_results()
    TABLE.write_text(table(results), encoding="utf-8")
    PLOT.write_text(plot(results), encoding="utf-8")
    by_name = {each["name"]: each for each in results}
    for page in CONTESTS if (HERE.parent / "docs").is_dir() else ():
        path = HERE.parent / page
        made = page_with_figures(page, path.read_text(encoding="utf-8"), by_name)
        path.write_text(made, encoding="utf-8")
    print(f"{TABLE.name}: {len(results)} results")
    if failed:
        raise SystemExit(f"failed or below a gate: {'; '.join(failed)}")


if __name__ == "__main__":
    main()
