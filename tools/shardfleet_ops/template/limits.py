"""What AWS allows, as far as templates are judged by it; the construct refuses by the same."""

from __future__ import annotations

RESERVED_VARIABLES = frozenset(
    {
        "_HANDLER",
        "_X_AMZN_TRACE_ID",
        "AWS_ACCESS_KEY",
        "AWS_ACCESS_KEY_ID",
        "AWS_DEFAULT_REGION",
        "AWS_EXECUTION_ENV",
        "AWS_LAMBDA_FUNCTION_MEMORY_SIZE",
        "AWS_LAMBDA_FUNCTION_NAME",
        "AWS_LAMBDA_FUNCTION_VERSION",
        "AWS_LAMBDA_INITIALIZATION_TYPE",
        "AWS_LAMBDA_LOG_GROUP_NAME",
        "AWS_LAMBDA_LOG_STREAM_NAME",
        "AWS_LAMBDA_RUNTIME_API",
        "AWS_REGION",
        "AWS_SECRET_ACCESS_KEY",
        "AWS_SESSION_TOKEN",
        "LAMBDA_RUNTIME_DIR",
        "LAMBDA_TASK_ROOT",
    }
)
"""Lambda guide, "Defined runtime environment variables": a function may not set these."""

ENVIRONMENT_BYTES_MOST = 4_096
"""Lambda quota: all variables of a function, names and values."""

CONCURRENCY_OF_A_NEW_ACCOUNT = 10
"""Executions at a time, of all functions, raised by AWS as an account is used (fact L08)."""

CONCURRENCY_BY_DEFAULT = 1_000
"""Lambda quota: executions at a time, of all functions of an account in a region."""

CONCURRENCY_LEFT_LEAST = 100
"""Lambda quota: what must stay unreserved (fact L07; less in a new account)."""

INITIAL_EXECUTORS = 3
"""EMR Serverless: ``spark.dynamicAllocation.initialExecutors`` where a job does not say."""

WORKER_CPU, WORKER_MEMORY_GB = 4, 16
"""EMR Serverless: vCPU and memory of a driver or executor where a job does not say."""


NAMESPACE = "shardfleet"
"""Of the fleets' own metrics."""

TOLD_EACH_TURN = frozenset({"paused_leases", "records", "slots_wanted"})
"""Of those, what the manager puts with each turn whatever happens (adapters.telemetry.metrics)."""

_HOUR, _DAY = 3_600, 86_400


def look_back_seconds_most(period_s: int) -> int:
    """Return how far an alarm may look back (fact C07, PutMetricAlarm.Period)."""
    return _DAY if period_s < _HOUR else 7 * _DAY
