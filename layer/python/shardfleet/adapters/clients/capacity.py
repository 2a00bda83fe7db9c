"""
How many units of DynamoDB this process has used, as DynamoDB itself says with each answer.

The clients' calls are asked to say so (`ReturnConsumedCapacity`); what a refused conditional write
costs DynamoDB does not say, so it counts as one unit.
"""

from __future__ import annotations

from threading import Lock
from typing import Any

_METERED = (
    "GetItem",
    "PutItem",
    "UpdateItem",
    "DeleteItem",
    "Query",
    "Scan",
)
_WRITES = frozenset({"PutItem", "UpdateItem", "DeleteItem"})
_REFUSED = "ConditionalCheckFailedException"


class CapacityMeter:
    """Counts units over clients; safe to share between threads."""

    def __init__(self) -> None:
        """Begin at nothing."""
        self._lock = Lock()
        self._read = 0.0
        self._written = 0.0

    def used_tenths(self) -> tuple[int, int]:
        """Return read and write units so far, in tenths: half a unit is the least."""
        with self._lock:
            return round(self._read * 10), round(self._written * 10)

    def watch(self, client: Any) -> None:
        """Count what a DynamoDB client's calls use from now on."""
        events = client.meta.events
        for operation in _METERED:
            events.register(f"provide-client-params.dynamodb.{operation}", _ask)
            events.register(f"after-call.dynamodb.{operation}", self._count)

    def _count(self, *, parsed: dict[str, Any], model: Any, **_: Any) -> None:
        found = parsed.get("ConsumedCapacity")
        units = float(found.get("CapacityUnits", 0)) if found else 0.0
        if parsed.get("Error", {}).get("Code") == _REFUSED:
            units = 1.0
        with self._lock:
            if model.name in _WRITES:
                self._written += units
            else:
                self._read += units


def _ask(*, params: dict[str, Any], **_: Any) -> dict[str, Any]:
    return {**params, "ReturnConsumedCapacity": "TOTAL"}
