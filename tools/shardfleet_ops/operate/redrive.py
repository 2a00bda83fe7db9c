"""
What was given up goes through the handler again: each shard's in order, and deleted once handled.

A document that fails holds what comes behind it of its own shard, as a record does in a stream; it
and they are left where they are. Whatever is cut off in between comes again: a document is deleted
only after its handler call has succeeded.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from typing import Any, Protocol

from msgspec import Struct

from shardfleet.engine.ports import HandlerResult
from shardfleet.errors import ShardfleetError
from shardfleet_ops.operate.given_up import GivenUp, RefusedDocument, by_shard, event_of

Handle = Callable[[Mapping[str, Any]], Awaitable[HandlerResult]]
"""Calls the deployed handler with an event."""


class KeptRecords(Protocol):
    """What was given up, in one place; every call may raise a ShardfleetError."""

    async def look(self) -> Sequence[GivenUp | RefusedDocument]:
        """Return what is there, without payloads, and what is nothing of the kind."""

    async def take(self, document: GivenUp, *, within_s: int) -> GivenUp:
        """Return a document with its payload, nobody else's for so long."""

    async def delete(self, document: GivenUp) -> None:
        """Delete what was taken and handled, unless it is another by now."""

    async def leave(self, documents: Iterable[GivenUp | RefusedDocument]) -> None:
        """Let others have what was not handled."""


class Redriven(Struct, frozen=True, kw_only=True):
    """
    What became of a shard's documents.

    Attributes:
        shard_id: the shard.
        records: how many were handled, and deleted with their documents.
        left: how many documents are left.
        where: the first of these.
        error: why it is.

    """

    shard_id: str
    records: int
    left: int = 0
    where: str = ""
    error: str = ""


async def redrive(
    documents: Iterable[GivenUp], *, kept: KeptRecords, handle: Handle, within_s: int
) -> list[Redriven]:
    """
    Hand documents over, shard after shard.

    Args:
        documents: see :meth:`KeptRecords.look`.
        kept: where they are.
        handle: the handler.
        within_s: how long a call may take.

    """
    shards = by_shard(documents)
    return [
        await _redrive_shard(shard_id, own, kept=kept, handle=handle, within_s=within_s)
        for shard_id, own in shards.items()
    ]


async def _redrive_shard(
    shard_id: str,
    documents: Sequence[GivenUp],
    *,
    kept: KeptRecords,
    handle: Handle,
    within_s: int,
) -> Redriven:
    records = 0
    for index, document in enumerate(documents):
        error = await _redrive_one(document, kept=kept, handle=handle, within_s=within_s)
        if error is not None:
            left = documents[index:]
            await kept.leave(left)
            return Redriven(
                shard_id=shard_id,
                records=records,
                left=len(left),
                where=document.where,
                error=error,
            )
        records += document.count
    return Redriven(shard_id=shard_id, records=records)


async def _redrive_one(
    document: GivenUp, *, kept: KeptRecords, handle: Handle, within_s: int
) -> str | None:
    """Hand one document over and delete it; return what went wrong."""
    try:
        taken = await kept.take(document, within_s=within_s)
        result = await handle(event_of(taken))
        if result.error is not None or result.done_count < taken.count:
            return result.error or f"{result.done_count} of {taken.count} records were handled"
        await kept.delete(taken)
    except ShardfleetError as error:
        return str(error)
    return None
