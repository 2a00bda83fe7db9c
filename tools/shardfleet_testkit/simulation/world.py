"""
One whole fleet in one process from one seed: a busy time with faults, then a calm one.

Nothing here knows a rule of the fleet: the manager and the workers are the production engine, on
ports that fail. What is checked is in :mod:`shardfleet_testkit.checkers`.
"""

from __future__ import annotations

import asyncio
from collections import Counter

from shardfleet.config import FleetConfig
from shardfleet.domain.delivery.policies import Destination
from shardfleet.domain.leases.lease import Lease
from shardfleet.domain.slots.slot import SlotState
from shardfleet.domain.stream.sequence import AT_LATEST
from shardfleet.engine.state.fleet_state import FleetState
from shardfleet.engine.state.kinds import PIN, SLOT
from shardfleet_testkit.checkers import RunLedger, Window
from shardfleet_testkit.memory import MemoryStateStore
from shardfleet_testkit.memory_stream import DAY_MS
from shardfleet_testkit.simulation.actors import Actor
from shardfleet_testkit.simulation.commanding import CommandingPerson
from shardfleet_testkit.simulation.functions import Functions, Services
from shardfleet_testkit.simulation.importing import ImportingPerson
from shardfleet_testkit.simulation.java_leader import kcl3_world
from shardfleet_testkit.simulation.operating import RewindingPerson
from shardfleet_testkit.simulation.outside_writers import OtherHands
from shardfleet_testkit.simulation.pauser import Pauser
from shardfleet_testkit.simulation.processes import Processes
from shardfleet_testkit.simulation.shapes import FILTERS, Shape
from shardfleet_testkit.simulation.spoiler import Spoiler
from shardfleet_testkit.simulation.state_machine import StateMachine
from shardfleet_testkit.simulation.streams import TrueStream
from shardfleet_testkit.simulation.surroundings import Surroundings
from shardfleet_testkit.simulation.tables import LeaseTable
from shardfleet_testkit.simulation.wire import Outage

_MINUTE_S = 60.0
_KEYS = 40
_JUMP_MS = 3_600_000
# Longer than an invocation lasts, so that what is put until then is left unread.
_LEFT_AWAKE_S = 200.0
_LEFT_S = 25 * 3_600.0
_BETWEEN_S = 180.0
# At once; the most are what one answer of GetRecords holds, 10 MiB.
_BOMBS = (10, 40)
# After the last fault: the longest back-off of the state machine (5 min), the manager's schedule
# (1 min) and lock, two expiries, and time to read what has piled up.
CALM_MOST_S = 900
_SETTLE_S = 300.0
_WINDOW_S = 240.0


def _tell(ledger: RunLedger, shape: Shape) -> None:
    """Tell the ledger what a fleet of a shape is to do with records."""
    config = shape.config
    ledger.lanes = max(config.parallelism, shape.anew.parallelism if shape.anew else 1)
    ledger.has_windows = bool(config.tumbling_window_ms)
    ledger.terms = config.policy_terms
    ledger.keeps = config.policy_terms.destination is not Destination.NOTHING
    ledger.passes = FILTERS[config.filters]
    ledger.max_crashes = config.max_crashes
    ledger.outlived_ms = config.handler_timeout_ms - 100
    ledger.handover_ms = max(config.handover_timeout_ms, config.handler_timeout_ms)
    ledger.max_age_ms = config.max_record_age_ms
    ledger.wanted_from_ms = round(shape.instant_s * 1000)


class World:
    """
    One run.

    Attributes:
        left_ms: for how long of it nothing happened at all.

    """

    def __init__(
        self, around: Surroundings, shape: Shape, *, table: type[LeaseTable] = LeaseTable
    ) -> None:
        """Create the stream and deploy the fleet on such a lease table."""
        self._around = around
        around.focus, around.freeze_s = shape.focus, shape.freeze_s
        around.drifts_most = shape.drifts_most
        self._shape = shape
        self._chance = around.chance("world")
        self.stream = TrueStream(around, shards=shape.shards)
        self.leases = table(around)
        self._state = MemoryStateStore()
        self.functions = Functions(
            around,
            Services(
                leases=self.leases,
                state=self._state,
                stream=self.stream,
                lease_outage=Outage(),
                state_outage=Outage(),
                kcl3=kcl3_world(around, leads=shape.peers_lead) if shape.has_peer else None,
            ),
            config=shape.config,
            worker_box_ms=shape.box_ms,
            handlers_overlap=shape.handlers_overlap,
        )
        self._machine = StateMachine(around, self.functions, max_loops=shape.max_loops)
        self._processes = Processes(around, self.functions, self._machine)
        self._hands = OtherHands(around, self.leases)
        self._rewinder = RewindingPerson(
            around,
            self.functions,
            self.leases,
            config=shape.config,
            is_listed=self.stream.is_listed,
            only_finished=shape.rewinds_finished,
        )
        self._importer = ImportingPerson(around, self.functions, self.leases)
        self._commander = CommandingPerson(around, self.functions, config=shape.config)
        self.leases.created = self._excuse
        self.leases.set_back = lambda lease: around.ledger.want_again(
            lease.lease_key, lease.checkpoint
        )
        _tell(around.ledger, shape)
        self._puts = True
        self._begun = asyncio.Event()
        self._is_awake = asyncio.Event()
        self._is_awake.set()
        self.left_ms = 0

    async def run(self) -> None:
        """Run until all is read after the last fault, or until an invariant is broken."""
        scenario = self._around.spawn(self._scenario(), "scenario")
        broken = self._around.spawn(self._wait_for_violation(), "violation")
        await asyncio.wait([scenario, broken], return_when=asyncio.FIRST_COMPLETED)
        if scenario.done():
            scenario.result()
        for actor in list(self.functions.alive):
            actor.kill()

    async def _wait_for_violation(self) -> None:
        await self._around.broken.wait()

    async def _scenario(self) -> None:
        around, shape = self._around, self._shape
        around.spawn(self._produce(), "producer")
        self._run_managers()
        around.spawn(self._resume_stopped(), "operator")
        busy = [
            around.spawn(self._reshard(), "reshards"),
            around.spawn(self._chaos(), "chaos"),
            around.spawn(self._forget(), "retention"),
        ]
        if shape.has_peer:
            around.spawn(self._keep_peer(), "java 0")
        else:
            # A worker of Java's has no guard against what a tool has stored.
            busy.append(around.spawn(self._hands.run(), "other hands"))
            busy.append(around.spawn(self._rewinder.run(), "rewinds"))
            busy.append(around.spawn(self._importer.run(), "imports"))
        busy.append(around.spawn(self._commander.run(), "commands"))
        spoiler = Spoiler(around, self.functions, self._state, config=shape.config)
        busy.append(around.spawn(spoiler.run(), "spoiler"))
        if shape.pauses_every_s:
            state = FleetState(self._state, around.clock)
            pauser = Pauser(around, state, lambda: list(self.leases.store.leases))
            busy.append(around.spawn(pauser.run(shape.pauses_every_s), "pauser"))
        if shape.anew is not None:
            busy.append(around.spawn(self._deploy_again(shape.anew), "deployments"))
        if shape.recreated_s:
            busy.append(around.spawn(self._create_again(), "deletion"))
        await asyncio.sleep(shape.busy_s)
        for task in busy:
            task.cancel()
        if shape.is_left:
            await self._stand_still()
        around.faults.are_on = False
        around.log("world", "calm from here on")
        await asyncio.sleep(_MINUTE_S)
        self._puts = shape.measures_quiet
        for _ in range(CALM_MOST_S):
            if not self._is_behind():
                break
            await asyncio.sleep(1)
        around.log("world", "all read" if not self._is_behind() else "not all read")
        if shape.measures_quiet:
            await self._measure()
            self._puts = False
            await asyncio.sleep(_MINUTE_S)
        self._end()

    def _run_managers(self) -> None:
        """Let there be processes, each of which stands for manager, or a scheduled one, or both."""
        for number in range(self._shape.processes):
            self._around.spawn(self._processes.keep(number), f"process {number}")
        if not self._shape.processes or self._shape.config.spill:
            self._around.spawn(self._schedule(), "schedule")

    async def _stand_still(self) -> None:
        """
        Let nothing be invoked for so long that what is unread then is trimmed.

        Half of the time in two parts: what is set back between them expires in the second one,
        and the shard was read to its tip less than a day before.
        """
        around, parts = self._around, 1
        put_before_ms = around.now_ms
        if around.chance("left").randrange(2):
            parts = 2
            await self._nobody_invokes(_LEFT_S / parts, trims=False)
            await asyncio.sleep(_BETWEEN_S)
        paused = await self._rewinder.leave_set_back(put_before_ms)
        await self._nobody_invokes(_LEFT_S / parts, trims=True)
        await self._rewinder.resume(paused)
        await asyncio.sleep(_MINUTE_S)

    async def _nobody_invokes(self, duration_s: float, *, trims: bool) -> None:
        around, functions = self._around, self.functions
        around.log("world", "nothing is invoked from here on")
        functions.is_reachable.clear()
        self._processes.stop()
        await asyncio.sleep(_LEFT_AWAKE_S)
        self._is_awake.clear()
        await asyncio.sleep(duration_s)
        self.left_ms += round(duration_s * 1000)
        if trims:
            around.ledger.trim(around.now_ms, before_ms=around.now_ms - DAY_MS)
        for actor in functions.latest.values():
            actor.suffered("nobody was invoked")
        around.log("world", "functions are invoked again")
        functions.is_reachable.set()
        self._is_awake.set()

    def _is_behind(self) -> bool:
        """Return whether any record put until a moment ago is unfinished, or wanted again."""
        ledger = self._around.ledger
        people = (self._rewinder, self._importer, self._commander)
        if (
            any(person.is_at_work for person in people)
            or ledger.wanted_again
            or any(ledger.without_result())
        ):
            return True
        latest_ms = self._around.now_ms - (10_000 if self._puts else 0)
        return any(entry.put_ms <= latest_ms for entry in self._around.ledger.unfinished())

    def _end(self) -> None:
        for checker in self._around.checkers:
            checker.over(self._around.now_ms, keys=sorted(self.leases.store.leases))

    async def _measure(self) -> None:
        """Let the fleet settle, then watch it for a while."""
        around = self._around
        await asyncio.sleep(_SETTLE_S)
        calls, changes = around.calls.copy(), self.leases.owner_changes
        uneven = self._uneven()
        await asyncio.sleep(_WINDOW_S)
        window = Window(
            duration_ms=round(_WINDOW_S * 1000),
            shards=len(self.stream.memory.open_shard_ids),
            calls={name: n - calls[name] for name, n in around.calls.items()},
            owner_changes=self.leases.owner_changes - changes,
            renew_ms=self._shape.config.renew_ms,
            uneven=uneven,
        )
        around.log("world", "quiet window", window)
        for checker in around.checkers:
            checker.calm_window(around.now_ms, window)

    def _uneven(self) -> int:
        """Return how many leases have to move before no slot holds two more than another."""
        held = Counter(
            lease.lease_owner
            for lease in self.leases.store.leases.values()
            if not lease.is_finished
        )
        slots = [each.body for (kind, _), each in self._state.documents.items() if kind == SLOT]
        numbers = [held[slot["worker_id"]] for slot in slots if slot["state"] == SlotState.RUNNING]
        few, more = divmod(sum(numbers), len(numbers) or 1)
        given = sum(max(0, number - few - bool(more)) for number in numbers)
        return max(given, sum(max(0, few - number) for number in numbers))

    def _excuse(self, lease: Lease) -> None:
        """Excuse what was put before a lease that begins at the tip was pinned (hazard H7)."""
        # What a fleet may leave out is only clear once it has begun; reshards wait for that.
        if len(self.leases.store.leases) >= self._shape.shards:
            self._begun.set()
        # A shard with parents begins where they end, unless its lease was lost: then at its oldest.
        if lease.checkpoint != AT_LATEST or self._around.ledger.shards[lease.lease_key].parents:
            return
        document = self._state.documents.get((PIN, lease.lease_key))
        if document is None:
            return
        pin = document.body["instant_ms"]
        before_ms = pin - (self._around.clock.now_ms() - self._around.now_ms)
        # What comes once the lease is there is wanted, whatever the manager's clock says.
        before_ms = min(before_ms, self._around.now_ms)
        self._around.ledger.excuse(lease.lease_key, before_ms)

    # --- what goes on

    async def _produce(self) -> None:
        while True:
            await asyncio.sleep(self._chance.expovariate(self._shape.records_per_s))
            await self._is_awake.wait()
            if self._puts and self._around.ledger.recreated_ms is None:
                users = self._chance.choice((1, 1, 1, 2, 5))
                kills = self._around.faults.strike("poison")
                key = f"key-{self._chance.randrange(_KEYS)}"
                self.stream.put(key, users=users, kills=kills)
                if self._around.faults.strike("decode_bomb"):
                    self.stream.put_bombs(key, self._around.faults.whole("decode_bomb", *_BOMBS))

    async def _reshard(self) -> None:
        if not self._shape.instant_s:
            await self._begun.wait()
        while True:
            await asyncio.sleep(self._chance.expovariate(1 / self._shape.reshard_every_s))
            if self._around.ledger.recreated_ms is not None:
                return
            grows = self._around.now_ms // self._shape.trend_ms % 2 == 0
            self.stream.reshard(
                grows=grows, least=self._shape.shards_least, most=self._shape.shards_most
            )

    async def _keep_peer(self) -> None:
        """Let a peer run, and another one after it was killed."""
        number = 0
        while True:
            await asyncio.sleep(self._chance.uniform(5, 60))
            number += 1
            shape = self._shape
            peer = self.functions.peer(number, hurry=shape.peer_hurry, is_old=shape.peer_is_old)
            await asyncio.wait([peer.ended])

    async def _create_again(self) -> None:
        """Delete the stream and create another of the same name; nothing is put any more."""
        await asyncio.sleep(self._shape.recreated_s)
        self._puts = False
        self.stream.create_again(self._shape.shards)

    async def _deploy_again(self, anew: FleetConfig) -> None:
        """Tell each function that is invoked from now on something else, and take it back."""
        while True:
            for config in (anew, self._shape.config):
                await asyncio.sleep(self._chance.uniform(0.1, 0.5) * self._shape.busy_s)
                self._around.log("operator", "deploys", config)
                self.functions.config = config

    async def _forget(self) -> None:
        await self._begun.wait()
        while True:
            await asyncio.sleep(self._chance.uniform(0.1, 1.0) * self._shape.forget_most_s)
            self.stream.forget(but=self._rewinder.rewound)

    async def _schedule(self) -> None:
        """Invoke the manager each minute, more or less, now and then not or twice."""
        faults, instant_s = self._around.faults, self._shape.instant_s
        if instant_s:
            await asyncio.sleep(instant_s + self._chance.uniform(0.0, 30.0))
        while True:
            await self._is_awake.wait()
            if not faults.strike("manager_missing"):
                self.functions.manager(self._machine.launcher)
            if faults.strike("manager_twice"):
                await asyncio.sleep(faults.between("manager_twice", 0.0, 5.0))
                self.functions.manager(self._machine.launcher)
            await asyncio.sleep(self._shape.schedule_s)

    async def _resume_stopped(self) -> None:
        """Let stopped shards go on, as an operator would."""
        state = FleetState(self._state, self._around.clock)
        while True:
            await asyncio.sleep(_MINUTE_S / 2)
            await self._is_awake.wait()
            for stop in await state.stops():
                self._around.log("operator", "resumes", stop.lease_key, stop.error)
                await state.resume(stop.lease_key)

    async def _chaos(self) -> None:
        """Kill and freeze invocations, wherever they are."""
        faults = self._around.faults
        while True:
            await asyncio.sleep(self._chance.uniform(0.5, 1.5))
            if faults.strike("clocks_jump"):
                self._around.clocks_off_ms = faults.whole("clocks_jump", -1, 1) * _JUMP_MS
                self._around.log("world", "all clocks are off by", self._around.clocks_off_ms)
            for actor in [each for each in self.functions.alive if each is each.main]:
                who = next((each.worker_id for each in actor.fellows if each.worker_id), "")
                if faults.strike("clock_jumps", who):
                    actor.clock_off_ms = faults.whole("clock_jumps", -1, 1) * _JUMP_MS
                    self._around.log(actor.name, "has a clock off by", actor.clock_off_ms)
                if faults.strike("kill_between", who):
                    actor.all_suffered("killed")
                    self._around.log(actor.name, "killed")
                    actor.kill()
                elif not actor.is_frozen and faults.strike("freeze", who):
                    self._freeze(actor)

    def _freeze(self, actor: Actor) -> None:
        duration_s = self._around.faults.between("freeze", *self._shape.freeze_s)
        actor.all_suffered("frozen")
        self._around.log(actor.name, "frozen for", round(duration_s * 1000), "ms")
        self._around.freeze(actor, duration_s)
