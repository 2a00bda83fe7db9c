"""EventBridge Scheduler in the embedded AWS: looked at each second, and at least once."""

import json
from collections.abc import Mapping
from typing import Any

from ministack.services import eventbridge, lambda_svc, scheduler

from shardfleet_local.aws.patches import Patch
from shardfleet_local.aws.settings import ServerSettings


def _tick(settings: ServerSettings) -> None:
    scheduler._SCHEDULE_TICK_INTERVAL = settings.schedule_tick_s


def _fire_as_often_as_told(settings: ServerSettings) -> None:
    """Scheduler delivers at least once: a target may be invoked twice for one time."""
    stock = eventbridge._invoke_target

    def invoke(target: Any, event: Mapping[str, Any], *rule_and_view: Any) -> None:
        is_schedule = event.get("Source") == "aws.scheduler"
        for _ in range(settings.behaviour.schedule_firings if is_schedule else 1):
            stock(target, event, *rule_and_view)

    eventbridge._invoke_target = invoke


def _invoke_lambda_asynchronously(_: ServerSettings) -> None:
    """Hand events to Lambda's queue, with its repeats and what it loses (facts E01, L10, L12)."""
    stock = eventbridge._dispatch_to_lambda

    def dispatch(arn: str, payload: str) -> None:
        func, config, _ = lambda_svc._get_func_record_for_ref(arn)
        if not func or not config:
            stock(arn, payload)
            return
        record = lambda_svc._execution_record_for_config(func, config)
        lambda_svc.invoke_async_with_retry(record, json.loads(payload))

    eventbridge._dispatch_to_lambda = dispatch


PATCHES = (
    Patch(
        gap="A schedule fires up to ten seconds late",
        touches=("ministack.services.scheduler:_SCHEDULE_TICK_INTERVAL",),
        apply=_tick,
    ),
    Patch(
        gap="A schedule fires exactly once each time",
        touches=("ministack.services.eventbridge:_invoke_target",),
        apply=_fire_as_often_as_told,
    ),
    Patch(
        gap="Schedules and rules invoke functions without Lambda's asynchronous settings",
        touches=(
            "ministack.services.eventbridge:_dispatch_to_lambda",
            "ministack.services.lambda_svc:_get_func_record_for_ref",
            "ministack.services.lambda_svc:_execution_record_for_config",
            "ministack.services.lambda_svc:invoke_async_with_retry",
        ),
        apply=_invoke_lambda_asynchronously,
    ),
)
"""What this module corrects in ministack."""
