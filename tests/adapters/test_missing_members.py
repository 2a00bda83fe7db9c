"""
Of each answer that the adapters read, each member that the model does not require is left out.

The enumeration is botocore's model's (new regions and emulators leave out what it allows to): the
call then has a result, or an error of ours, and never a bare exception.
"""

import copy
import io
from contextlib import nullcontext, suppress
from importlib.util import module_from_spec, spec_from_file_location
from types import SimpleNamespace

import botocore.session
import pytest
from botocore.session import Session

from shardfleet.adapters.clients.account_access import Access, AccountClients
from shardfleet.adapters.dynamodb.tables import ensure_state_table
from shardfleet.adapters.thread_pool import ThreadPool
from shardfleet.errors import ConfigurationError, OutcomeUnknown, ShardfleetError, Throttled
from shardfleet_ops.aws.kept_records import KeptInBucket, KeptInQueue
from shardfleet_ops.aws.owner_index import DynamoDBOwnerIndex
from shardfleet_ops.cli import logs
from shardfleet_ops.cli.cost import around_of
from shardfleet_ops.cli.fleets import FleetName, fleets_of
from shardfleet_ops.operate.given_up import FailedBucket, RefusedDocument
from shardfleet_spark.aws.schema_registries import GlueRegistry
from shardfleet_spark.plan.checkpoints import S3Checkpoint
from shardfleet_spark.publish.figures import LAG, CloudWatchFigures
from tests.adapters.answers_in_full import ANSWERS, DOCUMENT, ITEM, METADATA, SEAL
from tests.adapters.test_every_answer import (
    CALLS,
    answer_of,
    pools,
    s3_seals,
    seals,
    stream,
    writer,
)
from tests.adapters.test_every_answer import SEAL as SEAL_KEY
from tests.test_tidy import ROOT

SESSION = botocore.session.get_session()
OWN = FailedBucket(bucket="b", folder="shardfleet/failed/1/r/f/")
SEALS = dict.fromkeys(("a seal", "a plan's seals", "a seal stored"), SEAL)
# What is in the table, where it is no lease.
STORED = SEALS | dict.fromkeys(
    ("a document", "all documents", "a change of a document", "a prompt"), DOCUMENT
)
OPERATIONS = {
    botocore.xform_name(operation): (service, operation)
    for service, operations in ANSWERS.items()
    for operation in operations
}


async def redriven(kept):
    """Look, take and delete, as `redrive` does."""
    for found in await kept.look():
        if isinstance(found, RefusedDocument):
            raise ConfigurationError(found.reason)
        await kept.delete(await kept.take(found, within_s=9))


def in_session(client, call):
    """Call with every client of a session this one."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("boto3.session.Session.client", lambda *_, **__: client)
        return call()


def of_function(folder, module, call):
    """Return a call of one of our own functions' modules, whose clients are all this one."""

    def with_client(client):
        with pytest.MonkeyPatch.context() as patch:
            patch.syspath_prepend(ROOT / "functions" / folder)
            patch.setattr("boto3.client", lambda _: client)
            spec = spec_from_file_location(module, ROOT / "functions" / folder / f"{module}.py")
            found = module_from_spec(spec)
            spec.loader.exec_module(found)
            patch.setattr("urllib.request.urlopen", lambda *_, **__: nullcontext())
            return call(found, client)

    return with_client


def looked(module, client):
    event = {"Name": "n", "Plan": {}, "Stack": "s", "Fleet": "f", "GraceSeconds": 15}
    event["StartJobRun"] = {"ApplicationId": "a", "JobDriver": {"SparkSubmit": {}}}
    return module.look(event, emr=client, stacks=client, now_ms=1_900_000_000_000)


def answered(name, **properties):
    """Answer CloudFormation, which waits an hour for it, of a deletion."""
    event = dict.fromkeys(("StackId", "RequestId", "LogicalResourceId", "PhysicalResourceId"), "x")
    event |= {"RequestType": "Delete", "ResponseURL": "http://x", "ResourceProperties": properties}
    lasting = SimpleNamespace(get_remaining_time_in_millis=lambda: 0)
    return lambda module, _: getattr(module, name)(event, lasting)


def with_role(client):
    """Sign a request with the keys of a role, for which STS is asked."""
    with pytest.MonkeyPatch.context() as patch:
        made = Session.create_client
        patch.setenv("AWS_ACCESS_KEY_ID", "key")
        patch.setenv("AWS_SECRET_ACCESS_KEY", "secret")
        patch.setattr(
            Session,
            "create_client",
            lambda own, name, *a, **k: client if name == "sts" else made(own, name, *a, **k),
        )
        access = Access(
            region="eu-central-1", role_arn="arn:aws:iam::1:role/r", endpoint="http://127.0.0.1:9"
        )
        return AccountClients(access).stream_arn("s")


def log_lines(client):
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(logs, "_client", lambda _: client)
        return list(logs._Reader("group", since_ms=0).read())


END = {"On": "Delete", "WatchSeconds": "0", "GraceSeconds": "15", "Application": "A"}
MORE_CALLS = {
    "a look at a job": of_function("spark_job", "spark_look", looked),
    "a run that goes": of_function(
        "spark_job", "spark_look", lambda it, c: it.cancel("a", "r", emr=c, grace_s=15)
    ),
    "a job's end": of_function("spark_job", "spark_job", answered("end", **END)),
    "workers' end": of_function(
        "first_run", "handler", answered("handler", Manager="m", StateMachine="arn")
    ),
    "a role": with_role,
    "lines of a log": log_lines,
    "tables that are made": lambda client: ensure_state_table(client, "t"),
    "an index that is made": lambda client: DynamoDBOwnerIndex("t", pools(client)).make(),
    "seals that go": lambda client: seals(client).delete([SEAL_KEY]),
    "seals in S3 that go": lambda client: s3_seals(client).delete([SEAL_KEY]),
    "figures": lambda client: CloudWatchFigures(client, "f").put({LAG: [1.0]}, at_ms=0),
    **{name: call for name, (call, _) in CALLS.items()},
    "the largest record": lambda client: writer(client).record_bytes_most(),
    "a table's listing": lambda client: stream(client).list_shards(),
    "records kept in a bucket": lambda client: redriven(
        KeptInBucket("s3://b/p", client=client, own=OWN, pool=ThreadPool("t", threads=1))
    ),
    "records kept in a queue": lambda client: redriven(
        KeptInQueue("q", client=client, objects=client, own=OWN, pool=ThreadPool("t", threads=1))
    ),
    "a schema of Glue's": lambda client: GlueRegistry(client).schema_of("x"),
    "the names of a checkpoint": lambda client: S3Checkpoint(client, bucket="b", prefix="p").names(
        "offsets"
    ),
    "a file of a checkpoint": lambda client: S3Checkpoint(client, bucket="b", prefix="p").text(
        "offsets", "0"
    ),
    "the fleets of a stack": lambda client: in_session(client, lambda: fleets_of("stack")),
    "what stands around a fleet": lambda client: in_session(
        client, lambda: around_of(FleetName("stack"))
    ),
}


def output_of(operation):
    service, name = OPERATIONS[operation]
    return SESSION.get_service_model(service).operation_model(name).output_shape


def optional(shape, value, path=()):
    """Yield the path of each member of a value that the model does not require."""
    if shape is None:
        return  # Nothing is answered.
    if shape.type_name == "list":
        for number, each in enumerate(value):
            yield from optional(shape.member, each, (*path, number))
    if shape.type_name != "structure" or shape.name == "AttributeValue":
        return
    for name, member in shape.members.items():
        if name in value:
            if name not in shape.required_members:
                yield (*path, name)
            yield from optional(member, value[name], (*path, name))


def words(shape, value, path=()):
    """Yield the path of each member of a value of which the model lists what it may be."""
    if shape is not None and shape.type_name == "list":
        for number, each in enumerate(value):
            yield from words(shape.member, each, (*path, number))
    elif shape is not None and shape.type_name == "structure" and shape.name != "AttributeValue":
        for name in [each for each in shape.members if each in value]:
            yield from words(shape.members[name], value[name], (*path, name))
    elif getattr(shape, "enum", ()):
        yield path


def without(value, path, instead=None):
    changed = copy.deepcopy(value)
    place = changed
    for step in path[:-1]:
        place = place[step]
    del place[path[-1]]
    if instead is not None:
        place[path[-1]] = instead
    return changed


class Pages:
    """A paginator of one page."""

    def __init__(self, call):
        self.call = call

    def paginate(self, **asked):
        yield self.call(**asked)


class Answering:
    """A client of any service that answers in full, but for what one operation leaves out."""

    class exceptions:  # noqa: N801 - boto3's
        EntityNotFoundException = StateMachineDoesNotExist = KeyboardInterrupt
        ResourceNotFoundException = ValidationException = KeyboardInterrupt

    class meta:  # noqa: N801 - botocore's
        class events:  # noqa: N801
            register = staticmethod(lambda *_, **__: None)

    def __init__(self, about, operation=None, path=None, instead=None):
        self.about, self.operation, self.path, self.asked = about, operation, path, set()
        self.instead = instead

    def get_paginator(self, name):
        return Pages(getattr(self, name))

    def __getattr__(self, name):
        if name not in OPERATIONS:
            raise AttributeError(name)

        def call(**_):
            if name == "receive_message" and name in self.asked:
                return {}  # What was received is hidden.
            self.asked.add(name)
            service, operation = OPERATIONS[name]
            answer = copy.deepcopy(ANSWERS[service][operation])
            stored = STORED.get(self.about, ITEM)
            for member, value in (("Item", stored), ("Attributes", stored), ("Items", [stored])):
                answer |= {member: value} if member in answer else {}
            answer |= copy.deepcopy(METADATA)
            if name == self.operation:
                answer = without(answer, self.path, self.instead)
            for member in ("Body", "Payload"):
                if member in answer:
                    answer[member] = io.BytesIO(answer[member])
            return answer

        return call


def cells():
    for about, make in MORE_CALLS.items():
        client = Answering(about)
        try:
            answer_of(make(client))
        except ShardfleetError:
            pass
        except Exception as error:
            error.add_note(f"{about}: not answered in full")
            raise
        for operation in sorted(client.asked):
            service, name = OPERATIONS[operation]
            shape, answer = output_of(operation), ANSWERS[service][name]
            date = ("ResponseMetadata", "HTTPHeaders", "date")
            for path in (*optional(shape, answer), date):
                yield pytest.param(about, operation, path, None, id=f"{about}: {name} {path}")
            for path in words(shape, answer):
                made = f"{about}: {name} {path} of tomorrow"
                yield pytest.param(about, operation, path, "OF_TOMORROW", id=made)


CELLS = [*cells()]


@pytest.mark.parametrize(("about", "operation", "path", "instead"), CELLS)
def test_a_member_that_is_missing_or_of_tomorrow_is_no_bare_exception(
    about, operation, path, instead
):
    with suppress(ShardfleetError):
        answer_of(MORE_CALLS[about](Answering(about, operation, path, instead)))


def test_what_nobody_says_is_what_it_is_unless_set_otherwise():
    """Fact K77: a stream takes records of 1 MiB unless it is set to more."""
    path = ("StreamDescriptionSummary", "MaxRecordSizeInKiB")
    client = Answering("", "describe_stream_summary", path)
    assert answer_of(writer(client).record_bytes_most()) == 1024 * 1024


@pytest.mark.parametrize("date", ["", "soon", "Thu, 01 Jan", "Thu, 99 Jan 2026 00:00:00 GMT", "1"])
def test_a_date_that_is_none_is_no_time_of_the_service(date, monkeypatch):
    monkeypatch.setitem(METADATA["ResponseMetadata"]["HTTPHeaders"], "date", date)
    described = answer_of(stream(Answering("")).incarnation())
    assert described.service_ms is None
    assert described.retention_ms == 86_400_000


@pytest.mark.parametrize("records", [[], [{}] * 2, None, "text", [1], [{"ShardId": 1}]])
def test_an_answer_with_other_than_an_outcome_for_each_entry_says_nothing(records, monkeypatch):
    monkeypatch.setitem(ANSWERS["kinesis"]["PutRecords"], "Records", records)
    with pytest.raises(OutcomeUnknown):
        answer_of(MORE_CALLS["a request"](Answering("")))


@pytest.mark.parametrize("about", ["all leases", "the index", "all documents", "a plan's seals"])
def test_a_page_of_a_table_without_items_is_not_an_empty_table(about):
    operation = {"all leases": "scan"}.get(about, "query")
    with pytest.raises(Throttled, match="lacks Items"):
        answer_of(MORE_CALLS[about](Answering(about, operation, ("Items",))))
