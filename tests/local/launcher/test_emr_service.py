"""EMR Serverless in the embedded AWS: the SDK's calls, templates, policies."""

import json
import time
import uuid

import pytest

from shardfleet_local.aws.launcher import EmbeddedAws

pytestmark = pytest.mark.processes

ROLE = "arn:aws:iam::111122223333:role/job"
APPLICATION = {
    "Type": "AWS::EMRServerless::Application",
    "Properties": {
        "Type": "SPARK",
        "ReleaseLabel": "emr-spark-8.0.0",
        "Architecture": "ARM64",
        "MaximumCapacity": {"Cpu": "16 vCPU", "Memory": "64 GB"},
        "AutoStopConfiguration": {"Enabled": "true", "IdleTimeoutMinutes": "20"},
        "SchedulerConfiguration": {"MaxConcurrentRuns": 1},
        "Tags": [{"Key": "team", "Value": "a"}],
    },
}


def until(look, wanted, seconds=30):
    deadline = time.monotonic() + seconds
    while (found := look()) != wanted:
        assert time.monotonic() < deadline, f"{found} instead of {wanted}"
        time.sleep(0.05)


def start(emr, application, **settings):
    request = {
        "applicationId": application,
        "executionRoleArn": ROLE,
        "jobDriver": {"sparkSubmit": {"entryPoint": "s3://code/job.py"}},
    }
    return emr.start_job_run(**request | settings)["jobRunId"]


def run_state(emr, application, run):
    return emr.get_job_run(applicationId=application, jobRunId=run)["jobRun"]["state"]


def application_state(emr, application):
    return emr.get_application(applicationId=application)["application"]["state"]


def test_the_sdk_makes_starts_lists_cancels_stops_and_deletes(embedded_aws):
    emr = embedded_aws.client("emr-serverless")
    made = emr.create_application(name="one", releaseLabel="emr-spark-8.0.0", type="SPARK")
    application = made["applicationId"]
    assert made["arn"].endswith(f":111122223333:/applications/{application}")
    until(lambda: application_state(emr, application), "CREATED")
    run = start(emr, application, mode="STREAMING", name="first")
    until(lambda: run_state(emr, application, run), "RUNNING")
    (listed,) = emr.list_job_runs(applicationId=application, states=["RUNNING", "QUEUED"])[
        "jobRuns"
    ]
    assert (listed["id"], listed["name"], listed["mode"]) == (run, "first", "STREAMING")
    assert abs(listed["createdAt"].timestamp() - time.time()) < 60
    after = listed["createdAt"].timestamp() + 60
    assert emr.list_job_runs(applicationId=application, createdAtAfter=after)["jobRuns"] == []
    with pytest.raises(emr.exceptions.ValidationException, match="completed or cancelled"):
        emr.stop_application(applicationId=application)
    emr.cancel_job_run(applicationId=application, jobRunId=run)
    until(lambda: run_state(emr, application, run), "CANCELLED")
    emr.stop_application(applicationId=application)
    until(lambda: application_state(emr, application), "STOPPED")
    emr.delete_application(applicationId=application)
    assert application_state(emr, application) == "TERMINATED"
    with pytest.raises(emr.exceptions.ResourceNotFoundException):
        emr.get_application(applicationId="nothing")


def test_what_runs_do_is_told_from_outside(embedded_aws):
    emr = embedded_aws.client("emr-serverless")
    application = emr.create_application(releaseLabel="emr-spark-8.0.0", type="SPARK")[
        "applicationId"
    ]
    until(lambda: application_state(emr, application), "CREATED")
    embedded_aws.set_job_runs(runs_s=0.1, succeeds=False)
    try:
        run = start(emr, application)
        until(lambda: run_state(emr, application, run), "FAILED")
    finally:
        embedded_aws.set_job_runs()


class Stack:
    def __init__(self, aws):
        self.name = f"Emr{uuid.uuid4().hex[:8]}"
        self._client = aws.client("cloudformation")

    def deploy(self, operation="create_stack", **properties):
        application = {**APPLICATION, "Properties": APPLICATION["Properties"] | properties}
        arn = {"Value": {"Fn::GetAtt": ["Application", "Arn"]}}
        ref = {"Value": {"Fn::GetAtt": ["Application", "ApplicationId"]}}
        body = {"Resources": {"Application": application}, "Outputs": {"Arn": arn, "Id": ref}}
        getattr(self._client, operation)(StackName=self.name, TemplateBody=json.dumps(body))
        until(lambda: self.status().endswith("_IN_PROGRESS"), wanted=False)
        (stack,) = self._client.describe_stacks(StackName=self.name)["Stacks"]
        return {each["OutputKey"]: each["OutputValue"] for each in stack["Outputs"]}

    def status(self):
        stacks = self._client.list_stacks()["StackSummaries"]
        return next(each for each in stacks if each["StackName"] == self.name)["StackStatus"]

    def delete(self):
        self._client.delete_stack(StackName=self.name)
        until(lambda: self.status().endswith("_IN_PROGRESS"), wanted=False)


def test_a_template_makes_changes_and_deletes_an_application(embedded_aws):
    emr, stack = embedded_aws.client("emr-serverless"), Stack(embedded_aws)
    outputs = stack.deploy()
    found = emr.get_application(applicationId=outputs["Id"])["application"]
    assert found["arn"] == outputs["Arn"]
    assert found["autoStopConfiguration"] == {"enabled": True, "idleTimeoutMinutes": 20}
    assert found["schedulerConfiguration"] == {"maxConcurrentRuns": 1}
    assert (found["state"], found["tags"]) == ("CREATED", {"team": "a"})
    capacity = {"Cpu": "32 vCPU", "Memory": "128 GB"}
    assert stack.deploy("update_stack", MaximumCapacity=capacity) == outputs
    found = emr.get_application(applicationId=outputs["Id"])["application"]
    assert found["maximumCapacity"] == {"cpu": "32 vCPU", "memory": "128 GB"}
    stack.delete()
    assert stack.status() == "DELETE_COMPLETE"
    assert application_state(emr, outputs["Id"]) == "TERMINATED"


def test_an_application_that_is_started_fails_update_and_deletion(embedded_aws):
    """Finding A3: CloudFormation stops nothing (gchq/sleeper#2909)."""
    emr, stack = embedded_aws.client("emr-serverless"), Stack(embedded_aws)
    application = stack.deploy()["Id"]
    start(emr, application)
    stack.deploy("update_stack", ReleaseLabel="emr-spark-8.1.0")
    assert stack.status().startswith("UPDATE_ROLLBACK")
    stack.delete()
    assert stack.status() == "DELETE_FAILED"


CODE = """
import boto3

def handler(event, context):
    emr = boto3.client("emr-serverless")
    getattr(emr, event["call"])(**event["with"])
    return "done"
"""


def test_policies_are_about_applications_and_runs(tmp_path):
    """As the service authorization reference has it: a run is cancelled by its own ARN."""
    from tests.local.launcher.conftest import zipped  # noqa: PLC0415

    with EmbeddedAws(enforce_iam=True) as aws:
        emr, iam, functions = (aws.client(each) for each in ("emr-serverless", "iam", "lambda"))
        made = emr.create_application(releaseLabel="emr-spark-8.0.0", type="SPARK")
        application, arn = made["applicationId"], made["arn"]
        until(lambda: application_state(emr, application), "CREATED")
        run = start(emr, application)
        trust = {"Effect": "Allow", "Action": "sts:AssumeRole"}
        trust["Principal"] = {"Service": "lambda.amazonaws.com"}
        document = json.dumps({"Version": "2012-10-17", "Statement": [trust]})
        role = iam.create_role(RoleName="look", AssumeRolePolicyDocument=document)["Role"]["Arn"]
        rights = [("ListJobRuns", arn), ("CancelJobRun", f"{arn}/jobruns/*")]
        statements = [
            {"Effect": "Allow", "Action": f"emr-serverless:{action}", "Resource": resource}
            for action, resource in rights
        ]
        policy = json.dumps({"Version": "2012-10-17", "Statement": statements})
        iam.put_role_policy(RoleName="look", PolicyName="look", PolicyDocument=policy)
        functions.create_function(
            FunctionName="look",
            Runtime="python3.13",
            Role=role,
            Handler="code.handler",
            Code={"ZipFile": zipped({"code.py": CODE})},
        )

        def may(call, **request):
            event = {"call": call, "with": {"applicationId": application, **request}}
            answer = functions.invoke(FunctionName="look", Payload=json.dumps(event))
            payload = answer["Payload"].read().decode()
            assert "done" in payload or "AccessDenied" in payload, payload
            return "done" in payload

        assert may("list_job_runs")
        assert not may("get_job_run", jobRunId=run)
        assert not may("stop_application")
        assert may("cancel_job_run", jobRunId=run)
