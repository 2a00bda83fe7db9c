"""A fleet in which everything that a manager decides about happens, drawn by a seed."""

import random

from msgspec.structs import replace

from shardfleet.domain.delivery.stops import StopNote
from shardfleet.domain.leases import changes as lease_changes
from shardfleet.domain.reasons import Pause
from shardfleet.domain.sleep.sleep import Nap
from shardfleet.domain.slots.slot import SlotState, end, heartbeat
from shardfleet.domain.slots.usage import Usage
from shardfleet.domain.stream.sequence import AT_SHARD_END, ExtendedSequenceNumber
from shardfleet.engine.manager.turn import LeaseManager
from shardfleet.engine.state.pauses import PauseRecord
from shardfleet.engine.state.sleep_state import NapRecord
from shardfleet_testkit.memory_stream import MemoryStream
from tests.engine.manager_side.fleet_kit import Fleet

JAVA = "java-1"
STRATEGIES = ("balanced", "count", "greedy")


class DrawnFleet(Fleet):
    """
    Workers by hand: they renew, lag, sleep, are stopped, hand over, end and die as is drawn.

    No port fails, and nothing happens during a turn. Each turn is the first of an invocation, so
    all that the manager knows is in the tables.
    """

    def __init__(self, seed, *, strategies=STRATEGIES):
        """Draw a configuration."""
        self._draw = draw = random.Random(seed)
        super().__init__(
            leases_per_worker=draw.choice((1, 2, 4)),
            min_workers=draw.choice((0, 1, 3)),
            max_workers=draw.choice((3, 8)),
            assignment=draw.choice(strategies),
            leases_to_acquire=draw.choice((1, 10)),
            graceful_handover=draw.random() < 0.7,
            initial_position=draw.choice(("LATEST", "TRIM_HORIZON")),
            sleep=draw.random() < 0.7,
            lag_objective_ms=draw.choice((0, 120_000)),
            scale_down_ms=60_000,
        )
        self.stream = MemoryStream(self.clock, shards=draw.choice((1, 4, 9)))
        self._dead = set()  # slot id and start epoch
        self._java_lives = True
        self._slept_ms = 0

    async def turn(self):
        """Let an invocation of the manager take its first turn."""
        self.events.events.clear()
        return await LeaseManager(self.config, self.ports()).turn()

    def _chance(self, part):
        return self._draw.random() < part

    def _change(self, lease, **changes):
        counter = lease.lease_counter + 1
        self.leases.leases[lease.lease_key] = replace(lease, lease_counter=counter, **changes)

    async def go_on(self):
        """Let some time go by, and everybody but the manager do something."""
        self._slept_ms = self._draw.choice((5_000, 20_000, 20_000, 60_000))
        await self.clock.sleep_ms(self._slept_ms)
        for found in await self.state.slots():
            await self._work(found.slot)
        await self._others()
        await self._people()

    # --- workers

    async def _work(self, slot):
        run = (slot.slot_id, slot.start_epoch)
        if slot.state is SlotState.ENDED or run in self._dead:
            return
        if slot.state is SlotState.STARTING:
            if self._chance(0.2):
                return
            await self.beat(slot.slot_id)
            slot = await self.slot(slot.slot_id)
        if self._chance(0.05):
            self._dead.add(run)
            self.launcher.close(slot.slot_input().execution_name())
            return
        # Who lives serves before its lease expires.
        serves = self._slept_ms > 5_000 or self._chance(0.5)
        held = self._read(slot, unknown=() if serves else slot.assigned)
        await self._show_life(slot, held, serves=serves)
        if not held and not slot.drain and self._chance(0.4):
            await self._end(slot, served=slot.served_seq)
        if slot.drain:
            await self._end(slot, served=slot.assign_seq)
        elif held and self.config.sleep and self._chance(0.15):
            lease = self._draw.choice(held)
            if self.stream.shard(lease.lease_key).is_open:
                await self._fall_asleep(slot, lease)

    def _read(self, slot, *, unknown):
        """Renew what is held, and return it; what was just assigned may not be known yet."""
        held = []
        for lease in list(self.leases.leases.values()):
            if lease.effective_owner != slot.worker_id or lease.is_finished:
                continue
            if lease.lease_key in unknown:
                continue
            number = ExtendedSequenceNumber(str(10**20 + self.clock.now_ms()))
            changes = {"throughput_kbps": self._draw.choice((1.0, 40.0, 900.0))}
            if self._chance(0.6):
                changes["checkpoint"] = number
            if lease.checkpoint_owner is not None and self._chance(0.6):
                changes["checkpoint_owner"] = None
            if not self.stream.shard(lease.lease_key).is_open and self._chance(0.4):
                changes["checkpoint"] = AT_SHARD_END
            self._change(lease, **changes)
            held.append(self.leases.leases[lease.lease_key])
        return [le for le in held if le.effective_owner == slot.worker_id and not le.is_finished]

    async def _show_life(self, slot, held, *, serves):
        lags = {le.lease_key: self._draw.choice((-1, 0, 700, 500_000)) for le in held}
        now_ms = self.clock.now_ms()
        usage = self._draw.choice((Usage(), Usage(300, 200), Usage(900, 950)))
        await self.state.update_slot(
            slot.slot_id,
            lambda s: heartbeat(
                s,
                now_ms=now_ms,
                served_seq=s.assign_seq if serves else s.served_seq,
                lags_ms=lags,
                usage=usage,
            ),
        )

    async def _end(self, slot, *, served):
        for lease in list(self.leases.leases.values()):
            if lease.effective_owner == slot.worker_id and not lease.is_finished:
                await self.leases.apply(lease_changes.evict(lease))
        now_ms = self.clock.now_ms()
        await self.state.update_slot(
            slot.slot_id, lambda s: end(s, served_seq=served, now_ms=now_ms)
        )

    async def _fall_asleep(self, slot, lease):
        if lease.checkpoint_owner is not None:
            return
        nap = Nap(
            lease_key=lease.lease_key,
            worker_id=slot.worker_id,
            since_ms=self.clock.now_ms(),
            done=lease.checkpoint,
        )
        await NapRecord(self.store).begin(nap)
        self._change(lease, lease_owner=None)

    # --- others

    async def _others(self):
        """Reshard; let the KCL of somebody else take, renew, die; lose a lease."""
        # What a look at a sleeping shard finds is no table's to tell: those have nothing to read.
        asleep = {nap.lease_key for nap, _ in await NapRecord(self.store).naps()}
        usable = [key for key in self.stream.open_shard_ids if key not in asleep]
        if usable and self._chance(0.05):
            self.stream.split(self._draw.choice(usable))
        leases = sorted(self.leases.leases.values(), key=lambda le: le.lease_key)
        if self._java_lives:
            for lease in leases:
                if lease.lease_owner == JAVA and not lease.is_finished:
                    self._change(lease)
        if leases and self._chance(0.02):
            lease = self._draw.choice(leases)
            if not lease.is_finished:
                self._java_lives = True
                await self.leases.apply(lease_changes.take(lease, JAVA))
        if self._chance(0.1):
            self._java_lives = False
        if leases and self._chance(0.02):
            del self.leases.leases[self._draw.choice(leases).lease_key]

    async def _people(self):
        """Pause, resume, stop, let go on."""
        leases, now_ms = sorted(self.leases.leases), self.clock.now_ms()
        if leases and self._chance(0.1):
            key, pauses = self._draw.choice(leases), PauseRecord(self.store)
            if self._chance(0.5):
                pause = Pause("ann", now_ms)
                await pauses.change(lambda found: found.with_leases([key], pause))
            else:
                await pauses.change(lambda found: replace(found, leases={}, fleet=None))
        if leases and self._chance(0.2):
            key = self._draw.choice(leases)
            if not await self.state.resume(key):
                note = StopNote(
                    lease_key=key,
                    position="5:0",
                    error="bad",
                    attempts=3,
                    worker_id="w",
                    at_ms=now_ms,
                )
                await self.state.write_stop(note)
