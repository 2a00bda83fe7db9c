"""
The ledger: what each function of the fleet has used, by day (documents of the fleet state).

A document per day and writer, so that writers never meet; it expires by itself. What an invocation
that was killed had used is missing, and so is what the handler's own calls cost.
"""

from __future__ import annotations

from collections.abc import Collection
from contextlib import suppress
from datetime import UTC, datetime

import msgspec
from msgspec.structs import replace

from shardfleet.domain.cost.usage import DAY_MS, Consumption, LedgerPage
from shardfleet.engine.ports import StateStore, Written
from shardfleet.engine.state.documents import Documents
from shardfleet.engine.state.kinds import LEDGER
from shardfleet.errors import OutcomeUnknown, Throttled

KEPT_DAYS = 40
METRICS_MOST = 500  # names; an item of DynamoDB holds 400 KB
# Only a former invocation of the same writer can be in between.
_ROUNDS_MOST = 4
_NO_PAGE = LedgerPage(day="", writer="", used=Consumption(), metrics=frozenset())


def day_of(at_ms: int) -> str:
    """Return the day of a point in time, in UTC as AWS bills."""
    return datetime.fromtimestamp(at_ms / 1_000, UTC).strftime("%Y-%m-%d")


class Ledger:
    """The pages, as documents."""

    def __init__(self, store: StateStore | Documents) -> None:
        """Wrap the fleet-state table."""
        self._store = Documents.of(store)

    async def add(
        self, writer: str, used: Consumption, *, metrics: Collection[str], at_ms: int
    ) -> bool:
        """
        Add to today's page; return whether that was certainly done.

        It is a note for a person: without an answer it is not tried again, and never fails. A page
        that cannot be read is begun anew.
        """
        day = day_of(at_ms)
        kind = LEDGER.of_day(day)
        with suppress(Throttled, OutcomeUnknown):
            for _ in range(_ROUNDS_MOST):
                found = await self._store.get(kind, writer)
                page = (found and found.body) or _NO_PAGE
                page = replace(
                    page,
                    day=day,
                    writer=writer,
                    used=page.used + used,
                    metrics=frozenset(sorted({*page.metrics, *metrics})[:METRICS_MOST]),
                    began_ms=page.began_ms or at_ms,
                    until_ms=at_ms,
                )
                result = await self._store.raw.write(
                    kind,
                    writer,
                    msgspec.to_builtins(page),
                    expected_version=found.version if found else None,
                    expires_ms=at_ms + KEPT_DAYS * DAY_MS,
                )
                if isinstance(result, Written):
                    return True
        return False

    async def pages(self, *, at_ms: int, days: int = 1) -> list[LedgerPage]:
        """Read the pages of today and of the days before, oldest first (manager and CLI only)."""
        found: list[LedgerPage] = []
        for back in reversed(range(days)):
            day = day_of(at_ms - back * DAY_MS)
            pages = await self._store.bodies(LEDGER.of_day(day))
            found += [replace(page, day=day) for page in pages]
        return found
