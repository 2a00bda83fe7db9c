"""What becomes of an invocation: botocore's model of Lambda judges the calls and the answers."""

import asyncio
import io
import json

import pytest
from botocore.exceptions import EndpointConnectionError, ReadTimeoutError
from botocore.response import StreamingBody
from botocore.session import get_session
from botocore.stub import Stubber

from shardfleet.adapters.clients.aws_clients import AwsClients, ConnectionLimits
from shardfleet.adapters.invoked_function import (
    LATER,
    REFUSED,
    UNUSABLE,
    FunctionAnswer,
    InvokedFunction,
)
from shardfleet.adapters.thread_pool import ThreadPool
from shardfleet.domain.slots.failure import FailureKind
from shardfleet.errors import HandlerNotLoaded, OutcomeUnknown, RightMissing, Throttled
from tests.adapters.loopback import doubted

NAME = "arn:aws:lambda:eu-central-1:111122223333:function:orders:live"
LIMITS = ConnectionLimits(writes=1, reads=1, streams=1, calls=4, call_ms=90_000)
run = asyncio.run


@pytest.fixture
def stubbed(monkeypatch):
    monkeypatch.setenv("AWS_DEFAULT_REGION", "eu-central-1")
    client = AwsClients(LIMITS).functions
    with Stubber(client) as stubber:
        yield InvokedFunction(NAME, client=client, pool=ThreadPool("calls", threads=1)), stubber


def errors_of_invoke():
    model = get_session().get_service_model("lambda").operation_model("Invoke")
    return {shape.name: shape.metadata["error"]["httpStatusCode"] for shape in model.error_shapes}


def test_every_error_of_the_model_has_its_meaning_and_none_has_two():
    known = [*LATER, *UNUSABLE, *REFUSED]

    assert len(known) == len(set(known))
    of_kms = {name for name in errors_of_invoke() if name.startswith("KMS")}
    # Seen in awslabs/aws-athena-query-federation#793; not in the model.
    of_others = {"RequestEntityTooLargeException"}
    assert set(known) | of_kms == set(errors_of_invoke()) | of_others


@pytest.mark.parametrize("code", sorted({*errors_of_invoke(), *REFUSED}))
def test_an_error_is_waited_for_or_a_persons_to_mend_or_the_events_own(stubbed, code):
    function, stubber = stubbed
    status = errors_of_invoke().get(code, 413)
    stubber.add_client_error("invoke", code, "so it is", http_status_code=status)

    if code in REFUSED:
        assert code in run(function.invoke(b"{}")).refusal
        return
    expected = Throttled if code in LATER else HandlerNotLoaded
    expected = RightMissing if code.startswith("KMS") else expected
    words = f"{NAME}.*{code}"
    if expected is Throttled:
        with pytest.raises(Throttled, match=words):
            run(function.invoke(b"{}"))
        return
    with doubted(expected, match=words) as raised:
        run(function.invoke(b"{}"))
    assert getattr(raised.value.verdict, "kind", FailureKind.FUNCTION) == FailureKind.FUNCTION


def test_one_that_is_called_is_waited_for_by_nobody(stubbed):
    function, stubber = stubbed
    asked = {"FunctionName": NAME, "InvocationType": "Event"}
    stubber.add_response("invoke", {"StatusCode": 202}, asked)
    run(function.begin())

    stubber.add_client_error("invoke", "TooManyRequestsException", http_status_code=429)
    with pytest.raises(Throttled):
        run(function.begin())


def test_a_role_that_may_not_invoke_is_a_right_that_is_missing(stubbed):
    function, stubber = stubbed
    stubber.add_client_error("invoke", "AccessDeniedException", http_status_code=403)

    with doubted(RightMissing):
        run(function.check())


@pytest.mark.parametrize(
    ("raised", "expected"),
    [
        (ReadTimeoutError(endpoint_url="https://lambda"), OutcomeUnknown),
        (EndpointConnectionError(endpoint_url="https://lambda"), Throttled),
    ],
    ids=["sent and not answered", "never sent"],
)
def test_what_was_sent_and_not_answered_may_have_run(raised, expected):
    class Client:
        def invoke(self, **_):
            raise raised

    function = InvokedFunction(NAME, client=Client(), pool=ThreadPool("calls", threads=1))

    with pytest.raises(expected):
        run(function.invoke(b"{}"))


@pytest.mark.parametrize("failed", [False, True])
def test_an_event_goes_as_it_is_and_what_comes_back_is_told(stubbed, failed):
    function, stubber = stubbed
    said = json.dumps({"batchItemFailures": []}).encode()
    answer = {"StatusCode": 200, "Payload": StreamingBody(io.BytesIO(said), len(said))}
    answer |= {"FunctionError": "Unhandled"} if failed else {}
    stubber.add_response("invoke", answer, {"FunctionName": NAME, "Payload": b'{"Records": []}'})

    assert run(function.invoke(b'{"Records": []}')) == FunctionAnswer(payload=said, failed=failed)


def test_to_look_whether_it_is_there_runs_nothing(stubbed):
    function, stubber = stubbed
    stubber.add_response(
        "invoke", {"StatusCode": 204}, {"FunctionName": NAME, "InvocationType": "DryRun"}
    )

    assert run(function.check()) is None
    stubber.assert_no_pending_responses()


def test_an_answer_is_waited_for_as_long_as_a_handler_may_take_and_asked_for_once(stubbed):
    function, _ = stubbed
    config = function._client.meta.config

    assert config.read_timeout == 90
    assert config.retries["total_max_attempts"] == 1
    assert config.max_pool_connections == 4
