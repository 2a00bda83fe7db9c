"""An EMR Serverless on a virtual clock, and what its runs do, told by the test."""

import pytest

from shardfleet_local.emr_serverless.engine import EmrServerless
from shardfleet_local.emr_serverless.lives import Delays, Work

START_S = 1_800_000_000.0
ROLE = "arn:aws:iam::111122223333:role/job"


class Emr:
    """An engine with one call per line of a test."""

    def __init__(self):
        self.now_s = START_S
        self.work = Work()
        self.engine = EmrServerless(
            clock=lambda: self.now_s,
            job=lambda _: self.work,
            delays=Delays(create_s=1, start_s=30, stop_s=10, schedule_s=5),
        )
        self.tokens = 0

    def __getattr__(self, operation):
        return lambda **request: self.engine.call(operation, request)

    def wait(self, seconds):
        self.now_s += seconds
        self.engine.play()

    def application(self, **settings):
        """Create an application and return its id, CREATED."""
        request = {"releaseLabel": "emr-spark-8.0.0", "type": "SPARK", "clientToken": self.token()}
        made = self.CreateApplication(**request | settings)
        self.wait(1)
        return made["applicationId"]

    def token(self):
        self.tokens += 1
        return f"token-{self.tokens}"

    def start(self, application_id, **settings):
        request = {
            "applicationId": application_id,
            "clientToken": self.token(),
            "executionRoleArn": ROLE,
            "jobDriver": {"sparkSubmit": {"entryPoint": "s3://code/job.py"}},
        }
        return self.StartJobRun(**request | settings)["jobRunId"]

    def running(self, application_id, **settings):
        """Start a run and return its id when it is RUNNING."""
        run_id = self.start(application_id, **settings)
        self.wait(30 + 5 + 5)
        assert self.state(application_id, run_id) == "RUNNING"
        return run_id

    def state(self, application_id, run_id=None):
        if run_id is None:
            return self.GetApplication(applicationId=application_id)["application"]["state"]
        return self.run(application_id, run_id)["state"]

    def run(self, application_id, run_id):
        return self.GetJobRun(applicationId=application_id, jobRunId=run_id)["jobRun"]


@pytest.fixture
def emr():
    return Emr()
