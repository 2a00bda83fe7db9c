"""The one reader of the fleet-state table's documents: every kind, whatever is in it."""

import ast
import json
from pathlib import Path

import pytest

import shardfleet
from shardfleet.config import FleetConfig
from shardfleet.domain.slots.slot import SlotState
from shardfleet.engine.state.documents import read_as
from shardfleet.engine.state.kinds import KINDS, SLOT, WINDOW, kind_of
from shardfleet_ops.operate.documents import CARE, MendingFacts, readable_part
from tests.engine.state.damages import CELLS, DOCUMENTS, SECRET, changed, of_a_later_release
from tests.engine.state.documents_kit import FIXTURES, VERSION, kept, written

RELEASES = sorted(FIXTURES.glob("*/*.json"))
LIBRARY = Path(shardfleet.__file__).parent
CONFIG = FleetConfig(fleet="f", stream_arn="s", lease_table="l", state_table="t")


@pytest.fixture(scope="module")
def documents():
    return written()


def test_every_kind_has_a_document_that_the_fleet_writes(documents):
    assert documents.keys() == {str(kind) for kind in KINDS}


def test_what_this_release_writes_is_kept_for_the_next(documents):
    """After a change: python -m tests.engine.state.documents_kit."""
    now = {name: (d.kind, d.id, json.loads(json.dumps(d.body))) for name, d in documents.items()}
    files = {path.stem: kept(path) for path in (FIXTURES / VERSION).glob("*.json")}
    assert {name: (d.kind, d.id, d.body) for name, d in files.items()} == now


@pytest.mark.parametrize("path", RELEASES, ids=lambda path: f"{path.parent.name}-{path.stem}")
def test_what_each_release_has_written_is_read(path):
    document = kept(path)
    found = read_as(kind_of(document.kind), document)
    assert found.reason == ""
    assert found.body is not None


@pytest.mark.parametrize("name", DOCUMENTS)
def test_what_a_later_release_adds_is_passed_over(name):
    whole = DOCUMENTS[name]
    kind = kind_of(whole.kind)
    assert read_as(kind, of_a_later_release(whole)).body == read_as(kind, whole).body


def test_no_damage_raises_and_what_was_found_is_never_quoted():
    """Each kind, without each field and with eight wrong values in it, and its whole item."""
    assert len(CELLS) > 1_000
    for cell, document in CELLS:
        found = read_as(kind_of(document.kind), document)
        assert bool(found.reason) == (found.body is None), cell
        assert SECRET not in found.reason, cell


@pytest.mark.parametrize("name", DOCUMENTS)
def test_what_is_no_document_of_its_kind_is_unreadable(name):
    """A kind that takes anything would tell nobody of nonsense."""
    kind = kind_of(DOCUMENTS[name].kind)
    found = [read_as(kind, d) for cell, d in CELLS if cell.startswith(f"{name}: ")]
    assert sum(each.body is None for each in found) >= 2, name


def test_a_value_that_only_a_later_release_knows_makes_a_document_unreadable():
    slot = DOCUMENTS["slot"]
    body = {**slot.body, "state": "HIBERNATING"}
    found = read_as(kind_of("slot"), type(slot)("slot", slot.id, 7, body))
    assert found.reason == "a value that is not known - at `$.state`"


@pytest.mark.parametrize("field", SLOT.required)
def test_a_slot_without_a_number_that_only_rises_is_unreadable_and_mended_starts_higher(field):
    """As zero it would be an epoch that another invocation has had (H1 to H3)."""
    slot = DOCUMENTS["slot"]
    body = {name: value for name, value in slot.body.items() if name != field}
    damaged = changed(slot, body)
    assert read_as(SLOT, damaged).reason == f"Object missing required field `{field}`"
    facts = MendingFacts(config=CONFIG, stream=None, now_ms=1_700_000_000_000, person="p")
    mended = CARE[SLOT].mend(slot.id, readable_part(SLOT, damaged), facts)
    after = read_as(SLOT, changed(slot, mended)).body
    assert after.state is SlotState.ENDED or after.assign_seq == after.served_seq
    assert after.epoch >= slot.body["epoch"]


@pytest.mark.parametrize("field", WINDOW.required)
def test_a_window_without_its_beginning_or_state_is_unreadable_and_no_window_that_is_none(field):
    window = DOCUMENTS["window"]
    body = {name: value for name, value in window.body.items() if name != field}
    reason = read_as(WINDOW, changed(window, body)).reason
    assert reason == f"Object missing required field `{field}`"


def test_every_kind_says_what_holds_meanwhile_and_what_mending_makes():
    assert CARE.keys() == {str(kind) for kind in KINDS}


def test_what_is_readable_of_a_document_is_found_field_by_field():
    for cell, document in CELLS:
        kind = kind_of(document.kind)
        readable_part(kind, document), cell
    slot = DOCUMENTS["slot"]
    body = {**slot.body, "epoch": SECRET}
    found = readable_part(kind_of("slot"), type(slot)("slot", slot.id, 7, body))
    assert found == {k: v for k, v in slot.body.items() if k not in ("epoch", "slot_id")}


READERS = {"documents.py", "rows.py", "retry.py"}


def test_nobody_but_the_reader_takes_a_document_s_body_apart():
    """Each other module is given what a document says by its kind."""
    found = []
    for path in sorted(LIBRARY.rglob("*.py")):
        if "testing" in path.parts or path.name in READERS or "local" in path.parts:
            continue
        for node in ast.walk(ast.parse(path.read_text())):
            unpacked = isinstance(node, ast.keyword) and node.arg is None
            value = node.value if unpacked or isinstance(node, ast.Subscript) else None
            if isinstance(value, ast.Attribute) and value.attr == "body":
                found.append(f"{path.relative_to(LIBRARY)}:{value.lineno}")
    assert found == []
