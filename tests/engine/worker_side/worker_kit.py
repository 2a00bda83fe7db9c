"""A worker over memory ports in virtual time: stores with faults, slots, leases and whole turns."""

import asyncio

from msgspec.structs import replace

from shardfleet.config import FleetConfig
from shardfleet.domain.delivery.policies import Destination
from shardfleet.domain.leases.lease import Lease
from shardfleet.domain.slots.slot import intend_start
from shardfleet.domain.stream.sequence import AT_TRIM_HORIZON, ExtendedSequenceNumber
from shardfleet.engine.ownership.checkpointer import Checkpointer
from shardfleet.engine.ownership.writer import LeaseWriter
from shardfleet.engine.retry import Patience
from shardfleet.engine.shard.failure_policy import FailurePolicy
from shardfleet.engine.shard.polling import PolledSource
from shardfleet.engine.state.fleet_state import slot_body
from shardfleet.engine.state.kinds import SLOT
from shardfleet.engine.worker.ports import WorkerPorts
from shardfleet.engine.worker.turn import worker_turn
from shardfleet.errors import OutcomeUnknown, Throttled
from shardfleet.runtime.delivering import progress_of
from shardfleet_testkit.clock import VirtualClock
from shardfleet_testkit.memory import (
    MemoryEvents,
    MemoryLeaseStore,
    MemoryProcess,
    MemoryStateStore,
    ProcessEndedError,
    SeededEntropy,
)
from shardfleet_testkit.memory_handler import MemoryHandler
from shardfleet_testkit.memory_stream import MEMORY_STREAM_ARN, MemoryStream

ME = "fleet-s0001"
OTHER = "fleet-s0002"
TURN_MS = 200_000


def key(number):
    return f"shardId-{number:012d}"


def at(number, sub=0):
    return ExtendedSequenceNumber(str(number), sub)


def a_lease(number=0, **fields):
    given = {"lease_key": key(number), "checkpoint": AT_TRIM_HORIZON, "lease_owner": ME}
    return Lease(**{**given, "lease_counter": 7, **fields})


def a_config(**fields):
    given = {"fleet": "fleet", "stream_arn": MEMORY_STREAM_ARN, "lease_table": "leases"}
    return FleetConfig(**{**given, "state_table": "state", "idle_end_ms": 5_000, **fields})


class Crash(BaseException):
    """The process dies here: nothing in between may catch it."""


class FaultyLeases(MemoryLeaseStore):
    """
    A lease table whose writes go wrong as a test says.

    ``before(change)`` and ``after(change, result)`` run around each write and may raise; ``after``
    raising OutcomeUnknown is a write that landed and whose answer was lost. ``reading(lease_key)``
    runs before each consistent read.
    """

    def __init__(self, leases=()):
        super().__init__(leases)
        self.before = lambda change: None
        self.after = lambda change, result: None
        self.reading = lambda lease_key: None

    async def get(self, lease_key):
        self.reading(lease_key)
        return await super().get(lease_key)

    async def apply(self, change):
        self.before(change)
        result = await super().apply(change)
        self.after(change, result)
        return result

    def operations(self, lease_key=None):
        """Return the operations that were applied, in order."""
        return [
            change.operation
            for change, result in self.changes
            if type(result).__name__ == "Applied" and lease_key in (None, change.lease_key)
        ]


class FaultyState(MemoryStateStore):
    """A fleet-state table whose calls go wrong as a test says."""

    def __init__(self):
        super().__init__()
        self.before = lambda call, kind, name: None

    async def read(self, kind, name):
        self.before("read", kind, name)
        return await super().read(kind, name)

    async def write(self, kind, name, body, **asked):
        self.before("write", kind, name)
        return await super().write(kind, name, body, **asked)

    async def increment(self, kind, name):
        self.before("increment", kind, name)
        return await super().increment(kind, name)


class MemoryDeadLetters:
    """The ``DeadLetters`` port: a list; refuses as often as asked to."""

    def __init__(self, refusals=0):
        self.kept = []
        self.refusals = refusals

    async def record(self, failed):
        await asyncio.sleep(0)
        if self.refusals:
            self.refusals -= 1
            raise Throttled("full")
        self.kept.append(failed)
        return f"kept-{len(self.kept)}"


class MemoryWindowStates:
    """The ``WindowStates`` port: a dictionary."""

    def __init__(self):
        self.kept = {}
        self.most = 0

    async def keep(self, lease_key, token, state):
        await asyncio.sleep(0)
        place = f"s3://bucket/{lease_key}/{token}"
        self.kept[place] = state
        self.most = max(self.most, len(self.kept))
        return place

    async def fetch(self, place):
        await asyncio.sleep(0)
        return self.kept[place]

    async def drop(self, place):
        await asyncio.sleep(0)
        del self.kept[place]


class World:
    """One stream, one lease table, one fleet state: what survives a worker."""

    def __init__(self, *, shards=1, leases=None, script=None, overlaps=False, **config):
        self.clock = VirtualClock()
        self.config = a_config(**config)
        self.stream = MemoryStream(self.clock, shards=shards)
        given = [a_lease(n) for n in range(shards)] if leases is None else leases
        self.leases = FaultyLeases(given)
        self.state = FaultyState()
        self.events = MemoryEvents()
        self.dead_letters = MemoryDeadLetters()
        self.handler = MemoryHandler(self.clock, script, overlaps=overlaps)
        self.given = None
        self.deaths = []

    async def open_slot(self, slot_id="s0001"):
        slot = intend_start(
            None,
            slot_id=slot_id,
            worker_id=f"fleet-{slot_id}",
            name_prefix="fleet",
            now_ms=self.clock.now_ms(),
        )
        await self.state.write("slot", slot_id, slot_body(slot), expected_version=None)
        self.given = self.given or slot.slot_input()
        return slot.slot_input()

    def slot(self, slot_id="s0001"):
        return SLOT.read(self.state.documents["slot", slot_id].body, slot_id)

    async def change_slot(self, change, slot_id="s0001"):
        document = self.state.documents["slot", slot_id]
        body = slot_body(change(SLOT.read(document.body, slot_id)))
        await self.state.write("slot", slot_id, body, expected_version=document.version)

    def ports(self, dead_letters=None, **replaced):
        terms = self.config.policy_terms
        keeps = terms.destination is not Destination.NOTHING
        ports = WorkerPorts(
            clock=self.clock,
            entropy=SeededEntropy(5),
            leases=self.leases,
            state=self.state,
            stream=self.stream,
            source=PolledSource.of_worker(self.stream, self.clock, self.config),
            handler=self.handler,
            progress=progress_of(self.config),
            policy=FailurePolicy(terms, (dead_letters or self.dead_letters) if keeps else None),
            events=self.events,
            process=MemoryProcess(),
        )
        return replace(ports, **replaced)

    async def turn(self, given=None, *, turn_ms=TURN_MS, **replaced):
        """Run one turn; open the slot first if there is none."""
        if given is None and self.given is None:
            await self.open_slot()
        deadline_ms = self.clock.monotonic_ms() + turn_ms
        return await worker_turn(
            given or self.given,
            config=self.config,
            ports=self.ports(**replaced),
            deadline_ms=deadline_ms,
        )

    async def turn_that_may_die(self, **options):
        """Run one turn in its own task; a death leaves nothing of it running."""
        before = asyncio.all_tasks()
        try:
            return await self.turn(**options)
        except (Crash, ProcessEndedError) as death:
            self.deaths.append(death)
            return None
        finally:
            await self.kill(before)

    async def kill(self, spared):
        """Stop everything that did not run before, as the end of a process does."""
        while rest := [t for t in asyncio.all_tasks() if t not in spared]:
            for task in rest:
                task.cancel()
            await asyncio.gather(*rest, return_exceptions=True)

    async def run_until(self, condition, *, within_ms=600_000):
        """Wait in virtual time until something is true."""
        end_ms = self.clock.monotonic_ms() + within_ms
        while not condition():
            assert self.clock.monotonic_ms() < end_ms, "it never became true"
            await self.clock.sleep_ms(10)

    def lease(self, number=0):
        return self.leases.leases[key(number)]

    def told(self, kind):
        return [event for event in self.events.events if isinstance(event, kind)]

    def put(self, first, last=None, *, number=0, key_of="k{}".format):
        """Put records named by numbers into one shard."""
        for n in range(first, first + 1 if last is None else last + 1):
            self.stream.put(str(n).encode(), key=key_of(n), shard_id=key(number))

    @property
    def numbers(self):
        """Return what was handled, by number, in order, repetitions included."""
        return [int(data) for data in self.handler.payloads]


class Bench:
    """A checkpointer alone, over a faulty lease table."""

    def __init__(self, *leases, failover_ms=10_000):
        self.clock = VirtualClock()
        self.store = FaultyLeases(leases or [a_lease()])
        self.events = MemoryEvents()
        self.epoch_reads = 0
        self.epoch_is_current = True
        self.beats = {}
        self.checkpointer = self.another(failover_ms=failover_ms)

    def another(self, *, failover_ms=10_000, worker_id=ME):
        writer = LeaseWriter(
            worker_id,
            failover_ms=failover_ms,
            store=self.store,
            clock=self.clock,
            events=self.events,
            epoch_is_mine=self._epoch_is_mine,
        )
        patience = Patience(clock=self.clock, entropy=SeededEntropy(3), first_ms=200, most_ms=5_000)
        return Checkpointer(
            writer,
            stream_arn=MEMORY_STREAM_ARN,
            renew_ms=failover_ms // 3,
            patience=patience,
            events=self.events,
            beat_of=self._beat_of,
        )

    async def _beat_of(self, worker_id):
        await asyncio.sleep(0)
        return self.beats.get(worker_id)

    async def _epoch_is_mine(self):
        await asyncio.sleep(0)
        self.epoch_reads += 1
        return self.epoch_is_current

    async def hold(self, number=0):
        await self.checkpointer.adopt([key(number)])
        (held,) = [h for h in self.checkpointer.held if h.lease_key == key(number)]
        return held

    def lease(self, number=0):
        return self.store.leases[key(number)]

    def told(self, kind):
        return [event for event in self.events.events if isinstance(event, kind)]


def lose_answers(times, *, operation=None):
    """Return an ``after`` that loses the answers of the first writes, which have landed."""
    left = [times]

    def after(change, result):
        if operation in (None, change.operation) and left[0]:
            left[0] -= 1
            raise OutcomeUnknown("answer lost")

    return after


def refuse(times, error=Throttled, *, operation=None):
    """Return a ``before`` that refuses the first writes, which do not land."""
    left = [times]

    def before(change):
        if operation in (None, change.operation) and left[0]:
            left[0] -= 1
            raise error("refused")

    return before
