"""
A hand with a worker's role that writes nonsense into documents of the fleet state.

Somebody mends each after a while: what was there before is there again, unless the fleet has
written over it meanwhile.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

from shardfleet.engine.state.kinds import GONE, LANES, NAP, NOTE, SLOT, STOP, TIP, WINDOW
from shardfleet_testkit.memory import MemoryStateStore
from shardfleet_testkit.simulation.surroundings import Surroundings

# What a worker's role may write of what others read (cdk/shardfleet_cdk/permissions.py).
_KINDS = frozenset((SLOT, NOTE, STOP, LANES, WINDOW, TIP, NAP, GONE))
_MENDED_S = (5.0, 60.0)
# Fields that have one of a few words.
_WORDS = ("state", "kind", "reason")


def _extra(body: Mapping[str, Any], chance: random.Random) -> dict[str, Any]:
    return {**body, "of_the_next_release": chance.random()}


def _unknown(body: Mapping[str, Any], chance: random.Random) -> dict[str, Any]:
    # Another name in place of a name is no nonsense: nobody can know that it is a lie.
    known = [name for name in sorted(body) if name in _WORDS or not isinstance(body[name], str)]
    return {**body, chance.choice(known): "UNKNOWN"} if known else dict(body)


def _missing(body: Mapping[str, Any], chance: random.Random) -> dict[str, Any]:
    left_out = chance.choice(sorted(body))
    return {name: value for name, value in body.items() if name != left_out}


def _nonsense(body: Mapping[str, Any], chance: random.Random) -> dict[str, Any]:
    return {name: [chance.random(), {"x": None}] for name in sorted(body)}


_DAMAGES: tuple[Callable[[Mapping[str, Any], random.Random], dict[str, Any]], ...] = (
    _extra,
    _unknown,
    _missing,
    _nonsense,
)


class Spoiler:
    """One such hand, and whoever mends after it."""

    def __init__(self, around: Surroundings, store: MemoryStateStore) -> None:
        """Touch nothing yet."""
        self._around = around
        self._store = store
        self._chance = around.chance("spoiler")

    async def run(self) -> None:
        """Spoil a document now and then, until cancelled; each is mended anyway."""
        while True:
            await asyncio.sleep(1)
            if self._around.faults.strike("malformed_document"):
                self._spoil()

    def _spoil(self) -> None:
        known = sorted(
            key
            for key, document in self._store.documents.items()
            if key[0] in _KINDS and document.body and key not in self._around.spoilt
        )
        if not known:
            return
        key, damage = self._chance.choice(known), self._chance.choice(_DAMAGES)
        before = self._store.documents[key]
        body = damage(before.body, self._chance)
        self._around.log("spoiler", damage.__name__[1:], *key, body)
        version = before.version + 1
        self._store.documents[key] = replace(before, version=version, body=body)
        self._around.spoilt[key] = before.body
        self._around.spawn(self._mend(key, version), f"mend {key}")

    async def _mend(self, key: tuple[str, str], version: int) -> None:
        await asyncio.sleep(self._chance.uniform(1.0, self._chance.choice(_MENDED_S)))
        good = self._around.spoilt.pop(key, None)
        found = self._store.documents.get(key)
        if good is not None and found is not None and found.version == version:
            self._around.log("operator", "mends", *key)
            self._store.documents[key] = replace(found, version=version + 1, body=good)
