"""
Deleting seals that no replay can need: a courtesy, which never ends a query.

A store that refuses is asked again, some times with pauses, because Spark waits for the commit.
What remains is deleted by a later commit: each deletes everything before a plan.
"""

from __future__ import annotations

import logging
from dataclasses import replace

from shardfleet_spark.offsets.plan_token import PlanToken
from shardfleet_spark.offsets.seals import SealStore
from shardfleet_spark.read.sealing import insist
from shardfleet_spark.read.shard_pages import FetchPorts

LOG = logging.getLogger(__name__)
# Old seals are deleted once in so many commits, not at each.
_EVERY = 10
# With pauses of 100 ms and twice that each time: a second and a half.
_ATTEMPTS = 5


class CleanUp:
    """
    Deletes the old seals of one query.

    Attributes:
        trouble: why the last deletion failed, for a person; empty if it did not.

    Args:
        store: of seals; None: there are none.
        ports: for pauses.
        retained: plans whose seals are kept.

    """

    def __init__(self, store: SealStore | None, ports: FetchPorts, *, retained: int) -> None:
        self.trouble = ""
        self._store = store
        self._ports = replace(ports, policy=replace(ports.policy, retry_attempts=_ATTEMPTS))
        self._retained = retained

    async def after(self, committed: PlanToken) -> None:
        """Delete what is older than the plans to keep, if it is time; a failure is told."""
        oldest, store = committed.number - self._retained, self._store
        if store is None or oldest <= 0 or committed.number % _EVERY:
            return
        try:
            await insist(lambda: store.delete_before(committed.sid, f"{oldest:010d}"), self._ports)
        except Exception as error:  # noqa: BLE001 - nothing that a query needs is at stake
            self.trouble = f"{type(error).__name__}: {error}"
            LOG.warning(
                "seals before plan %d could not be deleted, a later commit will try again: %s",
                oldest,
                self.trouble,
            )
        else:
            self.trouble = ""
