"""
The state machine that keeps a job running, as plain data (Amazon States Language, JSONata).

A job run is no resource of CloudFormation. A schedule starts this machine; it asks whether a run of
the application is under way, and starts one if not. EMR Serverless itself repeats a streaming
job that fails, up to a number of times an hour; what has ended for good is started again by the
next look. The client token is made of the execution's name, so that a repeated call starts one
run only; the name itself may be longer than a token.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

# States of a run that has not ended (API reference of GetJobRun).
UNDER_WAY = ("SUBMITTED", "PENDING", "SCHEDULED", "QUEUED", "RUNNING", "CANCELLING")


@dataclass(frozen=True, slots=True, kw_only=True)
class JobRun:
    """
    What is started.

    Attributes:
        application_id: the EMR Serverless application.
        role_arn: the job's role.
        name: of the runs.
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


def watch_definition(run: JobRun, *, partition: str) -> dict[str, Any]:
    """Return the definition."""
    service = f"arn:{partition}:states:::aws-sdk:emrserverless"
    return {
        "Comment": "Starts the Spark job unless a run of it is under way",
        "QueryLanguage": "JSONata",
        "StartAt": "Plan",
        "States": {
            "Plan": {"Type": "Pass", "Assign": {"plan": dict(run.plan)}, "Next": "Look"},
            "Look": {
                "Type": "Task",
                "Resource": f"{service}:listJobRuns",
                "Arguments": {"ApplicationId": run.application_id, "States": list(UNDER_WAY)},
                "Output": {"underWay": "{% $count($states.result.JobRuns) %}"},
                "Retry": [_retry()],
                "Next": "IsRunning",
            },
            "IsRunning": {
                "Type": "Choice",
                "Choices": [{"Condition": "{% $states.input.underWay > 0 %}", "Next": "Done"}],
                "Default": "Start",
            },
            "Start": {
                "Type": "Task",
                "Resource": f"{service}:startJobRun",
                "Arguments": _start(run),
                "Retry": [_retry()],
                "Next": "Done",
            },
            "Done": {"Type": "Succeed"},
        },
    }


def _start(run: JobRun) -> dict[str, Any]:
    conf = " ".join(f"--conf {name}={value}" for name, value in sorted(run.conf.items()))
    logging: dict[str, Any] = {"Enabled": True, "LogGroupName": run.log_group}
    if run.data_key_arn:
        logging["EncryptionKeyArn"] = run.data_key_arn
    arguments: dict[str, Any] = {
        "ApplicationId": run.application_id,
        "ClientToken": "{% $hash($states.context.Execution.Name, 'SHA-256') %}",
        "ExecutionRoleArn": run.role_arn,
        "Name": run.name,
        "Mode": "STREAMING" if run.streaming else "BATCH",
        "JobDriver": {
            "SparkSubmit": {
                "EntryPoint": run.entry_point,
                "EntryPointArguments": ["{% $string($plan) %}"],
                "SparkSubmitParameters": conf,
            }
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
