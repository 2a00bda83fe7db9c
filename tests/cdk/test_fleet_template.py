"""What a fleet deploys: the least it can, and everything it can."""

import json
import re

import pytest

from shardfleet import FleetConfig
from shardfleet.adapters.dynamodb.state import EXPIRES
from shardfleet.config import ALLOCATOR
from shardfleet_ops.cli.fleets import FLEET, inside
from tests.cdk.templates import definition, of_type, only, spelled


def environment(template, handler):
    functions = of_type(template, "AWS::Lambda::Function").values()
    function = next(f for f in functions if f["Handler"] == handler)
    return function["Environment"]["Variables"]


WORKER = "shardfleet.runtime.entry_points.worker_handler"
MANAGER = "handler.manager_handler"


def test_the_minimum_is_made_of_these_resources_and_no_others(minimum):
    kinds = [resource["Type"] for resource in minimum["Resources"].values()]

    assert {kind: kinds.count(kind) for kind in sorted(set(kinds))} == {
        "AWS::DynamoDB::Table": 2,
        # The state machine's: log delivery, and starting its successor; the worker's: its manager.
        "AWS::IAM::Policy": 3,
        "AWS::IAM::Role": 5,
        "AWS::Kinesis::Stream": 1,
        "AWS::Lambda::Alias": 1,
        "AWS::Lambda::EventInvokeConfig": 1,
        "AWS::Lambda::Function": 3,
        "AWS::Lambda::LayerVersion": 2,
        "AWS::Lambda::Version": 1,
        "AWS::Logs::LogGroup": 4,
        "AWS::SQS::Queue": 1,
        "AWS::SQS::QueuePolicy": 1,
        "AWS::Scheduler::Schedule": 1,
        "AWS::StepFunctions::StateMachine": 1,
        "Custom::ShardFleetFirstRun": 1,
    }


def test_the_lease_table_has_the_kcls_schema_and_index(minimum):
    table = only(minimum, "AWS::DynamoDB::Table", inside="FleetLeases")

    assert table["KeySchema"] == [{"AttributeName": "leaseKey", "KeyType": "HASH"}]
    assert table["GlobalSecondaryIndexes"] == [
        {
            "IndexName": "LeaseOwnerToLeaseKeyIndex",
            "KeySchema": [
                {"AttributeName": "leaseOwner", "KeyType": "HASH"},
                {"AttributeName": "leaseKey", "KeyType": "RANGE"},
            ],
            "Projection": {"ProjectionType": "KEYS_ONLY"},
        }
    ]
    assert {(a["AttributeName"], a["AttributeType"]) for a in table["AttributeDefinitions"]} == {
        ("leaseKey", "S"),
        ("leaseOwner", "S"),
    }


def test_the_fleets_own_state_has_a_table_of_its_own(minimum):
    table = only(minimum, "AWS::DynamoDB::Table", inside="FleetState")

    assert table["KeySchema"] == [
        {"AttributeName": "kind", "KeyType": "HASH"},
        {"AttributeName": "id", "KeyType": "RANGE"},
    ]
    assert "GlobalSecondaryIndexes" not in table
    assert table["TimeToLiveSpecification"] == {"AttributeName": EXPIRES, "Enabled": True}


def test_tables_are_paid_per_request_and_recoverable_to_a_point_in_time(minimum):
    for table in of_type(minimum, "AWS::DynamoDB::Table").values():
        assert table["BillingMode"] == "PAY_PER_REQUEST"
        assert table["PointInTimeRecoverySpecification"] == {"PointInTimeRecoveryEnabled": True}


@pytest.mark.parametrize(
    ("variant", "policy"), [("minimum", "RetainExceptOnCreate"), ("everything", "Delete")]
)
def test_what_holds_data_is_kept_unless_it_shall_go(request, variant, policy):
    template = request.getfixturevalue(variant)
    keeping = {"AWS::DynamoDB::Table", "AWS::Logs::LogGroup", "AWS::SQS::Queue", "AWS::S3::Bucket"}
    fleet = [
        resource
        for name, resource in template["Resources"].items()
        if resource["Type"] in keeping and name.startswith("Fleet")
    ]

    assert {resource["DeletionPolicy"] for resource in fleet} == {policy}


@pytest.mark.parametrize(
    ("variant", "protected"),
    [("Minimum", {True}), ("Everything", {False}), ("Told", {False})],
)
def test_both_tables_are_protected_unless_they_shall_go_or_somebody_says_so(
    template_of, variant, protected
):
    tables = of_type(template_of(variant), "AWS::DynamoDB::Table", inside="Fleet")
    assert len(tables) == 2
    assert {each["DeletionProtectionEnabled"] for each in tables.values()} == protected


def test_a_new_topic_is_encrypted_with_a_key_that_lets_the_worker_publish(template_of):
    """SNS developer guide, "Key management": who may use SNS here may use AWS's key through it."""
    topic = only(template_of("Told"), "AWS::SNS::Topic")
    key = "arn:<AWS::Partition>:kms:<AWS::Region>:<AWS::AccountId>:alias/aws/sns"
    assert spelled(topic["KmsMasterKeyId"]) == key


def test_functions_run_on_arm64_with_the_newest_python(minimum):
    for function in of_type(minimum, "AWS::Lambda::Function").values():
        assert function["Architectures"] == ["arm64"]
        assert function["Runtime"] == "python3.14"


def test_manager_and_worker_are_told_the_same_fleet(minimum):
    manager, worker = environment(minimum, MANAGER), environment(minimum, WORKER)
    own = {
        "SHARDFLEET_HANDLER",
        "SHARDFLEET_STATE_MACHINE_ARN",
        "SHARDFLEET_WORKER_FUNCTION",
        *ALLOCATOR,
    }

    assert {name: worker[name] for name in worker.keys() - own} == {
        name: manager[name] for name in manager.keys() - own
    }
    assert worker["SHARDFLEET_HANDLER"] == "handler:handle"
    assert spelled(manager["SHARDFLEET_STATE_MACHINE_ARN"]).startswith("<FleetSlotsMachine")
    assert spelled(manager["SHARDFLEET_WORKER_FUNCTION"]).startswith("<FleetWorkerFunction")


def test_the_library_reads_back_the_environment_that_the_construct_writes(everything):
    variables = {name: spelled(v) for name, v in environment(everything, WORKER).items()}
    config = FleetConfig.from_env(variables)

    assert (config.fleet, config.handler, config.handler_contract) == (
        *("clicks", "clicks:collect", "native"),
    )
    assert (config.on_exhausted, config.max_attempts, config.leases_per_worker) == ("sqs", 3, 4)
    assert config.failed_queue_url.startswith("<FleetFailedRecordsQueue")
    assert config.failed_bucket.startswith("<FleetFailedRecordsBucket")
    assert variables["TARGET"] == "here"


def test_a_worker_keeps_its_memory_unless_the_user_says_otherwise(minimum, everything):
    assert ALLOCATOR.items() <= environment(minimum, WORKER).items()
    assert environment(everything, WORKER)["MALLOC_ARENA_MAX"] == "2"


def test_executions_call_the_alias_of_a_published_version(minimum):
    alias_id, alias = next(iter(of_type(minimum, "AWS::Lambda::Alias").items()))
    version_id = next(iter(of_type(minimum, "AWS::Lambda::Version")))

    assert alias["Name"] == "live"
    assert alias["FunctionVersion"] == {"Fn::GetAtt": [version_id, "Version"]}
    assert minimum["Resources"][version_id]["DeletionPolicy"] == "Retain"
    task = definition(minimum)["States"]["RunWorker"]
    assert task["Arguments"]["FunctionName"] == f"<{alias_id}>"


def test_the_task_waits_longer_than_the_function_may_run(everything):
    assert definition(everything)["States"]["RunWorker"]["TimeoutSeconds"] == 330


def test_the_schedule_runs_each_minute_and_repeats_nothing(minimum):
    schedule = only(minimum, "AWS::Scheduler::Schedule")
    target = schedule["Target"]

    assert schedule["ScheduleExpression"] == "rate(1 minute)"
    assert schedule["FlexibleTimeWindow"] == {"Mode": "OFF"}
    assert target["RetryPolicy"] == {
        "MaximumEventAgeInSeconds": 60,
        "MaximumRetryAttempts": 0,
    }
    assert spelled(target["Arn"]).startswith("<FleetManagerFunction")
    assert spelled(target["DeadLetterConfig"]["Arn"]).startswith("<FleetManagerDeadLetters")


def test_an_asynchronous_run_of_the_manager_is_not_repeated(minimum):
    settings = only(minimum, "AWS::Lambda::EventInvokeConfig")

    assert (settings["MaximumRetryAttempts"], settings["MaximumEventAgeInSeconds"]) == (0, 60)


def test_no_concurrency_is_reserved_unless_asked_for(minimum, everything):
    def reserved(template):
        functions = of_type(template, "AWS::Lambda::Function", inside="Fleet").values()
        return sorted(f.get("ReservedConcurrentExecutions", 0) for f in functions)

    assert reserved(minimum) == [0, 0, 0]
    assert reserved(everything) == [0, 1, 5]


def test_the_first_run_comes_after_everything_it_needs(minimum):
    first_run = next(
        resource
        for resource in minimum["Resources"].values()
        if resource["Type"] == "Custom::ShardFleetFirstRun"
    )
    needed = ("FleetLeases", "FleetState", "FleetSlotsMachine", "FleetSlotsContinueAsNew")
    needed += ("FleetManagerFunction", "FleetManagerSchedule")

    for prefix in needed:
        assert any(name.startswith(prefix) for name in first_run["DependsOn"]), prefix


def test_the_first_run_is_repeated_when_configuration_or_code_change(minimum):
    first_run = only(minimum, "Custom::ShardFleetFirstRun")

    assert first_run["Configuration"] == environment(minimum, MANAGER)
    assert {spelled(layer) for layer in first_run["Layers"]} == {
        f"<{name}>" for name in of_type(minimum, "AWS::Lambda::LayerVersion")
    }


def test_log_groups_have_a_retention(minimum, everything):
    def days(template):
        groups = of_type(template, "AWS::Logs::LogGroup", inside="Fleet").values()
        return [group["RetentionInDays"] for group in groups]

    assert days(minimum) == [30] * 4
    assert days(everything) == [7] * 4


def test_the_machine_logs_errors_without_data(minimum):
    logging = only(minimum, "AWS::StepFunctions::StateMachine")["LoggingConfiguration"]

    assert (logging["Level"], logging["IncludeExecutionData"]) == ("ERROR", False)


def test_no_resource_has_a_name_that_a_second_fleet_would_have_too(template_of):
    """Only the vended log group has a name, with the stack's unique id in it."""
    template = template_of("Two")
    physical = re.compile(
        r"^((Function|Table|Role|Queue|Bucket|Layer|LogGroup|StateMachine)?Name)$"
    )
    named = {
        (resource["Type"], spelled(value))
        for resource in template["Resources"].values()
        for name, value in resource.get("Properties", {}).items()
        if physical.match(name) and not spelled(value).startswith("<")
    }
    groups = {name for kind, name in named if kind == "AWS::Logs::LogGroup"}

    assert {kind for kind, _ in named} == {"AWS::Logs::LogGroup", "AWS::Lambda::Alias"}
    assert len(groups) == 2
    assert all("part 2 of <AWS::StackId>" in group for group in groups)


def test_two_fleets_of_one_stack_have_names_tables_and_machines_of_their_own(template_of):
    template = template_of("Two")
    fleets = {
        function["Environment"]["Variables"]["SHARDFLEET_FLEET"]
        for function in of_type(template, "AWS::Lambda::Function").values()
        if function["Handler"] == WORKER
    }

    assert len(fleets) == 2
    assert len(of_type(template, "AWS::StepFunctions::StateMachine")) == 2
    assert len(of_type(template, "AWS::DynamoDB::Table")) == 4


def test_a_command_finds_each_fleet_of_a_stack_and_what_is_its_own(template_of):
    template = template_of("Two")
    markers = of_type(template, FLEET)

    assert {inside(each) for each in markers} == {"First", "Second"}
    for logical, marker in markers.items():
        assert spelled(marker["Manager"]).startswith(f"<{inside(logical)}ManagerFunction")


def test_an_existing_lease_table_is_used_as_it_is(existing_parts):
    tables = of_type(existing_parts, "AWS::DynamoDB::Table")

    assert [name[:10] for name in tables] == ["FleetState"]
    assert environment(existing_parts, WORKER)["SHARDFLEET_LEASE_TABLE"] == "kcl-application"


def test_failed_records_go_where_they_are_told_to(existing_parts):
    worker = environment(existing_parts, WORKER)

    assert worker["SHARDFLEET_FAILED_BUCKET"] == "given-up"
    assert of_type(existing_parts, "AWS::S3::Bucket") == {}


def test_new_destinations_of_failed_records_are_encrypted_and_take_tls_only(everything):
    queue = only(everything, "AWS::SQS::Queue", inside="FleetFailedRecords")
    bucket = only(everything, "AWS::S3::Bucket", inside="FleetFailedRecords")
    policies = [
        *of_type(everything, "AWS::SQS::QueuePolicy", inside="FleetFailedRecords").values(),
        *of_type(everything, "AWS::S3::BucketPolicy", inside="FleetFailedRecords").values(),
    ]

    assert spelled(queue["KmsMasterKeyId"]).startswith("<Key")
    rule = bucket["BucketEncryption"]["ServerSideEncryptionConfiguration"][0]
    assert rule["ServerSideEncryptionByDefault"]["SSEAlgorithm"] == "aws:kms"
    assert set(bucket["PublicAccessBlockConfiguration"].values()) == {True}
    assert len(policies) == 2
    for policy in policies:
        denied = policy["PolicyDocument"]["Statement"][0]
        assert denied["Effect"] == "Deny"
        assert denied["Condition"] == {"Bool": {"aws:SecureTransport": "false"}}


def test_a_customer_key_encrypts_all_that_the_fleet_keeps(everything):
    properties = {
        "AWS::DynamoDB::Table": lambda p: p["SSESpecification"]["KMSMasterKeyId"],
        "AWS::SQS::Queue": lambda p: p["KmsMasterKeyId"],
        "AWS::Logs::LogGroup": lambda p: p["KmsKeyId"],
        "AWS::StepFunctions::StateMachine": lambda p: p["EncryptionConfiguration"]["KmsKeyId"],
        "AWS::Lambda::Function": lambda p: p["KmsKeyArn"] if "Environment" in p else None,
    }
    for kind, key_of in properties.items():
        found = [key_of(p) for p in of_type(everything, kind, inside="Fleet").values()]
        assert {spelled(key)[:4] for key in found if key} == {"<Key"}, kind


def test_tracing_is_on_everywhere_or_nowhere(minimum, everything):
    def modes(template):
        functions = of_type(template, "AWS::Lambda::Function", inside="Fleet").values()
        return {json.dumps(f.get("TracingConfig")) for f in functions}

    assert modes(minimum) == {"null"}
    assert modes(everything) == {'{"Mode": "Active"}'}
    machine = only(everything, "AWS::StepFunctions::StateMachine")
    assert machine["TracingConfiguration"] == {"Enabled": True}


def test_the_worker_alone_runs_in_the_vpc(everything):
    inside = {
        function["Handler"]
        for function in of_type(everything, "AWS::Lambda::Function", inside="Fleet").values()
        if "VpcConfig" in function
    }

    assert inside == {WORKER}
