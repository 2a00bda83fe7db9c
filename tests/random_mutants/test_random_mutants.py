"""The tool that draws small changes by chance: what it changes, who notices, what it keeps."""

import ast
import json
import os
import subprocess
import sys

import pytest

from shardfleet.domain.reading import pacing
from tests.random_mutants.changes import changes_of
from tests.random_mutants.run import (
    ROOMS,
    ROOT,
    equivalents,
    functions_by_place,
    sources_of,
    switch,
)


def changed(body, kind):
    """Return the bodies that a kind of change makes of a function's body."""
    head = "async def f(a, b):\n    "
    source = (head + body).encode()
    found = [change for change in changes_of("f.py", source) if change.kind == kind]
    return [change.applied(source).decode().removeprefix(head) for change in found]


@pytest.mark.parametrize(
    ("kind", "body", "after"),
    [
        ("condition negated", "while a: b()", ["while (not (a)): b()"]),
        ("condition negated", "return [i for i in a if not i]", ["return [i for i in a if (i)]"]),
        ("comparison shifted", "return a < b", ["return ((a) <= (b))"]),
        ("comparison shifted", "return a != b", ["return ((a) == (b))"]),
        ("and, or", "return a or b", ["return ((a) and (b))"]),
        ("operator changed", "return a - b", ["return ((a) + (b))"]),
        ("min, max", "return min(a, b)", ["return max(a, b)"]),
        ("await dropped", "return await a", ["return a"]),
        ("constant changed", "return True, 7", ["return False, 7", "return True, 8"]),
        ("arguments exchanged", "return a(1, b)", ["return a(b, 1)"]),
        ("state not reset", "a.left = []", ["pass"]),
        ("statement deleted", "a.left = b", ["pass"]),
        ("statements swapped", "a(); b()", ["b(); a()"]),
        ("statements swapped", "a.x = 1; a.y = a.x", ["a.y = a.x; a.x = 1"]),
        ("statements swapped", "a.x = 1; a.y = b", []),
    ],
)
def test_a_kind_of_change_does_what_its_name_says(kind, body, after):
    assert changed(body, kind) == after


@pytest.mark.parametrize(
    "source",
    [
        'def f():\n    """Text."""\n    assert 1 < 2\n    return "a" + "b", f"{1}"\n',
        'def f():\n    if x:\n        raise E(1 + 1, "text")\n',
        "class A:\n    x = 1\n\n    def __repr__(self):\n        return 1 + 1\n",
        "@d(1)\ndef f(a=1) -> g(1, 2):\n    b = a\n",
    ],
    ids=["texts and assertions", "what an error says", "classes", "heads of functions"],
)
def test_what_says_and_does_nothing_is_left_alone(source):
    kinds = {change.kind for change in changes_of("f.py", source.encode())}

    assert kinds <= {"condition negated", "statement deleted"}
    assert ("raise" in source) == bool(kinds)


def test_an_id_is_the_same_wherever_the_function_stands():
    before, after = (
        changes_of("f.py", text.encode())
        for text in ("def f():\n    return 1, 1\n", "import a\n\n\ndef f():\n    return 1, 1\n")
    )

    assert [change.id for change in before] == [change.id for change in after]
    assert len({change.id for change in before}) == 2


def test_every_change_of_the_library_is_a_program_and_has_an_id_of_its_own():
    seen = set()
    for file, source in sources_of(ROOT, ROOMS).items():
        found = changes_of(file, source)
        for change in found[:: max(1, len(found) // 5)]:
            ast.parse(change.applied(source))
        ids = {change.id for change in found}
        assert len(ids) == len(found)
        assert not ids & seen
        seen |= ids
    assert equivalents().keys() <= seen, "a change that is called equivalent is there no more"
    assert all(len(why.split()) > 4 for why in equivalents().values())


def test_a_change_takes_effect_in_this_process_and_is_taken_back():
    path = pacing.__file__
    source = (ROOT / path).read_bytes()
    _, change, _ = (
        change
        for change in changes_of(path, source)
        if (change.function, change.kind) == ("idle_pause_ms", "min, max")
    )
    run_text = switch(path, change, source, functions_by_place())

    assert pacing.idle_pause_ms(9, first_ms=200, most_ms=1_000) == 1_000
    run_text(change.applied(source))
    try:
        assert pacing.idle_pause_ms(9, first_ms=200, most_ms=1_000) > 1_000
    finally:
        run_text(source)
    assert pacing.idle_pause_ms(9, first_ms=200, most_ms=1_000) == 1_000


TOY = """\
LIMIT = 3


def may_go(count):
    if count < LIMIT:
        return True
    return False


def wait(left):
    while left > 0:
        left -= 1
    return left


def unseen():
    return 1
"""
TOYS_TEST = """\
from rooms.toy import may_go, wait


def test_two_may_go_and_three_may_not():
    assert may_go(2)
    assert not may_go(3)


def test_a_wait_ends():
    assert wait(2) == 0
"""


@pytest.fixture
def toy(tmp_path):
    for file, text in {"rooms/toy.py": TOY, "tests/test_toy.py": TOYS_TEST}.items():
        (tmp_path / file).parent.mkdir()
        (tmp_path / file).write_text(text)
    return tmp_path


def tried(folder, **more):
    """Run the tool on the toy; return the lines of what was tried, and the result file."""
    command = [sys.executable, "-m", "tests.random_mutants.run", "--seeds", "0", "--cpu-s", "1"]
    lists = [
        "--root",
        folder,
        "--rooms",
        "rooms",
        "--tests",
        "tests",
        "--output",
        folder / "out.json",
    ]
    options = [word for name, value in more.items() for word in (f"--{name}", *str(value).split())]
    ended = subprocess.run(
        [*command, *lists, *options],
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": str(folder)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert (ended.stderr, ended.returncode) == ("", 1), ended.stdout
    lines = [line for line in ended.stdout.splitlines() if "rooms/toy.py:" in line]
    return lines, json.loads((folder / "out.json").read_text("utf-8"))


def test_what_a_test_sees_is_killed_an_endless_loop_is_ended_and_the_rest_survives(toy):
    lines, body = tried(toy)

    rows = {(row["kind"], row["line"]): row for row in body["changes"]}
    assert len(lines) == body["generated"] == len(body["changes"])
    assert rows["comparison shifted", 5]["by"] == (
        "tests/test_toy.py::test_two_may_go_and_three_may_not"
    )
    assert rows["constant changed", 1]["noticed_by"] == "test"
    assert rows["statement deleted", 12]["noticed_by"] == "limit"
    assert rows["condition negated", 5]["diff"][-3:-1] == [
        "-    if count < LIMIT:",
        "+    if (not (count < LIMIT)):",
    ]
    # One step of two leads below 0 and to 0 alike; nobody calls what the last one changes.
    assert {(row["line"], row["tests"]) for row in body["survivors"]} == {(12, 1), (17, 0)}
    assert body["killed"] == body["generated"] - 2
    assert sum(body["killed_by"].values()) == body["killed"]


def test_a_run_goes_on_where_another_ended_and_survivors_meet_new_tests(toy):
    first, body = tried(toy, number=4, seed=2)
    assert len(first) == 4

    more, larger = tried(toy, number=6, seed=2)
    assert len(more) == 2
    assert [row["id"] for row in larger["changes"][:4]] == [row["id"] for row in body["changes"]]
    with (toy / "tests/test_toy.py").open("a") as file:
        file.write("\n\ndef test_it_is_there():\n    assert may_go\n")
    last, _ = tried(toy, number=6, seed=2)
    assert len(last) == len(larger["survivors"])


def test_draws_are_pooled_and_what_two_of_them_have_is_tried_once(toy):
    ids = {}
    for seed in (1, 2):
        (toy / "out.json").unlink(missing_ok=True)
        ids[seed] = [row["id"] for row in tried(toy, number=4, seed=seed)[1]["changes"]]
    (toy / "out.json").unlink()

    lines, body = tried(toy, number=4, seed="1 2")

    pooled = [row["id"] for row in body["changes"]]
    assert pooled == list(dict.fromkeys(ids[1] + ids[2]))
    assert len(lines) == len(pooled) < 8


def test_what_was_drawn_is_followed_when_the_sources_have_changed(toy):
    _, body = tried(toy, number=4, seed=2)
    with (toy / "rooms/toy.py").open("a") as file:
        file.write("\n\ndef more(n):\n    return n + 1 if n > 3 else n - 1\n")

    lines, again = tried(toy, number=4, seed=2)

    assert [row["id"] for row in again["changes"]] == [row["id"] for row in body["changes"]]
    assert len(lines) == 4
