"""What a person sees while a run goes on: a live table in a terminal, plain lines elsewhere."""

from __future__ import annotations

import contextlib
import math
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from rich.console import Console, Group
from rich.live import Live
from rich.table import Table
from rich.text import Text

from shardfleet.domain.leases.lease import Lease
from shardfleet.domain.stream.shards import Shard
from shardfleet_local.rig.incidents import FleetDisturbance, short
from shardfleet_local.rig.proxy import FaultDice
from shardfleet_local.rig.verdict import Deliveries
from shardfleet_ops.explain.spoken import spoken_duration

PLAIN_EVERY_MS = 5_000
"""Without a terminal: time between two lines."""

HAPPENINGS_SHOWN = 6
_LATE_MS = 5_000


@dataclass(frozen=True, slots=True, kw_only=True)
class RunSnapshot:
    """
    A run at one moment.

    Attributes:
        total: records to feed.
        elapsed_ms: since the feed began.
        now_ms: epoch milliseconds.
        deliveries: what was sent and handled.
        shards: as listed.
        leases: by shard.
        workers: live worker processes.
        dice: which calls went wrong.

    """

    total: int
    elapsed_ms: int
    now_ms: int
    deliveries: Deliveries
    shards: Sequence[Shard]
    leases: Mapping[str, Lease]
    workers: int
    dice: FaultDice | None

    def lag_ms(self, shard: Shard) -> int:
        """Return the age of the oldest record of a shard that waits."""
        return self.deliveries.lag_ms(shard.shard_id, now_ms=self.now_ms)

    def line(self) -> str:
        """Return it in a line."""
        deliveries, dice = self.deliveries, self.dice
        lag_ms = max(map(self.lag_ms, self.shards), default=0)
        calls = f", {dice.errors:,} of {dice.calls:,} calls went wrong" if dice else ""
        return (
            f"{clock_text(self.elapsed_ms)}  {len(deliveries.first_ms):,} of {self.total:,} "
            f"handled, {deliveries.sent:,} sent, {sum(s.is_open for s in self.shards)} open "
            f"shards, {self.workers} workers, greatest lag {spoken_duration(lag_ms)}{calls}"
        )

    def table(self) -> Table:
        """Return the shards as a table."""
        table = Table("shard", "", "owner")
        for heading in ("counter", "checkpoint", "handled", "lag"):
            table.add_column(heading, justify="right")
        for shard in self.shards:
            lease, lag_ms = self.leases.get(shard.shard_id), self.lag_ms(shard)
            table.add_row(
                short(shard.shard_id),
                "open" if shard.is_open else "closed",
                owner_text(lease),
                str(lease.lease_counter) if lease else "",
                str(lease.checkpoint) if lease else "",
                f"{self.deliveries.handled[shard.shard_id]:,}",
                Text(spoken_duration(lag_ms), style="yellow" if lag_ms > _LATE_MS else ""),
                style="" if shard.is_open else "dim",
            )
        return table


class Display:
    """
    Shows a run on a console.

    Args:
        console: a terminal gets the table, anything else a line now and then.

    """

    def __init__(self, console: Console) -> None:
        self._console = console
        self._live: Live | None = None
        self._happenings: deque[str] = deque(maxlen=HAPPENINGS_SHOWN)
        self._began_ms = 0
        self._next_line_ms = 0

    def say(self, text: str) -> None:
        """Print one line; on a terminal it ends between words."""
        self._console.print(text, soft_wrap=not self._console.is_terminal)

    @contextlib.contextmanager
    def watching(self, began_ms: int) -> Iterator[None]:
        """Show what `update` is told until the end."""
        self._began_ms = began_ms
        if not self._console.is_terminal:
            yield
            return
        with Live(console=self._console, refresh_per_second=4, transient=True) as self._live:
            yield

    def happened(self, happening: FleetDisturbance) -> None:
        """Show something that was done to the fleet."""
        self._happenings.append(f"{clock_text(happening.at_ms - self._began_ms)}  {happening.text}")
        if not self._console.is_terminal:
            self.say(self._happenings[-1])

    def update(self, snapshot: RunSnapshot) -> None:
        """Show the run as it is now."""
        if self._live is not None:
            self._live.update(Group(snapshot.line(), snapshot.table(), *self._happenings))
        elif snapshot.elapsed_ms >= self._next_line_ms:
            self._next_line_ms = snapshot.elapsed_ms + PLAIN_EVERY_MS
            self.say(snapshot.line())


def owner_text(lease: Lease | None) -> str:
    """Return the owner without the fleet's name, which all share."""
    if lease is None:
        return "(no lease)"
    return (lease.lease_owner or "").rpartition("-")[2]


def clock_text(elapsed_ms: float) -> str:
    """Return minutes and seconds: `1:05`."""
    seconds = max(0, math.floor(elapsed_ms / 1000))
    return f"{seconds // 60}:{seconds % 60:02d}"
