"""Both tables on moto and on the embedded AWS, made with the project's own clients."""

import pytest
from moto import mock_aws

from shardfleet.adapters.clients.aws_clients import AwsClients
from tests.adapters.tables import LIMITS, tables_of

AWS_KINDS = ["moto", pytest.param("embedded", marks=pytest.mark.processes)]


@pytest.fixture
def embedded_clients(embedded_aws, monkeypatch):
    """The project's clients, pointed at the embedded AWS by the environment alone."""
    for name, value in embedded_aws.environment().items():
        monkeypatch.setenv(name, value)
    return AwsClients(LIMITS)


@pytest.fixture
def moto_clients():
    with mock_aws():
        yield AwsClients(LIMITS)


@pytest.fixture
def moto_tables(moto_clients):
    with tables_of(moto_clients) as tables:
        yield tables


@pytest.fixture
def embedded_tables(embedded_clients):
    with tables_of(embedded_clients) as tables:
        yield tables


@pytest.fixture(params=AWS_KINDS)
def tables(request):
    return request.getfixturevalue(f"{request.param}_tables")
