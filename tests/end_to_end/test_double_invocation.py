"""Two invocations of one worker at the same time (hazard H1), with real processes."""

import json
import os
import signal
import threading
import time

import pytest
from botocore.config import Config

from tests.end_to_end.cloud import deployed, wait_until
from tests.end_to_end.watching import Feed, LeaseWatch, handled, out_of_order, read_calls

pytestmark = pytest.mark.processes

FAILOVER_S = 10
# A tick of the older invocation notices the newer; twice that, and the machine may be slow.
NOTICED_WITHIN_S = 2 * FAILOVER_S
PATIENT = Config(read_timeout=900, retries={"total_max_attempts": 1})


@pytest.fixture
def clicks(tmp_path):
    with deployed(
        tmp_path,
        handler="ledger",
        function="ledger:handler",
        environment={"LEDGER": str(tmp_path / "ledger.jsonl")},
        config={"workers_max": 1, "leases_per_worker": 8},
        shards=2,
    ) as fleet:
        yield fleet


def slot_of(fleet):
    (slot,) = fleet.documents("slot").values()
    return slot


def payload_of(slot, **changes):
    """Write what the slot's state machine sends to its worker."""
    names = {"slot": "slot_id", "name": "name", "start_epoch": "start_epoch"}
    sent = {name: slot[field] for name, field in names.items()}
    numbers = {"version": 1, "generation": int(slot["generation"]), "crashes": 0}
    return json.dumps(sent | numbers | changes, default=int).encode()


class Invocation(threading.Thread):
    """The worker invoked directly; `reply` is None while it runs."""

    def __init__(self, fleet, payload):
        super().__init__(daemon=True)
        self._client = fleet.aws.client("lambda", PATIENT)
        self._function = fleet.outputs["WorkerFunction"]
        self._payload = payload
        self.reply = None

    def run(self):
        answer = self._client.invoke(
            FunctionName=self._function, Qualifier="live", Payload=self._payload
        )
        self.reply = json.loads(answer["Payload"].read())


def busy_workers(fleet):
    found = fleet.aws.worker_processes(fleet.outputs["WorkerFunction"])
    return {each.pid for each in found if each.busy}


def settled_worker(fleet, ledger):
    """Wait until one worker handles both shards, and return its process."""
    wait_until(
        lambda: {call.shard for call in read_calls(ledger)[-20:]} >= set(fleet.leases()) != set(),
        what="calls on every shard",
        within_s=90,
        fleet=fleet,
    )
    (pid,) = busy_workers(fleet)
    return pid


def wait_for_calls_of(pid, *, ledger, fleet):
    begun = len(read_calls(ledger))
    return wait_until(
        lambda: [call for call in read_calls(ledger)[begun:] if call.pid == pid],
        what=f"calls by process {pid}",
        within_s=60,
        fleet=fleet,
    )


def finish(fleet, feed, watch, ledger):
    wait_until(
        lambda: handled(read_calls(ledger)) >= feed.expected,
        what="every record handled",
        within_s=120,
        fleet=fleet,
    )
    calls = read_calls(ledger)
    assert handled(calls) == feed.expected
    assert out_of_order(calls) == []
    assert watch.problems() == []
    return calls


def test_a_second_invocation_takes_over_and_the_running_one_stops(clicks, tmp_path):
    ledger = tmp_path / "ledger.jsonl"
    with LeaseWatch(clicks) as watch:
        with Feed(clicks) as feed:
            older = settled_worker(clicks, ledger)
            second = Invocation(clicks, payload_of(slot_of(clicks)))
            second.start()
            wait_until(
                lambda: busy_workers(clicks) - {older},
                what="a second process",
                within_s=30,
                fleet=clicks,
            )
            (newer,) = busy_workers(clicks) - {older}
            began = wait_for_calls_of(newer, ledger=ledger, fleet=clicks)[0].at
            wait_until(
                lambda: older not in busy_workers(clicks),
                what="the end of the older invocation",
                within_s=NOTICED_WITHIN_S,
                fleet=clicks,
            )
        calls = finish(clicks, feed, watch, ledger)

    assert second.reply is None
    late = [call.at - began for call in calls if call.pid == older and call.at > began]
    assert max(late, default=0) < FAILOVER_S


def test_an_invocation_that_was_stalled_finds_itself_replaced_and_writes_nothing(clicks, tmp_path):
    ledger = tmp_path / "ledger.jsonl"
    with LeaseWatch(clicks) as watch:
        with Feed(clicks) as feed:
            stalled = settled_worker(clicks, ledger)
            os.kill(stalled, signal.SIGSTOP)
            try:
                Invocation(clicks, payload_of(slot_of(clicks))).start()
                (newer,) = wait_until(
                    lambda: busy_workers(clicks) - {stalled},
                    what="a second process",
                    within_s=30,
                    fleet=clicks,
                )
                wait_for_calls_of(newer, ledger=ledger, fleet=clicks)
            finally:
                resumed = time.time()
                os.kill(stalled, signal.SIGCONT)
            wait_until(
                lambda: stalled not in busy_workers(clicks),
                what="the end of the stalled invocation",
                within_s=NOTICED_WITHIN_S,
                fleet=clicks,
            )
            wait_for_calls_of(newer, ledger=ledger, fleet=clicks)
        calls = finish(clicks, feed, watch, ledger)

    late = [call for call in calls if call.pid == stalled and call.at > resumed]
    assert late == [] or max(call.at for call in late) - resumed < FAILOVER_S


def test_an_outdated_execution_is_told_to_end_and_touches_nothing(clicks, tmp_path):
    ledger = tmp_path / "ledger.jsonl"
    with Feed(clicks):
        worker = settled_worker(clicks, ledger)
        before = slot_of(clicks)
        outdated = Invocation(
            clicks, payload_of(before, start_epoch=int(before["start_epoch"]) - 1)
        )
        outdated.start()
        outdated.join(timeout=60)

        assert outdated.reply == {"version": 1, "outcome": "DRAINED"}
        assert slot_of(clicks)["epoch"] == before["epoch"]
        assert busy_workers(clicks) == {worker}
        wait_for_calls_of(worker, ledger=ledger, fleet=clicks)
