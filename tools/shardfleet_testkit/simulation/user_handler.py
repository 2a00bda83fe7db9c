"""The user's handler: handles records one by one, and fails in every way a user's code can."""

from __future__ import annotations

import asyncio

from shardfleet.domain.delivery.hooks import Hook
from shardfleet.domain.delivery.policies import Destination
from shardfleet.domain.delivery.progress import position_of, read_position
from shardfleet.domain.delivery.replies import FAILURES
from shardfleet.domain.delivery.windows import STATE
from shardfleet.domain.stream.sequence import ExtendedSequenceNumber
from shardfleet.engine.ports import Clock, FailedRecords, HandlerResult
from shardfleet.engine.shard.failure_policy import FailurePolicy
from shardfleet.events.delivery import RecordSkipped
from shardfleet.records import Batch, Record
from shardfleet_testkit.checkers import CallBegun, Handled, RunLedger, SourceRecord, Violation
from shardfleet_testkit.checkers.deaths import RECORD
from shardfleet_testkit.checkers.fleet import LONGEST_IMPORT_MS
from shardfleet_testkit.memory_handler import MemoryHandler
from shardfleet_testkit.simulation.actors import Actor
from shardfleet_testkit.simulation.surroundings import Surroundings
from shardfleet_testkit.simulation.wire import Wire

_HANG_S = 3_600.0
# How long a call without records goes on killing: until somebody has deployed something better.
_KILLS_MS = (100_000, 600_000)
_FLUSHES_ONE_IN = 4
_OPEN = "open"
# In one run out of so many the handler is a class.
_CLASS_ONCE_IN = 3
# What is called to keep a record; after the last one it is kept.
_CALLS = {
    Destination.NOTHING: (),
    Destination.QUEUE: ("queue.send",),
    Destination.BUCKET: ("bucket.put",),
    Destination.TOPIC: ("bucket.put", "topic.publish"),
}


class HandlerError(Exception):
    """What the user's code raises."""


class UserHandler:
    """The ``HandlerRunner`` port of one invocation."""

    def __init__(
        self,
        actor: Actor,
        around: Surroundings,
        clock: Clock,
        *,
        overlaps: bool,
        is_manual: bool = False,
    ) -> None:
        """Wrap a memory handler around the script; with manual checkpoints it buffers."""
        self._actor = actor
        self._around = around
        self._chance = around.chance(f"handler/{actor.name}")
        self._calls = 0
        # Until when a call keeps all others from going on, by the loop's time.
        self._blocked_s = 0.0
        # Which call a batch is of, while it runs.
        self._running: dict[int, int] = {}
        load_ms = round(self._chance.uniform(0, 3_000))
        if around.faults.strike("slow_import", actor.worker_id):
            load_ms = round(around.faults.between("slow_import", 3_000, LONGEST_IMPORT_MS))
        self._dies_at_ms = -1
        if around.faults.strike("import_kills", actor.worker_id):
            self._dies_at_ms = round(around.faults.between("import_kills", 0, load_ms))
        self._is_manual = is_manual
        # What the calls that run have written of buffered records, by batch.
        self._flushed: dict[int, list[ExtendedSequenceNumber]] = {}
        script = self._buffer if is_manual else self._script
        self._memory = MemoryHandler(clock, script, overlaps=overlaps, load_ms=load_ms)
        if around.chance("handler/class").randrange(_CLASS_ONCE_IN) == 0:
            self._memory.hooks = self._hook

    @property
    def overlaps(self) -> bool:
        """Return whether calls of different shards may overlap."""
        return self._memory.overlaps

    @property
    def has_hooks(self) -> bool:
        """Return whether it is a class."""
        return self._memory.has_hooks

    async def load(self) -> None:
        """Import the user's code."""
        self._actor.check()
        if self._dies_at_ms >= 0:
            await asyncio.sleep(self._dies_at_ms / 1000)
            self._die("its import")
        await self._memory.load()
        self._actor.check()

    async def run(self, batch: Batch) -> HandlerResult:
        """Run one batch to its end, its failure or its time-out."""
        self._actor.check()
        around, actor = self._around, self._actor
        is_worker = actor.execution != (0, 0)
        if is_worker and around.faults.strike("consumer_raises", batch.shard_id):
            message = f"shard {batch.shard_id}: the port fails, not the handler"
            raise RuntimeError(message)
        self._calls += 1
        number = self._running[id(batch)] = self._calls
        if batch:
            self._tell_begun(batch, number)
        else:
            self._tell_bare(batch, begins=True)
            self._may_die(batch.shard_id, _bare(batch))
        around.calls["handler.run"] += 1
        first = batch[0].sequence_number if batch else "nothing"
        around.log(actor.name, "handler.run", batch.shard_id, first, len(batch))
        for record in batch:
            entry = entry_of(record, self._around.ledger)
            if entry is not None:
                entry.calls += 1
        result = await self._memory.run(batch)
        self._memory.calls.clear()
        actor.check()
        del self._running[id(batch)]
        self._tell_over(batch, number, result)
        return result

    def _tell_begun(self, batch: Batch, number: int) -> None:
        around = self._around
        call = CallBegun(
            at_ms=around.now_ms,
            by=self._actor,
            shard_id=batch.shard_id,
            has_hooks=self.has_hooks,
            call=number,
            keys=frozenset(record.partition_key for record in batch),
        )
        for begun in around.seers["call_begun"]:
            begun(call)

    def _tell_bare(self, batch: Batch, *, begins: bool) -> None:
        around, kind = self._around, _bare(batch)
        for seen in around.seers["bare_call"]:
            seen(around.now_ms, self._actor, batch.shard_id, call=kind, begins=begins)

    def _tell_over(self, batch: Batch, number: int, result: HandlerResult) -> None:
        around, actor, now_ms = self._around, self._actor, self._around.now_ms
        if batch and not result.timed_out:  # That one never comes back.
            for over in around.seers["call_over"]:
                over(now_ms, actor, batch.shard_id, call=number)
        elif not batch and not result.timed_out:
            self._tell_bare(batch, begins=False)
        if result.error is not None:
            for checker in around.checkers:
                checker.batch_failed(now_ms, actor, batch.shard_id, call=number)
            around.log(actor.name, "handler.run", batch.shard_id, "->", result)
        elif batch:
            places = self._flushed.pop(id(batch), [position_of(record) for record in batch])
            for done in around.seers["batch_done"]:
                done(now_ms, actor, batch.shard_id, done=places, call=number)

    def _take_effect(self, batch: Batch, record: Record) -> None:
        take_effect(self._actor, self._around, record, call=self._running.get(id(batch), 0))

    async def tell(self, hook: Hook, shard: Batch) -> HandlerResult:
        """Run a hook to its end, its failure or its time-out."""
        around, actor, shard_id = self._around, self._actor, shard.shard_id
        actor.check()
        for told in around.seers["hook_told"]:
            told(around.now_ms, actor, shard_id, hook=hook)
        around.calls["handler.tell"] += 1
        around.log(actor.name, "handler.tell", shard_id, hook)
        self._may_die(shard_id, str(hook))
        result = await self._memory.tell(hook, shard)
        actor.check()
        for over in () if result.timed_out else around.seers["hook_over"]:
            over(actor, shard_id, hook, failed=result.error is not None)
        if result.error is not None:
            around.log(actor.name, "handler.tell", shard_id, hook, "->", result)
        return result

    def _may_die(self, shard_id: str, call: str) -> None:
        """Let a call without records kill the process, now and for a while from now on."""
        around, now_ms = self._around, self._around.now_ms
        if not around.faults.are_on:
            return
        if around.faults.strike("call_kills", shard_id):
            lasts_ms = around.faults.whole("call_kills", *_KILLS_MS)
            around.killers.setdefault((shard_id, call), now_ms + lasts_ms)
        if now_ms < around.killers.get((shard_id, call), 0):
            for killed in around.seers["call_killed"]:
                killed(now_ms, self._actor, shard_id, call=call)
            self._die(f"{call} of {shard_id}")

    def _die(self, of: str) -> None:
        self._around.log(self._actor.name, "dies of", of)
        self._actor.all_suffered("killed by user code")
        self._actor.kill()
        self._actor.check()

    async def _hook(self, hook: Hook, shard: Batch) -> object:
        faults = self._around.faults
        if faults.strike("handler_raises", shard.shard_id):
            raise HandlerError("the shard is not to my liking")
        if faults.strike("handler_hangs", shard.shard_id):
            await asyncio.sleep(_HANG_S)
        if self._is_manual and hook in (Hook.ENDED, Hook.STOPPING):
            await self._flush(shard, shard.state.get(_OPEN, []))
        return None

    async def _buffer(self, batch: Batch) -> object:
        """Keep records, or write all and say so: with manual checkpoints."""
        await self._may_fail(batch)
        records = [*batch.state.get(_OPEN, []), *batch]
        self._flushed[id(batch)] = []
        if batch.must_flush or self._chance.randrange(_FLUSHES_ONE_IN) == 0:
            await self._flush(batch, records)
        else:
            batch.state[_OPEN] = records
        return None

    async def _flush(self, batch: Batch, records: list[Record]) -> None:
        for record in records:
            await self._step(0.001)
            self._take_effect(batch, record)
        if records:
            batch.checkpoint(records[-1])
        self._flushed[id(batch)] = [position_of(record) for record in records]
        batch.state[_OPEN] = []

    async def _may_be_slow(self, shard_id: str) -> None:
        """Take long now and then; half of the time no other call goes on meanwhile (H17)."""
        faults, loop = self._around.faults, self._around.loop
        if faults.strike("handler_slow", shard_id):
            slow_s = faults.between("handler_slow", 0.1, 3.0)
            if self._chance.randrange(2):
                self._blocked_s = max(self._blocked_s, loop.time() + slow_s)
            await asyncio.sleep(slow_s)

    async def _step(self, pause_s: float) -> None:
        """Go on after a while, unless another call has the handler's loop for longer."""
        await asyncio.sleep(pause_s)
        blocked_s = self._blocked_s - self._around.loop.time()
        if blocked_s > 0:
            await self._step(max(0.001, blocked_s))
        self._actor.check()

    async def _may_fail(self, batch: Batch) -> None:
        faults = self._around.faults
        await self._may_be_slow(batch.shard_id)
        if faults.strike("handler_hangs", batch.shard_id):
            await asyncio.sleep(_HANG_S)
        if faults.strike("handler_raises", batch.shard_id):
            raise HandlerError("the batch is not to my liking")

    async def _sum_up(self, batch: Batch) -> object:
        """Add records to a window's state; the last call has the result."""
        await self._may_fail(batch)
        held = list(batch.state.get(_OPEN, []))
        for record in batch:
            await self._step(0.001)
            self._take_effect(batch, record)
            held.append(str(position_of(record)))
        if batch.window is not None and batch.window.is_final:
            places = [read_position(text) for text in held]
            self._around.ledger.has_result(
                batch.shard_id,
                [(int(at.sequence_number), at.sub_sequence_number) for at in places],
            )
            for ended in self._around.seers["window_ended"]:
                ended(self._around.now_ms, self._actor, batch.shard_id, held=held)
        return {STATE: {_OPEN: held}}

    async def close(self) -> bool:
        """Stop; False if a call still hangs."""
        self._actor.check()
        return await self._memory.close()

    async def _script(self, batch: Batch) -> object:
        if batch.window is not None:
            return await self._sum_up(batch)
        faults = self._around.faults
        fails_at = -1
        tells = faults.strike("handler_partial", batch.shard_id)
        if tells or faults.strike("handler_raises", batch.shard_id):
            fails_at = faults.whole("handler_raises", 0, len(batch) - 1)
        # A handler that returns has done all, whatever it declared, but what its reply names.
        replies = tells and fails_at % 2 == 1
        await self._may_be_slow(batch.shard_id)
        pause_s = self._chance.choice((0.0, 0.0, 0.001, 0.05))
        for index, record in enumerate(batch):
            if index == fails_at and replies:
                failed = f"{record.sequence_number}:{record.sub_sequence_number}"
                return {FAILURES: [{"itemIdentifier": failed}]}
            if index == fails_at:
                raise HandlerError(f"record {record.sequence_number} is not to my liking")
            if faults.strike("handler_hangs", batch.shard_id):
                await asyncio.sleep(_HANG_S)
            await self._step(pause_s)
            self._take_effect(batch, record)
            if tells:
                batch.checkpoint(record)
        return None


def _bare(batch: Batch) -> str:
    """Return the kind of a call without records and without a hook."""
    return "flush" if batch.window is None else "window"


def take_effect(actor: Actor, around: Surroundings, record: Record, *, call: int = 0) -> None:
    """Have a record's effect on the outside world, once more."""
    now_ms = around.now_ms
    entry = entry_of(record, around.ledger)
    if entry is None or (entry.key, entry.data) != (record.partition_key, record.data):
        text = f"{actor.name} was given {record}, which nobody put there"
        around.violated(Violation(now_ms, "NoRecordInvented", record.shard_id, text))
        return
    if entry.kills:
        around.log(actor.name, "dies of", entry)
        around.faults.struck("poison", record.shard_id)
        for killed in around.seers["call_killed"]:
            killed(now_ms, actor, record.shard_id, call=f"{RECORD} {entry}")
        actor.all_suffered("killed by a record")
        actor.kill()
        actor.check()
    handled = Handled(at_ms=now_ms, by=actor, entry=entry, call=call)
    for seen in around.seers["record_handled"]:
        seen(handled)
    entry.times, entry.by, entry.at_ms = entry.times + 1, actor.name, now_ms
    around.ledger.came_again(entry)
    around.log(actor.name, "handled", entry.shard_id, entry, f"time {entry.times}")


def entry_of(record: Record, ledger: RunLedger) -> SourceRecord | None:
    """Return what the ledger knows of a record."""
    sub = record.sub_sequence_number
    return ledger.find(record.shard_id, record.sequence_number, sub)


class FaultyPolicy(FailurePolicy):
    """The failure policy of one invocation; what it keeps goes over a wire."""

    def __init__(
        self, actor: Actor, around: Surroundings, wire: Wire, *, policy: FailurePolicy
    ) -> None:
        """Carry a policy out that does what it does in memory, and at once."""
        super().__init__(policy.terms)
        self.admits = policy.admits
        self._policy = policy
        self._actor = actor
        self._around = around
        self._wire = wire

    async def give_up(self, failed: FailedRecords) -> str:
        """Make the destination's calls: with the last one, if any, records are given up."""
        *first, last = _CALLS[self.terms.destination] or ("",)
        about = failed.records[0].shard_id

        async def nothing() -> str:
            return ""

        async def work() -> str:
            for record in failed.records:
                self._note(record, attempts=failed.attempts)
            return await self._policy.give_up(failed)

        if not last:
            return await self._policy.give_up(failed)
        for call in first:
            await self._wire.write(call, nothing, about=about)
        return await self._wire.write(last, work, about=about)

    def _note(self, record: Record, *, attempts: int) -> None:
        entry = entry_of(record, self._around.ledger)
        if entry is None or entry.data != record.data:
            return
        if self.admits is None or self.admits(record):
            give_up(self._actor, self._around, entry, attempts=attempts)
        else:
            entry.is_kept = True
            self._around.log(self._actor.name, "held back", entry.shard_id, entry)


def give_up(actor: Actor, around: Surroundings, entry: SourceRecord, *, attempts: int) -> None:
    """Note that nobody needs to handle a record any more."""
    for checker in around.checkers:
        checker.record_kept(around.now_ms, actor, entry, attempts=attempts)
    entry.is_kept = True
    around.ledger.came_again(entry)
    around.log(actor.name, "given up", entry.shard_id, entry)


def pass_by(actor: Actor, around: Surroundings, event: RecordSkipped) -> None:
    """See a record passed: where records are only skipped, that is all that is done about it."""
    number, _, sub = event.position.partition(":")
    entry = around.ledger.find(event.lease_key, number, int(sub or 0))
    if around.ledger.terms.only_skips and entry is not None:
        give_up(actor, around, entry, attempts=event.attempts)
