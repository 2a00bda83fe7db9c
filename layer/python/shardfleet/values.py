"""
Dataclasses whose methods are not generated while a module is imported.

The standard library compiles up to seven methods for a dataclass, which takes 0.8 ms where its
fields alone take 0.03; a worker loads two hundred, and needs half of them before its first read.
These have the same fields, and one ``__init__`` each, compiled when the first instance is made; the
other methods are shared. To `dataclasses.replace`, ``fields`` and ``asdict``, to ``match`` and to
type checkers they are dataclasses.
"""

from __future__ import annotations

import dataclasses
from operator import attrgetter
from reprlib import recursive_repr
from types import MemberDescriptorType
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable
    from dataclasses import dataclass
else:

    def dataclass(
        cls: type | None = None,
        /,
        *,
        frozen: bool = False,
        eq: bool = True,
        order: bool = False,
        **how: bool,
    ) -> Any:
        """Make a dataclass, as `dataclasses.dataclass` does; ``order`` is left to that one."""
        if order:
            return dataclasses.dataclass(cls, frozen=frozen, eq=eq, order=order, **how)

        def made(given: type) -> type:
            bare = dataclasses.dataclass(given, init=False, repr=False, eq=False, **how)
            for name, method in _methods(bare, frozen=frozen, eq=eq).items():
                if name not in given.__dict__:
                    setattr(bare, name, method)
            return bare

        return made if cls is None else made(cls)


__all__ = ["dataclass"]
_LEFT_OUT = object()  # what a factory makes has not been given


def _methods(cls: Any, *, frozen: bool, eq: bool) -> dict[str, Any]:
    methods: dict[str, Any] = {"__init__": _first_init(cls, frozen=frozen), "__repr__": _repr}
    compared = [field.name for field in dataclasses.fields(cls) if field.compare]
    values = attrgetter(*compared) if len(compared) > 1 else _few(compared)
    if eq:
        methods["__eq__"] = _equality(values)
        # As the standard library decides; a class that has an __eq__ of its own has None by then.
        if cls.__dict__.get("__hash__") is None:
            cls.__hash__ = (lambda self: hash(values(self))) if frozen else None
    if frozen:
        methods["__setattr__"], methods["__delattr__"] = _no_setattr, _no_delattr
        if "__slots__" in cls.__dict__:
            methods["__getstate__"], methods["__setstate__"] = _state, _set_state
    return methods


def _first_init(cls: Any, *, frozen: bool) -> Callable[..., None]:
    def __init__(self: Any, /, *args: Any, **given: Any) -> None:  # noqa: N807 - becomes one
        cls.__init__ = _init(cls, frozen=frozen)
        cls.__init__(self, *args, **given)

    return __init__


def _init(cls: Any, *, frozen: bool) -> Callable[..., None]:
    """Compile what takes a class's fields."""
    known: dict[str, Any] = {"_set": object.__setattr__, "_left_out": _LEFT_OUT}
    placed, named, lines = ["self"], ["*"], []
    for field in dataclasses.fields(cls):
        name, value = field.name, field.name
        default = ""
        if field.default is not dataclasses.MISSING:
            default, known[f"_default_{name}"] = f"=_default_{name}", field.default
        elif field.default_factory is not dataclasses.MISSING:
            default, known[f"_make_{name}"] = "=_left_out", field.default_factory
            value = f"_make_{name}() if {name} is _left_out else {name}"
        if not field.init:
            if not default:
                continue
            value = f"_default_{name}" if value == name else f"_make_{name}()"
        else:
            (named if field.kw_only else placed).append(name + default)
        slot = getattr(cls, name, None)
        if not frozen:
            lines.append(f"self.{name} = {value}")
        elif isinstance(slot, MemberDescriptorType):  # Half of what a look-up of the name takes.
            lines.append(f"_set_{name}(self, {value})")
            known[f"_set_{name}"] = slot.__set__
        else:
            lines.append(f"_set(self, {name!r}, {value})")
    if hasattr(cls, "__post_init__"):
        lines.append("self.__post_init__()")
    parameters = ", ".join(placed + (named if len(named) > 1 else []))
    exec(f"def __init__({parameters}):\n " + "\n ".join(lines or ["pass"]), known)  # noqa: S102 - names of fields alone
    made: Callable[..., None] = known["__init__"]
    made.__qualname__ = f"{cls.__qualname__}.__init__"
    return made


def _few(names: list[str]) -> Callable[[Any], tuple[Any, ...]]:
    return lambda self: tuple([getattr(self, name) for name in names])


def _equality(values: Callable[[Any], Any]) -> Callable[[Any, object], Any]:
    def __eq__(self: Any, other: object) -> Any:  # noqa: N807 - becomes one
        if other.__class__ is self.__class__:
            return values(self) == values(other)
        return NotImplemented

    return __eq__


@recursive_repr()
def _repr(self: Any) -> str:
    shown = [field.name for field in dataclasses.fields(self) if field.repr]
    told = ", ".join([f"{name}={getattr(self, name)!r}" for name in shown])
    return f"{self.__class__.__qualname__}({told})"


def _no_setattr(_self: Any, name: str, _value: object) -> None:
    raise dataclasses.FrozenInstanceError(f"cannot assign to field {name!r}")


def _no_delattr(_self: Any, name: str) -> None:
    raise dataclasses.FrozenInstanceError(f"cannot delete field {name!r}")


def _state(self: Any) -> list[Any]:
    return [getattr(self, field.name) for field in dataclasses.fields(self)]


def _set_state(self: Any, state: list[Any]) -> None:
    for field, value in zip(dataclasses.fields(self), state, strict=True):
        object.__setattr__(self, field.name, value)
