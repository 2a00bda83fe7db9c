"""
An event source mapping's handler that charges each order once, with Powertools alone.

Its ``BatchProcessor`` goes on behind a record that fails, and the fleet delivers again from that
one on, as the mapping does: what was charged already is not charged again.
"""

from typing import Any

from aws_lambda_powertools.utilities.batch import (
    BatchProcessor,
    EventType,
    process_partial_response,
)
from aws_lambda_powertools.utilities.batch.types import PartialItemFailureResponse
from aws_lambda_powertools.utilities.data_classes.kinesis_stream_event import KinesisStreamRecord
from aws_lambda_powertools.utilities.typing import LambdaContext
from charging import charge, config

processor = BatchProcessor(event_type=EventType.KinesisDataStreams)


def take_order(record: KinesisStreamRecord) -> None:
    """Charge one record's order."""
    charge(order=record.kinesis.data_as_json())


def handler(event: dict[str, Any], context: LambdaContext) -> PartialItemFailureResponse:
    """Handle one batch of the event source mapping's shape."""
    config.register_lambda_context(context)
    return process_partial_response(
        event=event, record_handler=take_order, processor=processor, context=context
    )
