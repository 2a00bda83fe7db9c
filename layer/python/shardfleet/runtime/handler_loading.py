"""From ``package.module:function`` to the user's callable, with errors that say what to do."""

from __future__ import annotations

import importlib
import inspect
import sys
import traceback
from collections.abc import Callable
from functools import partial
from types import MethodType
from typing import Any

from msgspec import Struct

from shardfleet.domain.delivery.contract import ADVICE, HandlerContract, contract_of
from shardfleet.domain.delivery.hooks import (
    HANDLE,
    Hook,
    check_hook,
    check_making,
    check_names,
)
from shardfleet.domain.slots.failure import FailureKind
from shardfleet.errors import HandlerNotLoaded
from shardfleet.runtime.own_code import own_code, place_in

_not_found = partial(HandlerNotLoaded, kind=FailureKind.LOAD)
_not_callable = partial(HandlerNotLoaded, kind=FailureKind.SIGNATURE)


class LoadedHandler(Struct, frozen=True):
    """
    The user's callable.

    Attributes:
        function: what is called with batches; of a class: what makes a shard's object.
        contract: with what it, or the object's ``handle``, is called.
        is_async: whether it is a coroutine function, whose calls may overlap.
        is_class: whether each shard has an object of its own.

    """

    function: Callable[..., Any]
    contract: HandlerContract
    is_async: bool
    is_class: bool = False


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
            f"handler: {name!r} found, package.module:function or :Class expected, for example "
            "orders.handler:handle"
        )
    found = _module(module_name, name)
    try:
        function = _attribute(found, path, name=name)
    except (KeyboardInterrupt, HandlerNotLoaded):
        raise
    except BaseException as error:  # A module may import more when it is asked for a name.
        raise _import_failed(error, module_name, name) from error
    return as_handler(function, name=name, contract=contract)


def as_handler(function: object, *, name: str, contract: str = "auto") -> LoadedHandler:
    """
    Take a function or a class for a handler.

    Args:
        function: the user's.
        name: for messages.
        contract: ``native``, ``event`` or ``auto``.

    Raises:
        HandlerNotLoaded: it is neither, cannot be called so, or is a generator function, whose
            body a call does not run; a class cannot be made, or has what is nearly a hook.

    """
    if inspect.isclass(function):
        return _as_class(function, name=name, contract=contract)
    if not callable(function):
        found = type(function).__name__
        raise _not_callable(f"handler {name}: it is a {found}, not a function or class; {ADVICE}")
    _refuse_generator(function, name=name)
    return LoadedHandler(function, _contract_of(function, contract, name=name), is_async(function))


def _as_class(found: type, *, name: str, contract: str) -> LoadedHandler:
    """Look at a class without making an object: that may reach out, and is the shard's."""
    methods = [key for key in dir(found) if callable(getattr(found, key)) and key[0] != "_"]
    where = _class_defined_in(found)
    check_names(methods, name=name, where=where)
    if abstract := sorted(getattr(found, "__abstractmethods__", ())):
        raise _not_callable(
            f"handler {name}: the class cannot be made, it is abstract: it lacks "
            f"{', '.join(abstract)}",
            where=where,
        )
    try:
        making = inspect.signature(found)
    except (TypeError, ValueError):  # A C extension tells nothing of itself.
        making = inspect.Signature()
    check_making(making, name=name, where=where)
    for method in (HANDLE, *Hook):
        if method in methods:
            _refuse_generator(_bound(found, method), name=f"{name}.{method}")
    for hook in Hook:
        if hook in methods:
            bound = _bound(found, hook)
            check_hook(hook, inspect.signature(bound), name=name, where=_defined_in(bound))
    handle = _bound(found, HANDLE)
    told = _contract_of(handle, contract, name=f"{name}.{HANDLE}")
    return LoadedHandler(found, told, is_async(handle), is_class=True)


def _class_defined_in(found: type) -> str:
    try:
        return f"{inspect.getsourcefile(found)}, line {inspect.getsourcelines(found)[1]}"
    except (OSError, TypeError):  # Made at run time, or not in Python.
        return ""


def _bound(found: type, method: str) -> Callable[..., Any]:
    """Return a method as an object would have it, its first parameter taken."""
    function: Callable[..., Any] = getattr(found, method)
    if inspect.isfunction(inspect.getattr_static(found, method)):
        return MethodType(function, found)
    return function


def _refuse_generator(function: Callable[..., Any], *, name: str) -> None:
    if _is(inspect.isgeneratorfunction, function) or _is(inspect.isasyncgenfunction, function):
        raise _not_callable(
            f"handler {name}: it is a generator function (it has a yield), which a call does not "
            "run; take the yield out",
            where=_defined_in(function),
        )


def is_async(function: Callable[..., Any]) -> bool:
    """Return whether it is a coroutine function, or an object whose call is one."""
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
    except KeyboardInterrupt:
        raise
    except BaseException as error:
        raise _import_failed(error, module_name, name) from error


def _import_failed(error: BaseException, module_name: str, name: str) -> HandlerNotLoaded:
    return HandlerNotLoaded(
        f"handler {name}: importing {module_name} failed with {type(error).__name__}: {error}",
        kind=FailureKind.IMPORT,
        where=_raised_in(error, module_name),
    )


def _raised_in(error: BaseException, module_name: str) -> str:
    """Return the user's last line before the error: behind it may be frames of packages."""
    if isinstance(error, SyntaxError) and error.filename:
        return f"{error.filename}, line {error.lineno}"
    place = place_in([own_code(module_name)], error)
    if place is None:
        last = traceback.extract_tb(error.__traceback__)[-1]
        return f"{last.filename}, line {last.lineno}"
    return f"{place[0]}, line {place[1]}"


def _defined_in(function: Callable[..., Any]) -> str:
    """Return where a function is defined; empty for what has no code of its own."""
    found = inspect.unwrap(function)
    code = getattr(getattr(found, "__func__", found), "__code__", None)
    return f"{code.co_filename}, line {code.co_firstlineno}" if code else ""


def _attribute(found: object, path: str, *, name: str) -> Any:
    for part in path.split("."):
        if not hasattr(found, part):
            import difflib  # noqa: PLC0415 - no start waits for what a slip needs

            owner = getattr(found, "__name__", type(found).__name__)
            names = [n for n in dir(found) if not n.startswith("_")]
            close = difflib.get_close_matches(part, names, n=3)
            hint = f"; did you mean {' or '.join(close)}?" if close else ""
            raise _not_found(f"handler {name}: {owner} has no {part!r}{hint}")
        found = getattr(found, part)
    return found


def _contract_of(function: Callable[..., Any], wanted: str, *, name: str) -> HandlerContract:
    try:
        signature = inspect.signature(function)
    except (TypeError, ValueError) as error:  # A builtin or a C extension tells nothing of itself.
        if wanted != "auto":
            return HandlerContract(wanted)
        raise _not_callable(
            f"handler {name}: its parameters are not known ({error}); {ADVICE}"
        ) from error
    return contract_of(signature, wanted, name=name, where=_defined_in(function))


def _is(kind: Callable[[Any], bool], function: Callable[..., Any]) -> bool:
    return kind(function) or kind(getattr(function, "__call__", None))  # noqa: B004 - the method
