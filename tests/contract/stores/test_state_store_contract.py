"""One contract for every state store: memory, DynamoDB on the embedded AWS, DynamoDB Local."""

import asyncio

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from shardfleet.engine.ports import Conflict, Document, Written
from shardfleet.errors import ProtocolError, ShardfleetError
from shardfleet_testkit.memory import MemoryStateStore
from tests.contract.stores.conftest import PLACES, WIRED

run = asyncio.run


@pytest.fixture(params=["memory", *PLACES, *WIRED])
def store(request, tables_at):
    return MemoryStateStore() if request.param == "memory" else tables_at(request.param).state


def write(store, name, body, *, expected):
    return run(store.write("slot", name, body, expected_version=expected))


def test_a_document_is_written_once_when_it_must_not_exist(store):
    first = Document("slot", "s1", 1, {"a": 1})
    assert write(store, "s1", {"a": 1}, expected=None) == Written(first)
    assert write(store, "s1", {"a": 2}, expected=None) == Conflict(first)
    assert run(store.read("slot", "s1")) == first


def test_a_write_replaces_the_body_and_raises_the_version_by_one(store):
    write(store, "s1", {"a": 1, "gone": True}, expected=None)
    assert write(store, "s1", {"b": 2}, expected=1) == Written(Document("slot", "s1", 2, {"b": 2}))


@pytest.mark.parametrize("expected", [1, 3, 7])
def test_a_write_from_any_other_version_is_a_conflict_that_shows_the_document(store, expected):
    write(store, "s1", {"a": 1}, expected=None)
    write(store, "s1", {"a": 2}, expected=1)
    current = Document("slot", "s1", 2, {"a": 2})
    assert write(store, "s1", {"a": 3}, expected=expected) == Conflict(current)
    assert run(store.read("slot", "s1")) == current


def test_a_write_to_a_document_that_is_gone_is_a_conflict_with_nothing(store):
    assert write(store, "s1", {"a": 1}, expected=1) == Conflict(None)
    assert run(store.read("slot", "s1")) is None


def test_documents_of_a_kind_are_listed_in_order_of_their_ids_and_no_others(store):
    for name in ("s0010", "s0002", "s0001"):
        write(store, name, {"n": name}, expected=None)
    run(store.write("pin", "s0000", {}, expected_version=None))
    assert [d.id for d in run(store.list("slot"))] == ["s0001", "s0002", "s0010"]
    assert list(run(store.list("nothing"))) == []


def test_more_documents_than_a_page_holds_are_all_listed(store):
    """A page of DynamoDB has at most 1 MB."""
    for name in ("a", "b", "c", "d"):
        write(store, name, {"text": name * 390_000}, expected=None)
    assert [d.body["text"][0] for d in run(store.list("slot"))] == ["a", "b", "c", "d"]


def test_documents_of_all_kinds_are_read_page_by_page(store):
    """A page of DynamoDB has at most 1 MB; here are more, of three kinds."""
    wanted = sorted((kind, name) for kind in ("slot", "pin", "turn") for name in ("a", "b"))
    for kind, name in wanted:
        body = {"text": f"{kind}/{name} " * 40_000}
        run(store.write(kind, name, body, expected_version=None))

    pages = [run(store.page())]
    while pages[-1].after is not None and len(pages) < len(wanted):
        pages.append(run(store.page(pages[-1].after)))

    documents = [document for page in pages for document in page.documents]
    assert sorted((each.kind, each.id) for each in documents) == wanted
    for each in documents:
        assert each.version == 1
        assert each.body == {"text": f"{each.kind}/{each.id} " * 40_000}
    assert pages[-1].after is None
    assert isinstance(store, MemoryStateStore) or len(pages) > 1


@pytest.mark.parametrize("kind", ["slot", "pin", "turn"])
def test_a_page_behind_a_document_that_is_not_there_begins_with_those_of_its_kind(store, kind):
    """The manager's inspection asks so for a kind of a table that is larger than a page."""
    for each in ("slot", "pin", "turn"):
        for name in ("b", "a"):
            run(store.write(each, name, {}, expected_version=None))

    documents = run(store.page((kind, " "))).documents

    assert [(each.kind, each.id) for each in documents[:2]] == [(kind, "a"), (kind, "b")]


def test_a_document_is_deleted_only_at_the_expected_version(store):
    write(store, "s1", {}, expected=None)
    write(store, "s1", {}, expected=1)
    assert run(store.delete("slot", "s1", expected_version=1)) is False
    assert run(store.delete("slot", "s1", expected_version=2)) is True
    assert run(store.delete("slot", "s1", expected_version=2)) is False
    assert run(store.read("slot", "s1")) is None


def test_a_counter_begins_at_one_and_rises_by_one(store):
    assert [run(store.increment("prompt", "manager")) for _ in range(3)] == [1, 2, 3]
    assert run(store.read("prompt", "manager")) == Document("prompt", "manager", 3, {})


def test_a_document_that_is_to_expire_says_when_in_seconds_and_reads_like_any_other(tables):
    written = run(
        tables.state.write(
            "turn", "t", {"a": 1}, expected_version=None, expires_ms=1_700_000_000_999
        )
    )
    assert written == Written(Document("turn", "t", 1, {"a": 1}))
    key = {"kind": {"S": "turn"}, "id": {"S": "t"}}
    found = tables.clients.table_reads.get_item(TableName=tables.state_table, Key=key)
    assert found["Item"]["expires"] == {"N": "1700000000"}
    assert list(run(tables.state.list("turn"))) == [written.document]


def test_increments_at_once_all_count_and_none_sees_the_number_of_another(store):
    async def race():
        return await asyncio.gather(*(store.increment("prompt", "manager") for _ in range(20)))

    assert sorted(run(race())) == list(range(1, 21))


def test_of_many_writers_at_once_exactly_one_wins(store):
    async def race():
        writes = [
            store.write("lock", "manager", {"holder": n}, expected_version=None) for n in range(16)
        ]
        return await asyncio.gather(*writes)

    answers = run(race())
    (winner,) = [answer for answer in answers if isinstance(answer, Written)]
    assert [a.current for a in answers if isinstance(a, Conflict)] == [winner.document] * 15


scalars = st.none() | st.booleans() | st.integers(-(10**38) + 1, 10**38 - 1) | st.text()
names = st.text(min_size=1)
bodies = st.dictionaries(
    names,
    st.recursive(
        scalars, lambda inner: st.lists(inner) | st.dictionaries(names, inner), max_leaves=8
    ),
)


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=30)
@given(body=bodies)
def test_a_body_comes_back_as_it_was(store, body):
    current = run(store.read("slot", "s1"))
    version = current.version if current else None
    written = write(store, "s1", body, expected=version)
    assert written == Written(Document("slot", "s1", (version or 0) + 1, body))
    assert run(store.read("slot", "s1")).body == body


@pytest.mark.parametrize("value", [1.5, b"bytes", {1, 2}, 10**38])
def test_what_no_document_can_hold_is_refused_by_its_path(tables, value):
    with pytest.raises(ProtocolError, match=r"document slot/s1\.a\[0\]\.b: "):
        write(tables.state, "s1", {"a": [{"b": value}]}, expected=None)
    assert run(tables.state.read("slot", "s1")) is None


def test_a_document_beyond_the_400_kb_of_an_item_is_refused(store):
    """DynamoDB's quota for an item: names and values in UTF-8, 400 KB = 409,600 bytes."""
    write(store, "s1", {"a": 1}, expected=None)
    with pytest.raises(ShardfleetError, match="size"):
        write(store, "s1", {"text": "é" * 205_000}, expected=1)
    assert run(store.read("slot", "s1")) == Document("slot", "s1", 1, {"a": 1})
    rows = [["x" * 90, n] for n in range(4_000)]
    assert isinstance(write(store, "s1", {"rows": rows}, expected=1), Written)
