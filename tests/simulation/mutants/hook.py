"""
Importing the engine with a bug in it, without a change to any file.

For the life of a process, modules that a mutant edits are compiled from their edited source; no
compiled file is read or written for them.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from importlib.machinery import ModuleSpec, PathFinder, SourceFileLoader
from types import CodeType, ModuleType

from tests.simulation.mutants.mutant import Mutant, mutated


class _Loader(SourceFileLoader):
    def __init__(self, name: str, path: str, mutant: Mutant) -> None:
        super().__init__(name, path)
        self._mutant = mutant

    def get_code(self, fullname: str) -> CodeType:
        text = self.get_data(self.path).decode("utf-8")
        return compile(mutated(fullname, text, self._mutant.edits), self.path, "exec")


class _Finder:
    """Finds the modules that a mutant edits."""

    def __init__(self, mutant: Mutant) -> None:
        self._mutant = mutant
        self._modules = {edit.module for edit in mutant.edits}

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        if fullname not in self._modules:
            return None
        spec = PathFinder.find_spec(fullname, path, target)
        if spec is not None and spec.origin is not None:
            spec.loader = _Loader(fullname, spec.origin, self._mutant)
        return spec


def infect(mutant: Mutant) -> None:
    """
    Let this process import the engine with the bug.

    Raises:
        RuntimeError: a module that is to be edited has been imported already.

    """
    early = sorted(edit.module for edit in mutant.edits if edit.module in sys.modules)
    if early:
        message = f"imported before the mutant {mutant.name!r} could edit it: {', '.join(early)}"
        raise RuntimeError(message)
    sys.meta_path.insert(0, _Finder(mutant))  # type: ignore[arg-type]
