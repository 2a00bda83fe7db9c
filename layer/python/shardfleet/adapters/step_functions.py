"""
Starting worker slots: named executions of the worker state machine.

Rules: hazard H3. A start with the name and input of a running execution is that execution; after
it has closed, or with another input, the service says ``ExecutionAlreadyExists``, from which
nothing follows until the execution is described.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from shardfleet.adapters.sdk_errors import RefusalIsAnswer, SdkCall
from shardfleet.adapters.thread_pool import ThreadPool, in_threads_of
from shardfleet.engine.ports import ExecutionStatus
from shardfleet.errors import ConfigurationError

if TYPE_CHECKING:
    from mypy_boto3_stepfunctions.client import SFNClient

_ARN_PARTS = 7  # arn:partition:states:region:account:stateMachine:name
_WRONG_MACHINE = dict.fromkeys(
    ("InvalidArn", "StateMachineDeleting", "StateMachineDoesNotExist"), ConfigurationError
)
_ALIVE = ("RUNNING", "PENDING_REDRIVE")


class StepFunctionsLauncher:
    """
    The ``WorkerLauncher`` port over one state machine.

    Args:
        state_machine_arn: the machine; a version or alias at its end is allowed.
        client: may repeat, a start is idempotent by its name.
        pool: threads of the calls.

    """

    def __init__(self, state_machine_arn: str, *, client: SFNClient, pool: ThreadPool) -> None:
        """Start nothing yet."""
        self._machine = state_machine_arn
        self._client = client
        self._pool = pool

    @in_threads_of("_pool")
    def start(self, name: str, text: str) -> bool:
        """
        Start an execution; True when it runs.

        Args:
            name: of the execution, at most 80 characters.
            text: its input, byte for byte the same for the same name.

        Returns:
            False when the name is taken by a closed or different execution.

        Raises:
            OutcomeUnknown: sent, but no answer came; a repeat is harmless.
            Throttled: try again later.
            ConfigurationError: there is no such machine.

        """
        call = SdkCall(
            f"StartExecution {name} of {self._machine}",
            writes=True,
            codes={**_WRONG_MACHINE, "ExecutionAlreadyExists": RefusalIsAnswer},
        )
        try:
            call.run(
                self._client.start_execution,
                stateMachineArn=self._machine,
                name=name,
                input=text,
            )
        except RefusalIsAnswer:
            return False
        return True

    @in_threads_of("_pool")
    def status(self, name: str) -> ExecutionStatus:
        """
        Describe one execution by name (eventually consistent).

        Raises:
            Throttled: try again later.

        """
        arn = execution_arn(self._machine, name)
        codes = {"ExecutionDoesNotExist": RefusalIsAnswer, "InvalidArn": ConfigurationError}
        call = SdkCall(f"DescribeExecution {arn}", codes=codes)
        try:
            answer = call.run(self._client.describe_execution, executionArn=arn)
        except RefusalIsAnswer:
            return ExecutionStatus.ABSENT
        return ExecutionStatus.RUNNING if answer["status"] in _ALIVE else ExecutionStatus.CLOSED


def execution_arn(state_machine_arn: str, name: str) -> str:
    """
    Return the ARN of an execution: that of the machine with ``execution`` in it.

    Raises:
        ConfigurationError: the machine's ARN is none.

    """
    parts = state_machine_arn.split(":")
    if len(parts) < _ARN_PARTS or parts[5] != "stateMachine":
        raise ConfigurationError(
            f"state_machine_arn: {state_machine_arn!r} found, "
            "arn:…:states:region:account:stateMachine:name expected"
        )
    return ":".join([*parts[:5], "execution", parts[6], name])
