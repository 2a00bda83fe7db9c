"""Charges orders, each once: what was charged is remembered in a table, by the order's id."""

import os
from typing import Any

from aws_lambda_powertools import Logger
from aws_lambda_powertools.utilities.idempotency import (
    DynamoDBPersistenceLayer,
    IdempotencyConfig,
    idempotent_function,
)

logger = Logger(service="orders")
config = IdempotencyConfig(event_key_jmespath="id")
store = DynamoDBPersistenceLayer(table_name=os.environ["CHARGED_TABLE"])


# Powertools says nothing of what its decorator makes.
@idempotent_function(  # type: ignore[untyped-decorator]
    data_keyword_argument="order", config=config, persistence_store=store
)
def charge(order: dict[str, Any]) -> None:
    """Charge an order; one that cannot be charged raises, and is not remembered."""
    if order["amount"] < 0:
        message = f"order {order['id']}: {order['amount']} is no amount"
        raise ValueError(message)
    logger.info("order charged", order=order["id"])
