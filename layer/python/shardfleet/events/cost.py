"""What the functions tell about what they cost."""

from __future__ import annotations

from typing import ClassVar

from shardfleet.events.base import Event, Level


class ConsumptionTold(Event, frozen=True, kw_only=True):
    """
    What one invocation has used.

    Attributes:
        writer: ``manager``, or the slot's id.
        mb_ms: Lambda: milliseconds times memory in MB.
        transitions: Step Functions: states entered.
        read_tenths: DynamoDB: read units, in tenths.
        write_tenths: DynamoDB: write units, in tenths.
        log_bytes: written.
        cost_microdollars: by list prices, metrics not counted.

    """

    writer: str
    mb_ms: int
    transitions: int
    read_tenths: int
    write_tenths: int
    log_bytes: int
    cost_microdollars: int

    level: ClassVar[Level] = Level.DEBUG  # the ledger has it
