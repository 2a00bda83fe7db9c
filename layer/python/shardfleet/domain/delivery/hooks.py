"""
The life of a handler that is a class: one object per shard, and what it is told beside batches.

An object is made when a worker begins to read a shard, and is the shard's for as long as this
worker reads it on. Its methods are ``handle`` and, each of them optional, the hooks; the KCL's
``ShardRecordProcessor`` has the same under other names. The same rules read a class that is there,
in the worker, and one that is only written down, before it is deployed.
"""

from __future__ import annotations

import ast
import inspect
from collections.abc import Iterable
from enum import StrEnum
from functools import partial

from shardfleet.domain.delivery.contract import check_signature, signature_of, takes
from shardfleet.errors import HandlerNotLoaded

HANDLE = "handle"
# Ratio of difflib from which on a name is taken for a slip: `stoping`, `start`, `on_ended`.
_ALIKE = 0.8


class Hook(StrEnum):
    """What a handler object is told of its shard; the value is the method's name."""

    STARTED = "started"  # before the shard's first record
    ENDED = "ended"  # after its last one, before SHARD_END is written
    LEASE_LOST = "lease_lost"  # somebody else has the shard; nothing can be checkpointed
    STOPPING = "stopping"  # this worker is about to leave the shard

    @property
    def given(self) -> tuple[str, ...]:
        """Return the names of what it is called with."""
        return ("shard", "until") if self is Hook.STOPPING else ("shard",)

    @property
    def is_last(self) -> bool:
        """Return whether the worker leaves the shard after it."""
        return self in (Hook.LEASE_LOST, Hook.STOPPING)


# The KCL's names, snake case, and what is meant by the verbs alone.
_MEANT = {
    **dict.fromkeys(("process_records", "process", "run"), HANDLE),
    **dict.fromkeys(("initialize", "init"), str(Hook.STARTED)),
    **dict.fromkeys(("shard_ended", "end"), str(Hook.ENDED)),
    **dict.fromkeys(("shutdown_requested", "shutdown", "stop", "stopped"), str(Hook.STOPPING)),
}
ADVICE = (
    "a handler class is made without arguments, once per shard, and has handle(batch) and, if "
    "wanted, started(shard), ended(shard), lease_lost(shard), stopping(shard, until)"
)
_refused = partial(HandlerNotLoaded, kind="SIGNATURE")


def check_names(names: Iterable[str], *, name: str, where: str) -> None:
    """
    Look at the public methods of a handler class.

    Raises:
        HandlerNotLoaded: there is no ``handle``, or a name that is nearly a hook's, which nobody
            would ever call.

    """
    found = list(names)
    for method in found:
        if method in (HANDLE, *Hook):
            continue
        import difflib  # noqa: PLC0415 - no start waits for what few classes need

        close = difflib.get_close_matches(method, [HANDLE, *map(str, Hook)], 1, _ALIKE)
        meant = _MEANT.get(method) or (close[0] if close else None)
        if meant:
            raise _refused(
                f"handler {name}: its method {method} is never called; did you mean {meant}? "
                f"(else begin its name with an underscore); {ADVICE}",
                where=where,
            )
    if HANDLE not in found:
        raise _refused(f"handler {name}: the class has no method {HANDLE}; {ADVICE}", where=where)


def check_making(signature: inspect.Signature, *, name: str, where: str) -> None:
    """
    Look at what a handler class is made with.

    Raises:
        HandlerNotLoaded: it wants arguments.

    """
    if not takes(signature, ()):
        raise _refused(
            f"handler {name}{signature}: the class cannot be made without arguments; {ADVICE}",
            where=where,
        )


def check_hook(hook: Hook, signature: inspect.Signature, *, name: str, where: str) -> None:
    """
    Look at a hook.

    Args:
        hook: which one.
        signature: of the bound method.
        name: ``module:class``, for the message.
        where: file and line, for the message.

    Raises:
        HandlerNotLoaded: it cannot be called with what it is given.

    """
    if not takes(signature, hook.given):
        given = ", ".join(hook.given)
        raise _refused(
            f"handler {name}.{hook}{signature}: it is called with ({given}), which it does not "
            f"take; {ADVICE}",
            where=where,
        )


def check_class_written(node: ast.ClassDef, wanted: str, *, name: str, where: str) -> None:
    """
    Look at a class as it is written; one with bases or decorators may have what is not seen here.

    Raises:
        HandlerNotLoaded: a worker could not make it, or call it.

    """
    if node.bases or node.keywords or node.decorator_list:
        return
    methods = {
        found.name: found
        for found in node.body
        if isinstance(found, ast.FunctionDef | ast.AsyncFunctionDef)
    }
    assigned = {
        target.id
        for found in node.body
        if isinstance(found, ast.Assign)
        for target in found.targets
        if isinstance(target, ast.Name)
    }
    public = [method for method in (*methods, *assigned) if method[0] != "_"]
    check_names(public, name=name, where=where)
    for method, found in methods.items():
        if found.decorator_list or not (found.args.posonlyargs or found.args.args):
            continue  # A decorator's, or `*args`.
        file = where.rpartition(", line ")[0]
        line = f"{file}, line {found.lineno}"
        signature = signature_of(found.args)
        bound = signature.replace(parameters=list(signature.parameters.values())[1:])
        if method == "__init__":
            check_making(bound, name=name, where=line)
        elif method == HANDLE:
            check_signature(bound, wanted, name=f"{name}.{HANDLE}", where=line)
        elif method in list(Hook):
            check_hook(Hook(method), bound, name=name, where=line)
