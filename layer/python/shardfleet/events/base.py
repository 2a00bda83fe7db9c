"""What every event is: a level, and for most the lease it is about."""

from __future__ import annotations

from enum import IntEnum
from typing import ClassVar

from msgspec import Struct


class Level(IntEnum):
    """How much a person should care, in the numbers of Python's logging."""

    DEBUG = 10
    INFO = 20
    WARNING = 30
    ERROR = 40


class Event(Struct, frozen=True, kw_only=True):
    """
    The root of all events.

    Attributes:
        level: how much a person should care.

    """

    level: ClassVar[Level] = Level.INFO


class LeaseEvent(Event, frozen=True, kw_only=True):
    """Something about one lease, seen by one worker or by the manager."""

    lease_key: str
    worker_id: str | None = None
