"""
Patches to ministack: what each touches, and the check that it is all there before anything starts.

ministack is young and changes daily (design page on emulators, section 9), and we reach into
private names. Hence one pinned version, and a start-up that names what is missing instead of
failing somewhere in the middle.
"""

import importlib
import importlib.metadata
from collections.abc import Callable, Iterable
from dataclasses import dataclass

from shardfleet.errors import ShardfleetError
from shardfleet_local.aws.settings import ServerSettings

PINNED_VERSION = "1.5.33"
"""The one version of ministack whose private names these patches know."""


class MinistackMismatch(ShardfleetError):
    """ministack is absent, of another version, or lacks a private name that a patch needs."""


@dataclass(frozen=True, kw_only=True)
class Patch:
    """
    One correction of ministack.

    `gap` says what the stock version does, `touches` lists the names read or replaced as
    `module:attribute.attribute`, `apply` replaces them.
    """

    gap: str
    touches: tuple[str, ...]
    apply: Callable[[ServerSettings], None]


def missing_names(names: Iterable[str]) -> list[str]:
    """Return those of the `module:attribute` names that cannot be found, in order."""
    return [name for name in dict.fromkeys(names) if not _exists(name)]


def _exists(name: str) -> bool:
    module_name, _, path = name.partition(":")
    try:
        found: object = importlib.import_module(module_name)
        for part in path.split("."):
            found = getattr(found, part)
    except (ImportError, AttributeError):
        return False
    return True


def check(patches: Iterable[Patch]) -> None:
    """
    Make sure that ministack is the pinned one and has every name the patches touch.

    Raises MinistackMismatch, naming the version found and every missing name.
    """
    try:
        version = importlib.metadata.version("ministack")
    except importlib.metadata.PackageNotFoundError as error:
        raise MinistackMismatch(
            f"The embedded AWS needs ministack {PINNED_VERSION}, and it is not installed: "
            "pip install 'shardfleet[local]'"
        ) from error
    missing = missing_names(name for patch in patches for name in patch.touches)
    if version != PINNED_VERSION or missing:
        lacking = f"; it lacks {', '.join(missing)}" if missing else ""
        raise MinistackMismatch(
            f"The embedded AWS needs ministack {PINNED_VERSION} and found {version}{lacking}. "
            f"Install the pinned version: pip install ministack=={PINNED_VERSION}"
        )


def apply_all(patches: Iterable[Patch], settings: ServerSettings) -> None:
    """Check every patch first, then apply all of them in order."""
    chosen = tuple(patches)
    check(chosen)
    for patch in chosen:
        patch.apply(settings)
