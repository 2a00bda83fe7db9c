"""A face that costs nothing to import: what a name stands for is loaded when it is asked for."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping


class ExtraMissing(ModuleNotFoundError):
    """A face needs a package that is not installed; the message names the extra that has it."""

    def __init__(self, face: str, package: str | None, extra: str) -> None:
        message = f"{face} needs {package}: pip install 'shardfleet[{extra}]'"
        super().__init__(message, name=package)


def loaded_from(module: str, homes: Mapping[str, str], *, extra: str = "") -> Callable[[str], Any]:
    """
    Return a module's ``__getattr__``, which raises ExtraMissing where a package is not installed.

    Args:
        module: the module's name.
        homes: where each of its names is, by name.
        extra: what has the packages that they need; empty: they need none.

    """

    def __getattr__(name: str) -> Any:  # noqa: N807 - becomes one
        if name not in homes:
            raise AttributeError(f"module {module!r} has no attribute {name!r}")
        try:
            return getattr(import_module(homes[name]), name)
        except ModuleNotFoundError as error:
            if not extra:
                raise
            raise ExtraMissing(module, error.name, extra) from None

    return __getattr__
