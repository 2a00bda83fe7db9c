"""What seeds draw: of each option which values, which commands, and what none does and why."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from shardfleet.config import FleetConfig, options

NOT_DRAWN: Mapping[str, tuple[str, ...]] = {
    "a name": (
        *("fleet", "stream_arn", "lease_table", "state_table", "state_machine_arn"),
        *("worker_function", "handler", "failed_queue_url", "kcl_metrics_table"),
        "kcl_state_table",
    ),
    "of an adapter: a simulated fleet has memory and virtual time": (
        *("stream_calls", "connection_idle_ms", "io_threads", "metrics_ms", "metrics"),
        *("otlp_endpoint", "log_errors", "read_bytes_per_s"),
    ),
    "how a user's code is called: by the runs with a handler of one's own": ("handler_contract",),
    "a function of one's own outlives the worker that has called it": ("handler_function",),
    "an aggregate that is delivered raw is no record that the ledger knows": (
        "max_aggregate_records",
        "max_aggregate_bytes",
    ),
    "what clocks differ by in a simulation is measured against it": (
        "clock_skew_ms",
        "start_allowance_ms",
    ),
    "how long a manager and a worker have in a simulation is measured against it": (
        "manager_run_ms",
        "turn_margin_ms",
        "idle_end_ms",
    ),
}
"""Options that are the same in each simulated fleet, by the reason."""

COMMANDS_NOT_DRAWN: Mapping[str, str] = {
    "acceptance": "it deploys a stack to an account",
    "work": "it is a process of a fleet, and no command to one",
}
"""Commands that write and that no person in a simulation runs, with the reason."""


def values_of(config: FleetConfig) -> dict[str, str]:
    """Return what a fleet is told, by option."""
    return {option.name: repr(getattr(config, option.name)) for option in options()}


def seeds_by_value(configs: Iterable[FleetConfig]) -> dict[str, dict[str, int]]:
    """Return in how many fleets each option has each of its values."""
    found: dict[str, dict[str, int]] = {option.name: {} for option in options()}
    for config in configs:
        for name, value in values_of(config).items():
            found[name][value] = found[name].get(value, 0) + 1
    return found
