"""What Lambda does to a process: init that runs again, connections that die while it is frozen."""

import pytest

from shardfleet.config import FleetConfig
from shardfleet.local.aws.launcher import EmbeddedAws
from shardfleet.local.aws.settings import AwsBehaviour
from tests.local.launcher.conftest import functions_of

pytestmark = pytest.mark.processes

CONFIG = FleetConfig(
    fleet="orders",
    stream_arn="arn:aws:kinesis:us-east-1:111122223333:stream/orders",
    lease_table="orders",
    state_table="orders-state",
    connection_idle_ms=0,
)


@pytest.fixture(scope="module")
def harsh():
    """An account whose frozen connections die at once, and where no init is quick enough."""
    with EmbeddedAws(behaviour=AwsBehaviour(silent_after_s=0.0, init_limit_s=0.0)) as aws:
        yield aws


@pytest.fixture
def make_harshly(harsh):
    with functions_of(harsh) as make:
        yield make


def test_what_is_sent_on_a_connection_that_was_frozen_reaches_nobody(make_harshly):
    """Fact L04."""
    function = make_harshly(
        """
        import os, socket
        from urllib.parse import urlsplit

        url = urlsplit(os.environ["AWS_ENDPOINT_URL"])
        connection = None

        def handler(event, context):
            global connection
            if connection is None:
                connection = socket.create_connection((url.hostname, url.port))
            connection.settimeout(event["seconds"])
            connection.sendall(b"GET / HTTP/1.1\\r\\nHost: x\\r\\n\\r\\n")
            try:
                return len(connection.recv(1)) == 1
            except TimeoutError:
                return "silence"
        """
    )
    assert function.invoke({"seconds": 30}) == (True, None)
    assert function.invoke({"seconds": 1}) == ("silence", None)


def test_after_a_freeze_no_request_leaves_on_a_connection_older_than_the_gap(make_harshly):
    """Fact L04: each call is answered at its first attempt, by botocore and by the wire."""
    function = make_harshly(
        """
        import asyncio, os, time
        from types import SimpleNamespace
        from botocore.exceptions import ClientError
        from shardfleet.runtime.bootstrap import open_sandbox
        from shardfleet.runtime.entry_points import _invocation

        sandbox = open_sandbox(os.environ)

        async def turn(context):
            async with _invocation(sandbox, context, "manager"):
                clients = sandbox.clients
                made = [
                    clients.table_reads.list_tables(),
                    clients.stream_control.list_streams(),
                    clients.step_functions.list_state_machines(),
                ]
                try:
                    clients.wire_to(sandbox.config.stream_arn)().get_records("none", limit=1)
                except ClientError as error:
                    made.append(error.response)
                return [each["ResponseMetadata"].get("RetryAttempts", 0) for each in made]

        def handler(event, context):
            time.sleep(0.01)  # so that the rest before lasted for a whole millisecond
            return asyncio.run(turn(context))
        """,
        Environment={"Variables": CONFIG.to_env()},
    )
    assert function.invoke() == ([0, 0, 0, 0], None)
    assert function.invoke() == ([0, 0, 0, 0], None)


def test_an_init_that_is_too_slow_runs_again_within_the_first_invocation(make_harshly):
    """Fact L01: what an import does beside importing may happen twice."""
    function = make_harshly("def handler(event, context):\n    return event\n")
    assert function.invoke("event") == ("event", None)
    assert function.invoke("event") == ("event", None)
    told = [line for line in function.log_lines() if line.startswith("INIT_REPORT")]
    assert [line.rpartition("\t")[2] for line in told] == ["Status: timeout"]


def test_the_init_that_runs_again_counts_against_the_functions_time_out(make_harshly):
    """Fact L01."""
    function = make_harshly("import time\ntime.sleep(600)\n", Timeout=1)
    payload, kind = function.invoke()
    assert (payload["errorType"], kind) == ("Sandbox.Timedout", "Unhandled")


def test_an_init_that_fails_runs_again(make_function):
    """Fact L01."""
    function = make_function("print('imported', flush=True)\nimport no_such_module\n")
    payload, _ = function.invoke()
    assert payload["errorType"] == "Runtime.ImportModuleError"
    assert [line for line in function.log_lines() if line == "imported"] == ["imported"] * 2
