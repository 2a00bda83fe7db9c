"""
A path drops a connection that is silent for too long: 350 s behind a NAT (boto/botocore#2916).

The kernel's own first probe comes after 7,200 s; a handler that is a function of its own may take
900 s to answer.
"""

import re
import socket
from functools import cached_property

import pytest
from msgspec.structs import replace

from shardfleet.adapters.clients.account_access import Access, AccountClients
from shardfleet.adapters.clients.aws_clients import AwsClients
from shardfleet.adapters.http.connections import Endpoint, HttpConnections
from tests.adapters.tables import LIMITS
from tests.adapters.test_h2_connection import serving_h2
from tests.test_tidy import ROOT
from tests.virtual import in_a_loop

NAT_S = 350
# A call of each client.
CALLS = {
    "cloudwatch": lambda client: client.put_metric_data(Namespace="n"),
    "functions": lambda client: client.invoke(FunctionName="f"),
    "glue": lambda client: client.get_schema_version(),
    "s3": lambda client: client.list_buckets(),
    "sns": lambda client: client.list_topics(),
    "sqs": lambda client: client.list_queues(),
    "step_functions": lambda client: client.list_state_machines(),
    "stream_control": lambda client: client.list_shards(StreamName="s"),
    "stream_records": lambda client: client.list_shards(StreamName="s"),
    "table_reads": lambda client: client.list_tables(),
    "table_writes": lambda client: client.list_tables(),
}
WIRED = {"wired_control", "wired_reads", "wired_states", "wired_writes"}


def idle_s(connection):
    """Return after how much silence the kernel asks whether the other side is there."""
    if not connection.getsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE):
        return None
    return connection.getsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPIDLE)


def test_every_client_is_here():
    kinds = {
        name
        for kind in (AwsClients, AccountClients)
        for name, member in vars(kind).items()
        if isinstance(member, cached_property) and not name.startswith("_")
    }
    assert kinds == CALLS.keys() | WIRED


@pytest.mark.parametrize("name", CALLS)
def test_each_client_probes_well_before_a_path_forgets_it(name, monkeypatch):
    idle, made = [], socket.socket

    class Refused(made):
        def connect(self, _):
            idle.append(idle_s(self))
            raise ConnectionRefusedError

    clients = AccountClients(Access(region="eu-central-1", endpoint="http://127.0.0.1:1"))
    clients._limits = replace(LIMITS, calls=1, call_ms=900_000)
    client = getattr(clients, name)
    monkeypatch.setattr(socket, "socket", Refused)
    with pytest.raises(Exception, match="Could not connect"):
        CALLS[name](client)
    assert idle
    assert all(each is not None and each <= NAT_S / 3 for each in idle)


def test_our_own_connections_probe_too():
    with socket.create_server(("127.0.0.1", 0)) as server:
        endpoint = Endpoint(
            host="127.0.0.1",
            port=server.getsockname()[1],
            tls=None,
            connect_timeout_s=10,
            read_timeout_s=10,
            connections=1,
        )
        with HttpConnections(endpoint)._connect() as connection:
            assert idle_s(connection) <= NAT_S / 3


@in_a_loop
async def test_a_connection_of_pushed_records_probes_too():
    async with serving_h2() as (_, client):
        made = await client._connection()
        assert idle_s(made._transport.get_extra_info("socket")) <= NAT_S / 3


def test_whoever_opens_a_connection_has_it_probed():
    """Schema registries are asked for half a minute at most (AnswerBounds.whole_s)."""
    opening = {
        path.name: "PROBED" in source
        for folder in ("layer/python", "spark")
        for path in (ROOT / folder).rglob("*.py")
        if re.search(r"create_connection\(|open_connection\(", source := path.read_text("utf-8"))
    }
    assert opening == {"connections.py": True, "h2_connection.py": True}
