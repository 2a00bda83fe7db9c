"""Units of DynamoDB, counted from its own answers."""

import asyncio

import pytest

from shardfleet.domain.leases import changes as lease_changes
from shardfleet.domain.leases.lease import Applied
from tests.domain.builders import a_lease

run = asyncio.run


@pytest.mark.parametrize("kind", ["moto", pytest.param("embedded", marks=pytest.mark.processes)])
def test_reads_and_writes_of_both_tables_are_counted(kind, request):
    tables = request.getfixturevalue(f"{kind}_tables")
    meter = tables.clients.capacity
    read_before, written_before = meter.used_tenths()
    run(tables.state.write("slot", "s1", {"a": 1}, expected_version=None))
    lease = a_lease("shardId-000000000001")
    assert isinstance(run(tables.leases.apply(lease_changes.create(lease))), Applied)
    read, written = meter.used_tenths()
    assert read == read_before
    assert written - written_before >= (20 if kind == "embedded" else 10)  # moto knows halves
    run(tables.state.read("slot", "s1"))
    run(tables.leases.scan())
    run(tables.state.list("slot"))
    assert meter.used_tenths()[0] - read >= 10
    assert meter.used_tenths()[1] == written


def test_a_refused_write_counts_as_one_unit(moto_tables):
    meter = moto_tables.clients.capacity
    run(moto_tables.state.write("slot", "s1", {}, expected_version=None))
    before = meter.used_tenths()[1]
    run(moto_tables.state.write("slot", "s1", {}, expected_version=None))
    assert meter.used_tenths()[1] == before + 10
