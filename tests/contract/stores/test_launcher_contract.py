"""Who runs slots is asked the same, whatever stands behind it: hazard H3."""

import asyncio
import json
import time
import uuid

import pytest

from shardfleet.adapters.clients.aws_clients import AwsClients
from shardfleet.adapters.step_functions import StepFunctionsLauncher
from shardfleet.adapters.system import SystemClock
from shardfleet.adapters.thread_pool import ThreadPool
from shardfleet.engine.ports import ExecutionStatus
from shardfleet_processes.offers import OfferLauncher
from shardfleet_testkit.memory import MemoryLauncher, MemoryStateStore
from tests.adapters.tables import LIMITS

run = asyncio.run
ONE, OTHER = '{"version":1}', '{"version":2}'
WAITING = {"StartAt": "Wait", "States": {"Wait": {"Type": "Wait", "Seconds": 600, "End": True}}}


class Memory:
    """The test kit's executions."""

    def __init__(self, request):
        self.launcher = MemoryLauncher()

    def close(self, name):
        self.launcher.close(name)


class Offers:
    """Offers in a table, and one process that takes them."""

    def __init__(self, request):
        self.launcher = self.of(self.store(request), "manager")
        self.host = self.of(self.launcher._store, "pod-1")

    def store(self, request):
        return MemoryStateStore()

    def of(self, store, host):
        return OfferLauncher(store, host=host, clock=SystemClock(), failover_ms=600_000)

    def close(self, name):
        async def take_and_end():
            offer = (await self.host.look()).offers[name]
            assert await self.host.take(name, offer)
            await self.host.finish(name, offer)

        run(take_and_end())


class StoredOffers(Offers):
    """The same in DynamoDB."""

    def store(self, request):
        return request.getfixturevalue("tables_at")("embedded by wire").state


class Machine:
    """Executions of a state machine."""

    def __init__(self, request):
        aws = request.getfixturevalue("embedded_aws")
        patch = request.getfixturevalue("monkeypatch")
        for name, value in aws.environment().items():
            patch.setenv(name, value)
        self.states = AwsClients(LIMITS).step_functions
        self.machine = self.states.create_state_machine(
            name=f"worker-{uuid.uuid4().hex[:8]}",
            definition=json.dumps(WAITING),
            roleArn="arn:aws:iam::111122223333:role/any",
        )["stateMachineArn"]
        pool = ThreadPool("streams", threads=2)
        self.launcher = StepFunctionsLauncher(self.machine, client=self.states, pool=pool)

    def close(self, name):
        arn = self.machine.replace("stateMachine", "execution") + f":{name}"
        self.states.stop_execution(executionArn=arn)
        deadline = time.monotonic() + 60
        while run(self.launcher.status(name)) is ExecutionStatus.RUNNING:
            assert time.monotonic() < deadline


KINDS = {"memory": Memory, "offers": Offers}
DEAR = {"offers in DynamoDB": StoredOffers, "Step Functions": Machine}


@pytest.fixture(params=[*KINDS, *(pytest.param(n, marks=pytest.mark.processes) for n in DEAR)])
def slots(request):
    return (KINDS | DEAR)[request.param](request)


def test_a_start_repeated_while_it_runs_is_the_same_execution(slots):
    assert run(slots.launcher.start("f-s0001-1-0", ONE)) is True
    assert run(slots.launcher.start("f-s0001-1-0", ONE)) is True
    assert run(slots.launcher.status("f-s0001-1-0")) is ExecutionStatus.RUNNING


def test_a_start_with_another_input_is_refused_and_what_runs_goes_on(slots):
    run(slots.launcher.start("f-s0001-1-0", ONE))
    assert run(slots.launcher.start("f-s0001-1-0", OTHER)) is False
    assert run(slots.launcher.status("f-s0001-1-0")) is ExecutionStatus.RUNNING


def test_a_name_that_was_never_started_is_absent(slots):
    run(slots.launcher.start("f-s0001-1-0", ONE))
    assert run(slots.launcher.status("f-s0001-2-0")) is ExecutionStatus.ABSENT


def test_a_closed_execution_keeps_its_name(slots):
    run(slots.launcher.start("f-s0001-1-0", ONE))
    slots.close("f-s0001-1-0")
    assert run(slots.launcher.status("f-s0001-1-0")) is ExecutionStatus.CLOSED
    assert run(slots.launcher.start("f-s0001-1-0", ONE)) is False
    assert run(slots.launcher.start("f-s0001-2-0", ONE)) is True
