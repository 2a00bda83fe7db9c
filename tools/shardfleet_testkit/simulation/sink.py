"""
A sink: what the outside world has seen of a handler.

A handler under test writes to it as it would to a database. What has been written survives the
crash of the handler; a call can be refused, go unanswered though it took effect, and be the last
thing that the handler's process did.
"""

from __future__ import annotations

import asyncio
import copy
from collections.abc import Callable, Iterator, Mapping
from contextvars import ContextVar
from dataclasses import dataclass
from typing import Any, Protocol, TypeVar

T = TypeVar("T")


class SinkError(Exception):
    """The sink refused a call, or did not answer: then it may have taken effect or not."""


@dataclass(frozen=True, slots=True)
class Effect:
    """
    A change of the outside world.

    Attributes:
        at_ms: milliseconds of the simulation.
        by: the invocation, e.g. ``s0001#12``; "" outside of handlers.
        shard_id: of the batch; "" outside of handlers.
        records: positions of the first and the last record of the batch.
        call: of the handler, a number that no other call has; 0 outside of handlers.
        key: what was changed.
        value: what it is since then.

    """

    at_ms: int
    by: str
    shard_id: str
    records: tuple[tuple[int, int], tuple[int, int]]
    call: int
    key: str
    value: Any


class Passage(Protocol):
    """The way from a running handler to the outside world."""

    @property
    def by(self) -> str:
        """Return the name of the invocation."""

    @property
    def shard_id(self) -> str:
        """Return the shard of the batch that is being handled."""

    @property
    def records(self) -> tuple[tuple[int, int], tuple[int, int]]:
        """Return the positions of the batch's first and last record."""

    @property
    def call(self) -> int:
        """Return a number that no other handler call has."""

    @property
    def now_ms(self) -> int:
        """Return the milliseconds of the simulation."""

    def carry(self, what: str, effect: Callable[[], T]) -> T:
        """Carry a call there, and its answer back; either may fail."""

    async def pause(self) -> None:
        """Let time pass."""


PASSAGE: ContextVar[Passage | None] = ContextVar("the way out of the running handler", default=None)


_CURRENT: ContextVar[Sink | None] = ContextVar("the sink of the simulated fleet", default=None)


def current_sink() -> Sink:
    """
    Return the sink of the fleet that runs the calling handler.

    Raises:
        RuntimeError: no simulated fleet runs it.

    """
    sink = _CURRENT.get()
    if sink is None:
        message = "current_sink() is for handlers that run in a simulated fleet"
        raise RuntimeError(message)
    return sink


def begin_with(sink: Sink) -> None:
    """Make an emptied sink the current one, for everything that this context begins."""
    sink.clear()
    _CURRENT.set(sink)


class Sink:
    """
    Values by key, which only grow, are counted, or are replaced.

    ``put`` is idempotent; ``add`` and ``append`` are not; ``update`` reads and writes in one step,
    as a conditional write or a transaction does. ``get`` followed by ``put`` are two steps, and
    another worker may come in between.

    Attributes:
        effects: every change, in order.

    """

    def __init__(self) -> None:
        """Begin empty."""
        self.effects: list[Effect] = []
        self._values: dict[str, Any] = {}

    # --- what a handler does

    def get(self, key: str, default: Any = None) -> Any:
        """Read a value, or ``default``."""
        return self._carry(f"sink.get {key}", lambda: copy.deepcopy(self._values.get(key, default)))

    def put(self, key: str, value: Any) -> None:
        """Set a value, whatever it was: twice is as good as once."""
        kept = copy.deepcopy(value)
        self._carry(f"sink.put {key}", lambda: self._change(key, kept))

    def add(self, key: str, amount: float = 1) -> float:
        """Add to a number, which begins at 0; return the sum: twice is not once."""
        total: float = self._carry(
            f"sink.add {key}", lambda: self._change(key, self._values.get(key, 0) + amount)
        )
        return total

    def append(self, key: str, value: Any) -> None:
        """Append to a list, which begins empty: twice is not once."""
        kept = copy.deepcopy(value)
        self._carry(
            f"sink.append {key}", lambda: self._change(key, [*self._values.get(key, []), kept])
        )

    def update(self, key: str, change: Callable[[Any], Any], default: Any = None) -> Any:
        """
        Replace a value by a function of it, in one step.

        Args:
            key: of the value.
            change: gets a copy of the value, or ``default``; returns the new one.
            default: what the value is before the first change.

        Returns:
            The new value.

        """
        return copy.deepcopy(
            self._carry(
                f"sink.update {key}",
                lambda: self._change(key, change(copy.deepcopy(self._values.get(key, default)))),
            )
        )

    @staticmethod
    async def pause() -> None:
        """
        Let an ``async def`` handler wait as for the network, wherever its own client would.

        The other calls take no time in such a handler; crashes and freezes hit it where it waits.
        """
        passage = PASSAGE.get()
        await (asyncio.sleep(0) if passage is None else passage.pause())

    # --- what a test looks at

    @property
    def values(self) -> Mapping[str, Any]:
        """Return a copy of everything, by key."""
        return copy.deepcopy(self._values)

    def __getitem__(self, key: str) -> Any:
        return self._values[key]

    def __contains__(self, key: object) -> bool:
        return key in self._values

    def __iter__(self) -> Iterator[str]:
        return iter(self._values)

    def __len__(self) -> int:
        return len(self._values)

    def history(self, key: str) -> list[Effect]:
        """Return the changes of one value, in order."""
        return [effect for effect in self.effects if effect.key == key]

    def clear(self) -> None:
        """Forget everything: each run begins with an empty world."""
        self.effects.clear()
        self._values.clear()

    # --- inside

    @staticmethod
    def _carry(what: str, effect: Callable[[], T]) -> T:
        passage = PASSAGE.get()
        return effect() if passage is None else passage.carry(what, effect)

    def _change(self, key: str, value: Any) -> Any:
        passage = PASSAGE.get()
        changed = key not in self._values or self._values[key] != value
        self._values[key] = value
        if changed:
            at_ms, by, shard_id, call = 0, "", "", 0
            records = ((0, 0), (0, 0))
            if passage is not None:
                at_ms, by, shard_id = passage.now_ms, passage.by, passage.shard_id
                records, call = passage.records, passage.call
            kept = copy.deepcopy(value)
            self.effects.append(Effect(at_ms, by, shard_id, records, call, key, kept))
        return value
