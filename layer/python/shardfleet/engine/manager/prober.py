"""
The manager's eye on sleeping shards: one small read each, and awake at the first record (H6, H14).

A look reads from where the last one ended and moves nothing: no checkpoint, no owner. What it
learns is kept in memory between two looks of one invocation, and in the fleet state before its
iterators grow too old for the next one. A look that fails, or says something else than *nothing,
at the tip*, takes the nap away; then the lease is assigned as any other.
"""

from __future__ import annotations

from collections.abc import Mapping

from shardfleet.config import FleetConfig
from shardfleet.domain.leases.foreign_owners import Foreign
from shardfleet.domain.leases.lease import Lease
from shardfleet.domain.leases.shard_ref import ShardRef
from shardfleet.domain.reading.cursor import ReadFrom, ReadLimits
from shardfleet.domain.reading.pages import (
    FROM_TRIM_HORIZON,
    RecordsPage,
    StartingPosition,
    StartKind,
    start_of,
)
from shardfleet.domain.reasons import OtherApplication, Reason
from shardfleet.domain.sleep.sleep import (
    Found,
    Glance,
    Nap,
    after_look,
    are_due_to_be_stored,
    next_glance,
)
from shardfleet.domain.stream.sequence import StreamIncarnation
from shardfleet.domain.turn import TurnPlan
from shardfleet.engine.retry import Box, Halt, each_of
from shardfleet.engine.shard.reader import ReadPorts, ShardReader
from shardfleet.engine.shard.start import TipMarks, start_position
from shardfleet.engine.state.beside import LeaseNotes
from shardfleet.engine.state.fleet_state import FleetState
from shardfleet.engine.state.kinds import NAP
from shardfleet.engine.state.sleep_state import NapRecord
from shardfleet.errors import (
    FalseEnd,
    ForeignPosition,
    IteratorExpired,
    OutcomeUnknown,
    PositionTrimmed,
    ShardGone,
    StreamGone,
    Throttled,
)
from shardfleet.events.manager import LeaseWoken, SleepSwitched

# A record is all that is wanted, and it is read again by a worker.
_ONE_LOOK = ReadLimits(back_off_ms=lambda _: 0, records_most=1, attempts_most=1)
# What a failure says of a sleeping shard.
_FAILURES: Mapping[type[Exception], Found] = {
    Throttled: Found.REFUSED,
    OutcomeUnknown: Found.REFUSED,
    IteratorExpired: Found.EXPIRED,
    ShardGone: Found.GONE,
    StreamGone: Found.GONE,
    PositionTrimmed: Found.TRIMMED,
    ForeignPosition: Found.TRIMMED,  # A worker is to tell what is wrong with it.
    FalseEnd: Found.END,
}


class Prober:
    """
    Looks at sleeping shards, in turns and between them.

    Attributes:
        looked_ms: when it last did, on the monotonic clock; None: not yet.

    """

    def __init__(
        self,
        config: FleetConfig,
        *,
        state: FleetState,
        ports: ReadPorts,
    ) -> None:
        """Keep the ports; nothing is known yet."""
        self._config = config
        self._state = state
        self._ports = ports
        self._clock = ports.clock
        self._record = NapRecord(state.store)
        self._tips = TipMarks(LeaseNotes(state), ports.clock)
        self._asleep: Mapping[str, Nap] = {}
        self._leases: Mapping[str, Lease] = {}
        self._incarnation: StreamIncarnation | None = None
        self._glances: dict[str, Glance] = {}
        self._stored: dict[str, Glance] | None = None
        self._woken: dict[str, Reason] = {}
        self.looked_ms: int | None = None

    @property
    def has_sleepers(self) -> bool:
        """Return whether there is anything to look at."""
        return bool(self._asleep)

    async def look_if_due(
        self, plan: TurnPlan, *, incarnation: StreamIncarnation
    ) -> Mapping[str, Reason]:
        """
        Look at those asleep, if it is time; return whom there is reason to wake, and why.

        Args:
            plan: the turn's, as far as it is known without a look.
            incarnation: of the stream.

        Raises:
            Throttled: of the fleet state; the next turn begins anew.

        """
        if not self._config.sleep:
            return {}
        self._asleep = plan.sleepers.asleep
        self._leases = {lease.lease_key: lease for lease in plan.leases}
        self._incarnation = incarnation
        await self._remember()
        if self._is_time():
            await self.look()
        return dict(self._woken)

    async def carry_out(self, plan: TurnPlan, *, box: Box) -> None:
        """
        Note who else is about, wake whom the plan wakes, and keep what was seen of the others.

        Raises:
            BoxSpent, Throttled, OutcomeUnknown: of the fleet state; the next turn begins anew.

        """
        if not self._config.sleep:
            return
        await self._note_foreign(plan.snapshot.foreign, plan.sleepers.foreign)
        await self._wake(plan, box)
        self._asleep = plan.sleepers.asleep
        await self._store()

    @property
    def quiet_ms(self) -> Mapping[str, int]:
        """Return lease key to when there was last nothing to read, epoch milliseconds."""
        return {
            key: next_glance(nap, self._glances.get(key), now_ms=0).quiet_ms
            for key, nap in self._asleep.items()
        }

    async def look(self) -> bool:
        """Look at each sleeping shard once; return whether one is to be woken in a turn."""
        self.looked_ms = self._clock.monotonic_ms()
        await each_of(list(self._asleep.values()), self._look)
        return bool(self._woken)

    def _is_time(self) -> bool:
        """Return whether this turn is to look: not so soon after a look between two turns."""
        return (
            self.looked_ms is None
            or self._clock.monotonic_ms() - self.looked_ms >= self._config.probe_ms
        )

    async def _remember(self) -> None:
        """Read once what the invocation before knew, and forget who is no longer asleep."""
        if self._stored is None:
            self._stored = await self._record.glances()
            self._glances = dict(self._stored)
        self._glances = {k: g for k, g in self._glances.items() if k in self._asleep}
        self._woken = {k: why for k, why in self._woken.items() if k in self._asleep}

    async def _look(self, nap: Nap) -> None:
        key = nap.lease_key
        last = self._glances.get(key)
        glance = next_glance(nap, last, now_ms=self._clock.now_ms())
        if key in self._woken and last is not None and last.since_ms == nap.since_ms:
            return
        found, iterator = await self._ask(nap, glance)
        after = after_look(glance, found, iterator=iterator, at_ms=self._clock.now_ms())
        if isinstance(after, Reason):
            self._glances[key] = glance
            self._woken[key] = after
        else:
            self._glances[key] = after

    async def _ask(self, nap: Nap, glance: Glance) -> tuple[Found, str]:
        """Return what a read finds, and where the next one begins."""
        try:
            origin = await self._origin(nap, glance)
            shard = ShardRef.of(nap.lease_key, self._config.stream_arn)
            reader = ShardReader(shard, origin, limits=_ONE_LOOK, ports=self._ports)
            page = await reader.next_page(Halt())
            if isinstance(page, RecordsPage) and page.says_nothing:
                # An idle shard's lag may be one that only the next iterator is rid of (K21).
                page = await reader.next_page(Halt())
        except tuple(_FAILURES) as error:
            return next(_FAILURES[kind] for kind in _FAILURES if isinstance(error, kind)), ""
        assert isinstance(page, RecordsPage)
        if page.records:
            return Found.RECORDS, ""
        if page.resume_token is None:
            return Found.END, ""
        if page.millis_behind_latest != 0:
            return Found.LAG, ""
        return Found.NOTHING, page.resume_token

    async def _origin(self, nap: Nap, glance: Glance) -> ReadFrom:
        """Return where its worker stood: behind what it has read, or where the lease begins."""
        done = None if nap.done.is_sentinel else nap.done.sequence_number
        return ReadFrom(
            start=FROM_TRIM_HORIZON if glance.iterator else await self._start(nap),
            resume_token=glance.iterator or None,
            witness=nap.after or done,
            complete_before_ms=glance.quiet_ms,
        )

    async def _start(self, nap: Nap) -> StartingPosition:
        if nap.after:
            return StartingPosition(StartKind.AFTER_SEQUENCE_NUMBER, nap.after)
        assert self._incarnation is not None
        position = await start_position(
            self._leases[nap.lease_key],
            nap.done,
            incarnation=self._incarnation,
            config=self._config,
            state=self._state,
            clock=self._clock,
        )
        # Nothing was read behind the checkpoint, not even its own record: that one has expired.
        return FROM_TRIM_HORIZON if position.done else start_of(position)

    async def _wake(self, plan: TurnPlan, box: Box) -> None:
        """Take naps away; one that is not known to be gone is taken away in the next turn."""
        naps = {nap.lease_key: nap for nap in plan.snapshot.naps}
        woken = plan.sleepers.woken

        async def end(key: str) -> None:
            nap, glance = naps[key], self._glances.get(key)
            if key in self._asleep and glance is not None:
                # It was at its tip until then: nothing of what came since has expired (§5.1).
                await self._tips.mark(key, done=str(nap.done), at_ms=glance.quiet_ms)
            if await self._record.end(key, plan.snapshot.versions[NAP, key]):
                self._glances.pop(key, None)
                self._woken.pop(key, None)
                self._ports.events.emit(
                    LeaseWoken(
                        lease_key=key,
                        reason=woken[key],
                        slept_ms=self._clock.now_ms() - nap.since_ms,
                    )
                )

        await each_of(sorted(woken), end, box=box)

    async def _store(self) -> None:
        """Keep the iterators for the next invocation before those that are kept grow too old."""
        assert self._stored is not None
        naps, now_ms = self._asleep.values(), self._clock.now_ms()
        if are_due_to_be_stored(naps, self._stored, self._glances, now_ms=now_ms):
            await self._record.store_glances(self._glances)
            self._stored = dict(self._glances)

    async def _note_foreign(self, before: Foreign | None, foreign: Foreign | None) -> None:
        """Remember other applications; tell when sleep goes on or off for them."""
        if foreign != before:
            await self._record.note_foreign(foreign)
            if before is None or foreign is None:
                off = None if foreign is None else OtherApplication(foreign.owner)
                self._ports.events.emit(SleepSwitched(is_on=foreign is None, reason=off))
