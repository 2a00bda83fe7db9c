"""
The long run: ``python -m tests.random_mutants.run --number 300 --seed 1 2 3 --output FILE``.

One process collects the tests, has each run once to learn which lines it reaches, and stays. Each
change (:mod:`tests.random_mutants.changes`) gets a fork of it: there the changed function takes the
place of the sound one, the tests that reach its first line run, the quickest first, until one
fails; then simulated fleets, until a checker complains. A seed that complains without the change,
too, does not count. A change whose end has to be forced is noticed: a loop without end is one.

What the output has already is kept: what was killed, while the sources are the same, and what
survived, while the tests are too. EQUIVALENT names the changes that make no difference, each with
the argument; they are run like the others.
"""

from __future__ import annotations

import argparse
import ast
import difflib
import gc
import hashlib
import json
import multiprocessing
import os
import random
import re
import resource
import signal
import sys
import time
import tomllib
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from multiprocessing.connection import Connection, wait
from pathlib import Path
from types import CodeType, FunctionType, ModuleType
from typing import Any

import coverage
import pytest

from shardfleet_testkit.simulation import Options, run_seed
from tests.random_mutants.changes import Change, changes_of

ROOT = Path(__file__).parents[2]
ROOMS = (
    *(f"layer/python/shardfleet/{room}" for room in ("domain", "engine", "kpl", "producer")),
    *(
        f"tools/shardfleet_ops/{room}"
        for room in ("explain", "migrate", "operate", "positions", "template")
    ),
)
TESTS = ("tests/domain", "tests/engine", "tests/kpl", "tests/cli", "tests/runtime")
EQUIVALENT = Path(__file__).with_name("equivalent.toml")
# How much longer than without the change a test may take, and how long anything may wait.
_SLOWER, _WALL_S = 20, 600
_MEMORY_BYTES = 4 * 1024**3
_FORK = multiprocessing.get_context("fork")


def main(arguments: Sequence[str] | None = None) -> int:
    """Run a sample; 1 if a change survived without an argument why it makes no difference."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--number", type=int, default=300, help="changes drawn by each seed")
    parser.add_argument(
        "--seed", type=int, nargs="+", default=[1], help="of the draws, which are pooled"
    )
    parser.add_argument("--seeds", type=int, default=100, help="most simulated fleets per change")
    parser.add_argument("--jobs", type=int, default=2, help="changes at a time")
    parser.add_argument("--only", default="", help="parts of ids or files, by commas; no draw")
    parser.add_argument(
        "--cpu-s", type=int, default=30, help="of a test or a fleet, before its end"
    )
    parser.add_argument("--root", type=Path, default=ROOT, help="of the sources and the tests")
    parser.add_argument("--rooms", nargs="+", default=ROOMS, help="folders of what is changed")
    parser.add_argument("--tests", nargs="+", default=TESTS, help="folders of who is to notice")
    parser.add_argument("--output", type=Path, required=True, help="result file, JSON")
    given = parser.parse_args(arguments)
    sources = sources_of(given.root, given.rooms)
    every = [change for file, text in sources.items() for change in changes_of(file, text)]
    drawn = drawn_of(every, given)
    if given.only:
        texts = given.only.split(",")
        drawn = [c for c in every if any(text in c.id or text in c.file for text in texts)]
    results = Results(given.output, drawn, sources, tests_of(given.root, given.seeds))
    campaign = Campaign(results, given)
    # What starts processes of its own would not have the change.
    options = ["-q", "-s", "-p", "no:xdist", "-p", "no:cacheprovider", "-m", "not processes"]
    options.append(f"--rootdir={given.root}")
    folders = [str(given.root / folder) for folder in given.tests]
    code = int(pytest.main([*options, *folders], plugins=[campaign]))
    body = results.write(of=len(every), seed=given.seed, seeds=given.seeds)
    alive = [row["id"] for row in body["survivors"]]
    sys.stdout.write(
        f"{body['killed']} of {body['generated'] - body['equivalent']} noticed "
        f"({body['share']:.1%}), {body['equivalent']} make no difference, "
        f"{len(alive)} survived: {', '.join(alive) or 'none'}\n"
    )
    return code or int(bool(alive))


def drawn_of(every: Sequence[Change], given: argparse.Namespace) -> list[Change]:
    """
    Return what these seeds draw.

    What they drew before, by the output, is followed for as long as it exists: survivors become
    tests, and other sources would have others drawn.
    """
    draws = [random.Random(seed).sample(every, len(every))[: given.number] for seed in given.seed]
    drawn = list(dict.fromkeys(change for draw in draws for change in draw))
    old = json.loads(given.output.read_text("utf-8")) if given.output.exists() else {}
    if old.get("seed") == given.seed:
        by_id = {change.id: change for change in every}
        followed = [by_id[row["id"]] for row in old["changes"] if row["id"] in by_id]
        drawn = list(dict.fromkeys([*followed, *drawn]))[: max(len(drawn), len(followed))]
    return drawn


def sources_of(root: Path, rooms: Sequence[str]) -> dict[str, bytes]:
    """Return the sources that are changed, by their paths; what protoc wrote is not."""
    paths = sorted(path for room in rooms for path in (root / room).rglob("*.py"))
    written = [path for path in paths if not path.name.endswith("_pb2.py")]
    return {path.relative_to(root).as_posix(): path.read_bytes() for path in written}


def tests_of(root: Path, seeds: int) -> list[bytes]:
    """Return all that may notice a change."""
    return [*(path.read_bytes() for path in sorted((root / "tests").rglob("*.py"))), b"%d" % seeds]


def equivalents() -> dict[str, str]:
    """Return why a change makes no difference, by its id."""
    return dict(tomllib.loads(EQUIVALENT.read_text("utf-8")))


class Results:
    """The result file, and what of it still holds."""

    def __init__(
        self,
        path: Path,
        drawn: Sequence[Change],
        sources: Mapping[str, bytes],
        tests: Iterable[bytes],
    ) -> None:
        """Read what an earlier run found."""
        self._path, self._drawn, self.sources = path, drawn, sources
        self._rows: dict[str, dict[str, Any]] = {}
        self._digests = {"sources": _digest(sources.values()), "tests": _digest(tests)}
        old = json.loads(path.read_text("utf-8")) if path.exists() else {}
        if old.get("sources") == self._digests["sources"]:
            are_same = old["tests"] == self._digests["tests"]
            self._rows = {row["id"]: row for row in old["changes"] if row["by"] or are_same}

    def left(self) -> list[Change]:
        """Return the changes that nobody has tried."""
        return [change for change in self._drawn if change.id not in self._rows]

    def note(self, change: Change, verdict: Mapping[str, Any]) -> None:
        """Keep what came of a change, on the disk too."""
        source = self.sources[change.file]
        old, new = source.decode().splitlines(), change.applied(source).decode().splitlines()
        named = {name: getattr(change, name) for name in ("id", "kind", "file", "line", "function")}
        diff = [*difflib.unified_diff(old, new, lineterm="", n=1)][2:]
        self._rows[change.id] = {**named, **verdict, "diff": diff}
        self.write()

    def write(self, **more: Any) -> dict[str, Any]:
        """Write the file; return what is in it."""
        why_not = equivalents()
        rows = [self._rows[change.id] for change in self._drawn if change.id in self._rows]
        alive = [row for row in rows if not row["by"]]
        killed = Counter(row["noticed_by"] for row in rows if row["by"])
        equivalent = [
            {**row, "why_not": why_not[row["id"]]} for row in alive if row["id"] in why_not
        ]
        body = {
            **self._digests,
            **more,
            "generated": len(rows),
            "killed": killed.total(),
            "killed_by": dict(killed),
            "equivalent": len(equivalent),
            "share": round(killed.total() / max(1, len(rows) - len(equivalent)), 4),
            "survivors": [row for row in alive if row["id"] not in why_not],
            "no_difference": equivalent,
            "changes": rows,
        }
        new = self._path.with_suffix(".new")
        new.write_text(json.dumps(body, indent=1) + "\n", "utf-8")
        new.replace(self._path)
        return body


class Campaign:
    """The plugin that does this in the place of pytest's own loop."""

    def __init__(self, results: Results, given: argparse.Namespace) -> None:
        """Wait for pytest to collect."""
        self._results, self._given, self._root = results, given, given.root
        self._has_failed = False

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Note a failure."""
        self._has_failed |= report.failed

    def pytest_runtestloop(self, session: pytest.Session) -> bool:
        """Try every change that is left."""
        left = self._results.left()
        if session.testsfailed or not left:
            return True
        functions = functions_by_place()
        gc.collect()
        gc.freeze()
        took_s, reached = self._learnt(session.items)
        items = {item.nodeid: item for item in session.items}
        if failing := sorted(items.keys() - took_s.keys()):
            message = f"these fail without a change: {', '.join(failing)}"
            sys.stdout.write(f"{message}\n")  # pytest says nothing of it.
            raise session.Failed(message)
        under_way: dict[int, tuple[Change, Connection, Any]] = {}
        while left or under_way:
            while left and len(under_way) < self._given.jobs:
                change = left.pop(0)
                places = places_of(change, self._results.sources)
                names = {name for place in places for name in reached.get(place, ())}
                tests = [(items[name], took_s[name]) for name in sorted(names, key=took_s.get)]
                answers, process = self._fork(partial(self._try, change, functions, tests))
                under_way[process.sentinel] = change, answers, process
            for sentinel in wait([*under_way]):
                change, answers, process = under_way.pop(sentinel)
                process.join()
                try:
                    verdict = answers.recv()
                except EOFError:
                    assert process.exitcode < 0, f"{change.id}: the tool failed"
                    ended = f"its end was forced ({process.exitcode})"
                    verdict = {"noticed_by": "limit", "by": ended}
                self._results.note(change, verdict)
                text = f"{change.id} {change.kind:<20} {change.file}:{change.line}"
                sys.stdout.write(f"{text} {verdict['by'] or 'SURVIVED'}\n")
                sys.stdout.flush()
        return True

    def _learnt(
        self, items: Sequence[pytest.Item]
    ) -> tuple[dict[str, float], dict[Any, list[str]]]:
        """Run every test as things are, as many files at a time as changes later."""
        files: dict[Path, list[pytest.Item]] = defaultdict(list)
        for item in items:
            files[item.path].append(item)
        took_s, reached = dict[str, float](), defaultdict[Any, list[str]](list)
        shares: list[list[pytest.Item]] = [[] for _ in range(self._given.jobs)]
        for file in sorted(files.values(), key=len, reverse=True):
            min(shares, key=len).extend(file)
        answers = [self._fork(partial(self._sound, share))[0] for share in shares if share]
        for took_these_s, reached_by_these in [answer.recv() for answer in answers]:
            took_s |= took_these_s
            for line, names in reached_by_these.items():
                reached[line] += names
        return took_s, reached

    def _fork(self, work: Callable[[], object]) -> tuple[Connection, Any]:
        here, there = _FORK.Pipe(duplex=False)

        def answer() -> None:
            silence = os.open(os.devnull, os.O_WRONLY)
            os.dup2(silence, 1)
            os.dup2(silence, 2)
            there.send(work())

        process = _FORK.Process(target=answer, daemon=True)
        process.start()
        there.close()
        return here, process

    def _sound(self, items: Sequence[pytest.Item]) -> tuple[dict[str, float], dict[Any, list[str]]]:
        """
        Run every test as things are.

        Returns:
            the seconds of each that passes, and which of them reach a line of a file.

        """
        recorder = coverage.Coverage(data_file=None, config_file=False, include=[f"{self._root}/*"])
        took_s: dict[str, float] = {}
        recorder.start()
        for item, following in zip(items, [*items[1:], None], strict=True):
            recorder.switch_context(item.nodeid)
            began_s = time.process_time()
            if self._passes(item, following):
                took_s[item.nodeid] = time.process_time() - began_s
        recorder.stop()
        reached = defaultdict(list)
        data = recorder.get_data()
        for file in data.measured_files():
            for line, names in data.contexts_by_lineno(file).items():
                reached[Path(file).relative_to(self._root).as_posix(), line] = [
                    name for name in names if name in took_s
                ]
        return took_s, dict(reached)

    def _try(
        self,
        change: Change,
        functions: Mapping[tuple[str, str, int], Sequence[FunctionType]],
        tests: Sequence[tuple[pytest.Item, float]],
    ) -> dict[str, object]:
        """Return who notices a change."""
        source = self._results.sources[change.file]
        infect = switch(str(self._root / change.file), change, source, functions)
        infect(change.applied(source))
        resource.setrlimit(resource.RLIMIT_DATA, (_MEMORY_BYTES, _MEMORY_BYTES))
        counted = {"tests": len(tests)}
        followers = [*(item for item, _ in tests[1:]), None]
        for (item, took_s), following in zip(tests, followers, strict=False):
            _allow(self._given.cpu_s + _SLOWER * took_s)
            if not self._passes(item, following):
                return {**counted, "noticed_by": "test", "by": item.nodeid}
        for seed in range(1, self._given.seeds + 1):
            _allow(self._given.cpu_s)
            if found := complaint(seed):
                infect(source)
                if not complaint(seed):
                    return {**counted, "noticed_by": "seed", "by": f"seed {seed}: {found}"}
                infect(change.applied(source))
        return {**counted, "noticed_by": "", "by": ""}

    def _passes(self, item: pytest.Item, following: pytest.Item | None) -> bool:
        self._has_failed = False
        item.ihook.pytest_runtest_protocol(item=item, nextitem=following)
        return not self._has_failed


def places_of(change: Change, sources: Mapping[str, bytes]) -> list[tuple[str, int]]:
    """Return the lines that a test must reach to notice: of a named number, those that name it."""
    if change.function:
        return [(change.file, change.line)]
    name = re.compile(rf"\b{_assignment(change, sources[change.file].decode())[0]}\b")
    return [
        (file, line)
        for file, text in sources.items()
        for line, words in enumerate(text.decode().splitlines(), 1)
        if name.search(words)
    ]


def functions_by_place() -> dict[tuple[str, str, int], list[FunctionType]]:
    """Return all functions of this process by file, qualified name and first line."""
    functions = defaultdict(list)
    gc.unfreeze()  # What tests/conftest.py has collected is not among the objects before.
    for each in gc.get_objects():
        if isinstance(each, FunctionType):
            functions[_place(each.__code__)].append(each)
    return functions


def switch(
    path: str,
    change: Change,
    source: bytes,
    functions: Mapping[tuple[str, str, int], Sequence[FunctionType]],
) -> Callable[[bytes], None]:
    """
    Return what makes this process run another text of a file, where that differs by a change.

    What was made when the file was imported stays: a parameter's default, a table.
    """

    def run_text(text: bytes) -> None:
        if not change.function:
            return name_number(text)
        for code in _codes(compile(text, path, "exec")):
            for function in functions.get(_place(code), ()):
                function.__code__ = code
        return None

    def name_number(text: bytes) -> None:
        name, number = _assignment(change, text.decode())
        value = ast.literal_eval(number)
        for names in importers:
            names[name] = value

    loaded = [
        vars(module) for module in list(sys.modules.values()) if isinstance(module, ModuleType)
    ]
    name, _ = _assignment(change, source.decode())
    own = next((names for names in loaded if names.get("__file__") == path), {})
    importers = [names for names in loaded if name in own and names.get(name) is own[name]]
    return run_text


def _assignment(change: Change, text: str) -> tuple[str, str]:
    name, _, number = text.splitlines()[change.line - 1].partition(" = ")
    return name, number.partition("#")[0].strip()


def _codes(code: CodeType) -> list[CodeType]:
    """Return the code of a module's functions and methods, not of what is inside them."""
    inside = [const for const in code.co_consts if isinstance(const, CodeType)]
    classes = [each for each in inside if "__qualname__" in each.co_names]
    return [*inside, *(deeper for each in classes for deeper in _codes(each))]


def _place(code: CodeType) -> tuple[str, str, int]:
    return code.co_filename, code.co_qualname, code.co_firstlineno


def _allow(cpu_s: float) -> None:
    """Let this process end itself after that much more processor time, or far too long a wait."""
    most_s = int(time.process_time() + cpu_s) + 1
    resource.setrlimit(resource.RLIMIT_CPU, (most_s, resource.RLIM_INFINITY))
    signal.setitimer(signal.ITIMER_REAL, _WALL_S)


def complaint(seed: int) -> str:
    """Return what a checker says of a simulated fleet, "" if none does."""
    try:
        violations = run_seed(Options(seed=seed, is_small=True)).violations
    except Exception as error:  # noqa: BLE001 - A change may raise anything.
        return f"raised {type(error).__name__}"
    return violations[0].checker if violations else ""


def _digest(texts: Iterable[bytes]) -> str:
    digest = hashlib.sha256()
    for text in texts:
        digest.update(hashlib.sha256(text).digest())
    return digest.hexdigest()[:12]


if __name__ == "__main__":
    sys.exit(main())
