"""The state machine: one execution is one worker slot (see worker_definition.py)."""

from __future__ import annotations

from aws_cdk import Aws, Duration, Stack
from aws_cdk import aws_iam as iam
from aws_cdk import aws_stepfunctions as sfn
from constructs import Construct

from shardfleet_cdk import permissions
from shardfleet_cdk.acknowledgements import MACHINE, MACHINE_ROLE, acknowledge
from shardfleet_cdk.functions import log_group
from shardfleet_cdk.naming import vended_log_group_name
from shardfleet_cdk.options import Operations, WorkerOptions
from shardfleet_cdk.worker import WorkerFunction
from shardfleet_cdk.worker_definition import worker_definition

# Step Functions: 60 to 900 s; the longest saves calls of the key service.
DATA_KEY_REUSE_SECONDS = 900


class WorkerMachine(Construct):
    """
    The state machine and its rights.

    Attributes:
        machine: the state machine.
        worker: what it invokes.

    """

    def __init__(
        self,
        scope: Construct,
        construct_id: str,
        *,
        worker: WorkerFunction,
        options: WorkerOptions,
        operations: Operations,
    ) -> None:
        super().__init__(scope, construct_id)
        self.worker = worker
        self.role = iam.Role(
            self,
            "Role",
            assumed_by=permissions.of_this_account("states"),
            inline_policies=permissions.machine_rights(worker_alias_arn=worker.alias.function_arn),
        )
        definition = worker_definition(
            function_arn=worker.alias.function_arn,
            function_timeout_s=options.timeout_s,
            max_loops=options.max_loops,
            partition=Aws.PARTITION,
        )
        self.log_group = log_group(
            self, "Logs", operations=operations, name=vended_log_group_name(self)
        )
        self.machine = sfn.StateMachine(
            self,
            "Machine",
            definition_body=sfn.DefinitionBody.from_string(
                Stack.of(self).to_json_string(definition)
            ),
            role=self.role,
            # ERROR, without data: at seven events per loop, ALL would cost more than the loop.
            logs=sfn.LogOptions(
                destination=self.log_group, level=sfn.LogLevel.ERROR, include_execution_data=False
            ),
            tracing_enabled=operations.tracing,
            encryption_configuration=_encryption(operations),
        )
        iam.Policy(
            self,
            "ContinueAsNew",
            statements=permissions.successor_rights(
                self.machine.state_machine_arn, encryption_key=operations.encryption_key
            ),
            roles=[self.role],
        )
        acknowledge(self.machine, MACHINE)
        acknowledge(self.role, MACHINE_ROLE)


def _encryption(operations: Operations) -> sfn.CustomerManagedEncryptionConfiguration | None:
    key = operations.encryption_key
    reuse = Duration.seconds(DATA_KEY_REUSE_SECONDS)
    return sfn.CustomerManagedEncryptionConfiguration(key, reuse) if key else None
