"""The variants of a fleet that the template tests look at; each makes one stack in an app."""

import functools

from aws_cdk import (
    Acknowledgment,
    App,
    CloudFormationValidatePlugin,
    Environment,
    RemovalPolicies,
    RemovalPolicy,
    Stack,
    Validations,
)
from aws_cdk import aws_cloudwatch as cw
from aws_cdk import aws_dynamodb as ddb
from aws_cdk import aws_ec2 as ec2
from aws_cdk import aws_iam as iam
from aws_cdk import aws_kinesis as kinesis
from aws_cdk import aws_kms as kms
from aws_cdk import aws_logs as logs
from aws_cdk import aws_s3 as s3
from aws_cdk import aws_sns as sns
from aws_cdk import aws_sqs as sqs

from shardfleet_cdk import (
    AlarmLevel,
    AlarmSetting,
    FanOut,
    FleetTables,
    HandlerCode,
    ManagerOptions,
    MonitoringOptions,
    Operations,
    PipelineWork,
    ShardFleet,
    SparkAlarms,
    SparkBuckets,
    SparkOptions,
    SparkPipeline,
    TransformCode,
    WorkerOptions,
)
from shardfleet_cdk.synthesis import NO_BUNDLING, add_checks, project_context, synthesize
from tests.cdk.templates import FOREIGN_STREAM

# Where the judge asks whether a fleet with everything can be deployed: one region a partition.
REGIONS = {"eu-central-1": "aws", "cn-north-1": "aws-cn", "us-gov-west-1": "aws-us-gov"}


def synthesize_all(outdir, *, plain, packed):
    """Synthesize every variant into one folder; what the CDK and cdk-nag find is in its report."""
    app = App(outdir=str(outdir), context={**project_context(), **NO_BUNDLING})
    variants_of(app, plain=plain, packed=packed)
    judge(app)
    try:
        app.synth()
    except RuntimeError as error:
        if "ValidationFailed" not in str(error):
            raise


def judge(app):
    """Let cdk-nag judge an app, and the rules that the CDK brings, which other tests leave out."""
    add_checks(app)
    Validations.of(app).add_plugins(own_rules())


@functools.cache
def own_rules():
    """Return the CDK's own rules; 7 s of processor time go by until they can be asked."""
    return CloudFormationValidatePlugin()


def variants_of(app, *, plain, packed):
    minimum(app, plain)
    two_fleets(app, plain)
    everything(Stack(app, "Everything"), packed)
    existing_parts(app, plain)
    told_of(app, plain)
    spark_variants(app, transform=plain)
    spark_table(app, transform=plain)


def synthesize_for_the_judge(outdir, *, plain, packed):
    """Synthesize the variants, and those that only the judge looks at, in the apps they need."""
    app = App(outdir=str(outdir / "flags"), context={**project_context(), **NO_BUNDLING})
    variants_of(app, plain=plain, packed=packed)
    short_turns(app, plain)
    for region in REGIONS:
        stack = Stack(app, f"In-{region}", env=Environment(account="111122223333", region=region))
        everything(stack, packed)
    app.synth()
    app = App(outdir=str(outdir / "no-flags"), context=NO_BUNDLING)
    everything(Stack(app, "NoFlags"), packed)
    app.synth()
    synthesize(outdir / "repository")


def told_of(app, folder):
    """Make a fleet whose records are pushed, and whose failures a topic is told of."""
    stack = Stack(app, "Told")
    ShardFleet(
        stack,
        "Fleet",
        stream=a_stream(stack),
        handler=HandlerCode(folder=folder),
        reading=FanOut(),
        config={"on_exhausted": "sns"},
        operations=Operations(deletion_protection=False),
        monitoring=False,
    )


def short_turns(app, folder):
    """Make a fleet whose workers and manager come and go each minute, its failures in SQS."""
    stack = Stack(app, "ShortTurns")
    ShardFleet(
        stack,
        "Fleet",
        stream=a_stream(stack),
        handler=HandlerCode(folder=folder),
        config={"on_exhausted": "sqs", "handler_timeout_ms": 30_000},
        worker=WorkerOptions(timeout_s=60),
    )


def a_stream(stack, name="Clicks", **encryption):
    """Make a stream that goes with its stack: what stays is the fleets' own question."""
    encryption = encryption or {"encryption": kinesis.StreamEncryption.MANAGED}
    return kinesis.Stream(stack, name, removal_policy=RemovalPolicy.DESTROY, **encryption)


def a_network(stack):
    vpc = ec2.Vpc(stack, "Network", max_azs=2, nat_gateways=0)
    RemovalPolicies.of(vpc.add_flow_log("Flow")).destroy()
    return vpc


def a_key(stack, name):
    return kms.Key(stack, name, enable_key_rotation=True, removal_policy=RemovalPolicy.DESTROY)


def minimum(app, folder):
    stack = Stack(app, "Minimum")
    stream = a_stream(stack)
    ShardFleet(stack, "Fleet", stream=stream, handler=HandlerCode(folder=folder), monitoring=False)


def two_fleets(app, folder):
    stack = Stack(app, "Two")
    stream = a_stream(stack)
    ShardFleet(stack, "First", stream=stream, handler=HandlerCode(folder=folder))
    ShardFleet(
        stack,
        "Second",
        stream=stream,
        handler=HandlerCode(folder=folder),
        config={"metrics": "all"},
        monitoring=MonitoringOptions(by_cause=True),
    )


def everything(stack, folder):
    key, stream_key = a_key(stack, "Key"), a_key(stack, "StreamKey")
    stream = a_stream(stack, encryption=kinesis.StreamEncryption.KMS, encryption_key=stream_key)
    costly = Acknowledgment(id="AwsSolutions-KDS3", reason="The test wants a customer key.")
    Validations.of(stream).acknowledge(costly)
    vpc = a_network(stack)
    fleet = ShardFleet(
        stack,
        "Fleet",
        stream=stream,
        handler=HandlerCode(folder=folder, function="clicks:collect", contract="native"),
        config={
            "on_exhausted": "sqs",
            "max_attempts": 3,
            "leases_per_worker": 4,
            "metrics": "shards",
        },
        name="clicks",
        worker=WorkerOptions(
            memory_mb=1024,
            timeout_s=300,
            environment={"TARGET": "here", "MALLOC_ARENA_MAX": "2"},
            vpc=vpc,
            subnets=ec2.SubnetSelection(subnet_type=ec2.SubnetType.PRIVATE_ISOLATED),
            reserved_concurrency=5,
            max_loops=50,
        ),
        manager=ManagerOptions(memory_mb=512, timeout_s=90, reserved_concurrency=1),
        operations=Operations(
            removal_policy=RemovalPolicy.DESTROY,
            encryption_key=key,
            permissions_boundary=iam.ManagedPolicy.from_managed_policy_name(
                stack, "Boundary", "boundary"
            ),
            log_retention=logs.RetentionDays.ONE_WEEK,
            tracing=True,
        ),
        monitoring=watching(stack, key),
    )
    target = sqs.Queue(stack, "Target", enforce_ssl=True)
    Validations.of(target).acknowledge(
        Acknowledgment(id="AwsSolutions-SQS3", reason="The user's own."),
        Acknowledgment(id="Serverless-SQSRedrivePolicy", reason="The user's own."),
    )
    fleet.grant_principal.add_to_principal_policy(
        iam.PolicyStatement(actions=["sqs:SendMessage"], resources=[target.queue_arn])
    )


def watching(stack, key):
    topics = {
        name: sns.Topic(stack, name, master_key=key, enforce_ssl=True)
        for name in ("Pager", "Notices")
    }
    region = stack.region if stack.region in REGIONS else "eu-central-1"
    deploying = f"arn:{REGIONS[region]}:cloudwatch:{region}:111122223333:alarm:deploying"
    return MonitoringOptions(
        page=[topics["Pager"]],
        notice=[topics["Notices"]],
        by_cause=True,
        retention_hours=168,
        runbook="https://example.org/runbook",
        quiet_while=cw.Alarm.from_alarm_arn(stack, "Deploying", deploying),
        alarms={
            "lag": AlarmSetting(threshold=60_000, datapoints=2, periods=4, level=AlarmLevel.PAGE),
            "hot_shard": None,
        },
    )


def existing_parts(app, folder):
    stack = Stack(app, "ExistingParts")
    ShardFleet(
        stack,
        "Fleet",
        stream=kinesis.Stream.from_stream_arn(stack, "Orders", FOREIGN_STREAM),
        handler=HandlerCode(folder=folder),
        config={
            "on_exhausted": "s3",
            "tumbling_window_ms": 60_000,
        },
        experts={
            "kcl_metrics_table": "orders-WorkerMetricStats",
            "kcl_state_table": "orders-CoordinatorState",
        },
        tables=FleetTables(
            lease_table=ddb.Table.from_table_name(stack, "Application", "kcl-application"),
            failed_bucket=s3.Bucket.from_bucket_name(stack, "Failed", "given-up"),
        ),
    )


def spark_table(app, *, transform):
    """A pipeline into a table that is merged by key."""
    stack = Stack(app, "SparkTable")
    vpc = a_network(stack)
    SparkPipeline(
        stack,
        "Merging",
        source=a_stream(stack),
        code=TransformCode(folder=transform, function="handler:handle"),
        work=PipelineWork(
            sink_format="delta",
            merge_key="page,user",
            payload="avro-glue",
            schema='{"type": "record", "name": "Click", "fields": []}',
        ),
        spark=SparkOptions(vpc=vpc, subnets=vpc.isolated_subnets),
    )


def spark_variants(app, *, transform):
    """A pipeline with the defaults, and one with everything."""
    stack = Stack(app, "SparkMinimum")
    Validations.of(stack).acknowledge(
        Acknowledgment(id="Annotation::shardfleet:spark-vpc", reason="The test wants no VPC.")
    )
    stream = a_stream(stack)
    SparkPipeline(stack, "Archive", source=stream, work=PipelineWork(transform="archive"))

    stack = Stack(app, "SparkEverything")
    key = a_key(stack, "Key")
    vpc = a_network(stack)
    streams = [a_stream(stack, name) for name in ("Clicks", "Counts")]
    topic = sns.Topic(stack, "Pager", master_key=key, enforce_ssl=True)
    SparkPipeline(
        stack,
        "Counting",
        source=streams[0],
        sink=streams[1],
        code=TransformCode(folder=transform, function="handler:handle"),
        work=PipelineWork(
            schema="origin string", bad_records="bad", trigger="available-now", publish=False
        ),
        spark=SparkOptions(
            vpc=vpc,
            subnets=vpc.isolated_subnets,
            release_label="emr-spark-8.1.0",
            max_cpu=8,
            max_memory_gb=32,
            max_executors=1,
            conf={"spark.executor.memory": "2g"},
            schedule="rate(1 hour)",
            attempts=3,
        ),
        buckets=SparkBuckets(work=s3.Bucket.from_bucket_name(stack, "Given", "given-work")),
        alarms=SparkAlarms(topics=[topic], lag_ms=60_000),
        operations=Operations(
            removal_policy=RemovalPolicy.DESTROY,
            encryption_key=key,
            tracing=True,
            permissions_boundary=iam.ManagedPolicy.from_managed_policy_name(
                stack, "Boundary", "boundary"
            ),
        ),
    )
