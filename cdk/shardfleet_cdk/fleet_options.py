"""
The options of a fleet, typed: an editor completes their names, and mypy refuses a wrong one.

They are the fields of :class:`shardfleet.config.FleetConfig` but for those that the construct sets;
a test compares them. What each is: docs/configuration.md.
"""

from __future__ import annotations

from typing import Literal, TypedDict


class FleetOptions(TypedDict, total=False):
    """What a fleet's owner decides."""

    initial_position: Literal["TRIM_HORIZON", "LATEST", "AT_TIMESTAMP"]
    initial_timestamp_ms: int
    on_trimmed: Literal["stop", "jump"]
    failover_ms: int
    leases_per_worker: int
    min_workers: int
    max_workers: int
    sleep: bool
    sleep_after_ms: int
    max_wake_ms: int
    idle_read_ms: int
    misrouted: Literal["deliver", "in-range", "kpl"]
    filters: str
    max_batch_records: int
    max_batch_bytes: int
    batch_window_ms: int
    tumbling_window_ms: int
    handler_timeout_ms: int
    parallelism: int
    handler_threads: int
    handler_records_per_second: int
    on_failure: Literal["retry", "bisect"]
    max_attempts: int
    max_record_age_ms: int
    on_exhausted: Literal["stop", "skip", "sqs", "s3", "sns"]
    max_crashes: int
    checkpoint: Literal["auto", "manual"]
    max_open_records: int
    max_open_bytes: int
    max_open_age_ms: int
    checkpoint_ms: int
    lag_objective_ms: int
    metrics: Literal["few", "all", "shards"]
    otlp_endpoint: str
    log_errors: bool


class ExpertOptions(TypedDict, total=False):
    """Paces, margins and thresholds of the fleet itself, which few fleets need to change."""

    cycle_ms: int
    manager_run_ms: int
    clock_skew_ms: int
    start_allowance_ms: int
    assignment: Literal["balanced", "count", "greedy"]
    kcl_leads: bool
    kcl_metrics_table: str
    kcl_state_table: str
    graceful_handover: bool
    handover_timeout_ms: int
    rebalance_turns: int
    rebalance_percent: int
    dampening_percent: int
    leases_to_acquire: int
    target_percent: int
    scale_down_ms: int
    spill_after_ms: int
    parent_poll_ms: int
    records_per_read: int
    busy_read_ms: int
    read_bytes_per_s: int
    retry_first_ms: int
    max_retry_ms: int
    max_aggregate_records: int
    max_aggregate_bytes: int
    turn_margin_ms: int
    max_turn_ms: int
    idle_end_ms: int
    stream_calls: Literal["wire", "boto3"]
    connection_idle_ms: int
    io_threads: int
    metrics_ms: int
