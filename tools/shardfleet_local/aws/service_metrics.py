"""
Metrics that services report of their own accord, and that ministack does not: what alarms look at.

Names, dimensions and meanings are those of the services' guides: Step Functions' executions per
state machine, SQS's depth and age per queue, Lambda's concurrent executions per function, and
EventBridge Scheduler's dead letters.
"""

import json
import logging
import threading
import time
from collections import Counter
from collections.abc import Iterable, Mapping
from typing import Any

from ministack.core.arn import ArnParseError, parse_arn
from ministack.core.responses import request_scope
from ministack.services import cloudwatch, eventbridge, lambda_svc, sqs, stepfunctions

from shardfleet_local.aws.patches import Patch
from shardfleet_local.aws.settings import ServerSettings

EXECUTION_METRICS = {
    "RUNNING": "ExecutionsStarted",
    "SUCCEEDED": "ExecutionsSucceeded",
    "FAILED": "ExecutionsFailed",
    "TIMED_OUT": "ExecutionsTimedOut",
    "ABORTED": "ExecutionsAborted",
}
"""AWS/States: the metric that counts a change to this status."""

QUEUE_LOOK_S = 2.0  # ours
"""Seconds between two looks at the queues; SQS reports each minute."""

logger = logging.getLogger("shardfleet_local.aws.service_metrics")


def queue_metrics(messages: Iterable[Mapping[str, Any]], now: float) -> dict[str, float]:
    """Return AWS/SQS's metrics of a queue with these messages, ages in seconds."""
    messages = list(messages)
    visible = [message for message in messages if message["visible_at"] <= now]
    oldest = min((message["sent_at"] for message in messages), default=now)
    return {
        "ApproximateNumberOfMessagesVisible": len(visible),
        "ApproximateNumberOfMessagesNotVisible": len(messages) - len(visible),
        "ApproximateAgeOfOldestMessage": now - oldest,
    }


def _report_queues(_: ServerSettings) -> None:
    def look() -> None:
        while True:
            time.sleep(QUEUE_LOOK_S)
            for (account_id, region, _), queue in list(sqs._queues._data.items()):
                with request_scope(account_id, region):
                    for name, value in queue_metrics(queue["messages"], time.time()).items():
                        unit = "Seconds" if "Age" in name else "Count"
                        dimensions = {"QueueName": queue["name"]}
                        cloudwatch.record_metric("AWS/SQS", name, value, unit, dimensions)

    threading.Thread(target=look, name="queue-metrics", daemon=True).start()


def _report_executions(_: ServerSettings) -> None:
    stock = stepfunctions._emit_execution_status_event

    def emit(execution: Mapping[str, Any]) -> None:
        stock(execution)
        metric = EXECUTION_METRICS.get(execution["status"])
        if metric:
            dimensions = {"StateMachineArn": execution["stateMachineArn"]}
            cloudwatch.record_metric("AWS/States", metric, 1, "Count", dimensions)

    stepfunctions._emit_execution_status_event = emit


def _report_concurrency(_: ServerSettings) -> None:
    stock = lambda_svc._execute_function_warm
    running: Counter[str] = Counter()
    lock = threading.Lock()

    def execute(func: Mapping[str, Any], event: Any, request_id: str) -> Any:
        name = str((func.get("config") or func).get("FunctionName", "unknown"))
        with lock:
            running[name] += 1
            count = running[name]
        _record_concurrency(name, count)
        try:
            return stock(func, event, request_id)
        finally:
            with lock:
                running[name] -= 1

    lambda_svc._execute_function_warm = execute
    _keep_reporting(running, lock)


def _keep_reporting(running: Counter[str], lock: threading.Lock) -> None:
    """Report what runs on: a worker's invocation lasts for many periods."""
    scopes: dict[str, tuple[str, str]] = {}

    def look() -> None:
        while True:
            time.sleep(QUEUE_LOOK_S)
            for account_id, region, name in list(lambda_svc._functions._data):
                scopes[str(name)] = (account_id, region)
            with lock:
                counts = dict(running)
            for name, count in counts.items():
                if name in scopes:
                    with request_scope(*scopes[name]):
                        _record_concurrency(name, count)

    threading.Thread(target=look, name="lambda-metrics", daemon=True).start()


def _record_concurrency(name: str, count: int) -> None:
    dimensions = {"FunctionName": name}
    cloudwatch.record_metric("AWS/Lambda", "ConcurrentExecutions", count, "Count", dimensions)


def _keep_dead_letters(_: ServerSettings) -> None:
    """Send an invocation that Scheduler cannot make to the schedule's dead-letter queue."""
    stock = eventbridge._invoke_target

    def invoke(target: Mapping[str, Any], event: Any, rule: Mapping[str, Any], *more: Any) -> None:
        queue_arn = (target.get("DeadLetterConfig") or {}).get("Arn")
        if "ScheduleExpression" in rule and queue_arn and not _is_there(str(target.get("Arn"))):
            queue = sqs._queue_by_arn(queue_arn)
            if queue:
                body = str(target.get("Input") or json.dumps(event))
                eventbridge._dispatch_to_sqs(parse_arn(queue_arn), body)
                return
        stock(target, event, rule, *more)

    eventbridge._invoke_target = invoke


def _is_there(arn: str) -> bool:
    """Return whether a target exists; of other services than Lambda it is taken for granted."""
    try:
        if parse_arn(arn).service != "lambda":
            return True
    except ArnParseError:
        return False
    function, _, _ = lambda_svc._get_func_record_for_ref(arn)
    return bool(function)


_CLOUDWATCH = "ministack.services.cloudwatch:record_metric"

PATCHES = (
    Patch(
        gap="AWS/SQS metrics are missing",
        touches=("ministack.services.sqs:_queues._data", _CLOUDWATCH),
        apply=_report_queues,
    ),
    Patch(
        gap="AWS/States metrics are missing",
        touches=("ministack.services.stepfunctions:_emit_execution_status_event", _CLOUDWATCH),
        apply=_report_executions,
    ),
    Patch(
        gap="ConcurrentExecutions is missing",
        touches=(
            "ministack.services.lambda_svc:_execute_function_warm",
            "ministack.services.lambda_svc:_functions._data",
            _CLOUDWATCH,
        ),
        apply=_report_concurrency,
    ),
    Patch(
        gap="An invocation that Scheduler cannot make vanishes",
        touches=(
            "ministack.services.eventbridge:_invoke_target",
            "ministack.services.eventbridge:_dispatch_to_sqs",
            "ministack.services.sqs:_queue_by_arn",
        ),
        apply=_keep_dead_letters,
    ),
)
"""What this module corrects in ministack."""
