"""The wire of the tables says, asks again and fails as the SDK's client does."""

import base64
import json
from functools import partial
from zlib import crc32

import botocore.session
import pytest
from botocore.exceptions import BotoCoreError, ClientError
from hypothesis import given, settings
from hypothesis import strategies as st

from shardfleet.adapters.clients.aws_clients import AwsClients
from shardfleet.adapters.dynamodb.wire import OPERATIONS, TableWire, open_tables
from shardfleet.adapters.http.client_wire import USUAL_REFUSALS
from shardfleet.adapters.sdk_errors import UsualRefusal
from tests.adapters.loopback import HANG_UP, Service, error, serving
from tests.adapters.tables import LIMITS

KEY = {"leaseKey": {"S": "shardId-1"}}
TEXTS = st.text(st.characters(codec="utf-8"), max_size=12) | st.sampled_from(
    ["", "null", '"B":', '{"B": 1}', "\u0000", "\U0001f600", "\\u0042"]
)
NUMBERS = st.integers(-(10**38) + 1, 10**38 - 1).map(str) | st.sampled_from(["-0", "1E-130", "1.5"])
BINARY = st.binary(max_size=9)
SCALARS = st.one_of(
    TEXTS.map(lambda v: {"S": v}),
    NUMBERS.map(lambda v: {"N": v}),
    st.booleans().map(lambda v: {"BOOL": v}),
    st.just({"NULL": True}),
    BINARY.map(lambda v: {"B": v}),
    st.lists(TEXTS, min_size=1, max_size=3).map(lambda v: {"SS": v}),
    st.lists(NUMBERS, min_size=1, max_size=3).map(lambda v: {"NS": v}),
    st.lists(BINARY, min_size=1, max_size=3).map(lambda v: {"BS": v}),
)
VALUES = st.recursive(
    SCALARS,
    lambda inner: (
        st.lists(inner, max_size=3).map(lambda v: {"L": v})
        | st.dictionaries(TEXTS, inner, max_size=3).map(lambda v: {"M": v})
    ),
    max_leaves=6,
)
ITEMS = st.dictionaries(TEXTS, VALUES, max_size=5)


@pytest.fixture(scope="module")
def clients():
    """The clients of a service that answers as a test says."""
    session = botocore.session.Session()
    session.set_credentials("AKIDEXAMPLE", "secret", "token-of-the-sandbox")
    session.set_config_variable("region", "eu-central-1")
    service = Service((200, {}))
    with serving(service) as endpoint, pytest.MonkeyPatch.context() as patch:
        patch.setattr("botocore.endpoint.time.sleep", lambda _s: None)
        made = AwsClients(LIMITS, endpoint=endpoint, session=session)
        made.service, made.session = service, session
        yield made
        made.drop_connections()


def wired(client, clients):
    opened = partial(open_tables, client, clients.session)
    count = clients.capacity.count
    return TableWire(lambda: client, opened, count=count, sleep=lambda _s: None)


def outcome(call, **arguments):
    """Return what a call gives, without what only the SDK's answers tell of HTTP."""
    try:
        told = call(**arguments)
    except (ClientError, UsualRefusal) as refused:
        code = refused.response["Error"]["Code"]
        kind = code if isinstance(refused, UsualRefusal) else type(refused).__name__
        told = {**refused.response, "is": kind, "says": said_by(refused)}
        told["status"] = refused.response["ResponseMetadata"]["HTTPStatusCode"]
    except BotoCoreError as failed:
        return type(failed).__name__
    return {name: value for name, value in told.items() if name != "ResponseMetadata"}


def said_by(refused):
    """Return an error's text, but for the SDK's note that it does not repeat what it may not."""
    return str(refused).replace(" (reached max retries: 0)", "")


def both(clients, method, *answers, writes=False, **arguments):
    """Return what SDK and wire make of the same answers, and how often each asked."""
    client = clients.table_writes if writes else clients.table_reads
    found = []
    for call in (client, wired(client, clients)):
        clients.service.answers = list(answers)
        before = len(clients.service.sent), clients.capacity.used_tenths()
        told = outcome(getattr(call, method), TableName="leases", **arguments)
        used = [b - a for a, b in zip(before[1], clients.capacity.used_tenths(), strict=True)]
        found.append((told, len(clients.service.sent) - before[0], used))
    return found


def as_json(value, **how):
    return json.dumps(value, default=lambda v: base64.b64encode(v).decode(), **how).encode()


@given(items=st.lists(ITEMS, max_size=4), last=ITEMS, escapes=st.booleans(), blank=st.booleans())
@settings(deadline=None, max_examples=60)
def test_every_answer_means_what_it_means_to_the_sdk(clients, items, last, escapes, blank):
    scan = {"Items": items, "Count": len(items), "ScannedCount": 9, "LastEvaluatedKey": last}
    scan["ConsumedCapacity"] = {"TableName": "leases", "CapacityUnits": 0.5}
    body = as_json(scan, ensure_ascii=escapes, indent=1 if blank else None)

    theirs, ours = both(clients, "scan", (200, body))

    assert ours == theirs
    assert ours == (scan, 1, [5, 0])


@pytest.mark.parametrize(
    "body",
    [
        b'{"Item": null}',
        b'{"Item": {"a": {"\\u0042": "AAA="}}}',
        b'{"Item": {"a": {"S": "\\ud800"}}}',
        b'{"Item": {"a": {"S": "x"}}',
        b"<html>",
        b"",
    ],
)
def test_an_answer_out_of_the_common_means_the_same_too(clients, body):
    theirs, ours = both(clients, "get_item", (200, body), Key=KEY)
    assert ours == theirs


@given(item=ITEMS, name=TEXTS, value=VALUES)
@settings(deadline=None, max_examples=20)
def test_every_request_says_what_the_sdks_says(clients, item, name, value):
    arguments = {
        "put_item": {"Item": item, "ConditionExpression": "attribute_not_exists(#a)"},
        "update_item": {"Key": KEY, "UpdateExpression": "SET #a = :a", "ReturnValues": "ALL_NEW"},
        "delete_item": {"Key": KEY, "ReturnValuesOnConditionCheckFailure": "ALL_OLD"},
        "get_item": {"Key": KEY, "ConsistentRead": True},
        "query": {"IndexName": "i" * 3, "ExpressionAttributeValues": {":a": value}, "Limit": 7},
        "scan": {"ExclusiveStartKey": item, "ExpressionAttributeNames": {"#a": name}},
    }
    assert arguments.keys() == OPERATIONS.keys()
    for method, given_ in arguments.items():
        both(clients, method, (200, {}), **given_)
        (theirs, their_body), (ours, our_body) = clients.service.sent[-2:]
        assert json.loads(our_body) == json.loads(their_body)
        for header in ("host", "content-type", "x-amz-target", "x-amz-security-token"):
            assert ours[header] == theirs[header]
        scope, rest = ours["authorization"].split(", ", 1)
        assert theirs["authorization"].startswith(scope)
        assert rest.split(", ")[0] == theirs["authorization"].split(", ")[1]


REFUSED = error("ConditionalCheckFailedException", Item={"a": {"B": "AAEC"}, "n": {"N": "1"}})
REFUSALS = {
    "condition": REFUSED,
    "condition without item": error("ConditionalCheckFailedException"),
    "condition, damaged": (*REFUSED, ("x-amz-crc32", "1")),
    "condition, another item": error("ConditionalCheckFailedException", Item={"n": {"N": "1"}}),
    "condition of a server": error("ConditionalCheckFailedException", 500),
    "throttle": error("ProvisionedThroughputExceededException"),
    "throttling": error("ThrottlingException"),
    "no table": error("ResourceNotFoundException"),
    "validation": error("ValidationException"),
    "rights": error("AccessDeniedException"),
    "unknown": error("SomethingNew"),
    "server": error("InternalServerError", 500),
    "page of a proxy": (502, b"<html>Bad Gateway</html>"),
    "nothing": (503, b""),
    "hang up": HANG_UP,
    "another sum": (200, {"Item": KEY}, ("x-amz-crc32", "1")),
    "the sum": (200, b"{}", ("x-amz-crc32", str(crc32(b"{}")))),
}


@pytest.mark.parametrize("writes", [True, False], ids=["writes", "reads"])
@pytest.mark.parametrize("name", REFUSALS)
def test_a_refusal_is_the_same_error_after_as_many_attempts(clients, name, writes):
    theirs, ours = both(clients, "get_item", REFUSALS[name], writes=writes, Key=KEY)
    assert ours == theirs
    repeated = {"throttle", "throttling", "server", "page of a proxy", "nothing", "hang up"}
    repeated |= {"condition, damaged", "condition of a server", "another sum"}
    expected = 3 if name in repeated and not writes else 1
    assert ours[1] == expected


@pytest.mark.parametrize("code", sorted(USUAL_REFUSALS))
def test_a_usual_refusal_is_what_the_sdk_makes_of_it_and_the_sdk_is_not_asked(clients, code):
    said = error(code)
    theirs, ours = both(clients, "get_item", said, Key=KEY)
    assert ours[0]["Error"] == theirs[0]["Error"]
    assert ours[1:] == theirs[1:]

    def client():
        raise AssertionError("the client was asked")

    opened = partial(open_tables, clients.table_reads, clients.session)
    wire = TableWire(client, opened, count=clients.capacity.count)
    clients.service.answers = [said]
    with pytest.raises(UsualRefusal, match=code):
        wire.get_item(TableName="leases", Key=KEY)


def test_a_read_is_answered_after_a_failure(clients):
    failure = error("InternalServerError", 500)
    theirs, ours = both(clients, "get_item", failure, HANG_UP, (200, {"Item": KEY}), Key=KEY)
    assert ours == theirs == ({"Item": KEY}, 3, [0, 0])


def test_what_the_wire_cannot_do_is_left_to_the_client(clients, monkeypatch):
    monkeypatch.setenv("HTTP_PROXY", "http://127.0.0.1:9")
    monkeypatch.setenv("NO_PROXY", "")
    wire = wired(clients.table_writes, clients)
    sent = []
    client = clients.table_writes
    monkeypatch.setattr(client, "get_item", lambda **given_: sent.append(given_), raising=False)
    wire.get_item(TableName="leases", Key=KEY)
    monkeypatch.delenv("HTTP_PROXY")
    arn = "arn:aws:dynamodb:eu-central-1:123456789012:table/leases"
    wired(client, clients).get_item(TableName=arn, Key=KEY)
    assert [given_["TableName"] for given_ in sent] == ["leases", arn]
    assert wire.meta is client.meta
