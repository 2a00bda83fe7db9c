"""
What can be measured of a fleet: its own metrics, and those of the services it is made of.

The fleet's own are in one namespace, with the fleet's name as dimension; their names are those
that `shardfleet.adapters.telemetry.metrics` emits, which a test compares.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from aws_cdk import Duration
from aws_cdk import aws_cloudwatch as cw
from aws_cdk import aws_dynamodb as ddb
from aws_cdk import aws_kinesis as kinesis
from aws_cdk import aws_lambda as lambda_
from aws_cdk import aws_sqs as sqs
from aws_cdk import aws_stepfunctions as sfn

from shardfleet_cdk.monitoring.settings import PERIOD_SECONDS
from shardfleet_cdk.options import WorkerOptions

NAMESPACE = "shardfleet"
# What it writes by default: `adapters.telemetry.metrics`, which a test compares.
FEW = frozenset(
    {
        *("total_leases", "total_shards", "unclaimed_leases", "worker_leases"),
        *("millis_behind_latest", "bytes", "records", "broken", "uncovered", "trouble"),
    }
)


@dataclass(frozen=True, slots=True, kw_only=True)
class WatchedFleet:
    """
    What a fleet is made of that has metrics; each as `ShardFleet` has it.

    Attributes:
        name: of the fleet, the dimension of its own metrics.
        has_all_metrics: it writes all of its own, not the ten alone.
        stream: what it reads.
        lease_table: its leases.
        worker: its function.
        worker_options: memory, and what is reserved.
        machine: one execution is one worker slot.
        manager: its function.
        schedule_dead_letters: manager invocations that could not be made.
        failed_queue: given-up records, or None.

    """

    name: str
    has_all_metrics: bool
    stream: kinesis.IStream
    lease_table: ddb.ITable
    worker: lambda_.IFunction
    worker_options: WorkerOptions
    machine: sfn.IStateMachine
    manager: lambda_.Function
    schedule_dead_letters: sqs.IQueue
    failed_queue: sqs.IQueue | None


class FleetMetrics:
    """
    The metrics of one fleet.

    Args:
        fleet: what is measured.

    """

    def __init__(self, fleet: WatchedFleet) -> None:
        self.fleet = fleet

    def own(self, name: str, statistic: str, *, period_s: int = PERIOD_SECONDS) -> cw.Metric:
        """Return one of the fleet's own metrics."""
        return _metric(
            NAMESPACE,
            name,
            statistic,
            dimensions={"fleet": self.fleet.name},
            period_s=period_s,
        )

    def writes(self, metric: cw.IMetric) -> bool:
        """Return whether the fleet writes a metric, or all that an expression is of."""
        if isinstance(metric, cw.MathExpression):
            return all(map(self.writes, (metric.using_metrics or {}).values()))
        assert isinstance(metric, cw.Metric)
        is_own = metric.namespace == NAMESPACE
        return not is_own or self.fleet.has_all_metrics or metric.metric_name in FEW

    def stream(self, name: str, statistic: str) -> cw.Metric:
        """Return a metric of the stream; one of another account is not visible here."""
        return _metric(
            "AWS/Kinesis",
            name,
            statistic,
            dimensions={"StreamName": self.fleet.stream.stream_name},
        )

    def function(
        self,
        function: lambda_.IFunction,
        name: str,
        statistic: str,
        *,
        period_s: int = PERIOD_SECONDS,
    ) -> cw.Metric:
        """Return a metric of a function, all versions together."""
        return _metric(
            "AWS/Lambda",
            name,
            statistic,
            dimensions={"FunctionName": function.function_name},
            period_s=period_s,
        )

    def executions(self, name: str, *, period_s: int = PERIOD_SECONDS) -> cw.Metric:
        """Return how many executions ended or began so."""
        return _metric(
            "AWS/States",
            name,
            "Sum",
            dimensions={"StateMachineArn": self.fleet.machine.state_machine_arn},
            period_s=period_s,
        )

    def queue(self, queue: sqs.IQueue, name: str) -> cw.Metric:
        """Return the greatest value of a metric of a queue."""
        return _metric("AWS/SQS", name, "Maximum", dimensions={"QueueName": queue.queue_name})

    def table(self, name: str) -> cw.Metric:
        """Return a metric of the lease table."""
        return _metric(
            "AWS/DynamoDB",
            name,
            "Sum",
            dimensions={"TableName": self.fleet.lease_table.table_name},
        )


def math(
    expression: str,
    metrics: Mapping[str, cw.IMetric],
    *,
    label: str,
    period_s: int = PERIOD_SECONDS,
) -> cw.MathExpression:
    """Return metrics combined by metric math."""
    return cw.MathExpression(
        expression=expression,
        using_metrics=dict(metrics),
        label=label,
        period=Duration.seconds(period_s),
    )


def _metric(
    namespace: str,
    name: str,
    statistic: str,
    *,
    dimensions: Mapping[str, str],
    period_s: int = PERIOD_SECONDS,
) -> cw.Metric:
    return cw.Metric(
        namespace=namespace,
        metric_name=name,
        statistic=statistic,
        dimensions_map=dict(dimensions),
        period=Duration.seconds(period_s),
    )
