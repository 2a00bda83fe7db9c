"""
The functions of a Spark job on an embedded EMR Serverless, in virtual time, against a model.

Deploys, destructions, events that come twice or late, crashes and failing jobs, in random order.
"""

import contextlib
import importlib
import json
import os
import random
import sys
from datetime import UTC, datetime
from pathlib import Path
from types import SimpleNamespace

import pytest
from botocore import xform_name
from botocore.exceptions import ClientError

from shardfleet_local.emr_serverless.engine import EmrServerless
from shardfleet_local.emr_serverless.lives import Delays, Work
from shardfleet_local.emr_serverless.requests import MODEL, EmrServerlessError

FOLDER = Path(__file__).resolve().parents[2] / "functions/spark_job"
OPERATIONS = {xform_name(name): name for name in MODEL.operation_names}
START_S = 1_800_000_000.0
TICK_S = 300
WATCH_S = 30
GRACE_S = 120
LONGEST_SLEEP_S = 2
# `make whole` plays 1,000.
SCHEDULES = int(os.environ.get("SHARDFLEET_TEST_DRAWN", "200"))
ROLE = "arn:aws:iam::111122223333:role/job"


@pytest.fixture(scope="module", autouse=True)
def functions():
    sys.path.insert(0, str(FOLDER))
    yield
    sys.path.remove(str(FOLDER))


def module(name):
    return importlib.import_module(name)


class Refused(ClientError):
    """A refusal as boto3 has it."""


class Client:
    """A client of the SDK, which calls the engine at once."""

    class exceptions:  # noqa: N801 - boto3's name
        class ValidationException(Refused):
            pass

        class ResourceNotFoundException(Refused):
            pass

        class ConflictException(Refused):
            pass

    def __init__(self, engine):
        self._engine = engine

    def __getattr__(self, method):
        return lambda **request: self._call(OPERATIONS[method], request)

    def _call(self, operation, request):
        plain = {k: v.timestamp() if isinstance(v, datetime) else v for k, v in request.items()}
        try:
            answer = self._engine.call(operation, plain)
        except EmrServerlessError as error:
            told = {"Error": {"Code": error.code, "Message": error.message}}
            raise getattr(self.exceptions, error.code)(told, operation) from error
        for run in answer.get("jobRuns", ()):
            for name in ("createdAt", "updatedAt"):
                run[name] = datetime.fromtimestamp(run[name], UTC)
        return answer

    def get_paginator(self, method):
        assert method == "list_job_runs"
        return self

    def paginate(self, **request):
        token = {}
        while True:
            page = self.list_job_runs(**request, **token)
            yield page
            if "nextToken" not in page:
                return
            token = {"nextToken": page["nextToken"]}


class World:
    """A stack with a Spark job: its status, its application, the code that it deploys."""

    def __init__(self, seed=0, *, queues=True):
        self.draw = random.Random(seed)
        self.now_s = START_S
        self.status = "CREATE_COMPLETE"
        self.version = 1
        self.broken = set()
        self.engine = EmrServerless(
            clock=lambda: self.now_s,
            job=self._work,
            delays=Delays(create_s=1, start_s=20, stop_s=5, schedule_s=3),
        )
        self.emr = Client(self.engine)
        made = self.emr.create_application(
            releaseLabel="emr-spark-8.0.0",
            type="SPARK",
            clientToken="made",
            **({"schedulerConfiguration": {"maxConcurrentRuns": 1}} if queues else {}),
        )
        self.application = made["applicationId"]
        self.wait(1)

    def describe_stacks(self, **_):
        return {"Stacks": [{"StackStatus": self.status}]}

    def _work(self, run):
        others = [each for each in self.engine._runs[self.application].values() if each.workers]
        assert others in ([], [run]), f"two runs on one checkpoint: {others}"
        version = int(run.request["tags"]["version"])
        if version in self.broken:
            return Work(runs_s=self.draw.choice((1, 30)), succeeds=False)
        return Work(stops_s=self.draw.choice((0, 20, 200)))

    def event(self, version):
        return {
            "Name": "shardfleet-pipeline",
            "Plan": {"checkpoint": "s3://bucket/checkpoint"},
            "Stack": "stack",
            "Fleet": "clicks",
            "GraceSeconds": GRACE_S,
            "StartJobRun": {
                "ApplicationId": self.application,
                "ExecutionRoleArn": ROLE,
                "Mode": "STREAMING",
                "Tags": {"version": str(version)},
                "JobDriver": {"SparkSubmit": {"EntryPoint": f"s3://code/{version}.py"}},
                "RetryPolicy": {"MaxFailedAttemptsPerHour": 1},
            },
        }

    def look(self, version=None, *, emr=None, stacks=None):
        return module("spark_look").look(
            self.event(version or self.version),
            emr=emr or self.emr,
            stacks=stacks or self,
            now_ms=int(self.now_s * 1_000),
        )

    def wait(self, seconds):
        self.now_s += seconds
        self.engine.play()

    def under_way(self):
        return [run for run in self.engine.runs(self.application) if not run.state.ended]

    def versions(self):
        return [int(run.request["tags"]["version"]) for run in self.under_way()]

    def end(self, *, has_time=lambda: True, sleep=None):
        spark_end = module("spark_end")
        return spark_end.end_job(
            self.application,
            emr=self.emr,
            patience=spark_end.Patience(watch_s=WATCH_S, grace_s=GRACE_S),
            has_time=has_time,
            clock=lambda: self.now_s,
            sleep=sleep or self.wait,
        )


def test_a_job_is_started_once_however_often_it_is_looked_at():
    world = World()
    for _ in range(3):
        world.look()
        world.wait(60)
    (run,) = world.engine.runs(world.application)
    assert run.state == "RUNNING"
    assert run.request["name"].startswith("shardfleet-pipeline-")


def test_new_code_replaces_the_run_after_its_batch_within_two_ticks():
    world = World()
    world.look()
    world.wait(TICK_S)
    world.version = 2
    assert world.look()["cancelled"]
    (old,) = world.under_way()
    assert old.state in ("CANCELLING", "CANCELLED")
    world.wait(TICK_S)
    world.look()
    world.wait(60)
    assert world.versions() == [2]


class Racing(Client):
    """A client that lets something else happen just before a run is started."""

    def __init__(self, engine, meanwhile):
        super().__init__(engine)
        self._meanwhile = meanwhile

    def start_job_run(self, **request):
        self._meanwhile()
        return self._call("StartJobRun", request)


@pytest.mark.parametrize("late", [1, 2])
def test_a_look_that_comes_between_starts_no_second_run(late):
    """Finding A10; `late` 1: of the deploy before, with another request."""
    world = World()
    world.version = 2
    world.look(late, emr=Racing(world.engine, world.look))
    world.wait(60)
    assert world.versions() == [2]


def test_what_failed_is_counted_and_rests():
    world = World()
    world.broken = {1}
    started = []
    for _ in range(60):
        started.append(world.look()["started"])
        world.wait(60)
    assert 5 <= sum(map(bool, started)) <= 8
    told = world.look()
    assert told["job_failures_in_a_row"] >= 4
    (metric,) = told["_aws"]["CloudWatchMetrics"]
    assert metric["Dimensions"] == [["fleet"]]


def test_an_ended_job_is_stopped_and_may_be_deleted():
    """Finding A3."""
    world = World()
    world.look()
    world.wait(60)
    world.status = "DELETE_IN_PROGRESS"
    assert world.end() == "1 runs were cancelled, the application is STOPPED"
    assert not world.look()["started"]
    world.emr.delete_application(applicationId=world.application)


def test_a_look_that_had_read_the_status_before_is_waited_for():
    world = World()
    slept = []

    def late_look(seconds):
        slept.append(seconds)
        world.wait(seconds)
        if len(slept) == 5:  # Within the time that its function may run.
            world.status = "DELETE_IN_PROGRESS"
            world.emr.start_job_run(**request)

    request = {
        "applicationId": world.application,
        "clientToken": "late",
        "executionRoleArn": ROLE,
        "jobDriver": {"sparkSubmit": {"entryPoint": "s3://code/1.py"}},
        "tags": {"version": "1"},
    }
    assert world.end(sleep=late_look).startswith("1 runs were cancelled")
    assert world.under_way() == []
    world.emr.delete_application(applicationId=world.application)


class Losing(Client):
    """A client whose process dies before or after its next call that changes something."""

    def __init__(self, engine, draw):
        super().__init__(engine)
        self._draw = draw

    def _call(self, operation, request):
        changes = operation in ("StartJobRun", "CancelJobRun")
        if changes and self._draw.random() < 0.5:
            raise ConnectionError(operation)
        answer = super()._call(operation, request)
        if changes and self._draw.random() < 0.5:
            raise ConnectionError(operation)
        return answer


class Settled:
    """What a look has read of the stack before its status changed."""

    def describe_stacks(self, **_):
        return {"Stacks": [{"StackStatus": "UPDATE_COMPLETE"}]}


class Schedule:
    """A random life of a stack; the names of the steps are what may happen to it."""

    def __init__(self, seed):
        self.world = World(seed, queues=seed % 2 == 0)
        self.draw = self.world.draw
        self.deploys = 0

    def run(self, steps=12):
        kinds = (self.tick, self.twice, self.late, self.dies, self.deploy, self.job_fails)
        for _ in range(steps):
            self.draw.choices(kinds, weights=(4, 2, 2, 2, 3, 1))[0]()
            self.world.wait(self.draw.choice((1, 40, 150, 300)))
        self.destroy()

    def tick(self):
        self.world.look()

    def twice(self):
        for _ in range(2):
            self.world.look()
            self.world.wait(self.draw.choice((0, 1, 20)))

    def late(self):
        """A look, perhaps of the deploy before, listed; then comes another; then it starts."""
        version = max(1, self.world.version - self.draw.choice((0, 1)))
        self.world.look(version, emr=Racing(self.world.engine, self.world.look))

    def dies(self):
        try:
            self.world.look(emr=Losing(self.world.engine, self.draw))
        except ConnectionError:
            self.world.look()  # The state machine's retry.

    def job_fails(self):
        for run in self.world.under_way():
            if run.state == "RUNNING":
                run.due = (self.world.now_s, type(run.state)("FAILED"))
        self.world.engine.play()

    def deploy(self):
        world, draw = self.world, self.draw
        self.deploys += 1
        world.status = "UPDATE_IN_PROGRESS"
        if draw.random() < 0.4:  # Also the application is another.
            self.end(in_flight=draw.random() < 0.5)
            world.emr.update_application(
                applicationId=world.application, clientToken=f"update-{self.deploys}"
            )
        before, world.version = world.version, world.version + 1
        if draw.random() < 0.3:
            world.broken.add(world.version)
        world.look(draw.choice((before, world.version)))
        world.wait(draw.choice((0, 30, 400)))
        if draw.random() < 0.2:
            world.status = "UPDATE_ROLLBACK_IN_PROGRESS"
            world.look(draw.choice((before, world.version)))
            world.status, world.version = "UPDATE_ROLLBACK_COMPLETE", before
            return
        world.status = "UPDATE_COMPLETE"
        for _ in range(2):
            world.look()
            world.wait(TICK_S)
        ever = [int(run.request["tags"]["version"]) for run in world.engine.runs(world.application)]
        assert world.version in ever, "new code does not run within two ticks"
        if world.version not in world.broken:
            assert world.versions() == [world.version]

    def end(self, *, in_flight):
        """End the job; looks go on meanwhile, one of which may have read the status before."""
        world, began_s = self.world, self.world.now_s
        at_s = self.draw.uniform(0, WATCH_S - LONGEST_SLEEP_S)
        slow = [world.version] if in_flight else []

        def look_late():
            with contextlib.suppress(Refused):  # An application that stops takes no run.
                world.look(slow.pop(), stacks=Settled())

        def sleep(seconds):
            world.wait(seconds)
            world.look()
            if slow and world.now_s - began_s >= at_s:
                look_late()

        world.end(sleep=sleep, has_time=lambda: world.now_s < began_s + 900)
        if slow and world.now_s < began_s + WATCH_S:
            look_late()

    def destroy(self):
        world = self.world
        world.status = "DELETE_IN_PROGRESS"
        self.end(in_flight=self.draw.random() < 0.5)
        world.look()
        world.emr.delete_application(applicationId=world.application)
        assert world.under_way() == []


@pytest.mark.parametrize("first", range(0, SCHEDULES, 100))
def test_any_schedule_has_one_run_new_code_in_time_and_ends(first):
    """In every other one of the schedules the application itself would let several runs go on."""
    for seed in range(first, first + 100):
        try:
            Schedule(seed).run()
        except Exception as error:
            raise AssertionError(f"seed {seed}") from error


def test_an_end_that_takes_too_long_says_what_is_there():
    world = World()
    world.look()
    world.wait(60)
    with pytest.raises(module("spark_end").StillThere, match="runs under way: 00r"):
        world.end(has_time=lambda: False)


def test_an_application_that_is_gone_is_ended():
    world = World()
    world.application = "gone"
    assert "no application gone" in world.end(sleep=lambda _: None)


@pytest.mark.parametrize(
    ("kind", "minutes", "status", "reason"),
    [
        ("Delete", 10, "SUCCESS", "1 runs were cancelled, the application is STOPPED"),
        ("Delete", 0, "FAILED", "runs under way: 00r"),
        ("Create", 10, "SUCCESS", "nothing is ended at Create"),
    ],
)
def test_cloudformation_is_answered_what_became_of_the_job(
    kind, minutes, status, reason, monkeypatch
):
    world, answers = World(), []
    world.look()
    world.wait(60)
    handler = module("spark_job")
    monkeypatch.setattr(handler.boto3, "client", lambda _: world.emr)
    clock = SimpleNamespace(monotonic=lambda: world.now_s, sleep=world.wait)
    monkeypatch.setattr(handler, "time", clock)  # Not that of all threads.

    def put(request, timeout):
        assert timeout
        answers.append(json.loads(request.data))
        assert request.headers["Content-type"] == "", "the signature covers an empty one"
        return contextlib.nullcontext()

    monkeypatch.setattr(handler.urllib.request, "urlopen", put)
    end_s = world.now_s + 60 * minutes

    class Context:
        def get_remaining_time_in_millis(self):
            return (end_s - world.now_s) * 1_000

    event = {
        "RequestType": kind,
        "ResponseURL": "http://127.0.0.1/answer",
        "StackId": "stack",
        "RequestId": "request",
        "LogicalResourceId": "BeforeDelete",
        "ResourceProperties": {
            "On": "Delete",
            "ApplicationId": world.application,
            "WatchSeconds": str(WATCH_S),
            "GraceSeconds": str(GRACE_S),
        },
    }
    handler.end(event, Context())

    (answer,) = answers
    assert answer["Status"] == status
    assert reason in answer["Reason"]
    assert (answer["LogicalResourceId"], answer["PhysicalResourceId"]) == (
        "BeforeDelete",
        "spark-job",
    )
