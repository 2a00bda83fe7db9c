"""
Driving a cursor over a shard: what :mod:`shardfleet.domain.reading.cursor` says is done here.

Workers read so, and so does everything that looks into a stream: a rewind's count, `tail`, `where`.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping
from typing import TYPE_CHECKING, Protocol

from msgspec import Struct, field

from shardfleet.domain.leases.shard_ref import ShardRef
from shardfleet.domain.reading.cursor import (
    Ask,
    End,
    Moment,
    ReadFrom,
    ReadLimits,
    ShardCursor,
)
from shardfleet.domain.reading.pages import RecordsPage, StartingPosition
from shardfleet.domain.refusals import DOUBTED_TIMES
from shardfleet.domain.slots.usage import ShardWay
from shardfleet.engine.ports import Clock, EventSink
from shardfleet.engine.retry import Halt, Patience
from shardfleet.errors import (
    FalseEnd,
    IteratorExpired,
    OutcomeUnknown,
    ShardfleetError,
    ShardGone,
    Throttled,
    Unsettled,
    kind_of,
)
from shardfleet.events.delivery import FalseShardEnd, IteratorRenewed, ReadDelayed

if TYPE_CHECKING:
    from shardfleet.engine.shard.missing import MissingShardWatch


class ShardSource(Protocol):
    """Pages of shards, polled or pushed; :mod:`shardfleet.domain.reading.cursor` drives it."""

    @property
    def ways(self) -> Mapping[str, ShardWay]:
        """Return lease key to how it is read, where there are two ways."""

    async def page(
        self,
        shard: ShardRef,
        start: StartingPosition,
        *,
        resume_token: str | None,
        limit: int,
        halt: Halt,
    ) -> RecordsPage:
        """
        Return the next page, which may be empty, once there is one and the source may be asked.

        The rest is as of :meth:`shardfleet.engine.ports.ShardCalls.page`.

        Raises:
            Halted: asked to stop; nothing was taken.

        """


class ReadPorts(Struct, frozen=True, kw_only=True):
    """
    What a shard reader asks of the world.

    Attributes:
        source: pages of a shard.
        clock: of the stream.
        events: what is told.
        patience: pauses.
        refused: lease key to why it cannot be read, as long as that is doubted, for a person.

    """

    source: ShardSource
    clock: Clock
    events: EventSink
    patience: Patience
    refused: dict[str, str] = field(default_factory=dict)


def moment_of(clock: Clock) -> Moment:
    """Return what both clocks say."""
    return Moment(clock.now_ms(), clock.monotonic_ms())


class ShardReader:
    """
    One shard, read forward.

    Args:
        shard: the shard.
        origin: where to begin.
        limits: how much is asked for, and how often in vain.
        ports: the source and the rest.
        missing: what judges a shard that is not found; None: that is an error.

    Attributes:
        cursor: where it stands.

    """

    def __init__(
        self,
        shard: ShardRef,
        origin: ReadFrom,
        *,
        limits: ReadLimits,
        ports: ReadPorts,
        missing: MissingShardWatch | None = None,
    ) -> None:
        """Stand at the start; nothing is read yet."""
        self._shard = shard
        self._ports = ports
        self._missing = missing
        self.cursor = ShardCursor(shard.shard_id, origin, limits=limits, now=moment_of(ports.clock))

    async def next_page(self, halt: Halt) -> RecordsPage | End:
        """
        Read the next page, however long it takes; it may be empty.

        Raises:
            Halted: asked to stop; nothing was accepted.
            ShardGone: there is no such shard, and nobody judges that.
            StreamGone, StreamReplaced: the stream is not the one that was read.
            PositionTrimmed: records may be lost; the cursor's ``accept_gap`` goes on nevertheless.
            StreamError, OutcomeUnknown: what failed as often in a row as the limits allow.
            ShardfleetError: the verdict of what was refused for as long as it is doubted.

        """
        try:
            return await self._next_page(halt)
        finally:
            self._ports.refused.pop(self._shard.lease_key, None)

    async def _next_page(self, halt: Halt) -> RecordsPage | End:
        while True:
            action = self.cursor.next()
            if isinstance(action, Ask):
                wait_ms = action.due_ms - self._ports.clock.monotonic_ms()
                if wait_ms > 0:
                    await self._ports.patience.pause(wait_ms, halt)
                halt.check()
                await self._ask(action, halt)
            elif isinstance(action, ShardGone) and self._missing is not None:
                verdict = await self._ports.patience.persist(self._missing.judge, halt)
                wait_ms = 0 if verdict.is_over else self._missing.pause_ms
                now = moment_of(self._ports.clock)
                self.cursor.judged(verdict, wait_ms=wait_ms, now=now)
            elif isinstance(action, Exception):
                raise action
            else:
                return action

    async def pages(self) -> AsyncIterator[RecordsPage]:
        """Yield pages to the end of the shard; the errors are those of :meth:`next_page`."""
        nobody_stops = Halt()
        while isinstance(page := await self.next_page(nobody_stops), RecordsPage):
            yield page
            if page.resume_token is None:
                return

    async def _ask(self, ask: Ask, halt: Halt) -> None:
        """Make one attempt."""
        clock, cursor = self._ports.clock, self.cursor
        cursor.asked(moment_of(clock))
        try:
            page = await self._ports.source.page(
                self._shard,
                ask.start,
                resume_token=ask.resume_token,
                limit=ask.limit,
                halt=halt,
            )
            cursor.answered(page, moment_of(clock))
        except ShardfleetError as error:
            if not cursor.failed(error, moment_of(clock)):
                raise
            self._tell(error)

    def _tell(self, error: ShardfleetError) -> None:
        key, cursor, told = self._shard.lease_key, self.cursor, self._ports.events.emit
        if isinstance(error, FalseEnd):
            told(FalseShardEnd(lease_key=key, reason=str(error)))
        elif isinstance(error, IteratorExpired):
            told(IteratorRenewed(lease_key=key, accepted=cursor.accepted or ""))
        elif isinstance(error, Throttled | OutcomeUnknown):
            told(ReadDelayed(lease_key=key, error=kind_of(error), failures=cursor.failures))
            if isinstance(error, Unsettled) and cursor.failures >= DOUBTED_TIMES:
                self._ports.refused[key] = str(error)
