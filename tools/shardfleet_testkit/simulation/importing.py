"""
A person who hands a fleet the positions of another reader, while everything goes wrong.

The other reader has gone on from where the fleet stands: what it has done is nobody's to handle
any more. The command is ``shardfleet position import``, the production's ``plan_import`` and
``PositionImporter`` on ports that fail; whoever runs it pauses the fleet before, and releases
leases by force now and then.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

from shardfleet.domain.leases.lease import Lease
from shardfleet.domain.positions.positions import Positions
from shardfleet.domain.reasons import Pause
from shardfleet.domain.stream.sequence import PointKind, Position, StreamIncarnation
from shardfleet.domain.stream.shards import ShardGraph
from shardfleet.errors import ShardfleetError
from shardfleet_ops.operate.pause import Operator
from shardfleet_ops.operate.positions import PositionImporter
from shardfleet_ops.positions.position_import import plan_import
from shardfleet_testkit.simulation.functions import Functions, Person
from shardfleet_testkit.simulation.surroundings import Surroundings
from shardfleet_testkit.simulation.tables import LeaseTable

_WAITS_MOST_MS = 30_000
_FORCES_ONE_IN = 3
_ENDS_ONE_IN = 4
_PAUSE_S = 1.0
# Records of a shard that the other reader has done.
_DONE_MOST = (1, 10, 1_000)


class ImportingPerson:
    """One such person, who runs one command after the other."""

    def __init__(self, around: Surroundings, functions: Functions, table: LeaseTable) -> None:
        """Begin with nothing imported."""
        self._work = asyncio.Lock()
        self._around = around
        self._functions = functions
        self._table = table
        table.imported = lambda lease: around.ledger.done_elsewhere(
            lease.lease_key, lease.checkpoint
        )
        self._chance = around.chance("imports")

    @property
    def is_at_work(self) -> bool:
        """Return whether a command runs, or what it paused is paused still."""
        return self._work.locked()

    async def run(self) -> None:
        """Import positions now and then, until cancelled; a command that runs goes on."""
        while True:
            await asyncio.sleep(1)
            is_there = self._around.ledger.recreated_ms is None and self._table.store.leases
            if is_there and self._around.faults.strike("position_import") and not self.is_at_work:
                self._around.spawn(self._go_through(), "position import")

    async def _go_through(self) -> None:
        async with self._work:
            person = self._functions.person("position import")
            await self._functions.run_by(person, self._import(person))
            is_done = False

            async def go_on(person: Person) -> None:
                nonlocal is_done
                try:
                    await Operator(person.leases, person.state, person.clock).go_on()
                    is_done = True
                except ShardfleetError as error:
                    self._around.log(person.actor.name, "is refused", error)

            while not is_done:
                await asyncio.sleep(_PAUSE_S)
                person = self._functions.person("resume")
                await self._functions.run_by(person, go_on(person))

    async def _import(self, person: Person) -> None:
        """Stop the fleet, and do what ``shardfleet position import`` does."""
        log, name = self._around.log, person.actor.name
        operator = Operator(person.leases, person.state, person.clock)
        try:
            await operator.pause(None, Pause("operator", person.clock.now_ms(), "import"))
            held = await operator.until_free(
                list(self._table.store.leases), within_ms=self._chance.randint(0, _WAITS_MOST_MS)
            )
            if self._chance.randrange(_FORCES_ONE_IN) == 0:
                await operator.force(held)
            incarnation = await person.stream.incarnation()
            leases = await person.leases.scan()
            graph = ShardGraph(await person.stream.list_shards())
            plan = plan_import(self._positions(incarnation, leases), leases, graph)
            log(name, "would import", plan)
            if not plan.obstacles:
                importer = PositionImporter(
                    person.leases, clock=person.clock, state=person.state.store.raw
                )
                log(name, "has imported", await importer.carry_out(plan))
        except ShardfleetError as error:
            log(name, "is refused", error)

    def _positions(self, incarnation: StreamIncarnation, leases: Sequence[Lease]) -> Positions:
        """Return where the other reader stands; children of a shard that it ended wait for that."""
        truths = self._around.ledger.shards
        ended = {lease.lease_key: lease.is_finished for lease in leases}
        shards: dict[str, Position] = {}
        waiting: dict[str, tuple[str, ...]] = {}
        for lease in sorted(leases, key=lambda each: each.lease_key):
            key, children = lease.lease_key, truths[lease.lease_key].children
            behind = self._around.ledger.between(key, lease.checkpoint, None)
            waits = not all(ended.get(parent, True) for parent in truths[key].parents)
            if lease.is_finished or waits or self._chance.randrange(2):
                continue
            if children and self._chance.randrange(_ENDS_ONE_IN) == 0:
                shards[key] = Position(incarnation, key, PointKind.END)
                waiting |= {child: truths[child].parents for child in children}
            elif behind:
                done = self._chance.choice(behind[: self._chance.choice(_DONE_MOST)])
                shards[key] = Position(incarnation, key, PointKind.SEQUENCE, done=done.place)
        return Positions(incarnation=incarnation, shards=shards, waiting=waiting)
