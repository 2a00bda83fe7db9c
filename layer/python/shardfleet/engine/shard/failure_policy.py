"""
The failure policy of a worker: what becomes of records that failed for good.

This one does what a row of :data:`shardfleet.domain.delivery.policies.POLICIES` says. Another one
is a class that overrides it, made by the composition root instead.
"""

from __future__ import annotations

from collections.abc import Callable

from shardfleet.domain.delivery.policies import PolicyTerms
from shardfleet.engine.ports import DeadLetters, FailedRecords
from shardfleet.records import Record


class FailurePolicy:
    """
    One for all shards of a worker's turn.

    Attributes:
        terms: what it does, as data.
        admits: says whether the handler may get a record; None: it may get each.

    """

    admits: Callable[[Record], bool] | None = None

    def __init__(self, terms: PolicyTerms, dead_letters: DeadLetters | None = None) -> None:
        """Keep records at the destination of the terms by ``dead_letters``; None: nowhere."""
        self.terms = terms
        self._dead_letters = dead_letters

    async def give_up(self, failed: FailedRecords) -> str:
        """
        Do what is to be done about records that failed, or are not admitted.

        Returns:
            Where they are kept; "" for nowhere.

        Raises:
            ShardfleetError: it could not be done; it is tried again.

        """
        return await self._dead_letters.record(failed) if self._dead_letters else ""
