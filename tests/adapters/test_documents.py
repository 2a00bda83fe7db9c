"""Documents of every kind over the fleet's own wire to DynamoDB, and what an item may hold."""

import json

import pytest

from shardfleet.engine.ports import Conflict, Written
from shardfleet.engine.state.documents import Documents
from shardfleet.engine.state.kinds import KINDS, kind_of
from tests.adapters.tables import Tables
from tests.engine.state.damages import DOCUMENTS
from tests.virtual import in_a_loop


@pytest.fixture
def wired(embedded_tables):
    """The tables as a function asks them: without the SDK's serialiser."""
    given = embedded_tables
    return Tables(given.clients, given.lease_table, given.state_table, wired=True)


@pytest.mark.processes
@in_a_loop
async def test_every_kind_is_written_read_listed_counted_and_deleted_over_the_wire(wired):
    documents = Documents(wired.state)
    for whole in DOCUMENTS.values():
        kind = kind_of(whole.kind)
        body = json.loads(json.dumps(whole.body))
        written = await documents.raw.write(kind, whole.id, body, expected_version=None)
        assert isinstance(written, Written)
        assert (await documents.get(kind, whole.id)).body == kind.read(body, whole.id)
        assert len(await documents.all(kind)) == 1
    page = await documents.raw.page()
    assert {each.kind for each in page.documents} == {d.kind for d in DOCUMENTS.values()}
    assert len(page.documents) == len(KINDS)
    assert await documents.raw.increment(kind_of("prompt"), "manager") == 2
    for each in page.documents:
        version = 2 if each.kind == "prompt" else 1
        assert await documents.raw.delete(kind_of(each.kind), each.id, expected_version=version)
    assert (await documents.raw.page()).documents == []


UNVERSIONED = {
    "none": None,
    "text": {"S": "7"},
    "bytes": {"B": b"7"},
    "a set": {"NS": ["1", "2"]},
    "nought": {"N": "0"},
    "below": {"N": "-7"},
    "beyond": {"N": "1E+30"},
}


@pytest.mark.parametrize("found", UNVERSIONED)
@pytest.mark.parametrize(
    "store", ["moto_tables", pytest.param("embedded_tables", marks=pytest.mark.processes)]
)
@in_a_loop
async def test_an_item_without_a_version_is_overwritten_and_deleted_as_one_and_by_no_other(
    store, found, request
):
    tables = request.getfixturevalue(store)
    key = {"kind": {"S": "tip"}, "id": {"S": "1"}}
    version = {} if UNVERSIONED[found] is None else {"version": UNVERSIONED[found]}

    def put():
        item = {**key, **version, "body": {"M": {}}}
        tables.clients.table_writes.put_item(TableName=tables.state_table, Item=item)

    put()
    document = await tables.state.read("tip", "1")
    assert (document.version, document.body) == (0, {})
    assert document.damage
    refused = await tables.state.write("tip", "1", {}, expected_version=1)
    assert isinstance(refused, Conflict)
    assert not await tables.state.delete("tip", "1", expected_version=1)
    written = await tables.state.write("tip", "1", {"at_ms": 1}, expected_version=0)
    assert written.document.version == 1
    assert not await tables.state.delete("tip", "1", expected_version=0)
    put()
    assert await tables.state.increment("tip", "1") == 1
    put()
    assert await tables.state.delete("tip", "1", expected_version=0)
    assert await tables.state.read("tip", "1") is None
