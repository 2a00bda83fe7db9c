"""
What a fleet gives up, kept in memory: objects of a bucket, or messages of a queue.

What is kept is what the product's adapter writes, and a redrive reads it as the command does.
"""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Iterable, Sequence
from copy import copy
from functools import partial

from msgspec.structs import replace

from shardfleet.adapters.dead_letters import Invocation, invocation_record, object_key
from shardfleet.domain.delivery.policies import Destination, PolicyTerms
from shardfleet.engine.ports import Clock, FailedRecords
from shardfleet.errors import ConfigurationError
from shardfleet.records import Batch, Record
from shardfleet.runtime.handler_call import EventSource, kinesis_event
from shardfleet_ops.operate.given_up import GivenUp, RefusedDocument, given_up_of
from shardfleet_testkit.checkers import RunLedger, Violation
from shardfleet_testkit.memory_stream import MEMORY_STREAM_ARN
from shardfleet_testkit.simulation.actors import Actor
from shardfleet_testkit.simulation.surroundings import Surroundings
from shardfleet_testkit.simulation.user_handler import UserHandler, entry_of
from shardfleet_testkit.simulation.wire import Wire

_FUNCTION_ARN = "arn:aws:lambda:eu-central-1:123456789012:function:simulated"
_INVOCATION = Invocation(
    fleet="fleet",
    function_arn=_FUNCTION_ARN,
    request_id="simulated",
    as_event=partial(
        kinesis_event, source=EventSource.of(MEMORY_STREAM_ARN, function_arn=_FUNCTION_ARN)
    ),
)


class KeptElsewhere:
    """
    The ``DeadLetters`` port.

    Attributes:
        documents: texts, by where they are.

    """

    def __init__(self, terms: PolicyTerms, ledger: RunLedger) -> None:
        """Keep nothing yet; the ledger is told which records each document has."""
        self.documents: dict[str, str] = {}
        self._destination = terms.destination
        self._ledger = ledger
        self._sent = 0

    async def record(self, failed: FailedRecords) -> str:
        """Keep records in full; return where."""
        if self._destination is Destination.NOTHING:
            return ""
        self._sent += 1
        where = f"queue#{self._sent}"
        if self._destination is not Destination.QUEUE:
            where = f"s3://bucket/{object_key(failed, _INVOCATION)}"
        self.documents[where] = json.dumps(invocation_record(failed, _INVOCATION))
        self._ledger.kept[where] = [
            entry for record in failed.records if (entry := entry_of(record, self._ledger))
        ]
        return where


class RedrivenDocuments:
    """The ``KeptRecords`` port of one command."""

    def __init__(self, kept: KeptElsewhere, wire: Wire, *, around: Surroundings) -> None:
        """Reach what is kept over a wire."""
        self._kept = kept
        self._wire = wire
        self._around = around

    async def look(self) -> Sequence[GivenUp | RefusedDocument]:
        """Read all, their payloads aside."""

        async def work() -> Sequence[GivenUp]:
            found = [given_up_of(t, where=where) for where, t in self._kept.documents.items()]
            return [replace(each, payload="", etag=self._etag(each.where)) for each in found]

        return await self._wire.read("kept.look", work)

    async def take(self, document: GivenUp, *, within_s: int) -> GivenUp:
        """Read one anew."""
        del within_s

        async def work() -> GivenUp:
            self._must_be(document)
            return replace(
                given_up_of(self._kept.documents[document.where], where=document.where),
                etag=document.etag,
            )

        return await self._wire.read("kept.take", work, about=document.where)

    async def delete(self, document: GivenUp) -> None:
        """Delete it as it was read; what is gone already is."""

        async def work() -> None:
            if document.where in self._kept.documents:
                self._must_be(document)
                del self._kept.documents[document.where]
                entries = self._around.ledger.kept.pop(document.where)
                for deleted in self._around.seers["kept_deleted"]:
                    deleted(self._around.now_ms, where=document.where, entries=entries)

        await self._wire.write("kept.delete", work, about=document.where, may_repeat=True)

    async def leave(self, documents: Iterable[GivenUp | RefusedDocument]) -> None:
        """Nothing is hidden."""

    def _etag(self, where: str) -> str:
        return str(self._kept.documents.get(where))

    def _must_be(self, document: GivenUp) -> None:
        if self._etag(document.where) != document.etag:
            raise ConfigurationError(f"{document.where}: it is another by now")


class RedrivenHandler(UserHandler):
    """The ``HandlerRunner`` port of a redrive: what it handles is not in the order of a shard."""

    def __init__(
        self, actor: Actor, around: Surroundings, clock: Clock, *, overlaps: bool, is_manual: bool
    ) -> None:
        """Handle as any invocation does, with no checker to see that it has no lease."""
        unwatched = copy(around)
        unwatched.seers, unwatched.checkers = defaultdict(list), []
        super().__init__(actor, unwatched, clock, overlaps=overlaps, is_manual=is_manual)

    def _take_effect(self, batch: Batch, record: Record) -> None:
        del batch
        entry = entry_of(record, self._around.ledger)
        if entry is None or entry.data != record.data:
            text = f"{self._actor.name} was given {record}, which nobody put there"
            where = record.shard_id
            self._around.violated(Violation(self._around.now_ms, "NoRecordInvented", where, text))
            return
        if entry.kills:
            self._die(str(entry))
        entry.redriven += 1
