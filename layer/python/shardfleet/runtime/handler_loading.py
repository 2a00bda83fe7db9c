"""
From ``package.module:function`` to the user's callable, with errors that say what to do.

Which contract it has is told by what it can be called with: one argument is our batch, two are
Lambda's event and context. Where both would do, the names of its parameters tell; where they do
not, it is refused (``FleetConfig.handler_contract`` says which).
"""

from __future__ import annotations

import difflib
import importlib
import importlib.util
import inspect
import sys
import traceback
from collections.abc import Callable
from dataclasses import dataclass
from enum import StrEnum
from functools import partial
from pathlib import Path
from typing import Any

from shardfleet.domain.slots.failure import FailureKind
from shardfleet.errors import HandlerNotLoaded

_POSITIONAL = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)


class HandlerContract(StrEnum):
    """How a handler is called."""

    NATIVE = "native"  # function(batch)
    EVENT = "event"  # function(event, context), as Lambda's event source mapping does


_ARGUMENTS = {HandlerContract.NATIVE: ("batch",), HandlerContract.EVENT: ("event", "context")}
_ADVICE = (
    "a handler is called with one argument (batch), or with two (event, context); with "
    "handler_contract native or event (SHARDFLEET_HANDLER_CONTRACT) you say which"
)

_not_found = partial(HandlerNotLoaded, kind=FailureKind.LOAD)
_not_callable = partial(HandlerNotLoaded, kind=FailureKind.SIGNATURE)


@dataclass(frozen=True, slots=True)
class LoadedHandler:
    """
    The user's callable.

    Attributes:
        function: what is called.
        contract: with what it is called.
        is_async: whether it is a coroutine function, whose calls may overlap.

    """

    function: Callable[..., Any]
    contract: HandlerContract
    is_async: bool


def load_handler(name: str, *, contract: str = "auto") -> LoadedHandler:
    """
    Import a handler.

    Args:
        name: ``package.module:function``; the function may be an attribute of an object
            (``module:app.handle``).
        contract: ``native``, ``event`` or ``auto``.

    Raises:
        HandlerNotLoaded: says what is wrong with the name, the module or the function.

    """
    module_name, separator, path = name.partition(":")
    if not (separator and module_name and path):
        raise _not_found(
            f"handler: {name!r} found, package.module:function expected, "
            "for example orders.handler:handle"
        )
    function = _attribute(_module(module_name, name), path, name=name)
    return as_handler(function, name=name, contract=contract)


def as_handler(function: object, *, name: str, contract: str = "auto") -> LoadedHandler:
    """
    Take a callable for a handler.

    Args:
        function: the user's.
        name: for messages.
        contract: ``native``, ``event`` or ``auto``.

    Raises:
        HandlerNotLoaded: it is no function, cannot be called so, or is a generator function,
            whose body a call does not run.

    """
    if not callable(function) or inspect.isclass(function):
        found = "class" if inspect.isclass(function) else type(function).__name__
        raise _not_callable(f"handler {name}: it is a {found}, not a function; {_ADVICE}")
    if _is(inspect.isgeneratorfunction, function) or _is(inspect.isasyncgenfunction, function):
        raise _not_callable(
            f"handler {name}: it is a generator function (it has a yield), which a call does not "
            "run; take the yield out",
            where=_defined_in(function),
        )
    return LoadedHandler(function, _contract_of(function, contract, name=name), is_async(function))


def is_async(function: Callable[..., Any]) -> bool:
    """Tell whether it is a coroutine function, or an object whose call is one."""
    return _is(inspect.iscoroutinefunction, function)


def _module(module_name: str, name: str) -> object:
    try:
        return importlib.import_module(module_name)
    except ModuleNotFoundError as error:
        missing = error.name or ""
        if module_name == missing or module_name.startswith(missing + "."):
            raise _not_found(
                f"handler {name}: there is no module {missing!r}; looked in: "
                f"{', '.join(entry or '(current folder)' for entry in sys.path)}"
            ) from error
        raise HandlerNotLoaded(
            f"handler {name}: importing {module_name} failed, because it needs {missing!r}, which "
            "is not installed; add it to the handler's requirements.txt",
            kind=FailureKind.IMPORT,
            where=_raised_in(error, module_name),
        ) from error
    except BaseException as error:
        if isinstance(error, KeyboardInterrupt):
            raise
        raise HandlerNotLoaded(
            f"handler {name}: importing {module_name} failed with {type(error).__name__}: {error}",
            kind=FailureKind.IMPORT,
            where=_raised_in(error, module_name),
        ) from error


def _raised_in(error: BaseException, module_name: str) -> str:
    """Return the user's last line before the error: behind it may be frames of packages."""
    if isinstance(error, SyntaxError) and error.filename:
        return f"{error.filename}, line {error.lineno}"
    frames = traceback.extract_tb(error.__traceback__)
    folder = _folder_of(module_name)
    own = [f for f in frames if folder and Path(f.filename).is_relative_to(folder)]
    last = [*frames, *own][-1]
    return f"{last.filename}, line {last.lineno}"


def _folder_of(module_name: str) -> Path | None:
    """Return where the user's code lies: where the top of its package or module was found."""
    top = importlib.util.find_spec(module_name.partition(".")[0])
    return Path(top.origin).parent if top and top.origin else None


def _defined_in(function: Callable[..., Any]) -> str:
    """Return where a function is defined; empty for what has no code of its own."""
    found = inspect.unwrap(function)
    code = getattr(getattr(found, "__func__", found), "__code__", None)
    return f"{code.co_filename}, line {code.co_firstlineno}" if code else ""


def _attribute(found: object, path: str, *, name: str) -> Any:
    for part in path.split("."):
        if not hasattr(found, part):
            owner = getattr(found, "__name__", type(found).__name__)
            names = [n for n in dir(found) if not n.startswith("_")]
            close = difflib.get_close_matches(part, names, n=3)
            hint = f"; did you mean {' or '.join(close)}?" if close else ""
            raise _not_found(f"handler {name}: {owner} has no {part!r}{hint}")
        found = getattr(found, part)
    return found


def _contract_of(function: Callable[..., Any], wanted: str, *, name: str) -> HandlerContract:
    refused = partial(_not_callable, where=_defined_in(function))
    try:
        signature = inspect.signature(function)
    except (TypeError, ValueError) as error:  # A builtin or a C extension tells nothing of itself.
        if wanted != "auto":
            return HandlerContract(wanted)
        raise refused(
            f"handler {name}: its parameters are not known ({error}); {_ADVICE}"
        ) from error
    shown = f"handler {name}{signature}"
    possible = [contract for contract, given in _ARGUMENTS.items() if _takes(signature, given)]
    if wanted != "auto":
        contract = HandlerContract(wanted)
        if contract not in possible:
            given = ", ".join(_ARGUMENTS[contract])
            raise refused(
                f"{shown}: the contract {contract} calls it with ({given}), which it does not "
                f"take; {_ADVICE}"
            )
        return contract
    if not possible:
        raise refused(f"{shown}: it takes neither; {_ADVICE}")
    told = possible[0] if len(possible) == 1 else _told_by_names(signature)
    if told is None:
        raise refused(f"{shown}: it takes both, and its names do not tell which; {_ADVICE}")
    return told


def _takes(signature: inspect.Signature, arguments: tuple[str, ...]) -> bool:
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


def _is(kind: Callable[[Any], bool], function: Callable[..., Any]) -> bool:
    return kind(function) or kind(getattr(function, "__call__", None))  # noqa: B004 - the method
