"""
A hand with a worker's role that writes nonsense into documents of the fleet state.

An operator mends each after a while by the code of ``shardfleet documents``, or drops what cannot
be mended, unless the fleet has written over it meanwhile; a lie that can be read is taken back.
Beside it a newer release has written documents: nobody needs to mend these.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable, Mapping
from typing import Any

from msgspec.structs import replace

from shardfleet.config import FleetConfig
from shardfleet.engine.state.documents import UnreadableDocument, read_as
from shardfleet.engine.state.kinds import (
    GONE,
    LANES,
    NAP,
    NOTE,
    SLOT,
    STOP,
    TIP,
    WINDOW,
    kind_of,
)
from shardfleet.errors import ProtocolError, ShardfleetError
from shardfleet_ops.operate.documents import DocumentWard, MendingFacts, may_be_mended
from shardfleet_testkit.memory import MemoryStateStore
from shardfleet_testkit.simulation.functions import Functions, Person
from shardfleet_testkit.simulation.surroundings import Surroundings

# What a worker's role may write of what others read (cdk/shardfleet_cdk/permissions.py).
_KINDS = frozenset((SLOT, NOTE, STOP, LANES, WINDOW, TIP, NAP, GONE))
_MENDED_S = (5.0, 60.0)
_AGAIN_S = 2.0
# Fields that have one of a few words.
_WORDS = ("state", "kind", "reason")


def _newer(body: Mapping[str, Any], chance: random.Random) -> dict[str, Any]:
    """Return what a newer release writes: more fields, at the top and in each reason in it."""

    def more(value: Any) -> Any:
        if not isinstance(value, Mapping):
            return value
        known = {name: more(each) for name, each in value.items()}
        return {**known, "of_the_next_release": [chance.random()]} if "kind" in value else known

    return {**more(body), "of_the_next_release": {"x": chance.random()}}


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
    _newer,
    _unknown,
    _missing,
    _nonsense,
)


class Spoiler:
    """One such hand, and whoever mends after it."""

    def __init__(
        self,
        around: Surroundings,
        functions: Functions,
        store: MemoryStateStore,
        *,
        config: FleetConfig,
    ) -> None:
        """Touch nothing yet."""
        self._around = around
        self._functions = functions
        self._store = store
        self._config = config
        self._chance = around.chance("spoiler")

    async def run(self) -> None:
        """Spoil a document now and then, until cancelled; each is mended anyway."""
        while True:
            await asyncio.sleep(1)
            if self._around.faults.strike("malformed_document"):
                self._spoil(self._chance.choice(_DAMAGES))

    def _spoil(self, damage: Callable[[Mapping[str, Any], random.Random], dict[str, Any]]) -> None:
        is_newer = damage is _newer
        known = sorted(
            key
            for key, document in self._store.documents.items()
            if (is_newer or key[0] in _KINDS) and document.body and key not in self._around.spoilt
        )
        if not known:
            return
        key = self._chance.choice(known)
        before = self._store.documents[key]
        body = damage(before.body, self._chance)
        self._around.log("spoiler", damage.__name__[1:], *key, body)
        if is_newer:
            self._store.documents[key] = replace(before, body=body)
            return
        version = before.version + 1
        self._store.documents[key] = replace(before, version=version, body=body)
        self._around.spoilt[key] = before.body
        if self._is_unreadable(key):
            self._around.ledger.spoilt.add("/".join(key))
        self._around.spawn(self._look_after(key, version), f"mend {key}")

    def _is_unreadable(self, key: tuple[str, str]) -> bool:
        document, kind = self._store.documents.get(key), kind_of(key[0])
        return bool(document and kind is not None and read_as(kind, document).reason)

    async def _look_after(self, key: tuple[str, str], version: int) -> None:
        await asyncio.sleep(self._chance.uniform(1.0, self._chance.choice(_MENDED_S)))
        while key in self._around.spoilt and self._is_unreadable(key):
            person = self._functions.person("documents")
            await self._functions.run_by(person, self._mend(person, "/".join(key)))
            await asyncio.sleep(_AGAIN_S)
        good, document = self._around.spoilt.pop(key, None), self._store.documents.get(key)
        if good is not None and document is not None and document.version == version:
            self._around.log("spoiler", "takes back", *key)
            self._store.documents[key] = replace(document, version=version + 1, body=good)

    async def _mend(self, person: Person, name: str) -> None:
        """Do what ``shardfleet documents`` does with ``--mend``, and with ``--drop`` else."""
        ward = DocumentWard(person.state.store)
        try:
            for document in await ward.unreadable():
                if document.name == name:
                    how = await self._mended(ward, document)
                    self._around.log(person.actor.name, how, document)
        except ShardfleetError as error:
            self._around.log(person.actor.name, "is refused", error)

    async def _mended(self, ward: DocumentWard, document: UnreadableDocument) -> str:
        # The numbers of a mended slot are of this clock, so it is as right as that of an operator,
        # and is looked at once the document was read, as the command does.
        now_ms = self._around.clock.now_ms()
        facts = MendingFacts(config=self._config, stream=None, now_ms=now_ms, person="operator")
        if may_be_mended(document):
            try:
                return "mends" if await ward.mend(document, facts) else "has not mended"
            except ProtocolError as error:
                self._around.log("operator", "is told", error)
        return "drops" if await ward.drop(document) else "has not dropped"
