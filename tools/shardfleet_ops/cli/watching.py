"""Watching a fleet on a terminal: one look after another, and the keys that say what is shown."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from itertools import count

from rich.console import RenderableType
from rich.text import Text

from shardfleet_ops.cli.fleet_access import ApplicationTable, FleetAccess, with_reading
from shardfleet_ops.cli.fleets import FleetName
from shardfleet_ops.cli.keys import DOWN, ENTER, ESCAPE, RUB_OUT, UP, keys
from shardfleet_ops.cli.telling import TerminalConsole, shown
from shardfleet_ops.explain.fleet_view import FleetReading, LeaseRow, LeaseState

WATCHED_EVERY_S = 2.0
_ORDERS: dict[str, Callable[[LeaseRow], object]] = {
    "lag": lambda row: -(-1 if row.lag_ms is None else row.lag_ms),
    "lease": lambda row: row.lease_key,
    "state": lambda row: row.state,
    "owner": lambda row: row.owner or "",
}


@dataclass
class KeyedView:
    """
    What the keys have made of what is watched.

    Attributes:
        words: what is shown must have in it, in any case.
        typing: whether keys are words.
        held: whether what is shown stays.

    """

    words: str = ""
    typing: bool = False
    held: bool = False

    def press(self, key: str) -> bool:
        """Take a key, and return whether to go on."""
        if self.typing:
            self._type(key)
        elif key == "/":
            self.words, self.typing = "", True
        elif key == ESCAPE:
            self.words = ""
        elif key == " ":
            self.held = not self.held
        return self.typing or key != "q"

    def _type(self, key: str) -> None:
        if key == ENTER:
            self.typing = False
        elif key == ESCAPE:
            self.words, self.typing = "", False
        elif key == RUB_OUT:
            self.words = self.words[:-1]
        elif key.isprintable():
            self.words += key

    def wants(self, text: str) -> bool:
        """Return whether a text has the words in it."""
        return self.words.lower() in text.lower()

    def keys_line(self, *own: str) -> Text:
        """Return what keys there are, those of a command's own among them, and what they did."""
        if self.typing:
            return Text(shown(f"filter: {self.words}_"), "bold")
        held = f"space {'goes on' if self.held else 'holds'}"
        parts = [*own, f"/ filter: {self.words or 'none'}", held, "q ends"]
        return Text(shown("   ".join(parts)), "dim")


@dataclass
class LeaseView(KeyedView):
    """
    Which leases are shown, as the keys have it.

    Attributes:
        order: what they are sorted by, of `_ORDERS`.
        finished: whether finished ones are shown.
        first: how many rows were scrolled past.

    """

    order: str = "lag"
    finished: bool = False
    first: int = 0

    def press(self, key: str) -> bool:
        """Take a key, and return whether to go on."""
        orders = list(_ORDERS)
        if not self.typing and key == "s":
            self.order = orders[(orders.index(self.order) + 1) % len(orders)]
        elif not self.typing and key == "f":
            self.finished = not self.finished
        elif not self.typing and key in ("j", DOWN):
            self.first += 1
        elif not self.typing and key in ("k", UP):
            self.first = max(0, self.first - 1)
        return super().press(key)

    def rows(self, found: Sequence[LeaseRow]) -> list[LeaseRow]:
        """Return the rows that are shown, in their order."""
        kept = [
            row
            for row in found
            if (self.finished or row.state is not LeaseState.FINISHED)
            and self.wants(f"{row.lease_key} {row.state} {row.owner or ''} {row.why}")
        ]
        self.first = min(self.first, max(0, len(kept) - 1))
        return sorted(kept, key=_ORDERS[self.order])[self.first :]  # type: ignore[arg-type]

    def keys_line(self, *own: str) -> Text:
        """Return what keys there are, and what they have made."""
        finished = f"f finished: {'shown' if self.finished else 'hidden'}"
        return super().keys_line(*own, f"s order: {self.order}", finished, "j k scroll")


def watch(
    name: FleetName,
    application: str,
    screen: Callable[[FleetReading, LeaseView | None], RenderableType],
    *,
    every_s: float = WATCHED_EVERY_S,
    rounds: int = 0,
) -> None:
    """
    Show a fleet live, so many times (0: until Ctrl-C or q).

    Args:
        name: of the fleet.
        application: or of an application's lease table.
        screen: what is shown of a reading; the view is None where there are no keys.
        every_s: time between looks.
        rounds: looks before it ends.

    """
    from rich.live import Live

    async def show(fleet: FleetAccess | ApplicationTable) -> None:
        with keys() as pressed, Live(console=TerminalConsole(), auto_refresh=False) as live:
            view = LeaseView() if pressed else None
            for looks in count(1):
                reading = await fleet.reading()
                live.update(screen(reading, view), refresh=True)
                if looks == rounds:
                    return
                if pressed is None or view is None:
                    await asyncio.sleep(every_s)
                    continue
                again_s = asyncio.get_running_loop().time() + every_s
                while key := await _key(pressed, None if view.held else again_s):
                    if not view.press(key):
                        return
                    live.update(screen(reading, view), refresh=True)

    with suppress(KeyboardInterrupt):
        with_reading(name, application, show)


async def _key(pressed: asyncio.Queue[str], until_s: float | None) -> str:
    """Return the next key; an empty one once the loop's time has come."""
    left_s = None if until_s is None else max(0.0, until_s - asyncio.get_running_loop().time())
    with suppress(TimeoutError):
        return await asyncio.wait_for(pressed.get(), left_s)
    return ""
