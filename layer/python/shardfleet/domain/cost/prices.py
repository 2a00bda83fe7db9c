"""
List prices of what a fleet uses, with their date: an estimate is as good as these are.

us-east-1, arm64, no free tier, no discount. Where AWS says otherwise by now, or in another region,
give your own: `shardfleet cost --prices FILE`, a JSON object with any of these names.
"""

from __future__ import annotations

from collections.abc import Mapping

from msgspec import Struct
from msgspec.structs import replace

from shardfleet.errors import ConfigurationError


class Prices(Struct, frozen=True, kw_only=True):
    """
    Dollars per unit.

    Attributes:
        as_of: the day on which they were looked up.
        region: of AWS.
        lambda_gb_second: Lambda, arm64, first tier.
        lambda_request: Lambda.
        transition: Step Functions, a state of a standard workflow entered.
        table_read_unit: DynamoDB on demand; a strongly consistent read of up to 4 KB is one.
        table_write_unit: DynamoDB on demand; a write of up to 1 KB is one.
        table_gb_month: DynamoDB, a GB kept in a table for a month.
        metric_month: CloudWatch, a custom metric, of the first 10,000.
        alarm_month: CloudWatch, an alarm of one metric.
        composite_alarm_month: CloudWatch.
        dashboard_month: CloudWatch, beyond the first three of an account.
        log_gb: CloudWatch Logs, taken in.
        scheduled_run: EventBridge Scheduler.
        shard_hour: Kinesis, provisioned.
        stream_hour: Kinesis on demand, a stream for an hour.
        stream_gb_out: Kinesis on demand, a GB read.
        advantage_gb_out: Kinesis on demand, the account's Advantage mode: a GB read.
        consumer_shard_hour: Kinesis, enhanced fan-out: a registered consumer of a shard.
        consumer_gb: Kinesis, enhanced fan-out: a GB read.
        task_cpu_hour: Fargate, arm64, a vCPU.
        task_gb_hour: Fargate, arm64, a GB of memory.
        object_write: S3 Standard, a PUT or LIST request.
        object_read: S3 Standard, a GET request.
        spark_cpu_hour: EMR Serverless, a vCPU; x86_64, arm64 is about a fifth less.
        spark_gb_hour: EMR Serverless, a GB of memory; likewise.

    """

    as_of: str
    region: str
    lambda_gb_second: float
    lambda_request: float
    transition: float
    table_read_unit: float
    table_write_unit: float
    table_gb_month: float
    metric_month: float
    alarm_month: float
    composite_alarm_month: float
    dashboard_month: float
    log_gb: float
    scheduled_run: float
    shard_hour: float
    stream_hour: float
    stream_gb_out: float
    advantage_gb_out: float
    consumer_shard_hour: float
    consumer_gb: float
    task_cpu_hour: float
    task_gb_hour: float
    object_write: float
    object_read: float
    spark_cpu_hour: float
    spark_gb_hour: float


PRICES = Prices(
    as_of="2026-11-20",
    region="us-east-1",
    lambda_gb_second=0.0000133334,
    lambda_request=0.20 / 1_000_000,
    transition=25.0 / 1_000_000,
    table_read_unit=0.125 / 1_000_000,
    table_write_unit=0.625 / 1_000_000,
    table_gb_month=0.25,
    metric_month=0.30,
    alarm_month=0.10,
    composite_alarm_month=0.50,
    dashboard_month=3.00,
    log_gb=0.50,
    scheduled_run=1.0 / 1_000_000,
    shard_hour=0.015,
    stream_hour=0.04,
    stream_gb_out=0.04,
    # "At least 60 % lower" than on demand: the developer guide's page on modes, 2026-11-28.
    advantage_gb_out=0.016,
    consumer_shard_hour=0.015,
    consumer_gb=0.013,
    task_cpu_hour=0.03238,
    task_gb_hour=0.00356,
    object_write=5.0 / 1_000_000,
    object_read=0.40 / 1_000_000,
    spark_cpu_hour=0.052624,
    spark_gb_hour=0.0057785,
)


def changed_prices(given: Mapping[str, object], base: Prices = PRICES) -> Prices:
    """
    Return the prices with some of them replaced.

    Raises:
        ConfigurationError: a name that is no price, or a price that is no number.

    """
    known = Prices.__annotations__
    problems = []
    values: dict[str, str | float] = {}
    for name, value in given.items():
        if name not in known:
            problems.append(f"{name}: no such price; there are: {', '.join(known)}")
        elif known[name] == "str":
            values[name] = str(value)
        elif isinstance(value, bool) or not isinstance(value, int | float) or value < 0:
            problems.append(f"{name}: {value!r} found, dollars expected, 0 or more")
        else:
            values[name] = float(value)
    if problems:
        raise ConfigurationError(f"prices: {'; '.join(problems)}")
    return replace(base, **values)
