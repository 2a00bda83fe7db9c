"""
The shards of one worker turn: one consumer per held lease, children taken over at once.

A shard never has two consumers: a lease that was lost and adopted again waits until the consumer
of before has left. Whoever ends a shard prompts the manager and starts on the children if there
is room (hazard H13); what is missed here the manager heals.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Collection, Sequence
from contextlib import suppress
from functools import partial

from shardfleet.config import FleetConfig
from shardfleet.domain.slots.slot import LeaseOutcome, Slot
from shardfleet.domain.stream.sequence import StreamIncarnation
from shardfleet.engine.ownership.checkpointer import Adoption, Checkpointer
from shardfleet.engine.ownership.lease import HeldLease
from shardfleet.engine.ownership.writer import LeaseWriter
from shardfleet.engine.ports import Clock
from shardfleet.engine.retry import Halt, Halted, Patience
from shardfleet.engine.shard.consumer import ConsumerPorts, ShardConsumer
from shardfleet.engine.shard.crash_notes import CrashNotes
from shardfleet.engine.shard.dispatch import Dispatcher, DispatchPorts
from shardfleet.engine.shard.end import ShardEnding
from shardfleet.engine.shard.faults import CONCERNS_ALL, ShardFaults
from shardfleet.engine.shard.missing import MissingPorts
from shardfleet.engine.shard.ports import DeliveryPorts
from shardfleet.engine.shard.reader import ReadPorts
from shardfleet.engine.shard.start import TipMarks
from shardfleet.engine.shard.usage import UsageMeter
from shardfleet.engine.state.beside import LeaseNotes
from shardfleet.engine.state.gone_record import GoneRecord
from shardfleet.engine.state.sleep_state import NapRecord
from shardfleet.engine.stream_clock import StreamClock
from shardfleet.engine.worker.calling import ManagerWatch
from shardfleet.engine.worker.ports import WorkerPorts
from shardfleet.engine.worker.tasks import TurnTasks
from shardfleet.errors import MalformedDocument, MalformedLease, Throttled


class ShardWork:
    """
    Consumers and their leases, for one turn.

    Attributes:
        calls: sees to children that find no room here; None: nobody does.

    """

    calls: ManagerWatch | None = None

    def __init__(
        self,
        slot: Slot,
        *,
        config: FleetConfig,
        ports: WorkerPorts,
        patience: Patience,
        epoch_is_mine: Callable[[], Awaitable[bool]],
        calls_end_ms: int,
    ) -> None:
        """
        Begin with nothing held.

        Args:
            slot: as claimed.
            config: the fleet's configuration.
            ports: the world.
            patience: back-offs.
            epoch_is_mine: reads the slot consistently (hazard H1).
            calls_end_ms: monotonic milliseconds by which handler calls must be over (H10).

        """
        self._config = config
        self._ports = ports
        self._patience = patience
        self._calls_end_ms = calls_end_ms
        self._consumed: dict[str, HeldLease] = {}
        self._consumer_ports: ConsumerPorts | None = None
        self._is_halted = False
        self.usage = _usage_meter(slot, config=config, ports=ports)
        self._beside = LeaseNotes(ports.fleet_state, slot.worker_id)
        self._notes = CrashNotes(
            self._beside, suspicious=slot.open_turns > 0, config=config, events=ports.events
        )
        writer = LeaseWriter(
            slot.worker_id,
            failover_ms=config.failover_ms,
            store=ports.leases,
            clock=ports.clock,
            events=ports.events,
            epoch_is_mine=epoch_is_mine,
        )
        self.checkpointer = Checkpointer(
            writer,
            stream_arn=config.stream_arn,
            renew_ms=config.renew_ms,
            patience=patience,
            events=ports.events,
            beat_of=self._beat_of,
        )

    async def _beat_of(self, worker_id: str) -> int | None:
        """Return a slot's last sign of life; 0 of one that cannot be read, None: it is no slot."""
        try:
            slot_id = worker_id.removeprefix(f"{self._config.fleet}-")
            found = await self._ports.fleet_state.slot(slot_id)
        except MalformedDocument:
            return 0
        if found is None or found.slot.worker_id != worker_id:
            return None
        return found.slot.heartbeat_ms

    async def check_stream(self, halt: Halt) -> None:
        """
        Make sure that the stream is the one the leases belong to (hazard H12).

        Raises:
            StreamGone, StreamReplaced: it is not.
            Halted: no answer before the turn was to stop.

        """
        found = await self._patience.persist(self._ports.stream.incarnation, halt)
        clock = StreamClock(self._ports.clock, found)
        await self._patience.persist(lambda: self._ports.fleet_state.check_incarnation(found), halt)
        self._consumer_ports = self._wire(found, clock)

    def _reading(self, clock: Clock) -> ReadPorts:
        return ReadPorts(
            source=self._ports.source,
            clock=clock,
            events=self._ports.events,
            patience=self._patience,
            refused=self.usage.refused,
        )

    def _wire(self, incarnation: StreamIncarnation, clock: Clock) -> ConsumerPorts:
        ports, config, patience = self._ports, self._config, self._patience
        tips = TipMarks(self._beside, clock)
        dispatcher = Dispatcher(
            DispatchPorts(
                handler=ports.handler,
                checkpointer=self.checkpointer,
                notes=self._notes,
                clock=ports.clock,
                events=ports.events,
                patience=patience,
                usage=self.usage,
            ),
            config=config,
            calls_end_ms=self._calls_end_ms,
        )
        return ConsumerPorts(
            incarnation=incarnation,
            progress=ports.progress,
            reading=self._reading(clock),
            delivery=DeliveryPorts(
                dispatcher=dispatcher,
                checkpointer=self.checkpointer,
                notes=self._notes,
                state=ports.fleet_state,
                beside=self._beside,
                policy=ports.policy,
                window_states=ports.window_states,
                clock=clock,
                entropy=ports.entropy,
                events=ports.events,
                patience=patience,
            ),
            ending=self._ending(),
            missing=MissingPorts(
                stream=ports.stream,
                record=GoneRecord(ports.state),
                tips=tips,
                clock=clock,
                entropy=ports.entropy,
                events=ports.events,
            ),
            tips=tips,
            naps=NapRecord(ports.state),
            faults=self._faults(),
        )

    def _faults(self) -> ShardFaults:
        return ShardFaults(
            self._ports.fleet_state,
            worker_id=self.checkpointer.worker_id,
            poll_ms=self._config.failover_ms,
            patience=self._patience,
            events=self._ports.events,
        )

    def _ending(self) -> ShardEnding:
        return ShardEnding(
            checkpointer=self.checkpointer,
            stream=self._ports.stream,
            state=self._ports.fleet_state,
            patience=self._patience,
            config=self._config,
        )

    def halt(self) -> None:
        """Ask every consumer to leave at its next step; start no more."""
        self._is_halted = True
        for held in self.checkpointer.held:
            held.halt.set()

    def end_calls(self) -> None:
        """Begin no call of user code any more: the process ends."""
        if self._consumer_ports is not None:
            self._consumer_ports.delivery.dispatcher.end()

    def consume_all(self, tasks: TurnTasks, hard: Halt) -> None:
        """Start a consumer for each held lease that has none; ``hard`` is the last moment."""
        if self._consumer_ports is None or self._is_halted:
            return
        for held in self.checkpointer.held:
            if held.lease_key in self._consumed or held.halt.is_set:
                continue
            self._consumed[held.lease_key] = held
            held.at_work = True
            tasks.start(
                self._consume(held, self._consumer_ports, hard),
                name=f"shard {held.lease_key}",
                ended=partial(self._consumer_left, held.lease_key, tasks=tasks, hard=hard),
            )

    def _consumer_left(self, lease_key: str, *, tasks: TurnTasks, hard: Halt) -> None:
        self._consumed[lease_key].at_work = False
        del self._consumed[lease_key]
        self.consume_all(tasks, hard)

    async def _consume(self, held: HeldLease, ports: ConsumerPorts, hard: Halt) -> None:
        try:
            await self._consume_and_leave(held, ports, hard)
        except CONCERNS_ALL:
            raise
        except Exception as error:  # noqa: BLE001 - as while it was consumed
            with suppress(Halted):
                await ports.faults.withstand(held, error)

    async def _consume_and_leave(self, held: HeldLease, ports: ConsumerPorts, hard: Halt) -> None:
        children = await self._supervise(held, ports)
        if held.is_held and (held.in_handover or held.is_unwanted):
            # Also when nothing of the shard ran yet: its parents, a stop (protocol.md §3.5, #1729).
            await self._leave(held, hard)
        if held.outcome is LeaseOutcome.SHARD_END:
            with suppress(Halted):
                await self._patience.persist(self._ports.fleet_state.prompt_manager, hard)
                await self._patience.persist(partial(self._take, children), hard)
                if self.calls is not None:
                    self.calls.see_to(children)

    async def _supervise(self, held: HeldLease, ports: ConsumerPorts) -> Sequence[str]:
        """Run a shard's consumer, and another one after each fault of it (rule 17)."""
        while True:
            try:
                return await ShardConsumer(held, config=self._config, ports=ports).run()
            except CONCERNS_ALL:
                raise
            except Exception as error:  # noqa: BLE001 - what nobody foresaw is the shard's alone
                fault = error
            try:
                await ports.faults.withstand(held, fault)
            except Halted:
                return ()

    def give_up(self, lease_keys: Collection[str], *, tasks: TurnTasks, hard: Halt) -> None:
        """Finish the running batches of these leases, checkpoint, and leave them to nobody."""
        if self._is_halted:
            return
        for held in self.checkpointer.held:
            if held.lease_key in lease_keys and not held.is_unwanted:
                held.is_unwanted = True
                held.halt.set()
                if held.lease_key not in self._consumed:
                    tasks.start(self._leave(held, hard), name=f"give up {held.lease_key}")

    async def _leave(self, held: HeldLease, hard: Halt) -> None:
        with suppress(Halted):
            await self._give_back(held, hard)

    async def _take(self, lease_keys: Sequence[str]) -> None:
        """Take the children that nobody owns and whose parents are all done, if there is room."""
        for key in sorted(lease_keys):
            if self._is_halted or len(self.checkpointer.held) >= self._config.leases_per_worker:
                return
            try:
                lease = await self.checkpointer.read(key)
            except MalformedLease:
                continue  # Told when it was to be created.
            if lease is not None and lease.lease_owner == self.checkpointer.worker_id:
                # Taken a moment ago, by a write whose answer never came.
                found = await self.checkpointer.adopt([key])
                if Adoption.DELAYED in found.values():
                    raise Throttled(f"lease {key}: not adopted yet")
            if lease is None or lease.is_finished or lease.effective_owner is not None:
                continue
            if not await self.checkpointer.unfinished_parents(lease):
                await self.checkpointer.take(lease)

    async def release_all(self, hard: Halt) -> None:
        """
        Store all progress and give every lease back.

        Raises:
            Halted: not done in time.

        """
        give_back = partial(self._give_back, hard=hard)
        for held in self.checkpointer.held:
            # One that cannot be given back expires; the others do not wait for it.
            await self.checkpointer.alone(held, give_back)

    async def _give_back(self, held: HeldLease, hard: Halt) -> None:
        await self._patience.persist(partial(self.checkpointer.flush, held), hard)
        await self._patience.persist(partial(self.checkpointer.release, held), hard)


def _usage_meter(slot: Slot, *, config: FleetConfig, ports: WorkerPorts) -> UsageMeter:
    return UsageMeter(
        clock=ports.clock,
        cpu=ports.cpu,
        handler=ports.handler,
        before=slot.usage,
        ways=ports.source.ways,
        calls_at_once=config.calls_at_once,
    )
