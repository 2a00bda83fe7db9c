"""
`ShardFleet`: the construct that deploys a fleet; composes the parts and says what was made.

Everything the engine can be told is a field of :class:`shardfleet.config.FleetConfig`; the
construct checks it at synth and hands it to the functions as their environment, so that the two
cannot disagree.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence

import jsii
from aws_cdk import Annotations
from aws_cdk import aws_dynamodb as ddb
from aws_cdk import aws_iam as iam
from aws_cdk import aws_kinesis as kinesis
from aws_cdk import aws_lambda as lambda_
from constructs import Construct

from shardfleet.config import FleetConfig
from shardfleet.errors import ConfigurationError
from shardfleet_cdk import cost_estimate, permissions
from shardfleet_cdk.acknowledgements import UNTRACED, acknowledge
from shardfleet_cdk.failed_records import FailedRecordDestinations
from shardfleet_cdk.first_run import FirstRun
from shardfleet_cdk.fleet_config import check_times, manager_config, options_of
from shardfleet_cdk.fleet_options import ExpertOptions, FleetOptions
from shardfleet_cdk.handler_code import HandlerCode
from shardfleet_cdk.handler_function import config_for, function_of
from shardfleet_cdk.lambda_platform import lambda_platform
from shardfleet_cdk.layers import FleetLayers
from shardfleet_cdk.lease_manager import LeaseManagerFunction
from shardfleet_cdk.lease_table import lease_table, state_table
from shardfleet_cdk.monitoring.fleet_monitoring import FleetMonitoring
from shardfleet_cdk.monitoring.metrics import WatchedFleet
from shardfleet_cdk.monitoring.settings import MonitoringOptions
from shardfleet_cdk.naming import fleet_name
from shardfleet_cdk.options import (
    FanOut,
    FleetTables,
    ManagerOptions,
    Operations,
    WorkerOptions,
)
from shardfleet_cdk.references import (
    of_alarm,
    of_topics,
    references_of_fleet,
    refuse_future,
    refuse_wrong_references,
)
from shardfleet_cdk.worker import WorkerFunction
from shardfleet_cdk.worker_machine import WorkerMachine
from shardfleet_ops.cost.model import Setup
from shardfleet_ops.template.limits import (
    CONCURRENCY_BY_DEFAULT,
    CONCURRENCY_OF_A_NEW_ACCOUNT,
)

# No `None` for none: of a union mypy would not say which name is wrong.
NO_OPTIONS: FleetOptions = {}
NO_EXPERT_OPTIONS: ExpertOptions = {}


@jsii.implements(iam.IGrantable)
class ShardFleet(Construct):
    """
    A fleet that consumes one stream with one handler.

    Args:
        scope: the parent construct.
        construct_id: within it.
        stream: the stream: made here, imported, encrypted, or another account's by ARN (that
            account's resource policy must then admit this fleet's roles).
        handler: the user's code; or an existing Lambda function of any runtime (also an alias, or
            one that is imported), which is then invoked with the records as the event source
            mapping would, under its own role.
        reading: how records are read: pushed, see :class:`FanOut` (default: shards are polled).
        spill: Lambda runs only what no process of `shardfleet work --stack` has taken within
            ``spill_after_ms``; without a process, all.
        config: options of the fleet, by name.
        experts: options that few fleets need to change, by name.
        name: prefix of worker ids and execution names (default: from the construct's path).
        worker: the worker function.
        manager: the lease manager function.
        tables: existing tables and destinations to use instead of new ones.
        operations: removal, encryption, boundary, logs, tracing.
        architecture: the processor of the functions, and of the packages: arm64 (the default, at
            four fifths of the price) or x86_64.
        runtime: their Python: 3.12, 3.13 or 3.14 (the default).
        sdk_services: bring an SDK that knows only the fleet's services and these (those that the
            handler calls, by boto3's names; empty: it calls none): a quicker cold start. Default:
            Lambda's own SDK, which knows all.
        monitoring: dashboard and alarms: True for those of the run-book's table, what to change of
            it, or False for none.

    Attributes:
        stream: as given.
        config: what the worker is told, complete.
        lease_table: KCL's lease table.
        state_table: the fleet's own state.
        failed_queue: given-up records, or None.
        failed_bucket: given-up records, or None.
        failed_topic: is told of them, or None.
        worker_function: runs the user's handler.
        worker_alias: what executions invoke.
        state_machine: one execution is one worker slot.
        manager_function: assigns leases, starts slots.
        schedule_dead_letters: manager invocations that could not be made.
        worker_options: as given, or the defaults.
        monitoring: alarms, dashboard and widgets, or None.

    Raises:
        ConfigurationError: an option is unknown or out of range; the message begins with this
            construct's path.

    """

    def __init__(
        self,
        scope: Construct,
        construct_id: str,
        *,
        stream: kinesis.IStream,
        handler: HandlerCode | lambda_.IFunction,
        reading: FanOut | None = None,
        spill: bool = False,
        config: FleetOptions = NO_OPTIONS,
        experts: ExpertOptions = NO_EXPERT_OPTIONS,
        name: str | None = None,
        worker: WorkerOptions | None = None,
        manager: ManagerOptions | None = None,
        tables: FleetTables | None = None,
        operations: Operations | None = None,
        architecture: lambda_.Architecture | None = None,
        runtime: lambda_.Runtime | None = None,
        sdk_services: Sequence[str] | None = None,
        monitoring: MonitoringOptions | bool = True,
    ) -> None:
        super().__init__(scope, construct_id)
        worker, manager = worker or WorkerOptions(), manager or ManagerOptions()
        operations, tables = operations or Operations(), tables or FleetTables()
        self.stream, self.worker_options, self._operations = stream, worker, operations
        self._sdk_services, self._reading, self._spill = sdk_services, reading, spill
        try:
            self._handler_function = function_of(handler)
            self._refuse_references(worker, told=monitoring, tables=tables, operations=operations)
            options = config_for(self._handler_function, options_of(config, experts), worker=worker)
            self._platform = lambda_platform(runtime, architecture)
            self._make_stores(options, tables, operations=operations)
            self.config = self._configure(options, handler, name=fleet_name(self, name))
            times = {"worker_timeout_s": worker.timeout_s, "manager_timeout_s": manager.timeout_s}
            check_times(self.config, **times)
            begin_ms, now_ms = self.config.initial_timestamp_ms, round(time.time() * 1_000)
            refuse_future("initial_timestamp_ms", begin_ms, now_ms=now_ms)
        except ConfigurationError as error:
            raise ConfigurationError(f"{self.node.path}: {error}") from error
        self._tell_of_concurrency()
        self._make_functions(handler, worker=worker, manager=manager, operations=operations)
        if isinstance(handler, HandlerCode):
            handler.note_at(self._worker.function)
        self.monitoring = self._watch(told=monitoring)
        self._tell_cost(worker, manager)
        if not operations.tracing:
            acknowledge(self, UNTRACED)
        if operations.permissions_boundary:
            iam.PermissionsBoundary.of(self).apply(operations.permissions_boundary)

    def _refuse_references(
        self,
        worker: WorkerOptions,
        *,
        told: MonitoringOptions | bool,
        tables: FleetTables,
        operations: Operations,
    ) -> None:
        if not isinstance(told, MonitoringOptions):
            told = MonitoringOptions()
        refuse_wrong_references(
            self,
            [
                *references_of_fleet(
                    self.stream,
                    self._handler_function,
                    reading=self._reading,
                    worker=worker,
                    tables=tables,
                    operations=operations,
                ),
                *of_topics("monitoring.page", told.page),
                *of_topics("monitoring.notice", told.notice),
                *of_alarm("monitoring.quiet_while", told.quiet_while),
            ],
        )

    def _tell_of_concurrency(self) -> None:
        """Note at synth how many executions Lambda must allow; the account's limit is unknown."""
        wanted = self.config.max_workers + 1  # And the manager.
        said = (
            f"max_workers {self.config.max_workers} and the manager are {wanted} executions at a "
            "time: Lambda allows an account {most}, for all its functions. Where they "
            "are used up no manager runs: ask for more at Service Quotas (Concurrent executions), "
            "or lower max_workers."
        )
        if wanted > CONCURRENCY_BY_DEFAULT:
            told = said.format(most=f"{CONCURRENCY_BY_DEFAULT:,} by default")
            Annotations.of(self).add_warning_v2("shardfleet:concurrency", told)
        elif wanted > CONCURRENCY_OF_A_NEW_ACCOUNT:
            most = f"{CONCURRENCY_BY_DEFAULT:,} by default, a new one "
            told = said.format(most=f"{most}{CONCURRENCY_OF_A_NEW_ACCOUNT}")
            Annotations.of(self).add_info_v2("shardfleet:concurrency", told)

    def _watch(self, *, told: MonitoringOptions | bool) -> FleetMonitoring | None:
        if told is False:
            return None
        options = MonitoringOptions() if told is True else told
        watched = WatchedFleet(
            name=self.config.fleet,
            has_all_metrics=self.config.writes_all_metrics,
            stream=self.stream,
            lease_table=self.lease_table,
            worker=self.worker_function,
            worker_options=self.worker_options,
            machine=self.state_machine,
            manager=self.manager_function,
            schedule_dead_letters=self.schedule_dead_letters,
            failed_queue=self.failed_queue,
        )
        return FleetMonitoring(self, "Monitoring", fleet=watched, options=options)

    @property
    def grant_principal(self) -> iam.IPrincipal:
        """Return who the user's handler runs as, so that ``bucket.grant_put(fleet)`` works."""
        function = self._handler_function
        return function.grant_principal if function else self._worker.role

    def grant_work(self, grantee: iam.IGrantable) -> None:
        """Let a process that runs as this principal carry slots: `shardfleet work --stack`."""
        for right in permissions.process_rights(
            self._resources(self._operations),
            state_machine=self.state_machine,
            manager_arn=self.manager_function.function_arn,
        ):
            grantee.grant_principal.add_to_principal_policy(right)

    def _make_stores(
        self, options: Mapping[str, object], tables: FleetTables, *, operations: Operations
    ) -> None:
        key = operations.encryption_key
        if key:
            permissions.let_logs_use(key)
        self.lease_table: ddb.ITable = tables.lease_table or lease_table(
            self, "Leases", operations=operations
        )
        self.state_table = state_table(self, "State", operations=operations)
        failed = FailedRecordDestinations(
            self,
            "FailedRecords",
            on_exhausted=str(options.get("on_exhausted", "stop")),
            has_windows=bool(options.get("tumbling_window_ms")),
            given=tables,
            operations=operations,
        )
        self.failed_queue, self.failed_bucket = failed.queue, failed.bucket
        self.failed_topic = failed.topic

    def _consumer_arn(self, name: str) -> str:
        if self._reading is None:
            return ""
        if self._reading.consumer_arn is not None:
            return self._reading.consumer_arn
        made = kinesis.CfnStreamConsumer(
            self, "Consumer", consumer_name=name, stream_arn=self.stream.stream_arn
        )
        return made.attr_consumer_arn

    def _configure(
        self, options: Mapping[str, object], handler: HandlerCode | lambda_.IFunction, *, name: str
    ) -> FleetConfig:
        code = handler if isinstance(handler, HandlerCode) else None
        function = self._handler_function
        return FleetConfig(
            fleet=name,
            stream_arn=self.stream.stream_arn,
            consumer_arn=self._consumer_arn(name),
            spill=self._spill,
            lease_table=self.lease_table.table_name,
            state_table=self.state_table.table_name,
            handler=code.function if code else "",
            handler_contract=code.contract if code else "auto",
            handler_function=function.function_arn if function else "",
            failed_queue_url=self.failed_queue.queue_url if self.failed_queue else "",
            failed_bucket=self.failed_bucket.bucket_name if self.failed_bucket else "",
            failed_topic_arn=self.failed_topic.topic_arn if self.failed_topic else "",
            **options,  # type: ignore[arg-type]  # FleetConfig itself refuses wrong values.
        )

    def _resources(self, operations: Operations) -> permissions.Resources:
        return permissions.Resources(
            fleet=self.config.fleet,
            stream=self.stream,
            consumer_arn=self.config.consumer_arn,
            lease_table=self.lease_table,
            kcl_tables=self.config.kcl_tables,
            state_table=self.state_table,
            failed_queue=self.failed_queue,
            failed_bucket=self.failed_bucket,
            failed_topic=self.failed_topic,
            has_windows=self.config.tumbling_window_ms > 0,
            handler_function=self._handler_function,
            encryption_key=operations.encryption_key,
        )

    def _tell_cost(self, worker: WorkerOptions, manager: ManagerOptions) -> None:
        watch, config = self.monitoring, self.config
        setup = Setup(
            shards=0,
            worker_mb=worker.memory_mb,
            manager_mb=manager.memory_mb,
            worker_timeout_ms=worker.timeout_s * 1_000,
            alarm_metrics=watch.alarm_metrics if watch else 0,
            composites=1 if watch else 0,
            dashboards=1 if watch and watch.dashboard else 0,
        )
        told = {
            "cost": cost_estimate.fleet_cost(
                config,
                setup,
                shards=cost_estimate.shards_of(self.stream),
                machine=self._platform.packages.machine,
            )
        }
        if config.consumer_arn:
            told["fan-out"] = cost_estimate.fan_out_cost()
        if config.spill:
            told["spill"] = cost_estimate.spill_cost(config, setup)
        if config.sleep:
            told["sleep"] = cost_estimate.sleep_cost(config)
        if config.tumbling_window_ms:
            told["windows"] = cost_estimate.window_cost(config)
        for what, words in told.items():
            Annotations.of(self).add_info_v2(f"shardfleet:{what}", words)

    def _make_layers(self) -> FleetLayers:
        services = self._sdk_services
        if services is not None and self.failed_topic:
            services = [*services, "sns"]
        return FleetLayers(self, "Layers", platform=self._platform, sdk_services=services)

    def _make_functions(
        self,
        handler: HandlerCode | lambda_.IFunction,
        *,
        worker: WorkerOptions,
        manager: ManagerOptions,
        operations: Operations,
    ) -> None:
        resources = self._resources(operations)
        layers = self._make_layers()
        self._worker = WorkerFunction(
            self,
            "Worker",
            config=self.config,
            handler=handler if isinstance(handler, HandlerCode) else None,
            layers=layers,
            options=worker,
            operations=operations,
            resources=resources,
        )
        machine = WorkerMachine(
            self, "Slots", worker=self._worker, options=worker, operations=operations
        )
        told = manager_config(self.config, machine=machine.machine, worker=self._worker.function)
        self._manager = LeaseManagerFunction(
            self,
            "Manager",
            config=told,
            layers=layers,
            options=manager,
            operations=operations,
            resources=resources,
            machine=machine,
        )
        first_run = FirstRun(
            self,
            "FirstRun",
            manager=self._manager,
            config=told,
            layers=layers,
            operations=operations,
            machine=machine.machine,
        )
        first_run.resource.node.add_dependency(self.lease_table, self.state_table)
        first_run.resource.node.add_dependency(machine, self._manager)
        self.worker_function = self._worker.function
        self.worker_alias = self._worker.alias
        self.state_machine = machine.machine
        self.manager_function = self._manager.function
        self.schedule_dead_letters = self._manager.dead_letters
