"""
From ``package.module:function`` to the user's callable, with errors that say what to do.

Which contract it has is told by its required parameters: one is our batch, two are Lambda's event
and context (``FleetConfig.handler_contract`` overrides).
"""

from __future__ import annotations

import difflib
import importlib
import inspect
import sys
import traceback
from collections.abc import Callable
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from shardfleet.errors import ConfigurationError

_POSITIONAL = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)


class HandlerContract(StrEnum):
    """How a handler is called."""

    NATIVE = "native"  # function(batch)
    EVENT = "event"  # function(event, context), as Lambda's event source mapping does


_PARAMETERS = {HandlerContract.NATIVE: 1, HandlerContract.EVENT: 2}
_ADVICE = (
    "a handler takes one parameter (batch), or two (event, context); with handler_contract native "
    "or event (SHARDFLEET_HANDLER_CONTRACT) you say which"
)


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
        ConfigurationError: says what is wrong with the name, the module or the function.

    """
    module_name, separator, path = name.partition(":")
    if not (separator and module_name and path):
        raise ConfigurationError(
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
        ConfigurationError: it is no function, or takes other parameters.

    """
    if not callable(function):
        raise ConfigurationError(
            f"handler {name}: it is a {type(function).__name__}, not a function; {_ADVICE}"
        )
    return LoadedHandler(function, _contract_of(function, contract, name=name), _is_async(function))


def _module(module_name: str, name: str) -> object:
    try:
        return importlib.import_module(module_name)
    except ModuleNotFoundError as error:
        missing = error.name or ""
        if module_name == missing or module_name.startswith(missing + "."):
            raise ConfigurationError(
                f"handler {name}: there is no module {missing!r}; looked in: "
                f"{', '.join(entry or '(current folder)' for entry in sys.path)}"
            ) from error
        raise ConfigurationError(
            f"handler {name}: importing {module_name} failed, because it needs {missing!r}, which "
            "is not installed; add it to the handler's requirements.txt"
        ) from error
    except BaseException as error:
        if isinstance(error, KeyboardInterrupt):
            raise
        where = traceback.extract_tb(error.__traceback__)[-1]
        raise ConfigurationError(
            f"handler {name}: importing {module_name} failed with {type(error).__name__}: {error} "
            f"({where.filename}, line {where.lineno})"
        ) from error


def _attribute(found: object, path: str, *, name: str) -> Any:
    for part in path.split("."):
        if not hasattr(found, part):
            owner = getattr(found, "__name__", type(found).__name__)
            names = [n for n in dir(found) if not n.startswith("_")]
            close = difflib.get_close_matches(part, names, n=3)
            hint = f"; did you mean {' or '.join(close)}?" if close else ""
            raise ConfigurationError(f"handler {name}: {owner} has no {part!r}{hint}")
        found = getattr(found, part)
    return found


def _contract_of(function: Callable[..., Any], wanted: str, *, name: str) -> HandlerContract:
    try:
        parameters = list(inspect.signature(function).parameters.values())
    except (TypeError, ValueError):  # A builtin or a C extension tells nothing of itself.
        parameters = []
    required = [p for p in parameters if p.kind in _POSITIONAL and p.default is p.empty]
    most = sum(1 for p in parameters if p.kind in _POSITIONAL)
    takes_any = not parameters or any(p.kind is p.VAR_POSITIONAL for p in parameters)
    keyword_only = [p.name for p in parameters if p.kind is p.KEYWORD_ONLY and p.default is p.empty]
    if keyword_only:
        raise ConfigurationError(
            f"handler {name}: it requires the keyword {', '.join(keyword_only)}; {_ADVICE}"
        )
    if wanted != "auto":
        contract = HandlerContract(wanted)
        given = _PARAMETERS[contract]
        if len(required) > given or (most < given and not takes_any):
            raise ConfigurationError(
                f"handler {name}: it takes {len(required)} parameters, but the contract "
                f"{contract} gives {given}; {_ADVICE}"
            )
        return contract
    for contract, given in _PARAMETERS.items():
        if len(required) == given:
            return contract
    raise ConfigurationError(f"handler {name}: it takes {len(required)} parameters; {_ADVICE}")


def _is_async(function: Callable[..., Any]) -> bool:
    call = getattr(function, "__call__", None)  # noqa: B004 - the method, not whether there is one
    return inspect.iscoroutinefunction(function) or inspect.iscoroutinefunction(call)
