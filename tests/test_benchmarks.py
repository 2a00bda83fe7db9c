"""`make bench`: every benchmark runs, each result is in the table, and a missed gate is named."""

import importlib.util
import itertools
import json
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

BENCHMARKS = Path(__file__).resolve().parent.parent / "benchmarks"
RESULTS = BENCHMARKS / "results"

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


side_by_side.ROUNDS, side_by_side.ROUND_S = 3, 0.01
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


side_by_side.ROUNDS, side_by_side.ROUND_S = 3, 0.01
side_by_side.main(__doc__, contests)
'''


@pytest.fixture
def folder(tmp_path):
    for name in ("run.py", "side_by_side.py", "quiet.py", "entry_points.py"):
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
    (folder / "bench_kept.py").unlink()
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


@pytest.mark.parametrize(("rounds", "left_out"), [(5, 0), (8, 0), (9, 1), (15, 3), (20, 5)])
def test_the_interval_of_a_ratio_is_the_sign_tests(monkeypatch, rounds, left_out):
    """As its tables have it: of 9 the 2nd and the 8th, of 15 the 4th and the 12th."""
    monkeypatch.syspath_prepend(BENCHMARKS)
    from side_by_side import interval  # noqa: PLC0415

    shuffled = [(7 * number) % rounds for number in range(rounds)]
    found = interval(shuffled if len(set(shuffled)) == rounds else range(rounds))
    assert found == (left_out, rounds - 1 - left_out)


def test_a_gate_is_judged_by_the_lower_end_of_the_interval(monkeypatch):
    monkeypatch.syspath_prepend(BENCHMARKS)
    import side_by_side  # noqa: PLC0415

    now = [0.0]

    def taking(*seconds):
        each = itertools.chain(seconds, itertools.repeat(seconds[-1]))

        def work():
            now[0] += next(each)

        return work

    def judged(*peer):
        contest = side_by_side.Contest(
            name="any", compares="any", peer_name="any", check=lambda *_: None, gate=1.5, goal=1.5,
            ours=taking(1.0), peer=taking(2.0, 2.0, *peer), clock=lambda: now[0],
        )  # fmt: skip
        return side_by_side.run_contest(contest, rounds=7)

    steady, shaken = judged(2.0), judged(2.0, 2.0, 1.2, 2.0)
    assert steady["ratio_between"] == [2.0, 2.0]
    assert steady["meets_gate"]
    assert (shaken["ratio"], shaken["ratio_between"]) == (2.0, [1.2, 2.0])
    assert not shaken["meets_gate"]
    assert shaken["meets_goal"]


def test_a_fleet_is_settled_once_each_shards_owner_has_handled_it(monkeypatch):
    monkeypatch.syspath_prepend(str(BENCHMARKS))
    from embedded_fleet import handled_by_their_owners  # noqa: PLC0415

    from shardfleet_local.rig.ledger import LedgerLine  # noqa: PLC0415

    owners = {"a": "one", "b": "two"}

    def line(shard_id, pid):
        return LedgerLine(0, pid, shard_id, ())

    alone = [line("a", 11), line("b", 11)]  # The first worker began with both.
    assert not handled_by_their_owners(owners, alone)
    assert handled_by_their_owners(owners, [*alone, line("b", 12)])
    assert not handled_by_their_owners(owners, [line("a", 11)])
    assert not handled_by_their_owners({"a": "one", "b": "one"}, [line("a", 11), line("b", 12)])
    assert handled_by_their_owners({"a": "one", "b": "one"}, alone)
    assert not handled_by_their_owners({"a": None, "b": "two"}, [line("a", 11), line("b", 12)])


# --- the figures in the pages

ROOT = BENCHMARKS.parent
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]
# What a sentence of a page may not say by itself: it would be of nobody knows which day.
MEASURED = (
    r"\d[\d.,]* ?(x|\u00d7|times) (as|less|more|quicker|slower|faster|Parquet)\b",
    r"\d[\d.,]* ?(µs|ms|s|seconds?) of (CPU|processor)",
    r"\b(half|third|quarters?|twice|tenths?|seconds?|millisecond) (of|the)[^.|]{0,40}\bCPU\b",
    r"costs?[^.|]{0,60}\b(half|third|quarters?|twice|as much)\b[^.|]{0,40}\b(boto3|Parquet|peer)",
    r"\bworth (some|about) \d",
    r"\d[\d.,]* ?µs\b",
)


@pytest.fixture(scope="module")
def entry_points():
    spec = importlib.util.spec_from_file_location("entry_points", BENCHMARKS / "entry_points.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def results():
    """Return the results as they are kept, by name."""
    return {file.stem: json.loads(file.read_text("utf-8")) for file in RESULTS.glob("*.json")}


def bare_figures(text, entry_points):
    """Yield what looks measured in a page and stands in no table that is made of results."""
    begin, end = re.escape(entry_points.BEGIN), re.escape(entry_points.END)
    text = re.sub(f"{begin}.*?{end}", "", text, flags=re.DOTALL)
    for pattern in MEASURED:
        yield from (found[0] for found in re.finditer(pattern, text))


def test_figures_in_pages_are_those_of_the_results(entry_points):
    """After a measurement: make bench, or benchmarks/run.py --table."""
    pages = {**entry_points.CONTESTS, **entry_points.FIGURES}
    for page in pages:
        text = (ROOT / page).read_text("utf-8")
        assert entry_points.page_with_figures(page, text, results()) == text, page
        changed = {
            name: {**found, "ratio": 99.9, "summary": "99.9 s (x)"}
            for name, found in results().items()
        }
        if page not in entry_points.FIGURES:
            assert "| 99.90 (" in entry_points.page_with_figures(page, text, changed)


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_no_page_has_a_figure_that_is_made_of_no_result(page, entry_points):
    assert list(bare_figures(page.read_text("utf-8"), entry_points)) == []


@pytest.mark.parametrize(
    "sentence",
    [
        "It is 1.72 x quicker than boto3.",
        "A call takes 3.2 µs, 2.5 x less.",
        "A page costs about a third of what a loop of boto3 costs.",
        "An hour of an idle shard costs about a second of CPU.",
        "A turn takes 40 ms of CPU.",
        "A row costs about twice the CPU of Parquet's.",
        "A batch costs about as much as Parquet's.",
        "It takes three quarters of the CPU time of a function with boto3.",
        "Files are worth some 4 %.",
    ],
)
def test_such_a_figure_is_found_unless_it_stands_in_a_table_of_results(sentence, entry_points):
    assert list(bare_figures(sentence, entry_points))
    table = f"{entry_points.BEGIN}\n{sentence}\n{entry_points.END}"
    assert not list(bare_figures(table, entry_points))
