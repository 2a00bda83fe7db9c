"""What a service's model does not require may be missing: a look is then unseen, and says so."""

import copy
from datetime import UTC, datetime
from types import SimpleNamespace

import botocore.session
import pytest

from shardfleet_ops.cli.examination import _ahead_ms, _Examination
from tests.adapters.answers_in_full import METADATA
from tests.adapters.test_missing_members import CELLS, OPERATIONS, optional, without
from tests.facts.test_facts import called_by_clients

NOW = datetime(2026, 1, 1, tzinfo=UTC)
ANSWERS = {
    ("dynamodb", "DescribeTable"): {
        "Table": {
            "TableName": "t",
            "KeySchema": [{"AttributeName": "leaseKey", "KeyType": "HASH"}],
            "GlobalSecondaryIndexes": [{"IndexName": "i", "IndexStatus": "ACTIVE"}],
        }
    },
    ("kinesis", "DescribeStreamSummary"): {
        "StreamDescriptionSummary": {
            "StreamName": "s",
            "StreamARN": "arn",
            "StreamStatus": "ACTIVE",
            "RetentionPeriodHours": 24,
            "StreamCreationTimestamp": NOW,
            "EnhancedMonitoring": [],
            "OpenShardCount": 1,
        }
    },
    ("lambda", "GetFunction"): {
        "Configuration": {"FunctionName": "f", "Timeout": 60},
        "Concurrency": {"ReservedConcurrentExecutions": 1},
    },
    ("lambda", "GetAccountSettings"): {
        "AccountLimit": {"UnreservedConcurrentExecutions": 100, "ConcurrentExecutions": 1000}
    },
    ("scheduler", "GetSchedule"): {"Name": "s", "State": "ENABLED"},
    ("stepfunctions", "DescribeStateMachine"): {
        "stateMachineArn": "arn",
        "name": "m",
        "status": "ACTIVE",
        "definition": "{}",
        "roleArn": "arn",
        "type": "STANDARD",
        "creationDate": NOW,
    },
}
LOOKS = {
    "DescribeTable": lambda it: it._table("t", ("leaseKey", "HASH")),
    "DescribeStreamSummary": lambda it: it._see("the stream", it._stream, (None, 0)),
    "GetFunction": lambda it: it._function("f"),
    "GetAccountSettings": lambda it: it._see("concurrency", it._unreserved, None),
    "GetSchedule": lambda it: it._see("the schedule", it._schedule, ""),
    "DescribeStateMachine": lambda it: it._see("the machine", it._machine, ""),
}
# Left out where there is none, or by a service of before it knew it.
MAY_LACK = {"GlobalSecondaryIndexes", "IndexStatus", "Concurrency", "ReservedConcurrentExecutions"}
NOT_READ = {"TableName", "FunctionName", "ConcurrentExecutions", "Name"}
SESSION = botocore.session.get_session()


def examination(answers):
    clients = {
        service: SimpleNamespace(
            **{
                botocore.xform_name(name): lambda answer=answer, **_: copy.deepcopy(answer)
                for (of, name), answer in answers.items()
                if of == service
            }
        )
        for service, _ in answers
    }
    made = object.__new__(_Examination)
    made._config = SimpleNamespace(stream_arn="arn", state_machine_arn="arn")
    made._found = SimpleNamespace(of_type=lambda _: ["schedule"])
    made._unseen = []
    made._client = clients.__getitem__
    return made


def cells():
    for (service, name), answer in ANSWERS.items():
        shape = SESSION.get_service_model(service).operation_model(name).output_shape
        for path in optional(shape, answer):
            yield pytest.param(service, name, path, id=f"{name} {path}")


@pytest.mark.parametrize(("service", "name", "path"), [*cells()])
def test_what_an_answer_lacks_is_unseen_and_named(service, name, path):
    answers = {key: answer | METADATA for key, answer in ANSWERS.items()}
    whole = examination(answers)
    LOOKS[name](whole)
    assert whole._unseen == []
    lacking = examination(answers | {(service, name): without(answers[service, name], path)})
    LOOKS[name](lacking)
    if path[-1] in MAY_LACK | NOT_READ:
        assert lacking._unseen == []
    else:
        ((_, why),) = lacking._unseen
        assert why == f"the answer lacks '{path[-1]}'"


@pytest.mark.parametrize("headers", [{}, {"date": "soon"}, {"date": "Thu, 99 Jan 2026 00:00 GMT"}])
def test_a_clock_that_nobody_told_is_not_ahead(headers):
    assert _ahead_ms({"ResponseMetadata": {"HTTPHeaders": headers}}, 1_767_225_600_000) == 0


PRODUCT = ("layer/python/shardfleet", "functions", "spark", "tools/shardfleet_ops")
# Calls that no client method of ours makes, and what is not left out here.
OTHERWISE = {"sts AssumeRole", "kinesis SubscribeToShard"}
ELSEWHERE = {
    "dynamodb CreateTable": "only that it was made is read",
    "dynamodb UpdateTimeToLive": "nothing is read",
    "emr-serverless GetJobRun": "what is read the model requires",
    "emr-serverless StartJobRun": "what is read the model requires",
    "emr-serverless StopApplication": "nothing is read",
    "kinesis SubscribeToShard": "its events: tests/adapters/test_malformed_pages.py",
    "sqs GetQueueAttributes": "only whether there is a queue is read",
}


def test_of_every_operation_that_the_product_calls_members_are_left_out():
    there = {" ".join(OPERATIONS[cell.values[1]]) for cell in CELLS}
    there |= {f"{service} {name}" for service, name in ANSWERS}

    assert (called_by_clients(*PRODUCT) | OTHERWISE) - there == ELSEWHERE.keys()
