"""What can go wrong with one call to AWS, and the seeded dice that decide about each call."""

from __future__ import annotations

import random
from collections import Counter
from dataclasses import dataclass, field
from enum import StrEnum

ERROR_RATE = 0.12
"""Part of the calls that go wrong: far more than AWS's, little enough for progress."""

GIVEN_UP_MS = (2_100, 4_500)
"""A late write lands after its caller has given up (`aws_clients.WRITE_TIMEOUT_S`: 2 s)."""

SLOW_MS = (200, 1_500)
"""A slow reply comes in time, but renewals feel it."""

WRITES = frozenset({"PutItem", "UpdateItem", "DeleteItem", "StartExecution"})


class CallFault(StrEnum):
    """What becomes of one call; the values name it in the result."""

    THROTTLED = "throttled"  # refused
    FAILED = "failed"  # answered 500, nothing done
    CUT = "cut"  # the connection breaks, nothing done
    REPLY_LOST = "reply_lost"  # done, and the connection breaks before the reply
    FAILED_AFTER = "failed_after"  # done, and answered 500
    LATE = "late"  # done after the caller has given up
    EXPIRED = "expired"  # an iterator that is too old
    SLOW = "slow"  # done and answered, later than usual: no error


_ANY = (CallFault.THROTTLED, CallFault.FAILED, CallFault.CUT, CallFault.REPLY_LOST, CallFault.SLOW)
_WRITE = (*_ANY, CallFault.FAILED_AFTER, CallFault.LATE)
_GET_RECORDS = (*_ANY, CallFault.EXPIRED)


@dataclass(frozen=True, slots=True)
class Misfortune:
    """
    One fault that was drawn.

    Attributes:
        kind: what happens.
        delay_ms: for how long the call is held (`LATE`, `SLOW`).
        code: the error's code (`THROTTLED`, `EXPIRED`).

    """

    kind: CallFault
    delay_ms: int = 0
    code: str = ""


@dataclass(slots=True)
class FaultDice:
    """
    Decides about each call, and counts.

    Attributes:
        chance: the source of its choices.
        rate: part of the calls that go wrong.
        is_on: whether anything goes wrong at all.
        calls: seen so far.
        drawn: per kind of fault.
        operations: errors per operation.

    """

    chance: random.Random
    rate: float = ERROR_RATE
    is_on: bool = True
    calls: int = 0
    drawn: Counter[CallFault] = field(default_factory=Counter)
    operations: Counter[str] = field(default_factory=Counter)

    @property
    def errors(self) -> int:
        """Count the calls that went wrong; a slow one did not."""
        return self.drawn.total() - self.drawn[CallFault.SLOW]

    def roll(self, service: str, operation: str) -> Misfortune | None:
        """Draw what happens to a call; None: nothing."""
        self.calls += 1
        if not self.is_on or self.chance.random() >= self.rate:
            return None
        kind = self.chance.choice(_kinds(operation))
        self.drawn[kind] += 1
        if kind is not CallFault.SLOW:
            self.operations[operation] += 1
        match kind:
            case CallFault.LATE:
                return Misfortune(kind, self.chance.randint(*GIVEN_UP_MS))
            case CallFault.SLOW:
                return Misfortune(kind, self.chance.randint(*SLOW_MS))
            case CallFault.THROTTLED:
                return Misfortune(kind, code=_throttle(service, operation))
            case CallFault.EXPIRED:
                return Misfortune(kind, code="ExpiredIteratorException")
            case _:
                return Misfortune(kind)


def _kinds(operation: str) -> tuple[CallFault, ...]:
    if operation in WRITES:
        return _WRITE
    return _GET_RECORDS if operation == "GetRecords" else _ANY


def _throttle(service: str, operation: str) -> str:
    """Name the refusal as the service does (each service's API reference, common errors)."""
    if service == "DynamoDB" or operation in ("GetRecords", "GetShardIterator"):
        return "ProvisionedThroughputExceededException"
    return "LimitExceededException" if service == "Kinesis" else "ThrottlingException"
