"""
What the fleet state has of shards that are over: taken away as the look at all documents meets it.

Whoever has deleted the lease: this manager, a Java leader, a person. A worker may delete nothing
(hazard H19), so what it writes of its shards is the manager's to take away.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence

from shardfleet.domain.leases.cleanup import is_over
from shardfleet.domain.turn import TurnPlan
from shardfleet.engine.ports import Document, LeaseStore, StateStore
from shardfleet.engine.retry import Box, each_of
from shardfleet.engine.state.documents import read_as
from shardfleet.engine.state.kinds import GENERATION, OF_A_LEASE

# Whoever makes a lease anew raises its generation first, and then looks what comes again.
RAISED_MS = 3_600_000


async def sweep(
    documents: Sequence[Document],
    plan: TurnPlan,
    *,
    leases: LeaseStore,
    state: StateStore,
    box: Box,
) -> None:
    """
    Delete what was seen of shards that are over, unless it was written since.

    Args:
        documents: as they were seen, of any kind.
        plan: of the turn; its leases and listing are older than the documents.
        leases: looked into before anything is deleted.
        state: where the documents are.
        box: the time there is.

    Raises:
        BoxSpent, Throttled, OutcomeUnknown: the rest stays until it is seen again.

    """
    survey, finished = plan.snapshot.survey, plan.sync.finished
    known = {lease.lease_key for lease in plan.leases} | survey.unreadable.keys()
    known |= {each.lease_key for each in survey.foreign_leases}
    done = (plan.snapshot.finished if finished is None else finished) or frozenset()
    over: defaultdict[str, list[Document]] = defaultdict(list)
    for document in documents:
        if document.kind in OF_A_LEASE and not _is_fresh(document, plan.snapshot.at_ms):
            over[document.id].append(document)

    async def take_away(lease_key: str) -> None:
        if await leases.get(lease_key) is None:
            for each in over[lease_key]:
                await state.delete(each.kind, each.id, expected_version=each.version)

    wanted = sorted(
        key for key in over if is_over(key, leases=known, graph=plan.graph, finished=done)
    )
    await each_of(wanted, take_away, box=box)


def _is_fresh(document: Document, now_ms: int) -> bool:
    if document.kind != GENERATION:
        return False
    body = read_as(GENERATION, document).body
    return body is not None and now_ms - body.at_ms < RAISED_MS
