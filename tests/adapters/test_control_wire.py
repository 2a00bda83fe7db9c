"""What a process asks first, without the SDK: it says, asks again and fails as the client does."""

import json

import pytest
from botocore.exceptions import BotoCoreError, ClientError

from shardfleet.adapters.clients.aws_clients import OF_EXECUTIONS, AwsClients
from shardfleet.adapters.http.plain_environment import plain_environment
from shardfleet.adapters.kinesis.control_wire import OPERATIONS
from shardfleet.adapters.kinesis.shards import UNREAD, list_shards
from shardfleet.adapters.sdk_errors import UsualRefusal
from tests.adapters.loopback import HANG_UP, Service, error, serving
from tests.adapters.tables import LIMITS

ARN = "arn:aws:kinesis:eu-central-1:123456789012:stream/orders"
MACHINE = "arn:aws:states:eu-central-1:123456789012:stateMachine:worker"
SUMMARY = {
    "StreamARN": ARN,
    "StreamName": "orders",
    "StreamStatus": "ACTIVE",
    "RetentionPeriodHours": 24,
    "StreamCreationTimestamp": 1_700_000_000.123,
    "MaxRecordSizeInKiB": 1024,
    "OpenShardCount": 1,
}
DESCRIBED = {"StreamDescriptionSummary": SUMMARY}
EXECUTION = {"executionArn": "e", "status": "RUNNING", "input": "{}", "startDate": 1.7e9}
# Method, arguments, answer.
CALLS = {
    "a stream": ("describe_stream_summary", {"StreamARN": ARN}, DESCRIBED),
    "a stream by its name": ("describe_stream_summary", {"StreamName": "orders"}, DESCRIBED),
    "shards": (
        "list_shards",
        {"StreamARN": ARN, "MaxResults": 7, "ShardFilter": {"Type": "AT_LATEST"}},
        {"Shards": []},
    ),
    "shards at an instant": (
        "list_shards",
        {"StreamARN": ARN, "ShardFilter": {"Type": "AT_TIMESTAMP", "Timestamp": 1.7e9 + 0.123}},
        {"Shards": []},
    ),
    "more shards": ("list_shards", {"NextToken": "more", "MaxResults": 1_000}, {"Shards": []}),
    "a start": (
        "start_execution",
        {"stateMachineArn": MACHINE, "name": "s0001-1", "input": '{"a": "\u00e9"}'},
        {"executionArn": "e", "startDate": 1.7e9},
    ),
    "an execution": ("describe_execution", {"executionArn": "e"}, EXECUTION),
}


@pytest.fixture
def clients(monkeypatch):
    """The clients of a plain environment whose services answer as a test says."""
    for name in ("AWS_CONFIG_FILE", "AWS_SHARED_CREDENTIALS_FILE", "AWS_SESSION_TOKEN"):
        monkeypatch.delenv(name, raising=False)
    service = Service((200, {}))
    with serving(service) as endpoint:
        env = {
            "AWS_ACCESS_KEY_ID": "AKIDEXAMPLE",
            "AWS_SECRET_ACCESS_KEY": "secret",
            "AWS_DEFAULT_REGION": "eu-central-1",
            "AWS_ENDPOINT_URL": endpoint,
        }
        for name, value in env.items():
            monkeypatch.setenv(name, value)
        monkeypatch.setattr("botocore.endpoint.time.sleep", lambda _s: None)
        made = AwsClients(LIMITS, plain=plain_environment(env))
        made.service = service
        for wire in (made.wired_control, made.wired_states):
            wire._sleep = lambda _s: None
        yield made
        made.drop_connections()


def outcome(call, arguments):
    """Return what a call gives, without what only the SDK's answers tell of HTTP."""
    try:
        answer = call(**arguments)
    except (ClientError, UsualRefusal) as refused:
        response = refused.response
        status = response["ResponseMetadata"]["HTTPStatusCode"]
        return response["Error"], str(refused), status
    except BotoCoreError as failed:
        return type(failed).__name__
    if UNREAD in answer:
        answer = json.loads(answer[UNREAD])
    untold = ("ResponseMetadata", "startDate")  # An execution's instants nobody asks for.
    return {name: value for name, value in answer.items() if name not in untold}


def both(clients, method, arguments, *answers):
    """Return what SDK and wire make of the same answers, and how often each asked."""
    of_states = method in OF_EXECUTIONS
    wire = clients.wired_states if of_states else clients.wired_control
    outcomes = []
    for client in (clients.step_functions if of_states else clients.stream_control, wire):
        clients.service.answers = list(answers)
        before = len(clients.service.sent)
        made = outcome(getattr(client, method), arguments)
        outcomes.append((made, len(clients.service.sent) - before))
    return outcomes


def test_every_operation_is_tried():
    assert {method for method, *_ in CALLS.values()} == {*OPERATIONS, *OF_EXECUTIONS}


@pytest.mark.parametrize("name", CALLS)
def test_a_request_says_what_the_sdks_says_and_its_answer_means_the_same(clients, name):
    method, arguments, answer = CALLS[name]

    theirs, ours = both(clients, method, arguments, (200, answer))

    assert ours == theirs
    (their_headers, their_body), (our_headers, our_body) = clients.service.sent
    assert json.loads(our_body) == json.loads(their_body)
    for header in ("host", "content-type", "x-amz-target", "x-amz-security-token"):
        assert our_headers.get(header) == their_headers.get(header)
    assert (
        our_headers["authorization"].split(", ")[0]
        == (their_headers["authorization"].split(", ")[0])
    )


@pytest.mark.parametrize(
    "body",
    [
        b'{"StreamDescriptionSummary": {"StreamCreationTimestamp": "2023-11-14T22:13:20Z"}}',
        b'{"StreamDescriptionSummary": {"RetentionPeriodHours": 24}}',
        *(b'{"StreamDescriptionSummary": {}}', b"{}", b"<html>", b""),
    ],
)
def test_a_summary_out_of_the_common_means_the_same_too(clients, body):
    theirs, ours = both(clients, "describe_stream_summary", {"StreamARN": ARN}, (200, body))
    assert ours == theirs


def test_the_time_by_the_streams_clock_comes_with_its_summary(clients):
    clients.service.answers = [(200, DESCRIBED)]
    answer = clients.wired_control.describe_stream_summary(StreamARN=ARN)
    theirs = clients.stream_control.describe_stream_summary(StreamARN=ARN)
    stated, expected = (
        each["ResponseMetadata"]["HTTPHeaders"]["date"] for each in (answer, theirs)
    )
    assert stated[:-6] == expected[:-6]  # But for the seconds.


REPEATED = {
    "throttling": error("ThrottlingException"),
    "too many": error("LimitExceededException"),
    "server": error("InternalFailure", 500),
    "page of a proxy": (502, b"<html>Bad Gateway</html>"),
    "nothing": (503, b""),
    "hang up": HANG_UP,
}
REFUSALS = {
    **REPEATED,
    "no stream": error("ResourceNotFoundException"),
    "no machine": error("StateMachineDoesNotExist"),
    "taken": error("ExecutionAlreadyExists"),
    "rights": error("AccessDeniedException"),
    "unknown": error("SomethingNew"),
}


@pytest.mark.parametrize("call", ["a stream", "shards", "a start", "an execution"])
@pytest.mark.parametrize("name", REFUSALS)
def test_a_refusal_is_the_same_error_after_as_many_attempts(clients, call, name):
    method, arguments, _ = CALLS[call]
    theirs, ours = both(clients, method, arguments, REFUSALS[name])
    assert ours == theirs
    assert (ours[1] > 1) == (name in REPEATED)


def test_pages_of_a_listing_follow_the_token_without_the_client(clients):
    clients.service.answers = [(200, {"Shards": [], "NextToken": "more"}), (200, {"Shards": []})]
    assert list_shards(clients.wired_control, ARN) == []
    assert clients.service.requests == ["ListShards", "ListShards"]
    assert "stream_control" not in vars(clients)


def test_where_the_environment_does_not_say_all_the_client_is_asked(clients):
    clients.service.answers = [(200, DESCRIBED)]
    of_the_sdk = AwsClients(LIMITS)
    answer = of_the_sdk.wired_control.describe_stream_summary(StreamARN=ARN)
    assert answer["StreamDescriptionSummary"]["StreamName"] == "orders"
    assert "stream_control" in vars(of_the_sdk)
