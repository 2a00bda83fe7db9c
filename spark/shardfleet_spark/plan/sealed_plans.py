"""
What was read by the plans of a query's offsets: said by the seal store, or by the offset itself.

Every offset that Spark hands to the driver is read here. A plan whose seals are elsewhere is none
that can be gone on from, whatever Spark asks about it: no store is named, or one that does not know
the plan. Its mark, which was put before Spark was told of the plan, says which store knows it.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from functools import partial
from typing import Any

from shardfleet_spark.offsets.plan_token import PlanToken, token_from_json
from shardfleet_spark.offsets.seals import (
    MARK,
    Seal,
    SealKey,
    SealStore,
    executed_seals,
    needed,
    noted_losses,
    seal_from_bytes,
    seal_to_bytes,
    unread_seal,
)
from shardfleet_spark.read.sealing import insist, lost_since
from shardfleet_spark.read.shard_pages import DataLost, FetchPorts

LOG = logging.getLogger(__name__)


class SealedPlans:
    """
    The plans of one query.

    Args:
        store: of seals; None: the offsets themselves say what was read.
        ports: the stream and the rest.
        run: whose plans need no word where a partition of theirs was never run.

    """

    def __init__(self, store: SealStore | None, ports: FetchPorts, *, run: str) -> None:
        self._store = store
        self._run = run
        self._ports = ports
        # The plan of a batch that tasks were told to read from the stream again.
        self._read_again = ""
        # The plan of a batch that is read anew, because its seals are gone.
        self._read_anew = ""

    def token_of(self, offset: Mapping[str, Any]) -> PlanToken:
        """
        Read an offset.

        Raises:
            UnreadableCheckpoint: the offset is none of ours.
            ConfigurationError: it needs a seal store, and none is named.

        """
        token = token_from_json(offset)
        if token.needs_store:
            needed(self._store)
        return token

    async def mark(self, planned: PlanToken) -> None:
        """Put the mark of a plan, before Spark is told of it."""
        key, store = SealKey(planned.sid, planned.key, MARK), needed(self._store)
        await insist(lambda: store.put_if_absent(key, b"{}"), self._ports)

    async def expect(self, token: PlanToken) -> None:
        """
        See that the store knows a plan which is to be repeated.

        Tasks that find no seals read anew: another batch under the same number, of which a sink
        that has the first one takes nothing.

        Raises:
            DataLost: it does not know the plan, and that stops the query.

        """
        if not token.needs_store:
            return
        key, store = SealKey(token.sid, token.key, MARK), needed(self._store)
        if await insist(lambda: store.get(key), self._ports) is not None:
            return
        self._miss(token)
        self._read_anew = token.key
        await self.mark(token)

    def read_again(self, token: PlanToken) -> None:
        """Take note that tasks read a batch from the stream that is sealed in its offset."""
        self._read_again = token.key

    async def executed(self, token: PlanToken) -> tuple[dict[int, Seal], list[str]]:
        """
        Return the seals of a committed plan by number, and what is to be told of it, for a person.

        What no task has sealed is closed here, unread: Spark had asked for none of those rows, and
        a task that comes later is bound to that.

        Raises:
            DataLost: they are gone, and that stops the query.
            UnreadableSeal: one is damaged, or of another version.

        """
        if token.sealed is not None:
            lost = []
            if token.key == self._read_again:
                told = [await lost_since(seal, token.stands, self._ports) for seal in token.sealed]
                lost = [text for texts in told for text in texts]
            return dict(enumerate(token.sealed)), lost
        if not token.needs_store:
            return {}, []
        store = needed(self._store)
        stored = await insist(lambda: store.read_plan(token.sid, token.key), self._ports)
        found, is_whole = executed_seals(stored, seals=len(token.groups))
        if not is_whole:
            self._miss(token)
        notes = noted_losses(stored)
        open_groups = [number for number in range(len(token.groups)) if number not in found]
        if not is_whole or token.key == self._read_anew:
            notes.append(_anew(token))
        elif open_groups and token.run != self._run:
            notes.append(_open(token, len(open_groups)))
        for number in open_groups:
            found[number] = await self._close(store, token, number)
        return found, notes

    async def _close(self, store: SealStore, token: PlanToken, number: int) -> Seal:
        key, seal = SealKey(token.sid, token.key, number), unread_seal(token.groups[number])
        put = partial(store.put_if_absent, key, seal_to_bytes(seal))
        return seal_from_bytes(await insist(put, self._ports))

    def _miss(self, token: PlanToken) -> None:
        if self._ports.policy.fail_on_data_loss:
            raise DataLost(
                f"the seals of plan {token.number} are not in the seal store that is named, so "
                "nobody knows what the query's last batch read. Either it is another store than "
                "before: name that one; or they are gone: a lifetime of the store ended them, or "
                "a query that has gone on from a copy of this checkpoint. Then begin with a new "
                "checkpoint location, and startingPosition where the sink stands"
            )
        LOG.warning("%s", _anew(token))


def _open(token: PlanToken, count: int) -> str:
    return (
        f"plan {token.number}, which an earlier run of the query made, has no seal of {count} of "
        f"its {len(token.groups)} parts: either nobody asked for their rows, which come now, or "
        "these seals are gone, and their rows come twice"
    )


def _anew(token: PlanToken) -> str:
    return (
        f"the seals of plan {token.number} are gone, so its batch is read again: its rows come "
        "twice, or, from a sink that passes over a batch which it has, some not at all"
    )
