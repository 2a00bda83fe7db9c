"""
Why a worker does not work: its last failure, as it stands on its slot's record for a person.

Written by who knows. What the worker's process meets (a handler that cannot be loaded, a call that
outlives its time-out, a right that is missing) it writes itself; of what ends the process or cuts
it off, the state machine tells the next invocation, which writes it with its claim. A failure is
taken off when the worker works again. Nothing here holds what a record says: texts are our own, or
of what an import raised before there was a record.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from enum import StrEnum

from msgspec import Struct

from shardfleet.errors import HandlerNotLoaded, HandlerTimedOut, RightMissing, Unsettled, told

# A slot's record is read and written several times a minute (400 KB at most, fact D23).
MESSAGE_BYTES_MOST = 600
WHERE_BYTES_MOST = 200
# As the worker's state machine has it: an invocation that ran for so long was well.
WELL_AFTER_MS = 60_000


class FailureKind(StrEnum):
    """What failed; the first four only another deployment mends."""

    LOAD = "LOAD"  # there is no such handler
    IMPORT = "IMPORT"  # its module raises
    SIGNATURE = "SIGNATURE"  # it cannot be called with what a handler is called with
    FUNCTION = "FUNCTION"  # it is a function of its own, which cannot be invoked
    RIGHT = "RIGHT"  # the worker's role may not do what it must
    TIME_OUT = "TIME_OUT"  # a handler call, or the whole function, took too long
    MEMORY = "MEMORY"  # Lambda killed the process
    EXIT = "EXIT"  # the process ended
    TURN = "TURN"  # anything else that ended an invocation

    @classmethod
    def _missing_(cls, _: object) -> FailureKind:
        """Read a kind that another version has named."""
        return cls.TURN


_IN_WORDS: Mapping[FailureKind, str] = {
    FailureKind.LOAD: "its handler is not found",
    FailureKind.IMPORT: "its handler cannot be imported",
    FailureKind.SIGNATURE: "its handler cannot be called",
    FailureKind.FUNCTION: "its handler's function cannot be invoked",
    FailureKind.RIGHT: "it has no right to do its work",
    FailureKind.TIME_OUT: "it ran out of time",
    FailureKind.MEMORY: "its process was killed",
    FailureKind.EXIT: "its process ended",
    FailureKind.TURN: "its invocation failed",
}
_REMEDIES: Mapping[FailureKind, str] = {
    FailureKind.LOAD: "name the handler as it is in its folder, package.module:function or :Class, "
    "and deploy again",
    FailureKind.IMPORT: "mend that line, or add what it needs to the handler's requirements.txt, "
    "and deploy again",
    FailureKind.SIGNATURE: "let the function take one argument (batch), or two (event, context), "
    "and deploy again",
    FailureKind.FUNCTION: "deploy that function again, or give the fleet one that is there; "
    "nothing is lost meanwhile",
    FailureKind.RIGHT: "grant the worker's role that right (the construct does: deploy it again), "
    "or take back what denies it",
    FailureKind.TIME_OUT: "look what the handler waits for (shardfleet logs {worker}); or raise "
    "handler_timeout_ms, and the function's time-out with it",
    FailureKind.MEMORY: "raise the worker's memory_mb, or lower batch_records; its lines: "
    "shardfleet logs {worker}",
    FailureKind.EXIT: "look what ends the process (os._exit, a signal, a crash of a compiled "
    "package): shardfleet logs {worker}",
    FailureKind.TURN: "look into its lines: shardfleet logs {worker}",
}
# Whatever is tried again, these fail again until somebody acts.
_CERTAIN = frozenset(
    {
        FailureKind.LOAD,
        FailureKind.IMPORT,
        FailureKind.SIGNATURE,
        FailureKind.FUNCTION,
        FailureKind.RIGHT,
    }
)
# A record may be what they come of; it is found out by attempts (H9).
CRASHES = frozenset({FailureKind.TIME_OUT, FailureKind.MEMORY, FailureKind.EXIT, FailureKind.TURN})
_UNTIL_LOADED = frozenset(
    {FailureKind.LOAD, FailureKind.IMPORT, FailureKind.SIGNATURE, FailureKind.FUNCTION}
)


class Failure(Struct, frozen=True):
    """
    What ended one invocation.

    Attributes:
        kind: see :class:`FailureKind`.
        message: in words.
        where: file and line of the user's code, empty where that says nothing.

    """

    kind: FailureKind
    message: str
    where: str = ""


class LastFailure(Struct, frozen=True, kw_only=True):
    """
    A worker's last failure, on its slot's record.

    Attributes:
        kind: see :class:`FailureKind`.
        message: in words, :data:`MESSAGE_BYTES_MOST` at most.
        where: file and line of the user's code, or empty; :data:`WHERE_BYTES_MOST` at most.
        times: how many invocations in a row have failed.
        first_ms: when the first of them did, epoch milliseconds.
        last_ms: when the last one did.
        epoch: of the last one.

    """

    kind: FailureKind
    message: str
    where: str
    times: int
    first_ms: int
    last_ms: int
    epoch: int

    @property
    def is_certain(self) -> bool:
        """Return whether it will fail again: it did so twice, or only a person can mend it."""
        return self.times > 1 or self.kind in _CERTAIN

    @property
    def remedy(self) -> str:
        """Return what to do, with ``{worker}`` where the slot's id belongs."""
        return _REMEDIES[self.kind]

    @property
    def is_until_loaded(self) -> bool:
        """Return whether it is over as soon as the handler is loaded."""
        return self.kind in _UNTIL_LOADED

    def __str__(self) -> str:
        """Return what failed and where."""
        where = f" ({self.where})" if self.where else ""
        return f"{_IN_WORDS[self.kind]}: {self.message}{where}"


def again(before: LastFailure | None, failure: Failure, *, epoch: int, now_ms: int) -> LastFailure:
    """Return a failure as the last one, counted with those right before it."""
    return LastFailure(
        kind=failure.kind,
        message=_cut(failure.message, MESSAGE_BYTES_MOST),
        where=_cut(failure.where, WHERE_BYTES_MOST),
        times=before.times + 1 if before else 1,
        first_ms=before.first_ms if before else now_ms,
        last_ms=now_ms,
        epoch=epoch,
    )


def failure_of(error: BaseException) -> Failure:
    """Return what an error that ended a turn says to a person."""
    error = error.verdict if isinstance(error, Unsettled) else error
    if isinstance(error, HandlerNotLoaded):
        return Failure(FailureKind(error.kind), error.said, error.where)
    if isinstance(error, HandlerTimedOut):
        return Failure(FailureKind.TIME_OUT, str(error))
    if isinstance(error, RightMissing):
        return Failure(FailureKind.RIGHT, str(error))
    return Failure(FailureKind.TURN, told(error))


# Compiled when first used: most workers never see one, and each would wait for them at its start.
_TIMED_OUT = r"Task timed out after ([0-9.]+) seconds"
_EXITED = r"Runtime exited with error: ((?:exit status|signal: ?)[\w ]+)"
_ERROR_NAME = r"[A-Za-z][\w.]{0,79}"


def failure_of_fault(fault: str) -> Failure:
    """
    Return what ended an invocation that could not say so itself.

    Args:
        fault: Step Functions' name of the error and its cause, in Lambda's words (fact L20). Only
            what is recognized is repeated.

    """
    if found := re.search(_TIMED_OUT, fault):
        return Failure(
            FailureKind.TIME_OUT, f"Lambda cut the function off at its time-out, {found[1]} s"
        )
    found = re.search(_EXITED, fault)
    if "OutOfMemory" in fault or (found and "killed" in found[1]):
        return Failure(
            FailureKind.MEMORY,
            "Lambda killed the process (signal: killed), as it does when memory runs out",
        )
    if found:
        return Failure(FailureKind.EXIT, f"the process ended by itself: {found[1].strip()}")
    name = re.match(_ERROR_NAME, fault)
    if "Runtime exited" in fault:
        return Failure(FailureKind.EXIT, "the process ended by itself, without a reason")
    return Failure(FailureKind.TURN, f"Lambda answered {name[0] if name else 'an error'}")


def _cut(text: str, most: int) -> str:
    """Return a text of at most so many bytes in UTF-8."""
    whole = text.encode("utf-8", "backslashreplace")
    if len(whole) <= most:
        return whole.decode()
    return whole[: most - len("…".encode())].decode("utf-8", "ignore") + "…"
