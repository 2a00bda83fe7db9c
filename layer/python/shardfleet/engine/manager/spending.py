"""
The regime: chosen by the manager from its ledger and the lag, kept in the fleet state.

Nothing is asked of any table by a fleet without a budget.
"""

from __future__ import annotations

from contextlib import suppress

from msgspec.structs import replace

from shardfleet.config import OVER_BUDGET, FleetConfig
from shardfleet.domain.cost.estimate import DAY_MS, LedgerPage, days_of, rate_per_day
from shardfleet.domain.cost.spending import Chosen, Regime, Spending, choose
from shardfleet.domain.reasons import Pause, reason_json, reason_of_json
from shardfleet.domain.sleep.pauses import Pauses
from shardfleet.engine.ports import Clock, EventSink, StateStore
from shardfleet.engine.state.documents import Documents
from shardfleet.engine.state.kinds import REGIME
from shardfleet.engine.state.ledger import Ledger
from shardfleet.engine.state.pauses import PauseRecord
from shardfleet.errors import OutcomeUnknown, Throttled
from shardfleet.events.cost import RegimeChosen

FLEET = "fleet"
BY_BUDGET = "the budget"  # who has paused the fleet, when it is paused for money


class RegimeRecord:
    """The one document about the regime."""

    def __init__(self, store: StateStore | Documents) -> None:
        """Wrap the fleet-state table."""
        self._store = Documents.of(store)

    async def read(self) -> Chosen | None:
        """Read what is in force; None before the first choice, without a budget, or unreadable."""
        found = await self._store.get(REGIME, FLEET)
        if found is None or (body := found.body) is None:
            return None
        return Chosen(name=body.name, reason=reason_of_json(body.reason), since_ms=body.since_ms)

    async def write(self, chosen: Chosen) -> None:
        """Keep what is in force (manager only; the turn lock makes it a single writer)."""
        found = await self._store.raw.read(REGIME, FLEET)
        body = {
            "name": chosen.name.value,
            "reason": reason_json(chosen.reason),
            "since_ms": chosen.since_ms,
        }
        version = found.version if found else None
        await self._store.raw.write(REGIME, FLEET, body, expected_version=version)


class RegimeKeeper:
    """Chooses, over the turns of one manager invocation."""

    def __init__(
        self, config: FleetConfig, *, store: StateStore | Documents, clock: Clock, events: EventSink
    ) -> None:
        """Nothing is read yet."""
        self._config = config
        self._store = store
        self._clock = clock
        self._events = events
        self._record = RegimeRecord(store)
        self._days: list[LedgerPage] | None = None
        self._chosen: Chosen | None = None

    @property
    def name(self) -> Regime:
        """Return what is in force."""
        return Regime.EAGER if self._chosen is None else self._chosen.name

    async def begin(self) -> None:
        """
        Read what is in force and what has been spent, once; without a budget nothing.

        Raises:
            Throttled: the table refused; the turn begins anew.

        """
        if not self._config.budget_cents_per_day or self._days is not None:
            return
        self._chosen = await self._record.read()
        pages = await Ledger(self._store).pages(at_ms=self._clock.now_ms(), days=2)
        self._days = days_of(pages)

    async def choose(self, lag_ms: int) -> None:
        """Choose by the greatest lag; a change is told and kept, and pauses are set by it."""
        if self._days is None:
            return
        now_ms = self._clock.now_ms()
        chosen = choose(self._spending(lag_ms, now_ms), self._chosen, now_ms=now_ms)
        if chosen == self._chosen:
            return
        with suppress(Throttled, OutcomeUnknown):
            await self._pause(chosen, now_ms)
            await self._record.write(chosen)
            self._chosen = chosen
            self._events.emit(RegimeChosen(regime=chosen.name.value, reason=chosen.reason))

    def _spending(self, lag_ms: int, now_ms: int) -> Spending:
        config, days = self._config, self._days or []
        today = now_ms // DAY_MS * DAY_MS
        is_spent_today = bool(days) and days[-1].until_ms >= today
        return Spending(
            lag_ms=lag_ms,
            objective_ms=config.lag_objective_ms,
            budget=config.budget_cents_per_day / 100,
            spent=days[-1].costs().total if is_spent_today else 0.0,
            rate=rate_per_day(days),
            day_left=1 - (now_ms - today) / DAY_MS,
            may_pause=OVER_BUDGET[config.over_budget],
        )

    async def _pause(self, chosen: Chosen, now_ms: int) -> None:
        """Pause the whole fleet for money, or take back that pause and no other."""
        mine = Pause(BY_BUDGET, now_ms, str(chosen.reason))

        def decide(pauses: Pauses) -> Pauses:
            """Leave alone what a person has set, in this very moment, too."""
            if chosen.name is Regime.PAUSED:
                return pauses if pauses.fleet else replace(pauses, fleet=mine)
            is_mine = pauses.fleet is not None and pauses.fleet.by == BY_BUDGET
            return replace(pauses, fleet=None) if is_mine else pauses

        await PauseRecord(self._store).change(decide)
