"""
Each call of each adapter is answered each code of the table, and each status without a code (H22).

What a cell comes to is data: :data:`COMES_TO`, by what the answer means and whether the call
writes. Where a code is an answer to what a call asks ("it exists already"), :data:`OWN` says so.
"""

import asyncio
import inspect
from types import SimpleNamespace

import botocore.session
import pytest
from botocore.exceptions import ClientError

from shardfleet.adapters.dead_letters import S3DeadLetters, SnsDeadLetters, SqsDeadLetters
from shardfleet.adapters.dynamodb.kcl3 import DynamoDBKcl3Store
from shardfleet.adapters.dynamodb.leases import DynamoDBLeaseStore, TablePools
from shardfleet.adapters.dynamodb.state import DynamoDBStateStore
from shardfleet.adapters.invoked_function import InvokedFunction
from shardfleet.adapters.kinesis.polling import KinesisPolling
from shardfleet.adapters.step_functions import StepFunctionsLauncher
from shardfleet.adapters.window_states import S3WindowStates
from shardfleet.domain.leases import changes
from shardfleet.domain.leases.lease import Lease
from shardfleet.domain.reading.pages import FROM_TRIM_HORIZON
from shardfleet.domain.refusals import CODES, RefusalKind
from shardfleet.domain.stream.sequence import ExtendedSequenceNumber
from shardfleet.errors import (
    InvalidRecord,
    KeyDenied,
    OutcomeUnknown,
    RightMissing,
    ShardfleetError,
    StreamGone,
    Throttled,
    Unsettled,
)
from shardfleet.kpl.packing import OutgoingRecord
from shardfleet.producer.kinesis_writer import KinesisWriter
from shardfleet_ops.aws.owner_index import DynamoDBOwnerIndex
from shardfleet_spark.aws.seal_stores import DynamoDBSealStore, S3SealStore
from shardfleet_testkit.memory import MemoryEvents
from tests.adapters.test_dead_letters import INVOCATION, failed
from tests.engine.unkind_stream import ARN, CallsAtOnce

READ, WRITE = False, True
LEASE = Lease(lease_key="shardId-000000000000", checkpoint=ExtendedSequenceNumber("100"))
SEAL = SimpleNamespace(sid="sid", plan="0000000002-bb", partition=3)
FUNCTION = "arn:aws:lambda:eu-west-1:123456789012:function:worker:live"
MACHINE = "arn:aws:states:eu-west-1:123456789012:stateMachine:worker"


class Refusing:
    """A client of any service, whose every operation is answered the same."""

    meta = SimpleNamespace(events=SimpleNamespace(register=lambda *_, **__: None))

    def __init__(self, code, status):
        self._answer = {
            "Error": {"Code": code, "Message": "so it is"},
            "ResponseMetadata": {"HTTPStatusCode": status, "HTTPHeaders": {}},
        }

    def __getattr__(self, name):
        def refuse(**_):
            raise ClientError(self._answer, name)

        return refuse


def pools(client):
    at_once = CallsAtOnce()
    return TablePools(writes=at_once, reads=at_once, write_client=client, read_client=client)


def leases(client):
    return DynamoDBLeaseStore("leases", pools(client), events=MemoryEvents())


def state(client):
    return DynamoDBStateStore("state", pools(client))


def rows(client):
    return DynamoDBKcl3Store("leases", pools(client), own=("metrics", "coordinator"))


def stream(client):
    return KinesisPolling(ARN, records=client, control=client, pool=CallsAtOnce())


def writer(client):
    return KinesisWriter(ARN, records=client, control=client, pool=CallsAtOnce())


def bucket(client):
    return S3DeadLetters("kept", client=client, pool=CallsAtOnce(), invocation=INVOCATION)


def queue(client):
    return SqsDeadLetters("q", client=client, pool=CallsAtOnce(), invocation=INVOCATION)


class Kept:
    async def record(self, _):
        return "s3://bucket/key"


def topic(client):
    pool = CallsAtOnce()
    return SnsDeadLetters("t", client=client, pool=pool, invocation=INVOCATION, kept=Kept())


def windows(client):
    pool = CallsAtOnce()
    return S3WindowStates("kept", client=client, pool=pool, fleet="f", function_arn=FUNCTION)


def launcher(client):
    return StepFunctionsLauncher(MACHINE, client=client, pool=CallsAtOnce())


def function(client):
    return InvokedFunction("handler", client=client, pool=CallsAtOnce())


def seals(client):
    return DynamoDBSealStore(client, table="seals", clock=SimpleNamespace(now_ms=int))


def s3_seals(client):
    return S3SealStore(client, bucket="seals", prefix="")


def page(client, token):
    return stream(client).page("shardId-0", FROM_TRIM_HORIZON, resume_token=token, limit=1)


def doc(client):
    return state(client).write("slot", "s", {}, expected_version=1)


ENTRY = OutgoingRecord(data=b"x", partition_key="k")
# How each call is made, and whether it may have changed something.
CALLS = {
    "a lease": (lambda c: leases(c).get("a"), READ),
    "all leases": (lambda c: leases(c).survey(), READ),
    "the index": (lambda c: leases(c).keys_owned_by("me"), READ),
    "a renewal": (lambda c: leases(c).apply(changes.renew(LEASE)), WRITE),
    "a new lease": (lambda c: leases(c).apply(changes.create(LEASE)), WRITE),
    "an end of a lease": (lambda c: leases(c).apply(changes.delete(LEASE)), WRITE),
    "a document": (lambda c: state(c).read("slot", "s"), READ),
    "all documents": (lambda c: state(c).list("slot"), READ),
    "a change of a document": (doc, WRITE),
    "a prompt": (lambda c: state(c).increment("prompt", "manager"), WRITE),
    "an end of a document": (lambda c: state(c).delete("s", "s", expected_version=1), WRITE),
    "a KCL 3's rows": (lambda c: rows(c).found(()), READ),
    "an index's status": (lambda c: DynamoDBOwnerIndex("l", pools(c)).status(), READ),
    "an iterator": (lambda c: page(c, None), READ),
    "a page": (lambda c: page(c, "token"), READ),
    "the stream": (lambda c: stream(c).incarnation(), READ),
    "its shards": (lambda c: stream(c).list_shards(), READ),
    "a request": (lambda c: writer(c).put_records([ENTRY]), WRITE),
    "a producer's shards": (lambda c: writer(c).list_shards(), READ),
    "a start": (lambda c: launcher(c).start("name", "{}"), WRITE),
    "an execution": (lambda c: launcher(c).status("name"), READ),
    "an object kept": (lambda c: bucket(c).record(failed(b"x")), WRITE),
    "a message": (lambda c: queue(c).record(failed(b"x")), WRITE),
    "a topic told": (lambda c: topic(c).record(failed(b"x")), WRITE),
    "a window's state kept": (lambda c: windows(c).keep("shard", "t", "{}"), WRITE),
    "a window's state": (lambda c: windows(c).fetch("s3://kept/key"), READ),
    "a handler asked for": (lambda c: function(c).check(), READ),
    "a handler invoked": (lambda c: function(c).invoke(b"{}"), WRITE),
    "a seal": (lambda c: seals(c).get(SEAL), READ),
    "a plan's seals": (lambda c: seals(c).read_plan("sid", "plan"), READ),
    "a seal stored": (lambda c: seals(c).put_if_absent(SEAL, b"x"), WRITE),
    "a seal in S3": (lambda c: s3_seals(c).get(SEAL), READ),
    "a seal stored in S3": (lambda c: s3_seals(c).put_if_absent(SEAL, b"x"), WRITE),
}
# Statuses without a code, each as botocore reads it: the status for the code.
STATUSES = {
    **dict.fromkeys((301, 307, 400, 401, 403, 404, 405, 407, 409, 411, 412), RefusalKind.STRANGE),
    **dict.fromkeys(
        (413, 414, 415, 417, 418, 421, 422, 423, 425, 431, 451, 499), RefusalKind.STRANGE
    ),
    **dict.fromkeys(
        (408, 500, 501, 502, 503, 504, 505, 507, 509, 520, 522, 529), RefusalKind.BROKEN
    ),
    429: RefusalKind.BUSY,
}
MORE = {
    "KMSThrottlingException": RefusalKind.BUSY,
    "KmsAccessDeniedException": RefusalKind.KEY_DENIED,
    "KMS.DisabledException": RefusalKind.KEY_DENIED,
    "KMSInvalidStateException": RefusalKind.KEY_DENIED,
    "SomethingNobodyKnows": RefusalKind.ODD,
}
ANSWERS = [
    *((code, 400, meaning) for code, meaning in (CODES | MORE).items()),
    *((str(status), status, meaning) for status, meaning in STATUSES.items()),
    ("SomethingNobodyKnows", 503, RefusalKind.BROKEN),
    ("SomethingNobodyKnows", 429, RefusalKind.BUSY),
]
# What is raised, and of what is doubted, the verdict; by what it means: of a read, of a write.
COMES_TO = {
    RefusalKind.BUSY: ((Throttled, None), (Throttled, None)),
    RefusalKind.BROKEN: ((Throttled, None), (OutcomeUnknown, None)),
    RefusalKind.UNTRUSTED: ((Unsettled, RightMissing), (Unsettled, RightMissing)),
    RefusalKind.DENIED: ((Unsettled, RightMissing), (Unsettled, RightMissing)),
    RefusalKind.KEY_DENIED: ((Unsettled, KeyDenied), (Unsettled, KeyDenied)),
    RefusalKind.ODD: ((Unsettled, ShardfleetError), (Unsettled, ShardfleetError)),
    RefusalKind.STRANGE: ((Unsettled, ShardfleetError), (OutcomeUnknown, None)),
}
# Other meanings of a code that the table has: of what is denied in S3 it is looked
# whether there is anything to read; a request that is too large is divided.
OWN = {("a seal in S3", "AccessDenied"), ("a request", "413")}
# What of other calls would be any error.
VERDICTS = {("a request", RefusalKind.ODD): InvalidRecord}


def test_every_meaning_is_answered_and_there_are_so_many_cells():
    assert {meaning for *_, meaning in ANSWERS} == set(RefusalKind) == set(COMES_TO)
    assert len(CALLS) * len(ANSWERS) > 3_000


# By what is in it, a request is refused with these; the first is in the model, the others were met
# (awslabs/amazon-kinesis-producer#680, facts K60 and K61, boto/boto3#1147).
IN_THE_REQUEST = [
    ("InvalidArgumentException", 400),
    ("ValidationException", 400),
    ("SerializationException", 400),
    ("413", 413),
    ("RequestEntityTooLargeException", 413),
]


@pytest.mark.parametrize(("code", "status"), IN_THE_REQUEST)
def test_what_is_wrong_in_a_request_to_a_stream_is_said_at_once(code, status):
    with pytest.raises(InvalidRecord, match=f"{code}: "):
        answer_of(CALLS["a request"][0](Refusing(code, status)))


def test_each_error_of_the_model_is_one_of_the_request_of_the_stream_or_passes():
    model = botocore.session.get_session().get_service_model("kinesis")
    errors = {shape.name for shape in model.operation_model("PutRecords").error_shapes}
    kinds = {}
    for code in errors:
        with pytest.raises(ShardfleetError) as caught:
            answer_of(CALLS["a request"][0](Refusing(code, 400)))
        kinds.setdefault(type(caught.value), set()).add(code)
    assert kinds.pop(InvalidRecord) == {"InvalidArgumentException"}
    assert kinds.pop(StreamGone) == {"ResourceNotFoundException"}
    assert kinds.keys() == {Throttled, OutcomeUnknown, Unsettled}


def answer_of(made):
    """Return what a call returns, which some do at once."""

    async def awaited():
        return await made

    return asyncio.run(awaited()) if inspect.isawaitable(made) else made


@pytest.mark.parametrize("call", CALLS)
def test_every_answer_to_a_call_means_what_the_table_says(call):
    make, writes = CALLS[call]
    for code, status, meaning in ANSWERS:
        if (call, code) in OWN:
            continue
        raised, verdict = COMES_TO[meaning][writes]
        verdict = VERDICTS.get((call, meaning), verdict)
        with pytest.raises(ShardfleetError) as caught:
            answer_of(make(Refusing(code, status)))
        came = type(caught.value), type(getattr(caught.value, "verdict", None))
        assert came == (raised, verdict or type(None)), (code, status)
