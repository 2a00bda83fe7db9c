"""Templates before the deploy: every variant is clean, and the doctor names what is planted."""

import json
import re

import pytest
from typer.testing import CliRunner

from shardfleet_ops.cli import templates
from shardfleet_ops.cli.app import app
from shardfleet_ops.cli.templates import faults_of, read_templates
from shardfleet_ops.template.judging import judge
from tests.cdk.judge import is_wanted
from tests.cdk.templates import of_type

VARIANTS = {"Minimum", "Two", "Told", "Everything", "ExistingParts", "SparkMinimum"}
VARIANTS |= {"SparkTable", "SparkEverything"}


def test_nothing_is_wrong_with_any_variant_but_what_it_wants(assembly):
    read = {template.name: template for template in read_templates(assembly)}
    wrong = [
        f"{name}: {fault.where}: {fault.found} ({fault.fact})"
        for name, template in read.items()
        for fault in judge(template)
        if not is_wanted(name, fault)
    ]

    assert read.keys() == VARIANTS
    assert wrong == []


def the(template, kind, inside):
    names = of_type(template, kind)
    (name,) = (each for each in names if re.fullmatch(inside + "[0-9A-F]{8}", each))
    return template["Resources"][name]["Properties"]


def set_reserved_variable(template):
    worker = the(template, "AWS::Lambda::Function", "FleetWorkerFunction")
    worker["Environment"]["Variables"]["AWS_REGION"] = "eu-central-1"


def close_key(template):
    key = the(template, "AWS::KMS::Key", "Key")
    statements = key["KeyPolicy"]["Statement"]
    key["KeyPolicy"]["Statement"] = [each for each in statements if "logs" not in str(each)]


def write_suffix(template):
    role = the(template, "AWS::IAM::Role", "FleetManagerScheduleRole")
    text = json.dumps(role).replace('{"Ref": "AWS::URLSuffix"}', '"amazonaws.com"')
    role |= json.loads(text)


def look_back_long(template):
    the(template, "AWS::CloudWatch::Alarm", "FleetMonitoringLag")["EvaluationPeriods"] = 2_000


def name_in_unicode(template):
    alarm = the(template, "AWS::CloudWatch::Alarm", "FleetMonitoringManager")
    alarm["Dimensions"][0]["Value"] = "Gerät"


def add_bare(template):
    alarm = the(template, "AWS::CloudWatch::Alarm", "FleetMonitoringLambdaThrottles")
    alarm["Metrics"][0]["Expression"] = "workers + managers"


def drop_index(template):
    del the(template, "AWS::DynamoDB::Table", "FleetLeases")["GlobalSecondaryIndexes"]


def retain(template):
    (name,) = of_type(template, "AWS::DynamoDB::Table", inside="FleetState")
    template["Resources"][name]["DeletionPolicy"] = "Retain"


def run_longer(template):
    the(template, "AWS::Lambda::Function", "FleetWorkerFunction")["Timeout"] = 400


def wait_short(template):
    the(template, "Custom::ShardFleetFirstRun", "FleetFirstRun")["ServiceTimeout"] = 30


def start_nothing(template):
    machine = the(template, "AWS::StepFunctions::StateMachine", "FleetSlotsMachine")
    text = json.dumps(machine).replace('\\"Next\\":\\"Outcome\\"', '\\"Next\\":\\"Outcom\\"')
    machine |= json.loads(text)


def schedule_words(template):
    template["Resources"]["Nightly"] = {
        "Type": "AWS::Scheduler::Schedule",
        "Metadata": {"aws:cdk:path": "Everything/Nightly/Resource"},
        "Properties": {
            "Target": {
                "Arn": {"Ref": next(iter(of_type(template, "AWS::StepFunctions::StateMachine")))},
                "Input": "begin",
            }
        },
    }


# What is planted, the construct that is named, and a word of what is said.
PLANTED = [
    (set_reserved_variable, "Everything/Fleet/Worker/Function", "sets AWS_REGION"),
    (close_key, "Everything/Fleet/Worker/Logs", "does not admit CloudWatch Logs"),
    (write_suffix, "Everything/Fleet/Manager/ScheduleRole", "sqs.<AWS::Region>.amazonaws.com"),
    (look_back_long, "Everything/Fleet/Monitoring/Lag", "2000 periods of 60 s look back 120000 s"),
    (name_in_unicode, "Everything/Fleet/Monitoring/Manager", "'Gerät'"),
    (
        add_bare,
        "Everything/Fleet/Monitoring/LambdaThrottles",
        "adds managers and workers as they are",
    ),
    (drop_index, "Everything/Fleet/Leases", "without the index LeaseOwnerToLeaseKeyIndex"),
    (retain, "Everything/Fleet/State", "DeletionPolicy Retain"),
    (run_longer, "Everything/Fleet/Slots/Machine", "waits 330 s for Everything/Fleet/Worker/Func"),
    (wait_short, "Everything/Fleet/FirstRun/Run", "CloudFormation waits 30 s"),
    (start_nothing, "Everything/Fleet/Slots/Machine", "names the state 'Outcom'"),
    (schedule_words, "Everything/Nightly", "the target's input is no JSON"),
]


@pytest.fixture(scope="module")
def planted(assembly, tmp_path_factory):
    """A cloud assembly of the fleet with everything, with all faults planted in it."""
    folder = tmp_path_factory.mktemp("planted")
    for name in ("manifest.json", "Everything.metadata.json"):
        (folder / name).write_bytes((assembly / name).read_bytes())
    template = json.loads((assembly / "Everything.template.json").read_text("utf-8"))
    for plant, *_ in PLANTED:
        plant(template)
    (folder / "Everything.template.json").write_text(json.dumps(template), "utf-8")
    return folder


@pytest.fixture
def told(planted, monkeypatch):
    """What the doctor says of it, on an installation without the linter, which takes seconds."""
    monkeypatch.setattr(templates, "has_linter", lambda: False)
    return CliRunner().invoke(app, ["doctor", "--before", str(planted)])


def test_the_doctor_names_each_planted_fault_by_its_construct_and_says_what_to_do(told):
    lines = told.output.splitlines()

    assert told.exit_code == 1
    for _, where, words in PLANTED:
        at = [i for i, line in enumerate(lines) if where in line and words in line]
        assert at, (where, words)
        assert re.match(r"(error|warning): .+ \(\w+\)\.$", lines[at[0]])
        assert lines[at[0] + 1].startswith("  Allowed: ")
        assert lines[at[0] + 2].startswith("  To do: ")


def test_the_judge_wants_none_of_the_planted_faults(planted):
    (template,) = read_templates(planted)
    wrong = [fault for fault in judge(template) if not is_wanted(template.name, fault)]

    for _, where, words in PLANTED:
        assert any(where in fault.where and words in fault.found for fault in wrong), where


def test_the_doctor_says_that_the_linter_was_not_asked(told):
    assert "cfn-lint is not installed" in told.output


def test_a_template_alone_is_looked_at_too_and_a_clean_one_is_healthy(assembly, monkeypatch):
    monkeypatch.setattr(templates, "has_linter", lambda: False)

    found = CliRunner().invoke(
        app, ["doctor", "--before", str(assembly / "Minimum.template.json"), "--json"]
    )
    assert found.exit_code == 0
    assert json.loads(found.stdout) == []


@pytest.mark.parametrize(
    ("name", "text", "words"),
    [
        ("a.template.json", "{", "no template in JSON"),
        ("a.template.json", "{}", "it has no Resources"),
        ("a.json", "{}", "no *.template.json found"),
    ],
)
def test_what_is_no_template_is_refused(tmp_path, name, text, words):
    (tmp_path / name).write_text(text, "utf-8")

    found = CliRunner().invoke(app, ["doctor", "--before", str(tmp_path)])
    assert found.exit_code != 0
    assert words in f"{found.output}{found.exception}"


def test_the_linter_looks_into_policies_and_joined_state_machines(assembly):
    (template,) = read_templates(assembly / "Minimum.template.json")
    text = json.dumps(template.body)
    text = text.replace("kinesis:GetRecords", "kinesis:GetRecord")
    text = text.replace('\\"Type\\":\\"Pass\\"', '\\"Type\\":\\"Pas\\"')
    template.body.clear()
    template.body.update(json.loads(text))

    found = {fault.fact: fault for fault in faults_of(template)}
    assert found.keys() == {"cfn-lint W3037", "cfn-lint E3601"}
    assert found["cfn-lint E3601"].where == "Minimum/Fleet/Slots/Machine"
    assert "'Pas' is not one of" in found["cfn-lint E3601"].found
