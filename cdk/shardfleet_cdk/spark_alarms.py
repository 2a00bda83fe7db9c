"""The alarms of a Spark pipeline: not looked after, failed, failing, not running, far behind."""

from __future__ import annotations

from dataclasses import dataclass

from aws_cdk import Duration
from aws_cdk import aws_cloudwatch as cw
from aws_cdk import aws_cloudwatch_actions as actions
from aws_cdk import aws_kinesis as kinesis
from aws_cdk import aws_stepfunctions as sfn
from constructs import Construct

from shardfleet_cdk.spark_options import SparkAlarms

# Names of the query's own metrics, as shardfleet_spark.publish.figures tells them.
OWN_NAMESPACE, LAG = "shardfleet", "millis_behind_latest"
# As functions/spark_job/spark_look.py tells it, at each look.
FAILURES = "job_failures_in_a_row"
_LAG_PERIODS = 15
_LOOK_MINUTES = 60


@dataclass(frozen=True, slots=True, kw_only=True)
class Watched:
    """
    What the alarms are about.

    Attributes:
        source: the stream that is read.
        application_id: of EMR Serverless.
        state_machine: looks after the job.
        name: of the application, whose metrics carry it from release 7.10 on, and the dimension
            of the pipeline's own metrics.
        publishes: whether the query tells metrics of its own.

    """

    source: kinesis.IStream
    application_id: str
    state_machine: sfn.StateMachine
    name: str
    publishes: bool


def make_alarms(
    scope: Construct, watched: Watched, options: SparkAlarms, *, streaming: bool
) -> None:
    """
    Make the alarms.

    Args:
        scope: the pipeline.
        watched: what they are about.
        options: thresholds, and who is told.
        streaming: whether a run is meant to be under way at any time.

    """
    application = {
        "ApplicationId": watched.application_id,
        "ApplicationName": watched.name,
    }
    made = [
        _alarm(
            scope,
            "NotStarted",
            "The Spark pipeline could not be looked after or started",
            metric=watched.state_machine.metric_failed(period=Duration.minutes(5)),
            threshold=1,
        ),
        _alarm(
            scope,
            "Failed",
            "A run of the Spark pipeline failed",
            metric=_metric("FailedJobs", application, minutes=5),
            threshold=1,
        ),
        _failing(scope, watched, failures=options.failures),
        _alarm(
            scope,
            "Lag",
            "The Spark pipeline, or another consumer of its source, is far behind",
            metric=_lag(watched),
            threshold=options.lag_ms,
            periods=_LAG_PERIODS,
        ),
    ]
    if streaming:
        made.append(_idle(scope, application, minutes=options.idle_minutes))
    for alarm in made:
        for topic in options.topics:
            alarm.add_alarm_action(actions.SnsAction(topic))


def _failing(scope: Construct, watched: Watched, *, failures: int) -> cw.Alarm:
    return _alarm(
        scope,
        "Failing",
        "Runs of the Spark pipeline fail one after the other, and are started ever less often",
        metric=_metric(
            FAILURES, {"fleet": watched.name}, namespace=OWN_NAMESPACE, minutes=_LOOK_MINUTES
        ),
        threshold=failures,
    )


def _idle(scope: Construct, application: dict[str, str], *, minutes: int) -> cw.Alarm:
    return cw.Alarm(
        scope,
        "NotRunning",
        alarm_description="No run of the Spark pipeline is under way",
        metric=_metric("RunningJobs", application, minutes=1),
        threshold=1,
        evaluation_periods=minutes,
        comparison_operator=cw.ComparisonOperator.LESS_THAN_THRESHOLD,
        treat_missing_data=cw.TreatMissingData.BREACHING,
    )


def _lag(watched: Watched) -> cw.Metric:
    if watched.publishes:
        return _metric(LAG, {"fleet": watched.name}, namespace=OWN_NAMESPACE, minutes=1)
    # Of the slowest consumer of the stream, which may be another one.
    name = "GetRecords.IteratorAgeMilliseconds"
    return watched.source.metric(name, statistic="Maximum", period=Duration.minutes(1))


def _alarm(
    scope: Construct,
    construct_id: str,
    description: str,
    *,
    metric: cw.IMetric,
    threshold: int,
    periods: int = 1,
) -> cw.Alarm:
    return cw.Alarm(
        scope,
        construct_id,
        alarm_description=description,
        metric=metric,
        threshold=threshold,
        evaluation_periods=periods,
        comparison_operator=cw.ComparisonOperator.GREATER_THAN_OR_EQUAL_TO_THRESHOLD,
        treat_missing_data=cw.TreatMissingData.NOT_BREACHING,
    )


def _metric(
    name: str, dimensions: dict[str, str], *, minutes: int, namespace: str = "AWS/EMRServerless"
) -> cw.Metric:
    return cw.Metric(
        namespace=namespace,
        metric_name=name,
        dimensions_map=dimensions,
        statistic="Maximum",
        period=Duration.minutes(minutes),
    )
