"""A handler as people write it for the event source mapping: Powertools, nothing of ours."""

import json
import os
from pathlib import Path

from aws_lambda_powertools.utilities.batch import (
    BatchProcessor,
    EventType,
    process_partial_response,
)
from aws_lambda_powertools.utilities.parser import parse
from aws_lambda_powertools.utilities.parser.models import KinesisDataStreamModel

CALLS = Path(os.environ["ORDERS_CALLS"])
CURED = Path(os.environ["ORDERS_CURED"])

processor = BatchProcessor(event_type=EventType.KinesisDataStreams)


def ship(record):
    order = record.kinesis.data_as_json()
    if order["poison"] and not CURED.exists():
        message = f"order {order['number']} cannot be shipped"
        raise ValueError(message)


def handler(event, context):
    model = parse(event=event, model=KinesisDataStreamModel)
    reply = process_partial_response(
        event=event, record_handler=ship, processor=processor, context=context
    )
    call = {
        "numbers": [json.loads(record.kinesis.data)["number"] for record in model.Records],
        "event_ids": [record.eventID for record in model.Records],
        "reply": reply,
        "remaining_ms": context.get_remaining_time_in_millis(),
    }
    with CALLS.open("a") as calls:
        calls.write(json.dumps(call) + "\n")
    return reply
