"""
Carrying a migration out: look at the tables, plan the next step, do it, look again.

Nothing is kept here: whoever runs it next, in the same direction or back, goes on from what the
tables say (`domain/balance/migration.py`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping

from msgspec.structs import replace

from shardfleet.config import FleetConfig
from shardfleet.domain.balance.kcl3 import FRESH_MS, Direction, Kcl3, of_our_application
from shardfleet.domain.balance.migration import (
    MigrationSnapshot,
    MigrationStep,
    MigrationTask,
    plan_migration,
)
from shardfleet.domain.balance.strategy import change_of
from shardfleet.domain.leases.expiry import Reading, Sighting, sighted
from shardfleet.domain.leases.lease import Lease
from shardfleet.domain.leases.shard_ref import ShardRef
from shardfleet.domain.reading.cursor import ReadFrom, ReadLimits
from shardfleet.domain.reading.pages import StartingPosition, StartKind
from shardfleet.domain.reasons import Pause
from shardfleet.domain.refusals import Doubt
from shardfleet.domain.sleep.pauses import Migration, Pauses
from shardfleet.engine.manager.assigner import Assigner
from shardfleet.engine.ports import EventSink, Kcl3Store, OwnerIndex
from shardfleet.engine.retry import Box, each_of
from shardfleet.engine.shard.reader import ReadPorts, ShardReader
from shardfleet.errors import (
    ForeignPosition,
    OutcomeUnknown,
    PositionTrimmed,
    ShardGone,
    Throttled,
    settled,
)
from shardfleet_ops.operate.pause import Operator

_LOOK_EVERY_MS = 1_000
_MOVE_MOST_MS = 60_000
_TRIES_MOST = 10
_PAGES_MOST = 20


async def trimmed_after(
    leases: Iterable[Lease], reading: ReadPorts, *, stream_arn: str
) -> list[str]:
    """
    Return the keys of unfinished leases behind whose checkpoint records have expired.

    Each shard is read at its checkpoint, to the first record that comes.

    Raises:
        Throttled: the stream refused; try again.

    """

    async def is_trimmed(lease: Lease) -> bool:
        number = lease.checkpoint.sequence_number
        start = StartingPosition(StartKind.AT_SEQUENCE_NUMBER, number)
        limits = ReadLimits(back_off_ms=reading.patience.back_off_ms, attempts_most=_TRIES_MOST)
        shard = ShardRef.of(lease.lease_key, stream_arn)
        reader = ShardReader(shard, ReadFrom(start=start), limits=limits, ports=reading)
        pages_left = _PAGES_MOST
        try:
            async for page in reader.pages():
                if page.records:
                    # What was checkpointed comes first, unless it has expired.
                    return int(page.records[0].sequence_number) > int(number)
                pages_left -= 1
                if page.millis_behind_latest == 0 or not pages_left:
                    return False
        except PositionTrimmed:
            return True
        except (ShardGone, ForeignPosition):
            return False
        return False

    numbered = [le for le in leases if not (le.is_finished or le.checkpoint.is_sentinel)]
    found = await each_of(numbered, is_trimmed)
    return [lease.lease_key for lease, yes in zip(numbered, found, strict=True) if yes]


def _patience_ms(step: MigrationStep, within_ms: int) -> int:
    """Who has ended is seen only when its last row is out of date."""
    return within_ms + (FRESH_MS if step.step is MigrationTask.AWAIT_JAVAS_END else 0)


class Migrator:
    """A person who moves leases between Java and the fleet."""

    def __init__(
        self,
        config: FleetConfig,
        operator: Operator,
        *,
        kcl3: Kcl3Store,
        index: OwnerIndex,
        events: EventSink,
        person: str,
    ) -> None:
        """Touch nothing yet."""
        self._config = config
        self._operator = operator
        self._kcl3 = kcl3
        self._index = index
        self._person = person
        leases, state = operator.leases, operator.state
        self._assigner = Assigner(leases=leases, state=state, events=events)
        self._sightings: dict[str, Sighting] = {}
        self._rows: dict[str, int] = {}
        self._living: set[str | None] = set()

    async def look(self) -> MigrationSnapshot:
        """
        Read what a step is planned by; who stands still is known by the manager's looks, and ours.

        Raises:
            ConfigurationError: there is no such lease table.
            Throttled: a table refused; try again.

        """
        operator, clock = self._operator, self._operator.clock
        began_ms = clock.now_ms()
        survey = await operator.leases.survey()
        reading = Reading(
            began_ms=began_ms, ended_ms=clock.now_ms(), skew_ms=self._config.clock_skew_ms
        )
        before = self._sightings
        self._sightings, expired = sighted(
            before or await operator.state.sightings(),
            survey.leases,
            reading=reading,
            failover_ms=self._config.failover_ms,
            graces={},
        )
        pauses = await operator.pauses()
        slots = [each.slot for each in await operator.state.slots()]
        kcl3 = of_our_application(
            await self._kcl3.found(survey.foreign),
            survey,
            ours={slot.worker_id for slot in slots},
        )
        self._note_life(before, kcl3)
        return MigrationSnapshot(
            at_ms=clock.now_ms(),
            leases=survey.leases,
            slots=slots,
            kcl3=kcl3,
            is_paused=pauses.fleet is not None,
            is_hidden=pauses.migration is not None,
            expired=expired,
            index=await self._index.status(),
            unproven={row.worker_id for row in kcl3.rows} - self._living,
        )

    def _note_life(self, before: Mapping[str, Sighting], kcl3: Kcl3) -> None:
        """Note who has renewed a lease, or written its row, since the last look."""
        for key, seen in self._sightings.items():
            was = before.get(key)
            if was is not None and was.owner == seen.owner and was.counter != seen.counter:
                self._living.add(seen.owner)
        for row in kcl3.rows:
            if self._rows.setdefault(row.worker_id, row.updated_s) != row.updated_s:
                self._living.add(row.worker_id)

    async def run(
        self, direction: Direction, *, within_ms: int, tell: Callable[[MigrationStep], None]
    ) -> MigrationStep:
        """
        Go on until it is done, or nothing has changed for a while; return the step where it ended.

        Args:
            direction: from whom to whom.
            within_ms: how long to wait for what others do.
            tell: is told each step, once.

        Raises:
            ConfigurationError: there is no such lease table.
            RightMissing: something may not be read or written, and that has lasted.

        """
        clock = self._operator.clock
        told: MigrationStep | None = None
        until_ms, doubt = 0, Doubt()
        while True:
            try:
                snapshot = await self.look()
                step = plan_migration(direction, self._config, snapshot)
                if told is None or (step.step, step.leases) != (told.step, told.leases):
                    tell(step)
                    told, until_ms = step, clock.monotonic_ms() + _patience_ms(step, within_ms)
                if step.step is MigrationTask.DONE:
                    return step
                await self._carry_out(direction, step, snapshot, within_ms=within_ms)
                doubt.clear()
            except (Throttled, OutcomeUnknown) as error:
                if doubt.believes(error, clock.monotonic_ms()):
                    raise settled(error) from error
            if told is not None and clock.monotonic_ms() >= until_ms:
                return told
            await clock.sleep_ms(_LOOK_EVERY_MS)

    async def abort(self) -> bool:
        """Let both sides share again; return whether there was anything to be ended."""
        before = await self._operator.pauses()
        await self._mark(None)
        return before.migration is not None

    async def _carry_out(
        self, direction: Direction, step: MigrationStep, found: MigrationSnapshot, *, within_ms: int
    ) -> None:
        operator = self._operator
        match step.step:
            case MigrationTask.MAKE_INDEX:
                await self._index.make()
            case MigrationTask.RESUME:
                await operator.go_on()
            case MigrationTask.HIDE:
                now_ms = operator.clock.now_ms()
                await self._mark(Migration(direction=direction, by=self._person, since_ms=now_ms))
            case MigrationTask.MOVE if direction is Direction.FROM_JAVA:
                await self._take(step, found)
            case MigrationTask.MOVE:
                await self._give(step, found)
            case MigrationTask.DRAIN:
                why = Pause(self._person, operator.clock.now_ms(), f"migrate --{direction}")
                await operator.pause(None, why)
                await operator.drain(step.workers, within_ms=within_ms)
                await operator.state.prompt_manager()
            case MigrationTask.SHOW:
                await self._mark(None)
            case _:
                return

    async def _mark(self, migration: Migration | None) -> None:
        def marked(pauses: Pauses) -> Pauses:
            return replace(pauses, migration=migration)

        await self._operator.change_pauses(marked)
        await self._operator.state.prompt_manager()

    async def _take(self, step: MigrationStep, found: MigrationSnapshot) -> None:
        clock = self._operator.clock
        await self._assigner.carry_out(
            step.moves,
            found.slots,
            graceful=found.java if found.hands_over else (),
            box=Box(clock, clock.monotonic_ms() + _MOVE_MOST_MS),
        )

    async def _give(self, step: MigrationStep, found: MigrationSnapshot) -> None:
        leases = self._operator.leases
        current = await each_of([move.lease.lease_key for move in step.moves], leases.get)
        changes = [
            change_of(move, lease, graceful=found.ours)
            for move, lease in zip(step.moves, current, strict=True)
        ]
        await each_of([change for change in changes if change is not None], leases.apply)
