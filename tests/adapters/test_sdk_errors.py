"""Refused, never sent, or nobody knows: what each failure of a request becomes (hazard H1)."""

import asyncio
import socket
from contextlib import contextmanager

import pytest
from botocore.exceptions import ClientError
from botocore.parsers import ResponseParserError
from botocore.session import get_session

from shardfleet.adapters.clients.aws_clients import WRITE_TIMEOUT_S, AwsClients
from shardfleet.adapters.sdk_errors import SdkCall
from shardfleet.domain.leases import changes as lease_changes
from shardfleet.domain.leases.lease import Applied, Lease
from shardfleet.domain.refusals import CODES, RefusalKind
from shardfleet.domain.stream.sequence import ExtendedSequenceNumber
from shardfleet.errors import (
    ConfigurationError,
    KeyDenied,
    OutcomeUnknown,
    RightMissing,
    ShardfleetError,
    Throttled,
)
from tests.adapters.loopback import HANG, HANG_UP, LOSE_REPLY, Service, doubted, error, serving
from tests.adapters.tables import LIMITS, Tables

run = asyncio.run
LEASE = Lease(lease_key="shardId-000000000000", checkpoint=ExtendedSequenceNumber("100"))
RENEWAL = lease_changes.renew(LEASE)


@pytest.fixture
def tables_at(monkeypatch):
    """Both tables behind one misbehaving service."""

    @contextmanager
    def at(*answers):
        service = Service(*answers)
        with serving(service) as endpoint:
            monkeypatch.setenv("AWS_ENDPOINT_URL", endpoint)
            tables = Tables(AwsClients(LIMITS), lease_table="leases", state_table="state")
            yield tables, service

    return at


# Every write there is, as (how it is called, the operation on the wire).
WRITES = {
    "a renewal": (lambda t: t.leases.apply(RENEWAL), "UpdateItem"),
    "a creation": (lambda t: t.leases.apply(lease_changes.create(LEASE)), "PutItem"),
    "a deletion": (lambda t: t.leases.apply(lease_changes.delete(LEASE)), "DeleteItem"),
    "a document": (lambda t: t.state.write("slot", "s1", {}, expected_version=1), "UpdateItem"),
    "an increment": (lambda t: t.state.increment("prompt", "manager"), "UpdateItem"),
    "a document's deletion": (
        lambda t: t.state.delete("slot", "s1", expected_version=1),
        "DeleteItem",
    ),
}
READS = {
    "a lease": lambda t: t.leases.get("shardId-000000000000"),
    "all leases": lambda t: t.leases.scan(),
    "the index": lambda t: t.leases.keys_owned_by("me"),
    "a document": lambda t: t.state.read("slot", "s1"),
    "all documents": lambda t: t.state.list("slot"),
}


@pytest.mark.parametrize("what", WRITES)
@pytest.mark.parametrize(
    "answer",
    [HANG_UP, error("InternalServerError", 500), error("ServiceUnavailable", 503), (500, {})],
    ids=["hang up", "500", "503", "500 without a code"],
)
def test_a_write_without_a_clear_answer_is_unknown_and_was_sent_once(tables_at, what, answer):
    call, operation = WRITES[what]
    with tables_at(answer) as (tables, service):
        with pytest.raises(OutcomeUnknown):
            run(call(tables))
        assert service.requests == [operation]


def test_a_write_that_is_never_answered_is_given_up_within_two_seconds_as_unknown(tables_at):
    assert WRITE_TIMEOUT_S <= 2.0  # hazard H1
    with tables_at(HANG) as (tables, service):
        with pytest.raises(OutcomeUnknown, match="shardId-000000000000"):
            run(tables.leases.apply(RENEWAL))
        assert service.requests == ["UpdateItem"]


@pytest.mark.parametrize("what", WRITES)
def test_a_write_that_was_never_sent_is_not_applied(monkeypatch, what):
    with socket.create_server(("127.0.0.1", 0)) as closed:
        port = closed.getsockname()[1]
    monkeypatch.setenv("AWS_ENDPOINT_URL", f"http://127.0.0.1:{port}")
    tables = Tables(AwsClients(LIMITS), lease_table="leases", state_table="state")
    with pytest.raises(Throttled, match="could not connect"):
        run(WRITES[what][0](tables))


@pytest.mark.parametrize("code", sorted(c for c, what in CODES.items() if what is RefusalKind.BUSY))
def test_a_throttled_write_is_not_applied_and_was_sent_once(tables_at, code):
    with tables_at(error(code)) as (tables, service):
        with pytest.raises(Throttled, match=code):
            run(tables.leases.apply(RENEWAL))
        assert len(service.requests) == 1


# Each read once, each kind of failure once: the SDK's pauses between attempts are real.
@pytest.mark.parametrize(
    ("what", "answer"),
    [
        *((what, HANG_UP) for what in READS),
        ("a lease", error("InternalServerError", 500)),
        ("a document", error("ThrottlingException")),
    ],
    ids=str,
)
def test_a_read_without_an_answer_is_repeated_and_then_put_off(tables_at, what, answer):
    with tables_at(answer) as (tables, service):
        with pytest.raises(Throttled):
            run(READS[what](tables))
        assert len(service.requests) == 3


def test_a_read_that_is_answered_at_the_second_attempt_is_answered(tables_at):
    with tables_at(HANG_UP, (200, {})) as (tables, _):
        assert run(tables.leases.get("shardId-000000000000")) is None


@pytest.mark.parametrize("what", WRITES)
@pytest.mark.parametrize("code", ["AccessDeniedException", "KMSAccessDeniedException"])
def test_a_missing_right_says_so(tables_at, what, code):
    kind = KeyDenied if code.startswith("KMS") else RightMissing
    with tables_at(error(code)) as (tables, _), doubted(kind, match="role"):
        run(WRITES[what][0](tables))


def kms_codes():
    """Return how the services of a fleet spell the errors of KMS, from botocore's models."""
    found = {"KMS.AccessDeniedException", "KMS.ThrottlingException"}  # as SQS did, before JSON
    for service in ("kinesis", "stepfunctions", "sqs", "sns", "lambda"):
        model = get_session().get_service_model(service)
        for name in model.shape_names:
            metadata = model.shape_for(name).metadata
            if name.lower().startswith("kms") and metadata.get("exception"):
                found.add(metadata.get("error", {}).get("code", name))
    return sorted(found)


@pytest.mark.parametrize("code", kms_codes())
def test_an_error_of_kms_is_told_alike_however_a_service_spells_it(code):
    def refuse():
        raise ClientError({"Error": {"Code": code, "Message": "m"}}, "StartExecution")

    is_throttle = "hrottl" in code
    expected = pytest.raises(Throttled, match="StartExec")
    with expected if is_throttle else doubted(KeyDenied, match="StartExec"):
        SdkCall("StartExecution").run(refuse)


@pytest.mark.parametrize("what", READS)
def test_a_missing_table_is_named(tables_at, what):
    answer = error("ResourceNotFoundException")
    with tables_at(answer) as (tables, _), doubted(ConfigurationError, match=r"leases|state"):
        run(READS[what](tables))


def test_an_error_that_nobody_foresaw_names_what_was_tried(tables_at):
    words = r"renew.*shardId-0.*leases.*StrangeException"
    answer = error("StrangeException")
    with tables_at(answer) as (tables, _), pytest.raises(ShardfleetError, match=words):
        run(tables.leases.apply(RENEWAL))


def test_a_refusal_for_which_no_condition_is_false_is_an_error_and_no_lost_lease(tables_at):
    """Two readings of one condition would drop leases: better to fail loudly."""
    item = {
        "leaseKey": {"S": LEASE.lease_key},
        "leaseCounter": {"N": "0"},
        "checkpoint": {"S": "100"},
    }
    refusal = error("ConditionalCheckFailedException", Item=item)
    words = "every condition holds"
    with tables_at(refusal) as (tables, _), pytest.raises(ShardfleetError, match=words):
        run(tables.leases.apply(RENEWAL))


@pytest.mark.processes
def test_a_write_whose_reply_is_lost_is_unknown_and_is_in_the_table(embedded_tables, monkeypatch):
    """protocol.md §8 rows 10 and 11: memory must not say what the table may not say."""
    run(embedded_tables.leases.apply(lease_changes.create(LEASE)))
    behind = embedded_tables.clients.table_writes.meta.endpoint_url
    service = Service(LOSE_REPLY, behind=behind)
    with serving(service) as endpoint:
        monkeypatch.setenv("AWS_ENDPOINT_URL", endpoint)
        clients = AwsClients(LIMITS)
        tables = Tables(clients, embedded_tables.lease_table, embedded_tables.state_table)
        with pytest.raises(OutcomeUnknown):
            run(tables.leases.apply(RENEWAL))
        assert service.requests == ["UpdateItem"]
    assert run(embedded_tables.leases.get(LEASE.lease_key)).lease_counter == 1
    seen = run(embedded_tables.leases.get(LEASE.lease_key))
    assert isinstance(run(embedded_tables.leases.apply(lease_changes.renew(seen))), Applied)


ECHO = "<html>jane.doe@example.org</html>"


@pytest.mark.parametrize(
    "error",
    [
        ClientError(
            {
                "Error": {"Code": "503", "Message": ECHO},
                "ResponseMetadata": {"HTTPStatusCode": 503},
            },
            "GetRecords",
        ),
        ClientError({"Error": {"Code": "400", "Message": ECHO}}, "GetRecords"),
        ResponseParserError(f"Unable to parse response, invalid XML received: {ECHO}"),
    ],
    ids=["a proxy's page", "a refusal without a code", "what botocore quotes"],
)
@pytest.mark.parametrize("writes", [True, False])
def test_an_answer_that_is_no_json_is_not_quoted(error, writes):
    def refuse():
        raise error

    with pytest.raises(ShardfleetError) as caught:
        SdkCall("a call", writes=writes).run(refuse)
    assert "jane" not in str(caught.value)


def test_what_a_service_says_is_told_as_far_as_a_person_reads():
    def refuse():
        raise ClientError({"Error": {"Code": "X", "Message": "a" * 1_000_000}}, "GetRecords")

    with pytest.raises(ShardfleetError) as caught:
        SdkCall("a call").run(refuse)
    assert 500 < len(str(caught.value)) < 2_000
