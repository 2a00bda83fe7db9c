"""
A person who sets leases back with the code of the command line, while everything goes wrong.

The command is ``shardfleet rewind``: the production's ``Rewinder`` on ports that fail. It may be
refused, left without an answer, frozen, or die in any call; whoever ran it sees that, and resumes
what is paused. Some release the leases by force before, some leave them paused for a while.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass

from shardfleet.config import FleetConfig
from shardfleet.domain.leases.lease import Lease
from shardfleet.domain.reasons import Pause
from shardfleet.domain.stream.sequence import (
    AT_TIMESTAMP,
    AT_TRIM_HORIZON,
    ExtendedSequenceNumber,
)
from shardfleet.engine.retry import Patience
from shardfleet.engine.shard.polling import PolledSource
from shardfleet.engine.shard.reader import ReadPorts
from shardfleet.errors import ShardfleetError
from shardfleet_ops.operate.pause import Operator
from shardfleet_ops.operate.rewind import Rewinder
from shardfleet_ops.positions.rewinds import RewindRow, RewindState, RewindTarget
from shardfleet_testkit.checkers import SourceRecord
from shardfleet_testkit.simulation.functions import Functions, Person
from shardfleet_testkit.simulation.surroundings import Surroundings
from shardfleet_testkit.simulation.tables import LeaseTable

_WAITS_MOST_S = (2.0, 30.0)
_LOOKS_MOST_S = 20.0
_FORCES_ONE_IN = 4
_STAYS_ONE_IN = 4
_PAGES_MOST = 60
_PAUSE_S = 1.0
_LEFT_BEHIND_MOST = 3
# How far back: records of a shard, or time.
_LATEST_MOST = (3, 30, 100_000)
_AGO_MOST_MS = (5_000, 60_000, 3_600_000)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Wish:
    """
    What one command is to do.

    Attributes:
        keys: the leases.
        target: where to.
        with_children: their descendants, too.
        forces: the leases are released by force before.
        stays_paused: nobody resumes them but the person, later.

    """

    keys: tuple[str, ...]
    target: RewindTarget
    with_children: bool
    forces: bool
    stays_paused: bool


class RewindingPerson:
    """
    One such person, who runs one command after the other.

    Attributes:
        rewound: leases that were to be set back: their shards must stay readable.

    """

    def __init__(
        self,
        around: Surroundings,
        functions: Functions,
        table: LeaseTable,
        *,
        config: FleetConfig,
        is_listed: Callable[[str], bool],
        only_finished: bool,
    ) -> None:
        """
        Begin with nothing set back.

        Args:
            around: what everything shares.
            functions: have the ports.
            table: of leases.
            config: of the fleet.
            is_listed: tells whether the stream has a shard still.
            only_finished: finished leases only are set back.

        """
        self.rewound: set[str] = set()
        self._work = asyncio.Lock()
        self._around = around
        self._functions = functions
        self._table = table
        self._config = config
        self._is_listed = is_listed
        self._only_finished = only_finished
        self._chance = around.chance("rewinds")

    @property
    def is_at_work(self) -> bool:
        """Return whether a command runs, or what it paused is paused still."""
        return self._work.locked()

    async def run(self) -> None:
        """Look at each lease once a second, until cancelled; a command that runs goes on."""
        faults = self._around.faults
        while True:
            await asyncio.sleep(1)
            wanted = [
                key
                for key, lease in sorted(self._table.store.leases.items())
                if self._may_be_set_back(key, lease) and faults.strike("rewind", key)
            ]
            if wanted and not self.is_at_work:
                self._begin(wanted)

    def _may_be_set_back(self, key: str, lease: Lease) -> bool:
        return self._is_listed(key) and (lease.is_finished or not self._only_finished)

    def _begin(self, keys: Sequence[str]) -> None:
        wish = self._wish(keys)
        if wish is not None:
            self._around.spawn(self._go_through(wish), f"rewind {' '.join(wish.keys)}")

    async def leave_set_back(self, put_before_ms: int) -> frozenset[str]:
        """Set some leases back to records of that age; return those that are left paused."""
        leases = self._table.store.leases
        async with self._work:
            known = [key for key, le in sorted(leases.items()) if self._may_be_set_back(key, le)]
            meant = self._chance.sample(known, k=min(len(known), _LEFT_BEHIND_MOST))
            for key in meant:
                old = [each for each in self._done(key) if each.put_ms < put_before_ms]
                handled = [each for each in old if not each.is_excused]
                if handled:
                    await self._command(
                        _Wish(
                            keys=(key,),
                            target=self._at(self._chance.choice(handled)),
                            with_children=False,
                            forces=False,
                            stays_paused=True,
                        )
                    )
        return frozenset(meant)

    async def _go_through(self, wish: _Wish) -> None:
        async with self._work:
            if not await self._command(wish):
                await self.resume(self._touched(wish))

    async def _command(self, wish: _Wish) -> bool:
        """Run the command; tell whether it left nothing to be resumed."""
        around, person = self._around, self._functions.person("rewind")
        # Before the first write: retention must not take what is to be read again.
        self.rewound |= self._touched(wish)
        around.log(person.actor.name, "rewinds", wish)
        await self._functions.run_by(person, self._rewind(person, wish))
        left = wish.stays_paused or wish.forces
        if wish.stays_paused:
            await asyncio.sleep(self._chance.uniform(0.0, _LOOKS_MOST_S))
        return not (left or person.actor.faults)

    async def _rewind(self, person: Person, wish: _Wish) -> None:
        """Do what ``shardfleet rewind`` does."""
        operator = Operator(person.leases, person.state, person.clock)
        patience = Patience.of(self._config, clock=person.clock, entropy=person.entropy)
        rewinder = Rewinder(
            self._config,
            operator,
            stream=person.stream,
            reading=ReadPorts(
                source=PolledSource(person.stream, person.clock),
                clock=person.clock,
                events=person.events,
                patience=patience,
            ),
            pages_most=_PAGES_MOST,
        )
        pause = Pause("operator", person.clock.now_ms(), "rewind")
        try:
            plan = await rewinder.preview(wish.keys, wish.target, with_children=wish.with_children)
            if wish.forces:
                await operator.pause(plan.keys, pause)
                await operator.force(plan.keys)
            within_s = self._chance.choice(_WAITS_MOST_S)
            rows = await rewinder.carry_out(
                plan, pause, within_ms=round(within_s * 1000), stay_paused=wish.stays_paused
            )
        except ShardfleetError as error:
            # The command ends with one line; its faults make its user resume what is paused.
            person.actor.suffered(f"{type(error).__name__}")
            self._around.log(person.actor.name, "is refused", error)
            return
        for row in rows:
            self._tell(person, row)

    def _tell(self, person: Person, row: RewindRow) -> None:
        around = self._around
        around.log(person.actor.name, "is told", row)
        if row.state is RewindState.SET_BACK:
            for seen in around.seers["rewind_told"]:
                seen(around.now_ms, person.actor, row)

    async def resume(self, keys: AbstractSet[str]) -> None:
        """Resume leases, again until nothing went wrong."""
        is_done = False

        async def work(person: Person) -> None:
            nonlocal is_done
            try:
                await Operator(person.leases, person.state, person.clock).resume(keys)
                is_done = True
            except ShardfleetError as error:
                self._around.log(person.actor.name, "is refused", error)

        while not is_done:
            await asyncio.sleep(_PAUSE_S)
            person = self._functions.person("resume")
            await self._functions.run_by(person, work(person))
        self._around.log("operator", "resumes", " ".join(sorted(keys)))

    # --- what is wished

    def _wish(self, keys: Sequence[str]) -> _Wish | None:
        chance = self._chance
        meant = self._with_descendants(keys)
        entries = [each for key in sorted(meant) for each in self._done(key)]
        # A fleet that began at the tip, or at an instant, is not set back to before it.
        excused = [each.put_ms for each in entries if each.is_excused]
        way = chance.choice(("oldest", "instant", "record"))
        target: RewindTarget | None = None
        if way == "oldest" and not excused:
            target = RewindTarget(AT_TRIM_HORIZON)
        elif way == "instant":
            least_ms = max(excused, default=-1) + 1
            now_ms = self._around.now_ms
            least_ms = max(least_ms, now_ms - chance.choice(_AGO_MOST_MS))
            at_ms = chance.randint(min(least_ms, now_ms), now_ms)
            began_ms = self._around.clock.now_ms() - self._around.now_ms
            target = RewindTarget(ExtendedSequenceNumber(AT_TIMESTAMP, began_ms + at_ms))
        else:
            keys = [chance.choice(keys)]
            handled = [each for each in self._done(keys[0]) if not each.is_excused]
            if not handled:
                return None
            # The latest are what more than the checkpoint knows of.
            target = self._at(chance.choice(handled[-chance.choice(_LATEST_MOST) :]))
        return _Wish(
            keys=tuple(keys),
            target=target,
            with_children=not excused and chance.random() < 0.5,  # noqa: PLR2004 - a coin
            forces=chance.randrange(_FORCES_ONE_IN) == 0,
            stays_paused=chance.randrange(_STAYS_ONE_IN) == 0,
        )

    def _at(self, entry: SourceRecord) -> RewindTarget:
        if self._chance.randrange(2):
            return RewindTarget(entry.place)
        number = ExtendedSequenceNumber(entry.place.sequence_number)
        return RewindTarget(number, whole_record=True)

    def _done(self, key: str) -> Sequence[SourceRecord]:
        return [each for each in self._around.ledger.shards[key].done() if not each.is_trimmed]

    def _touched(self, wish: _Wish) -> set[str]:
        return self._with_descendants(wish.keys) if wish.with_children else set(wish.keys)

    def _with_descendants(self, keys: Sequence[str]) -> set[str]:
        meant, waiting = set(keys), list(keys)
        while waiting:
            children = set(self._around.ledger.shards[waiting.pop()].children) - meant
            meant |= children
            waiting += sorted(children)
        return meant
