"""
The stores of the product, and DynamoDB under them: memory, the embedded AWS, DynamoDB Local.

A store that answers otherwise than the others is wrong, or the judge is; what AWS documents
decides.
"""

import contextlib
import functools

import pytest

from shardfleet.adapters.clients.aws_clients import AwsClients
from tests.adapters.tables import LIMITS, tables_of
from tests.contract.conftest import AWS, RealAccount
from tests.contract.stores.dynamodb_local import NOT_THERE, DynamoDbLocal

SERVERS = {"embedded": "embedded_aws", "dynamodb-local": "dynamodb_local"}
PLACES = [pytest.param(name, marks=pytest.mark.processes) for name in SERVERS]
# The same without the SDK's shapes, as fleets do it unless `stream_calls` says otherwise.
WIRED = [pytest.param(f"{name} by wire", marks=pytest.mark.processes) for name in SERVERS]


@pytest.fixture(scope="session")
def dynamodb_local():
    """One DynamoDB Local for the whole run: use names of your own in it."""
    if not DynamoDbLocal.is_installed():
        pytest.skip(NOT_THERE)
    with DynamoDbLocal() as server:
        yield server


@pytest.fixture(params=[*PLACES, *AWS], scope="session")
def dynamodb(request):
    """A DynamoDB client of each place where there is a DynamoDB."""
    if request.param == "aws":
        return RealAccount().client("dynamodb")
    return request.getfixturevalue(SERVERS[request.param]).client("dynamodb")


@pytest.fixture(scope="session")
def clients_at():
    """The project's own clients of a place, made once: that takes longer than most tests."""
    return functools.cache(lambda _: AwsClients(LIMITS))


@pytest.fixture
def tables_at(request, clients_at, monkeypatch):
    """Make both tables, empty, at a place of that name, with the project's own clients."""
    entered = contextlib.ExitStack()

    def make(at):
        place, _, way = at.partition(" by ")
        for name, value in request.getfixturevalue(SERVERS[place]).environment().items():
            monkeypatch.setenv(name, value)
        return entered.enter_context(tables_of(clients_at(place), wired=bool(way)))

    with entered:
        yield make


@pytest.fixture(params=[*PLACES, *WIRED])
def tables(request, tables_at):
    return tables_at(request.param)
