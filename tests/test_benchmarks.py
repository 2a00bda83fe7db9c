"""`make bench`: every benchmark runs, each result is in the table, and a missed gate is named."""

import json
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

BENCHMARKS = Path(__file__).resolve().parent.parent / "benchmarks"

KEPT = '''
"""Is a sum quicker than a loop?"""
import side_by_side
from side_by_side import Contest, Figures, Skipped


def loop():
    found = 0
    for number in range(20_000):
        found += number
    return found


def same(ours, theirs):
    assert ours == theirs


def contests():
    yield Contest(
        name="sum", compares="20,000 numbers", peer_name="a loop", check=same, gate=1.1, goal=900.0,
        ours=lambda: sum(range(20_000)), peer=loop, time_goes_to="the numbers",
    )
    yield Skipped(name="abacus", reason="there is no abacus here")
    yield Figures(name="size", compares="numbers", summary="20,000", gate="many", met=True)


side_by_side.main(__doc__, contests)
'''
MISSED = '''
"""Is a loop a thousand times quicker than itself?"""
import side_by_side
from side_by_side import Contest, Figures


def work():
    return sum(range(20_000))


def same(ours, theirs):
    assert ours == theirs


def contests():
    yield Contest(
        name="itself", compares="numbers", peer_name="itself", check=same, gate=1000.0,
        ours=work, peer=work,
    )
    yield Figures(name="size_of_it", compares="numbers", summary="few", gate="many", met=False)


side_by_side.main(__doc__, contests)
'''


@pytest.fixture
def folder(tmp_path):
    for name in ("run.py", "side_by_side.py", "quiet.py"):
        shutil.copy(BENCHMARKS / name, tmp_path)
    (tmp_path / "results").mkdir()
    (tmp_path / "bench_kept.py").write_text(KEPT, "utf-8")
    return tmp_path


def run(folder, *words):
    command = [sys.executable, str(folder / "run.py"), *words]
    return subprocess.run(command, capture_output=True, text=True, check=False)


def test_results_are_written_with_machine_commit_and_what_the_time_goes_to(folder):
    done = run(folder)
    assert done.returncode == 0, done.stderr
    table = (folder / "RESULTS.md").read_text("utf-8")
    for part in ("`sum`", "1.1x", "900.0x (missed)", "the numbers", "no abacus here", "20,000"):
        assert part in table, table
    assert (folder / "ratios.svg").read_text("utf-8").startswith("<svg")
    result = json.loads((folder / "results" / "sum.json").read_text("utf-8"))
    assert {"commit", "date", "machine", "ours", "peer_timing"} <= result.keys()
    assert result["machine"]["cores"]


def test_a_missed_gate_is_named_and_makes_the_run_fail_after_the_rest_has_run(folder):
    (folder / "bench_a_missed.py").write_text(MISSED, "utf-8")
    (folder / "bench_broken.py").write_text("raise ValueError('broken')", "utf-8")
    done = run(folder)
    assert done.returncode == 1
    assert "bench_a_missed.py (itself, size_of_it)" in done.stderr
    assert "bench_broken.py (it broke)" in done.stderr
    assert "1000.0x (missed)" in (folder / "RESULTS.md").read_text("utf-8")
    assert (folder / "results" / "sum.json").exists()


def test_the_slow_ones_run_only_when_asked_for(folder):
    (folder / "bench_spark_any.py").write_text("print('SPARK RUNS')", "utf-8")
    assert "SPARK RUNS" not in run(folder).stdout
    assert "SPARK RUNS" in run(folder, "--all").stdout


def test_every_benchmark_fits_the_code_that_it_measures():
    """It breaks at its imports when a planner is renamed; Spark's need a Java to run at all."""
    files = sorted(BENCHMARKS.glob("bench_*.py"))
    names = [file.stem for file in files if not file.stem.startswith("bench_spark")]
    assert len(names) > 10
    program = f"import {', '.join(names)}"
    done = subprocess.run(
        [sys.executable, "-c", program], cwd=BENCHMARKS, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
