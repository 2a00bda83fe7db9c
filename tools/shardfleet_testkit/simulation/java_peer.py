"""
A worker that behaves like the KCL for Java: mixed fleets are explored with it.

From protocol.md §1.6-1.8, §2, §3 and §4.6, not from our engine: it renews, takes and checkpoints by
the counter alone, knows no monotonic guard, no epochs and no slots, notices the dead by its own
watching. It handles records for the same ledger. There are two kinds:

- one of the KCL 2 takes leases greedily, and steals one at a time. It knows no leader, no index and
  no handover;
- one of the KCL 3 takes nothing. It shows a row of metrics, adopts what the index shows it, gives a
  lease away when it finds that a handover has begun, and may be the leader (``java_leader.py``).

What it does is held against recorded histories of the real one (``test_java_peer.py``). It syncs no
shards and cleans up no leases: in the runs that is left to our manager.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from functools import partial

from msgspec.structs import replace

from shardfleet.domain.balance.kcl3 import WorkerRow
from shardfleet.domain.leases import changes as lease_changes
from shardfleet.domain.leases.lease import (
    Applied,
    ChangeResult,
    CheckpointNotPast,
    Lease,
    LeaseChange,
    LeaseField,
    Lost,
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
from shardfleet_testkit.memory_stream import Polled
from shardfleet_testkit.simulation.actors import Actor
from shardfleet_testkit.simulation.java_leader import LEAD_S, Clocks, Kcl3Access, KclLeader
from shardfleet_testkit.simulation.java_taker import FAILOVER_MS, TAKE_S, LeaseTaker
from shardfleet_testkit.simulation.surroundings import Surroundings
from shardfleet_testkit.simulation.user_handler import take_effect

_RENEW_S = 3.308
_DISCOVER_S = 9.975
_ROW_S, _LOCK_S = 30.0, 30.0
_FIRST_ROW_S = 2.0
# gracefulLeaseHandoffTimeoutMillis: who is asked gives a lease away by then, finished or not.
_GIVE_MOST_MS = 30_000
_LIMITS = ExpansionLimits(100_000, 64 * 1024 * 1024)


@dataclass(slots=True)
class _Held:
    """
    A lease that this worker has.

    Attributes:
        lease: as it was last written or seen.
        renewed_ms: when its counter was last moved.
        lock: writes come one after the other.
        is_lost: it is another's.
        asked_ms: when a handover was found to have begun; None: none has.
        consumer: what reads it; None: it is finished, and only renewed.
        read_bytes: since the last renewal.

    """

    lease: Lease
    renewed_ms: int
    lock: asyncio.Lock = field(default_factory=asyncio.Lock)
    is_lost: bool = False
    asked_ms: int | None = None
    consumer: asyncio.Task[None] | None = None
    read_bytes: int = 0


class JavaLikePeer:
    """One such worker, in one actor."""

    def __init__(
        self,
        actor: Actor,
        around: Surroundings,
        *,
        leases: LeaseStore,
        stream: Polled,
        kcl3: Kcl3Access | None = None,
        is_old: bool = False,
    ) -> None:
        """
        Begin with nothing held; ``actor.worker_id`` is the owner's name.

        It is one of the KCL 2 without ``kcl3``, and stores no hash ranges if it ``is_old``.
        """
        self._actor = actor
        self._around = around
        self._leases = leases
        self._stream = stream
        self._kcl3 = kcl3
        self._held: dict[str, _Held] = {}
        self._is_old = is_old
        self._is_shown = False

    async def run(self) -> None:
        """Work until killed."""
        await asyncio.gather(
            self._forever(self._renew_all, _RENEW_S),
            *(self._forever(work, every_s) for work, every_s in self._works()),
        )

    def _works(self) -> Sequence[tuple[Callable[[], Awaitable[None]], float]]:
        """Return what it does beside renewing, and how often: its way to come by leases."""
        around, me = self._around, self._actor.worker_id
        chance = around.chance(f"java/{self._actor.name}")
        kcl3 = self._kcl3
        if kcl3 is None:
            taker = LeaseTaker(me, self._leases, now_ms=lambda: around.now_ms, chance=chance)

            async def take() -> None:
                for lease in await taker.take(self._held.keys()):
                    self._hold(lease)

            return ((take, TAKE_S),)
        leader = KclLeader(
            me,
            kcl3,
            leases=self._leases,
            clocks=Clocks(lambda: around.now_ms, around.clock.now_ms),
            chance=chance,
        )

        async def show() -> None:
            if not self._is_shown:
                await asyncio.sleep(_FIRST_ROW_S)
                self._is_shown = True
            await kcl3.rows.write(WorkerRow(me, around.clock.now_ms() // 1000))

        return (
            (show, _ROW_S),
            (leader.hold_lock, _LOCK_S),
            (leader.lead, LEAD_S / kcl3.hurry),
            (self._discover, _DISCOVER_S),
        )

    async def _forever(self, work: Callable[[], Awaitable[None]], every_s: float) -> None:
        """Work at a fixed rate, as the KCL's executors do; what came too late is left out."""
        loop, due_s = self._around.loop, self._around.loop.time()
        while True:
            try:
                await work()
            except (Throttled, OutcomeUnknown):
                self._around.log(self._actor.name, "tries again later")
            due_s = max(due_s + every_s, loop.time())
            await asyncio.sleep(due_s - loop.time())

    async def _discover(self) -> None:
        """Adopt what the index shows under this worker's name, once no handover is pending."""
        for key in await self._leases.keys_owned_by(self._actor.worker_id):
            lease = None if key in self._held else await self._leases.get(key)
            if lease is None or lease.checkpoint_owner is not None:
                continue
            if lease.lease_owner == self._actor.worker_id and key not in self._held:
                self._hold(lease)

    def _hold(self, lease: Lease) -> None:
        """Renew a lease from now on, and read its shard unless that is done."""
        if lease.lease_key in self._held:
            return
        held = self._held[lease.lease_key] = _Held(lease, self._around.now_ms)
        if not lease.is_finished:
            name = f"java {lease.lease_key}"
            held.consumer = asyncio.create_task(self._consume(held), name=name)
            held.consumer.add_done_callback(lambda _task: self._consumed(held))

    def _consumed(self, held: _Held) -> None:
        held.consumer = None
        if held.is_lost or not held.lease.is_finished:
            self._held.pop(held.lease.lease_key, None)

    # --- writing (§1.6)

    async def _renew_all(self) -> None:
        await asyncio.gather(*map(self._renew, list(self._held.values())))

    async def _renew(self, held: _Held) -> None:
        if self._around.now_ms - held.renewed_ms > FAILOVER_MS:
            held.is_lost = True
        rate = None
        if self._kcl3 is not None:
            before = held.lease.throughput_kbps or 0.0
            rate = round((before + held.read_bytes / 1024 / _RENEW_S) / 2, 6)
            held.read_bytes = 0
        await self._write(held, partial(self._renewal, rate))
        if self._is_due_to_give(held):
            await self._give(held)
        if held.is_lost and held.consumer is None:
            self._held.pop(held.lease.lease_key, None)

    def _renewal(self, rate: float | None, lease: Lease) -> LeaseChange:
        """Renew; the KCL 2 knows no handover, the KCL 3 wants to hear of one (§1.6)."""
        is_deaf = self._kcl3 is None or lease.checkpoint_owner is not None
        return lease_changes.renew(lease, throughput_kbps=rate, in_handover=is_deaf)

    def _is_due_to_give(self, held: _Held) -> bool:
        """Return whether a lease has to be given away whatever its consumer is at."""
        if held.asked_ms is None or held.is_lost:
            return False
        waited_ms = self._around.now_ms - held.asked_ms
        return held.consumer is None or waited_ms > _GIVE_MOST_MS

    async def _give(self, held: _Held) -> None:
        """Let go of a lease in favour of who is to have it (§3.5)."""
        while not held.is_lost:
            lease = held.lease
            change = lease_changes.assign(lease, lease.lease_owner or "")
            try:
                await self._leases.apply(change)
            except (Throttled, OutcomeUnknown):
                await asyncio.sleep(0.2)
                continue
            held.is_lost = True

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
                    held.lease, held.renewed_ms = _owned_as(held.lease, result.lease), now_ms
                    return True
                if not self._is_asked_to_give(held, result):
                    held.is_lost = True
        return False

    def _is_asked_to_give(self, held: _Held, refused: ChangeResult) -> bool:
        """Take note of a handover that has begun: who hears of it renews and reads on (§1.6)."""
        if self._kcl3 is None or not isinstance(refused, Lost):
            return False
        now, then = refused.current, held.lease
        is_new = now.checkpoint_owner is not None and then.checkpoint_owner is None
        if not is_new or now.effective_owner != then.effective_owner:
            return False
        if now.lease_owner == now.checkpoint_owner:
            return False
        held.asked_ms = self._around.now_ms
        held.lease = replace(
            then, lease_owner=now.lease_owner, checkpoint_owner=now.checkpoint_owner
        )
        return True

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
            held.lease = _owned_as(held.lease, current)
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
        while not held.is_lost and held.asked_ms is None:
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
                held.read_bytes += len(record.data)
                reached = await self._process(held, record, reached)
            if reached != before:
                await self._checkpoint(held, reached)
            if page.resume_token is None:
                await self._end(held, page)
                return
            iterator = page.resume_token
            await asyncio.sleep(1)
        await self._give(held)

    async def _wait_for_parents(self, held: _Held) -> None:
        for parent in held.lease.parent_shard_ids:
            while True:
                if held.is_lost or held.asked_ms is not None or await self._is_over(parent):
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


def _owned_as(then: Lease, now: Lease) -> Lease:
    """Return a lease as it is now; of its owners the KCL learns from a refused renewal only."""
    return replace(now, lease_owner=then.lease_owner, checkpoint_owner=then.checkpoint_owner)


def _is_contradictory(page: RecordsPage, shard_id: str) -> bool:
    """Return whether a page is wrong about the shard's end (§4.5)."""
    ended, children = page.resume_token is None, page.child_shards
    strangers = any(shard_id not in child.parent_shard_ids for child in children)
    return ended != bool(children) or strangers
