"""
The faces: what a user imports is one name deep, and each name of a face is on a page.

What lies behind a face may move; what README, the pages, the examples and the files that
`shardfleet init` writes import may not.
"""

import ast
import importlib
import re

import pytest

from shardfleet import Batch
from shardfleet_ops.cli import init
from tests.test_rooms import dotted
from tests.test_tidy import PYTHON, ROOT, expect_none

FACES = {
    "shardfleet",
    "shardfleet.producer",
    "shardfleet_cdk",
    "shardfleet_spark",
    "shardfleet_testkit",
}

PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]
EXAMPLES = [
    *sorted((ROOT / "functions/examples").rglob("*.py")),
    *sorted((ROOT / "functions/handler").rglob("*.py")),
]
OURS = re.compile(r"shardfleet(_\w+)?(\.|$)")
FENCE = re.compile(r"^```python\n(.*?)^```", re.MULTILINE | re.DOTALL)
# `python -m` is a command, and a file's path is no import.
IN_PROSE = re.compile(r"`(shardfleet\w*(?:\.\w+)+)(?:\(.*?\))?`")
MODULES = set(filter(None, map(dotted, PYTHON)))


def programs():
    """Yield where a program for users stands, and its text."""
    for page in PAGES:
        for block in FENCE.findall(page.read_text("utf-8")):
            yield page.name, block
    for file in EXAMPLES:
        yield str(file.relative_to(ROOT)), file.read_text("utf-8")
    for name, text in init.FILES.items():
        if name.endswith(".py"):
            yield f"init: {name}", text


def imports_of_ours(text):
    """Yield (module of ours, name or None) for each import of a program."""
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.ImportFrom) and OURS.match(node.module or ""):
            yield from ((node.module, alias.name) for alias in node.names)
        elif isinstance(node, ast.Import):
            yield from ((alias.name, None) for alias in node.names if OURS.match(alias.name))


def beyond_faces(place, text):
    for module, name in imports_of_ours(text):
        if module not in FACES:
            yield f"{place}: {module} is no face"
        elif name and name not in importlib.import_module(module).__all__:
            yield f"{place}: {module} does not offer {name}"


def deep_in_prose(place, text):
    """Yield modules behind a face that a page names by their dotted names."""
    for name in IN_PROSE.findall(text):
        module = next((each for each in (name, name.rpartition(".")[0]) if each in MODULES), None)
        if module and module not in FACES:
            yield f"{place}: {module} is no face"


def test_what_users_are_shown_imports_from_faces_alone():
    expect_none(complaint for program in programs() for complaint in beyond_faces(*program))


def test_pages_for_users_name_no_module_behind_a_face():
    # These two are about what lies behind.
    pages = [page for page in PAGES if page.name not in ("architecture.md", "proof.md")]
    expect_none(
        complaint for page in pages for complaint in deep_in_prose(page.name, page.read_text())
    )


@pytest.mark.parametrize("face", sorted(FACES))
def test_each_name_of_a_face_is_there_and_on_the_page_about_concepts(face):
    module = importlib.import_module(face)
    rows = re.findall(r"^\| `([\w.]+)` \| (.*?) \|", section("What you import"), re.MULTILINE)

    assert module.__all__ == sorted(module.__all__, key=lambda name: (name[0].islower(), name))
    assert [name for name in module.__all__ if getattr(module, name, None) is None] == []
    assert re.findall(r"`(\w+)`", dict(rows)[face]) == module.__all__


@pytest.mark.parametrize("face", ["shardfleet.producer", "shardfleet_spark", "shardfleet_testkit"])
def test_a_name_that_a_face_does_not_have_is_an_error_as_of_any_module(face):
    with pytest.raises(AttributeError, match=f"module '{face}' has no attribute 'Nobody'"):
        _ = importlib.import_module(face).Nobody


def test_a_batch_shows_a_handler_what_is_a_handlers_and_nothing_of_the_workers():
    documented = re.findall(r"^ {8}(\w+):", Batch.__doc__, re.MULTILINE)
    of_a_handler = {*documented, "checkpoint", "done_count", "has_open", "count", "index"}

    assert {name for name in dir(Batch) if not name.startswith("_")} == of_a_handler


def section(title):
    page = (ROOT / "docs/concepts.md").read_text("utf-8")
    return page.partition(f"## {title}\n")[2].partition("\n## ")[0]


@pytest.mark.parametrize(
    ("program", "complaint"),
    [
        ("from shardfleet.kpl.packing import varint", "shardfleet.kpl.packing is no face"),
        ("def f():\n    import shardfleet.config", "shardfleet.config is no face"),
        ("from shardfleet import Nobody", "shardfleet does not offer Nobody"),
    ],
)
def test_an_import_from_behind_a_face_is_seen(program, complaint):
    assert list(beyond_faces("page", program)) == [f"page: {complaint}"]
    assert list(beyond_faces("page", "import shardfleet, json\nfrom shardfleet import Batch")) == []


def test_a_module_behind_a_face_is_seen_in_prose():
    text = "`shardfleet.kpl`, `shardfleet.kpl.packing.varint`, `shardfleet_spark.sink.by_shard(df)`"
    assert len(list(deep_in_prose("page", text))) == 3
    text = "`shardfleet`, `shardfleet_spark.drain`, `python -m shardfleet_spark.options_page`"
    assert list(deep_in_prose("page", text)) == []
