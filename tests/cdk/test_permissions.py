"""Rights, exactly: a right that is added anywhere shows up here."""

from tests.cdk.templates import FOREIGN_STREAM, conditions, denials, of_type, rights, spelled

STREAM = ("DescribeStreamSummary", "GetRecords", "GetShardIterator", "ListShards")
DATA_KEY = ("Decrypt", "DescribeKey", "Encrypt", "GenerateDataKey")
DATA_KEY += ("GenerateDataKeyWithoutPlaintext", "ReEncryptFrom", "ReEncryptTo")
LOG_DELIVERY = ("CreateLogDelivery", "DeleteLogDelivery", "DescribeLogGroups")
LOG_DELIVERY += ("DescribeResourcePolicies", "GetLogDelivery", "ListLogDeliveries")
LOG_DELIVERY += ("PutResourcePolicy", "UpdateLogDelivery")
TABLE = "arn:<AWS::Partition>:dynamodb:<AWS::Region>:<AWS::AccountId>:table"


def named(template, kind, prefix):
    names = [name for name in of_type(template, kind) if name.startswith(prefix)]
    assert len(names) == 1, names
    return names[0]


def ids(template):
    """Logical ids by a short word."""
    wanted = {
        "stream": ("AWS::Kinesis::Stream", "Clicks"),
        "leases": ("AWS::DynamoDB::Table", "FleetLeases"),
        "state": ("AWS::DynamoDB::Table", "FleetState"),
        "machine": ("AWS::StepFunctions::StateMachine", "Fleet"),
        "manager": ("AWS::Lambda::Function", "FleetManager"),
        "alias": ("AWS::Lambda::Alias", "Fleet"),
        "dead": ("AWS::SQS::Queue", "FleetManagerDeadLetters"),
        "worker_logs": ("AWS::Logs::LogGroup", "FleetWorker"),
        "manager_logs": ("AWS::Logs::LogGroup", "FleetManager"),
        "first_logs": ("AWS::Logs::LogGroup", "FleetFirstRun"),
        "worker_role": ("AWS::IAM::Role", "FleetWorkerRole"),
        "manager_role": ("AWS::IAM::Role", "FleetManagerRole"),
        "machine_role": ("AWS::IAM::Role", "FleetSlotsRole"),
        "schedule_role": ("AWS::IAM::Role", "FleetManagerScheduleRole"),
        "first_role": ("AWS::IAM::Role", "FleetFirstRunRole"),
    }
    return {word: named(template, *place) for word, place in wanted.items()}


def on(service, actions, resource, condition=""):
    suffix = f" if {condition}" if condition else ""
    return {f"{service}:{action} on {resource}{suffix}" for action in actions}


def logs_of(group):
    return on("logs", ("CreateLogStream", "PutLogEvents"), f"<{group}.Arn>")


# By https://docs.aws.amazon.com/amazondynamodb/latest/developerguide/specifying-conditions.html
# the leading key is the partition key, here a document's kind.
OWN_DOCUMENTS = (
    "dynamodb:LeadingKeys ForAllValues:StringLike gone | lanes | ledger * | nap | note | pin"
    " | prompt | slot | stop | stream | tip | window and dynamodb:LeadingKeys Null false"
)


def test_the_worker_may_exactly_this(minimum):
    at = ids(minimum)

    assert rights(minimum, at["worker_role"]) == (
        on("kinesis", STREAM, f"<{at['stream']}.Arn>")
        | on("dynamodb", ["Query"], f"<{at['leases']}.Arn>/index/LeaseOwnerToLeaseKeyIndex")
        | on("dynamodb", ["GetItem", "PutItem", "UpdateItem"], f"<{at['leases']}.Arn>")
        | on("dynamodb", ["GetItem"], f"<{at['state']}.Arn>")
        | on("dynamodb", ["UpdateItem"], f"<{at['state']}.Arn>", OWN_DOCUMENTS)
        | on("lambda", ["InvokeFunction"], f"<{at['manager']}.Arn>")
        | logs_of(at["worker_logs"])
    )


def test_the_worker_may_neither_scan_nor_delete(everything):
    actions = {right.split(" ")[0] for right in rights(everything, ids(everything)["worker_role"])}
    own_network = {"ec2:DeleteNetworkInterface"}

    assert not {a for a in actions if "Scan" in a or "Delete" in a or "*" in a} - own_network


def test_in_a_vpc_what_lambda_may_do_with_interfaces_is_denied_to_the_functions_code(everything):
    """Lambda developer guide, "Giving Lambda functions access to resources in an Amazon VPC"."""
    role = ids(everything)["worker_role"]
    allowed = {right for right in rights(everything, role) if right.startswith("ec2:")}
    assert allowed == on(
        "ec2",
        [
            "AssignPrivateIpAddresses",
            "CreateNetworkInterface",
            "DeleteNetworkInterface",
            "DescribeNetworkInterfaces",
            "DescribeSubnets",
            "UnassignPrivateIpAddresses",
        ],
        "*",
    )
    assert denials(everything, role) == {
        f"{right} if lambda:SourceFunctionArn Null false" for right in allowed
    }


def test_the_manager_may_exactly_this(minimum):
    at = ids(minimum)
    execution = "arn:<AWS::Partition>:states:<AWS::Region>:<AWS::AccountId>:execution:"

    assert rights(minimum, at["manager_role"]) == (
        on("kinesis", STREAM, f"<{at['stream']}.Arn>")
        | on(
            "dynamodb",
            ["DeleteItem", "GetItem", "PutItem", "Scan", "UpdateItem"],
            f"<{at['leases']}.Arn>",
        )
        | on(
            "dynamodb",
            ["DeleteItem", "Scan", "UpdateItem"],
            f"{TABLE}/<{at['leases']}>-WorkerMetricStats",
        )
        | on("dynamodb", ["GetItem"], f"{TABLE}/<{at['leases']}>-CoordinatorState")
        | on(
            "dynamodb",
            ["DeleteItem", "GetItem", "Query", "Scan", "UpdateItem"],
            f"<{at['state']}.Arn>",
        )
        | on("states", ["StartExecution"], f"<{at['machine']}>")
        | on("states", ["DescribeExecution"], f"{execution}<{at['machine']}.Name>:*")
        | logs_of(at["manager_logs"])
    )


def test_the_manager_may_do_the_same_to_a_kcl_3s_tables_of_other_names(existing_parts):
    role = named(existing_parts, "AWS::IAM::Role", "FleetManagerRole")
    of_kcl = {right for right in rights(existing_parts, role) if "/orders-" in right}

    assert of_kcl == (
        on("dynamodb", ["DeleteItem", "Scan", "UpdateItem"], f"{TABLE}/orders-WorkerMetricStats")
        | on("dynamodb", ["GetItem"], f"{TABLE}/orders-CoordinatorState")
    )


def test_the_machine_may_exactly_this(minimum):
    at = ids(minimum)

    assert rights(minimum, at["machine_role"]) == (
        on("lambda", ["InvokeFunction"], f"<{at['alias']}>")
        | on("states", ["StartExecution"], f"<{at['machine']}>")
        | on("logs", LOG_DELIVERY, "*")
    )


def test_the_schedule_may_exactly_this(minimum):
    at = ids(minimum)

    assert rights(minimum, at["schedule_role"]) == (
        on("lambda", ["InvokeFunction"], f"<{at['manager']}.Arn>")
        | on("sqs", ["SendMessage"], f"<{at['dead']}.Arn>")
    )


def test_only_this_accounts_schedules_may_be_the_schedule(minimum):
    role = minimum["Resources"][ids(minimum)["schedule_role"]]["Properties"]
    trust = role["AssumeRolePolicyDocument"]["Statement"][0]

    assert conditions(trust["Condition"]) == (
        "aws:SourceAccount StringEquals <AWS::AccountId> and aws:SourceArn StringEquals "
        "arn:<AWS::Partition>:scheduler:<AWS::Region>:<AWS::AccountId>:schedule-group/default"
    )


def test_the_first_run_may_invoke_the_manager_end_the_workers_and_log(minimum):
    at = ids(minimum)
    execution = "arn:<AWS::Partition>:states:<AWS::Region>:<AWS::AccountId>:execution:"

    assert rights(minimum, at["first_role"]) == (
        on("lambda", ["InvokeFunction"], f"<{at['manager']}.Arn>")
        | on("cloudformation", ["DescribeStacks"], "<AWS::StackId>")
        | on("states", ["DeleteStateMachine", "ListExecutions"], f"<{at['machine']}>")
        | on("states", ["StopExecution"], f"{execution}<{at['machine']}.Name>:*")
        | logs_of(at["first_logs"])
    )


def test_no_role_has_a_managed_policy(minimum, everything):
    for template in (minimum, everything):
        for role in of_type(template, "AWS::IAM::Role", inside="Fleet").values():
            assert "ManagedPolicyArns" not in role


def test_an_encrypted_stream_brings_the_right_to_decrypt_it(everything):
    at = ids(everything)
    key = named(everything, "AWS::KMS::Key", "StreamKey")

    for role in ("worker_role", "manager_role"):
        assert f"kms:Decrypt on <{key}.Arn>" in rights(everything, at[role])
    assert not any(key in right for right in rights(everything, at["machine_role"]))


def test_the_customer_key_is_used_through_the_services_only(everything):
    at = ids(everything)
    key = named(everything, "AWS::KMS::Key", "Key")
    through = {
        "worker_role": ("dynamodb", "sqs", "s3", "lambda"),
        "manager_role": ("dynamodb", "states", "lambda"),
        "schedule_role": ("sqs",),
    }

    for role, services in through.items():
        hosts = " | ".join(f"{service}.<AWS::Region>.<AWS::URLSuffix>" for service in services)
        found = {right for right in rights(everything, at[role]) if f"<{key}.Arn>" in right}
        condition = f"kms:ViaService StringEquals {hosts}"
        assert found == on("kms", DATA_KEY, f"<{key}.Arn>", condition)


def test_the_machine_may_use_the_customer_key_for_its_own_history(everything):
    at = ids(everything)
    key = named(everything, "AWS::KMS::Key", "Key")
    condition = f"kms:EncryptionContext:aws:states:stateMachineArn StringEquals <{at['machine']}>"

    wanted = on("kms", ["Decrypt", "GenerateDataKey"], f"<{key}.Arn>", condition)
    assert wanted <= rights(everything, at["machine_role"])


def test_the_logs_service_may_use_the_customer_key(everything):
    key = everything["Resources"][named(everything, "AWS::KMS::Key", "Key")]["Properties"]
    principals = {
        spelled(statement["Principal"].get("Service", ""))
        for statement in key["KeyPolicy"]["Statement"]
    }

    assert "logs.<AWS::Region>.<AWS::URLSuffix>" in principals


FLEET = "<AWS::AccountId>/<AWS::Region>"


def fleet_of(template):
    worker = template["Resources"][named(template, "AWS::Lambda::Function", "FleetWorker")]
    return worker["Properties"]["Environment"]["Variables"]["SHARDFLEET_FLEET"]


def test_given_up_records_may_be_written_and_not_read(everything, existing_parts):
    worker = rights(everything, ids(everything)["worker_role"])
    queue = named(everything, "AWS::SQS::Queue", "FleetFailedRecords")
    bucket = named(everything, "AWS::S3::Bucket", "FleetFailedRecords")

    assert f"sqs:SendMessage on <{queue}.Arn>" in worker
    assert {right for right in worker if right.startswith("s3:")} == {
        f"s3:PutObject on <{bucket}.Arn>/shardfleet/failed/{FLEET}/{fleet_of(everything)}/*"
    }
    given = rights(existing_parts, named(existing_parts, "AWS::IAM::Role", "FleetWorkerRole"))
    place = f"given-up/shardfleet/failed/{FLEET}/{fleet_of(existing_parts)}/*"
    assert f"s3:PutObject on arn:<AWS::Partition>:s3:::{place}" in given


def test_large_states_of_windows_are_in_the_fleets_part_of_the_bucket(existing_parts, everything):
    given = rights(existing_parts, named(existing_parts, "AWS::IAM::Role", "FleetWorkerRole"))
    place = f"given-up/shardfleet/windows/{FLEET}/{fleet_of(existing_parts)}/*"

    assert {right for right in given if "/windows/" in right} == {
        f"s3:{action} on arn:<AWS::Partition>:s3:::{place}"
        for action in ("DeleteObject", "GetObject", "PutObject")
    }
    worker = rights(everything, ids(everything)["worker_role"])
    assert not [right for right in worker if "/windows/" in right]


def test_a_topic_of_given_up_records_may_be_told_and_nothing_else(template_of):
    told = template_of("Told")
    topic = named(told, "AWS::SNS::Topic", "FleetFailedRecords")
    worker = rights(told, ids(told)["worker_role"])

    assert {right for right in worker if right.startswith("sns:")} == {f"sns:Publish on <{topic}>"}
    assert [right for right in worker if right.startswith("s3:")]
    assert not [right for right in worker if right.startswith("sqs:")]


def test_a_new_bucket_of_given_up_records_keeps_what_is_written_over(everything):
    bucket = named(everything, "AWS::S3::Bucket", "FleetFailedRecords")
    properties = everything["Resources"][bucket]["Properties"]

    assert properties["VersioningConfiguration"] == {"Status": "Enabled"}


def test_only_this_accounts_functions_and_machines_may_be_the_fleet(minimum, everything):
    for template in (minimum, everything):
        for role in of_type(template, "AWS::IAM::Role", inside="Fleet").values():
            for trust in role["AssumeRolePolicyDocument"]["Statement"]:
                condition = "aws:SourceAccount StringEquals <AWS::AccountId>"
                assert condition in conditions(trust.get("Condition", {})), trust


def test_a_stream_of_another_account_is_named_by_its_arn(existing_parts):
    for prefix in ("FleetWorkerRole", "FleetManagerRole"):
        role = named(existing_parts, "AWS::IAM::Role", prefix)
        assert on("kinesis", STREAM, FOREIGN_STREAM) <= rights(existing_parts, role)


def test_an_existing_lease_table_is_reached_with_its_index(existing_parts):
    role = named(existing_parts, "AWS::IAM::Role", "FleetWorkerRole")
    table = "arn:<AWS::Partition>:dynamodb:<AWS::Region>:<AWS::AccountId>:table/kcl-application"

    found = rights(existing_parts, role)
    assert f"dynamodb:Query on {table}/index/LeaseOwnerToLeaseKeyIndex" in found
    assert f"dynamodb:PutItem on {table}" in found


def test_what_the_user_grants_to_the_fleet_goes_to_the_worker(everything):
    target = named(everything, "AWS::SQS::Queue", "Target")

    assert f"sqs:SendMessage on <{target}.Arn>" in rights(
        everything, ids(everything)["worker_role"]
    )


def test_the_permissions_boundary_bounds_every_role(everything):
    roles = of_type(everything, "AWS::IAM::Role", inside="Fleet").values()

    assert len(roles) == 5
    boundary = "arn:<AWS::Partition>:iam::<AWS::AccountId>:policy/boundary"
    assert {spelled(role["PermissionsBoundary"]) for role in roles} == {boundary}
