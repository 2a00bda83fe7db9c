"""
The network between one invocation and a service: delays, losses, outages, death in mid-call.

A write that has been sent lands whether or not its sender lives to hear of it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any, TypeVar

from shardfleet.domain.refusals import CODES, STATUSES, error_of, refusal_of
from shardfleet.errors import OutcomeUnknown, ShardfleetError, Throttled
from shardfleet_testkit.simulation.actors import Actor
from shardfleet_testkit.simulation.surroundings import Surroundings

T = TypeVar("T")

# As the adapters': one attempt, and at most two seconds for an answer (hazard H1).
CALL_TIMEOUT_MS = 2_000
_FASTEST_MS, _SLOWEST_MS = 1.0, 20.0
FREEZE_S = (0.5, 45.0)
# Codes that no table knows are among them, and pages without one, as of a proxy.
_UNKNOWN = ("KMSAccessDeniedException", "KMSThrottlingException", "ValidationException", "NewCode")
_ANSWERS = (
    *((code, 400) for code in sorted((*CODES, *_UNKNOWN))),
    *(("", status) for status in sorted((*STATUSES, 302, 403, 404, 413, 511))),
)


class Outage:
    """A table that refuses everything for a while; shared by all who call it."""

    def __init__(self) -> None:
        """Begin available."""
        self.until_ms = 0


class Wire:
    """One invocation's connection to one service."""

    def __init__(
        self, actor: Actor, around: Surroundings, outage: Outage, *, throttle: str = "throttle"
    ) -> None:
        """
        Connect.

        Args:
            actor: who calls.
            around: faults, the log, time.
            outage: of the service.
            throttle: the kind of fault with which the service refuses.

        """
        self._actor = actor
        self._around = around
        self._outage = outage
        self._throttle = throttle
        self._roll = around.chance(f"wire/{actor.name}/{throttle}").random

    async def read(
        self, what: str, work: Callable[[], Coroutine[Any, Any, T]], *, about: str = ""
    ) -> T:
        """
        Carry a read.

        Raises:
            Throttled: refused, or no answer came: a read is simply made again.
            KilledError: the caller died meanwhile.

        """
        await self._send(what, about, writes=False)
        if self._is_cut_off:
            await self._no_answer(what, about)
            raise Throttled(f"{what} {about}: not reached")
        result = _at_once(work())
        if self._around.faults.strike("slow_call", about):
            await self._around.loop.pause(self._around.faults.between("slow_call", 0.1, 1.9))
        self._actor.check()
        if self._around.faults.strike("reply_lost", about):
            await self._no_answer(what, about)
            message = f"{what} {about}: no answer"
            raise Throttled(message)
        self._around.log(self._actor.name, what, about, "->", result)
        return result

    async def write(
        self,
        what: str,
        work: Callable[[], Coroutine[Any, Any, T]],
        *,
        about: str = "",
        may_repeat: bool = False,
    ) -> T:
        """
        Carry a write; one that ``may_repeat`` may land twice.

        Raises:
            Throttled: refused; not applied.
            OutcomeUnknown: no answer came; applied, not applied, or still to be applied.
            KilledError: the caller died meanwhile; the write may land all the same.

        """
        await self._send(what, about, writes=True)
        faults = self._around.faults
        if self._is_cut_off or faults.strike("request_lost", about):
            await self._no_answer(what, about)
            message = f"{what} {about}: no answer"
            raise OutcomeUnknown(message)
        is_late = faults.strike("late_write", about)
        delay_s = faults.between("late_write", 2.1, 6.0) if is_late else self._delay_s()
        landed: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        self._around.later(delay_s, _land, work, landed)
        if may_repeat and faults.strike("duplicated_write", about):
            delay_s += faults.between("duplicated_write", 0.0, 2.0)
            self._around.later(delay_s, _land, work, landed)
        if self._is_meant(what, about) and faults.strike("kill_in_call", about):
            self._die(what, about)
        if is_late or faults.strike("reply_lost", about):
            await self._no_answer(what, about)
            message = f"{what} {about}: no answer"
            raise OutcomeUnknown(message)
        result: T = await landed
        self._actor.check()
        self._around.log(self._actor.name, what, about, "->", result)
        return result

    async def _send(self, what: str, about: str, *, writes: bool) -> None:
        self._actor.check()
        around, faults = self._around, self._around.faults
        around.calls[what] += 1
        is_meant = self._is_meant(what, about)
        if is_meant and faults.strike("kill_in_call", about):
            self._die(what, about)
        # Not while a lease is being created: docs/proof.md says what comes of that, and why.
        may_freeze = not self._actor.is_frozen and not about.startswith("create ")
        if is_meant and may_freeze and faults.strike("freeze_in_call", about):
            self._freeze(what, about)
        await self._around.loop.pause(self._delay_s())
        self._actor.check()
        if faults.strike("slow_call", about):
            await self._around.loop.pause(faults.between("slow_call", 0.1, 1.9))
            self._actor.check()
        if self._throttle == "throttle" and faults.strike("table_outage", about):
            self._outage.until_ms = around.now_ms + faults.whole("table_outage", 1_000, 15_000)
            around.log("table", "outage until", self._outage.until_ms)
        is_out = around.now_ms < self._outage.until_ms and faults.are_on
        if is_out or faults.strike(self._throttle, about):
            self._actor.suffered("throttled")
            around.log(self._actor.name, what, about, "throttled")
            message = f"{what} {about}: throttled"
            raise Throttled(message)
        if faults.strike("odd_answer", about):
            raise self._odd_answer(f"{what} {about}", writes=writes)

    @property
    def _is_cut_off(self) -> bool:
        """Return whether the caller's process reaches no table at present."""
        is_cut_off = self._around.now_ms < self._actor.main.cut_off_until_ms
        return is_cut_off and self._throttle == "throttle"

    def _odd_answer(self, what: str, *, writes: bool) -> ShardfleetError:
        """Return what the adapters raise for one answer of the table of refusals, or beside it."""
        code, status = _ANSWERS[self._around.faults.whole("odd_answer", 0, len(_ANSWERS) - 1)]
        self._actor.suffered("odd answer")
        self._around.log(self._actor.name, what, "is answered", code or "nothing", status)
        text = f"{what}: {code or 'no code'} ({status})"
        return error_of(refusal_of(code, status), text, writes=writes)

    async def _no_answer(self, what: str, about: str) -> None:
        self._actor.suffered("no answer")
        await asyncio.sleep(CALL_TIMEOUT_MS / 1000)
        self._actor.check()
        self._around.log(self._actor.name, what, about, "no answer")

    def _die(self, what: str, about: str) -> None:
        self._actor.all_suffered("killed")
        self._around.log(self._actor.name, "killed in", what, about)
        self._actor.kill()
        self._actor.check()

    def _freeze(self, what: str, about: str) -> None:
        """Let nothing of the caller run for a while, the call on the tip of its tongue."""
        self._actor.all_suffered("frozen")
        self._around.log(self._actor.name, "frozen in", what, about)
        self._around.freeze(
            self._actor, self._around.faults.between("freeze_in_call", *self._around.freeze_s)
        )

    def _is_meant(self, what: str, about: str) -> bool:
        focus = self._around.focus
        return not focus or f"{what} {about}".startswith(focus)

    def _delay_s(self) -> float:
        return (_FASTEST_MS + (_SLOWEST_MS - _FASTEST_MS) * self._roll()) / 1000


def _land(work: Callable[[], Coroutine[Any, Any, Any]], landed: asyncio.Future[Any]) -> None:
    """Carry a write out that was sent a while ago, and answer whoever still listens."""
    if landed.done() and not landed.cancelled() and isinstance(landed.exception(), Throttled):
        return  # A copy of what the service has refused: a refusal says that nothing was done.
    try:
        result = _at_once(work())
    except ShardfleetError as refusal:  # of a row that nobody can read
        if not landed.done():
            landed.set_exception(refusal)
        return
    if not landed.done():
        landed.set_result(result)


def _at_once(work: Coroutine[Any, Any, T]) -> T:
    """
    Do what a service does in memory, which lets others run in between and waits for nobody.

    Nothing runs in between: a call takes its time on the way to the service and back.
    """
    while True:
        try:
            work.send(None)
        except StopIteration as end:
            result: T = end.value
            return result


class WiredCall:
    """The ``ManagerCall`` port of one invocation."""

    def __init__(self, invoke: Callable[[], Coroutine[Any, Any, None]], wire: Wire) -> None:
        """Reach the service over a wire."""
        self._invoke = invoke
        self._wire = wire

    async def call(self, function: str) -> None:
        """Invoke the manager."""
        await self._wire.write("function.call", self._invoke, about=function)
