"""What ends a run, and that everything is destroyed in every case; without any AWS."""

import pytest

from shardfleet_local.acceptance import run as run_module
from shardfleet_local.acceptance.deployment import NotDestroyed
from shardfleet_local.acceptance.plan import SHORT
from shardfleet_local.acceptance.report import Measured, Shown, Step, passed
from shardfleet_local.acceptance.run import Acceptance
from shardfleet_local.acceptance.scene import StepFailed
from shardfleet_local.aws.deploy import DeploymentFailed, StackOutputs


class PretendedDeployment:
    """Notes what is asked of it."""

    name, embedded, bucket = "shardfleet-acceptance-000000", True, "bucket"

    def __init__(self):
        self.account = self
        self.calls = []
        self.refuses = {}

    def client(self, service):
        return service

    def resources(self):
        return {}

    def _note(self, call):
        self.calls.append(call)
        if call in self.refuses:
            raise self.refuses[call]

    def make_bucket(self):
        self._note("bucket")

    def deploy(self, _size, _folder, *, version):
        self._note(f"deploy {version}")
        return StackOutputs(stack_name=self.name, template_sha256="", outputs={"StreamArn": "a"})

    def destroy(self, _say):
        self._note("destroy")


@pytest.fixture
def left(monkeypatch):
    """What the account still has after the end; nothing, until a test adds to it."""
    found = []
    monkeypatch.setattr(run_module, "left_behind", lambda *_: found)
    return found


@pytest.fixture
def deployment(left):
    return PretendedDeployment()


def a_step(name, shown=Shown.PASSED, *, error=None):
    async def run(_):
        if error:
            raise error
        return Measured(shown, "measured")

    return Step(name, "does", "promises", "page", run, is_fed=False)


def rows_of(run):
    return {row.step.name: row.measured.shown for row in run.rows}


def test_all_steps_are_done_between_deploying_and_destroying(deployment):
    run = Acceptance(deployment, SHORT, steps=[a_step("one"), a_step("two")])

    run.run()

    assert list(rows_of(run)) == ["deploy", "one", "two", "destroy", "left behind"]
    assert deployment.calls == ["bucket", "deploy 1", "destroy"]
    assert passed(run.rows)


def test_a_promise_that_is_not_kept_fails_the_run_and_the_next_step_follows(deployment):
    run = Acceptance(deployment, SHORT, steps=[a_step("one", Shown.FAILED), a_step("two")])

    run.run()

    assert rows_of(run)["two"] is Shown.PASSED
    assert not passed(run.rows)


def test_what_could_not_be_shown_fails_nothing(deployment):
    run = Acceptance(deployment, SHORT, steps=[a_step("one", Shown.NOT_SHOWN)])

    run.run()

    assert passed(run.rows)


def test_a_step_that_cannot_be_done_ends_the_steps_and_all_is_destroyed(deployment):
    error = StepFailed("no new shard")
    run = Acceptance(deployment, SHORT, steps=[a_step("one", error=error), a_step("two")])

    run.run()

    assert rows_of(run)["one"] is Shown.FAILED
    assert rows_of(run)["two"] is Shown.NOT_SHOWN
    assert deployment.calls[-1] == "destroy"
    assert not passed(run.rows)


@pytest.mark.parametrize("error", [KeyboardInterrupt(), AssertionError("a mistake of ours")])
def test_ctrl_c_and_a_crash_in_a_step_destroy_everything(deployment, error):
    run = Acceptance(deployment, SHORT, steps=[a_step("one", error=error), a_step("two")])

    with pytest.raises(type(error)):
        run.run()

    assert deployment.calls[-1] == "destroy"
    assert list(rows_of(run)) == ["deploy", "one", "two", "destroy", "left behind"]
    assert rows_of(run)["one"] is Shown.FAILED
    assert type(error).__name__ in run.rows[1].measured.text
    assert rows_of(run)["two"] is Shown.NOT_SHOWN
    assert not passed(run.rows)


@pytest.mark.parametrize("call", ["bucket", "deploy 1"])
@pytest.mark.parametrize("error", [KeyboardInterrupt(), DeploymentFailed("ROLLBACK_COMPLETE")])
def test_what_could_be_made_of_a_deployment_is_destroyed(deployment, call, error):
    deployment.refuses = {call: error}
    run = Acceptance(deployment, SHORT, steps=[a_step("one")])

    if isinstance(error, KeyboardInterrupt):
        with pytest.raises(KeyboardInterrupt):
            run.run()
    else:
        run.run()
        assert rows_of(run)["one"] is Shown.NOT_SHOWN
        assert not passed(run.rows)

    assert deployment.calls[-1] == "destroy"


def test_what_cannot_be_destroyed_and_what_is_left_are_failures(deployment, left):
    deployment.refuses = {"destroy": NotDestroyed("stack is DELETE_FAILED")}
    left.append("kinesis: shardfleet-acceptance-000000-Stream")
    run = Acceptance(deployment, SHORT, steps=[])

    run.run()

    assert rows_of(run)["destroy"] is Shown.FAILED
    assert rows_of(run)["left behind"] is Shown.FAILED
    assert "--destroy shardfleet-acceptance-000000" in run.rows[-1].measured.text


def test_steps_that_find_no_time_are_not_shown_and_all_is_destroyed(deployment, monkeypatch):
    monkeypatch.setattr(run_module, "MINUTES_MOST", 0)

    async def for_ever(_):
        await run_module.asyncio.Event().wait()

    waits = Step("one", "does", "promises", "page", for_ever, is_fed=False)
    run = Acceptance(deployment, SHORT, steps=[waits, a_step("two")])

    run.run()

    assert rows_of(run)["one"] is Shown.NOT_SHOWN
    assert rows_of(run)["two"] is Shown.NOT_SHOWN
    assert deployment.calls[-1] == "destroy"
