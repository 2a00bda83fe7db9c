"""
An event source mapping's handler, written with Powertools alone: it runs in a fleet unmodified.

Orders with a negative amount are refused. The reply names them (``batchItemFailures``), and the
fleet then checkpoints just before the first of them and delivers from it again.
"""

from typing import Any

from aws_lambda_powertools import Logger
from aws_lambda_powertools.utilities.batch import (
    BatchProcessor,
    EventType,
    process_partial_response,
)
from aws_lambda_powertools.utilities.batch.types import PartialItemFailureResponse
from aws_lambda_powertools.utilities.data_classes.kinesis_stream_event import KinesisStreamRecord
from aws_lambda_powertools.utilities.typing import LambdaContext

logger = Logger(service="orders")
processor = BatchProcessor(event_type=EventType.KinesisDataStreams)


def take_order(record: KinesisStreamRecord) -> None:
    """Log one order; an order that cannot be taken raises, which fails this record."""
    order = record.kinesis.data_as_json()
    if order["amount"] < 0:
        message = f"order {order['id']}: {order['amount']} is no amount"
        raise ValueError(message)
    logger.info("order taken", order=order["id"], amount=order["amount"])


@logger.inject_lambda_context
def handler(event: dict[str, Any], context: LambdaContext) -> PartialItemFailureResponse:
    """Handle one batch of the event source mapping's shape."""
    return process_partial_response(
        event=event, record_handler=take_order, processor=processor, context=context
    )
