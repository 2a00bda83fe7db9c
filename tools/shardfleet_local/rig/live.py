"""What a person sees while a run goes on: a live table in a terminal, plain lines elsewhere."""

from __future__ import annotations

import contextlib
import math
from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn
from rich.table import Table
from rich.text import Text

from shardfleet.domain.leases.lease import Lease
from shardfleet_local.rig.incidents import short
from shardfleet_local.rig.progress import ShardView
from shardfleet_local.rig.timeline import FleetDisturbance

PLAIN_EVERY_MS = 5_000
"""Without a terminal: time between two lines."""

HAPPENINGS_SHOWN = 6
_COLOURS = {"kill": "red", "split": "magenta", "merge": "magenta", "throttle": "yellow"}
_LATE_MS = 5_000
_DIGITS_SHOWN = 10


@dataclass(frozen=True, slots=True, kw_only=True)
class RunSnapshot:
    """
    A run at one moment.

    Attributes:
        elapsed_ms: since the feed began.
        total: records to feed.
        sent: accepted by the stream.
        handled: handled at least once.
        workers: live worker processes.
        views: the shards.

    """

    elapsed_ms: int
    total: int
    sent: int
    handled: int
    workers: int
    views: Sequence[ShardView]


class Display:
    """
    Shows a run on a console.

    Args:
        console: a terminal gets the table, anything else a line now and then.

    """

    def __init__(self, console: Console) -> None:
        self._console = console
        self._live: Live | None = None
        self._happenings: deque[tuple[int, FleetDisturbance]] = deque(maxlen=HAPPENINGS_SHOWN)
        self._began_ms = 0
        self._next_line_ms = 0.0
        self._bar = Progress(
            TextColumn("{task.description}"),
            BarColumn(bar_width=40),
            MofNCompleteColumn(),
            console=console,
        )
        self._task = self._bar.add_task("handled", total=None)

    def say(self, text: str) -> None:
        """Print one line."""
        self._console.print(Text(text), soft_wrap=True)

    @contextlib.contextmanager
    def watching(self, began_ms: int) -> Iterator[None]:
        """Show what `update` is told until the end."""
        self._began_ms = began_ms
        if not self._console.is_terminal:
            yield
            return
        with Live(console=self._console, refresh_per_second=4, transient=True) as live:
            self._live = live
            try:
                yield
            finally:
                self._live = None

    def happened(self, happening: FleetDisturbance) -> None:
        """Show something that was done to the fleet."""
        after_ms = happening.at_ms - self._began_ms
        self._happenings.append((after_ms, happening))
        if not self._console.is_terminal:
            self.say(f"{clock_text(after_ms)}  {happening.text}")

    def update(self, snapshot: RunSnapshot) -> None:
        """Show the run as it is now."""
        self._bar.update(self._task, total=snapshot.total, completed=snapshot.handled)
        if self._live is not None:
            self._live.update(self._screen(snapshot))
        elif snapshot.elapsed_ms >= self._next_line_ms:
            self._next_line_ms = snapshot.elapsed_ms + PLAIN_EVERY_MS
            self.say(_line(snapshot))

    def _screen(self, snapshot: RunSnapshot) -> RenderableType:
        parts: list[RenderableType] = [_table(snapshot), self._bar]
        for after_ms, happening in self._happenings:
            colour = _COLOURS.get(happening.kind, "white")
            parts.append(Text(f"{clock_text(after_ms)}  {happening.text}", style=colour))
        return Group(*parts)


def _table(snapshot: RunSnapshot) -> Table:
    table = Table(
        title=f"{clock_text(snapshot.elapsed_ms)}  {snapshot.sent:,} of {snapshot.total:,} "
        f"records sent, {snapshot.workers} worker processes",
        title_justify="left",
    )
    for heading, justify in (
        ("shard", "left"),
        ("", "left"),
        ("owner", "left"),
        ("counter", "right"),
        ("checkpoint", "right"),
        ("handled", "right"),
        ("lag", "right"),
    ):
        table.add_column(heading, justify=justify)  # type: ignore[arg-type]
    for view in snapshot.views:
        lease = view.lease
        table.add_row(
            short(view.shard.shard_id),
            "open" if view.shard.is_open else "closed",
            owner_text(lease),
            str(lease.lease_counter) if lease else "",
            checkpoint_text(lease),
            f"{view.handled:,}",
            Text(seconds_text(view.lag_ms), style="yellow" if view.lag_ms > _LATE_MS else ""),
            style="" if view.shard.is_open else "dim",
        )
    return table


def _line(snapshot: RunSnapshot) -> str:
    open_shards = sum(view.shard.is_open for view in snapshot.views)
    lag_ms = max((view.lag_ms for view in snapshot.views), default=0)
    return (
        f"{clock_text(snapshot.elapsed_ms)}  {snapshot.handled:,} of {snapshot.total:,} handled, "
        f"{snapshot.sent:,} sent, {open_shards} open shards, {snapshot.workers} workers, "
        f"greatest lag {seconds_text(lag_ms)}"
    )


def owner_text(lease: Lease | None) -> str:
    """Return the owner without the fleet's name, which all share."""
    if lease is None:
        return "(no lease)"
    return (lease.lease_owner or "").rpartition("-")[2]


def checkpoint_text(lease: Lease | None) -> str:
    """Return a checkpoint short enough for a table: the last digits, and the sub-sequence."""
    if lease is None:
        return ""
    checkpoint = lease.checkpoint
    if checkpoint.is_sentinel:
        return checkpoint.sequence_number
    sub = f":{checkpoint.sub_sequence_number}" if checkpoint.sub_sequence_number else ""
    return f"…{checkpoint.sequence_number[-_DIGITS_SHOWN:]}{sub}"


def clock_text(elapsed_ms: float) -> str:
    """Return minutes and seconds: `1:05`."""
    seconds = max(0, math.floor(elapsed_ms / 1000))
    return f"{seconds // 60}:{seconds % 60:02d}"


def seconds_text(duration_ms: float) -> str:
    """Return a duration in seconds: `0.4 s`."""
    return f"{duration_ms / 1000:.1f} s"
