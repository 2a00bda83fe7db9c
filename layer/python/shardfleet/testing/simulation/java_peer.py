"""
A worker that behaves like the KCL for Java: mixed fleets are explored with it.

From protocol.md §1.6-1.8, §3.5 and §4.6, not from our engine: it renews, takes and checkpoints by
the counter alone, knows no monotonic guard, no epochs and no slots, notices the dead by its own
watching, steals one lease at a time, adopts what the index shows it, and, as a leader of KCL 3,
now and then starts a graceful handover, to itself or to another worker. It handles
records for the same ledger.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace

from shardfleet.domain.leases import changes as lease_changes
from shardfleet.domain.leases.lease import (
    Applied,
    CheckpointNotPast,
    Lease,
    LeaseChange,
    LeaseField,
)
from shardfleet.domain.reading.pages import RecordsPage, StartingPosition, StartKind
from shardfleet.domain.stream.sequence import (
    AT_SHARD_END,
    AT_TRIM_HORIZON,
    ExtendedSequenceNumber,
)
from shardfleet.domain.stream.shards import ChildShard
from shardfleet.engine.ports import LeaseStore
from shardfleet.errors import IteratorExpired, OutcomeUnknown, PositionTrimmed, ShardGone, Throttled
from shardfleet.kpl.deaggregate import ExpansionLimits, deaggregate, records_after
from shardfleet.records import Record, StreamRecord
from shardfleet.testing.memory_stream import Polled
from shardfleet.testing.simulation.actors import Actor
from shardfleet.testing.simulation.surroundings import Surroundings
from shardfleet.testing.simulation.user_handler import take_effect

FAILOVER_MS = 10_000
_RENEW_S = 3.3
_TAKE_S = 20.0
_DISCOVER_S = 10.0
_HANDOVER_S = 10.0
# KCL 3: gracefulLeaseHandoffTimeoutMillis, and a failover time (protocol.md §3.2 step 2).
_HANDOVER_MOST_MS = 30_000 + FAILOVER_MS
_HANDOVERS_MOST = 2
_LIMITS = ExpansionLimits(100_000, 64 * 1024 * 1024)


@dataclass(slots=True)
class _Held:
    lease: Lease
    renewed_ms: int
    lock: asyncio.Lock = field(default_factory=asyncio.Lock)
    is_lost: bool = False


class JavaLikePeer:
    """One such worker, in one actor."""

    def __init__(
        self,
        actor: Actor,
        around: Surroundings,
        *,
        leases: LeaseStore,
        stream: Polled,
        hurry: float = 1.0,
        is_old: bool = False,
    ) -> None:
        """
        Begin with nothing held; ``actor.worker_id`` is the owner's name.

        It begins handovers ``hurry`` times as often as the KCL, and stores no hash ranges if it
        ``is_old``.
        """
        self._actor = actor
        self._around = around
        self._leases = leases
        self._stream = stream
        self._held: dict[str, _Held] = {}
        self._changed: dict[str, tuple[int, int]] = {}
        # lease -> its two owners in a handover, and when this leader first saw them so
        self._pending: dict[str, tuple[str | None, str | None, int]] = {}
        self._chance = around.chance(f"java/{actor.name}")
        self._lead_s = _HANDOVER_S / hurry
        self._is_old = is_old

    async def run(self) -> None:
        """Work until killed."""
        await asyncio.gather(
            self._forever(self._take, _TAKE_S),
            self._forever(self._renew_all, _RENEW_S),
            self._forever(self._discover, _DISCOVER_S),
            self._forever(self._lead, self._lead_s),
        )

    async def _forever(self, work: Callable[[], object], every_s: float) -> None:
        while True:
            try:
                await work()  # type: ignore[misc]
            except (Throttled, OutcomeUnknown):
                self._around.log(self._actor.name, "tries again later")
            await asyncio.sleep(every_s)

    # --- the taker (§1.8)

    async def _take(self) -> None:
        leases = await self._leases.scan()
        now_ms = self._around.now_ms
        for lease in leases:
            known = self._changed.get(lease.lease_key)
            if known is None or known[0] != lease.lease_counter:
                is_free = known is None and lease.lease_owner is None
                self._changed[lease.lease_key] = (lease.lease_counter, 0 if is_free else now_ms)
        free = [
            lease
            for lease in leases
            if lease.lease_owner is None or now_ms - self._changed[lease.lease_key][1] > FAILOVER_MS
        ]
        busy = [lease for lease in leases if lease not in free]
        load = Counter(lease.lease_owner for lease in busy)
        mine = load[self._actor.worker_id]
        owners = len(load.keys() | {self._actor.worker_id})
        need = max(1, -(-len(leases) // owners)) - mine
        wanted = [lease for lease in free if lease.lease_owner != self._actor.worker_id][:need]
        if need > 0 and not free and load:
            donor, most = max(load.items(), key=lambda item: (item[1], str(item[0])))
            if most >= mine + need and donor != self._actor.worker_id:
                wanted = [lease for lease in busy if lease.lease_owner == donor][:1]
        for lease in wanted:
            result = await self._leases.apply(lease_changes.take(lease, self._actor.worker_id))
            if isinstance(result, Applied) and not result.lease.is_finished:
                self._hold(result.lease)

    async def _discover(self) -> None:
        """Adopt what the index shows under this worker's name, once no handover is pending."""
        for key in await self._leases.keys_owned_by(self._actor.worker_id):
            lease = None if key in self._held else await self._leases.get(key)
            if lease is None or lease.is_finished or lease.checkpoint_owner is not None:
                continue
            if lease.lease_owner == self._actor.worker_id and key not in self._held:
                self._hold(lease)

    async def _lead(self) -> None:
        """Start a handover, to oneself or to another; force one that took too long (§3.5)."""
        leases = await self._leases.scan()
        me = self._actor.worker_id
        now_ms = self._around.now_ms
        pending = [le for le in leases if le.checkpoint_owner is not None and not le.is_finished]
        before, self._pending = self._pending, {}
        for lease in pending:
            owners = (lease.lease_owner, lease.checkpoint_owner)
            known = before.get(lease.lease_key)
            since_ms = known[2] if known is not None and known[:2] == owners else now_ms
            self._pending[lease.lease_key] = (*owners, since_ms)
        for lease in pending:
            if now_ms - self._pending[lease.lease_key][2] > _HANDOVER_MOST_MS:
                await self._leases.apply(lease_changes.assign(lease, lease.lease_owner or me))
                return
        others = [
            lease
            for lease in leases
            if lease.lease_owner not in (None, me)
            and lease.checkpoint_owner is None
            and not lease.is_finished
        ]
        if others and len(self._pending) < _HANDOVERS_MOST:
            chosen = self._chance.choice(others)
            names = {lease.lease_owner for lease in others} - {chosen.lease_owner}
            target = self._chance.choice((me, *sorted(filter(None, names))))
            await self._leases.apply(lease_changes.initiate_handover(chosen, target))

    def _hold(self, lease: Lease) -> None:
        if lease.lease_key not in self._held:
            held = self._held[lease.lease_key] = _Held(lease, self._around.now_ms)
            task = asyncio.create_task(self._consume(held), name=f"java {lease.lease_key}")
            task.add_done_callback(lambda _task: self._held.pop(lease.lease_key, None))

    # --- writing (§1.6)

    async def _renew_all(self) -> None:
        for held in list(self._held.values()):
            if self._around.now_ms - held.renewed_ms > FAILOVER_MS:
                held.is_lost = True
            await self._write(held, lease_changes.renew)

    async def _write(self, held: _Held, build: Callable[[Lease], LeaseChange]) -> bool:
        """Write by the counter; False once the lease is lost."""
        async with held.lock:
            while not held.is_lost:
                change, now_ms = build(held.lease), self._around.now_ms
                try:
                    result = await self._leases.apply(change)
                except Throttled:
                    await asyncio.sleep(0.2)
                    continue
                except OutcomeUnknown:
                    if await self._was_written(held, change):
                        return True
                    continue
                if isinstance(result, Applied):
                    held.lease, held.renewed_ms = result.lease, now_ms
                    return True
                held.is_lost = True
        return False

    async def _was_written(self, held: _Held, change: LeaseChange) -> bool:
        """Recognise a retried write of one's own; lose the lease if somebody else moved it."""
        try:
            current = await self._leases.get(held.lease.lease_key)
        except Throttled:
            return False
        moved = 0 if current is None else current.lease_counter - held.lease.lease_counter
        if current is None or current.lease_owner != self._actor.worker_id or moved > 1:
            held.is_lost = True
        elif moved:
            held.lease = current
            return current.checkpoint == change.sets.get(LeaseField.CHECKPOINT, current.checkpoint)
        return False

    async def _checkpoint(self, held: _Held, to: ExtendedSequenceNumber) -> bool:
        def build(lease: Lease) -> LeaseChange:
            change = lease_changes.checkpoint(lease, to)
            conditions = tuple(c for c in change.conditions if not isinstance(c, CheckpointNotPast))
            return replace(change, conditions=conditions)

        return await self._write(held, build)

    # --- consuming

    async def _consume(self, held: _Held) -> None:
        await self._wait_for_parents(held)
        reached, iterator = held.lease.checkpoint, None
        while not held.is_lost:
            try:
                iterator = iterator or await self._iterator(held.lease.lease_key, reached)
                page = await self._stream.get_records(
                    iterator, shard_id=held.lease.lease_key, limit=20
                )
            except (Throttled, IteratorExpired, PositionTrimmed) as error:
                iterator = None if isinstance(error, IteratorExpired) else iterator
                await asyncio.sleep(1)
                continue
            except ShardGone:
                return
            if _is_contradictory(page, held.lease.lease_key):
                await asyncio.sleep(1)
                continue
            before = reached
            for record in page.records:
                reached = await self._process(held, record, reached)
            if reached != before:
                await self._checkpoint(held, reached)
            if page.resume_token is None:
                await self._end(held, page)
                return
            iterator = page.resume_token
            await asyncio.sleep(1)

    async def _wait_for_parents(self, held: _Held) -> None:
        for parent in held.lease.parent_shard_ids:
            while True:
                if held.is_lost or await self._is_over(parent):
                    break
                await asyncio.sleep(2)

    async def _iterator(self, shard_id: str, reached: ExtendedSequenceNumber) -> str:
        start = StartingPosition(StartKind.TRIM_HORIZON)
        if not reached.is_sentinel:
            start = StartingPosition(StartKind.AT_SEQUENCE_NUMBER, reached.sequence_number)
        return await self._stream.shard_iterator(shard_id, start)

    async def _process(
        self, held: _Held, record: StreamRecord, reached: ExtendedSequenceNumber
    ) -> ExtendedSequenceNumber:
        found = deaggregate(
            record.data,
            partition_key=record.partition_key,
            limits=_LIMITS,
            hash_range=None,
            policy="deliver",
        )
        number = record.sequence_number
        for user in records_after(found, sequence_number=number, done=reached):
            await asyncio.sleep(0.002)
            self._actor.check()
            if held.is_lost:
                return reached
            user_record = Record(
                data=user.data,
                partition_key=user.partition_key,
                sequence_number=number,
                sub_sequence_number=user.sub_sequence_number,
                shard_id=held.lease.lease_key,
                approximate_arrival_ms=record.approximate_arrival_ms,
            )
            take_effect(self._actor, self._around, user_record)
            reached = ExtendedSequenceNumber(number, user.sub_sequence_number)
        return reached

    async def _is_over(self, lease_key: str) -> bool:
        try:
            lease = await self._leases.get(lease_key)
        except Throttled:
            return False
        return lease is None or lease.is_finished

    # --- ending a shard (§4.6)

    async def _end(self, held: _Held, page: RecordsPage) -> None:
        for child in page.child_shards:
            await self._create(held, child)
        if held.is_lost:
            return
        ids = [child.shard_id for child in page.child_shards]
        await self._until_answered(lease_changes.set_children(held.lease, ids))
        await self._checkpoint(held, AT_SHARD_END)

    async def _create(self, held: _Held, child: ChildShard) -> None:
        """Create a child's lease once each other parent has one (``ShutdownTask``)."""
        others: Sequence[str] = [p for p in child.parent_shard_ids if p != held.lease.lease_key]
        while not held.is_lost and others:
            try:
                found = [await self._leases.get(key) for key in others]
            except Throttled:
                continue
            if all(found):
                break
            await asyncio.sleep(2)
        lease = Lease(
            lease_key=child.shard_id,
            checkpoint=AT_TRIM_HORIZON,
            parent_shard_ids=tuple(sorted(child.parent_shard_ids)),
            hash_key_range=None if self._is_old else child.hash_key_range,
        )
        if not held.is_lost:
            await self._until_answered(lease_changes.create(lease))

    async def _until_answered(self, change: LeaseChange) -> None:
        while True:
            try:
                await self._leases.apply(change)
            except (Throttled, OutcomeUnknown):
                await asyncio.sleep(0.2)
            else:
                return


def _is_contradictory(page: RecordsPage, shard_id: str) -> bool:
    """Tell whether a page is wrong about the shard's end (§4.5)."""
    ended, children = page.resume_token is None, page.child_shards
    strangers = any(shard_id not in child.parent_shard_ids for child in children)
    return ended != bool(children) or strangers
