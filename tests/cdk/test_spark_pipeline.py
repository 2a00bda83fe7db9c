"""`SparkPipeline`: what is deployed, who may do what, and that the job understands its plan."""

import importlib.util
import json
from pathlib import Path

import pytest

from shardfleet.errors import ConfigurationError
from shardfleet_local.emr_serverless.requests import check
from shardfleet_spark.aws import seal_stores
from shardfleet_spark.options.options import read_options
from shardfleet_spark.options.source_options import SourceOptions
from shardfleet_spark.pipelines.plan import PipelinePlan
from shardfleet_spark.publish.figures import LAG, NAMESPACE
from tests.cdk.templates import definition, of_type, only, rights, spelled

ROLE = "arn:aws:iam::111122223333:role/job"
LEASE_ACTIONS = ("DeleteItem", "DescribeTable", "GetItem", "PutItem", "Scan", "UpdateItem")
ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture(scope="module")
def archive(template_of):
    return template_of("SparkMinimum")


@pytest.fixture(scope="module")
def merging(template_of):
    return template_of("SparkTable")


@pytest.fixture(scope="module")
def counting(template_of):
    return template_of("SparkEverything")


def spark_look():
    """The module of the function that looks."""
    file = ROOT / "functions/spark_job/spark_look.py"
    spec = importlib.util.spec_from_file_location("deployed_spark_look", file)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def named(template, kind, prefix):
    (name,) = [name for name in of_type(template, kind) if name.startswith(prefix)]
    return name


def event_of(template):
    """What the state machine hands to the function that looks."""
    return definition(template)["States"]["Look"]["Arguments"]["Payload"]


def driver_of(template):
    return event_of(template)["StartJobRun"]


def plan_of(template):
    """Return the plan with the names of resources in the place of references to them."""
    text = json.dumps(event_of(template)["Plan"])
    return PipelinePlan.from_json(text.replace("<", "").replace(">", ""))


def test_the_job_understands_its_plan(archive, counting):
    plan = plan_of(archive)

    assert plan.transform == "archive"
    assert plan.source.startswith("shardfleet:Clicks")
    assert plan.sink.startswith("parquet:s3://ArchiveWork")
    assert plan.checkpoint.startswith("s3://ArchiveWork")
    assert plan.source_options["sealStore"].startswith("s3://ArchiveWork")
    assert plan_of(counting).transform == "handler:handle"
    assert plan_of(counting).sink.startswith("shardfleet:Counts")


def test_the_query_shows_its_positions_and_figures_unless_told_not_to(archive, counting):
    options = plan_of(archive).source_options
    lag = next(
        each
        for each in of_type(archive, "AWS::CloudWatch::Alarm").values()
        if each["MetricName"] == LAG
    )

    assert options["publishTo"].startswith("ArchivePositions")
    assert lag["Namespace"] == NAMESPACE
    assert options["metrics"] == f"cloudwatch:{lag['Dimensions'][0]['Value']}"
    known = {"stream": "clicks", **options, "publishTo": "table", "sealStore": "file:seals"}
    assert read_options(SourceOptions, known).publish_interval_ms == 30_000
    assert set(plan_of(counting).source_options) & {"publishTo", "metrics"} == set()


def test_the_application_has_a_breaker_of_cost_and_stops_when_idle(archive, counting):
    plain = only(archive, "AWS::EMRServerless::Application")
    other = only(counting, "AWS::EMRServerless::Application")

    assert (plain["Type"], plain["ReleaseLabel"]) == ("SPARK", "emr-spark-8.0.0")
    assert plain["MaximumCapacity"] == {"Cpu": "16 vCPU", "Memory": "64 GB"}
    assert plain["AutoStopConfiguration"] == {"Enabled": True, "IdleTimeoutMinutes": 15}
    assert "NetworkConfiguration" not in plain
    assert other["MaximumCapacity"] == {"Cpu": "8 vCPU", "Memory": "32 GB"}
    assert len(other["NetworkConfiguration"]["SubnetIds"]) == 2
    assert len(other["NetworkConfiguration"]["SecurityGroupIds"]) == 1


def test_a_streaming_job_is_repeated_by_emr_and_a_finite_one_by_the_schedule(archive, counting):
    assert driver_of(archive)["Mode"] == "STREAMING"
    assert driver_of(archive)["RetryPolicy"] == {"MaxFailedAttemptsPerHour": 5}
    assert driver_of(counting)["Mode"] == "BATCH"
    assert "RetryPolicy" not in driver_of(counting)
    assert only(archive, "AWS::Scheduler::Schedule")["ScheduleExpression"] == "rate(5 minutes)"
    assert only(counting, "AWS::Scheduler::Schedule")["ScheduleExpression"] == "rate(1 hour)"


def test_python_and_the_packages_are_named_to_driver_and_executors(counting):
    submitted = driver_of(counting)["JobDriver"]["SparkSubmit"]["SparkSubmitParameters"]

    for setting in (
        "spark.emr-serverless.driverEnv.PYSPARK_DRIVER_PYTHON=/usr/bin/python3.11",
        "spark.emr-serverless.driverEnv.PYTHONPATH=./environment",
        "spark.executorEnv.PYSPARK_PYTHON=/usr/bin/python3.11",
        "spark.executorEnv.PYTHONPATH=./environment",
        "spark.executor.memory=2g",
        "spark.dynamicAllocation.initialExecutors=1",
        "spark.dynamicAllocation.maxExecutors=1",
    ):
        assert f"--conf {setting}" in submitted
    assert ".zip#environment" in submitted


def test_a_run_is_asked_for_in_words_that_the_service_knows(archive, counting):
    """R01: for as long as it takes; R06: the token is the function's, of 64 characters."""
    for template in (archive, counting):
        assert driver_of(template)["ExecutionTimeoutMinutes"] == 0
        event = json.loads(json.dumps(event_of(template)).replace("<", "").replace(">", ""))
        request = spark_look().in_sdk_words(event["StartJobRun"])
        known = {"applicationId": "00f1", "executionRoleArn": ROLE, "name": event["Name"]}
        monitoring = request["configurationOverrides"]["monitoringConfiguration"]
        assert monitoring["cloudWatchLoggingConfiguration"]["enabled"] is True
        check("StartJobRun", request | known | {"clientToken": "a" * 64})


def test_a_replaced_run_has_time_for_its_batch(archive):
    assert event_of(archive)["GraceSeconds"] == 120
    assert set(event_of(archive)) == {
        "Fleet",
        "GraceSeconds",
        "Name",
        "Plan",
        "Stack",
        "StartJobRun",
    }


def test_two_runs_at_once_are_queued_by_the_service(archive):
    application = only(archive, "AWS::EMRServerless::Application")
    assert application["SchedulerConfiguration"] == {"MaxConcurrentRuns": 1}


def test_the_job_is_ended_before_its_application_is_changed_and_before_it_goes(archive):
    """Finding A3: what comes before is what the other depends on."""
    ends = of_type(archive, "Custom::ShardFleetSparkJob")
    (before,) = [name for name, each in ends.items() if each["On"] == "Update"]
    (after,) = [name for name, each in ends.items() if each["On"] == "Delete"]
    application = named(archive, "AWS::EMRServerless::Application", "Archive")
    assert before in archive["Resources"][application]["DependsOn"]
    assert application in archive["Resources"][after]["DependsOn"]
    assert ends[before]["Application"] == application
    assert "emr-spark-8.0.0" in spelled(ends[before]["Settings"])
    policy = named(archive, "AWS::IAM::Policy", "ArchiveJobEndRights")
    assert policy in archive["Resources"][after]["DependsOn"]
    # The end waits for looks that began before: as long as their function may run.
    look = named(archive, "AWS::Lambda::Function", "ArchiveJobLook")
    timeout = archive["Resources"][look]["Properties"]["Timeout"]
    assert {each["WatchSeconds"] for each in ends.values()} == {timeout}


def test_the_seals_of_a_pipeline_live_as_long_as_in_a_table(archive):
    bucket = archive["Resources"][named(archive, "AWS::S3::Bucket", "ArchiveWork")]
    (rule,) = bucket["Properties"]["LifecycleConfiguration"]["Rules"]
    assert (rule["Prefix"], rule["ExpirationInDays"]) == ("seals/", seal_stores._LIVES_S / 86_400)


def test_the_job_of_an_archive_may_exactly_this(archive):
    role = named(archive, "AWS::IAM::Role", "ArchiveJobRole")
    stream = f"<{named(archive, 'AWS::Kinesis::Stream', 'Clicks')}.Arn>"
    bucket = f"<{named(archive, 'AWS::S3::Bucket', 'ArchiveWork')}.Arn>"
    logs = f"<{named(archive, 'AWS::Logs::LogGroup', 'ArchiveLogs')}.Arn>"
    table = f"<{named(archive, 'AWS::DynamoDB::Table', 'ArchivePositions')}.Arn>"
    folders = ("checkpoint", "seals", "data")
    objects = ("AbortMultipartUpload", "DeleteObject", "GetObject", "PutObject")

    found = rights(archive, role)

    assets = {right for right in found if "cdk-hnb659fds-assets" in right}
    assert found - assets == (
        {
            f"kinesis:{action} on {stream}"
            for action in ("DescribeStreamSummary", "GetRecords", "GetShardIterator", "ListShards")
        }
        | {f"s3:{action} on {bucket}/{folder}/*" for action in objects for folder in folders}
        | {
            f"s3:ListBucket on {bucket} if s3:prefix StringLike {folder} | {folder}/*"
            for folder in folders
        }
        | {
            f"logs:{action} on {group}"
            for action in ("CreateLogStream", "DescribeLogStreams", "PutLogEvents")
            for group in (logs, f"{logs}:log-stream:*")
        }
        | {"logs:DescribeLogGroups on *"}
        | {f"dynamodb:{action} on {table}" for action in LEASE_ACTIONS}
        | {"cloudwatch:PutMetricData on * if cloudwatch:namespace StringEquals shardfleet"}
    )
    assert len(assets) == 2
    assert all(right.startswith("s3:GetObject on ") for right in assets)


def test_bad_records_go_to_a_folder_that_the_job_may_write(archive, counting):
    role = named(counting, "AWS::IAM::Role", "CountingJobRole")

    assert plan_of(archive).bad_records == ""
    assert plan_of(counting).bad_records == "s3://given-work/bad"
    assert any(
        "s3:PutObject on" in r and r.endswith("given-work/bad/*") for r in rights(counting, role)
    )


def test_a_table_is_merged_into_and_a_schema_of_glue_may_be_asked_for(archive, counting, merging):
    plan = plan_of(merging)
    of_glue = [
        {
            right
            for right in rights(each, named(each, "AWS::IAM::Role", f"{pipeline}JobRole"))
            if right.startswith("glue:")
        }
        for each, pipeline in ((merging, "Merging"), (archive, "Archive"), (counting, "Counting"))
    ]

    assert plan.to_place.format == "delta"
    assert plan.merge_keys == ("page", "user")
    assert plan.payload == "avro-glue"
    # A version's id tells neither registry nor schema: AWS's guide to the registry lets whoever
    # reads ask about any.
    assert of_glue == [{"glue:GetSchemaVersion on *"}, set(), set()]


def test_a_role_of_its_own_that_asks_glue_needs_no_right_of_the_jobs():
    from shardfleet_cdk import PipelineWork  # noqa: PLC0415 - it starts Node.

    options = {"roleARN": ROLE}
    assert PipelineWork(payload="avro-glue", schema="1").asks_glue
    assert not PipelineWork(payload="avro-glue", schema="1", payload_options=options).asks_glue
    assert not PipelineWork(payload="avro-confluent", schema="1").asks_glue


def test_a_sink_is_written_and_not_read(counting):
    role = named(counting, "AWS::IAM::Role", "CountingJobRole")
    sink = f"<{named(counting, 'AWS::Kinesis::Stream', 'Counts')}.Arn>"

    assert {right for right in rights(counting, role) if right.endswith(sink)} == {
        f"kinesis:{action} on {sink}"
        for action in ("DescribeStreamSummary", "ListShards", "PutRecords")
    }


def test_each_function_may_do_its_part_and_the_machine_invokes_one(archive):
    application = f"<{named(archive, 'AWS::EMRServerless::Application', 'Archive')}.Arn>"
    job = f"<{named(archive, 'AWS::IAM::Role', 'ArchiveJobRole')}.Arn>"
    look = f"<{named(archive, 'AWS::Lambda::Function', 'ArchiveJobLook')}.Arn>"

    def found(prefix):
        role = named(archive, "AWS::IAM::Role", prefix)
        return {right for right in rights(archive, role) if not right.startswith("logs:")}

    assert found("ArchiveWatchRole") == {f"lambda:InvokeFunction on {look}"}
    assert found("ArchiveJobLookRole") == {
        "cloudformation:DescribeStacks on <AWS::StackId>",
        f"emr-serverless:ListJobRuns on {application}",
        f"emr-serverless:StartJobRun on {application}",
        f"emr-serverless:CancelJobRun on {application}/jobruns/*",
        f"emr-serverless:GetJobRun on {application}/jobruns/*",
        f"iam:PassRole on {job} if iam:PassedToService StringEquals emr-serverless.amazonaws.com",
    }
    assert found("ArchiveJobEndRole") == {
        "cloudformation:DescribeStackResource on <AWS::StackId>",
        f"emr-serverless:GetApplication on {application}",
        f"emr-serverless:ListJobRuns on {application}",
        f"emr-serverless:StopApplication on {application}",
        f"emr-serverless:CancelJobRun on {application}/jobruns/*",
        f"emr-serverless:GetJobRun on {application}/jobruns/*",
    }


def test_what_stops_or_falls_behind_is_told(archive, counting):
    alarms = {
        props["MetricName"]: props for props in of_type(archive, "AWS::CloudWatch::Alarm").values()
    }
    finite = {
        props["MetricName"]: props for props in of_type(counting, "AWS::CloudWatch::Alarm").values()
    }

    assert set(alarms) == {
        "ExecutionsFailed",
        "FailedJobs",
        "RunningJobs",
        "job_failures_in_a_row",
        "millis_behind_latest",
    }
    assert alarms["RunningJobs"]["TreatMissingData"] == "breaching"
    assert alarms["millis_behind_latest"]["Threshold"] == 900_000
    assert alarms["job_failures_in_a_row"]["Threshold"] == 3
    assert spark_look().FAILURES in alarms
    assert alarms["job_failures_in_a_row"]["Namespace"] == spark_look().NAMESPACE
    (dimension,) = alarms["job_failures_in_a_row"]["Dimensions"]
    assert dimension == {"Name": "fleet", "Value": event_of(archive)["Fleet"]}
    # It is not meant to run all the time, and says nothing of itself.
    own = {"RunningJobs", "millis_behind_latest"}
    assert set(finite) == (set(alarms) - own) | {"GetRecords.IteratorAgeMilliseconds"}
    assert finite["GetRecords.IteratorAgeMilliseconds"]["Threshold"] == 60_000
    assert all(len(props["AlarmActions"]) == 1 for props in finite.values())


def test_the_work_bucket_is_kept_closed_and_private(archive):
    (bucket,) = [
        each
        for name, each in archive["Resources"].items()
        if each["Type"] == "AWS::S3::Bucket" and name.startswith("ArchiveWork")
    ]

    assert bucket["DeletionPolicy"] == "RetainExceptOnCreate"
    assert set(bucket["Properties"]["PublicAccessBlockConfiguration"].values()) == {True}


def test_the_boundary_is_on_every_role(counting):
    roles = of_type(counting, "AWS::IAM::Role", inside="Counting")

    assert len(roles) == 5
    assert all("boundary" in spelled(role["PermissionsBoundary"]) for role in roles.values())


def test_cdk_nag_finds_nothing(assembly):
    report = json.loads((assembly / "validation-report.json").read_text("utf-8"))

    assert "Spark" not in json.dumps(report.get("pluginReports", report))


def test_contradicting_options_are_refused(tmp_path):
    from aws_cdk import Stack  # noqa: PLC0415 - it starts Node.
    from aws_cdk import aws_kinesis as kinesis  # noqa: PLC0415

    from shardfleet_cdk import (  # noqa: PLC0415
        PipelineWork,
        SparkOptions,
        SparkPipeline,
        TransformCode,
    )

    (tmp_path / "transform.py").write_text("def transform(df):\n    return df\n", "utf-8")
    code = TransformCode(folder=tmp_path)
    stack = Stack()
    stream = kinesis.Stream(stack, "Clicks")
    with pytest.raises(ConfigurationError, match="None: either code"):
        SparkPipeline(stack, "None", source=stream)
    with pytest.raises(ConfigurationError, match="either code"):
        SparkPipeline(
            stack, "Both", source=stream, code=code, work=PipelineWork(transform="archive")
        )
    with pytest.raises(ConfigurationError, match="bad_records 'bad': schema is needed"):
        PipelineWork(transform="archive", bad_records="bad")
    with pytest.raises(ConfigurationError, match="merge_key 'a': sink_format is 'parquet'"):
        PipelineWork(transform="archive", merge_key="a")
    with pytest.raises(ConfigurationError, match=r"Merged: merge_key 'a': the sink is a stream"):
        SparkPipeline(
            stack,
            "Merged",
            source=stream,
            sink=stream,
            code=code,
            work=PipelineWork(sink_format="delta", merge_key="a"),
        )
    for folder in ("data/bad", "seals"):
        with pytest.raises(
            ConfigurationError, match=f"bad_records '{folder}': a folder of its own"
        ):
            PipelineWork(transform="archive", schema="a int", bad_records=folder)
    with pytest.raises(ConfigurationError, match=r"release_label.*schedule.*max_cpu.*stop_seco"):
        SparkOptions(release_label="8.0", schedule="hourly", max_cpu=0, stop_seconds=14)
    with pytest.raises(ConfigurationError, match="no module sums"):
        TransformCode(folder=tmp_path, function="sums:transform")


def test_the_environment_has_library_transform_and_packages(tmp_path, monkeypatch):
    from shardfleet_cdk import spark_environment  # noqa: PLC0415 - it starts Node.
    from shardfleet_cdk.lambda_platform import Platform  # noqa: PLC0415

    installed = []
    monkeypatch.setattr(
        spark_environment, "install", lambda *given, locked: installed.append((*given, locked))
    )
    code, output = tmp_path / "code", tmp_path / "output"
    code.mkdir()
    (code / "delays.py").write_text("def transform(df):\n    return df\n", "utf-8")

    spark_environment._Bundling(code).try_bundle(str(output), None)

    for file in (
        "delays.py",
        "shardfleet/domain/stream/shards.py",
        "shardfleet/producer/kinesis_writer.py",
        "shardfleet_spark/pipelines/job.py",
        "pyspark_shardfleet/__init__.py",
    ):
        assert (output / file).is_file(), file
    assert not (output / "shardfleet_local").exists()
    python = Platform("3.11", "aarch64")
    assert installed == [(ROOT / "spark/requirements.txt", output, python, True)]


def test_the_environment_pins_what_the_lock_pins():
    def pins(name):
        lines = (ROOT / name).read_text("utf-8").splitlines()
        return {line.split(" ")[0] for line in lines if "==" in line and line[0].isalpha()}

    assert pins("spark/requirements.txt") <= pins("requirements.lock")
