"""A face that costs nothing to import: what a name stands for is loaded when it is asked for."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping


def loaded_from(module: str, homes: Mapping[str, str]) -> Callable[[str], Any]:
    """
    Return a module's ``__getattr__``.

    Args:
        module: the module's name.
        homes: where each of its names is, by name.

    """

    def __getattr__(name: str) -> Any:  # noqa: N807 - becomes one
        if name not in homes:
            raise AttributeError(f"module {module!r} has no attribute {name!r}")
        return getattr(import_module(homes[name]), name)

    return __getattr__
