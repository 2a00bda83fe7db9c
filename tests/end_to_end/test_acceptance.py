"""
`shardfleet acceptance`, short, on an embedded AWS that enforces IAM: it passes, and leaves nothing.

Then the same account is given what a run could have left, and the same records one less.
"""

import json
from dataclasses import replace

import pytest

from shardfleet_local.acceptance.deployment import (
    AcceptanceAccount,
    Deployment,
    NotDestroyed,
    left_behind,
)
from shardfleet_local.acceptance.plan import SHORT, TAG
from shardfleet_local.acceptance.report import AcceptanceReport, Shown, passed
from shardfleet_local.acceptance.run import Acceptance, destroyed
from shardfleet_local.acceptance.steps import STEPS, judged
from shardfleet_local.aws.deploy import BOOTSTRAP_PARAMETER
from shardfleet_local.aws.launcher import EmbeddedAws
from shardfleet_local.rig.verdict import verdict

pytestmark = pytest.mark.processes

NAME = "shardfleet-acceptance-0a1b2c"
OTHER = "shardfleet-acceptance-ffffff"
QUEUE = {"Resources": {"Queue": {"Type": "AWS::SQS::Queue"}}}


@pytest.fixture(scope="module")
def account():
    with EmbeddedAws(enforce_iam=True) as aws:
        yield AcceptanceAccount.embedded(aws)


@pytest.fixture(scope="module")
def run(account):
    """A whole run; what it says is shown if a test fails."""
    done = Acceptance(Deployment(account=account, name=NAME, embedded=True), SHORT, print)
    done.run()
    return done


def a_report(run, **changes):
    given = {
        "name": NAME,
        "where": "the embedded AWS",
        "version": "1",
        "began": "2026-11-22T00:00:00+00:00",
        "size": SHORT,
        "rows": run.rows,
        "hidden": run.deployment.account.account_id,
    }
    return AcceptanceReport(**{**given, **changes})


def test_every_step_passes_and_nothing_is_left(run):
    shown = {row.step.name: row.measured.shown for row in run.rows}

    # A slow machine shows nothing of AWS.
    assert Shown.FAILED not in shown.values()
    names = [step.name for step in STEPS]
    assert list(shown) == ["deploy", *names, "destroy", "left behind"]
    timed = {"time-out", "stopped execution", "split", "merge", "new code", "quiet"}
    assert {name for name, each in shown.items() if each is Shown.NOT_SHOWN} <= timed
    assert passed(run.rows)


def test_nothing_outside_of_the_stack_and_its_bucket_is_written(run, account):
    """The CDK's bootstrap, which an account need not have, is neither needed nor touched."""
    (deployed, *_) = [row.measured.shown for row in run.rows]
    assert deployed is Shown.PASSED
    with pytest.raises(account.client("ssm").exceptions.ParameterNotFound):
        account.client("ssm").get_parameter(Name=BOOTSTRAP_PARAMETER)
    assert account.client("s3").list_buckets()["Buckets"] == []


def test_what_was_fed_is_what_was_handled(run):
    (records,) = [row.measured.figures for row in run.rows if row.step.name == "records"]

    assert records["records"] >= SHORT.records
    assert records["handled"] == records["records"]


def test_the_report_says_all_of_it_and_names_no_account(run, tmp_path):
    page, document = a_report(run).write(tmp_path)

    found = json.loads(document.read_text("utf-8"))
    assert found["passed"] is True
    assert [step["name"] for step in found["steps"]] == [row.step.name for row in run.rows]
    assert "# Acceptance: passed" in page.read_text("utf-8")
    assert page.read_text("utf-8").count("\n| ") == len(run.rows) + 1
    for file in (page, document):
        assert run.deployment.account.account_id not in file.read_text("utf-8")


def test_one_record_less_among_the_same_fails_the_report(run, tmp_path):
    lines = run.scene.notes.lines
    sent = list(run.scene.feeder.sent)
    once = verdict(sent, lines, shards=[])
    assert judged(once, []).shown is Shown.PASSED
    (lost,) = [row for row in run.rows if row.step.name == "records"]
    # What was rewound came twice: all of its deliveries are taken out.
    place = lines[0].records[0]
    without = [
        line._replace(records=tuple(each for each in line.records if each != place))
        for line in lines
    ]

    found = judged(verdict(sent, without, shards=[]), [])

    assert found.shown is Shown.FAILED
    assert found.figures["lost"] == 1
    rows = [replace(row, measured=found) if row is lost else row for row in run.rows]
    page, _ = a_report(run, rows=rows).write(tmp_path)
    assert "# Acceptance: FAILED" in page.read_text("utf-8")


def test_what_a_run_leaves_is_found_and_destroyed(account):
    """A stack that is not destroyed, its bucket, and things of its name that no stack has."""
    deployment = Deployment(account=account, name=OTHER, embedded=True)
    deployment.make_bucket()
    account.client("s3").put_object(Bucket=deployment.bucket, Key="notes/1", Body=b"{}")
    account.client("kinesis").create_stream(StreamName=f"{OTHER}-Stream", ShardCount=1)
    account.client("logs").create_log_group(logGroupName=f"/aws/lambda/{OTHER}-Worker")
    cloudformation = account.client("cloudformation")
    tags = [{"Key": TAG, "Value": OTHER}]
    cloudformation.create_stack(StackName=OTHER, TemplateBody=json.dumps(QUEUE), Tags=tags)
    cloudformation.get_waiter("stack_create_complete").wait(
        StackName=OTHER, WaiterConfig={"Delay": 1}
    )

    found = left_behind(account, OTHER, deployment.resources())
    assert [each.partition(":")[0] for each in found] == [
        *("cloudformation", "kinesis", "logs", "s3", "sqs"),
    ]

    left = destroyed(deployment, print)
    assert [each.partition(":")[0] for each in left] == ["kinesis", "logs"]
    account.client("kinesis").delete_stream(StreamName=f"{OTHER}-Stream")
    account.client("logs").delete_log_group(logGroupName=f"/aws/lambda/{OTHER}-Worker")
    assert destroyed(deployment, print) == []


def test_what_a_stack_had_made_under_another_name_is_found(account):
    account.client("kinesis").create_stream(StreamName="a-stream-of-ours", ShardCount=1)

    assert left_behind(account, NAME, {}) == []
    made = {"a-stream-of-ours": "AWS::Kinesis::Stream", "role|policy": "AWS::IAM::Policy"}
    assert left_behind(account, NAME, made) == ["kinesis: a-stream-of-ours"]
    assert left_behind(account, NAME, {"unknown": "AWS::KMS::Key"}) == ["AWS::KMS::Key: unknown"]


def test_a_stack_of_that_name_that_no_run_has_made_stays(account):
    cloudformation = account.client("cloudformation")
    name = "shardfleet-acceptance-eeeeee"
    cloudformation.create_stack(StackName=name, TemplateBody=json.dumps(QUEUE))

    with pytest.raises(NotDestroyed, match=TAG):
        destroyed(Deployment(account=account, name=name, embedded=True), print)

    (stack,) = cloudformation.describe_stacks(StackName=name)["Stacks"]
    assert stack["StackStatus"].startswith("CREATE_")
