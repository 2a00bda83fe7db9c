"""
Diagnostic events: frozen dataclasses, the only thing that metrics, logs and tests see.

An event's log name is its class name; its fields are ids and numbers with units in their names.
No payload and no partition key is ever part of an event.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntEnum


class Level(IntEnum):
    """How much a person should care, in the numbers of Python's logging."""

    DEBUG = 10
    INFO = 20
    WARNING = 30
    ERROR = 40


@dataclass(frozen=True, slots=True, kw_only=True)
class Event:
    """The root of all events."""

    @property
    def level(self) -> Level:
        """Return how much a person should care."""
        return Level.INFO


@dataclass(frozen=True, slots=True, kw_only=True)
class LeaseEvent(Event):
    """Something about one lease, seen by one worker or by the manager."""

    lease_key: str
    worker_id: str | None = None
