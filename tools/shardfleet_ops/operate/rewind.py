"""
Setting leases back, with everything that comes again counted beforehand.

The counting reads the shard as a worker does: from the target, aggregates taken apart by the same
code, up to the checkpoint, and beyond it what lanes have done ahead or an open window has in its
state, for that comes again, too (hazard H20). It is exact once the lease is paused and given up,
because then nobody moves the checkpoint; before that it tells how things stand.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Collection, Mapping, Sequence
from contextlib import suppress

from msgspec import Struct
from msgspec.structs import replace

from shardfleet.config import FleetConfig
from shardfleet.domain.delivery.lanes import DoneAhead
from shardfleet.domain.delivery.progress import position_of, position_text
from shardfleet.domain.leases import changes as lease_changes
from shardfleet.domain.leases.lease import Applied, Lease
from shardfleet.domain.leases.shard_ref import ShardRef
from shardfleet.domain.positions.positions import checkpoint_text
from shardfleet.domain.reading.cursor import ReadFrom, ReadLimits
from shardfleet.domain.reading.pages import (
    FROM_TRIM_HORIZON,
    RecordsPage,
    StartingPosition,
    StartKind,
)
from shardfleet.domain.reasons import Pause
from shardfleet.domain.stream.sequence import AT_TIMESTAMP, AT_TRIM_HORIZON, ExtendedSequenceNumber
from shardfleet.engine.ports import StreamDirectory
from shardfleet.engine.retry import each_of
from shardfleet.engine.shard.deaggregation import Deaggregator
from shardfleet.engine.shard.reader import ReadPorts, ShardReader
from shardfleet.engine.state.beside import generation_of, raise_generation
from shardfleet.engine.state.fleet_state import FleetState
from shardfleet.engine.state.kinds import LANES, WINDOW
from shardfleet.errors import (
    ConfigurationError,
    ForeignPosition,
    MalformedDocument,
    OutcomeUnknown,
    PositionTrimmed,
    ShardGone,
    Throttled,
)
from shardfleet.records import Record, StreamRecord
from shardfleet_ops.operate.pause import Operator
from shardfleet_ops.operate.positions import pinned
from shardfleet_ops.positions.rewinds import (
    RewindRow,
    RewindState,
    RewindTarget,
    begun_descendants,
    unleased_shards,
)

# Of a read, and the pause before an answer that did not come is looked for.
_TRIES_MOST, _PAUSE_MS = 10, 1_000
_THERE = "it stands there, or before that, already"
# Lanes and windows may be further than the checkpoint: what lies in between is not all done, and
# who set the lease forward would pass it over.
_STAYS = (
    "not all before that was done, so it stays where it stands; what was done beyond comes again"
)


class RewindPlan(Struct, frozen=True):
    """
    What a rewind would do.

    Attributes:
        targets: where to, by lease key.
        rows: one per lease asked for, and per descendant that goes with it, ordered by key.
        unleased: shards before them that have no lease any more: they are not read again.

    """

    targets: Mapping[str, RewindTarget]
    rows: tuple[RewindRow, ...]
    unleased: tuple[str, ...]

    @property
    def keys(self) -> tuple[str, ...]:
        """Return the leases that are set back."""
        return tuple(row.lease_key for row in self.rows if row.state is RewindState.SET_BACK)


class BeyondCheckpoint(Struct, frozen=True):
    """
    What was done of a shard beyond its checkpoint, and counts.

    Attributes:
        through: an open window has everything up to here in its state; None: there is none.
        ahead: how far lanes are done.

    """

    through: ExtendedSequenceNumber | None
    ahead: DoneAhead

    @property
    def last(self) -> ExtendedSequenceNumber | None:
        """Return the furthest position of all; None: nothing was done beyond the checkpoint."""
        place = self.ahead.last
        lane = None if place is None else ExtendedSequenceNumber(str(place[0]), place[1])
        return max((each for each in (self.through, lane) if each is not None), default=None)

    def has(self, partition_key: str, position: ExtendedSequenceNumber) -> bool:
        """Return whether the record of that key at that position was done."""
        if self.through is not None and position <= self.through:
            return True
        place = int(position.sequence_number), position.sub_sequence_number
        return self.ahead.has(partition_key, place)


async def beyond_checkpoint(state: FleetState, lease: Lease) -> BeyondCheckpoint:
    """
    Read what was done beyond the checkpoint of a lease that somebody else may hold.

    Raises:
        Throttled: try again.

    """
    now = await generation_of(state.store, lease.lease_key)
    ahead, through, lanes, window = DoneAhead(), None, None, None
    # Of those that cannot be read it is told by who has read them; their records come again.
    with suppress(MalformedDocument):
        lanes, _ = await state.beside(LANES, lease.lease_key)
    with suppress(MalformedDocument):
        window, _ = await state.beside(WINDOW, lease.lease_key)
    if lanes is not None and lanes.counts_for(lease, now):
        ahead = lanes.done_ahead(lease.checkpoint)
    if window is not None and window.counts_for(lease, now) and window.is_for(lease.checkpoint):
        through = window.done
    return BeyondCheckpoint(through, ahead)


class _Count(Struct):
    """What lies between two positions."""

    to: ExtendedSequenceNumber
    stands: ExtendedSequenceNumber
    done_ahead: BeyondCheckpoint
    records: int = 0
    bytes: int = 0
    first_ms: int | None = None
    last_ms: int | None = None
    beyond: int = 0
    first: str = ""
    complete: bool = True
    is_before: bool = False

    @property
    def end(self) -> ExtendedSequenceNumber | None:
        """Return behind what nothing comes again; None: nothing does."""
        last = self.done_ahead.last
        if last is None:
            return self.stands if self.stands.is_shard_end or not self.stands.is_sentinel else None
        return max(last, self.stands)

    def add(self, record: Record) -> bool:
        """Count a record if it comes again; return whether it lies within the end."""
        position = position_of(record)
        if self.end is None or position > self.end:
            return False
        if position > self.stands:
            if not self.done_ahead.has(record.partition_key, position):
                return True
            self.beyond += 1
        self.first = self.first or record.sequence_number
        self.records += 1
        self.bytes += len(record.data)
        # Arrival times need not have the order of the records (K28, botocore's model: GetRecords).
        if arrived_ms := record.approximate_arrival_ms:
            self.first_ms = min(arrived_ms, self.first_ms or arrived_ms)
            self.last_ms = max(arrived_ms, self.last_ms or arrived_ms)
        return True


class Rewinder:
    """Previews and carries out."""

    def __init__(
        self,
        config: FleetConfig,
        operator: Operator,
        *,
        stream: StreamDirectory,
        reading: ReadPorts,
        pages_most: int,
    ) -> None:
        """
        Touch nothing yet.

        Args:
            config: how workers take records apart.
            operator: pauses the leases, and has the tables.
            stream: its shards.
            reading: to count in; its events tell oddities of aggregates.
            pages_most: pages of 1,000 stream records that are counted per shard, one a second.

        """
        self._config = config
        self._stream = stream
        self._reading = reading
        self._pages_most = pages_most
        self._operator = operator

    async def preview(
        self, lease_keys: Collection[str], target: RewindTarget, *, with_children: bool
    ) -> RewindPlan:
        """
        Count what would come again, as things stand; write nothing.

        Raises:
            ConfigurationError: the record to go back to is not in the shard.
            Throttled: a table refused; try again.

        """
        leases = await self._operator.leases.scan()
        shards = await self._stream.list_shards()
        by_key = {lease.lease_key: lease for lease in leases}
        listed = {shard.shard_id for shard in shards}
        wanted = dict.fromkeys(sorted(lease_keys), target)
        if with_children:
            for key in sorted(lease_keys):
                for child in begun_descendants(leases, key):
                    wanted.setdefault(child, RewindTarget(AT_TRIM_HORIZON))

        async def examine(key: str) -> RewindRow:
            if key not in listed:
                return RewindRow(
                    lease_key=key, state=RewindState.GONE, why="its shard has left the stream"
                )
            row = await self._examine(by_key.get(key), key, wanted[key])
            if row.state is not RewindState.SET_BACK:
                return row
            ahead = [child for child in begun_descendants(leases, key) if child not in wanted]
            return replace(row, children_ahead=tuple(ahead))

        rows = await each_of(sorted(wanted), examine)
        return RewindPlan(wanted, tuple(rows), unleased_shards(shards, leases, lease_keys))

    async def carry_out(
        self, plan: RewindPlan, pause: Pause, *, within_ms: int, stay_paused: bool
    ) -> tuple[RewindRow, ...]:
        """
        Pause, wait until nobody has the leases, count again, set back, and resume.

        Args:
            plan: from :meth:`preview`.
            pause: who and why.
            within_ms: how long to wait for the workers.
            stay_paused: leave the leases paused, for a person to look at.

        Returns:
            The rows, the counts now exact.

        Raises:
            Throttled: a table refused; what was done is told by another preview.

        """
        keys = plan.keys
        rows = {row.lease_key: row for row in plan.rows}
        before = await self._operator.pause(keys, pause)
        try:
            held = await self._operator.until_free(keys, within_ms=within_ms)
            for key in keys:
                if held:
                    # Relatives go together, or a child would be read before its parent.
                    rows[key] = _held(rows[key], held)
                else:
                    rows[key] = await self._set_back(rows[key], plan.targets[key])
        finally:
            if not stay_paused:
                await self._operator.resume(set(keys) - before.leases.keys())
        return tuple(rows.values())

    async def _set_back(self, row: RewindRow, target: RewindTarget) -> RewindRow:
        for _ in range(_TRIES_MOST):
            lease = await self._operator.leases.get(row.lease_key)
            if lease is not None and lease.effective_owner and not lease.is_finished:
                # Somebody who knows nothing of pauses took it.
                return replace(_held(row, (row.lease_key,)), owner=lease.effective_owner)
            exact = await self._examine(lease, row.lease_key, target)
            if exact.state is not RewindState.SET_BACK or lease is None:
                return exact
            if await self._written(lease, exact):
                return replace(exact, children_ahead=row.children_ahead)
        return _held(row, (row.lease_key,))

    async def _written(self, lease: Lease, row: RewindRow) -> bool:
        """Set one lease back; a finished one still names its last owner, who goes first."""
        number, _, sub = row.to.partition(":")
        to = ExtendedSequenceNumber(number, int(sub or 0))
        store, now_ms = self._operator.state.store, self._operator.clock.now_ms()
        try:
            # Whoever is cut off behind this has nothing count but a window, and nothing lost.
            await raise_generation(
                store.raw,
                lease.lease_key,
                now_ms=now_ms,
                to=position_text(to),
                first=row.first,
            )
            if lease.effective_owner is not None:
                freed = await self._operator.leases.apply(lease_changes.evict(lease))
                if not isinstance(freed, Applied) or freed.lease.effective_owner is not None:
                    return False
                lease = freed.lease
            result = await self._operator.leases.apply(lease_changes.rewind(lease, to))
        except (Throttled, OutcomeUnknown):
            await self._operator.clock.sleep_ms(_PAUSE_MS)
            current = await self._operator.leases.get(lease.lease_key)
            # Nobody else sets a lease without an owner to exactly this place.
            return (
                current is not None
                and current.checkpoint == to
                and current.lease_counter == lease.lease_counter + 1
            )
        return isinstance(result, Applied)

    async def _examine(
        self, lease: Lease | None, lease_key: str, target: RewindTarget
    ) -> RewindRow:
        """Count what lies between a target and where a lease stands."""
        if lease is None:
            return RewindRow(lease_key=lease_key, state=RewindState.GONE, why="it has no lease")
        owner = None if lease.is_finished else lease.effective_owner
        row = RewindRow(
            lease_key=lease_key,
            state=RewindState.LEFT,
            owner=owner,
            checkpoint=str(lease.checkpoint),
            to=checkpoint_text(target.checkpoint),
        )
        stands = await pinned(self._operator.state, lease)
        try:
            count = await self._count(lease, stands, target)
            if not count.is_before and count.beyond:
                row = replace(row, why=_STAYS)
                count = await self._count_all(lease, stands)
            elif not count.is_before:
                return replace(row, why=self._unseen(count) or _THERE)
        except ShardGone:
            return replace(row, state=RewindState.GONE, why="its shard has left the stream")
        if not count.records and not lease.is_finished and not lease.checkpoint.is_sentinel:
            none = "no record that was handled lies after that"
            return replace(row, why=self._unseen(count) or none)
        return replace(
            row,
            state=RewindState.SET_BACK,
            to=checkpoint_text(count.to),
            records=count.records,
            bytes=count.bytes,
            complete=count.complete,
            beyond=count.beyond,
            first=count.first,
            is_stopped=await self._operator.state.stop(lease_key) is not None,
            first_arrived_ms=count.first_ms,
            last_arrived_ms=count.last_ms,
        )

    def _unseen(self, count: _Count) -> str:
        """Return that too few pages were looked at to tell, "" where they were enough."""
        if count.complete or count.records:
            return ""
        return f"{self._pages_most} pages from there had no record: look further (--pages)"

    async def _count_all(self, lease: Lease, stands: ExtendedSequenceNumber) -> _Count:
        """Count what was done beyond the checkpoint, all of it: the lease stays there."""
        try:
            count = await self._count(lease, stands, RewindTarget(stands))
        except ConfigurationError:
            # Its record has expired: whoever reads on from there is told of a loss.
            count = await self._count(lease, stands, RewindTarget(AT_TRIM_HORIZON))
        count.to = stands
        return count

    async def _count(
        self, lease: Lease, stands: ExtendedSequenceNumber, target: RewindTarget
    ) -> _Count:
        beyond = await beyond_checkpoint(self._operator.state, lease)
        count = _Count(target.checkpoint, stands, beyond)
        shard = ShardRef.of(lease.lease_key, self._config.stream_arn)
        expander = Deaggregator(
            shard, lease.hash_key_range, config=self._config, sink=self._reading.events
        )
        done = None if target.checkpoint.is_sentinel else target.checkpoint
        first: StreamRecord | None = None
        pages_left = self._pages_most
        async for page in self._pages(shard, target):
            if first is None and page.records:
                first = page.records[0]
                if done is not None:
                    done = count.to = await _exactly(expander, page.records[:1], target)
            came = (await expander.expand(page.records, done)).records
            if (count.end is None and first is not None) or not all(map(count.add, came)):
                break
            if page.resume_token is None or (not page.records and page.millis_behind_latest == 0):
                break
            pages_left -= 1
            if not pages_left:
                count.complete = False
                break
        if first is None and done is not None and count.complete:
            await _exactly(expander, (), target)
        count.is_before = target.is_before(stands, count.to, first)
        return count

    async def _pages(self, shard: ShardRef, target: RewindTarget) -> AsyncIterator[RecordsPage]:
        checkpoint = target.checkpoint
        if checkpoint == AT_TRIM_HORIZON:
            start = FROM_TRIM_HORIZON
        elif checkpoint.sequence_number == AT_TIMESTAMP:
            start = StartingPosition(
                StartKind.AT_TIMESTAMP, instant_ms=checkpoint.sub_sequence_number
            )
        else:
            start = StartingPosition(StartKind.AT_SEQUENCE_NUMBER, checkpoint.sequence_number)
        reading = self._reading
        limits = ReadLimits(back_off_ms=reading.patience.back_off_ms, attempts_most=_TRIES_MOST)
        reader = ShardReader(shard, ReadFrom(start=start), limits=limits, ports=reading)
        try:
            async for page in reader.pages():
                yield page
        except (PositionTrimmed, ForeignPosition) as error:
            raise ConfigurationError(
                f"--to {checkpoint.sequence_number}: no such record is in {shard.shard_id}: {error}"
            ) from error


async def _exactly(
    expander: Deaggregator, first: Sequence[StreamRecord], target: RewindTarget
) -> ExtendedSequenceNumber:
    """Return the position in the record that counts as done: the one asked for, or its last."""
    end = (await expander.expand(first, None)).end
    wanted = target.checkpoint
    if end is None or end.sequence_number != wanted.sequence_number or end < wanted:
        raise ConfigurationError(
            f"--to {wanted}: no such record is in the shard; it may have expired, or belong to "
            f"another shard. The first one there is {end}"
        )
    return end if target.whole_record else wanted


def _held(row: RewindRow, held: Collection[str]) -> RewindRow:
    why = f"{', '.join(held)} was not given up in time, or taken again; nothing was set back"
    return replace(row, state=RewindState.HELD, why=why)
