"""The one reader of the fleet-state table's documents: every kind, whatever is in it."""

import json

import pytest

from shardfleet.engine.state.documents import read_as
from shardfleet.engine.state.kinds import KINDS, kind_of
from tests.engine.state.documents_kit import FIXTURES, VERSION, kept, written

RELEASES = sorted(FIXTURES.glob("*/*.json"))
SECRET = "a-record-of-a-user"


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
