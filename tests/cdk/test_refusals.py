"""
What the constructs refuse at synth: each refusal, and who else refuses the template it would be.

The refusals are read from the constructs' own code, so that a new one without a row fails. A
foreign judge is cfn-lint, botocore's model of the call that the resource becomes, another's
embedded AWS, Python that does not load the code, or, where none of them knows it, a page of AWS's
with its fact. What AWS never comes to (there is no template, nothing reads it, it never runs as
said) says why it is refused. The settings of a fleet, which only its functions read, are
refused by `FleetConfig`.

Long, and one idea: the table, and who else refuses each of its rows.
"""

import ast
import json
import re
import sys
from collections import Counter
from dataclasses import dataclass
from functools import cache, partial
from importlib import import_module

import pytest
from botocore.exceptions import UnknownRegionError
from botocore.session import Session
from moto import mock_aws

from shardfleet.errors import ConfigurationError
from shardfleet_ops.cli.templates import faults_of
from shardfleet_ops.template.reading import Template
from tests.cdk.test_monitoring import PAGING, SIX
from tests.cdk.test_references import FLEET, HOME, KINDS, RIGHT, SPARK
from tests.facts.table import all_facts
from tests.test_tidy import ROOT

CDK = ROOT / "cdk/shardfleet_cdk"
WORDS = re.compile(r"[A-Za-z]{3}")


@dataclass(frozen=True)
class Linted:
    """A template that cfn-lint refuses by a rule, and takes with other properties."""

    rule: str
    kind: str
    wrong: dict
    right: dict


@dataclass(frozen=True)
class Documented:
    """A template that AWS refuses by its documentation alone: the fact that names the page."""

    fact: str
    kind: str
    wrong: dict


@dataclass(frozen=True)
class Called:
    """A template that AWS takes; the call that is made of it later is refused, by this fact."""

    fact: str
    call: str


@dataclass(frozen=True)
class Loaded:
    """Code that AWS deploys, and that Python does not load: its error, and the code."""

    error: type
    function: str = "handler:handle"
    source: str = "def handle(batch): ..."


@dataclass(frozen=True)
class Ours:
    """What AWS cannot refuse: what it never comes to, and why it is refused all the same."""

    never: str
    why: str


LAMBDA, ALARM = "AWS::Lambda::Function", "AWS::CloudWatch::Alarm"
APPLICATION, STREAM = "AWS::EMRServerless::Application", "AWS::Kinesis::Stream"
TEMPLATE, READ, RUN = "a template", "read", "run"
WORKS_NOT = Ours(RUN, "the deploy succeeds, and each batch of the job fails")
NO_NAME = Ours(READ, "nothing would read it: the user means another")
ONE_PLACE = Ours(READ, "one of two that differ would be passed over")
MACHINE = Ours(TEMPLATE, "nothing is synthesized without it")
NEVER_SO = Ours(
    RUN, "the deploy succeeds, and what is promised never comes: sleep, or a wake in time"
)
CUT_OFF = Called("L20", "Invoke, ended at the function's time-out")
NO_VPC = Ours(READ, "they would be left out, and the user believes that they hold")


def names_of(kind, wrong, right, rule):
    return Linted(
        rule,
        LAMBDA,
        {"Environment": {"Variables": {wrong: "x"}}},
        kind or {"Environment": {"Variables": {right: "x"}}},
    )


def sized(what, rule, wrong, right, kind=LAMBDA):
    return Linted(rule, kind, {what: wrong}, {what: right})


TIMEOUT, MEMORY = sized("Timeout", "E3717", 901, 900), sized("MemorySize", "E3034", 64, 128)
RUNTIME = sized("Runtime", "E3030", "python3.99", "python3.14")
# By module, then by how the refusal's text begins.
REFUSALS = {
    "assets": {"{}: not found in": MACHINE, "{}: not installed beside": MACHINE},
    "bundling": {"{}: uv is needed": MACHINE, "{}: uv could not install": MACHINE},
    "fleet_config": {
        "handler_timeout_ms: ": CUT_OFF,
        "manager_run_ms: ": CUT_OFF,
        "max_wake_ms: ": NEVER_SO,
        "sleep_after_ms: ": NEVER_SO,
        "sleep: ": Ours(RUN, "a consumer is paid for while all sleeps, which is to cost nothing"),
        "{}: set by": ONE_PLACE,
        "{}: no such option": NO_NAME,
        "{}: found in": ONE_PLACE,
    },
    "handler_code": {
        "handler folder {}": MACHINE,
        "handler function {}: 'module:function'": Loaded(AttributeError, "handler"),
        "handler function {}: no module": Loaded(ModuleNotFoundError, "clicks:handle"),
        "handler function {}: {} defines no": Loaded(AttributeError, "handler:collect"),
        "handler {}: line": Loaded(SyntaxError, source="def handle(batch:"),
    },
    "handler_function": {
        "handler: {} found": MACHINE,
        "handler_timeout_ms: {} found, at least": Ours(
            RUN, "a call is given up that its function, and its records, go on with"
        ),
        "worker {}: none allowed": Ours(READ, "it would be set where the handler's code is not"),
    },
    "lambda_platform": {"runtime {}": RUNTIME},
    "monitoring.fleet_monitoring": {
        "{}: alarms: no alarm of level page": Linted(
            "E3033",
            "AWS::CloudWatch::CompositeAlarm",
            {"AlarmRule": ""},
            {"AlarmRule": "ALARM(lag)"},
        ),
        "alarms: {}: no such alarm": NO_NAME,
        "alarms: {}: periods": Documented("C07", ALARM, {"Period": 60, "EvaluationPeriods": 2_000}),
    },
    "monitoring.settings": {
        "retention_hours": Documented("K81", STREAM, {"RetentionPeriodHours": 12}),
        "{}: {} found, 1 or more": sized("EvaluationPeriods", "E3034", 0, 1, ALARM),
    },
    "naming": {
        "fleet name {}: 1 to": Called("S20", "StartExecution.name"),
        "fleet name {}: another": Ours(
            READ, "metrics of two would be one, and commands find the first"
        ),
    },
    "options": {
        "worker environment {}: names beginning": ONE_PLACE,
        "worker environment {}: the name is Lambda's": names_of(
            None, "AWS_REGION", "AREA", "E3663"
        ),
        "worker environment {}: a letter": names_of(None, "A", "AB", "E3002"),
        "worker subnets": NO_VPC,
        "worker memory_mb": MEMORY,
        "worker timeout_s": TIMEOUT,
        "worker max_loops": Called("S03", "StartExecution, ended at 25,000 events"),
        "manager memory_mb": MEMORY,
        "manager timeout_s": TIMEOUT,
    },
    "references": {
        "{}: {} found, at most {} allowed, a day from now": Called(
            "K71", "GetShardIterator.Timestamp"
        )
    },
    "spark_environment": {
        "transform {}: 'module:": Loaded(AttributeError, "handler"),
        "transform {}: no module": Loaded(ModuleNotFoundError, "clicks:handle"),
    },
    "spark_options": {
        "{}: {} found, 1 or more": Linted(
            "E3031",
            APPLICATION,
            {"MaximumCapacity": {"Cpu": "0 vCPU", "Memory": "64 GB"}},
            {"MaximumCapacity": {"Cpu": "4 vCPU", "Memory": "64 GB"}},
        ),
        "merge_key {}": WORKS_NOT,
        "bad_records {}: schema": WORKS_NOT,
        "bad_records {}: a folder": Ours(
            READ, "files that are none of the table's would lie in it"
        ),
        "release_label": sized("ReleaseLabel", "E3031", "emr 7", "emr-7.13.0", APPLICATION),
        "schedule": Documented(
            "E11", "AWS::Scheduler::Schedule", {"ScheduleExpression": "every hour"}
        ),
        "stop_seconds": Called("R15", "CancelJobRun.shutdownGracePeriodInSeconds"),
        "subnets": NO_VPC,
    },
    "spark_pipeline": {"{}: either code": MACHINE, "{}: merge_key": WORKS_NOT},
    "stack": {"context: monitoring: level": NO_NAME},
    "stack_settings": {
        "{}{}: {} found, expected": MACHINE,
        "{}sdk_services": MACHINE,
        # Of architecture, runtime and removal alike.
        "{}{}: {} found, one of": Linted(
            "E3030", LAMBDA, {"Architectures": ["mips"]}, {"Architectures": ["arm64"]}
        ),
        "{}stream": sized("ShardCount", "E3034", 0, 1, STREAM),
        "{}worker: {} found": NO_NAME,
        "{}{}: {} found, allowed only with": ONE_PLACE,
        "{}: {} found, one of": NO_NAME,
        "{}: {}: {} found, true or false expected": MACHINE,
        "{}: {}: {} found, {} expected": NO_NAME,
        "context: {}{}: no JSON": MACHINE,
    },
}
# What each ARN of another kind becomes: an action that has no such resource, or a member's pattern.
ACTIONS = {
    "BUCKET": "s3:PutObject",
    "FUNCTION": "lambda:InvokeFunction",
    "KEY": "kms:Decrypt",
    "QUEUE": "sqs:SendMessage",
    "STREAM": "kinesis:GetRecords",
    "TABLE": "dynamodb:UpdateItem",
    "TOPIC": "sns:Publish",
}
TRUST = {
    "Version": "2012-10-17",
    "Statement": [
        {
            "Effect": "Allow",
            "Principal": {"Service": "lambda.amazonaws.com"},
            "Action": "sts:AssumeRole",
        }
    ],
}
REST = {
    LAMBDA: {
        "Code": {"ZipFile": "x"},
        "Handler": "index.handle",
        "Role": RIGHT["ROLE"],
        "Runtime": "python3.14",
    },
    ALARM: {
        "Namespace": "shardfleet",
        "MetricName": "records",
        "Statistic": "Sum",
        "Period": 60,
        "EvaluationPeriods": 1,
        "Threshold": 1,
        "ComparisonOperator": "GreaterThanThreshold",
    },
    APPLICATION: {"ReleaseLabel": "emr-spark-8.0.0", "Type": "SPARK"},
    STREAM: {"ShardCount": 1},
}


def text_of(node):
    match node:
        case ast.Constant(value=str() as text):
            return text
        case ast.JoinedStr(values=parts):
            return "".join(
                getattr(part, "value", "") if type(part) is ast.Constant else "{}" for part in parts
            )
    return ""


def texts_in(node):
    """Yield the texts of an expression, each whole."""
    if text := text_of(node):
        yield text
    else:
        for each in ast.iter_child_nodes(node):
            yield from texts_in(each)


def refusals_of(source):
    """Yield how each refusal of a module is written, what is filled in as {}."""
    for node in ast.walk(ast.parse(source)):
        match node:
            case ast.Call(func=ast.Name(id="ConfigurationError"), args=[text]):
                yield text_of(text)
            case ast.Call(func=ast.Attribute(value=ast.Name(id="problems"), attr="append")):
                yield text_of(node.args[0])
            case ast.Assign(targets=[ast.Name(id="message")], value=text):
                yield text_of(text)
            case (
                ast.Assign(targets=[ast.Name(id="problems")])
                | ast.AugAssign(target=ast.Name(id="problems"))
            ):
                for each in ast.walk(node.value):
                    if isinstance(each, ast.ListComp | ast.GeneratorExp):
                        yield from texts_in(each.elt)
            case ast.Call(func=ast.Name(id="_outside"), args=[text, *_]):
                yield text_of(text)
            case ast.Yield(value=ast.JoinedStr() as text) if "found" in text_of(text):
                yield text_of(text)


def all_refusals():
    """Yield (module, text) of every refusal; those that pass another's words on are not ours."""
    for path in sorted(CDK.rglob("*.py")):
        module = ".".join(path.relative_to(CDK).with_suffix("").parts)
        for text in refusals_of(path.read_text("utf-8")):
            if WORDS.search(text) and not text.endswith(": ") and text != "{}{}: {}":
                yield module, text


def test_every_refusal_has_a_row_and_every_row_a_refusal():
    found = list(all_refusals())
    rows = [(module, start) for module, texts in REFUSALS.items() for start in texts]
    hits = {
        row: [each for each in found if each[0] == row[0] and begins(each[1], row)] for row in rows
    }

    assert [each for each in found if not any(each in texts for texts in hits.values())] == []
    assert [row for row, texts in hits.items() if len(set(texts)) != 1] == []


def begins(text, row):
    """Return whether a row is this text's: of several that it begins with, the longest."""
    module, start = row
    fitting = [each for each in REFUSALS[module] if text.startswith(each)]
    return start == max(fitting, key=len, default="")


def template(kind, properties):
    """Return a template of one resource; what is no property of a kind is a policy's of its own."""
    policy = {key: properties[key] for key in ("DeletionPolicy",) if key in properties}
    own = {key: value for key, value in properties.items() if key not in policy}
    it = {"Type": kind, "Properties": {**REST.get(kind, {}), **own}, **policy}
    return Template(name="Stack", body={"Resources": {"It": it}}, size=1, region=HOME)


def rules(kind, properties):
    """Return the rules of cfn-lint that a resource breaks."""
    return _rules(kind, json.dumps(properties))


@cache
def _rules(kind, properties):
    return {
        fault.fact.removeprefix("cfn-lint ")
        for fault in faults_of(template(kind, json.loads(properties)))
        if fault.fact.startswith("cfn-lint")
    }


ROWS = {
    f"{module}: {start}": row for module, texts in REFUSALS.items() for start, row in texts.items()
}


def of(kind):
    return {name: row for name, row in ROWS.items() if isinstance(row, kind)}


@pytest.mark.parametrize("name", of(Linted))
def test_cfn_lint_refuses_the_template_it_would_have_been(name):
    row = ROWS[name]

    assert row.rule in rules(row.kind, row.wrong)
    assert row.rule not in rules(row.kind, row.right)


@pytest.fixture
def made(new_app, handler_folder):
    """How each template that AWS refuses would be asked for, by its row."""
    # It starts Node, which collecting the tests shall not.
    from aws_cdk import Stack  # noqa: PLC0415
    from aws_cdk import aws_kinesis as kinesis  # noqa: PLC0415

    import shardfleet_cdk as cdk  # noqa: PLC0415

    def fleet(**options):
        stack = Stack(new_app(), "Stack")
        stream = kinesis.Stream.from_stream_arn(stack, "Orders", RIGHT["STREAM"])
        handler = cdk.HandlerCode(folder=handler_folder)
        return cdk.ShardFleet(stack, "Fleet", stream=stream, handler=handler, **options)

    def alarms(**changed):
        settings = {name: change and cdk.AlarmSetting(**change) for name, change in changed.items()}
        return fleet(monitoring=cdk.MonitoringOptions(alarms=settings))

    later = {"initial_position": "AT_TIMESTAMP", "initial_timestamp_ms": 4_000_000_000_000}
    silent = dict.fromkeys(SIX & PAGING)

    def loaded(name):
        row, folder = ROWS[name], handler_folder.parent / name.translate(NO_PLACE)
        folder.mkdir()
        (folder / "handler.py").write_text(row.source, "utf-8")
        kind = cdk.HandlerCode if name.startswith("handler") else cdk.TransformCode
        return kind(folder=folder, function=row.function)

    return {
        **{name: partial(loaded, name) for name in of(Loaded)},
        "fleet_config: handler_timeout_ms: ": lambda: fleet(config={"handler_timeout_ms": 840_001}),
        "fleet_config: manager_run_ms: ": lambda: fleet(manager=cdk.ManagerOptions(timeout_s=30)),
        "monitoring.fleet_monitoring: {}: alarms: no alarm of level page": lambda: alarms(**silent),
        "monitoring.fleet_monitoring: alarms: {}: periods": lambda: alarms(lag={"periods": 2_000}),
        "naming: fleet name {}: 1 to": lambda: fleet(name="clicks and orders"),
        "references: {}: {} found, at most {} allowed, a day from now": lambda: fleet(config=later),
        **made_of_options(cdk),
    }


NO_PLACE = {ord(each): "_" for each in "{}: '/"}


def made_of_options(cdk):
    """Return the same of what is refused without a stack."""
    from aws_cdk import aws_lambda as lambda_  # noqa: PLC0415

    from shardfleet_cdk.lambda_platform import lambda_platform  # noqa: PLC0415
    from shardfleet_cdk.stack_settings import StackSettings  # noqa: PLC0415

    def settings(**wrong):
        return StackSettings(**{"stream": {"shards": 1}, **wrong})

    def variables(name):
        return cdk.WorkerOptions(environment={name: "x"})

    return {
        "lambda_platform: runtime {}": lambda: lambda_platform(lambda_.Runtime.PYTHON_3_9),
        "monitoring.settings: retention_hours": lambda: cdk.MonitoringOptions(retention_hours=12),
        "monitoring.settings: {}: {} found, 1 or more": lambda: cdk.AlarmSetting(periods=0),
        "options: worker environment {}: the name is Lambda's": lambda: variables("AWS_REGION"),
        "options: worker environment {}: a letter": lambda: variables("A"),
        "options: worker max_loops": lambda: cdk.WorkerOptions(max_loops=1_201),
        "options: worker memory_mb": lambda: cdk.WorkerOptions(memory_mb=64),
        "options: worker timeout_s": lambda: cdk.WorkerOptions(timeout_s=901),
        "options: manager memory_mb": lambda: cdk.ManagerOptions(memory_mb=64),
        "options: manager timeout_s": lambda: cdk.ManagerOptions(timeout_s=901),
        "spark_options: {}: {} found, 1 or more": lambda: cdk.SparkOptions(max_cpu=0),
        "spark_options: release_label": lambda: cdk.SparkOptions(release_label="emr 7"),
        "spark_options: schedule": lambda: cdk.SparkOptions(schedule="every hour"),
        "spark_options: stop_seconds": lambda: cdk.SparkOptions(stop_seconds=14),
        "stack_settings: {}{}: {} found, one of": lambda: settings(architecture="mips"),
        "stack_settings: {}stream": lambda: settings(stream={"shards": 0}),
    }


def test_the_constructs_refuse_just_what_their_judges_refuse(made):
    assert made.keys() == ROWS.keys() - of(Ours).keys()
    for name, make in made.items():
        words = re.escape(name.partition(": ")[2]).replace(re.escape("{}"), ".*")
        with pytest.raises(ConfigurationError, match=words):
            make()


@pytest.mark.parametrize("name", of(Loaded))
def test_python_does_not_load_the_code_it_would_have_been(name, tmp_path, monkeypatch):
    """As Lambda's runtime and Spark's worker do: the module by its name, and what it defines."""
    row, (module, _, function) = ROWS[name], ROWS[name].function.partition(":")
    (tmp_path / "handler.py").write_text(row.source, "utf-8")
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delitem(sys.modules, "handler", raising=False)
    with pytest.raises(row.error):
        getattr(import_module(module), function)
    monkeypatch.delitem(sys.modules, "handler", raising=False)


def may_be(member, value):
    """Return whether botocore's model of a call allows a value of a member."""
    service, _, path = member.partition(" ")
    operation, *names = path.split(".")
    shape = Session().get_service_model(service).operation_model(operation).input_shape
    for each in names:
        shape = shape.members[each]
    shape = getattr(shape, "member", shape)
    pattern = shape.metadata.get("pattern", "(?s:.*)")
    return re.fullmatch(pattern, str(value)) is not None


MODELLED = {"LAYER": "lambda CreateFunction.Layers"}
MODELLED["CONSUMER"] = "kinesis SubscribeToShard.ConsumerARN"


@pytest.mark.parametrize("kind", MODELLED)
def test_the_model_refuses_the_layer_without_a_version_and_the_consumer_without_a_time(kind):
    assert not may_be(MODELLED[kind], RIGHT[kind].rpartition(":")[0])
    assert may_be(MODELLED[kind], RIGHT[kind])


@pytest.mark.parametrize("kind", ACTIONS)
def test_cfn_lint_says_of_each_arn_of_another_kind_that_its_right_matches_nothing(kind):
    def role(arn):
        statement = {"Effect": "Allow", "Action": ACTIONS[kind], "Resource": arn}
        document = {"Version": "2012-10-17", "Statement": [statement]}
        policies = [{"PolicyName": "It", "PolicyDocument": document}]
        return {"AssumeRolePolicyDocument": TRUST, "Policies": policies}

    wrong = RIGHT["KEY" if kind != "KEY" else "QUEUE"]
    alias = f"arn:aws:kms:{HOME}:111122223333:alias/mine"
    right = f"{RIGHT[kind]}/*" if kind == "BUCKET" else RIGHT[kind]
    for arn in [wrong, *([alias] if kind == "KEY" else [])]:
        assert "I3510" in rules("AWS::IAM::Role", role(arn))
    assert "I3510" not in rules("AWS::IAM::Role", role(right))


def test_what_of_the_arns_no_judge_here_knows_is_a_boundary_and_an_alarm():
    used = {kind for kind, *_ in [*FLEET.values(), *SPARK.values()]}

    assert used - ACTIONS.keys() - MODELLED.keys() == {"ALARM", "POLICY"}
    assert used <= KINDS.keys()


@pytest.mark.parametrize("region", ["eu-central1", f"{HOME}a", "Frankfurt"])
def test_the_sdk_knows_no_such_region_either(region):
    with pytest.raises(UnknownRegionError):
        Session().get_partition_for_region(region)


@pytest.mark.parametrize("name", ["clicks and orders", "clicks/eu", "clicks"])
def test_another_embedded_aws_refuses_an_execution_of_such_a_fleets_name(name):
    account = {"aws_access_key_id": "key", "aws_secret_access_key": "secret"}
    with mock_aws():
        client = Session().create_client("stepfunctions", HOME, **account)
        definition = '{"StartAt": "End", "States": {"End": {"Type": "Succeed"}}}'
        machine = {"name": "slots", "definition": definition, "roleArn": RIGHT["ROLE"]}
        arn = client.create_state_machine(**machine)["stateMachineArn"]
        if name == "clicks":
            assert client.start_execution(stateMachineArn=arn, name=name)
        else:
            with pytest.raises(client.exceptions.InvalidName):
                client.start_execution(stateMachineArn=arn, name=name)


@pytest.mark.parametrize("name", [*of(Documented), *of(Called)])
def test_what_aws_refuses_by_its_documentation_is_a_fact_with_a_source(name):
    facts = {fact.id: fact for fact in all_facts()}

    assert facts[ROWS[name].fact].source


def test_the_page_says_how_many_have_which_judge():
    counted = Counter(type(row).__name__ for row in ROWS.values())
    never = Counter(row.never for row in of(Ours).values())
    page = (ROOT / "docs/cli.md").read_text("utf-8")

    assert (
        f"{len(ROWS)} refusals: of the templates cfn-lint refuses {counted['Linted']} and AWS's "
        f"pages {counted['Documented']}, of {counted['Called']} AWS refuses or ends a later call, "
        f"Python loads {counted['Loaded']} not; {never[TEMPLATE]} make no template, "
        f"{never[READ]} nothing would read, {never[RUN]} would never run as said"
    ) in page, (counted, never)
