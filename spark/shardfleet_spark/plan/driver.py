"""
The driver's half of the streaming source: offsets in, offsets and partitions out.

It lives in one process beside Spark's driver and keeps nothing that it could not find again from
the last offset, the seals and the stream: every decision is made by :mod:`planning` and
:mod:`lineage`, here it is only gathered what they need, each thing at a pace of its own.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import count
from typing import Any

from shardfleet.domain.stream.sequence import PointKind
from shardfleet.records import StreamRecord
from shardfleet_spark.offsets.lineage import (
    CommittedStanding,
    Family,
    admit,
    first_family,
    needs_listing,
)
from shardfleet_spark.offsets.plan_token import Emission, PlanToken, Stand, token_to_json
from shardfleet_spark.offsets.seals import Seal, SealKey, SealStore, in_groups
from shardfleet_spark.options.starting import FLEET, Start
from shardfleet_spark.plan.clean_up import CleanUp
from shardfleet_spark.plan.discovery import Discovery
from shardfleet_spark.plan.driver_reads import BatchRequest, DriverRead, DriverReads
from shardfleet_spark.plan.fleet_positions import LeaseReader, start_after
from shardfleet_spark.plan.lags import behind_now
from shardfleet_spark.plan.planning import (
    Advanced,
    BatchLimits,
    advance,
    carried_by_driver,
    driver_notice,
    is_converged,
    next_token,
)
from shardfleet_spark.plan.probing import Hints, IdleShardProber, ProbePace
from shardfleet_spark.plan.rhythm import Rhythm
from shardfleet_spark.plan.sealed_plans import SealedPlans
from shardfleet_spark.read.sealing import PartitionRange, SealRange
from shardfleet_spark.read.shard_pages import FetchPorts, Hint, ShardRange

LOG = logging.getLogger(__name__)
_NOTHING = Advanced(family=Family({}, {}), busy=frozenset())
# Spark asks again after 10 ms; no longer than this does an ask hold up a query's other source.
_REST_MOST_MS = 50


@dataclass(frozen=True, slots=True, kw_only=True)
class DriverSettings:
    """
    What the options say about planning.

    Attributes:
        start: where a query without a checkpoint begins.
        limits: of a batch; Spark's own read limits come on top.
        emission: how records become rows.
        pace: of looking for work in idle shards.
        discovery_interval_ms: how often the shard list is read.
        plans_retained: plans whose seals are kept.

    """

    start: Start
    limits: BatchLimits
    emission: Emission
    pace: ProbePace
    discovery_interval_ms: int = 10_000
    plans_retained: int = 100


@dataclass(frozen=True, slots=True, kw_only=True)
class PlannedPartition:
    """
    One task's work; all of it travels to the executor.

    Attributes:
        range: what to read.
        emission: how records become rows.
        hashes: hash ranges by shard, where they matter.
        sealed: without a seal store: exactly what to read.
        records: without a seal store: what the driver has read already, by shard; may be empty.

    """

    range: PartitionRange
    emission: Emission
    hashes: Mapping[str, tuple[int, int]] = field(default_factory=dict)
    sealed: Seal | None = None
    records: Mapping[str, Sequence[StreamRecord]] = field(default_factory=dict)


class SourceDriver:
    """
    Plans the batches of one query.

    Attributes:
        standing: what Spark has committed, None until it is known.
        is_idle: whether there was nothing to plan when Spark last asked.
        is_rested: whether it then got the same answer again, and nobody was asked.
        is_over: with AvailableNow: whether everything is read and committed.

    Args:
        settings: from the options.
        ports: the stream and the rest.
        store: of seals; None: this process reads the stream itself and the offsets say what.
        leases: reads the lease table of a fleet, for a start at its positions.

    """

    def __init__(
        self,
        settings: DriverSettings,
        ports: FetchPorts,
        store: SealStore | None,
        *,
        leases: LeaseReader | None = None,
    ) -> None:
        self.standing: CommittedStanding | None = None
        self.is_idle = self.is_over = self.is_rested = False
        self._settings = settings
        self._ports = ports
        self._store = store
        self._leases = leases
        # Of two processes that go on from one offset, each makes plans of its own.
        self._run = ports.entropy.token()
        self._plans = SealedPlans(store, ports, run=self._run)
        self._clean_up = CleanUp(store, ports, run=self._run, retained=settings.plans_retained)
        self._hints = Hints()
        self._prober = IdleShardProber(ports, settings.pace, self._hints)
        self._initial: PlanToken | None = None
        self._last: dict[str, Any] | None = None
        self._after: tuple[str, Advanced] = ("", _NOTHING)
        self._behind: dict[str, Any] = {}
        # What was asked last, offset and limits, if there was nothing then; and where shards stood.
        self._in_vain: tuple[dict[str, Any], int, int] | None = None
        self._idle = _NOTHING
        self._discovery = Discovery(
            ports,
            interval_ms=settings.discovery_interval_ms,
            hurry_ms=settings.pace.interval_ms,
        )
        self._rhythm = Rhythm()
        self._target_ms = 0
        self._is_target_told = False
        self._converged: frozenset[str] = frozenset()
        self._reads = DriverReads(ports)
        # Of the newest plan, what was read here of each partition.
        self._bodies: dict[str, Sequence[Mapping[str, Sequence[StreamRecord]]]] = {}
        self._notice = ""

    # --- what Spark asks

    async def initial(self) -> dict[str, Any]:
        """Return the offset before the first batch: made once, then the same again."""
        if self._initial is None:
            self._initial = await self._begin()
        return token_to_json(self._initial)

    def prepare_available_now(self, target_ms: int = 0) -> None:
        """Take a moment (default: this one) as the one up to which everything is to be read."""
        self._is_target_told = bool(target_ms)
        self._target_ms = target_ms or self._ports.clock.now_ms()

    async def latest(
        self, start: dict[str, Any] | None = None, *, records: int = 0, total_bytes: int = 0
    ) -> dict[str, Any]:
        """
        Return the end offset of the next batch; ``start`` itself when there is nothing to do.

        Args:
            start: the end offset of the batch before; None on Spark 4.0 and 4.1, which do not
                say: then the last one seen.
            records: Spark's read limit, 0 for none.
            total_bytes: Spark's read limit, 0 for none.

        Raises:
            UnreadableCheckpoint: the offset is none of ours.
            ConfigurationError: it needs a seal store and none is named, or is of another stream.
            DataLost, StreamReplaced, StreamGone: see the messages.

        """
        self._rhythm.asked(self._ports.clock.monotonic_ms())
        known = start or self._last or await self.initial()
        ask = (known, records, total_bytes)
        rest_ms = self._rest_ms() if self._in_vain == ask else 0
        self.is_rested = rest_ms > 0
        if self.is_rested:
            await self._ports.clock.sleep_ms(rest_ms)
            return known
        self._in_vain = None
        token = self._plans.token_of(known)
        after = await self._after_plan(token)
        urgent = needs_listing(after.family)
        await self._discovery.refresh(token.incarnation, urgent=urgent)
        token, after = self._reborn(token, after)
        after = self._admitted(token, after)
        # Spark asks for the next batch when the one before is in its commit log.
        self.standing = self._standing(token, after.family)
        limits = self._limits(records, total_bytes)
        now_ms = self._ports.clock.now_ms()
        planned = await self._plan(token, after, limits)
        if planned is None:
            self._in_vain, self._idle = ask, self._admitted(token, after)
        else:
            busy = after.busy or self._prober.found
            self._behind = behind_now(after.family, after.inflows, busy=busy, now_ms=now_ms)
            planned = replace(planned, stats={**planned.stats, **self._behind})
            self._read_ahead(planned, limits)
        self._last = known if planned is None else token_to_json(planned)
        self.is_idle = planned is None
        self.is_over = planned is None and bool(self._target_ms)
        return self._last

    async def partitions(
        self, start: Mapping[str, Any] | None, end: dict[str, Any]
    ) -> list[PlannedPartition]:
        """
        Return the tasks of a batch; only ``end`` decides, ``start`` may be another each time.

        Raises:
            UnreadableCheckpoint, ConfigurationError, DataLost, StreamReplaced: as :meth:`latest`.

        """
        token = self._plans.token_of(end)
        self._last = end
        if start == end or (token.run != self._run and not await self._may_repeat(token)):
            return []
        # After a restart a batch may be repeated before Spark asks for the next one.
        self.standing = self.standing or self._standing(token, Family(token.stands, token.waiting))
        bodies, ranges = self._bodies.get(token.key, ()), self._ranges(token)
        if token.sealed is not None and not all(bodies[: len(ranges)] or [None]):
            self._plans.read_again(token)
        return [
            PlannedPartition(
                range=ranges[index],
                emission=token.emission,
                hashes={s: token.hashes[s] for s in shards if s in token.hashes},
                sealed=token.sealed[index] if token.sealed is not None else None,
                records=bodies[index] if index < len(bodies) else {},
            )
            for index, shards in enumerate(token.layout)
        ]

    async def commit(self, end: Mapping[str, Any]) -> None:
        """Forget what no replay can need any more."""
        token = self._plans.token_of(end)
        self._bodies.pop(token.key, None)
        await self._clean_up.after(token)

    def report(self) -> dict[str, Any]:
        """Return the lags now, and the figures of the last executed plan, for Spark's progress."""
        if self._in_vain is not None:
            self._behind = behind_now(
                self._idle.family,
                self._idle.inflows,
                busy=frozenset(),
                now_ms=self._ports.clock.now_ms(),
            )
        found = {**self._after[1].stats, **self._behind, "probes": self._prober.calls}
        found["probe_throttles"] = self._prober.throttles
        if self._notice:
            found["notice"] = self._notice
        if self._clean_up.trouble:
            found["clean_up_trouble"] = self._clean_up.trouble
        return found

    def _take_notice(self, shards: int) -> None:
        """Log once that more may come in than the driver can hand on, if that may be."""
        if shards > 1 and not self._notice:
            self._notice = driver_notice(shards)
            LOG.warning("%s", self._notice)

    def _standing(self, token: PlanToken, family: Family) -> CommittedStanding:
        return CommittedStanding(token.sid, family, self._discovery.listing)

    async def _may_repeat(self, token: PlanToken) -> bool:
        """Return whether a batch that another run planned is to be read, its stream still there."""
        await self._discovery.refresh(token.incarnation, urgent=False)
        if self._discovery.incarnation != token.incarnation:
            LOG.warning("plan %d was of a stream that is gone: it reads nothing", token.number)
            return False
        await self._plans.expect(token)
        return True

    # --- gathering

    async def _begin(self) -> PlanToken:
        family, incarnation = await self._discovery.begin(await self._start())
        return PlanToken(
            sid=self._ports.entropy.token(),
            number=0,
            incarnation=incarnation,
            stands=family.stands,
            waiting=family.waiting,
            emission=self._settings.emission,
        )

    async def _start(self) -> Start:
        start = self._settings.start
        if start.kind != FLEET:
            return start
        assert self._leases is not None
        return start_after(start.application, await self._leases(start.application))

    async def _after_plan(self, token: PlanToken) -> Advanced:
        if self._after[0] == token.key:
            return self._after[1]
        seals, lost = await self._plans.executed(token)
        after = advance(token, seals, self._after[1].inflows)
        after = replace(after, stats={**after.stats, "lost": [*after.stats["lost"], *lost]})
        for each in after.stats["lost"]:
            LOG.warning("data loss: %s", each)
        self._keep_hints(after)
        self._converged |= is_converged(token, after, self._target_ms)
        self._prober.hurry()
        self._after = (token.key, after)
        return after

    def _keep_hints(self, after: Advanced) -> None:
        for shard_id, sealed in after.seals.items():
            hint = Hint(
                iterator=sealed.iterator,
                iterator_ms=sealed.iterator_ms,
                free_ms=sealed.free_ms,
                record_bytes=sealed.size_bytes // max(1, sealed.count),
            )
            self._hints.keep(shard_id, after.family.stands[shard_id], hint)

    # --- deciding

    def _limits(self, records: int, total_bytes: int) -> BatchLimits:
        """Return the limits of a batch: Spark's before the options'."""
        limits = self._settings.limits
        return replace(
            limits,
            records=records or limits.records,
            total_bytes=total_bytes or limits.total_bytes,
            fetch_ms=self._rhythm.fetch_ms if limits.fetch_ms is None else limits.fetch_ms,
        )

    def _rest_ms(self) -> int:
        """Return how long to let Spark wait, for nobody is to be asked; 0: somebody is."""
        if self._target_ms:
            return 0
        return min(self._prober.wait_ms, self._discovery.wait_ms, _REST_MOST_MS)

    def _reborn(self, token: PlanToken, after: Advanced) -> tuple[PlanToken, Advanced]:
        """Begin anew with a stream that was created again; only if losses are allowed."""
        new, listing = self._discovery.incarnation, self._discovery.listing
        if new is None or new == token.incarnation or listing is None:
            return token, after
        family = first_family(
            listing.graph,
            listing.graph.roots(),
            start=PointKind.TRIM_HORIZON,
            instant_ms=0,
            incarnation=new,
        )
        loss = f"{new.stream_arn} was deleted and created again: it is read from its beginning"
        stats = {**after.stats, "lost": [*after.stats.get("lost", ()), loss]}
        return replace(token, incarnation=new), replace(_NOTHING, family=family, stats=stats)

    def _admitted(self, token: PlanToken, after: Advanced) -> Advanced:
        family = admit(after.family, self._discovery.listing, token.incarnation)
        if set(family.live) - set(after.family.live):
            self._prober.hurry()
        stands = {
            shard_id: replace(stand, tip_ms=max(stand.tip_ms, self._prober.tips.get(shard_id, 0)))
            for shard_id, stand in family.stands.items()
        }
        return replace(after, family=replace(family, stands=stands))

    async def _plan(
        self, token: PlanToken, after: Advanced, limits: BatchLimits
    ) -> PlanToken | None:
        if self._store is None:
            self._take_notice(len(after.family.live))
        planned = self._next(token, after, limits, leave_out=self._converged)
        if planned is None:
            return None
        if self._store is None:
            return await self._read(planned, token, after, limits=limits)
        if not self._target_ms and not after.busy:
            live: dict[str, Stand] = {s: after.family.stands[s] for s in after.family.live}
            if not await self._prober.has_work(live):
                return None
            planned = replace(planned, stands=self._admitted(token, after).family.stands)
        await self._plans.mark(planned)
        return planned

    def _next(
        self,
        token: PlanToken,
        after: Advanced,
        limits: BatchLimits,
        *,
        leave_out: frozenset[str],
    ) -> PlanToken | None:
        planned = next_token(
            token,
            after,
            limits=limits if self._store is not None else carried_by_driver(limits),
            now_ms=self._ports.clock.now_ms(),
            target_ms=self._target_ms,
            leave_out=leave_out if self._target_ms else frozenset(),
        )
        if planned is None:
            return None
        planned = replace(planned, run=self._run, emission=self._settings.emission)
        return replace(planned, hashes=self._hashes(planned))

    def _hashes(self, token: PlanToken) -> dict[str, tuple[int, int]]:
        """Return the hash ranges of the plan's shards, where aggregates may be dropped by them."""
        listing = self._discovery.listing
        if token.emission.misrouted == "deliver" or listing is None:
            return {}
        found = dict(token.hashes)
        for shard_id in (shard_id for shards in token.layout for shard_id in shards):
            shard = listing.graph.shards.get(shard_id)
            if shard is not None:
                found[shard_id] = (shard.hash_key_range.start, shard.hash_key_range.end)
        return found

    async def _read(
        self, planned: PlanToken, token: PlanToken, after: Advanced, *, limits: BatchLimits
    ) -> PlanToken | None:
        """Read the batch here and now; the offset says exactly what was read."""
        read = await self._ahead(token, limits)
        if read is None and not after.busy and not self._target_ms:
            live = {s: after.family.stands[s] for s in after.family.live}
            if not await self._prober.has_work(live):
                return None
        if read is None:
            read = await self._reads.read(planned, self._ranges(planned))
        sealed = replace(read.planned, sealed=read.seals, stats=planned.stats)
        self._bodies = {sealed.key: read.bodies}
        # Spark 4.0 and 4.1, to which a target is told, close windows by the next batch alone.
        if read.brought or not self._target_ms or self._is_target_told:
            return sealed
        # AvailableNow, and nothing came: no batch, but the shards may have been at their tips.
        following = await self._after_plan(sealed)
        self._after = (planned.key, following)
        if set(following.family.live) <= self._converged:
            return None
        return await self._plan(sealed, self._admitted(sealed, following), limits)

    async def _ahead(self, token: PlanToken, limits: BatchLimits) -> DriverRead | None:
        """Return what was read ahead, if it is what would be read now."""
        request = BatchRequest(token.key, limits.records, limits.total_bytes)
        read = await self._reads.ahead(request)
        if read is None or read.is_cut or self._target_ms:
            return read
        # It came to the tip, and since then more may have arrived: that belongs to this batch.
        for seal in read.seals:
            for each in seal.shards:
                stand = read.planned.stands[each.shard_id]
                hint = self._hints.of(each.shard_id, stand)
                self._hints.keep(each.shard_id, stand, replace(hint, free_ms=each.free_ms))
        return None

    def _read_ahead(self, token: PlanToken, limits: BatchLimits) -> None:
        """Begin to read what follows a batch that was read here, if its shards have more."""
        # Spark 4.0 and 4.1, to which a target has to be told, end AvailableNow after one batch.
        if token.sealed is None or self._is_target_told:
            return
        found = advance(token, dict(enumerate(token.sealed)), self._after[1].inflows)
        after = self._admitted(token, found)
        if not after.busy:
            return
        converged = self._converged | is_converged(token, after, self._target_ms)
        planned = self._next(token, after, limits, leave_out=converged)
        if planned is not None:
            self._keep_hints(after)
            request = BatchRequest(token.key, limits.records, limits.total_bytes)
            self._reads.begin_ahead(request, planned, self._ranges(planned))

    def _ranges(self, token: PlanToken) -> list[PartitionRange]:
        numbers, found = count(), []
        for shards, quota in zip(token.layout, token.quotas, strict=True):
            groups = in_groups(shards) if token.sealed is None else (shards,)
            parts = tuple(
                SealRange(
                    SealKey(token.sid, token.key, next(numbers)),
                    tuple(self._shard_range(token, shard_id) for shard_id in group),
                )
                for group in groups
            )
            found.append(PartitionRange(parts, quota))
        return found

    def _shard_range(self, token: PlanToken, shard_id: str) -> ShardRange:
        stand = token.stands[shard_id]
        return ShardRange(shard_id, stand, self._hints.of(shard_id, stand))
