"""
The job of a `SparkPipeline` on the embedded AWS: its own template, functions and policies.

Deployed, replaced, doubled, failing and destroyed in random order. SHARDFLEET_TEST_SPARK_JOBS=20
plays so many schedules instead of two. No Spark runs: a run does what the test tells.
"""

import json
import os
import random
import shutil
import time
import uuid

import pytest

from shardfleet_local.aws.deploy import deploy
from shardfleet_local.aws.launcher import EmbeddedAws

pytestmark = pytest.mark.processes

SCHEDULES = int(os.environ.get("SHARDFLEET_TEST_SPARK_JOBS", "2"))
STACK = "Pipeline"
RELEASES = ("emr-spark-8.0.0", "emr-spark-8.1.0")
ALIVE = ("RUNNING", "CANCELLING")
# What the end waits for a look in flight: the look's time-out on AWS, here a look is as good as
# over in a second.
WATCH_SECONDS = {30: 3}


@pytest.fixture(scope="module")
def assembly(tmp_path_factory):
    from aws_cdk import App, Stack  # noqa: PLC0415 - it starts Node.
    from aws_cdk import aws_kinesis as kinesis  # noqa: PLC0415

    from shardfleet_cdk import PipelineWork, SparkOptions, SparkPipeline  # noqa: PLC0415
    from shardfleet_cdk.synthesis import NO_BUNDLING  # noqa: PLC0415

    folder = tmp_path_factory.mktemp("assembly")
    app = App(outdir=str(folder), context=NO_BUNDLING)
    stack = Stack(app, STACK)
    SparkPipeline(
        stack,
        "Archive",
        source=kinesis.Stream(stack, "Clicks"),
        work=PipelineWork(transform="archive"),
        spark=SparkOptions(conf={"spark.app.version": "VERSION"}),
    )
    app.synth()
    return folder


@pytest.fixture(scope="module")
def aws():
    with EmbeddedAws(enforce_iam=True) as started:
        yield started


class Pipeline:
    """The deployed pipeline; each deploy has its own version of the code."""

    def __init__(self, aws, assembly, folder):
        self.aws = aws
        self.version = 0
        self.release = 0
        self._assembly = assembly
        self._folder = folder
        self._name = f"Pipeline{uuid.uuid4().hex[:8]}"
        self._emr = aws.client("emr-serverless")
        self._stacks = aws.client("cloudformation")
        self._states = aws.client("stepfunctions")

    def deploy(self):
        """Deploy the next version, and wait until the stack has settled."""
        self.version += 1
        folder = self._folder / f"{self.version}"
        shutil.copytree(self._assembly, folder)
        template = folder / f"{STACK}.template.json"
        text = template.read_text("utf-8").replace("=VERSION", f"={self.version}")
        plain = json.loads(text.replace(RELEASES[0], RELEASES[self.release]))
        for each in plain["Resources"].values():
            if each["Type"] == "Custom::ShardFleetSparkJob":
                of_look = each["Properties"]["WatchSeconds"]
                each["Properties"]["WatchSeconds"] = WATCH_SECONDS[of_look]
        template.write_text(json.dumps(plain), "utf-8")
        manifest = folder / "manifest.json"
        listing = json.loads(manifest.read_text("utf-8"))
        listing["artifacts"][STACK]["properties"]["stackName"] = self._name
        manifest.write_text(json.dumps(listing), "utf-8")
        stack = deploy(folder, self._name, self.aws)
        (self.application,) = stack.of_type("AWS::EMRServerless::Application").values()
        (self._machine,) = stack.of_type("AWS::StepFunctions::StateMachine").values()

    def look(self, times=1):
        """Start the state machine so many times at once, as the schedule does, and wait."""
        started = [
            self._states.start_execution(stateMachineArn=self._machine)["executionArn"]
            for _ in range(times)
        ]
        for execution in started:
            self.until(lambda arn=execution: self._ended(arn))

    def _ended(self, execution):
        found = self._states.describe_execution(executionArn=execution)
        assert found["status"] in ("RUNNING", "SUCCEEDED"), found
        return found["status"] == "SUCCEEDED"

    def runs(self):
        """Return the runs, the oldest first; there is never more than one that has workers."""
        found = self._emr.list_job_runs(applicationId=self.application)["jobRuns"]
        alive = [run for run in found if run["state"] in ALIVE]
        assert len(alive) <= 1, f"two runs on one checkpoint: {alive}"
        return sorted(found, key=lambda run: run["createdAt"])

    def running_version(self):
        """Return the version that is RUNNING, None if there is none."""
        for run in self.runs():
            if run["state"] == "RUNNING":
                asked = {"applicationId": self.application, "jobRunId": run["id"]}
                submit = self._emr.get_job_run(**asked)["jobRun"]["jobDriver"]["sparkSubmit"]
                words = submit["sparkSubmitParameters"].split()
                return int(next(w for w in words if "app.version" in w).rpartition("=")[2])
        return None

    def until(self, condition, seconds=60):
        deadline = time.monotonic() + seconds
        while not condition():
            assert time.monotonic() < deadline, self.runs()
            time.sleep(0.05)

    def settle(self):
        """Wait until nothing is being cancelled."""
        self.until(lambda: not any(run["state"] == "CANCELLING" for run in self.runs()))

    def replaced_within_two_looks(self):
        self.look()
        self.settle()
        self.look()
        self.until(lambda: self.running_version() == self.version)

    def destroy(self):
        self._stacks.delete_stack(StackName=self._name)
        waiter = self._stacks.get_waiter("stack_delete_complete")
        waiter.wait(StackName=self._name, WaiterConfig={"Delay": 1, "MaxAttempts": 90})
        state = self._emr.get_application(applicationId=self.application)["application"]["state"]
        assert state == "TERMINATED"


@pytest.mark.parametrize("seed_", range(SCHEDULES))
def test_a_job_lives_through_any_schedule(seed_, aws, assembly, tmp_path):
    draw, pipeline = random.Random(seed_), Pipeline(aws, assembly, tmp_path)
    aws.set_job_runs(stops_s=0.3)
    pipeline.deploy()
    pipeline.replaced_within_two_looks()

    def new_code():
        pipeline.deploy()
        pipeline.replaced_within_two_looks()

    def new_application():
        """It is changed, for which its runs end (finding A3)."""
        pipeline.release = 1 - pipeline.release
        new_code()

    def doubled_event():
        pipeline.look(times=3)
        pipeline.until(lambda: pipeline.running_version() == pipeline.version)

    def failing_job():
        aws.set_job_runs(runs_s=0.1, succeeds=False)
        pipeline.deploy()
        pipeline.look()
        pipeline.settle()
        pipeline.look()
        aws.set_job_runs(stops_s=0.3)
        new_code()

    steps = [new_code, new_application, doubled_event, failing_job]
    for step in draw.sample(steps, k=len(steps)):
        step()
    if draw.random() < 0.5:
        pipeline.look()
    pipeline.destroy()
