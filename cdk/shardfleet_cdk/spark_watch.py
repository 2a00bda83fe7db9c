"""
The state machine that looks after a job, as plain data (Amazon States Language, JSONata).

A job run is no resource of CloudFormation. A schedule starts this machine, which hands a function
all that a run is started with: a function's own configuration has no room for it, and an event that
comes late would bring the request of a deploy before. What is done is decided in
:mod:`shardfleet.domain.jobs`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, slots=True, kw_only=True)
class JobRun:
    """
    What is started.

    Attributes:
        application_id: the EMR Serverless application.
        role_arn: the job's role.
        name: of the runs; a hash of all this follows it.
        entry_point: S3 URL of the program.
        plan: the program's one argument, which gets it as JSON.
        conf: settings of Spark.
        streaming: whether the job is to run for ever, repeated by EMR when it fails.
        attempts: repeated attempts within an hour (streaming).
        log_group: for the driver's and the executors' output.
        data_key_arn: key of the managed logs; empty: AWS's own.

    """

    application_id: str
    role_arn: str
    name: str
    entry_point: str
    plan: Mapping[str, Any]
    conf: Mapping[str, str]
    streaming: bool
    attempts: int
    log_group: str
    data_key_arn: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Look:
    """
    How a job is looked after.

    Attributes:
        function_arn: the function that looks, and does what is to be done.
        stack_id: while its status says that it changes or goes, nothing is begun.
        fleet: the dimension of the metric that counts failures.
        stop_seconds: that a run has to end its batch when it is replaced.

    """

    function_arn: str
    stack_id: str
    fleet: str
    stop_seconds: int


def watch_definition(run: JobRun, look: Look, *, partition: str) -> dict[str, Any]:
    """Return the definition."""
    return {
        "Comment": "Looks after the Spark job: starts, replaces or leaves its run",
        "QueryLanguage": "JSONata",
        "StartAt": "Look",
        "States": {
            "Look": {
                "Type": "Task",
                "Resource": f"arn:{partition}:states:::lambda:invoke",
                "Arguments": {
                    "FunctionName": look.function_arn,
                    "Payload": {
                        "Name": run.name,
                        "Stack": look.stack_id,
                        "Fleet": look.fleet,
                        "GraceSeconds": look.stop_seconds,
                        "Plan": dict(run.plan),
                        "StartJobRun": _start(run),
                    },
                },
                "Output": "{% $states.result.Payload %}",
                "Retry": [_retry()],
                "End": True,
            },
        },
    }


def _start(run: JobRun) -> dict[str, Any]:
    conf = " ".join(f"--conf {name}={value}" for name, value in sorted(run.conf.items()))
    logging: dict[str, Any] = {"Enabled": True, "LogGroupName": run.log_group}
    if run.data_key_arn:
        logging["EncryptionKeyArn"] = run.data_key_arn
    arguments: dict[str, Any] = {
        "ApplicationId": run.application_id,
        "ExecutionRoleArn": run.role_arn,
        "Mode": "STREAMING" if run.streaming else "BATCH",
        # For ever: a batch run would be cancelled after twelve hours (fact R01).
        "ExecutionTimeoutMinutes": 0,
        "JobDriver": {
            "SparkSubmit": {"EntryPoint": run.entry_point, "SparkSubmitParameters": conf}
        },
        "ConfigurationOverrides": {
            "MonitoringConfiguration": {"CloudWatchLoggingConfiguration": logging}
        },
    }
    if run.streaming:
        arguments["RetryPolicy"] = {"MaxFailedAttemptsPerHour": run.attempts}
    return arguments


def _retry() -> dict[str, Any]:
    return {
        "ErrorEquals": ["States.ALL"],
        "IntervalSeconds": 2,
        "BackoffRate": 2,
        "MaxAttempts": 4,
        "JitterStrategy": "FULL",
    }
