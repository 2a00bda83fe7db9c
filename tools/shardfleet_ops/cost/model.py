"""
What a fleet costs a month: everything that its stack makes, by list prices, from its settings.

Synthesis, `shardfleet cost`, `shardfleet migrate` and the pages say what this says, and `make cost`
holds it against what is counted at the services of the embedded AWS. It leaves out what the handler
itself calls, networks, and records put to the stream.
"""

from __future__ import annotations

from enum import StrEnum

from msgspec import Struct
from msgspec.structs import replace

from shardfleet.config import MANAGER_EVERY_MS, FleetConfig
from shardfleet.domain.cost.prices import PRICES, Prices
from shardfleet.domain.cost.usage import (
    DAYS_PER_MONTH,
    HOURS_PER_MONTH,
    TRANSITIONS_PER_TURN,
    Consumption,
    Costs,
    price_of,
)

_MONTH_S = HOURS_PER_MONTH * 3_600
# Metrics that a fleet writes, few or all of them: `adapters/telemetry/metrics.py`.
METRICS, ALL_METRICS = 10, 30
METRICS_ASLEEP, ALL_METRICS_ASLEEP = 3, 22
_METRICS_OF_SHARD = 3
_LEASE_KB = 0.4  # a lease's item, names of attributes included
# Counted by `make cost`, on the embedded AWS; a run is slower on Lambda, with a seventh of a core.
_RUN_MS = 1_000  # a run of the manager that does not stay: start, reads, planning
_READS_PER_TURN = 20  # of the manager: slots, sightings, loads, pauses, handovers, notes
_WRITES_PER_TURN = 6.5  # sightings, loads, the lock, the last plan
_WRITES_PER_TURN_AND_SHARD = 0.12
_EARLY = 15 / 16  # of the renewal time, when a lease is renewed
# Of a worker's turn, beside the lease's renewals: the slot is claimed and left, and each lease
# adopted, with what is noted of it, and stored at the end.
_READS_PER_WORKER_TURN, _READS_PER_ADOPTION = 9, 6.7
_WRITES_PER_WORKER_TURN, _WRITES_PER_ADOPTION = 6.5, 2.1
# Of log lines: Lambda's own of an invocation, the metrics of a manager's turn and of a worker's
# minute, and what a worker says of its turn.
_INVOCATION_BYTES, _TURN_BYTES, _TURN_BYTES_ASLEEP = 240, 560, 330
_MINUTE_BYTES, _MINUTE_BYTES_OF_LEASE = 570, 62
_WORKER_TURN_BYTES, _ADOPTION_BYTES = 560, 350
# Of both tables, while nothing changes: each change is kept for a week. A function has its ledger,
# of forty days, a process its slot and its signs of life.
_KEPT_BYTES, _KEPT_BYTES_OF_SHARD = 2_250, 1_290
_KEPT_BYTES_OF_FUNCTION, _KEPT_BYTES_OF_PROCESS = 40 * 420, 1_500
# Of a process in each third of the failover time: it looks at the offers, the processes and the
# leases, and shows that it lives; who does not lead looks at the lock that the leader prolongs.
_LOOKS_OF_PROCESS, _LOOKS_OF_STANDBY = 2.0, 1.0


class State(StrEnum):
    """
    What a fleet is doing.

    ``AWAKE``: all shards are read, and something moves, so that the manager stays. ``CALM``: all
    are read and nothing moves, as nearly always. ``ASLEEP``: all sleep.
    """

    AWAKE = "awake"
    CALM = "calm"
    ASLEEP = "asleep"


class StreamMode(StrEnum):
    """How a stream is billed; ``ADVANTAGE`` is the account's."""

    PROVISIONED = "PROVISIONED"
    ON_DEMAND = "ON_DEMAND"
    ADVANTAGE = "ADVANTAGE"


class Setup(Struct, frozen=True, kw_only=True):
    """
    What the model must know beside the configuration.

    Attributes:
        shards: open ones.
        workers: slots that run; None: as many as the shards need.
        worker_mb: memory of the worker function.
        manager_mb: memory of the manager function.
        worker_timeout_ms: of the worker function.
        mode: of the stream.
        alarm_metrics: metrics that the alarms watch, each of which is billed.
        composites: composite alarms.
        dashboards: how many.

    """

    shards: int
    workers: int | None = None
    worker_mb: int = 512
    manager_mb: int = 256
    worker_timeout_ms: int = 900_000
    mode: StreamMode = StreamMode.PROVISIONED
    alarm_metrics: int = 0
    composites: int = 0
    dashboards: int = 0


def workers_for(config: FleetConfig, shards: int) -> int:
    """Return how many slots so many shards need."""
    needed = -(-shards // config.leases_per_worker)
    return max(config.min_workers, min(needed, config.max_workers)) if shards else 0


def per_month(
    config: FleetConfig, setup: Setup, *, state: State = State.CALM, prices: Prices = PRICES
) -> Costs:
    """
    Return a month of a fleet, in dollars by item.

    Args:
        config: of the fleet.
        setup: what else there is.
        state: what it does all month.
        prices: list prices.

    """
    is_asleep = state is State.ASLEEP
    used = _of_manager(config, setup, state)
    workers = workers_for(config, setup.shards) if setup.workers is None else setup.workers
    if not is_asleep:
        used = sum((_of_worker(config, setup, workers) for _ in range(workers)), used)
        # Each looks whether the manager has died.
        looks = workers * _MONTH_S * 1_000 / config.failover_ms
        used += Consumption(read_tenths=round(looks * 10))
    metrics = METRICS_ASLEEP if is_asleep else METRICS
    if config.writes_all_metrics:
        metrics = ALL_METRICS_ASLEEP if is_asleep else ALL_METRICS
    if config.writes_shard_metrics and not is_asleep:
        metrics += setup.shards * _METRICS_OF_SHARD
    found = dict(price_of(used, metric_days=metrics * DAYS_PER_MONTH, prices=prices).by_item)
    found["storage"] = _kept_per_month(setup, prices, (1 + workers) * _KEPT_BYTES_OF_FUNCTION)
    found["alarms"] = (
        setup.alarm_metrics * prices.alarm_month + setup.composites * prices.composite_alarm_month
    )
    if config.consumer_arn:
        found["fan-out"] = fan_out_per_month(setup.shards, prices=prices)
    found["dashboard"] = setup.dashboards * prices.dashboard_month
    return Costs(found)


def processes_per_month(config: FleetConfig, setup: Setup, *, prices: Prices = PRICES) -> Costs:
    """
    Return a month of ``setup.workers`` processes of `shardfleet work`: what their tables cost.

    Where they run is not in it, and nothing else is billed: metrics go to their log.
    """
    processes = setup.workers or 1
    turns, ticks = _MONTH_S * 1_000 / config.cycle_ms, _MONTH_S * 1_000 / config.renew_ms
    used = sum((_of_worker(config, setup, processes) for _ in range(processes)), Consumption())
    scanned = max(1.0, setup.shards * _LEASE_KB / 4) * 0.5
    looks = ticks * processes * (_LOOKS_OF_PROCESS + scanned)
    looks += ticks * (processes - 1) * _LOOKS_OF_STANDBY
    # Prompts are read each second.
    reads = used.read_tenths / 10 + looks + _MONTH_S + turns * (_READS_PER_TURN + scanned)
    a_turn = _WRITES_PER_TURN + setup.shards * _WRITES_PER_TURN_AND_SHARD
    writes = used.write_tenths / 10 + ticks * (processes + 1) + turns * a_turn
    tables = Consumption(read_tenths=round(reads * 10), write_tenths=round(writes * 10))
    found = dict(price_of(tables, metric_days=0, prices=prices).by_item)
    found["storage"] = _kept_per_month(setup, prices, processes * _KEPT_BYTES_OF_PROCESS)
    return Costs({**found, "alarms": 0.0, "dashboard": 0.0})


def spilled_per_month(config: FleetConfig, setup: Setup, *, prices: Prices = PRICES) -> Costs:
    """
    Return a month of a stack that spills, while ``setup.workers`` processes carry all of it.

    Its manager is invoked each minute, and reads what the alarms watch; a process leads.
    """
    stack = per_month(config, replace(setup, workers=0), prices=prices).by_item
    tables = processes_per_month(config, setup, prices=prices).by_item["dynamodb"]
    return Costs({**stack, "dynamodb": stack["dynamodb"] + tables})


def _kept_per_month(setup: Setup, prices: Prices, each: int) -> float:
    kept = _KEPT_BYTES + setup.shards * _KEPT_BYTES_OF_SHARD + each
    return kept / 1e9 * prices.table_gb_month


def spark_per_month(cpu: float, memory_gb: float, prices: Prices = PRICES) -> float:
    """Return what workers of so many vCPU and GB cost that run all the time, dollars a month."""
    return HOURS_PER_MONTH * (cpu * prices.spark_cpu_hour + memory_gb * prices.spark_gb_hour)


def stream_per_month(
    shards: int,
    *,
    mode: StreamMode = StreamMode.PROVISIONED,
    gb_out: float = 0.0,
    prices: Prices = PRICES,
) -> float:
    """
    Return what the stream costs by being there and being read by one fleet, dollars a month.

    Args:
        shards: open ones; on demand they are not billed.
        mode: how it is billed.
        gb_out: what the fleet reads in a month; free of charge where shards are provisioned.
        prices: list prices.

    """
    match mode:
        case StreamMode.PROVISIONED:
            return shards * HOURS_PER_MONTH * prices.shard_hour
        case StreamMode.ON_DEMAND:
            return HOURS_PER_MONTH * prices.stream_hour + gb_out * prices.stream_gb_out
        case StreamMode.ADVANTAGE:
            return gb_out * prices.advantage_gb_out


def fan_out_per_month(shards: int, *, gb_out: float = 0.0, prices: Prices = PRICES) -> float:
    """
    Return what a registered consumer costs, subscribed or not, dollars a month.

    Args:
        shards: open ones.
        gb_out: what is pushed in a month.
        prices: list prices.

    """
    return shards * HOURS_PER_MONTH * prices.consumer_shard_hour + gb_out * prices.consumer_gb


def mapping_per_month(
    shards: int, *, busy: float, handler_mb: int, prices: Prices = PRICES
) -> float:
    """
    Return an event source mapping's functions, called once a second for each shard, dollars.

    Args:
        shards: of the stream; polling them is free of charge.
        busy: part of the time in which a shard's call runs, 0 to 1.
        handler_mb: memory of the function.
        prices: list prices.

    """
    gb_seconds = busy * handler_mb / 1_024 * prices.lambda_gb_second
    return shards * _MONTH_S * (gb_seconds + prices.lambda_request)


def fargate_per_month(
    tasks: int, *, cpu: float, memory_gb: float, prices: Prices = PRICES
) -> float:
    """Return tasks of the KCL on Fargate, arm64, that run all the time, dollars a month."""
    return tasks * HOURS_PER_MONTH * (cpu * prices.task_cpu_hour + memory_gb * prices.task_gb_hour)


def window_per_month(config: FleetConfig, *, prices: Prices = PRICES) -> float:
    """Return what each KB of a busy shard's window costs, written with its checkpoints, dollars."""
    # A checkpoint comes with a handler call, and calls with reads: 5 a second at most.
    every_ms = max(config.checkpoint_ms, config.busy_read_ms, 200)
    return _MONTH_S * 1_000 / every_ms * prices.table_write_unit


def _of_manager(config: FleetConfig, setup: Setup, state: State) -> Consumption:
    runs = _MONTH_S * 1_000 // MANAGER_EVERY_MS
    run_ms = min(config.manager_run_ms, MANAGER_EVERY_MS) if state is State.AWAKE else 0
    stay_ms = config.linger_ms if state is State.ASLEEP else run_ms
    turns = runs * max(1, -(-run_ms // config.cycle_ms))
    # Scans of the lease table: at each turn, and to see who does not renew (each third of the
    # failover time). Eventually consistent: half a unit for 4 KB.
    scans = max(turns, runs * run_ms * 3 // config.failover_ms)
    scanned = max(1.0, setup.shards * _LEASE_KB / 4) * 0.5
    # Prompts are read each second.
    reads = scans * scanned + runs * stay_ms / 1_000 + turns * _READS_PER_TURN
    writes = turns * (_WRITES_PER_TURN + setup.shards * _WRITES_PER_TURN_AND_SHARD)
    told = _TURN_BYTES_ASLEEP if state is State.ASLEEP else _TURN_BYTES
    return Consumption(
        mb_ms=runs * max(stay_ms, _RUN_MS) * setup.manager_mb,
        requests=runs,
        read_tenths=round(reads * 10),
        write_tenths=round(writes * 10),
        log_bytes=runs * _INVOCATION_BYTES + turns * told,
        scheduled_runs=runs,
    )


def _of_worker(config: FleetConfig, setup: Setup, workers: int) -> Consumption:
    leases = setup.shards / workers
    turn_ms = min(config.max_turn_ms, setup.worker_timeout_ms - config.turn_margin_ms)
    turns = _MONTH_S * 1_000 // max(1, turn_ms)
    ticks = _MONTH_S * 1_000 / config.renew_ms
    # A renewal stores progress, and a checkpoint renews: a lease is written by whichever is due
    # first. Renewals come a little early (`engine.ownership.checkpointer`).
    every_ms = min(config.renew_ms * _EARLY, max(1, config.checkpoint_ms))
    lease_writes = leases * _MONTH_S * 1_000 / every_ms
    # The slot record is read at each tick, and written with each third one.
    told = _MINUTE_BYTES + leases * _MINUTE_BYTES_OF_LEASE
    adopted = turns * (_READS_PER_WORKER_TURN + leases * _READS_PER_ADOPTION)
    stored = turns * (_WRITES_PER_WORKER_TURN + leases * _WRITES_PER_ADOPTION)
    return Consumption(
        mb_ms=_MONTH_S * 1_000 * setup.worker_mb,
        requests=turns,
        transitions=turns * TRANSITIONS_PER_TURN,
        read_tenths=round((ticks * 1.5 + adopted) * 10),
        write_tenths=round((lease_writes + ticks / 3 + stored) * 10),
        log_bytes=round(
            _MONTH_S * 1_000 / min(config.metrics_ms, turn_ms) * told
            + turns * (_INVOCATION_BYTES + _WORKER_TURN_BYTES + leases * _ADOPTION_BYTES)
        ),
    )
