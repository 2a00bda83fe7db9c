"""Lambda's Kinesis event, field for field, and Powertools reading it."""

import asyncio
import base64
import json

import pytest
from aws_lambda_powertools.utilities.data_classes import KinesisStreamEvent
from aws_lambda_powertools.utilities.parser.models import KinesisDataStreamModel

from shardfleet.errors import InvalidReply
from shardfleet.records import Batch, Record, TumblingWindow
from shardfleet.runtime.handler_call import (
    EventSource,
    HandlerCaller,
    kinesis_event,
    result_of_reply,
)
from shardfleet.runtime.handler_loading import as_handler

STREAM_ARN = "arn:aws:kinesis:eu-west-1:123456789012:stream/orders"
FUNCTION_ARN = "arn:aws:lambda:eu-west-1:123456789012:function:worker:live"
SOURCE = EventSource.of(STREAM_ARN, function_arn=FUNCTION_ARN)


def a_record(number=1, **fields):
    given = {
        "data": b"\x00hello\xff",
        "partition_key": "customer-7",
        "sequence_number": f"4959033827149025660855969254{number:04d}",
        "shard_id": "shardId-000000000003",
        "approximate_arrival_ms": 1_700_000_000_123,
    }
    return Record(**{**given, **fields})


def a_batch(*records):
    return Batch(
        records,
        shard_id="shardId-000000000003",
        stream_arn=STREAM_ARN,
        millis_behind_latest=0,
        attempt=1,
        deadline_ms=0,
    )


def test_an_event_has_the_thirteen_fields_of_lambdas_and_nothing_else():
    event = kinesis_event(a_batch(a_record()), SOURCE)

    assert event == {
        "Records": [
            {
                "kinesis": {
                    "kinesisSchemaVersion": "1.0",
                    "partitionKey": "customer-7",
                    "sequenceNumber": "49590338271490256608559692540001",
                    "data": "AGhlbGxv/w==",
                    "approximateArrivalTimestamp": 1_700_000_000.123,
                },
                "eventSource": "aws:kinesis",
                "eventVersion": "1.0",
                "eventID": "shardId-000000000003:49590338271490256608559692540001",
                "eventName": "aws:kinesis:record",
                "invokeIdentityArn": FUNCTION_ARN,
                "awsRegion": "eu-west-1",
                "eventSourceARN": STREAM_ARN,
            }
        ]
    }
    assert json.loads(json.dumps(event)) == event


def test_records_out_of_an_aggregate_say_their_place_and_share_their_event_id():
    records = [a_record(sub_sequence_number=n, aggregated=True) for n in range(2)]
    first, second = kinesis_event(a_batch(*records), SOURCE)["Records"]

    assert [r["kinesis"]["subSequenceNumber"] for r in (first, second)] == [0, 1]
    assert first["eventID"] == second["eventID"]


def test_an_explicit_hash_key_is_passed_on():
    (record,) = kinesis_event(a_batch(a_record(explicit_hash_key="17")), SOURCE)["Records"]

    assert record["kinesis"]["explicitHashKey"] == "17"


def test_powertools_data_class_and_parser_accept_the_event():
    batch = a_batch(a_record(1), a_record(2, sub_sequence_number=4, aggregated=True))
    event = kinesis_event(batch, SOURCE)

    for found in KinesisStreamEvent(event).records:
        assert found.kinesis.data_as_bytes() == b"\x00hello\xff"
        assert found.kinesis.partition_key == "customer-7"
    model = KinesisDataStreamModel(**event)
    assert model.Records[0].kinesis.data == b"\x00hello\xff"
    assert model.Records[1].kinesis.sequenceNumber.endswith("0002")
    assert base64.b64decode(event["Records"][0]["kinesis"]["data"]) == batch[0].data


# --- tumbling windows: AWS Lambda's guide, "Implementing stateful Kinesis Data Streams processing"

STARTS_MS = 1_596_128_400_000  # 2020-07-30T17:00:00Z, as in the guide's example


def a_window_call(*records, is_final=False, is_early=False, **state):
    batch = a_batch(*records)
    window = TumblingWindow(
        start_ms=STARTS_MS,
        end_ms=STARTS_MS + 300_000,
        is_final=is_final,
        is_terminated_early=is_early,
    )
    batch.window, batch.state = window, state
    return batch


def event_of(batch):
    """Return the event that a handler of Lambda's contract is called with."""
    given = []

    def handler(event, context):
        given.append(json.loads(json.dumps(event)))
        return {"state": event["state"]}

    caller = HandlerCaller(
        as_handler(handler, name="test:handler"), context=None, source=SOURCE, now_ms=lambda: 0
    )
    assert caller.call(batch).error is None
    return given[0]


def test_the_event_of_a_window_has_the_fields_of_lambdas_and_nothing_else():
    event = event_of(a_window_call(a_record(), **{"1": 282, "2": 715}))

    del event["Records"]
    assert event == {
        "window": {"start": "2020-07-30T17:00:00Z", "end": "2020-07-30T17:05:00Z"},
        "state": {"1": 282, "2": 715},
        "shardId": "shardId-000000000003",
        "eventSourceARN": STREAM_ARN,
        "isFinalInvokeForWindow": False,
        "isWindowTerminatedEarly": False,
    }


def test_powertools_window_classes_read_the_event_and_its_parser_the_records():
    event = event_of(a_window_call(a_record(), n=3))
    found = KinesisStreamEvent(event)
    assert (found.window.start, found.window.end) == (
        "2020-07-30T17:00:00Z",
        "2020-07-30T17:05:00Z",
    )
    assert found.state == {"n": 3}
    assert found.shard_id == "shardId-000000000003"
    assert found.event_source_arn == STREAM_ARN
    assert found.is_final_invoke_for_window is False
    assert found.is_window_terminated_early is False
    # Its parser has no model of a window: it takes the records, and the rest for extra fields.
    assert len(KinesisDataStreamModel(**event).Records) == 1

    last = KinesisStreamEvent(event_of(a_window_call(is_final=True, is_early=True, n=3)))
    assert list(last.records) == []
    assert last.is_final_invoke_for_window is True
    assert last.is_window_terminated_early is True


def test_a_batch_of_a_window_has_no_checkpoint_of_its_own():
    batch = a_window_call(a_record())

    with pytest.raises(ValueError, match=r"checkpoint\(\): not with tumbling windows"):
        batch.checkpoint()


def test_a_partial_failure_of_a_window_brings_the_state_of_what_is_before_it():
    first, second = a_record(1), a_record(2)
    failed = {"batchItemFailures": [{"itemIdentifier": second.sequence_number}]}
    result = result_of_reply({"state": {"n": 1}, **failed}, [first, second], in_window=True)
    assert (result.done_count, result.state) == (1, '{"n":1}')

    failed = {"batchItemFailures": [{"itemIdentifier": first.sequence_number}]}
    result = result_of_reply({"state": {"n": 1}, **failed}, [first, second], in_window=True)
    assert (result.done_count, result.state) == (0, None)


# --- replies: AWS Lambda's guide, "Configuring partial batch response with Kinesis Data Streams"


def native(reply):
    return lambda batch: reply


def event(reply):
    return lambda event, context=None: reply


def hidden_coroutine(reply):
    async def inside():
        return reply

    return lambda batch: inside()


@pytest.fixture(params=[native, event, hidden_coroutine])
def call(request):
    """Call a handler of either contract that gives a reply; return the result."""

    def call(reply, batch):
        handler = as_handler(request.param(reply), name="orders:handle")
        caller = HandlerCaller(handler, context=None, source=SOURCE, now_ms=lambda: 0)
        loop = asyncio.new_event_loop()
        asyncio.set_event_loop(loop)
        try:
            return caller.call(batch)
        finally:
            asyncio.set_event_loop(None)
            loop.close()

    return call


@pytest.mark.parametrize(
    ("reply", "done"),
    [
        (None, 3),
        ({}, 3),
        ({"batchItemFailures": None}, 3),
        ({"batchItemFailures": []}, 3),
        ({"batchItemFailures": [{"itemIdentifier": "SECOND"}]}, 1),
        ({"batchItemFailures": [{"itemIdentifier": "THIRD"}, {"itemIdentifier": "SECOND"}]}, 1),
        ({"batchItemFailures": [{"itemIdentifier": "FIRST"}]}, 0),
        ({"batchItemFailures": [{"itemIdentifier": ""}]}, 0),
        ({"batchItemFailures": [{"itemIdentifier": None}]}, 0),
        ({"batchItemFailures": [{}]}, 0),
        ({"batchItemFailures": [{"itemIdentifier": "THIRD"}, {"item": "THIRD"}]}, 0),
        ({"batchItemFailures": [{"itemIdentifier": "12345"}]}, 0),
    ],
)
def test_a_reply_means_what_it_means_to_lambda_whatever_the_contract(call, reply, done):
    batch = a_batch(a_record(1), a_record(2), a_record(3))
    names = dict(zip(("FIRST", "SECOND", "THIRD"), batch, strict=True))
    text = json.dumps(reply)
    for name, record in names.items():
        text = text.replace(name, record.sequence_number)
    result = call(json.loads(text), batch)

    assert result.done_count == done
    assert (result.error is None) is (done == 3)
    assert not result.timed_out


@pytest.mark.parametrize(
    "reply", ["ok", True, {"statusCode": 200}, ["49590338271490256608559692540001"]]
)
def test_a_reply_that_is_not_understood_is_an_error_whatever_the_contract(call, reply):
    with pytest.raises(InvalidReply, match=r"the handler returned a .*; it returns nothing when"):
        call(reply, a_batch(a_record(1)))


def test_a_number_with_a_sub_number_names_one_record_of_an_aggregate(call):
    records = [a_record(sub_sequence_number=n, aggregated=True) for n in range(4)]
    name = records[0].sequence_number

    for identifier, done in ((f"{name}:2", 2), (name, 0), (f"{name}:9", 0)):
        reply = {"batchItemFailures": [{"itemIdentifier": identifier}]}
        assert call(reply, a_batch(*records)).done_count == done


def test_what_a_reply_names_has_failed_even_if_it_was_declared_done():
    batch = a_batch(a_record(1), a_record(2), a_record(3))
    batch.checkpoint(batch[2])
    reply = {"batchItemFailures": [{"itemIdentifier": batch[1].sequence_number}]}

    assert result_of_reply(reply, batch).done_count == 1
