"""The first run's function: invokes the manager, and always answers CloudFormation."""

import http.server
import importlib.util
import json
import threading
from pathlib import Path

import boto3
import pytest
from botocore.exceptions import ClientError

FILE = Path(__file__).resolve().parents[2] / "functions/first_run/handler.py"


class Answers(http.server.BaseHTTPRequestHandler):
    """Takes CloudFormation's part: keeps what is put to the response URL."""

    def do_PUT(self):
        length = int(self.headers["Content-Length"])
        self.server.answers.append(
            (self.headers["Content-Type"], json.loads(self.rfile.read(length)))
        )
        self.send_response(200)
        self.end_headers()

    def log_message(self, *args):
        pass


@pytest.fixture
def cloudformation():
    with http.server.HTTPServer(("127.0.0.1", 0), Answers) as server:
        server.answers = []
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        yield server
        server.shutdown()
        thread.join()


class Lambda:
    """Takes the Lambda client's part."""

    def __init__(self, error=None):
        self.error = error
        self.invocations = []

    def invoke(self, **arguments):
        self.invocations.append(arguments)
        if self.error:
            raise self.error


@pytest.fixture
def first_run(monkeypatch, cloudformation):
    monkeypatch.syspath_prepend(FILE.parent)
    spec = importlib.util.spec_from_file_location("first_run_handler", FILE)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)

    def run(kind, client):
        monkeypatch.setattr(boto3, "client", lambda service: client)
        event = {
            "RequestType": kind,
            "ResponseURL": f"http://127.0.0.1:{cloudformation.server_port}/answer?signed=1",
            "StackId": "stack",
            "RequestId": "request",
            "LogicalResourceId": "FirstRun",
            "ResourceProperties": {"Manager": "manager", "StateMachine": "machine"},
        }
        if kind != "Create":  # AWS: a Create has none yet.
            event["PhysicalResourceId"] = "manager-before"
        module.handler(event, None)
        return cloudformation.answers

    return run


@pytest.mark.parametrize("kind", ["Create", "Update"])
def test_the_manager_is_invoked_without_waiting_for_it(first_run, kind):
    client = Lambda()

    ((content_type, answer),) = first_run(kind, client)

    (invocation,) = client.invocations
    assert (invocation["FunctionName"], invocation["InvocationType"]) == ("manager", "Event")
    assert answer == {
        "Status": "SUCCESS",
        "Reason": "the lease manager was invoked",
        "PhysicalResourceId": "manager",
        "StackId": "stack",
        "RequestId": "request",
        "LogicalResourceId": "FirstRun",
    }
    assert content_type == "", "the signature of the URL covers an empty content type"


class Account:
    """Takes the part of CloudFormation's and Step Functions' clients."""

    class exceptions:  # noqa: N801 - botocore's name
        class StateMachineDoesNotExist(Exception):
            pass

    def __init__(self, status):
        self.status = status
        self.done = []

    def describe_stacks(self, **arguments):
        assert arguments == {"StackName": "stack"}
        return {"Stacks": [{"StackStatus": self.status}]}

    def delete_state_machine(self, **arguments):
        self.done.append(("deleted", arguments["stateMachineArn"]))

    def get_paginator(self, operation):
        assert operation == "list_executions"
        return self

    def paginate(self, **arguments):
        assert arguments == {"stateMachineArn": "machine", "statusFilter": "RUNNING"}
        yield {"executions": [{"executionArn": "one"}]}
        yield {"executions": [{"executionArn": "two"}]}

    def stop_execution(self, **arguments):
        self.done.append(("stopped", arguments["executionArn"]))


@pytest.mark.parametrize("status", ["DELETE_IN_PROGRESS", "ROLLBACK_IN_PROGRESS"])
def test_the_workers_of_a_stack_that_goes_are_ended_and_none_can_be_started_meanwhile(
    first_run, status
):
    """Finding A11, fact S09: else the deletion waits for their turns, 930 s at most."""
    client = Account(status)

    ((_, answer),) = first_run("Delete", client)

    assert client.done == [("deleted", "machine"), ("stopped", "one"), ("stopped", "two")]
    assert (answer["Status"], answer["Reason"]) == ("SUCCESS", "2 executions were stopped")


def test_the_workers_of_a_stack_that_stays_go_on(first_run):
    client = Account("UPDATE_COMPLETE_CLEANUP_IN_PROGRESS")

    ((_, answer),) = first_run("Delete", client)

    assert client.done == []
    assert (answer["Status"], answer["PhysicalResourceId"]) == ("SUCCESS", "manager-before")


def test_a_manager_that_cannot_be_invoked_yet_does_not_fail_the_deploy(first_run):
    denied = {"Error": {"Code": "AccessDeniedException", "Message": "not yet"}}

    ((_, answer),) = first_run("Create", Lambda(ClientError(denied, "Invoke")))

    assert answer["Status"] == "SUCCESS"
    assert answer["Reason"].startswith("the schedule will invoke the lease manager: ")
