"""
Findings of cdk-nag that a fleet lives with, each with its reason.

They are part of the construct, so that a user's app that runs cdk-nag stays clean too. A wildcard
in a right is acknowledged one by one, with the resource it is about: a new one is a finding again.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from aws_cdk import Acknowledgment, Stack, Validations
from constructs import Construct, IConstruct

# By the construct they are about.
WORKER = {
    "Serverless-LambdaDLQ": "Only the state machine invokes the worker, synchronously.",
}
MANAGER = {
    "Serverless-LambdaDLQ": (
        "The next run, a minute later, repeats everything; a failed one counts in Errors."
    ),
    "Serverless-LambdaAsyncFailureDestination": (
        "The next run, a minute later, repeats everything; a failed one counts in Errors."
    ),
}
FIRST_RUN = {
    "Serverless-LambdaDLQ": "CloudFormation waits for its answer and reports a failure itself.",
}
SPARK_JOB = {
    "Serverless-LambdaDLQ": (
        "The state machine and CloudFormation wait for its answer and report a failure themselves."
    ),
}
MACHINE = {
    "AwsSolutions-SF1": (
        "Level ERROR: at seven history events per worker turn, logging ALL would cost more than "
        "the turns; the history itself is kept for 90 days."
    ),
}
MACHINE_ROLE = {
    "AwsSolutions-IAM5[Resource::*]": (
        "Log delivery and X-Ray have no resources to name: AWS documents * for both."
    ),
}
DEAD_LETTERS = {
    "AwsSolutions-SQS3": "It is a dead-letter queue: of the schedule, or of records given up.",
    "Serverless-SQSRedrivePolicy": (
        "It is a dead-letter queue: of the schedule, or of records given up."
    ),
}
BUCKET = {
    "AwsSolutions-S1": "Written by the worker alone, one object per given-up record range.",
}
WORK_BUCKET = {
    "AwsSolutions-S1": "Written by one Spark job alone: its checkpoint, its seals, its files.",
}
JOB_LOG_GROUPS = {
    "AwsSolutions-IAM5[Resource::*]": (
        "EMR looks for the log group by name, metrics have no resources, and a schema is asked "
        "for by its version's id: AWS documents * for each; the metrics' namespace is a condition."
    ),
}
UNTRACED = {
    "AwsSolutions-SF2": "Tracing is an option (`Operations.tracing`); it is charged per trace.",
    "Serverless-StepFunctionStateMachineXray": (
        "Tracing is an option (`Operations.tracing`); it is charged per trace."
    ),
    "Serverless-LambdaTracing": (
        "Tracing is an option (`Operations.tracing`); it is charged per trace."
    ),
}
TRACED_ROLE = {
    "AwsSolutions-IAM5[Resource::*]": "X-Ray has no resources to name: AWS documents *.",
}
NETWORK_ROLE = {
    "AwsSolutions-IAM5[Resource::*]": (
        "Lambda makes the network interfaces; they have no ARN before they exist."
    ),
    "Serverless-LambdaStarPermissions": (
        "Lambda makes the network interfaces; they have no ARN before they exist."
    ),
}
ANY_EXECUTION = (
    "An execution's name is known only when it is started; the machine is the fleet's own."
)
ANY_JOB_RUN = "A run's id is known only when it is started; the application is the pipeline's own."
JOB_OBJECTS = "Spark names the objects of checkpoint, seals and tables itself."
JOB_LOG_STREAMS = "EMR names a log stream after each run, driver and executor."
ANY_OBJECT = "One object per given-up record range, all under the fleet's own prefix."
ANY_STATE = "One object for each large state of a window, all under the fleet's own prefix."


def acknowledge(construct: IConstruct, *groups: Mapping[str, str]) -> None:
    """Acknowledge findings, id to reason, on a construct and everything inside it."""
    Validations.of(construct).acknowledge(
        *(
            Acknowledgment(id=name, reason=reason)
            for findings in groups
            for name, reason in findings.items()
        )
    )


def wildcard(scope: Construct, resource: str, reason: str) -> dict[str, str]:
    """
    Return the finding about one resource with a wildcard in a right.

    Args:
        scope: any construct of the stack.
        resource: the resource as it stands in the policy; may hold tokens.
        reason: why it must be.

    """
    return {f"AwsSolutions-IAM5[Resource::{_spelled(Stack.of(scope).resolve(resource))}]": reason}


def _spelled(value: Any) -> str:
    """Spell a resolved value as cdk-nag's findings do: references in angle brackets."""
    match value:
        case {"Ref": str(name)}:
            return f"<{name}>"
        case {"Fn::GetAtt": [str(name), str(attribute)]}:
            return f"<{name}.{attribute}>"
        case {"Fn::Join": [str(separator), list(parts)]}:
            return separator.join(_spelled(part) for part in parts)
        case _:
            return str(value)
