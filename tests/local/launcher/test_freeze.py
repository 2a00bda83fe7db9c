"""Hazard H10: a Lambda process is frozen after its reply, and nothing of it runs in between."""

import os
import signal
import threading
import time
from pathlib import Path

import pytest

pytestmark = pytest.mark.processes

COUNTING = """
    import threading, time

    count = 0

    def forever():
        global count
        while True:
            count += 1
            time.sleep(0.001)

    def handler(event, context):
        if not any(each.name == "left behind" for each in threading.enumerate()):
            threading.Thread(target=forever, name="left behind", daemon=True).start()
        if event:
            time.sleep(event["seconds"])
        return count
"""

SLOW = """
    import os, time

    def handler(event, context):
        if event.get("seconds"):
            print("sleeps", flush=True)
            time.sleep(event["seconds"])
        return os.getpid()
"""


def state_of(pid):
    return Path(f"/proc/{pid}/stat").read_text(encoding="utf-8").rpartition(")")[2].split()[0]


def is_gone(pid):
    try:
        return state_of(pid) == "Z"
    except FileNotFoundError:
        return True


def test_a_process_is_stopped_once_it_has_replied(make_function):
    function = make_function(COUNTING)
    function.invoke()
    (process,) = function.processes()
    assert process.frozen
    assert not process.busy
    assert state_of(process.pid) == "T"


def test_a_thread_that_outlives_its_turn_does_not_run_until_the_next_turn(make_function):
    function = make_function(COUNTING)
    before, _ = function.invoke()
    time.sleep(1.0)  # Not synchronisation: the time in which a running thread would count.
    after, _ = function.invoke()
    assert after - before < 200, f"counted {after - before} while it should have been frozen"
    later, _ = function.invoke({"seconds": 1.0})
    assert later > after, "the thread was to run on while the next turns run"


def test_the_same_process_serves_the_next_turn(make_function):
    function = make_function(SLOW)
    assert function.invoke({}) == function.invoke({})


def test_an_exception_keeps_the_process_as_lambda_does(make_function):
    function = make_function(
        """
        import os

        class NoStock(Exception):
            pass

        def handler(event, context):
            if event == "fail":
                raise NoStock("none left")
            return os.getpid()
        """
    )
    pid, _ = function.invoke()
    payload, kind = function.invoke("fail")
    assert (payload["errorType"], payload["errorMessage"]) == ("NoStock", "none left")
    assert kind == "Unhandled"
    assert function.invoke() == (pid, None)


def test_a_killed_process_is_an_error_at_once_and_the_next_turn_has_a_new_one(
    make_function, eventually
):
    function = make_function(SLOW, Timeout=120)
    answers = []
    caller = threading.Thread(
        target=lambda: answers.append((function.invoke({"seconds": 100}), time.monotonic()))
    )
    caller.start()
    eventually(lambda: "sleeps" in function.log_lines())  # Not in its init, which is repeated.
    (process,) = function.processes()
    os.kill(process.pid, signal.SIGKILL)
    killed = time.monotonic()
    caller.join(timeout=60)
    (((payload, kind), answered),) = answers
    assert payload["errorType"] == "Runtime.ExitError"
    assert payload["errorMessage"].endswith("Runtime exited with error: signal: killed")
    assert kind == "Unhandled"
    assert answered - killed < 10, "far below the function's time-out, whatever the machine's load"
    fresh, _ = function.invoke({})
    assert fresh != process.pid


def test_a_process_killed_while_frozen_is_replaced_without_an_error(make_function, eventually):
    function = make_function(SLOW)
    pid, _ = function.invoke({})
    os.kill(pid, signal.SIGKILL)
    eventually(lambda: not function.processes())
    fresh, kind = function.invoke({})
    assert kind is None
    assert fresh != pid


def test_a_time_out_kills_the_process_and_its_children(make_function, eventually):
    function = make_function(
        """
        import subprocess, time

        def handler(event, context):
            print("child", subprocess.Popen(["sleep", "600"]).pid, flush=True)
            time.sleep(600)
        """,
        Timeout=1,
    )
    payload, kind = function.invoke()
    assert payload["errorType"] == "Sandbox.Timedout"
    assert payload["errorMessage"].endswith("Task timed out after 1.00 seconds")
    assert kind == "Unhandled"
    assert not function.processes()
    (child,) = [line.split()[1] for line in function.log_lines() if line.startswith("child")]
    eventually(lambda: is_gone(child))


def test_leaving_by_exit_is_an_exit_error(make_function):
    function = make_function(
        """
        import os

        def handler(event, context):
            os._exit(3)
        """
    )
    payload, _ = function.invoke()
    assert payload["errorMessage"].endswith("Runtime exited with error: exit status 3")


@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="memory is seen on Linux only")
def test_a_process_that_needs_more_memory_than_it_has_is_killed_as_lambda_does(make_function):
    """The words are those of awslabs/amazon-s3-find-and-forget, pull request 283."""
    function = make_function(
        """
        import time

        kept = []

        def handler(event, context):
            kept.append(b"x" * event * 2**20)
            time.sleep(2)
            return len(kept[-1])
        """,
        MemorySize=256,
    )
    assert function.invoke(100) == (100 * 2**20, None)

    payload, error = function.invoke(200)

    assert error == "Unhandled"
    assert payload["errorType"] == "Runtime.ExitError"
    assert payload["errorMessage"].endswith("Error: Runtime exited with error: signal: killed")
    assert function.invoke(100) == (100 * 2**20, None)


def test_a_module_that_cannot_be_imported_is_named(make_function):
    payload, _ = make_function("import no_such_module").invoke()
    assert payload["errorType"] == "Runtime.ImportModuleError"
    assert "no_such_module" in payload["errorMessage"]


def test_a_handler_that_is_not_there_is_named(make_function):
    payload, _ = make_function("def other(event, context): pass").invoke()
    assert payload["errorType"] == "Runtime.HandlerNotFound"
    assert payload["errorMessage"] == "Handler 'handler' missing on module 'index'"


def test_turns_at_the_same_time_have_processes_of_their_own(make_function):
    function = make_function(SLOW)
    pids = []
    callers = [
        threading.Thread(target=lambda: pids.append(function.invoke({"seconds": 2})[0]))
        for _ in range(3)
    ]
    for caller in callers:
        caller.start()
    for caller in callers:
        caller.join(timeout=60)
    assert len(set(pids)) == 3


def test_the_asynchronous_settings_of_an_alias_hold(make_function, embedded_aws, eventually):
    function = make_function("def handler(event, context):\n    raise ValueError(event)\n")
    client, sqs = embedded_aws.client("lambda"), embedded_aws.client("sqs")
    queue = sqs.create_queue(QueueName=f"failed-{function.name}")["QueueUrl"]
    arn = sqs.get_queue_attributes(QueueUrl=queue, AttributeNames=["QueueArn"])["Attributes"]
    version = client.publish_version(FunctionName=function.name)["Version"]
    client.create_alias(FunctionName=function.name, Name="live", FunctionVersion=version)
    client.put_function_event_invoke_config(
        FunctionName=function.name,
        Qualifier="live",
        MaximumRetryAttempts=0,
        DestinationConfig={"OnFailure": {"Destination": arn["QueueArn"]}},
    )
    client.invoke(
        FunctionName=f"{function.name}:live", InvocationType="Event", Payload='"no retry"'
    )
    (message,) = eventually(lambda: sqs.receive_message(QueueUrl=queue).get("Messages"))
    assert "no retry" in message["Body"]
    assert len([line for line in function.log_lines() if line.startswith("START")]) == 1
