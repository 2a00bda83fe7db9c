"""The first run's function: invokes the manager, and always answers CloudFormation."""

import http.server
import importlib.util
import json
import threading
from pathlib import Path

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
    spec = importlib.util.spec_from_file_location("first_run_handler", FILE)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)

    def run(kind, client):
        monkeypatch.setattr(module.boto3, "client", lambda service: client)
        event = {
            "RequestType": kind,
            "ResponseURL": f"http://127.0.0.1:{cloudformation.server_port}/answer?signed=1",
            "StackId": "stack",
            "RequestId": "request",
            "LogicalResourceId": "FirstRun",
            "ResourceProperties": {"Manager": "manager"},
        }
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
        "PhysicalResourceId": "first-run",
        "StackId": "stack",
        "RequestId": "request",
        "LogicalResourceId": "FirstRun",
    }
    assert content_type == "", "the signature of the URL covers an empty content type"


def test_a_stack_that_goes_invokes_nothing_and_gets_its_answer(first_run):
    client = Lambda()

    ((_, answer),) = first_run("Delete", client)

    assert client.invocations == []
    assert answer["Status"] == "SUCCESS"


def test_a_manager_that_cannot_be_invoked_yet_does_not_fail_the_deploy(first_run):
    denied = {"Error": {"Code": "AccessDeniedException", "Message": "not yet"}}

    ((_, answer),) = first_run("Create", Lambda(ClientError(denied, "Invoke")))

    assert answer["Status"] == "SUCCESS"
    assert answer["Reason"].startswith("the schedule will invoke the lease manager: ")
