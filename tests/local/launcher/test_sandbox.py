"""What Lambda does: connections die, init runs again, events come twice, and it has limits."""

import json
import os
import signal
import uuid

import pytest
from botocore.exceptions import ClientError, WaiterError

from shardfleet.config import FleetConfig
from shardfleet_local.aws.launcher import EmbeddedAws
from shardfleet_local.aws.settings import AwsBehaviour
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
    """
    An account in which everything that Lambda may do is done each time.

    Frozen connections die at once, no init is quick enough, events come twice, schedules fire
    twice, and the account is new.
    """
    behaviour = AwsBehaviour(
        silent_after_s=0.0,
        init_limit_s=0.0,
        account_concurrency=10,
        event_deliveries=2,
        schedule_firings=2,
    )
    with EmbeddedAws(behaviour=behaviour) as aws:
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
        from shardfleet.runtime.invocation import invocation

        sandbox = open_sandbox(os.environ)

        async def turn(context):
            async with invocation(sandbox, context, "manager"):
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


def test_no_concurrency_can_be_reserved_in_a_new_account_but_a_function_can_be_stopped(
    make_harshly, harsh
):
    """Facts L07 and L08, with the text of aws-samples' issue."""
    function, client = make_harshly("def handler(event, context): ..."), harsh.client("lambda")
    limits = client.get_account_settings()["AccountLimit"]
    assert limits["ConcurrentExecutions"] == limits["UnreservedConcurrentExecutions"] == 10

    def reserve(count):
        client.put_function_concurrency(
            FunctionName=function.name, ReservedConcurrentExecutions=count
        )

    with pytest.raises(client.exceptions.InvalidParameterValueException) as raised:
        reserve(1)
    assert (
        "decreases account's UnreservedConcurrentExecution below its minimum value of [10]"
        in raised.value.response["Error"]["Message"]
    )
    reserve(0)


def test_a_hundred_are_left_to_functions_without_a_reservation(make_function, embedded_aws):
    """Fact L07: the Lambda guide, "Configuring reserved concurrency"."""
    one, other = (make_function("def handler(event, context): ...") for _ in range(2))
    client = embedded_aws.client("lambda")
    client.put_function_concurrency(FunctionName=one.name, ReservedConcurrentExecutions=500)
    client.put_function_concurrency(FunctionName=other.name, ReservedConcurrentExecutions=400)
    with pytest.raises(client.exceptions.InvalidParameterValueException):
        client.put_function_concurrency(FunctionName=other.name, ReservedConcurrentExecutions=401)


def test_the_eleventh_invocation_of_a_new_account_is_throttled(make_harshly, eventually):
    """Fact L08, with the reason that tells the account's limit from a function's (L15)."""
    slow = make_harshly(
        """
        import time

        def handler(event, context):
            print("sleeps", flush=True)
            time.sleep(600)
        """
    )
    client = slow.aws.client("lambda")
    client.put_function_event_invoke_config(FunctionName=slow.name, MaximumRetryAttempts=0)
    for _ in range(5):  # Each is delivered twice.
        client.invoke(FunctionName=slow.name, InvocationType="Event", Payload=b"{}")
    eventually(lambda: slow.log_lines().count("sleeps") == 10)
    quick = make_harshly("def handler(event, context): ...")
    with pytest.raises(ClientError) as raised:
        quick.invoke()
    assert raised.value.response["Error"]["Code"] == "TooManyRequestsException"
    assert raised.value.response["Reason"] == "ConcurrentInvocationLimitExceeded"
    for process in slow.processes():
        os.kill(process.pid, signal.SIGKILL)


@pytest.mark.parametrize("name", ["AWS_REGION", "_HANDLER"])
def test_a_variable_that_lambda_sets_cannot_be_configured(make_function, embedded_aws, name):
    """Finding A6; the list is the Lambda guide's, "Defined runtime environment variables"."""
    client = embedded_aws.client("lambda")
    with pytest.raises(ClientError, match=f"InvalidParameterValueException.*request: {name}"):
        make_function("", Environment={"Variables": {name: "x", "MINE": "y"}})
    function = make_function("def handler(event, context): ...")
    with pytest.raises(ClientError, match=f"InvalidParameterValueException.*request: {name}"):
        client.update_function_configuration(
            FunctionName=function.name, Environment={"Variables": {name: "x"}}
        )


@pytest.mark.parametrize(
    ("properties", "words"),
    [
        ({"ReservedConcurrentExecutions": 1}, "below its minimum value of [10]"),
        ({"Environment": {"Variables": {"AWS_REGION": "x"}}}, "request: AWS_REGION"),
    ],
    ids=["reserved concurrency", "reserved variable"],
)
def test_a_template_is_refused_as_the_call_is(harsh, properties, words):
    """Facts L07, L08 and finding A6: the stack rolls back, and says why."""
    function = {
        "Runtime": "python3.13",
        "Handler": "index.handler",
        "Role": "arn:aws:iam::111122223333:role/any",
        "Code": {"ZipFile": "def handler(event, context): ..."},
        **properties,
    }
    body = {"Resources": {"Function": {"Type": "AWS::Lambda::Function", "Properties": function}}}
    client, name = harsh.client("cloudformation"), f"Stack{uuid.uuid4().hex[:8]}"
    client.create_stack(StackName=name, TemplateBody=json.dumps(body))
    with pytest.raises(WaiterError):
        client.get_waiter("stack_create_complete").wait(
            StackName=name, WaiterConfig={"Delay": 1, "MaxAttempts": 60}
        )
    events = client.describe_stack_events(StackName=name)["StackEvents"]
    assert any(words in event.get("ResourceStatusReason", "") for event in events)


def test_a_schedule_may_fire_twice_and_each_event_come_twice(make_harshly, harsh, eventually):
    """Facts L10 and E01: Scheduler delivers at least once, and so does Lambda's queue."""
    function = make_harshly("def handler(event, context):\n    print('turn', flush=True)\n")
    arn = harsh.client("lambda").get_function(FunctionName=function.name)["Configuration"][
        "FunctionArn"
    ]
    harsh.client("scheduler").create_schedule(
        Name=function.name,
        ScheduleExpression="at(2026-01-01T00:00:00)",
        FlexibleTimeWindow={"Mode": "OFF"},
        Target={"Arn": arn, "RoleArn": "arn:aws:iam::111122223333:role/any", "Input": "{}"},
    )
    eventually(lambda: function.log_lines().count("turn") == 4)


def test_there_is_no_shared_memory_but_there_are_processes_and_pipes(make_function):
    """Fact L02: as nalepae/pandarallel's issue 128 quotes it."""
    function = make_function(
        """
        import multiprocessing

        def handler(event, context):
            ours, theirs = multiprocessing.Pipe()
            child = multiprocessing.get_context("fork").Process(target=theirs.send, args=("hello",))
            child.start()
            child.join()
            try:
                multiprocessing.Queue()
            except OSError as error:
                return [ours.recv(), str(error)]
        """
    )
    assert function.invoke() == (["hello", "[Errno 38] Function not implemented"], None)
