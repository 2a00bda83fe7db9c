"""What everything in a simulation shares: time, faults, the journal, the checkers."""

from __future__ import annotations

import asyncio
import random
from collections import Counter
from collections.abc import Callable, Coroutine, Mapping
from contextvars import Context
from functools import partial
from typing import Any, cast

from shardfleet.domain.leases.lease import Lease, LeaseChange
from shardfleet.events.base import Event
from shardfleet_testkit.checkers import (
    CHECKERS,
    Checker,
    DocumentWrite,
    LeaseWrite,
    RunLedger,
    Suspect,
    Violation,
)
from shardfleet_testkit.clock import VirtualClock, VirtualTimeLoop
from shardfleet_testkit.simulation.actors import Actor, outside_actors
from shardfleet_testkit.simulation.faults import Faults


class Surroundings:
    """
    One run's common ground.

    Attributes:
        seed: everything is drawn from it.
        faults: what goes wrong.
        clock: the true time.
        loop: what the run is run by.
        ledger: the true stream.
        lines: the event log, one line per event; empty unless kept.
        calls: port calls by operation.
        commands: an operator's that were begun, by name.
        violations: in the order of their discovery.
        freezes: how many times an invocation was frozen.
        seers: hook of a checker to that method of each checker that has one of its own.
        focus: calls, by how their names begin, that invocations freeze or die in; empty: all.
        freeze_s: the shortest and the longest freeze.
        clocks_off_ms: by how much the wall clocks of all invocations have jumped.
        drifts_most: a clock that is wrong is as wrong as it may be.
        spoilt: documents that somebody wrote nonsense into, by kind and id: what they said before.
        killers: handler calls without records that kill, by shard and kind, and until when.

    """

    def __init__(
        self,
        seed: int,
        faults: Faults,
        *,
        renew_ms: int,
        keeps_log: bool = False,
        checkers: tuple[type[Checker], ...] = CHECKERS,
    ) -> None:
        """Begin with nothing having happened."""
        self.seed = seed
        self.faults = faults
        self.loop = cast("VirtualTimeLoop", asyncio.get_running_loop())
        self.clock = VirtualClock()
        self.ledger = RunLedger(began_ms=self.clock.start_ms)
        self.lines: list[str] = []
        self.calls: Counter[str] = Counter()
        self.commands: Counter[str] = Counter()
        self.violations: list[Violation] = []
        self.broken = asyncio.Event()
        self.freezes = 0
        self.focus: tuple[str, ...] = ()
        self.freeze_s = (0.5, 45.0)
        self.clocks_off_ms = 0
        self.drifts_most = False
        self.checkers = [kind(self.ledger, self.violated, renew_ms=renew_ms) for kind in checkers]
        self.seers: dict[str, list[Callable[..., None]]] = {
            hook: [getattr(c, hook) for c in self.checkers if getattr(type(c), hook) is not empty]
            for hook, empty in vars(Checker).items()
            if not hook.startswith("_")
        }
        self.spoilt: dict[tuple[str, str], Mapping[str, Any]] = {}
        self.killers: dict[tuple[str, str], int] = {}
        self._keeps_log = keeps_log
        self._tasks: set[asyncio.Task[Any]] = set()
        self._outside: Context | None = None

    @property
    def now_ms(self) -> int:
        """Return milliseconds since the beginning of the run."""
        return self.loop.virtual_ms

    def chance(self, purpose: str) -> random.Random:
        """Return a generator of its own for a purpose, so that purposes do not disturb others."""
        return random.Random(f"{self.seed}/{purpose}")

    def spawn(self, work: Coroutine[Any, Any, None], name: str) -> asyncio.Task[None]:
        """Run something that belongs to no invocation: it outlives whoever asked for it."""
        task = asyncio.get_running_loop().create_task(work, name=name, context=outside_actors())
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task

    def later(self, delay_s: float, call: Callable[..., None], *arguments: object) -> None:
        """Make a call that belongs to no invocation, in so many virtual seconds."""
        if self._outside is None:
            self._outside = outside_actors()
        # As a task would that sleeps first: once whoever asked for it waits.
        send = partial(self.loop.call_later, delay_s, call, *arguments, context=self._outside)
        self.loop.call_soon(send, context=self._outside)

    def freeze(self, actor: Actor, duration_s: float) -> None:
        """Let nothing of an invocation, or of its process, run for so long."""
        main = actor.main

        async def thaw() -> None:
            await asyncio.sleep(duration_s)
            main.thaw()

        self.freezes += 1
        main.freeze()
        self.spawn(thaw(), f"thaw {actor.name}")

    def compute(self, actor: Actor, duration_s: float) -> None:
        """Let an invocation's processor be at work for so long, which is no fault of its own."""

        async def finish() -> None:
            while actor.to_compute_s > 0:
                left_s, actor.to_compute_s = actor.to_compute_s, 0.0
                for computed in self.seers["computed"]:
                    computed(self.now_ms, actor, lasted_ms=round(left_s * 1000))
                await asyncio.sleep(left_s)
            actor.thaw()

        if actor.compute(duration_s):
            self.spawn(finish(), f"{actor.name} computes")

    def log(self, who: str, what: str, *details: object) -> None:
        """Write one line of the event log."""
        if self._keeps_log:
            text = " ".join(str(detail) for detail in details)
            self.lines.append(f"{self.now_ms:>9} {who:<14} {what} {text}".rstrip())

    def violated(self, violation: Violation) -> None:
        """Take down a violation; the run ends with the first."""
        self.violations.append(violation)
        self.log("CHECKER", "VIOLATION", violation)
        self.broken.set()

    def tell(self, by: Suspect, event: Event) -> None:
        """Show an event of the engine to the checkers."""
        if self._keeps_log:
            self.log(by.name, "event", event)
        now_ms = self.now_ms
        for told in self.seers["told"]:
            told(now_ms, by, event)

    def about_to_write(self, by: Suspect, change: LeaseChange) -> None:
        """Show a write to the checkers that is about to be sent."""
        now_ms = self.now_ms
        for sent in self.seers["lease_sent"]:
            sent(now_ms, by, change)

    def read(self, by: Suspect, kind: str, body: Mapping[str, Any]) -> None:
        """Show a document of the fleet state that was read to the checkers."""
        now_ms = self.now_ms
        for read in self.seers["document_read"]:
            read(now_ms, by, kind=kind, body=body)

    def wrote(
        self, by: Suspect, change: LeaseChange, *, before: Lease | None, after: Lease | None
    ) -> None:
        """Show a write that landed to the checkers."""
        write = LeaseWrite(at_ms=self.now_ms, by=by, change=change, before=before, after=after)
        for written in self.seers["lease_written"]:
            written(write)

    def deleted(self, by: Suspect, kind: str, name: str) -> None:
        """Show that a document of the fleet state was deleted to the checkers."""
        for seen in self.seers["document_deleted"]:
            seen(self.now_ms, by, kind=kind, name=name)

    def wrote_nothing(self, by: Suspect, change: LeaseChange) -> None:
        """Show an update to the checkers that DynamoDB would have made an item of."""
        write = LeaseWrite(at_ms=self.now_ms, by=by, change=change, before=None, after=None)
        for checker in self.checkers:
            checker.update_created(write)

    def stored(
        self,
        by: Suspect,
        kind: str,
        name: str,
        *,
        before: Mapping[str, Any] | None,
        after: Mapping[str, Any],
    ) -> None:
        """Show a document of the fleet state that was written to the checkers."""
        write = DocumentWrite(
            at_ms=self.now_ms,
            by=by,
            kind=kind,
            name=name,
            before=before,
            after=after,
        )
        for written in self.seers["document_written"]:
            written(write)
