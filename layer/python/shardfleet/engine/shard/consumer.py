"""
One shard of one worker: wait for the parents, read, hand over, checkpoint, end.

The consumer is one task; it never runs longer than its lease is held, and leaves at its next step
when asked to. Java: ``ShardConsumer`` and its states.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from functools import partial

from msgspec import Struct
from msgspec.structs import replace

from shardfleet.config import TRIMMED, FleetConfig
from shardfleet.domain.delivery.progress import position_text
from shardfleet.domain.reading.cursor import End, ReadFrom, ReadLimits, is_retained
from shardfleet.domain.reading.pages import RecordsPage
from shardfleet.domain.stream.sequence import AT_LATEST, TRIM_HORIZON, Position, StreamIncarnation
from shardfleet.domain.stream.shards import ChildShard
from shardfleet.engine.ownership.lease import HeldLease
from shardfleet.engine.retry import Halted
from shardfleet.engine.shard.deaggregation import Deaggregator, UserRecords
from shardfleet.engine.shard.delivery import StoppedByPolicy
from shardfleet.engine.shard.end import ShardEnding
from shardfleet.engine.shard.faults import ShardFaults
from shardfleet.engine.shard.missing import MissingPorts, MissingShardWatch
from shardfleet.engine.shard.ports import DeliveryPorts
from shardfleet.engine.shard.progress import Progress
from shardfleet.engine.shard.reader import ReadPorts, ShardReader
from shardfleet.engine.shard.sleep import FellAsleep, IdleShard
from shardfleet.engine.shard.start import TipMarks, start_position
from shardfleet.engine.state.sleep_state import NapRecord
from shardfleet.errors import (
    ForeignPosition,
    HandlerTimedOut,
    MalformedLease,
    OutcomeUnknown,
    PositionTrimmed,
    ShardForeign,
    StaleEpoch,
    SubscriptionTaken,
    Throttled,
)
from shardfleet.events.delivery import PageRead, PositionLost, PositionOutlived
from shardfleet.events.worker import ParentsAwaited


class ConsumerPorts(Struct, frozen=True, kw_only=True):
    """
    What every consumer of a turn works with.

    ``incarnation`` is the stream's life, ``progress`` the fleet's way of delivering.
    """

    incarnation: StreamIncarnation
    progress: type[Progress]
    reading: ReadPorts
    delivery: DeliveryPorts
    ending: ShardEnding
    missing: MissingPorts
    tips: TipMarks
    naps: NapRecord
    faults: ShardFaults


class ShardConsumer:
    """Works on one held lease until it is lost, finished, or the turn ends."""

    def __init__(
        self,
        held: HeldLease,
        *,
        config: FleetConfig,
        ports: ConsumerPorts,
    ) -> None:
        """
        Begin with nothing read.

        Args:
            held: the lease.
            config: limits and policies.
            ports: reading, delivering and ending.

        """
        self._held = held
        self._config = config
        self._ports = ports
        self._patience = ports.reading.patience
        self._progress = ports.progress(held, config=config, ports=ports.delivery)
        self._is_at_tip = False
        self._open_ms = 0
        self._promised = ""
        self._missing = MissingShardWatch(
            held,
            worker_id=ports.delivery.checkpointer.worker_id,
            config=config,
            incarnation=ports.incarnation,
            ports=ports.missing,
        )
        self._idle = IdleShard(
            held,
            worker_id=ports.delivery.checkpointer.worker_id,
            config=config,
            record=ports.naps,
            clock=ports.reading.clock,
            events=ports.reading.events,
        )

    async def run(self) -> Sequence[str]:
        """
        Work until there is nothing more to do here.

        Returns:
            The children, when the shard ended in this run; else nothing.

        Raises:
            HandlerTimedOut: the process must end (hazard H10).
            StreamGone, StreamReplaced: the stream is not the one the leases belong to (H12).
            StaleEpoch: another invocation has taken over (hazard H1).

        """
        try:
            await self._wait_for_parents()
            while True:
                await self._ports.faults.rest(self._held)
                try:
                    children = await self._consume()
                    await self._progress.finish()
                    await self._patience.persist(
                        partial(self._mark_beginnings, children), self._held.halt
                    )
                    await self._ports.ending.end(self._held, children)
                    await self._ports.faults.passed(self._held.lease_key)
                    await self._missing.ended()
                    return [
                        self._held.shard.key_of(child) for child in self._held.lease.child_shard_ids
                    ]
                except StoppedByPolicy:
                    await self._progress.leave()
        except FellAsleep:
            await self._ports.faults.passed(self._held.lease_key)
            await self._progress.leave()
        except (Halted, ShardForeign):
            await self._progress.leave()
        except StaleEpoch:
            await self._progress.lose()
            raise
        except HandlerTimedOut:
            raise
        except Exception:
            with suppress(Exception):  # What is told is what went wrong first.
                await self._progress.leave()
            raise
        if self._is_at_tip:
            await self._mark_tip(is_left=True)
        return ()

    async def _wait_for_parents(self) -> None:
        """Parents before children: each parent's lease is absent or finished (§4.7)."""
        told: tuple[str, ...] = ()
        unfinished_parents = self._ports.delivery.checkpointer.unfinished_parents
        while True:
            waiting = await self._patience.persist(
                lambda: unfinished_parents(self._held.lease), self._held.halt
            )
            if not waiting:
                return
            if waiting != told:
                told = waiting
                self._ports.reading.events.emit(
                    ParentsAwaited(lease_key=self._held.lease_key, parents=waiting)
                )
            await self._patience.pause(self._config.parent_poll_ms, self._held.halt)

    async def _consume(self) -> Sequence[ChildShard]:
        """Read and deliver to the end of the shard; return its children."""
        held = self._held
        await self._charge()
        await self._patience.persist(self._missing.remember, held.halt)
        await self._progress.recall()
        start = await self._patience.persist(self._start, held.halt)
        if start is None:
            return ()
        origin, done = ReadFrom.position(start), start.done
        is_in_doubt = await self._patience.persist(partial(self._is_in_doubt, start), held.halt)
        await self._progress.begin()
        reader = self._reader(origin)
        expander = self._expander()
        while True:
            answer = await self._next_page(reader)
            if isinstance(answer, End):
                self._open_ms = 0  # When it was closed is unknown, and that it expired is told.
                return answer.children
            is_in_doubt = is_in_doubt and await self._judge_beginning(answer)
            if reader.cursor.start is not origin.start:
                done = None
            records = UserRecords(answer.records, done, expander)
            brings = False
            if answer.records:
                self._is_at_tip = False
                self._open_ms = max(self._open_ms, answer.records[-1].approximate_arrival_ms)
                brings = await self._tell_read(answer, records)
                done = None
            # The data is let go of record by record, as it is handled.
            page = replace(answer, records=(), size_bytes=answer.size) if answer.records else answer
            del answer
            await self._note_read(page)
            await self._progress.take(records)
            self._progress.acquit(page, brings=brings)
            if page.resume_token is None:
                return page.child_shards
            # Behind open records there is something, and they would be lost as unread.
            self._is_at_tip = page.lag_ms == 0 and not self._progress.has_open
            if self._is_at_tip:
                await self._mark_tip()
            await self._idle.after(page, reader.cursor, is_busy=self._progress.is_busy)
            if self._progress.goes_on and (page.size or page.lag_ms == 0):
                # An empty page on the way proves nothing (hazard H6).
                await self._ports.faults.passed(held.lease_key)

    async def _note_read(self, page: RecordsPage) -> None:
        """Note that the shard has answered, and how far behind its tip."""
        held, now_ms = self._held, self._ports.reading.clock.monotonic_ms()
        held.note_read(page.lag_ms, now_ms=now_ms, size_bytes=page.size)
        if self._missing.is_doubted:
            await self._patience.persist(self._missing.answered, held.halt)
        if held.lag_ms > 0:
            await self._missing.mark()

    async def _charge(self) -> None:
        """Charge a death to the shard, before anything of it is called; it may be one too many."""
        held, notes = self._held, self._ports.delivery.notes
        await self._patience.persist(partial(self._ports.delivery.beside.begin, held), held.halt)
        done = held.done
        await self._patience.persist(lambda: notes.charge(held.lease_key, done=done), held.halt)
        await self._progress.stop_if_it_kills()

    def _expander(self) -> Deaggregator:
        held, sink = self._held, self._ports.reading.events
        return Deaggregator(
            held.shard,
            held.lease.hash_key_range,
            config=self._config,
            sink=sink,
            halt=held.halt,
        )

    def _reader(self, origin: ReadFrom) -> ShardReader:
        limits = ReadLimits(
            back_off_ms=self._patience.back_off_ms, records_most=self._config.records_per_read
        )
        shard, ports = self._held.shard, self._ports.reading
        return ShardReader(shard, origin, limits=limits, ports=ports, missing=self._missing)

    async def _start(self) -> Position | None:
        """Return where to begin to read; None when the shard is over already."""
        if self._held.lease.is_finished:
            # By a tool that leaves the counter alone, since the lease was adopted (hazard H8).
            return None
        return await start_position(
            self._held.lease,
            self._held.done,
            incarnation=self._ports.incarnation,
            config=self._config,
            state=self._ports.delivery.state,
            clock=self._ports.reading.clock,
        )

    async def _is_in_doubt(self, start: Position) -> bool:
        """
        Return whether what came first may be trimmed, of a shard of which nothing is done.

        Of one that was set back to a place without a number it is known since when it is to be
        read, and which record was counted as the first.
        """
        ports, lease = self._ports, self._held.lease
        mark = await ports.tips.last(lease.lease_key)
        # Since then it is to be read: a mark was made at its tip, or when its parent ended.
        self._open_ms = since_ms = mark.at_ms
        self._promised = ""
        if start.done is not None:
            return False
        set_back = ports.delivery.beside.generation(lease.lease_key)
        if set_back.to == position_text(lease.checkpoint):
            self._promised, since_ms = set_back.first, set_back.at_ms
        elif lease.checkpoint == AT_LATEST:
            since_ms = max(mark.at_ms if mark.counts else 0, start.instant_ms)
        if self._promised:
            return True
        now_ms, retention_ms = ports.reading.clock.now_ms(), ports.incarnation.retention_ms
        return since_ms > 0 and not is_retained(since_ms, now_ms=now_ms, retention_ms=retention_ms)

    async def _judge_beginning(self, page: RecordsPage) -> bool:
        """Judge a beginning in doubt by its first page; return whether it is in doubt still."""
        if page.says_nothing:
            return True
        if self._promised and page.first is not None and int(page.first) <= int(self._promised):
            return False
        message = (
            f"shard {self._held.lease_key}: what came first is older than what the stream retains, "
            f"and nothing of it was done (the oldest now is {page.first or 'none'}); "
            "it may be lost"
        )
        await self._judge_gap(PositionTrimmed(message, nothing_left=not page.records))
        return False

    async def _mark_beginnings(self, children: Sequence[ChildShard]) -> None:
        """
        Note since when children may have records: since their parent was last seen open.

        It was when its last record came, and when an earlier reader was at its tip: what this one
        finds there may be of a closed shard, however old. A child that has begun has marks of its
        own; its parent ends a second time, for its lease was set back or made again.
        """
        for child in children:
            key = self._held.shard.key_of(child.shard_id)
            if self._open_ms and not await self._has_begun(key):
                await self._ports.tips.mark(key, at_ms=self._open_ms)

    async def _has_begun(self, lease_key: str) -> bool:
        try:
            lease = await self._ports.delivery.checkpointer.read(lease_key)
        except MalformedLease:  # Whoever can read it will say.
            return False
        return lease is not None and not lease.checkpoint.is_sentinel

    async def _tell_read(self, page: RecordsPage, records: UserRecords) -> bool:
        """Tell that a page was read; return whether it brings anything."""
        brings = bool(await records.waiting(self._config.max_batch_records))
        self._ports.reading.events.emit(
            PageRead(
                lease_key=self._held.lease_key,
                stream_records=len(page.records),
                brings=brings,
                size_bytes=page.size,
                millis_behind_latest=page.lag_ms,
            )
        )
        return brings

    async def _next_page(self, reader: ShardReader) -> RecordsPage | End:
        while True:
            try:
                return await reader.next_page(self._held.halt)
            except PositionTrimmed as error:
                await self._judge_gap(error)
                reader.cursor.accept_gap()
            except SubscriptionTaken:
                await self._confirm()
            except ForeignPosition as error:
                # A wrong checkpoint, and no loss: only a person knows where to go on instead.
                words = f"{error}; set it to where it belongs: `shardfleet rewind`"
                await self._progress.stop(self._held.done_text, error=words, attempts=1)

    async def _confirm(self) -> None:
        """
        Go on only if the lease still stands: whoever took the shard over may have that, too.

        Raises:
            Halted: it does not.

        """
        held, renew = self._held, self._ports.delivery.checkpointer.renew
        if not await self._patience.persist(partial(renew, held), held.halt):
            raise Halted

    async def _judge_gap(self, error: PositionTrimmed) -> None:
        """Go on, go on and tell, or stop: by what is known and by policy."""
        key, tips, done = self._held.lease_key, self._ports.tips, self._held.done_text
        halt = self._held.halt
        if await self._patience.persist(lambda: tips.proves_no_loss(key, done), halt):
            return
        if await self._patience.persist(self._is_beginning, halt):
            return
        if error.nothing_left and await self._patience.persist(
            lambda: tips.stood_at(key, done), halt
        ):
            self._ports.reading.events.emit(PositionOutlived(lease_key=key, done=done))
            return
        # Who was set back to the oldest record that there is goes on at the oldest one.
        is_asked = self._promised and done == TRIM_HORIZON
        policy = "jump" if is_asked else self._config.on_trimmed
        self._ports.reading.events.emit(PositionLost(lease_key=key, done=done, policy=policy))
        try:
            if TRIMMED[policy]:
                await self._progress.stop(done, error=str(error), attempts=1)
        except StoppedByPolicy:
            # Not sooner: a death before the stop is on record must not pass over the loss.
            await self._patience.persist(lambda: tips.note_told(key, done), self._held.halt)
            raise
        await self._patience.persist(lambda: tips.note_told(key, done), self._held.halt)

    async def _is_beginning(self) -> bool:
        """Return whether the position is the shard's first number, which no record has (K13)."""
        shards = await self._ports.missing.stream.list_shards()
        shard_id, done = self._held.shard.shard_id, self._held.done_text
        return any(s.shard_id == shard_id and s.starting_sequence_number == done for s in shards)

    async def _mark_tip(self, *, is_left: bool = False) -> None:
        try:
            await self._ports.tips.mark(
                self._held.lease_key, done=self._held.done_text, is_left=is_left
            )
        except (Throttled, OutcomeUnknown):
            return  # Only evidence for later, and the next empty page offers it again.
