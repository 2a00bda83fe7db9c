"""
Which code is the user's own: what lies in the handler's folder and is no package put there.

A traceback ends where an error was made, mostly inside a library; the line that a person can mend
is the last one of their own. On Lambda both lie in one folder (`/var/task`): what pip has put there
says so itself (`*.dist-info/RECORD`, PEP 376).
"""

from __future__ import annotations

import importlib.util
import traceback
from collections.abc import Iterable
from contextlib import suppress
from functools import lru_cache
from pathlib import Path
from types import FrameType

from msgspec import Struct

_LIBRARY = Path(__file__).parents[1]
_STANDARD_LIBRARY = Path(traceback.__file__).parent
_FOLDERS_OF_PACKAGES = frozenset({"site-packages", "dist-packages"})


class OwnCode(Struct, frozen=True):
    """
    The user's own files.

    Attributes:
        tops: the handler's own package or module, wherever it lies.
        folder: in which it lies.
        installed: names in that folder that belong to installed packages.

    """

    tops: tuple[Path, ...]
    folder: Path
    installed: frozenset[str]

    def has(self, filename: str) -> bool:
        """Return whether a file, as a code object names it, is the user's own."""
        if filename.startswith("<"):  # <string>, <frozen importlib._bootstrap>
            return False
        file = Path(filename)
        if any(file.is_relative_to(top) for top in self.tops):
            return True
        if not file.is_relative_to(self.folder):
            return False
        if file.is_relative_to(_LIBRARY) or file.is_relative_to(_STANDARD_LIBRARY):
            return False
        parts = file.relative_to(self.folder).parts
        return parts[0] not in self.installed and _FOLDERS_OF_PACKAGES.isdisjoint(parts)


@lru_cache(maxsize=8)
def own_code(module_name: str) -> OwnCode | None:
    """Return the code of a handler's module; None where nothing is known of its files."""
    top, spec = module_name.partition(".")[0], None
    with suppress(ImportError, ValueError):  # It has none: it was made at run time.
        spec = importlib.util.find_spec(top)
    if spec is None:
        return None
    tops = tuple(Path(folder) for folder in spec.submodule_search_locations or ())
    if not tops and spec.has_location and spec.origin:
        tops = (Path(spec.origin),)
    if not tops:
        return None
    return OwnCode(tops, tops[0].parent, _installed_in(tops[0].parent))


def _installed_in(folder: Path) -> frozenset[str]:
    # Until something fails nobody asks, and it takes as long to load as a twentieth of all.
    from importlib import metadata  # noqa: PLC0415

    return frozenset(
        line.partition(",")[0].partition("/")[0].strip('"')
        for package in metadata.distributions(path=[str(folder)])
        for line in (package.read_text("RECORD") or "").splitlines()
    )


def place_in(own: Iterable[OwnCode | None], error: BaseException) -> tuple[str, int, str] | None:
    """Return file, line and function of the last frame of the user's own code, if there is one."""
    return place_among(own, reversed(list(traceback.walk_tb(error.__traceback__))))


def place_among(
    own: Iterable[OwnCode | None], inmost_first: Iterable[tuple[FrameType, int]]
) -> tuple[str, int, str] | None:
    """Return file, line and function of the inmost frame of the user's own code, if there is."""
    known = [each for each in own if each]
    for frame, line in inmost_first:
        if any(each.has(frame.f_code.co_filename) for each in known):
            return frame.f_code.co_filename, line, frame.f_code.co_name
    return None
