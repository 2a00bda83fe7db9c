"""
What is counted at the door of the embedded AWS: requests, and the units that tables used.

The units are those of the table's own answer. A conditional write that was refused has none in its
answer and is billed all the same, and so is what did not ask for them: each counts as one unit.
"""

from __future__ import annotations

import json
from collections import Counter, defaultdict
from collections.abc import Awaitable, Callable, Mapping
from typing import Any

from shardfleet_local.access import Headers

TABLES = "DynamoDB_"
READS = frozenset({"GetItem", "BatchGetItem", "Query", "Scan", "TransactGetItems"})
WRITES = frozenset({"PutItem", "UpdateItem", "DeleteItem", "BatchWriteItem", "TransactWriteItems"})

Send = Callable[[Mapping[str, Any]], Awaitable[None]]


class RequestMeter:
    """Counts from the server's start on."""

    def __init__(self) -> None:
        self._requests: Counter[str] = Counter()
        self._units: defaultdict[str, float] = defaultdict(float)

    def counts(self) -> dict[str, dict[str, float]]:
        """Return requests by service and operation, and units by ``read`` and ``write``."""
        return {"requests": dict(self._requests), "units": dict(self._units)}

    def around(self, headers: Headers, send: Send) -> Send:
        """Return what sends an answer and counts its request."""
        target = next((value for name, value in headers if name == "x-amz-target"), "")
        service, _, operation = target.partition(".")
        self._requests[f"{service.partition('_')[0]}.{operation}" if operation else "other"] += 1
        kind = "read" if operation in READS else "write" if operation in WRITES else ""
        if not (service.startswith(TABLES) and kind):
            return send
        body = bytearray()

        async def counted(message: Mapping[str, Any]) -> None:
            if message["type"] == "http.response.body":
                body.extend(message.get("body", b""))
                if not message.get("more_body"):
                    self._units[kind] += units_of(json.loads(bytes(body) or b"{}"))
            await send(message)

        return counted


def units_of(answer: Mapping[str, Any]) -> float:
    """Return the units that an answer of DynamoDB says, one where it says none."""
    used = answer.get("ConsumedCapacity") or []
    told = [each["CapacityUnits"] for each in (used if isinstance(used, list) else [used])]
    return float(sum(told)) if told else 1.0
