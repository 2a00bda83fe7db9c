"""
Deleting seals that no replay can need: a courtesy, which never ends a query.

A run deletes what it made itself and saw committed, and nothing else: a copy of the checkpoint, an
older restore or a run before may still stand where any other seal is needed. What a run leaves goes
by the store's own lifetime.

A store that refuses is asked again, some times with pauses, because Spark waits for the commit.
What remains is deleted by a later commit.
"""

from __future__ import annotations

import logging
from collections import deque
from dataclasses import replace

from shardfleet_spark.offsets.plan_token import PlanToken
from shardfleet_spark.offsets.seals import MARK, SealKey, SealStore
from shardfleet_spark.read.sealing import insist
from shardfleet_spark.read.shard_pages import FetchPorts

LOG = logging.getLogger(__name__)
# Old seals are deleted once in so many commits, not at each.
_EVERY = 10
# With pauses of 100 ms and twice that each time: a second and a half.
_ATTEMPTS = 5
# Seals that wait for a store which refuses to delete; more are left to its lifetime.
_WAITING_MOST = 100_000


class CleanUp:
    """
    Deletes the old seals of one run of a query.

    Attributes:
        trouble: why the last deletion failed, for a person; empty if it did not.

    Args:
        store: of seals; None: there are none.
        ports: for pauses.
        run: whose plans these are.
        retained: plans whose seals are kept.

    """

    def __init__(
        self, store: SealStore | None, ports: FetchPorts, *, run: str, retained: int
    ) -> None:
        self.trouble = ""
        self._store = store
        self._ports = replace(ports, policy=replace(ports.policy, retry_attempts=_ATTEMPTS))
        self._run = run
        self._retained = retained
        # The seals of each plan that is kept, the oldest first, and those to be deleted.
        self._kept: deque[tuple[SealKey, ...]] = deque()
        self._old: deque[SealKey] = deque(maxlen=_WAITING_MOST)

    async def after(self, committed: PlanToken) -> None:
        """Delete what is older than the plans to keep, if it is time; a failure is told."""
        store = self._store
        if store is None or committed.run != self._run or not committed.needs_store:
            return
        keys = _seals_of(committed)
        if keys not in self._kept:
            self._kept.append(keys)
        # Spark's commit lags a batch behind.
        while len(self._kept) > self._retained + 1:
            self._old.extend(self._kept.popleft())
        if not self._old or committed.number % _EVERY:
            return
        try:
            await insist(lambda: store.delete(tuple(self._old)), self._ports)
        except Exception as error:  # noqa: BLE001 - nothing that a query needs is at stake
            self.trouble = f"{type(error).__name__}: {error}"
            LOG.warning(
                "%d old seals could not be deleted, a later commit will try again: %s",
                len(self._old),
                self.trouble,
            )
        else:
            self.trouble = ""
            self._old.clear()


def _seals_of(token: PlanToken) -> tuple[SealKey, ...]:
    numbers = (*range(len(token.groups)), MARK)
    return tuple(SealKey(token.sid, token.key, number) for number in numbers)
