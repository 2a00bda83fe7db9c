"""
The lease manager: a function that EventBridge Scheduler invokes each minute, first at deploy time.

Overlap is excluded by the manager's own turn lock; reserved concurrency is an option, because an
account whose limit is 10 cannot reserve any (hazard H13). Failed invocations are not retried:
the next minute's comes sooner than Lambda's own retry would.
"""

from __future__ import annotations

from aws_cdk import Duration
from aws_cdk import aws_scheduler as scheduler
from constructs import Construct

from shardfleet.config import FleetConfig
from shardfleet_cdk import acknowledgements as nag
from shardfleet_cdk import permissions
from shardfleet_cdk.assets import function_code
from shardfleet_cdk.failed_records import dead_letter_queue
from shardfleet_cdk.functions import fleet_function, log_group
from shardfleet_cdk.layers import FleetLayers
from shardfleet_cdk.options import ManagerOptions, Operations
from shardfleet_cdk.worker_machine import WorkerMachine

ENTRY_POINT = "handler.manager_handler"  # functions/lease_manager/handler.py
EVENT_AGE_SECONDS_MOST = 60  # The least that Lambda and Scheduler allow; then the next one comes.


class LeaseManagerFunction(Construct):
    """
    The manager function, its schedule, and the schedule's dead letters.

    Attributes:
        function: the function.
        schedule: once a minute.
        dead_letters: invocations that Scheduler could not make.

    """

    def __init__(
        self,
        scope: Construct,
        construct_id: str,
        *,
        config: FleetConfig,
        layers: FleetLayers,
        options: ManagerOptions,
        operations: Operations,
        resources: permissions.Resources,
        machine: WorkerMachine,
    ) -> None:
        super().__init__(scope, construct_id)
        self.log_group = log_group(self, "Logs", operations=operations)
        self.role = permissions.lambda_role(
            self,
            "Role",
            permissions.manager_rights(
                resources,
                log_group_arn=self.log_group.log_group_arn,
                state_machine_arn=machine.machine.state_machine_arn,
                state_machine_name=machine.machine.state_machine_name,
            ),
        )
        self.function = fleet_function(
            self,
            "Function",
            platform=layers.platform,
            operations=operations,
            role=self.role,
            log_group=self.log_group,
            timeout_s=options.timeout_s,
            environment=config.to_env(),
            description="shardfleet lease manager: assigns leases, starts worker slots",
            code=function_code("lease_manager"),
            handler=ENTRY_POINT,
            layers=layers.all(),
            memory_size=options.memory_mb,
            reserved_concurrent_executions=options.reserved_concurrency,
            retry_attempts=0,
            max_event_age=Duration.seconds(EVENT_AGE_SECONDS_MOST),
        )
        permissions.let_call(self, machine.worker.role, self.function.function_arn)
        self.dead_letters = dead_letter_queue(self, "DeadLetters", operations=operations)
        self.schedule = self._each_minute(operations)
        executions = permissions.executions_arn(machine.machine.state_machine_name)
        nag.acknowledge(self.function, nag.MANAGER)
        nag.acknowledge(self.role, nag.wildcard(self, executions, nag.ANY_EXECUTION))
        if operations.tracing:
            nag.acknowledge(self.role, nag.TRACED_ROLE)

    def _each_minute(self, operations: Operations) -> scheduler.CfnSchedule:
        key = operations.encryption_key
        self.schedule_role = permissions.schedule_role(
            self,
            "ScheduleRole",
            permissions.schedule_rights(
                manager_arn=self.function.function_arn,
                dead_letters=self.dead_letters,
                encryption_key=key,
            ),
        )
        return scheduler.CfnSchedule(
            self,
            "Schedule",
            description="shardfleet: one lease manager run a minute",
            schedule_expression="rate(1 minute)",
            flexible_time_window=scheduler.CfnSchedule.FlexibleTimeWindowProperty(mode="OFF"),
            target=scheduler.CfnSchedule.TargetProperty(
                arn=self.function.function_arn,
                role_arn=self.schedule_role.role_arn,
                input='{"trigger":"schedule"}',
                dead_letter_config=scheduler.CfnSchedule.DeadLetterConfigProperty(
                    arn=self.dead_letters.queue_arn
                ),
                retry_policy=scheduler.CfnSchedule.RetryPolicyProperty(
                    maximum_event_age_in_seconds=EVENT_AGE_SECONDS_MOST,
                    maximum_retry_attempts=0,
                ),
            ),
        )
