"""
A person at the command line, who runs one command of an operator after the other, on failing ports.

Each is what the command itself calls, after what it reads before. A command may be refused, left
without an answer, frozen, or die; what is paused then, or meant to be, is resumed after a while.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Collection

from shardfleet.config import FleetConfig
from shardfleet.domain.balance.kcl3 import Direction
from shardfleet.domain.reasons import Pause
from shardfleet.errors import ShardfleetError
from shardfleet_ops.operate.given_up import sorted_out
from shardfleet_ops.operate.migrate import Migrator
from shardfleet_ops.operate.pause import Operator
from shardfleet_ops.operate.read import read_fleet
from shardfleet_ops.operate.redrive import redrive
from shardfleet_testkit.memory import MemoryOwnerIndex
from shardfleet_testkit.simulation.functions import Functions, Person
from shardfleet_testkit.simulation.surroundings import Surroundings

_WAITS_MOST_MS = (2_000, 60_000)
_STAYS_MOST_S = (2.0, 60.0)
_PAUSE_S = 1.0
_NAMED_MOST = 3
_CALL_S = 60
_Deed = Callable[[Person, Operator], Awaitable[object]]


class CommandingPerson:
    """One such person."""

    def __init__(self, around: Surroundings, functions: Functions, *, config: FleetConfig) -> None:
        """Begin with nothing asked for."""
        self._work = asyncio.Lock()
        self._around = around
        self._functions = functions
        self._config = config
        self._chance = around.chance("commands")
        self._deeds: dict[str, _Deed] = {
            "pause": self._pause,
            "drain": self._drain,
            "release": self._release,
            "migrate": self._migrate,
            "redrive": self._redrive,
        }

    @property
    def is_at_work(self) -> bool:
        """Return whether a command runs, or what it paused is paused still."""
        return self._work.locked()

    async def run(self) -> None:
        """Run a command now and then, until cancelled; one that runs goes on."""
        while True:
            await asyncio.sleep(1)
            if not self.is_at_work and self._around.faults.strike("command"):
                self._around.spawn(self._go_through(), "command")

    async def _go_through(self) -> None:
        """Run a command; then let everything go on, again until nothing goes wrong."""
        async with self._work:
            name = self._chance.choice(tuple(self._deeds))
            await self._command(name, self._deeds[name])
            await asyncio.sleep(self._chance.uniform(0.0, self._chance.choice(_STAYS_MOST_S)))
            is_resumed = False
            while not is_resumed:
                await asyncio.sleep(_PAUSE_S)
                is_resumed = await self._command("resume", self._resume)

    async def _command(self, name: str, deed: _Deed) -> bool:
        """Run a command to its end, its death or its refusal; tell whether it came to an end."""
        around, person = self._around, self._functions.person(name)
        is_done = False

        async def work() -> None:
            nonlocal is_done
            around.log(person.actor.name, name)
            try:
                left = await deed(person, Operator(person.leases, person.state, person.clock))
                is_done = True
                around.log(person.actor.name, name, "is done, but", left)
            except ShardfleetError as error:
                around.log(person.actor.name, "is refused", error)

        await self._functions.run_by(person, work())
        return is_done

    # --- commands

    async def _found(
        self, person: Person, operator: Operator
    ) -> tuple[dict[str, str | None], dict[str, str], list[str]]:
        """Return what is in use, as each command reads it first, and some of the leases."""
        reading = await read_fleet(
            person.leases, person.state, clock=person.clock, failover_ms=self._config.failover_ms
        )
        owners, slots = operator.in_use(reading.leases, reading.slots)
        named = self._chance.sample(
            sorted(owners), k=min(len(owners), self._chance.randint(1, _NAMED_MOST))
        )
        return owners, slots, named

    async def _pause(self, person: Person, operator: Operator) -> object:
        owners, slots, named = await self._found(person, operator)
        whole = self._chance.randrange(_NAMED_MOST) == 0
        ours = {None, *slots.values()}
        keys = list(owners) if whole else named
        left = await operator.let_go(
            keys, _why(person), whole=whole, of=ours, within_ms=self._within_ms()
        )
        self._are_free(set(keys) - set(left))
        return left

    async def _drain(self, person: Person, operator: Operator) -> object:
        owners, slots, _ = await self._found(person, operator)
        left = await operator.drain_fleet(owners, slots, _why(person), ms=self._within_ms())
        self._are_free(owners.keys() - set(left))
        return left

    def _are_free(self, keys: Collection[str]) -> None:
        for free in self._around.seers["leases_free"]:
            free(self._around.now_ms, keys=keys)

    async def _release(self, person: Person, operator: Operator) -> object:
        _, slots, named = await self._found(person, operator)
        ending = self._chance.sample(sorted(slots), k=min(len(slots), self._chance.randrange(3)))
        if self._chance.randrange(_NAMED_MOST) == 0:
            return await operator.take(named)
        return await operator.release(named, ending, _why(person), ms=self._within_ms())

    async def _migrate(self, person: Person, operator: Operator) -> object:
        """Move leases one way, or there and back, as far as they come."""
        migrator = Migrator(
            self._config,
            operator,
            kcl3=person.kcl3,
            index=MemoryOwnerIndex(),
            events=person.events,
            person="operator",
        )
        ways = self._chance.sample(tuple(Direction), k=self._chance.randint(1, 2))
        for way in ways:
            await migrator.run(
                way,
                within_ms=self._within_ms(),
                tell=lambda step: self._around.log(person.actor.name, "goes on with", step),
            )
        if self._chance.randrange(2):
            await migrator.abort()
        return ways

    async def _redrive(self, person: Person, operator: Operator) -> object:
        del operator
        found, refused = sorted_out(await person.kept.look(), self._config.stream_arn)
        return refused, await redrive(
            found, kept=person.kept, handle=self._functions.redrive, within_s=_CALL_S
        )

    async def _resume(self, person: Person, operator: Operator) -> object:
        stopped = [note.lease_key for note in await person.state.stops()]
        await operator.let_go_on(stopped, whole=True)
        return ()

    def _within_ms(self) -> int:
        return self._chance.randint(0, self._chance.choice(_WAITS_MOST_MS))


def _why(person: Person) -> Pause:
    return Pause("operator", person.clock.now_ms(), "command")
