"""
What is done when the stack is deployed, and when it goes.

CloudFormation deletes the state machine, which then waits in DELETING until each execution comes to
a transition (botocore: stepfunctions DeleteStateMachine): up to a whole turn of a worker, a quarter
of an hour. So the machine is deleted here first, after which nobody can start an execution any
more, and those that run are stopped.
"""

from typing import Any

import boto3

GOING = ("DELETE_IN_PROGRESS", "ROLLBACK_IN_PROGRESS")
"""Of a stack that goes as a whole. Otherwise the resource alone goes, and the fleet stays."""


def invoke_manager(event: dict[str, Any]) -> str:
    """Invoke the manager without waiting for it. Raises what boto3 raises."""
    boto3.client("lambda").invoke(
        FunctionName=event["ResourceProperties"]["Manager"],
        InvocationType="Event",
        Payload=b'{"trigger":"deploy"}',
    )
    return "the lease manager was invoked"


def end_workers(event: dict[str, Any]) -> str:
    """
    Delete the state machine and stop what it runs.

    Raises what boto3 raises, and KeyError for what an answer lacks.

    """
    stacks = boto3.client("cloudformation").describe_stacks(StackName=event["StackId"])
    if stacks["Stacks"][0]["StackStatus"] not in GOING:
        return "the stack stays, and so do its workers"
    machine, states = event["ResourceProperties"]["StateMachine"], boto3.client("stepfunctions")
    states.delete_state_machine(stateMachineArn=machine)
    stopped = 0
    try:
        pages = states.get_paginator("list_executions").paginate(
            stateMachineArn=machine, statusFilter="RUNNING"
        )
        for execution in [each for page in pages for each in page["executions"]]:
            states.stop_execution(
                executionArn=execution["executionArn"], cause="the stack is deleted"
            )
            stopped += 1
    except states.exceptions.StateMachineDoesNotExist:
        pass  # The last of them has ended, and the machine with it.
    return f"{stopped} executions were stopped"
