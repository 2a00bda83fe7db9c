"""
From the construct's options to the configurations of worker and manager, checked at synth.

The very class that the functions read their environment with does the checking; what is deployed
appears in it as tokens, which are text.
"""

from __future__ import annotations

import difflib
from collections.abc import Mapping
from typing import Any

from aws_cdk import aws_lambda as lambda_
from aws_cdk import aws_stepfunctions as sfn
from msgspec.structs import replace

from shardfleet.config import FleetConfig
from shardfleet.domain.instants import instant_ms
from shardfleet.errors import ConfigurationError
from shardfleet_cdk.fleet_options import ExpertOptions, FleetOptions
from shardfleet_ops.cost.model import fan_out_per_month

ARGUMENT_OF = {
    **dict.fromkeys(FleetOptions.__annotations__, "config"),
    **dict.fromkeys(ExpertOptions.__annotations__, "experts"),
}
"""Which of the construct's arguments has an option."""

# What the construct sets itself, and where the user says it instead.
SET_BY_THE_CONSTRUCT = {
    "fleet": "`name`",
    "stream_arn": "`stream`",
    "consumer_arn": "`reading`",
    "spill": "`spill`",
    "lease_table": "`tables`",
    "state_table": "`tables`",
    "state_machine_arn": "the construct",
    "worker_function": "the construct",
    "handler": "`handler`",
    "handler_contract": "`handler`",
    "handler_function": "`handler`",
    "failed_queue_url": "`tables`",
    "failed_bucket": "`tables`",
    "failed_topic_arn": "`tables`",
}


_INSTANT = "initial_timestamp_ms"
# A manager runs most of its minute (hazard H13); its last turn has this long to end.
MANAGER_MARGIN_MS = 10_000


def options_of(config: FleetOptions, experts: ExpertOptions) -> dict[str, object]:
    """
    Return the options of both, by name; an instant that is a text, as in cdk.json, is read.

    Raises:
        ConfigurationError: lists every name that is no option, is the other argument's, or is set
            by the construct itself; an instant is none.

    """
    problems = []
    for argument, given in (("config", config), ("experts", experts)):
        for name in given:
            if name in SET_BY_THE_CONSTRUCT:
                problems.append(f"{name}: set by {SET_BY_THE_CONSTRUCT[name]}, not by `{argument}`")
            elif name not in ARGUMENT_OF:
                near = difflib.get_close_matches(name, ARGUMENT_OF, n=1)
                hint = f"; did you mean {near[0]}?" if near else ""
                problems.append(f"{name}: no such option{hint}")
            elif ARGUMENT_OF[name] != argument:
                problems.append(f"{name}: found in `{argument}`, set it in `{ARGUMENT_OF[name]}`")
    options: dict[str, object] = {**config, **experts}
    begin = options.get(_INSTANT)
    if isinstance(begin, str):
        try:
            options[_INSTANT] = instant_ms(begin)
        except ValueError as error:
            problems.append(f"{_INSTANT}: {error}")
    if problems:
        message = "configuration: " + "; ".join(problems)
        raise ConfigurationError(message)
    return options


def divided(options: Mapping[str, Any]) -> dict[str, Any]:
    """Return the options of `cdk.json`, where all stand together, as the construct's arguments."""
    experts = {name: value for name, value in options.items() if ARGUMENT_OF.get(name) == "experts"}
    return {"config": {n: v for n, v in options.items() if n not in experts}, "experts": experts}


def check_times(config: FleetConfig, *, worker_timeout_s: int, manager_timeout_s: int) -> None:
    """
    Refuse times that the functions' time-outs have no room for, and sleep that saves nothing.

    No handler call starts with less than its time-out left (hazard H10), so a handler allowed
    more than a turn would never run; and a manager cut off by Lambda keeps its turn lock.

    Raises:
        ConfigurationError: names the numbers.

    """
    problems = []
    box_ms = min(worker_timeout_s * 1000 - config.turn_margin_ms, config.max_turn_ms)
    if config.handler_timeout_ms > box_ms:
        problems.append(
            f"handler_timeout_ms: {config.handler_timeout_ms} found, at most {box_ms} allowed: "
            f"a turn lasts the worker's time-out ({worker_timeout_s} s) less turn_margin_ms "
            f"({config.turn_margin_ms}), and at most max_turn_ms ({config.max_turn_ms})"
        )
    run_ms = manager_timeout_s * 1000 - MANAGER_MARGIN_MS
    if config.manager_run_ms > run_ms:
        problems.append(
            f"manager_run_ms: {config.manager_run_ms} found, at most {run_ms} allowed: the "
            f"manager's time-out ({manager_timeout_s} s) less {MANAGER_MARGIN_MS} for its last turn"
        )
    elif config.max_manager_ms > run_ms:
        problems.append(
            f"max_wake_ms: {config.max_wake_ms} found, which keeps the manager busy for "
            f"{config.max_manager_ms} ms of each minute; at most {run_ms} allowed: its time-out "
            f"({manager_timeout_s} s) less {MANAGER_MARGIN_MS}"
        )
    if config.sleep and config.sleep_after_ms > box_ms // 2:
        problems.append(
            f"sleep_after_ms: {config.sleep_after_ms} found, at most {box_ms // 2} allowed: half "
            f"of a turn ({box_ms} ms), within which a shard is idle"
        )
    if config.sleep and config.consumer_arn:
        problems.append(
            "sleep: True found, False allowed where records are pushed (`reading`): for that a "
            f"shard costs ${fan_out_per_month(1):,.2f} a month, asleep or awake"
        )
    if problems:
        message = "configuration: " + "; ".join(problems)
        raise ConfigurationError(message)


def manager_config(
    config: FleetConfig, *, machine: sfn.StateMachine, worker: lambda_.Function
) -> FleetConfig:
    """Return what the manager is told: the worker's configuration, and where to start slots."""
    return replace(
        config,
        handler="",
        handler_contract="auto",
        handler_function="",
        state_machine_arn=machine.state_machine_arn,
        worker_function=worker.function_name,
    )
