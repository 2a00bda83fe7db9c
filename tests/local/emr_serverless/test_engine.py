"""EMR Serverless in memory: states, refusals and limits, each as AWS describes it."""

import pytest

from shardfleet_local.emr_serverless.lives import ApplicationState, RunState, Work
from shardfleet_local.emr_serverless.requests import MODEL, EmrServerlessError

DAY_S = 24 * 60 * 60


def refused(code):
    return pytest.raises(EmrServerlessError, match=code)


def test_the_states_are_those_of_the_model():
    assert list(ApplicationState) == MODEL.shape_for("ApplicationState").enum
    assert set(RunState) == set(MODEL.shape_for("JobRunState").enum)


def test_an_application_is_created_started_by_a_run_and_stops_when_idle(emr):
    """R14: autoStart and autoStop are on, and 15 minutes without a run are idle."""
    made = emr.CreateApplication(releaseLabel="emr-spark-8.0.0", type="SPARK", clientToken="t")
    application = made["applicationId"]
    assert emr.state(application) == "CREATING"
    emr.wait(1)
    assert emr.state(application) == "CREATED"
    emr.work = Work(runs_s=60)
    run = emr.start(application)
    assert (emr.state(application), emr.state(application, run)) == ("STARTING", "SUBMITTED")
    emr.wait(30)
    assert (emr.state(application), emr.state(application, run)) == ("STARTED", "PENDING")
    emr.wait(5)
    assert emr.state(application, run) == "SCHEDULED"
    emr.wait(5)
    assert emr.state(application, run) == "RUNNING"
    emr.wait(60)
    assert emr.state(application, run) == "SUCCESS"
    emr.wait(15 * 60 - 1)
    assert emr.state(application) == "STARTED"
    emr.wait(1)
    assert emr.state(application) == "STOPPING"
    emr.wait(10)
    assert emr.state(application) == "STOPPED"


def test_an_application_that_does_not_start_itself_takes_no_run_while_stopped(emr):
    application = emr.application(autoStartConfiguration={"enabled": False})
    with refused("must be in of the following statuses"):
        emr.start(application)
    emr.StartApplication(applicationId=application)
    emr.start(application)


@pytest.mark.parametrize("operation", ["UpdateApplication", "DeleteApplication"])
def test_an_application_is_changed_only_when_created_or_stopped(emr, operation):
    """R02, with the words that gchq/sleeper#2909 met."""
    application = emr.application()
    request = {"applicationId": application}
    if operation == "UpdateApplication":
        request["clientToken"] = "t"
    emr.StartApplication(applicationId=application)
    emr.wait(30)
    words = r"must be in of the following statuses \[CREATED, STOPPED\]. Current status: STARTED"
    with refused(words):
        emr.engine.call(operation, request)
    emr.StopApplication(applicationId=application)
    with refused("Current status: STOPPING"):
        emr.engine.call(operation, request)
    emr.wait(10)
    emr.engine.call(operation, request)


def test_an_application_is_stopped_only_without_runs_and_only_when_started(emr):
    """R02, R16, with the words that gchq/sleeper#1212 met."""
    application = emr.application()
    words = r"must be in one of the following statuses: \[STARTING, STARTED\]"
    with refused(words):
        emr.StopApplication(applicationId=application)
    emr.work = Work(stops_s=20)
    run = emr.running(application)
    with refused("must be completed or cancelled"):
        emr.StopApplication(applicationId=application)
    emr.CancelJobRun(applicationId=application, jobRunId=run, shutdownGracePeriodInSeconds=60)
    with refused("must be completed or cancelled"):
        emr.StopApplication(applicationId=application)
    emr.wait(20)
    emr.StopApplication(applicationId=application)


def test_a_cancelled_run_has_its_grace_and_no_more(emr):
    """R15: 15 to 1,800 seconds, or none."""
    application = emr.application()
    emr.work = Work(stops_s=100)
    run = emr.running(application)
    for wrong in (14, 1_801):
        with refused("15 to 1800"):
            emr.CancelJobRun(
                applicationId=application, jobRunId=run, shutdownGracePeriodInSeconds=wrong
            )
    emr.CancelJobRun(applicationId=application, jobRunId=run, shutdownGracePeriodInSeconds=60)
    emr.wait(59)
    assert emr.state(application, run) == "CANCELLING"
    emr.wait(1)
    assert emr.state(application, run) == "CANCELLED"
    other = emr.running(application)
    emr.CancelJobRun(applicationId=application, jobRunId=other)
    assert emr.state(application, other) == "CANCELLED"


def test_a_client_token_stands_for_one_request(emr):
    """R06, R11."""
    application = emr.application()
    run = emr.start(application, clientToken="one", name="a")
    assert emr.start(application, clientToken="one", name="a") == run
    with refused("ConflictException"):
        emr.start(application, clientToken="one", name="b")
    assert emr.start(application, clientToken="two", name="b") != run


@pytest.mark.parametrize("token", ["x" * 65, "a b", ""])
def test_a_token_has_64_characters_of_some_kinds(emr, token):
    application = emr.application()
    with refused("'clientToken' failed to satisfy constraint"):
        emr.start(application, clientToken=token)


@pytest.mark.parametrize(
    ("request_", "complaint"),
    [
        ({"mode": "ENDLESS"}, "enum value set"),
        ({"executionTimeoutMinutes": -1}, "greater than or equal to 0"),
        ({"executionRoleArn": None}, "must not be null"),
        ({"jobDriver": {"sparkSubmit": {}}}, "jobDriver.sparkSubmit.entryPoint"),
        ({"tags": {"a": 1}}, "of type string"),
    ],
)
def test_a_request_is_held_against_the_model(emr, request_, complaint):
    application = emr.application()
    with refused(complaint):
        emr.start(application, **request_)


def test_a_batch_run_is_cancelled_after_720_minutes_unless_told(emr):
    """R01."""
    application = emr.application()
    limited, told, unlimited = (
        emr.running(application, **settings)
        for settings in ({}, {"executionTimeoutMinutes": 1440}, {"executionTimeoutMinutes": 0})
    )
    streaming = emr.running(application, mode="STREAMING")
    emr.wait(720 * 60)
    assert emr.state(application, limited) == "CANCELLED"
    assert emr.run(application, limited)["executionTimeoutMinutes"] == 720
    emr.wait(DAY_S)
    assert emr.state(application, told) == "CANCELLED"
    assert emr.state(application, unlimited) == emr.state(application, streaming) == "RUNNING"


def test_a_streaming_run_is_tried_again_so_often_an_hour(emr):
    """R05."""
    application = emr.application()
    emr.work = Work(runs_s=10, succeeds=False)
    policy = {"maxFailedAttemptsPerHour": 2}
    run = emr.start(application, mode="STREAMING", retryPolicy=policy)
    emr.wait(600)
    assert emr.run(application, run)["attempt"] == 3
    assert emr.state(application, run) == "FAILED"
    emr.work = Work(runs_s=1_801, succeeds=False)
    slow = emr.start(application, mode="STREAMING", retryPolicy=policy)
    emr.wait(DAY_S)
    assert emr.state(application, slow) in ("RUNNING", "SCHEDULED")


def test_a_batch_run_is_tried_once_unless_told(emr):
    application = emr.application()
    emr.work = Work(runs_s=10, succeeds=False)
    once = emr.start(application)
    thrice = emr.start(application, retryPolicy={"maxAttempts": 3})
    emr.wait(600)
    assert [emr.run(application, run)["attempt"] for run in (once, thrice)] == [1, 3]
    assert emr.state(application, once) == emr.state(application, thrice) == "FAILED"


def test_more_runs_than_may_be_at_once_are_queued(emr):
    """R07."""
    application = emr.application(schedulerConfiguration={"maxConcurrentRuns": 1})
    first = emr.running(application)
    second = emr.start(application)
    emr.wait(3_600)
    assert emr.state(application, second) == "QUEUED"
    emr.CancelJobRun(applicationId=application, jobRunId=first)
    emr.wait(10)
    assert emr.state(application, second) == "RUNNING"


def test_no_worker_is_made_beyond_the_capacity(emr):
    """R03, R13: a driver and three executors of 4 vCPU and 16 GB where the job does not say."""
    application = emr.application(maximumCapacity={"cpu": "16 vCPU", "memory": "48 GB"})
    run = emr.running(application)
    assert [each.workers for each in emr.engine.runs(application)] == [3]
    waiting = emr.start(application)
    emr.wait(60)
    assert emr.state(application, waiting) == "SCHEDULED"
    emr.CancelJobRun(applicationId=application, jobRunId=run)
    emr.wait(5)
    assert emr.state(application, waiting) == "RUNNING"


def test_runs_are_listed_in_pages_by_state_and_time(emr):
    """R10: 50 a page."""
    application = emr.application()
    emr.work = Work(runs_s=1)
    early = [emr.start(application) for _ in range(55)]
    emr.wait(600)
    emr.work = Work()
    late = emr.running(application)
    first = emr.ListJobRuns(applicationId=application)
    rest = emr.ListJobRuns(applicationId=application, nextToken=first["nextToken"])
    ids = [run["id"] for run in first["jobRuns"] + rest["jobRuns"]]
    assert (len(first["jobRuns"]), ids) == (50, [late, *reversed(early)])
    assert "nextToken" not in rest
    (running,) = emr.ListJobRuns(applicationId=application, states=["RUNNING"])["jobRuns"]
    after = emr.now_s - 60
    (lately,) = emr.ListJobRuns(applicationId=application, createdAtAfter=after)["jobRuns"]
    assert running["id"] == lately["id"] == late


def test_what_is_not_there_is_not_found(emr):
    application = emr.application()
    with refused("ResourceNotFoundException"):
        emr.start("nothing")
    with refused("ResourceNotFoundException"):
        emr.ListJobRuns(applicationId="nothing")
    with refused("ResourceNotFoundException"):
        emr.run(application, "nothing")


def test_a_run_that_has_ended_cannot_be_cancelled(emr):
    application = emr.application()
    emr.work = Work(runs_s=1)
    run = emr.start(application)
    emr.wait(600)
    with refused("SUCCESS"):
        emr.CancelJobRun(applicationId=application, jobRunId=run)
