"""
One worker turn: claim, adopt, load, consume, and leave in good order.

The order of things is what makes a turn safe to repeat and to cut off: the epoch is claimed before
anything is touched (hazard H1), leases are adopted and renewed before user code is imported and
renewed last before leaving (H16), and the turn returns only with nothing of its own running (H10).
"""

from __future__ import annotations

import asyncio
from contextlib import suppress
from functools import partial
from typing import Never

from msgspec.structs import replace

from shardfleet.config import FleetConfig
from shardfleet.domain.slots.failure import Failure, FailureKind, failure_of
from shardfleet.domain.slots.slot import ClaimRefused, Slot, SlotInput, SlotState, TurnOutcome
from shardfleet.engine.ownership.checkpointer import Adoption
from shardfleet.engine.retry import Halt, Halted, Patience, all_of
from shardfleet.engine.state.documents import Documents, TellOnce
from shardfleet.engine.state.pauses import PauseRecord, PauseWatch
from shardfleet.engine.worker.calling import CallPorts, ManagerWatch
from shardfleet.engine.worker.ports import UnfailingSink, WorkerPorts
from shardfleet.engine.worker.shards import ShardWork
from shardfleet.engine.worker.slot import SlotRecord
from shardfleet.engine.worker.tasks import TurnTasks
from shardfleet.engine.worker.watch import SlotWatch, TurnStop, WatchPorts
from shardfleet.errors import (
    ConfigurationError,
    HandlerTimedOut,
    MalformedDocument,
    OutcomeUnknown,
    ShardfleetError,
    StaleEpoch,
    Throttled,
    told,
)
from shardfleet.events.worker import TurnBegun, TurnEnded, TurnEnding, TurnFailed, TurnRefused

_MOMENT_S = 0.01


async def worker_turn(
    given: SlotInput, *, config: FleetConfig, ports: WorkerPorts, deadline_ms: int
) -> TurnOutcome:
    """
    Run one turn of a slot.

    Args:
        given: the invocation's input.
        config: the fleet's configuration.
        ports: everything asked of the world.
        deadline_ms: ``clock.monotonic_ms()`` at which the invocation is cut off.

    Returns:
        What the state machine is to do next.

    """
    return await WorkerTurn(given, config=config, ports=ports, deadline_ms=deadline_ms).run()


class WorkerTurn:
    """One turn; used once."""

    def __init__(
        self, given: SlotInput, *, config: FleetConfig, ports: WorkerPorts, deadline_ms: int
    ) -> None:
        """Prepare; see :func:`worker_turn`."""
        self._config = config
        events = UnfailingSink(ports.events)
        state = Documents(Documents.of(ports.state).raw, TellOnce(events))
        ports = replace(ports, events=events, state=state)
        self._ports = ports
        self._began_ms = ports.clock.monotonic_ms()
        # Handler calls are over by then; what is left is for the last writes (H10).
        self._calls_end_ms = deadline_ms - config.turn_margin_ms
        # When no handler call could be started any more, there is no reason to stay.
        self._stop_at_ms = min(
            self._began_ms + config.max_turn_ms,
            self._calls_end_ms - ports.progress.last_calls * config.handler_timeout_ms,
        )
        self._hard_ms = deadline_ms - config.turn_margin_ms // 3
        self._note_until_ms = deadline_ms - config.turn_margin_ms // 6
        self._patience = Patience.of(config, clock=ports.clock, entropy=ports.entropy)
        self._record = SlotRecord(
            given, state=ports.fleet_state, clock=ports.clock, token=ports.entropy.token()
        )
        self._why: TurnStop | None = None
        self._error: BaseException | None = None
        self._worker_id = ""
        self._is_loading = self._is_loaded = False
        self._timers: list[asyncio.TimerHandle] = []
        self._stopping, self._hard = Halt(), Halt()
        self._watching, self._renewing = Halt(), Halt()
        self._work_tasks = TurnTasks(self._fail)
        self._watch_tasks = TurnTasks(self._fail)
        self._renew_tasks = TurnTasks(self._fail)

    def leave(self) -> None:
        """Let the turn end in good order now, as it does when its time is over."""
        self._stopping.set()

    def hand_over(self) -> None:
        """Let the turn give its leases back and end the slot, as one that is asked to drain."""
        self._why = max(TurnStop.DRAIN, self._why or TurnStop.DRAIN)
        self._stopping.set()

    async def run(self) -> TurnOutcome:
        """Run the turn to its end."""
        loop = asyncio.get_running_loop()
        left_ms = self._hard_ms - self._ports.clock.monotonic_ms()
        self._timers.append(loop.call_later(max(0, left_ms) / 1000, self._hard.set))
        try:
            return await self._run()
        except Halted:
            return self._ending(TurnOutcome.CONTINUE, TurnEnding.HALTED)
        finally:
            for timer in self._timers:
                timer.cancel()

    async def _run(self) -> TurnOutcome:
        if self._stop_at_ms <= self._began_ms:
            return self._tell_failed(ConfigurationError(self._too_little_time()))
        claimed = await self._patience.persist(self._record.claim, self._hard)
        if isinstance(claimed, ClaimRefused):
            slot_id = self._record.given.slot_id
            self._ports.events.emit(TurnRefused(slot_id=slot_id, reason=claimed.reason))
            return TurnOutcome.DRAINED
        slot = claimed.slot
        self._ports.events.emit(
            TurnBegun(
                slot_id=slot.slot_id,
                worker_id=slot.worker_id,
                epoch=slot.epoch,
                suspicious=slot.open_turns > 0,
                recovery_ms=claimed.silent_ms,
            )
        )
        self._prepare(slot)
        self._renew_tasks.start(self._work.checkpointer.keep_renewing(self._renewing), name="renew")
        self._work_tasks.start(self._begin(slot), name="begin")
        await self._stopping.wait(self._stop_at_ms - self._ports.clock.monotonic_ms())
        self._stop(self._why or TurnStop.TIME)
        return await self._leave()

    def _prepare(self, slot: Slot) -> None:
        self._worker_id = slot.worker_id
        self._work = ShardWork(
            slot,
            config=self._config,
            ports=self._ports,
            patience=self._patience,
            epoch_is_mine=self._record.is_mine,
            calls_end_ms=self._calls_end_ms,
        )
        self._watch = SlotWatch(
            WatchPorts(
                record=self._record,
                checkpointer=self._work.checkpointer,
                leases=self._ports.leases,
                clock=self._ports.clock,
                events=self._ports.events,
                usage=self._work.usage,
            ),
            config=self._config,
            claimed=slot,
            adopted=self._consume_all,
            stop=self._stop,
        )
        self._work.calls = self._calling()
        self._pauses = PauseWatch(
            PauseRecord(self._ports.state),
            checkpointer=self._work.checkpointer,
            give_up=partial(self._work.give_up, tasks=self._work_tasks, hard=self._hard),
            every_ms=self._config.failover_ms,
        )

    def _calling(self) -> ManagerWatch | None:
        ports = self._ports
        if ports.manager is None:
            return None
        calls = CallPorts(
            state=ports.fleet_state,
            checkpointer=self._work.checkpointer,
            clock=ports.clock,
            events=ports.events,
            manager=ports.manager,
        )
        return ManagerWatch(calls, config=self._config)

    async def _begin(self, slot: Slot) -> None:
        """Adopt and renew, then import user code, then consume (H16)."""
        with suppress(Halted):
            await self._patience.persist(self._watch.adopt_all, self._stopping)
            await self._pauses.look()
            self._watch_tasks.start(self._watch.run(self._watching), name="watch")
            self._watch_tasks.start(self._pauses.run(self._watching), name="pauses")
            if self._work.calls is not None:
                self._watch_tasks.start(self._work.calls.run(self._watching), name="calls")
            if not self._work.checkpointer.held:
                await self._ask_for_leases()
            if slot.drain or slot.state is SlotState.ENDING:
                self._stop(TurnStop.DRAIN)
                return
            load = self._load(follows_death=slot.open_turns > 0)
            await all_of(load, self._work.check_stream(self._stopping))
            self._is_loaded = True
            self._keep_time_for_hooks()
            self._record.note_loaded(call_most_ms=self._config.handler_timeout_ms)
            self._consume_all()

    async def _load(self, *, follows_death: bool) -> None:
        """Import user code; where that may have killed the process before, say so first (H21)."""
        if follows_death:
            await self._note_loading(is_over=False)
        self._is_loading = True
        await self._ports.handler.load()
        self._is_loading = False
        if follows_death:
            await self._note_loading(is_over=True)

    async def _note_loading(self, *, is_over: bool) -> None:
        note = partial(self._record.note_loading, is_over=is_over)
        try:
            await self._patience.persist(note, self._stopping)
        except StaleEpoch as error:
            self._fail(error)  # At once: what goes on beside it may take long.
            raise

    def _keep_time_for_hooks(self) -> None:
        """
        Stop early enough that ``stopping`` has its whole time after a last batch.

        Raises:
            ConfigurationError: the invocation is too short for that.

        """
        if not self._ports.handler.has_hooks:
            return
        stop_at_ms = self._calls_end_ms - 2 * self._config.handler_timeout_ms
        if stop_at_ms <= self._began_ms:
            raise ConfigurationError(self._too_little_time())
        left_ms = stop_at_ms - self._ports.clock.monotonic_ms()
        if stop_at_ms < self._stop_at_ms:
            loop = asyncio.get_running_loop()
            self._timers.append(loop.call_later(max(0, left_ms) / 1000, self._stop, TurnStop.TIME))

    async def _ask_for_leases(self) -> None:
        """Prompt the manager: a new slot would else wait for its next turn, and end first (H13)."""
        with suppress(Throttled, OutcomeUnknown):
            await self._ports.fleet_state.prompt_manager()

    def _consume_all(self) -> None:
        # Also asked for when a lease is adopted, which may be while user code is imported still.
        if self._is_loaded and not self._stopping.is_set:
            self._work.consume_all(self._work_tasks, self._hard)

    # --- stopping

    def _stop(self, why: TurnStop) -> None:
        self._why = why if self._why is None else max(why, self._why)
        self._stopping.set()
        self._work.halt()

    def _fail(self, error: BaseException) -> None:
        if isinstance(error, StaleEpoch):
            self._work.checkpointer.fence()
            self._stop(TurnStop.STALE)
        elif isinstance(error, HandlerTimedOut):
            self._error = error
            self._stop(TurnStop.TIMED_OUT)
            self._hard.set()
        else:
            self._error = self._error or error
            self._stop(TurnStop.FAILURE)

    # --- leaving

    async def _leave(self) -> TurnOutcome:
        left_ms = self._ports.clock.monotonic_ms()
        is_quiet = await self._work_tasks.are_done(self._hard)
        if self._why is TurnStop.TIMED_OUT or not is_quiet:
            await self._abandon()
        is_closed = await self._ports.handler.close()
        self._watching.set()
        if not await self._watch_tasks.are_done(self._hard):
            await self._abandon()
        try:
            outcome = await self._last_writes(left_ms)
        except StaleEpoch as error:
            self._fail(error)
            outcome = await self._overtaken()
        except ShardfleetError as error:
            outcome = await self._failed(error)
        except Halted:
            outcome = self._ending(TurnOutcome.CONTINUE, TurnEnding.HALTED)
        self._renewing.set()
        if self._hard.is_set:
            # There is no time to wait for a call; a task that only sleeps leaves at once.
            await asyncio.sleep(_MOMENT_S)
        if not is_closed or not await self._renew_tasks.are_done(self._hard):
            await self._abandon()
        return outcome

    async def _last_writes(self, stopped_ms: int) -> TurnOutcome:
        checkpointer = self._work.checkpointer
        if self._why is TurnStop.STALE:
            return await self._overtaken()
        if self._why is TurnStop.FAILURE and self._error is not None:
            await checkpointer.flush_all()
            return await self._failed(self._error)
        if self._why is TurnStop.IDLE:
            return self._ending(TurnOutcome.IDLE, TurnEnding.IDLE)
        if self._why is TurnStop.DRAIN:
            with suppress(MalformedDocument):  # Nothing is held: by such a record nobody assigns.
                await self._drain()
            return self._ending(TurnOutcome.DRAINED, TurnEnding.DRAINED)
        # The renewals of the task would only race with the last one.
        self._renewing.set()
        if not await self._renew_tasks.are_done(self._hard):
            await self._abandon()
        await checkpointer.renew_before_leaving(stopped_ms, self._hard)
        await self._patience.persist(
            partial(self._record.close_turn, self._watch.lags_ms()), self._hard
        )
        return self._ending(TurnOutcome.CONTINUE, TurnEnding.TIME)

    async def _drain(self) -> None:
        """
        Hand everything over, also what was assigned before the drain was asked for, and end (H2).

        Raises:
            Halted: not done in time; the next invocation goes on draining.
            StaleEpoch: another invocation has taken over.

        """
        patience, hard = self._patience, self._hard
        began_ms, known_seq = self._ports.clock.monotonic_ms(), self._watch.served_seq
        while True:
            await self._work.release_all(hard)
            slot = await patience.persist(self._record.look, hard)
            if slot.assign_seq > known_seq:  # Announced before whoever announced it knew.
                began_ms, known_seq = self._ports.clock.monotonic_ms(), slot.assign_seq
            unserved = slot.assigned if slot.assign_seq > self._watch.served_seq else ()
            adopt = partial(self._work.checkpointer.adopt, unserved)
            found = await patience.persist(adopt, hard) if unserved else {}
            if found:
                await self._work.release_all(hard)
            waited_ms = self._ports.clock.monotonic_ms() - began_ms
            is_served = not unserved or waited_ms >= self._config.failover_ms
            is_served = is_served and Adoption.DELAYED not in found.values()
            end = partial(self._record.end, slot.assign_seq)
            if is_served and await patience.persist(end, hard):
                return
            await patience.pause(self._config.renew_ms, hard)

    async def _overtaken(self) -> TurnOutcome:
        """Write nothing; go on only if the execution that asks is still the slot's."""
        slot = None
        with suppress(Throttled, OutcomeUnknown):
            found = await self._ports.fleet_state.slot(self._record.given.slot_id)
            slot = None if found is None else found.slot
        given = self._record.given
        is_ours = slot is not None and (slot.start_epoch, slot.generation) == (
            given.start_epoch,
            given.generation,
        )
        outcome = TurnOutcome.CONTINUE if is_ours else TurnOutcome.DRAINED
        return self._ending(outcome, TurnEnding.STALE)

    async def _abandon(self) -> Never:
        """End the process: something still runs that must not outlive the turn (H10)."""
        self._work.end_calls()
        with suppress(StaleEpoch):
            await self._work.checkpointer.flush_all()
        running = [*self._work_tasks.names, *self._watch_tasks.names, *self._renew_tasks.names]
        reason = str(self._error) if self._error else f"still running: {', '.join(running)}"
        failure = failure_of(self._error) if self._error else Failure(FailureKind.TURN, reason)
        if self._is_loading:
            reason = "its import had not ended when the turn had to"
            failure = Failure(FailureKind.IMPORT, reason)
        await self._note(failure)
        self._ports.events.emit(
            TurnFailed(
                slot_id=self._record.given.slot_id,
                worker_id=self._worker_id,
                error=reason,
            )
        )
        self._ports.process.end(reason)

    # --- telling

    def _ending(self, outcome: TurnOutcome, reason: TurnEnding) -> TurnOutcome:
        # Before the slot is claimed there is no work, and nothing is held.
        held = self._work.checkpointer.held if self._worker_id else ()
        self._ports.events.emit(
            TurnEnded(
                slot_id=self._record.given.slot_id,
                worker_id=self._worker_id,
                outcome=outcome.value,
                reason=reason,
                held_leases=len(held),
                duration_ms=self._ports.clock.monotonic_ms() - self._began_ms,
            )
        )
        return outcome

    async def _failed(self, error: BaseException) -> TurnOutcome:
        await self._note(failure_of(error))
        return self._tell_failed(error)

    async def _note(self, failure: Failure) -> None:
        """
        Write for a person why the turn fails, as far as there is time and the table answers.

        The last call of the turn but those that give leases back, so it may be cut off (H10).
        """
        left_ms = self._note_until_ms - self._ports.clock.monotonic_ms()
        with suppress(ShardfleetError, TimeoutError):
            async with asyncio.timeout(max(0, left_ms) / 1000):
                await self._record.fail(failure)

    def _tell_failed(self, error: BaseException) -> TurnOutcome:
        self._ports.events.emit(
            TurnFailed(
                slot_id=self._record.given.slot_id,
                worker_id=self._worker_id,
                error=told(error),
            )
        )
        return TurnOutcome.FAILED

    def _too_little_time(self) -> str:
        config = self._config
        left_ms = self._calls_end_ms + config.turn_margin_ms - self._began_ms
        return (
            f"handler_timeout_ms: {config.handler_timeout_ms} found, but the invocation has "
            f"{left_ms} ms left, of which turn_margin_ms keeps {config.turn_margin_ms} back; "
            "give the function more time, or make one of the two smaller"
        )
