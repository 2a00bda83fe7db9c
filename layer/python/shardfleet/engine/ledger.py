"""
The ledger: what each function of the fleet has used, by day (documents of the fleet state).

A document per day and writer, so that writers never meet; it expires by itself. What an invocation
that was killed had used is missing, and so is what the handler's own calls cost.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from contextlib import suppress
from dataclasses import dataclass, fields
from datetime import UTC, datetime
from typing import Any

from shardfleet.domain.cost import NOTHING, Consumption
from shardfleet.engine.ports import StateStore, Written
from shardfleet.errors import OutcomeUnknown, Throttled

LEDGER = "ledger"
KEPT_DAYS = 40
METRICS_MOST = 500  # names; an item of DynamoDB holds 400 KB
_DAY_MS = 86_400_000
# Only a former invocation of the same writer can be in between.
_ROUNDS_MOST = 4


@dataclass(frozen=True, slots=True, kw_only=True)
class LedgerPage:
    """
    What one writer has used on one day.

    Attributes:
        day: UTC, e.g. ``2026-11-21``.
        writer: ``manager``, or a slot's id.
        used: so far.
        metrics: names of the CloudWatch metrics that it has written.

    """

    day: str
    writer: str
    used: Consumption
    metrics: frozenset[str]


def day_of(at_ms: int) -> str:
    """Return the day of a point in time, in UTC as AWS bills."""
    return datetime.fromtimestamp(at_ms / 1_000, UTC).strftime("%Y-%m-%d")


class Ledger:
    """The pages, as documents."""

    def __init__(self, store: StateStore) -> None:
        """Wrap the fleet-state table."""
        self._store = store

    async def add(
        self, writer: str, used: Consumption, *, metrics: Collection[str], at_ms: int
    ) -> bool:
        """
        Add to today's page; return whether that was certainly done.

        It is a note for a person: without an answer it is not tried again, and never fails.
        """
        day = day_of(at_ms)
        name = f"{day}/{writer}"
        with suppress(Throttled, OutcomeUnknown):
            for _ in range(_ROUNDS_MOST):
                found = await self._store.read(LEDGER, name)
                page = _page(name, found.body) if found else _page(name, {})
                names = sorted({*page.metrics, *metrics})[:METRICS_MOST]
                result = await self._store.write(
                    LEDGER,
                    name,
                    _body(page.used + used, names),
                    expected_version=found.version if found else None,
                    expires_ms=at_ms + KEPT_DAYS * _DAY_MS,
                )
                if isinstance(result, Written):
                    return True
        return False

    async def pages(self) -> list[LedgerPage]:
        """Read all pages, oldest first (manager and CLI only)."""
        return [_page(document.id, document.body) for document in await self._store.list(LEDGER)]


def _page(name: str, body: Mapping[str, Any]) -> LedgerPage:
    day, _, writer = name.partition("/")
    known = {f.name for f in fields(Consumption)}
    used = {key: int(value) for key, value in body.get("used", {}).items() if key in known}
    return LedgerPage(
        day=day,
        writer=writer,
        used=NOTHING + Consumption(**used),
        metrics=frozenset(body.get("metrics", ())),
    )


def _body(used: Consumption, metrics: list[str]) -> dict[str, Any]:
    return {"used": {f.name: getattr(used, f.name) for f in fields(used)}, "metrics": metrics}
