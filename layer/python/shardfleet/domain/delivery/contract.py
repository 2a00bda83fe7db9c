"""
With what a handler is called: our batch, or Lambda's event and context.

It is told by what the function can be called with: one argument is the batch, two are event and
context. Where both would do, the names of its parameters tell; where they do not, it is refused
(``FleetConfig.handler_contract`` says which). The same rule reads a function that is there, in the
worker, and one that is only written down, before it is deployed.
"""

from __future__ import annotations

import ast
import inspect
from enum import StrEnum

from shardfleet.errors import HandlerNotLoaded

_POSITIONAL = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)


class HandlerContract(StrEnum):
    """How a handler is called."""

    NATIVE = "native"  # function(batch)
    EVENT = "event"  # function(event, context), as Lambda's event source mapping does


_ARGUMENTS = {HandlerContract.NATIVE: ("batch",), HandlerContract.EVENT: ("event", "context")}
ADVICE = (
    "a handler is called with one argument (batch), or with two (event, context); with "
    "handler_contract native or event (SHARDFLEET_HANDLER_CONTRACT) you say which"
)


def contract_of(
    signature: inspect.Signature, wanted: str, *, name: str, where: str
) -> HandlerContract:
    """
    Return with what a function is called.

    Args:
        signature: of the function.
        wanted: ``native``, ``event`` or ``auto``.
        name: ``module:function``, for the message.
        where: file and line, for the message.

    Raises:
        HandlerNotLoaded: it cannot be called so, or nothing tells which is meant.

    """
    possible = [contract for contract, given in _ARGUMENTS.items() if takes(signature, given)]
    told = possible[0] if len(possible) == 1 else _told_by_names(signature)
    if wanted != "auto":
        told = HandlerContract(wanted)
        given = ", ".join(_ARGUMENTS[told])
        why = f"the contract {told} calls it with ({given}), which it does not take"
        if told in possible:
            return told
    elif not possible:
        why = "it takes neither"
    elif told is None:
        why = "it takes both, and its names do not tell which"
    else:
        return told
    message = f"handler {name}{signature}: {why}; {ADVICE}"
    raise HandlerNotLoaded(message, kind="SIGNATURE", where=where)


def check_written(
    node: ast.FunctionDef | ast.AsyncFunctionDef, wanted: str, *, name: str, where: str
) -> None:
    """
    Look at a function as it is written; one with decorators may be called with anything.

    A contract that does not exist is refused with the other settings.

    Raises:
        HandlerNotLoaded: a worker could not call it.

    """
    if not node.decorator_list:
        check_signature(signature_of(node.args), wanted, name=name, where=where)


def check_signature(signature: inspect.Signature, wanted: str, *, name: str, where: str) -> None:
    """Look at a signature as :func:`contract_of` does, unless the contract is unknown."""
    if wanted == "auto" or wanted in HandlerContract.__members__.values():
        contract_of(signature, wanted, name=name, where=where)


def signature_of(given: ast.arguments) -> inspect.Signature:
    """Return the signature of a function as it is written."""
    kind = inspect.Parameter
    ordered = [*given.posonlyargs, *given.args]
    with_default = len(ordered) - len(given.defaults)
    found = [
        kind(
            arg.arg,
            kind.POSITIONAL_ONLY if at < len(given.posonlyargs) else kind.POSITIONAL_OR_KEYWORD,
            default=kind.empty if at < with_default else None,
        )
        for at, arg in enumerate(ordered)
    ]
    found += [kind(arg.arg, kind.VAR_POSITIONAL) for arg in (given.vararg,) if arg]
    found += [
        kind(arg.arg, kind.KEYWORD_ONLY, default=kind.empty if default is None else None)
        for arg, default in zip(given.kwonlyargs, given.kw_defaults, strict=True)
    ]
    found += [kind(arg.arg, kind.VAR_KEYWORD) for arg in (given.kwarg,) if arg]
    return inspect.Signature(found)


def takes(signature: inspect.Signature, arguments: tuple[str, ...]) -> bool:
    """Return whether a call with so many positional arguments fits a signature."""
    try:
        signature.bind(*arguments)
    except TypeError:
        return False
    return True


def _told_by_names(signature: inspect.Signature) -> HandlerContract | None:
    """Return the contract of a function that can be called with one argument or two."""
    parameters = [p for p in signature.parameters.values() if p.kind in _POSITIONAL]
    first, second = ([p.name.lstrip("_") for p in parameters] + ["", ""])[:2]
    if second == "context":
        return None if first == "batch" else HandlerContract.EVENT
    if first == "event":
        return None if second else HandlerContract.EVENT
    is_needed = any(p.default is p.empty for p in parameters[:1])
    # What is left has a default of its own, as in `handle(batch, client=client)`.
    return HandlerContract.NATIVE if first == "batch" or is_needed else None
