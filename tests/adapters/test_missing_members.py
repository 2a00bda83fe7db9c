"""
Of each answer that the adapters read, each member that the model does not require is left out.

The enumeration is botocore's model's (new regions and emulators leave out what it allows to): the
call then has a result, or an error of ours, and never a bare exception.
"""

import copy
import io
import json
from contextlib import suppress
from datetime import UTC, datetime

import botocore.session
import pytest

from shardfleet.adapters.dynamodb.items import item_from_fields
from shardfleet.adapters.thread_pool import ThreadPool
from shardfleet.config import FleetConfig
from shardfleet.domain.leases import changes
from shardfleet.errors import ConfigurationError, OutcomeUnknown, ShardfleetError, Throttled
from shardfleet_ops.aws.kept_records import KeptInBucket, KeptInQueue
from shardfleet_ops.cli.cost import around_of
from shardfleet_ops.cli.fleets import FleetName, fleets_of
from shardfleet_ops.operate.given_up import FailedBucket, RefusedDocument
from shardfleet_spark.aws.schema_registries import GlueRegistry
from shardfleet_spark.plan.checkpoints import S3Checkpoint
from tests.adapters.test_every_answer import CALLS, LEASE, answer_of, stream, writer
from tests.engine.unkind_stream import ARN

SESSION = botocore.session.get_session()
NOW = datetime(2026, 1, 1, tzinfo=UTC)
SHARD = {
    "ShardId": "shardId-000000000000",
    "HashKeyRange": {"StartingHashKey": "0", "EndingHashKey": "9"},
    "SequenceNumberRange": {"StartingSequenceNumber": "1", "EndingSequenceNumber": "2"},
    "ParentShardId": "shardId-000000000001",
    "AdjacentParentShardId": "shardId-000000000002",
}
ITEM = item_from_fields(changes.create(LEASE).sets)
DOCUMENT = {
    "kind": {"S": "slot"},
    "id": {"S": "s"},
    "version": {"N": "1"},
    "body": {"M": {}},
}
SEAL = {"sid": {"S": "s"}, "item": {"S": "2-bb/00003"}, "body": {"B": b"x"}}
CONFIG = FleetConfig(
    fleet="f", stream_arn=ARN, lease_table="leases", state_table="state", worker_function="worker"
)
OWN = FailedBucket(bucket="b", folder="shardfleet/failed/1/r/f/")
KEPT = json.dumps(
    {
        "KinesisBatchInfo": {
            "streamArn": ARN,
            "shardId": SHARD["ShardId"],
            "startSequenceNumber": "1",
            "endSequenceNumber": "1",
            "batchSize": 1,
        },
        "payload": json.dumps({"Records": [{}]}),
    }
)
UNITS = {"TableName": "t", "CapacityUnits": 0.5}
# What a service answers in full, as botocore reads it; None: it has nothing that is read.
ANSWERS = {
    "kinesis": {
        "DescribeStreamSummary": {
            "StreamDescriptionSummary": {
                "StreamName": "s",
                "StreamARN": "arn",
                "StreamStatus": "ACTIVE",
                "RetentionPeriodHours": 24,
                "StreamCreationTimestamp": NOW,
                "EnhancedMonitoring": [],
                "OpenShardCount": 1,
                "MaxRecordSizeInKiB": 1024,
            }
        },
        "GetRecords": {
            "Records": [
                {
                    "SequenceNumber": "1",
                    "ApproximateArrivalTimestamp": NOW,
                    "Data": b"x",
                    "PartitionKey": "k",
                    "EncryptionType": "KMS",
                }
            ],
            "NextShardIterator": "i",
            "MillisBehindLatest": 5,
            "ChildShards": [
                {
                    "ShardId": "shardId-000000000001",
                    "ParentShards": ["shardId-000000000000"],
                    "HashKeyRange": {"StartingHashKey": "0", "EndingHashKey": "9"},
                }
            ],
        },
        "GetShardIterator": {"ShardIterator": "i"},
        "ListShards": {"Shards": [SHARD]},
        "PutRecords": {
            "FailedRecordCount": 0,
            "Records": [
                {
                    "SequenceNumber": "1",
                    "ShardId": "shardId-000000000000",
                    "ErrorCode": "InternalFailure",
                    "ErrorMessage": "no",
                }
            ],
            "EncryptionType": "KMS",
        },
    },
    "dynamodb": {
        "GetItem": {"Item": ITEM, "ConsumedCapacity": UNITS},
        "Scan": {"Items": [ITEM], "Count": 1, "ConsumedCapacity": UNITS},
        "Query": {"Items": [ITEM], "Count": 1, "ConsumedCapacity": UNITS},
        "UpdateItem": {"Attributes": ITEM, "ConsumedCapacity": UNITS},
        "PutItem": {"Attributes": ITEM, "ConsumedCapacity": UNITS},
        "DeleteItem": {"Attributes": ITEM, "ConsumedCapacity": UNITS},
        "DescribeTable": {
            "Table": {
                "TableName": "t",
                "TableStatus": "ACTIVE",
                "KeySchema": [{"AttributeName": "leaseKey", "KeyType": "HASH"}],
                "BillingModeSummary": {"BillingMode": "PAY_PER_REQUEST"},
                "GlobalSecondaryIndexes": [
                    {"IndexName": "LeaseOwnerToLeaseKeyIndex", "IndexStatus": "ACTIVE"}
                ],
            }
        },
    },
    "stepfunctions": {
        "StartExecution": {"executionArn": "arn", "startDate": NOW},
        "DescribeExecution": {
            "executionArn": "arn",
            "stateMachineArn": "arn",
            "name": "n",
            "status": "RUNNING",
            "startDate": NOW,
            "stopDate": NOW,
        },
    },
    "s3": {
        "PutObject": {"ETag": "e"},
        "GetObject": {"Body": KEPT.encode(), "ETag": "e", "ContentLength": len(KEPT)},
        "ListObjectsV2": {"Contents": [{"Key": "k", "Size": 1}], "KeyCount": 1},
        "DeleteObject": {"DeleteMarker": True, "VersionId": "v"},
    },
    "sqs": {
        "SendMessage": {"MessageId": "m", "MD5OfMessageBody": "d"},
        "ReceiveMessage": {"Messages": [{"MessageId": "m", "ReceiptHandle": "r", "Body": KEPT}]},
        "ChangeMessageVisibility": {},
        "DeleteMessage": {},
    },
    "glue": {
        "GetSchemaVersion": {
            "SchemaVersionId": "x",
            "SchemaDefinition": "{}",
            "DataFormat": "AVRO",
            "Status": "AVAILABLE",
        }
    },
    "cloudformation": {
        "ListStackResources": {
            "StackResourceSummaries": [
                {
                    "LogicalResourceId": f"Fleet{name}",
                    "PhysicalResourceId": "manager",
                    "ResourceType": kind,
                    "ResourceStatus": "CREATE_COMPLETE",
                    "LastUpdatedTimestamp": NOW,
                }
                for name, kind in (
                    ("FirstRun0123ABCD", "Custom::ShardFleetFirstRun"),
                    ("Alarm", "AWS::CloudWatch::Alarm"),
                )
            ]
        }
    },
    "sns": {"Publish": {"MessageId": "m"}},
    "cloudwatch": {
        "DescribeAlarms": {
            "MetricAlarms": [
                {
                    "AlarmName": "lag",
                    "Metrics": [
                        {
                            "Id": "m1",
                            "MetricStat": {
                                "Metric": {"Namespace": "n", "MetricName": "lag"},
                                "Period": 60,
                                "Stat": "Maximum",
                            },
                        }
                    ],
                }
            ]
        }
    },
    "lambda": {
        "GetFunctionConfiguration": {
            "FunctionName": "manager",
            "MemorySize": 256,
            "Timeout": 75,
            "Environment": {"Variables": CONFIG.to_env()},
        },
        "Invoke": {
            "StatusCode": 200,
            "FunctionError": "Unhandled",
            "LogResult": "l",
            "Payload": b"{}",
            "ExecutedVersion": "1",
        },
    },
}
METADATA = {
    "ResponseMetadata": {
        "HTTPStatusCode": 200,
        "HTTPHeaders": {"date": "Thu, 01 Jan 2026 00:00:00 GMT"},
    }
}
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


MORE_CALLS = {
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


def without(value, path):
    changed = copy.deepcopy(value)
    place = changed
    for step in path[:-1]:
        place = place[step]
    del place[path[-1]]
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
        EntityNotFoundException = KeyboardInterrupt

    class meta:  # noqa: N801 - botocore's
        class events:  # noqa: N801
            register = staticmethod(lambda *_, **__: None)

    def __init__(self, about, operation=None, path=None):
        self.about, self.operation, self.path, self.asked = about, operation, path, set()

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
                answer = without(answer, self.path)
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
            for path in optional(output_of(operation), ANSWERS[service][name]):
                yield pytest.param(about, operation, path, id=f"{about}: {name} {path}")
            for path in (("ResponseMetadata", "HTTPHeaders", "date"),):
                yield pytest.param(about, operation, path, id=f"{about}: {name} {path[-1]}")


@pytest.mark.parametrize(("about", "operation", "path"), [*cells()])
def test_a_member_that_is_missing_is_no_bare_exception(about, operation, path):
    with suppress(ShardfleetError):
        answer_of(MORE_CALLS[about](Answering(about, operation, path)))


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
