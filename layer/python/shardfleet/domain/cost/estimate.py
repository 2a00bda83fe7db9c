"""
What a fleet costs: an estimate from its settings, and what it has used by its ledger, day by day.

The estimate is of list prices (:mod:`shardfleet.domain.cost.prices`) and of what the engine does by
design: how long functions run, how often leases are renewed and tables read. It leaves out what
the handler itself calls, and bytes sent over networks.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from msgspec import Struct, field
from msgspec.structs import astuple

from shardfleet.config import MANAGER_EVERY_MS, FleetConfig
from shardfleet.domain.cost.prices import PRICES, Prices

DAY_MS = 86_400_000
# A rate from less than this says more about the start than about the fleet.
RATE_LEAST_MS = 600_000
HOURS_PER_MONTH = 730
DAYS_PER_MONTH = HOURS_PER_MONTH / 24
_MONTH_S = HOURS_PER_MONTH * 3_600
# cdk/shardfleet_cdk/worker_definition.py: the task and the choice after it.
TRANSITIONS_PER_TURN = 2
# Metrics of the dimension `fleet` that a fleet in good health writes:
# `adapters/telemetry/metrics.py`.
METRICS = 27
_LEASE_KB = 0.4  # a lease's item, names of attributes included
_RUN_S = 1.0  # a run of the manager beside its waiting: start, reads, planning
# Measured on the embedded AWS; tests/domain/test_cost.py has the figures.
_READS_PER_TURN = 20  # of the manager: slots, sightings, loads, pauses, handovers, notes
_WRITES_PER_TURN = 6.5  # sightings, loads, the lock, the last plan
_WRITES_PER_TURN_AND_SHARD = 0.12
_READS_PER_WORKER_TURN = 4  # to claim the slot
_READS_PER_ADOPTION = 5  # of a lease at the beginning of a turn: the lease, notes, stops
_LOG_BYTES = 2_200  # of a turn of either, and of each minute's metrics of a worker


class Consumption(Struct, frozen=True, kw_only=True):
    """
    What was used, in whole units, so that a document can hold it.

    Attributes:
        mb_ms: Lambda: milliseconds of an invocation times its memory in MB.
        requests: Lambda: invocations.
        transitions: Step Functions: states entered.
        read_tenths: DynamoDB: read units, in tenths.
        write_tenths: DynamoDB: write units, in tenths.
        log_bytes: CloudWatch Logs: written by the functions themselves.
        scheduled_runs: EventBridge Scheduler.

    """

    mb_ms: int = 0
    requests: int = 0
    transitions: int = 0
    read_tenths: int = 0
    write_tenths: int = 0
    log_bytes: int = 0
    scheduled_runs: int = 0

    def __add__(self, other: Consumption) -> Consumption:
        """Return both together."""
        added = zip(astuple(self), astuple(other), strict=True)
        names = self.__struct_fields__
        return Consumption(
            **{name: mine + more for name, (mine, more) in zip(names, added, strict=True)}
        )


class Costs(Struct, frozen=True):
    """
    Dollars by what they are for.

    Attributes:
        by_item: name of the item to dollars.

    """

    by_item: Mapping[str, float] = field(default_factory=dict)

    @property
    def total(self) -> float:
        """Return the sum."""
        return sum(self.by_item.values())


def price_of(used: Consumption, *, metric_days: float, prices: Prices = PRICES) -> Costs:
    """
    Return what was used in dollars.

    Args:
        used: counted by the functions.
        metric_days: CloudWatch metrics times the days on which they were written.
        prices: list prices.

    """
    return Costs(
        {
            "lambda": used.mb_ms / 1_024_000 * prices.lambda_gb_second
            + used.requests * prices.lambda_request,
            "step_functions": used.transitions * prices.transition,
            "dynamodb": used.read_tenths / 10 * prices.table_read_unit
            + used.write_tenths / 10 * prices.table_write_unit,
            "metrics": metric_days * prices.metric_month / DAYS_PER_MONTH,
            "logs": used.log_bytes / 1_000_000_000 * prices.log_gb,
            "scheduler": used.scheduled_runs * prices.scheduled_run,
        }
    )


class Setup(Struct, frozen=True, kw_only=True):
    """
    What the estimate must know beside the configuration.

    Attributes:
        shards: open ones.
        workers: slots that run; None: as many as the shards need.
        worker_mb: memory of the worker function.
        manager_mb: memory of the manager function.
        worker_timeout_ms: of the worker function.
        alarms: how many there are; 0 without monitoring.
        dashboards: likewise.

    """

    shards: int
    workers: int | None = None
    worker_mb: int = 512
    manager_mb: int = 256
    worker_timeout_ms: int = 900_000
    alarms: int = 0
    dashboards: int = 0


def workers_for(config: FleetConfig, shards: int) -> int:
    """Return how many slots so many shards need."""
    needed = -(-shards // config.leases_per_worker)
    return max(config.min_workers, min(needed, config.max_workers)) if shards else 0


def per_month(config: FleetConfig, setup: Setup, prices: Prices = PRICES) -> Costs:
    """
    Estimate a month of an awake fleet whose shards all have records, in dollars.

    Args:
        config: of the fleet.
        setup: what else there is.
        prices: list prices.

    """
    workers = workers_for(config, setup.shards) if setup.workers is None else setup.workers
    of_workers = (_of_worker(config, setup, workers) for _ in range(workers))
    used = sum(of_workers, _of_manager(config, setup))
    found = dict(price_of(used, metric_days=METRICS * DAYS_PER_MONTH, prices=prices).by_item)
    found["monitoring"] = (
        setup.alarms * prices.alarm_month
        + (prices.composite_alarm_month if setup.alarms else 0)
        + setup.dashboards * prices.dashboard_month
    )
    return Costs(found)


def spark_per_month(cpu: float, memory_gb: float, prices: Prices = PRICES) -> float:
    """Return what workers of so many vCPU and GB cost that run all the time, dollars a month."""
    return HOURS_PER_MONTH * (cpu * prices.spark_cpu_hour + memory_gb * prices.spark_gb_hour)


def stream_per_month(shards: int, prices: Prices = PRICES) -> float:
    """Return what the stream's shards cost by themselves, records put not counted."""
    return shards * HOURS_PER_MONTH * prices.shard_hour


def asleep_per_month(config: FleetConfig, *, manager_mb: int, prices: Prices = PRICES) -> float:
    """Return what the manager costs of Lambda, alone, while all shards sleep, in dollars."""
    runs = _MONTH_S * 1_000 / MANAGER_EVERY_MS
    seconds = config.linger_ms / 1_000 + _RUN_S
    used = Consumption(mb_ms=round(runs * seconds * 1_000 * manager_mb), requests=round(runs))
    return price_of(used, metric_days=0, prices=prices).total


def window_per_month(config: FleetConfig, *, prices: Prices = PRICES) -> float:
    """Return what each KB of a busy shard's window costs, written with its checkpoints, dollars."""
    # A checkpoint comes with a handler call, and calls with reads: 5 a second at most.
    every_ms = max(config.checkpoint_ms, config.busy_read_ms, 200)
    return _MONTH_S * 1_000 / every_ms * prices.table_write_unit


def _of_manager(config: FleetConfig, setup: Setup) -> Consumption:
    runs = _MONTH_S * 1_000 // MANAGER_EVERY_MS
    run_ms = min(config.manager_run_ms, MANAGER_EVERY_MS)
    turns = runs * max(1, -(-run_ms // config.cycle_ms))
    # Scans of the lease table: at each turn, and to see who does not renew (each third of the
    # failover time). Eventually consistent: half a unit for 4 KB.
    scans = max(turns, runs * run_ms * 3 // config.failover_ms)
    scanned = max(1.0, setup.shards * _LEASE_KB / 4) * 0.5
    # Prompts are read each second.
    reads = scans * scanned + runs * run_ms / 1_000 + turns * _READS_PER_TURN
    writes = turns * (_WRITES_PER_TURN + setup.shards * _WRITES_PER_TURN_AND_SHARD)
    return Consumption(
        mb_ms=round(runs * (run_ms + _RUN_S * 1_000) * setup.manager_mb),
        requests=runs,
        read_tenths=round(reads * 10),
        write_tenths=round(writes * 10),
        log_bytes=turns * _LOG_BYTES,
        scheduled_runs=runs,
    )


def _of_worker(config: FleetConfig, setup: Setup, workers: int) -> Consumption:
    leases = setup.shards / workers
    turn_ms = min(config.max_turn_ms, setup.worker_timeout_ms - config.turn_margin_ms)
    turns = _MONTH_S * 1_000 // max(1, turn_ms)
    ticks = _MONTH_S * 1_000 / config.renew_ms
    # A checkpoint counts as a renewal, so a lease is written by whichever is more often.
    lease_writes = leases * _MONTH_S * 1_000 / min(config.renew_ms, max(1, config.checkpoint_ms))
    # The slot record is read at each tick, and written with each third one.
    adopted = turns * (_READS_PER_WORKER_TURN + leases * _READS_PER_ADOPTION)
    return Consumption(
        mb_ms=_MONTH_S * 1_000 * setup.worker_mb,
        requests=turns,
        transitions=turns * TRANSITIONS_PER_TURN,
        read_tenths=round((ticks * 1.5 + adopted) * 10),
        write_tenths=round((lease_writes + ticks / 3) * 10),
        log_bytes=round((_MONTH_S * 1_000 / config.metrics_ms + turns) * _LOG_BYTES),
    )


class LedgerPage(Struct, frozen=True, kw_only=True):
    """
    What one writer has used on one day, or all together.

    Attributes:
        day: UTC, e.g. ``2026-11-21``.
        writer: ``manager``, or a slot's id; "" all of them.
        used: so far.
        metrics: names of the CloudWatch metrics that were written.
        began_ms: end of the first invocation that wrote, epoch milliseconds.
        until_ms: end of the last one.

    """

    day: str
    writer: str
    used: Consumption
    metrics: frozenset[str]
    began_ms: int = 0
    until_ms: int = 0

    def __add__(self, other: LedgerPage) -> LedgerPage:
        """Return both together; each metric counts once."""
        return LedgerPage(
            day=self.day,
            writer="",
            used=self.used + other.used,
            metrics=self.metrics | other.metrics,
            began_ms=min(self.began_ms, other.began_ms),
            until_ms=max(self.until_ms, other.until_ms),
        )

    @property
    def covered_ms(self) -> int:
        """Return how much of the day the page covers."""
        return max(0, self.until_ms - self.began_ms)

    def costs(self, prices: Prices = PRICES) -> Costs:
        """Return dollars by item; CloudWatch bills a metric by the hour in which it is written."""
        metric_days = len(self.metrics) * min(1.0, self.covered_ms / DAY_MS)
        return price_of(self.used, metric_days=metric_days, prices=prices)


def days_of(pages: Iterable[LedgerPage]) -> list[LedgerPage]:
    """Return a page of the whole fleet for each day, oldest first."""
    days: dict[str, LedgerPage] = {}
    for page in pages:
        days[page.day] = days[page.day] + page if page.day in days else page
    return [days[day] for day in sorted(days)]


def rate_per_day(days: Sequence[LedgerPage], prices: Prices = PRICES) -> float | None:
    """Return dollars a day at the rate of the latest day that tells one; None: none does yet."""
    for day in reversed(days):
        if day.covered_ms >= RATE_LEAST_MS:
            return day.costs(prices).total * DAY_MS / day.covered_ms
    return None
