"""
What templates can break: each fact has a planted fault that is named, and a twin without it.

Long, and one idea: the facts are one table, and the way to plant a fault is the same for all.
"""

import json
import re
from importlib.resources import files
from pathlib import Path

import pytest
from botocore.session import get_session

from shardfleet.adapters.telemetry import metrics as measured
from shardfleet_ops.template import alarms, limits, machines, spark
from shardfleet_ops.template.judging import CHECKS, judge
from shardfleet_ops.template.reading import Template

PARTITION, REGION = {"Ref": "AWS::Partition"}, {"Ref": "AWS::Region"}


READ_MS = 1_795_000_000_000


def a_template(*, region="", **resources):
    body = {"Resources": resources}
    size = len(json.dumps(body))
    return Template(name="Shop", body=body, size=size, region=region, read_ms=READ_MS)


def resource(kind, **properties):
    path = {"aws:cdk:path": "Shop/Part/Resource"}
    return {"Type": kind, "Properties": properties, "Metadata": path}


def function(**properties):
    return resource("AWS::Lambda::Function", **properties)


def alarm(**properties):
    return resource("AWS::CloudWatch::Alarm", **properties)


def metric(name="m1", namespace="shardfleet", period=60, **dimensions):
    named = [{"Name": each, "Value": value} for each, value in dimensions.items()]
    what = {"Namespace": namespace, "MetricName": name, "Dimensions": named}
    return {"Id": name, "MetricStat": {"Metric": what, "Period": period, "Stat": "Sum"}}


def maths(expression, *names):
    return alarm(Metrics=[{"Id": "all", "Expression": expression}, *map(metric, names)])


def machine(states, **properties):
    """A machine whose definition is joined, as the CDK writes it."""
    text = json.dumps({"StartAt": next(iter(states)), "States": states})
    parts = {"Fn::Join": ["", [text[:10], text[10:]]]}
    return resource("AWS::StepFunctions::StateMachine", DefinitionString=parts, **properties)


def task(service, **arguments):
    time_out = {"TimeoutSeconds": arguments.pop("wait")} if "wait" in arguments else {}
    called = f"arn:aws:states:::{service}"
    return {"Type": "Task", "Resource": called, "Arguments": arguments, "End": True, **time_out}


HASHED = "{% $hash('x', 'SHA-256') %}"


def job(*, token=HASHED, parameters="", **submitted):
    submit = {"SparkSubmitParameters": parameters, **submitted}
    started = task(
        "aws-sdk:emrserverless:startJobRun",
        ClientToken=token,
        ApplicationId="<App.ApplicationId>",
        JobDriver={"SparkSubmit": submit},
    )
    return machine({"Start": started})


ENOUGH = "--conf spark.dynamicAllocation.maxExecutors=4"
APPLICATION = resource(
    "AWS::EMRServerless::Application", MaximumCapacity={"Cpu": "16 vCPU", "Memory": "64 GB"}
)
INVOKED = "<Alias>"
ALIASED = {
    "Alias": resource("AWS::Lambda::Alias", FunctionName={"Ref": "Function"}),
    "Function": function(Timeout=900),
}
SILENT = {**ALIASED, "Function": function()}


def custom(wait):
    called = resource("Custom::X", ServiceToken={"Fn::GetAtt": ["F", "Arn"]}, ServiceTimeout=wait)
    return {"It": called, "F": function(Timeout=60)}


def log_key(*principals, actions=("kms:Encrypt*", "kms:Decrypt*", "kms:GenerateDataKey*")):
    statements = [
        {"Effect": "Allow", "Principal": {"Service": each}, "Action": list(actions)}
        for each in principals
    ]
    key = resource("AWS::KMS::Key", KeyPolicy={"Statement": statements})
    group = resource("AWS::Logs::LogGroup", KmsKeyId={"Fn::GetAtt": ["Key", "Arn"]})
    return {"Key": key, "Group": group}


def host(*parts):
    return {"Fn::Join": ["", list(parts)]}


def set_to(value):
    return {"Variables": {"HOST": value}}


def lease_table(*indexes):
    named = [{"IndexName": each} for each in indexes]
    environment = {"Variables": {"SHARDFLEET_LEASE_TABLE": {"Ref": "It"}}}
    return {
        "It": resource("AWS::DynamoDB::Table", GlobalSecondaryIndexes=named),
        "Worker": function(Environment=environment),
        "Manager": function(Environment=environment),
    }


def granting(size):
    return {"PolicyDocument": {"Statement": [{"Resource": "x" * size}]}}


def role(*sizes):
    return resource("AWS::IAM::Role", Policies=list(map(granting, sizes)))


def policy(size, of):
    return resource("AWS::IAM::Policy", Roles=[{"Ref": of}], **granting(size))


OWNER_INDEX = "LeaseOwnerToLeaseKeyIndex"

# Fact, the fault, what is said of it, and a twin in which nothing is wrong.
LAMBDA = "arn:aws:lambda:eu-central-1:111122223333"


AT, IN = "arn:aws", "eu-central-1:111122223333"


def allowing(action, arn):
    """A role that may do this to that."""
    statement = {"Effect": "Allow", "Action": action, "Resource": arn}
    document = {"Version": "2012-10-17", "Statement": statement}
    return resource("AWS::IAM::Role", Policies=[{"PolicyDocument": document}])


def decrypting(key):
    return allowing("kms:Decrypt", key)


def bounded(policy):
    return resource("AWS::IAM::Role", PermissionsBoundary={"Fn::Join": ["", policy]})


def beginning(at):
    return function(Environment={"Variables": {"SHARDFLEET_INITIAL_TIMESTAMP_MS": at}})


PLANTED = [
    (
        "A6",
        {"It": function(Environment={"Variables": {"AWS_REGION": "x", "TARGET": "y"}})},
        "sets AWS_REGION",
        {"It": function(Environment={"Variables": {"REGION": "x", "AWS_LAMBDA_EXEC_WRAPPER": ""}})},
    ),
    (
        "A6",
        {"It": function(Environment={"Variables": {"A": "x" * 4096}})},
        "4097 bytes",
        {"It": function(Environment={"Variables": {"A": "x" * 4095}})},
    ),
    (
        "L07",
        {"It": function(ReservedConcurrentExecutions=1)},
        "1 executions at a time",
        {"It": function()},
    ),
    (
        "F01",
        custom(59),
        "waits 59 s for Shop/Part, which may run for 60 s",
        custom(60),
    ),
    (
        "ASL",
        {"It": machine({"Begin": {"Type": "Pass", "Next": "Begun"}})},
        "Begin.Next names the state 'Begun'",
        {"It": machine({"Begin": {"Type": "Pass", "Next": "End"}, "End": {"Type": "Succeed"}})},
    ),
    (
        "H19",
        {"It": machine({"Run": task("lambda:invoke", FunctionName=INVOKED, wait=900)}), **ALIASED},
        "state Run waits 900 s for Shop/Part, which may run for 900 s",
        {"It": machine({"Run": task("lambda:invoke", FunctionName=INVOKED, wait=901)}), **ALIASED},
    ),
    (
        "H19",
        {"It": machine({"Run": task("lambda:invoke", FunctionName=INVOKED, wait=3)}), **SILENT},
        "state Run waits 3 s for Shop/Part, which may run for 3 s",
        {"It": machine({"Run": task("lambda:invoke", FunctionName=INVOKED, wait=4)}), **SILENT},
    ),
    (
        "S02",
        {"It": machine({"Say": task("sqs:sendMessage", MessageBody="x" * 262_144)})},
        "what state Say passes on has 262,163 bytes",
        {"It": machine({"Say": task("sqs:sendMessage", MessageBody="x" * 262_000)})},
    ),
    (
        "S02",
        {
            "It": resource(
                "AWS::Scheduler::Schedule",
                Target={"Arn": {"Fn::GetAtt": ["M", "Arn"]}, "Input": "go"},
            ),
            "M": machine({"End": {"Type": "Succeed"}}),
        },
        "the target's input is no JSON",
        {
            "It": resource(
                "AWS::Scheduler::Schedule",
                Target={"Arn": {"Fn::GetAtt": ["M", "Arn"]}, "Input": "{}"},
            ),
            "M": machine({"End": {"Type": "Succeed"}}),
        },
    ),
    (
        "S08",
        {"It": machine({"End": {"Type": "Succeed"}}, StateMachineName="clicks.eu")},
        "its name is 'clicks.eu'",
        {"It": machine({"End": {"Type": "Succeed"}}, StateMachineName="clicks-eu")},
    ),
    (
        "S08",
        {"It": machine({"On": task("states:startExecution", Name="x" * 81)})},
        "the execution that state On starts",
        {"It": machine({"On": task("states:startExecution", Name="{% $long.expression & 'x' %}")})},
    ),
    (
        "C07",
        {"It": alarm(MetricName="a", Period=60, EvaluationPeriods=1441)},
        "1441 periods of 60 s look back 86460 s",
        {
            "It": alarm(MetricName="a", Period=60, EvaluationPeriods=1440),
            "Hours": alarm(MetricName="a", Period=3600, EvaluationPeriods=168),
        },
    ),
    (
        "C15",
        {"It": alarm(Metrics=[metric(fleet="Gerät")])},
        "'Gerät'",
        {"It": alarm(Metrics=[metric(fleet={"Ref": "Name"}, stream="clicks")])},
    ),
    (
        "C09",
        {"It": resource("AWS::CloudWatch::CompositeAlarm", AlarmRule="ALARM(a) OR " * 101)},
        "names 101 alarms",
        {"It": resource("AWS::CloudWatch::CompositeAlarm", AlarmRule="ALARM(a) OR " * 100)},
    ),
    (
        "C01",
        {"It": alarm(Metrics=[metric(namespace="AWS/DynamoDB")], TreatMissingData="notBreaching")},
        "is to count as notBreaching",
        {"It": alarm(Metrics=[metric(namespace="AWS/DynamoDB")], TreatMissingData="ignore")},
    ),
    (
        "C02",
        {"It": maths("FILL(a, 0) + b", "a", "b")},
        "adds b as they are",
        {
            "It": maths("FILL(a, 0) + FILL(b, 0)", "a", "b"),
            "Counted": maths("IF(DATAPOINT_COUNT(a) + DATAPOINT_COUNT(b) == 2, a + b)", "a", "b"),
            "Quotient": maths("IF(a > 0, 100 * FILL(b, 0) / a, 0)", "a", "b"),
        },
    ),
    (
        "A13",
        {"It": maths("IF(FILL(a, 0) > 0 AND FILL(b, 0) == 0, 1, 0)", "a", "b")},
        "'FILL(b, 0) == 0' looks for b to be absent",
        {
            "It": maths("IF(FILL(a, 0) > 0 AND b == 0, 1, 0)", "a", "b"),
            "Told": maths("IF(FILL(a, 0) > 0 AND FILL(records, 0) == 0, 1, 0)", "a", "records"),
        },
    ),
    (
        "A4",
        {"It": alarm(Metrics=[metric(namespace="AWS/EMRServerless", ApplicationId="x")])},
        "by ApplicationId",
        {
            "It": alarm(
                Metrics=[
                    metric(namespace="AWS/EMRServerless", ApplicationId="x", ApplicationName="y")
                ]
            )
        },
    ),
    (
        "A2",
        log_key("lambda.amazonaws.com"),
        "does not admit CloudWatch Logs",
        log_key(host("logs.", REGION, ".", {"Ref": "AWS::URLSuffix"})),
    ),
    (
        "A2",
        log_key("logs.eu-central-1.amazonaws.com", actions=("kms:Decrypt*",)),
        "does not admit CloudWatch Logs",
        log_key("logs.eu-central-1.amazonaws.com", actions=("kms:*",)),
    ),
    (
        "J5",
        lease_table(),
        f"without the index {OWNER_INDEX}",
        lease_table(OWNER_INDEX),
    ),
    (
        "A16",
        {"It": {**resource("AWS::Kinesis::Stream"), "DeletionPolicy": "Retain"}},
        "DeletionPolicy Retain",
        {
            "It": {**resource("AWS::Kinesis::Stream"), "DeletionPolicy": "RetainExceptOnCreate"},
            "Version": {**resource("AWS::Lambda::Version"), "DeletionPolicy": "Retain"},
        },
    ),
    *(
        ("I16", {"It": fault}, words, {"It": twin})
        for fault, words, twin in (
            (
                function(KmsKeyArn="arn:aws:kms:eu-central-1:111122223333:alias/mine"),
                "KmsKeyArn: 'arn:aws:kms:eu-central-1:111122223333:alias/mine' found (names",
                function(KmsKeyArn="arn:aws:kms:eu-central-1:111122223333:key/mine"),
            ),
            (
                function(
                    Layers=[{"Ref": "Own"}, "arn:aws:lambda:eu-central-1:111122223333:layer:a"]
                ),
                "Layers: ",
                function(Layers=[{"Ref": "Own"}, f"{LAMBDA}:layer:a:1"]),
            ),
            (
                function(Environment={"Variables": {"SHARDFLEET_STREAM_ARN": f"{LAMBDA}:layer:a"}}),
                "SHARDFLEET_STREAM_ARN: ",
                function(Environment={"Variables": {"SHARDFLEET_STREAM_ARN": {"Ref": "Own"}}}),
            ),
            (
                resource("AWS::Kinesis::Stream", StreamEncryption={"KeyId": f"{LAMBDA}:layer:a"}),
                "KeyId: ",
                resource("AWS::Kinesis::Stream", StreamEncryption={"KeyId": "alias/mine"}),
            ),
            (
                resource("AWS::CloudWatch::Alarm", AlarmActions=["arn:aws:sns:here:1:told"]),
                "AlarmActions: 'arn:aws:sns:here:1:told' found (region 'here')",
                resource("AWS::CloudWatch::Alarm", AlarmActions=[{"Ref": "Told"}]),
            ),
            (
                resource(
                    "AWS::CloudWatch::CompositeAlarm",
                    AlarmRule='ALARM("arn:aws:cloudwatch:eu-central-1a:111122223333:alarm:a")',
                ),
                "region 'eu-central-1a'",
                resource("AWS::CloudWatch::CompositeAlarm", AlarmRule='ALARM("a")'),
            ),
            *(
                (
                    allowing(action, arn),
                    f"{action}: {arn.removesuffix('/*')!r} found (names",
                    allowing(action, right),
                )
                for action, arn, right in (
                    (
                        "kinesis:GetRecords",
                        f"{AT}:kinesis:{IN}:stream/a/consumer/b:1",
                        f"{AT}:kinesis:{IN}:stream/a",
                    ),
                    (
                        "kinesis:SubscribeToShard",
                        f"{AT}:kinesis:{IN}:stream/a",
                        f"{AT}:kinesis:{IN}:stream/a/consumer/b:1",
                    ),
                    ("sqs:SendMessage", f"{AT}:sqs:{IN}:a.fifo", f"{AT}:sqs:{IN}:a"),
                    ("sns:Publish", f"{AT}:sns:{IN}:a.fifo", f"{AT}:sns:{IN}:a"),
                    ("s3:PutObject", f"{AT}:s3:::A/*", f"{AT}:s3:::abc/*"),
                    (
                        "dynamodb:GetItem",
                        f"{AT}:dynamodb:{IN}:global-table/abc",
                        f"{AT}:dynamodb:{IN}:table/abc/index/b",
                    ),
                    (
                        "lambda:InvokeFunction",
                        f"{AT}:lambda:{IN}:layer:a:1",
                        f"{AT}:lambda:{IN}:function:a:live",
                    ),
                )
            ),
            (
                resource(
                    "AWS::CloudWatch::Alarm", AlarmActions=[f"{AT}:states:{IN}:stateMachine:a"]
                ),
                "stateMachine:a' found (of states",
                resource("AWS::CloudWatch::Alarm", AlarmActions=[f"{AT}:lambda:{IN}:function:a"]),
            ),
            (
                bounded(["arn:", PARTITION, ":iam::111122223333:role/a"]),
                "PermissionsBoundary: ",
                bounded(["arn:", PARTITION, ":iam::aws:policy/a"]),
            ),
        )
    ),
    (
        "I15",
        {"It": decrypting("arn:aws:kms:eu-central-1:111122223333:alias/mine")},
        "kms:Decrypt on the alias",
        {"It": decrypting("arn:aws:kms:eu-central-1:111122223333:key/mine")},
    ),
    (
        "I15",
        {"It": decrypting({"Fn::Join": ["", ["arn:", PARTITION, ":kms:", REGION, ":1:alias/a"]]})},
        "kms:Decrypt on the alias",
        {"It": decrypting({"Fn::Join": ["", ["arn:", PARTITION, ":kms:", REGION, ":1:key/a"]]})},
    ),
    (
        "K71",
        {"It": beginning("1700000000")},
        "which are seconds; milliseconds are 1700000000000",
        {"It": beginning("1700000000000")},
    ),
    (
        "K71",
        {"It": beginning(str(READ_MS + 86_400_001))},
        "lies more than a day in the future",
        {"It": beginning(str(READ_MS + 86_400_000))},
    ),
    (
        "R06",
        {"It": job(token="{% $states.context.Execution.Name %}", parameters=ENOUGH)},
        "the execution's name",
        {"It": job(parameters=ENOUGH)},
    ),
    (
        "R06",
        {"It": job(token="x" * 65, parameters=ENOUGH)},
        "xxx",
        {"It": job(token="x" * 64, parameters=ENOUGH)},
    ),
    (
        "R10",
        {"It": job(parameters=ENOUGH, EntryPointArguments=["x"] * 1025)},
        "1025 arguments",
        {"It": job(parameters=ENOUGH, EntryPointArguments=["x"] * 1024)},
    ),
    (
        "R10",
        {"It": job(parameters="x" * 102_401)},
        "102,401 characters",
        {"It": job(parameters="x" * 102_400)},
    ),
    (
        "A1",
        {"It": job(parameters="--conf spark.dynamicAllocation.maxExecutors=2")},
        "may have 2 executors and begins with 3",
        {
            "It": job(
                parameters="--conf spark.dynamicAllocation.maxExecutors=2 "
                "--conf spark.dynamicAllocation.initialExecutors=2"
            )
        },
    ),
    (
        "R03",
        {"It": job(parameters=f"{ENOUGH} --conf spark.driver.cores=5"), "App": APPLICATION},
        "need 17 vCPU and 64 GB, the application may have 16 vCPU and 64 GB",
        {"It": job(parameters=ENOUGH), "App": APPLICATION},
    ),
    (
        "R03",
        {"It": job(parameters=f"{ENOUGH} --conf spark.driver.memory=18432m"), "App": APPLICATION},
        "need 16 vCPU and 68 GB",
        {"It": job(parameters=f"{ENOUGH} --conf spark.driver.memory=14g"), "App": APPLICATION},
    ),
    (
        "A19",
        {"It": function(Environment=set_to(host("sqs.", REGION, ".amazonaws.com")))},
        "sqs.<AWS::Region>.amazonaws.com",
        {"It": function(Environment=set_to(host("sqs.", REGION, ".amazonaws.com.cn")))},
    ),
    (
        "A19",
        {"It": function(Layers=[host("arn:aws:lambda:", REGION, ":111122223333:layer:x:1")])},
        "arn:aws:lambda",
        {
            "It": function(
                Layers=[host("arn:", PARTITION, ":lambda:", REGION, ":111122223333:layer:x:1")]
            )
        },
    ),
    (
        "I05",
        {"It": role(6_000, 6_000)},
        "characters of inline policies",
        {"It": role(5_000, 5_000)},
    ),
    (
        "I05",
        {"It": role(6_000), "More": policy(6_000, "It")},
        "characters of inline policies",
        {"It": role(6_000), "More": policy(6_000, "Other")},
    ),
]


# Whether these fail depends on the account, on the region, or on what happens later.
LIKELY = {"K71", "L07", "C02", "A13", "A16", "A19"}


def facts(template):
    return [fault.fact for fault in judge(template)]


@pytest.mark.parametrize(("fact", "fault", "words", "twin"), PLANTED)
def test_a_planted_fault_is_named_and_its_twin_is_clean(fact, fault, words, twin):
    (found,) = judge(a_template(**fault))

    assert found.fact == fact
    assert words in found.found
    assert "Shop/Part" in found.where
    assert all((found.allowed, found.remedy))
    assert found.certain == (fact not in LIKELY or "future" in words)
    assert judge(a_template(**twin)) == []


def without_one_part(body):
    """Yield a document as often as it has parts, each time without another one."""
    parts = body.items() if isinstance(body, dict) else enumerate(body)
    for at, part in list(parts):
        if isinstance(body, dict):
            yield {key: value for key, value in body.items() if key != at}
        else:
            yield [*body[:at], *body[at + 1 :]]
        if isinstance(part, dict | list):
            for smaller in without_one_part(part):
                if isinstance(body, dict):
                    yield {**body, at: smaller}
                else:
                    yield [*body[:at], smaller, *body[at + 1 :]]


@pytest.mark.parametrize(("fact", "fault", "words", "twin"), PLANTED)
def test_whatever_a_template_lacks_no_check_fails_of_it(fact, fault, words, twin):
    """A reference may lead out of the template, and a property may be another tool's."""
    for resources in (fault, twin):
        for rest in without_one_part(resources):
            judge(a_template(**{key: value for key, value in rest.items() if value}))


def test_a_template_that_is_too_large_is_named_and_one_that_grows_is_warned_of():
    body = a_template(It=function()).body
    sizes = [Template(name="Shop", body=body, size=size) for size in (900_000, 900_001, 1_000_001)]

    assert [[each.certain for each in judge(template)] for template in sizes] == [
        [],
        [False],
        [True],
    ]


def test_a_definition_has_a_limit_beside_that_of_the_template_it_is_written_in():
    said = {"Type": "Succeed", "Comment": "x" * machines.DEFINITION_BYTES_MOST}

    assert sorted(facts(a_template(It=machine({"End": said})))) == ["F04", "S02"]


def test_the_page_lists_what_each_check_looks_for():
    page = Path(__file__).parents[2].joinpath("docs/cli.md").read_text("utf-8")
    told = [check.__doc__.split(": ", 1) for check in CHECKS]
    facts_of_the_page = re.findall(r"^\| ([A-Z]+\d*) \| (.+) \|$", page, re.MULTILINE)

    assert facts_of_the_page == [(fact, text) for fact, text in told]


def test_every_check_has_a_planted_fault():
    planted = [a_template(**fault) for _, fault, *_ in PLANTED]
    silent = {check.__name__ for check in CHECKS if not any(list(check(each)) for each in planted)}

    assert silent == {"size"}  # Its own test is above.


@pytest.mark.parametrize(
    ("region", "suffix", "arn"),
    [("eu-central-1", [], []), ("cn-north-1", ["A19"], ["A19"]), ("us-gov-west-1", [], ["A19"])],
)
def test_what_is_written_for_one_part_of_aws_is_a_fault_in_others(region, suffix, arn):
    hosts = function(Environment=set_to(host("sqs.", REGION, ".amazonaws.com")))
    arns = function(Layers=[host("arn:aws:lambda:", REGION, ":111122223333:layer:x:1")])

    assert facts(a_template(region=region, It=hosts)) == suffix
    assert facts(a_template(region=region, It=arns)) == arn
    assert all(each.certain for each in judge(a_template(region=region, It=arns)))


def member(service, operation, *names):
    found = get_session().get_service_model(service).operation_model(operation).input_shape
    for name in names:
        found = found.members[name] if found.type_name == "structure" else found.member
    return found.metadata


def test_the_limits_are_those_of_the_services_models():
    started = member("stepfunctions", "StartExecution", "name")
    assert started["max"] == machines.NAME_MOST
    definition = member("stepfunctions", "CreateStateMachine", "definition")
    assert definition["max"] == machines.DEFINITION_BYTES_MOST
    assert member("stepfunctions", "StartExecution", "input")["max"] == machines.INPUT_BYTES_MOST
    assert member("cloudwatch", "PutCompositeAlarm", "AlarmRule")["max"] == alarms.RULE_MOST
    dimensions = member("cloudwatch", "PutMetricAlarm", "Dimensions")
    assert dimensions["max"] == alarms.DIMENSIONS_MOST
    token = member("emr-serverless", "StartJobRun", "clientToken")
    assert (token["max"], token["pattern"]) == (spark.TOKEN_MOST, "[A-Za-z0-9._-]+")
    submit = ("jobDriver", "sparkSubmit")
    parameters = member("emr-serverless", "StartJobRun", *submit, "sparkSubmitParameters")
    assert parameters["max"] == spark.PARAMETERS_MOST
    arguments = member("emr-serverless", "StartJobRun", *submit, "entryPointArguments")
    assert arguments["max"] == spark.ARGUMENTS_MOST


def test_the_reserved_variables_are_those_that_another_judge_knows():
    known = "data/schemas/extensions/aws_lambda_function/environment_variable_keys.json"
    schema = json.loads(files("cfnlint").joinpath(known).read_text("utf-8"))

    assert set(schema["propertyNames"]["not"]["enum"]) <= limits.RESERVED_VARIABLES


def test_what_alarms_are_told_to_rest_on_is_told_with_each_turn():
    told = {*measured.READINGS["ManagerTurnDone"].values(), *measured.ZEROES["ManagerTurnDone"]}

    assert told >= limits.TOLD_EACH_TURN
