"""The pages in docs: their commands exist, their JSON is what the commands print."""

import ast
import json
import re
import shlex
from pathlib import Path

import pytest
from typer.main import get_command

from shardfleet.domain.balance.kcl3 import Direction
from shardfleet.domain.balance.migration import MigrationStep, MigrationTask
from shardfleet.domain.cost.prices import PRICES
from shardfleet.domain.cost.usage import Consumption, price_of
from shardfleet.domain.delivery.contract import HandlerContract
from shardfleet.domain.delivery.stops import StopNote
from shardfleet.domain.positions.positions import positions_from_text, positions_to_json
from shardfleet.domain.reasons import Pause
from shardfleet.domain.turn_log import Entry
from shardfleet.producer.settings import ProducerCounts
from shardfleet.records import Record
from shardfleet.runtime.handler_loading import as_handler
from shardfleet_ops.cli.app import app
from shardfleet_ops.cli.migrate import migration_json
from shardfleet_ops.cli.position import import_json
from shardfleet_ops.cli.tail import _as_json
from shardfleet_ops.explain.answer import Explanation, StoryLine, Whereabouts
from shardfleet_ops.explain.doctor import Finding
from shardfleet_ops.explain.fleet_view import FleetSummary, LeaseRow, LeaseState, SlotRow
from shardfleet_ops.explain.forecast import Forecast
from shardfleet_ops.explain.migration_report import ReportLine, ReportMark
from shardfleet_ops.positions.position_import import ImportAction, ImportPlan, ImportStep
from shardfleet_ops.positions.rewinds import RewindRow
from shardfleet_ops.template.reading import TemplateFault

DOCS = Path(__file__).resolve().parent.parent / "docs"
CLI = (DOCS / "cli.md").read_text("utf-8")
COMMAND = re.compile(r"`(shardfleet [^`]+)`|^(shardfleet .+)$", re.MULTILINE)


def commands_of(page):
    text = page.read_text("utf-8")
    return [one or other for one, other in COMMAND.findall(text)]


ALL = sorted({(page.name, line) for page in DOCS.glob("*.md") for line in commands_of(page)})


@pytest.mark.parametrize(("page", "line"), ALL)
def test_every_command_of_a_page_exists_with_its_options(page, line):
    words = shlex.split(line.replace("…", ""))[1:]
    found = get_command(app)
    while words and words[0].split("|")[0] in getattr(found, "commands", {}):
        found = found.commands[words.pop(0).split("|")[0]]
    assert found.name != "shardfleet", f"docs/{page}: no such command: {line}"
    known = {option for parameter in found.params for option in parameter.opts}
    used = {word.split("=")[0] for word in words if word.startswith("--")}
    assert used <= known | {"--help", "--version"}, f"docs/{page}: {line}"


def leaves(command, path="shardfleet"):
    """Yield each command that does something, by all its words."""
    parts = getattr(command, "commands", None)
    if parts is None:
        yield path
    for name, part in (parts or {}).items():
        yield from leaves(part, f"{path} {name}")


def test_every_command_is_named_on_a_page():
    pages = [DOCS.parent / "README.md", *DOCS.glob("*.md")]
    text = " ".join(page.read_text("utf-8") for page in pages)
    found = list(leaves(get_command(app)))
    assert len(found) > 20
    # In the checkout some are run by make, with what they need installed before.
    ways = {each: rf"({each}|{each.replace('shardfleet', 'make')})\b" for each in found}
    assert [each for each, way in ways.items() if not re.search(way, text)] == []


def shape(command):
    """Return the JSON object that follows the mention of a command."""
    after = CLI[CLI.index(f"`{command} --json`") :]
    return json.loads(re.search(r"```json\n(.*?)```", after, re.DOTALL)[1])


def names(kind):
    return list(kind.__struct_fields__)


def test_the_documented_json_of_each_command_has_the_fields_it_prints():
    status = shape("shardfleet status")
    assert list(status) == [*names(FleetSummary), "slot_rows"]
    assert list(status["slot_rows"][0]) == names(SlotRow)
    assert list(shape("shardfleet leases")) == names(LeaseRow)
    assert list(shape("shardfleet doctor")) == names(Finding)
    judged = shape("shardfleet doctor --before TEMPLATE")
    assert list(judged) == ["stack", *names(TemplateFault)]
    paused = shape("shardfleet pause")
    assert list(paused["leases"][0]) == names(LeaseRow)
    assert list(shape("shardfleet rewind")["leases"][0]) == names(RewindRow)
    resumed = shape("shardfleet resume")
    assert list(resumed["stopped"][0]) == names(StopNote)
    assert list(resumed["paused"][0]) == ["lease_key", *names(Pause)]
    assert list(shape("shardfleet put")["sent"]) == names(ProducerCounts)
    migrated, row = shape("shardfleet migrate"), ReportLine("index", ReportMark.GOOD, "there")
    step = MigrationStep(step=MigrationTask.MOVE)
    printed = migration_json(Direction.TO_JAVA, [row], [step], written=True, is_done=True)
    assert list(migrated) == list(printed)
    assert [list(each) for each in migrated["report"]] == [list(printed["report"][0])]
    assert list(migrated["steps"][0]) == list(printed["steps"][0])
    imported = shape("shardfleet position import FILE")
    assert list(imported["steps"][0]) == list(_json_of_import()["steps"][0])
    explained = shape("shardfleet explain SHARD")
    assert list(explained) == [*names(Explanation), "since_age_ms"]
    assert list(explained["story"][0]) == [*names(StoryLine), "age_ms"]
    cost = shape("shardfleet cost")
    assert list(cost["days"][0]["used"]) == names(Consumption)
    assert list(cost["days"][0]["by_item"]) == list(price_of(Consumption(), metric_days=0).by_item)
    forecast = shape("shardfleet what-if")
    assert sorted(forecast) == sorted(["question", "within_ms", *names(Forecast)])
    assert sorted(forecast["steps"][0]) == sorted(["turn", "text", *names(Entry)])
    record = Record(
        data=b"{}",
        partition_key="k",
        sequence_number="1",
        shard_id="s",
        approximate_arrival_ms=1,
    )
    assert list(shape("shardfleet tail")) == list(_as_json(record))


def test_the_documented_positions_can_be_read():
    after = CLI[CLI.index("`shardfleet position export`, one document") :]
    text = re.search(r"```json\n(.*?)```", after, re.DOTALL)[1]

    found = positions_from_text(text)

    assert list(positions_to_json(found)) == list(json.loads(text))
    assert list(_json_of_import()) == list(shape("shardfleet position import FILE"))


def _json_of_import():
    step = ImportStep(lease_key="s", action=ImportAction.SAME, before="", after="", change=None)
    plan = ImportPlan(steps=(step,), obstacles=(), notes=())
    return import_json("app", plan, applied=False, results=[""])


def test_every_state_is_explained():
    for state in (*LeaseState, *Whereabouts):
        assert f"| `{state}` |" in CLI


def test_the_page_about_cost_has_the_prices_of_the_code():
    page = (DOCS / "cost.md").read_text("utf-8")
    assert PRICES.as_of in page
    told = dict(re.findall(r"^\| `(\w+)` \| ([\d.]+) \|", page, re.MULTILINE))
    for name in names(type(PRICES)):
        if name not in ("as_of", "region"):
            assert float(told[name]) == pytest.approx(getattr(PRICES, name)), name


LINK = re.compile(r"\[([^\]]*)\]\(([^)\s]+)\)")
ROOT = DOCS.parent
PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted(DOCS.glob("*.md"))]


def heading_anchor(line):
    """Return the anchor that GitHub gives a heading."""
    words = re.sub(r"[^\w\- ]", "", line.lstrip("#").strip().lower())
    return words.replace(" ", "-")


def names_in(tree):
    """Return what a module defines, methods and fields as Class.name."""
    found = set()
    for node in tree.body:
        for owner in [node, *(node.body if isinstance(node, ast.ClassDef) else ())]:
            prefix = "" if owner is node else f"{node.name}."
            targets = getattr(owner, "targets", [getattr(owner, "target", None)])
            names = [getattr(target, "id", None) for target in targets]
            found |= {f"{prefix}{name}" for name in (*names, getattr(owner, "name", None)) if name}
    return found


def dead_links(page, text):
    """Complain of links to files, headings and names of the code that are not there."""
    for words, link in LINK.findall(text):
        place, _, anchor = link.partition("#")
        if "://" in link:
            continue
        target = (page.parent / place).resolve() if place else page
        if not target.exists():
            yield f"{page.name}: {link} does not exist"
        elif anchor and target.suffix == ".md":
            lines = (target.read_text("utf-8") if place else text).splitlines()
            if anchor not in {heading_anchor(line) for line in lines if line.startswith("#")}:
                yield f"{page.name}: {link}: no such heading"
        elif (
            target.suffix == ".py"
            and words.startswith("`")
            and words.strip("`") not in names_in(ast.parse(target.read_text("utf-8")))
        ):
            yield f"{page.name}: {place} does not define {words}"


def test_every_link_of_a_page_leads_somewhere():
    complaints = [found for page in PAGES for found in dead_links(page, page.read_text("utf-8"))]

    assert complaints == []


def test_a_dead_link_is_seen(tmp_path):
    page = tmp_path / "page.md"
    page.touch()
    (tmp_path / "code.py").write_text("class A:\n    x: int = 1\n    def b(self): ...\n")
    text = (
        "# The top\n[a](#the-top) [b](#the-bottom) [c](gone.md) [`A.b`](code.py) [`A.x`](code.py)"
        " [`A.c`](code.py) [`B`](code.py) [d](https://example.org/e)"
    )

    assert list(dead_links(page, text)) == [
        "page.md: #the-bottom: no such heading",
        "page.md: gone.md does not exist",
        "page.md: code.py does not define `A.c`",
        "page.md: code.py does not define `B`",
    ]


PROTOCOL = (DOCS / "protocol.md").read_text("utf-8")
RULES = re.findall(
    r"^(?:\* \*\*|\| )([A-Z])(\d+)(?:\*\*| \|)|^([A-Z])(\d+), ", PROTOCOL, re.MULTILINE
)
NUMBERED = [(letter or more, int(number or last)) for letter, number, more, last in RULES]


def test_each_rule_of_the_protocol_has_a_number_of_its_own_in_its_place():
    numbers = {}
    for letter, number in NUMBERED:
        numbers.setdefault(letter, []).append(number)

    assert {"A", "E", "G", "L", "M", "S", "Z"} <= numbers.keys()
    assert numbers == {letter: list(range(1, len(of) + 1)) for letter, of in numbers.items()}


def test_a_module_names_rules_of_the_protocol_that_there_are():
    named = [
        (file.name, rule[0], int(number))
        for folder in ("layer/python", "tools", "spark")
        for file in (ROOT / folder).rglob("*.py")
        for mentioned in re.findall(
            r"protocol\.md ((?:(?:[A-Z]\d+(?:-[A-Z]\d+)?)(?:, | and )?)+)", file.read_text("utf-8")
        )
        for rule, number in re.findall(r"([A-Z])(\d+)", mentioned)
    ]

    assert len(named) > 20
    assert [each for each in named if each[1:] not in NUMBERED] == []


PYTHON = re.compile(r"^```python\n(.*?)^```$", re.MULTILINE | re.DOTALL)


@pytest.mark.parametrize("page", ["handlers", "windows", "manual-checkpoints"])
def test_the_handlers_of_a_page_can_be_loaded(page):
    blocks = PYTHON.findall((DOCS / f"{page}.md").read_text("utf-8"))
    shown = [text for text in blocks if "def handle(" in text]

    assert shown
    for text in shown:
        defined = {}
        exec(compile(text, f"{page}.md", "exec"), defined)  # noqa: S102 - what readers will run.
        handler = defined.get("handle") or defined["Buffer"]
        assert as_handler(handler, name=page).contract is HandlerContract.NATIVE


def words_of(page):
    return len(page.read_text("utf-8").split())


def test_the_pages_can_be_read():
    pages = {page: words_of(page) for page in [ROOT / "README.md", *DOCS.glob("*.md")]}

    assert {page: words for page, words in pages.items() if words > 5_000} == {}
    assert sum(pages.values()) <= 45_000
    assert words_of(ROOT / "CHANGELOG.md") <= 900


def test_no_page_speaks_in_the_codes_of_hazards():
    """But for a fact about AWS that happens to have such a number."""
    found = [
        f"{page.name}: {line}"
        for page in [*PAGES, ROOT / "CHANGELOG.md"]
        for line in page.read_text("utf-8").splitlines()
        if re.search(r"\bH\d{1,2}\b", line) and not line.startswith("| H19 | ")
    ]

    assert found == []


def sections_of(page):
    """Return the sections of a page, those of a span one by one, and the rows of §0."""
    found = {f"0.{number}" for number in re.findall(r"^\| 0\.(\d+) \|", page, re.MULTILINE)}
    for chapter, first, last in re.findall(r"§(\d+)(?:\.(\d+))?(?:\W\d+\.(\d+))?", page):
        numbers = range(int(first), int(last or first) + 1) if first else ()
        found |= {chapter, *(f"{chapter}.{number}" for number in numbers)}
    return found


def test_a_module_names_sections_of_the_protocol_that_there_are():
    named = {
        (str(file.relative_to(ROOT)), section)
        for folder in ("layer/python", "cdk", "spark", "tests")
        for file in (ROOT / folder).rglob("*.py")
        for section in re.findall(r"protocol\.md §(\d+(?:\.\d+)?)", file.read_text("utf-8"))
    }

    assert len(named) > 50
    assert [each for each in sorted(named) if each[1] not in sections_of(PROTOCOL)] == []
