"""
`SparkPipeline`: a stream through Spark on EMR Serverless, started, kept running and watched.

Nothing of it has a cost while it is not deployed, and a streaming job never idles to zero: the
job's workers are paid for as long as it runs.
"""

from __future__ import annotations

from typing import Any

from aws_cdk import Annotations, Aws, Duration, Names, RemovalPolicy, Stack
from aws_cdk import aws_ec2 as ec2
from aws_cdk import aws_emrserverless as emr
from aws_cdk import aws_iam as iam
from aws_cdk import aws_kinesis as kinesis
from aws_cdk import aws_s3 as s3
from aws_cdk import aws_scheduler as scheduler
from aws_cdk import aws_stepfunctions as sfn
from constructs import Construct

from shardfleet.errors import ConfigurationError
from shardfleet_cdk import acknowledgements as nag
from shardfleet_cdk import cost_estimate
from shardfleet_cdk import spark_permissions as permissions
from shardfleet_cdk.failed_records import dead_letter_queue
from shardfleet_cdk.functions import log_group
from shardfleet_cdk.lease_table import lease_table
from shardfleet_cdk.naming import vended_log_group_name
from shardfleet_cdk.options import Operations
from shardfleet_cdk.permissions import let_logs_use
from shardfleet_cdk.references import (
    of_topics,
    references_of_pipeline,
    refuse_wrong_references,
)
from shardfleet_cdk.spark_alarms import Watched, make_alarms
from shardfleet_cdk.spark_environment import (
    PYTHON,
    UNPACKED,
    TransformCode,
    environment_asset,
    job_asset,
)
from shardfleet_cdk.spark_job import SparkJobFunctions
from shardfleet_cdk.spark_options import (
    CHECKPOINT,
    SEALS,
    PipelineWork,
    SparkAlarms,
    SparkBuckets,
    SparkOptions,
)
from shardfleet_cdk.spark_watch import JobRun, Look, watch_definition
from shardfleet_ops.template.limits import INITIAL_EXECUTORS

NAME_MOST = 64  # EMR Serverless: of an application.
# The application is the query's own, so nobody takes a lease that stands still for a while.
_PUBLISH_INTERVAL = "30s"
# As the time to live of a seal in DynamoDB (shardfleet_spark.aws.seal_stores).
_SEALS_LIVE_DAYS = 400
_WATCH_MINUTES_MOST = 4  # Less than the schedule's interval: two looks never overlap.


class SparkPipeline(Construct):
    """
    A pipeline from a stream to a stream or to files.

    Args:
        scope: the parent construct.
        construct_id: within it.
        source: the stream that is read.
        sink: the stream that is written; None: files in the sink's bucket.
        code: the user's transform; None for ``archive`` and ``aggregate``.
        work: what the pipeline does.
        spark: the application and its job.
        buckets: where files go.
        alarms: who is told.
        operations: removal, encryption, boundary, logs.

    Attributes:
        application: of EMR Serverless.
        job_role: what driver and executors may do; a principal for rights of the transform's own.
        work_bucket: checkpoint and seals.
        lease_table: the query's positions, as leases of a KCL application of its own; None where
            they are not published.
        state_machine: looks after the job: starts, replaces or leaves its run.
        plan: the job's one argument.

    Raises:
        ConfigurationError: options contradict each other; begins with the construct's path.

    """

    def __init__(
        self,
        scope: Construct,
        construct_id: str,
        *,
        source: kinesis.IStream,
        sink: kinesis.IStream | None = None,
        code: TransformCode | None = None,
        work: PipelineWork | None = None,
        spark: SparkOptions | None = None,
        buckets: SparkBuckets | None = None,
        alarms: SparkAlarms | None = None,
        operations: Operations | None = None,
    ) -> None:
        super().__init__(scope, construct_id)
        work, spark = work or PipelineWork(), spark or SparkOptions()
        buckets, operations = buckets or SparkBuckets(), operations or Operations()
        self._refuse_contradictions(sink, code=code, work=work)
        self._refuse_references(
            source, sink, buckets=buckets, alarms=alarms or SparkAlarms(), operations=operations
        )
        if operations.encryption_key:
            let_logs_use(operations.encryption_key)
        self.work_bucket = buckets.work or self._new_bucket(operations)
        self._sink_bucket = buckets.sink or self.work_bucket
        self.lease_table = (
            lease_table(self, "Positions", operations=operations) if work.publish else None
        )
        self.plan = self._plan(source, sink, code=code, work=work)
        self._make_job(source, sink, code=code, work=work, operations=operations)
        self._functions = SparkJobFunctions(
            self, "Job", operations=operations, stop_seconds=spark.stop_seconds
        )
        self._make_application(spark)
        self._functions.serve(self.application, self.job_role)
        self._keep_running(work, spark, operations=operations)
        watched = Watched(
            source=source,
            application_id=self.application.attr_application_id,
            state_machine=self.state_machine,
            name=self._name,
            publishes=self.lease_table is not None,
        )
        make_alarms(self, watched, alarms or SparkAlarms(), streaming=work.streaming)
        self._tell_price(work, spark)
        if not operations.tracing:
            nag.acknowledge(self, nag.UNTRACED)
        if operations.permissions_boundary:
            iam.PermissionsBoundary.of(self).apply(operations.permissions_boundary)

    def _refuse_contradictions(
        self, sink: kinesis.IStream | None, *, code: TransformCode | None, work: PipelineWork
    ) -> None:
        if bool(code) == bool(work.transform):
            raise ConfigurationError(
                f"{self.node.path}: either code with a function of yours, or work.transform = "
                "archive or aggregate"
            )
        if sink and work.merge_key:
            raise ConfigurationError(
                f"{self.node.path}: merge_key {work.merge_key!r}: the sink is a stream, and rows "
                "are merged into a table: leave one of them out"
            )

    def _refuse_references(
        self,
        source: kinesis.IStream,
        sink: kinesis.IStream | None,
        *,
        buckets: SparkBuckets,
        alarms: SparkAlarms,
        operations: Operations,
    ) -> None:
        references = references_of_pipeline(
            streams={"source": source, "sink": sink},
            buckets={"buckets.work": buckets.work, "buckets.sink": buckets.sink},
            operations=operations,
        )
        try:
            told = of_topics("alarms.topics", alarms.topics)
            refuse_wrong_references(self, [*references, *told])
        except ConfigurationError as error:
            raise ConfigurationError(f"{self.node.path}: {error}") from error

    def _tell_price(self, work: PipelineWork, spark: SparkOptions) -> None:
        price = cost_estimate.spark_cost(spark, streaming=work.streaming)
        Annotations.of(self).add_info_v2("shardfleet:spark-cost", price)

    @property
    def grant_principal(self) -> iam.IPrincipal:
        """Return who the user's transform runs as, for ``bucket.grant_read(pipeline.job_role)``."""
        return self.job_role

    def _new_bucket(self, operations: Operations) -> s3.Bucket:
        key = operations.encryption_key
        # A run deletes its own seals alone; no stream retains longer what those of others tell of.
        old_seals = s3.LifecycleRule(prefix=f"{SEALS}/", expiration=Duration.days(_SEALS_LIVE_DAYS))
        bucket = s3.Bucket(
            self,
            "Work",
            block_public_access=s3.BlockPublicAccess.BLOCK_ALL,
            encryption=s3.BucketEncryption.KMS if key else s3.BucketEncryption.S3_MANAGED,
            encryption_key=key,
            bucket_key_enabled=True if key else None,
            enforce_ssl=True,
            lifecycle_rules=[old_seals],
            removal_policy=operations.removal_policy,
        )
        nag.acknowledge(bucket, nag.WORK_BUCKET)
        return bucket

    def _plan(
        self,
        source: kinesis.IStream,
        sink: kinesis.IStream | None,
        *,
        code: TransformCode | None,
        work: PipelineWork,
    ) -> dict[str, Any]:
        own = f"s3://{self.work_bucket.bucket_name}"
        kept = f"s3://{self._sink_bucket.bucket_name}"
        files = f"{kept}/{work.sink_prefix}"
        return {
            "source": f"shardfleet:{source.stream_arn}",
            "sink": f"shardfleet:{sink.stream_arn}" if sink else f"{work.sink_format}:{files}",
            "transform": code.function if code else work.transform,
            "schema": work.schema,
            "payload": work.payload,
            "payload_options": dict(work.payload_options),
            "bad_records": work.bad_records and f"{kept}/{work.bad_records}",
            "source_options": {
                "sealStore": f"{own}/{SEALS}",
                **self._published(),
                **work.source_options,
            },
            "sink_options": dict(work.sink_options),
            "merge_key": work.merge_key,
            "settings": dict(work.settings),
            "checkpoint": f"{own}/{CHECKPOINT}",
            "trigger": work.trigger,
            "output_mode": work.output_mode,
        }

    def _published(self) -> dict[str, str]:
        """Return the options by which the query shows its positions and its figures."""
        if self.lease_table is None:
            return {}
        return {
            "publishTo": self.lease_table.table_name,
            "publishInterval": _PUBLISH_INTERVAL,
            "metrics": f"cloudwatch:{self._name}",
        }

    @property
    def _name(self) -> str:
        return Names.unique_resource_name(self, max_length=NAME_MOST, separator="-")

    def _make_job(
        self,
        source: kinesis.IStream,
        sink: kinesis.IStream | None,
        *,
        code: TransformCode | None,
        work: PipelineWork,
        operations: Operations,
    ) -> None:
        self._environment = environment_asset(self, "Environment", code=code)
        self._program = job_asset(self, "Program")
        self.log_group = log_group(self, "Logs", operations=operations)
        folders = [(self.work_bucket, CHECKPOINT), (self.work_bucket, SEALS)]
        if not sink:
            folders.append((self._sink_bucket, work.sink_prefix))
        if work.bad_records:
            folders.append((self._sink_bucket, work.bad_records))
        resources = permissions.JobResources(
            source=source,
            sink=sink,
            folders=folders,
            positions=self.lease_table,
            asks_glue=work.asks_glue,
            code=(self._environment, self._program),
            log_group_arn=self.log_group.log_group_arn,
        )
        self.job_role = permissions.job_role(self, "JobRole", resources)
        for bucket, prefix in folders:
            objects = bucket.arn_for_objects(f"{prefix}/*")
            nag.acknowledge(self.job_role, nag.wildcard(self, objects, nag.JOB_OBJECTS))
        streams = f"{self.log_group.log_group_arn}:log-stream:*"
        nag.acknowledge(self.job_role, nag.wildcard(self, streams, nag.JOB_LOG_STREAMS))
        nag.acknowledge(self.job_role, nag.JOB_LOG_GROUPS)

    def _make_application(self, spark: SparkOptions) -> None:
        capacity = emr.CfnApplication.MaximumAllowedResourcesProperty(
            cpu=f"{spark.max_cpu} vCPU", memory=f"{spark.max_memory_gb} GB"
        )
        settings: dict[str, Any] = {
            "release_label": spark.release_label,
            "architecture": "ARM64",
            "maximum_capacity": capacity,
            "auto_start_configuration": emr.CfnApplication.AutoStartConfigurationProperty(
                enabled=True
            ),
            "auto_stop_configuration": emr.CfnApplication.AutoStopConfigurationProperty(
                enabled=True, idle_timeout_minutes=15
            ),
            # Never two runs on the one checkpoint, whoever starts them.
            "scheduler_configuration": emr.CfnApplication.SchedulerConfigurationProperty(
                max_concurrent_runs=1
            ),
            "network_configuration": self._network(spark),
        }
        self.application = emr.CfnApplication(
            self, "Application", name=self._name, type="SPARK", **settings
        )
        self.application.apply_removal_policy(RemovalPolicy.DESTROY)  # It holds no data.
        self._functions.before(self.application, settings)

    def _network(
        self, spark: SparkOptions
    ) -> emr.CfnApplication.NetworkConfigurationProperty | None:
        if spark.vpc is None:
            Annotations.of(self).add_warning_v2(
                "shardfleet:spark-vpc",
                "Without `vpc` the job reaches Kinesis only if EMR's own network has a way to it: "
                "give a VPC with an interface endpoint for Kinesis or a NAT.",
            )
            return None
        groups = list(spark.security_groups) or [
            ec2.SecurityGroup(self, "SecurityGroup", vpc=spark.vpc, allow_all_outbound=True)
        ]
        subnets = spark.subnets or spark.vpc.private_subnets or spark.vpc.isolated_subnets
        return emr.CfnApplication.NetworkConfigurationProperty(
            subnet_ids=[subnet.subnet_id for subnet in subnets],
            security_group_ids=[group.security_group_id for group in groups],
        )

    def _keep_running(
        self, work: PipelineWork, spark: SparkOptions, *, operations: Operations
    ) -> None:
        run = JobRun(
            application_id=self.application.attr_application_id,
            role_arn=self.job_role.role_arn,
            name="shardfleet-pipeline",
            entry_point=self._program.s3_object_url,
            plan=self.plan,
            conf=self._conf(spark),
            streaming=work.streaming,
            attempts=spark.attempts,
            log_group=self.log_group.log_group_name,
        )
        look = Look(
            function_arn=self._functions.look.function_arn,
            stack_id=Aws.STACK_ID,
            fleet=self._name,
            stop_seconds=spark.stop_seconds,
        )
        definition = watch_definition(run, look, partition=Aws.PARTITION)
        role = permissions.watch_role(self, "WatchRole", function_arn=look.function_arn)
        logs_to = log_group(
            self, "WatchLogs", operations=operations, name=vended_log_group_name(self)
        )
        self.state_machine = sfn.StateMachine(
            self,
            "Watch",
            definition_body=sfn.DefinitionBody.from_string(
                Stack.of(self).to_json_string(definition)
            ),
            role=role,
            logs=sfn.LogOptions(
                destination=logs_to, level=sfn.LogLevel.ALL, include_execution_data=False
            ),
            tracing_enabled=operations.tracing,
            timeout=Duration.minutes(_WATCH_MINUTES_MOST),
        )
        nag.acknowledge(role, nag.MACHINE_ROLE)
        self._schedule(spark, operations)

    def _conf(self, spark: SparkOptions) -> dict[str, str]:
        """Return Spark's settings: where Python and the packages are, and how many executors."""
        serverless = "spark.emr-serverless.driverEnv"
        return {
            "spark.archives": f"{self._environment.s3_object_url}#{UNPACKED}",
            f"{serverless}.PYSPARK_DRIVER_PYTHON": PYTHON,
            f"{serverless}.PYSPARK_PYTHON": PYTHON,
            f"{serverless}.PYTHONPATH": f"./{UNPACKED}",
            "spark.executorEnv.PYSPARK_PYTHON": PYTHON,
            "spark.executorEnv.PYTHONPATH": f"./{UNPACKED}",
            "spark.dynamicAllocation.minExecutors": "0",
            "spark.dynamicAllocation.initialExecutors": str(
                min(INITIAL_EXECUTORS, spark.max_executors)
            ),
            "spark.dynamicAllocation.maxExecutors": str(spark.max_executors),
            "spark.sql.session.timeZone": "UTC",
            **spark.conf,
        }

    def _schedule(self, spark: SparkOptions, operations: Operations) -> None:
        dead_letters = dead_letter_queue(self, "DeadLetters", operations=operations)
        role = permissions.schedule_role(
            self,
            "ScheduleRole",
            machine_arn=self.state_machine.state_machine_arn,
            dead_letters=dead_letters,
        )
        scheduler.CfnSchedule(
            self,
            "Schedule",
            description="shardfleet: looks after a Spark pipeline",
            schedule_expression=spark.schedule,
            flexible_time_window=scheduler.CfnSchedule.FlexibleTimeWindowProperty(mode="OFF"),
            target=scheduler.CfnSchedule.TargetProperty(
                arn=self.state_machine.state_machine_arn,
                role_arn=role.role_arn,
                input="{}",
                dead_letter_config=scheduler.CfnSchedule.DeadLetterConfigProperty(
                    arn=dead_letters.queue_arn
                ),
                retry_policy=scheduler.CfnSchedule.RetryPolicyProperty(
                    maximum_event_age_in_seconds=60, maximum_retry_attempts=0
                ),
            ),
        )
