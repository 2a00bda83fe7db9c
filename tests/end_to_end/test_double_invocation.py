"""Two invocations of one worker at the same time (hazard H1), with real processes."""

import contextlib
import json
import os
import signal
import threading
import time
from itertools import pairwise

import pytest
from botocore.config import Config
from botocore.exceptions import BotoCoreError

from tests.end_to_end.cloud import deployed, wait_until
from tests.end_to_end.watching import Feed, LeaseWatch, handled, out_of_order, read_calls

pytestmark = pytest.mark.processes

FAILOVER_S = 10
PATIENT = Config(read_timeout=900, retries={"total_max_attempts": 1})


@pytest.fixture(scope="module")
def clicks(tmp_path_factory):
    """Two shards, one worker; turns of the default length, so that nothing ends by itself."""
    folder = tmp_path_factory.mktemp("double")
    with deployed(
        folder,
        handler="ledger",
        function="ledger:handler",
        environment={"LEDGER": str(folder / "ledger.jsonl")},
        config={"max_workers": 1, "leases_per_worker": 8},
        shards=2,
    ) as fleet:
        yield fleet


class Invocation(threading.Thread):
    """The worker invoked directly; `reply` is None while it runs."""

    def __init__(self, fleet, payload):
        super().__init__(daemon=True)
        self._client = fleet.aws.client("lambda", PATIENT)
        self._function = fleet.outputs["WorkerFunction"]
        self._payload = payload
        self.reply = None

    def run(self):
        with contextlib.suppress(BotoCoreError):  # The account went away before the reply came.
            answer = self._client.invoke(
                FunctionName=self._function, Qualifier="live", Payload=self._payload
            )
            self.reply = json.loads(answer["Payload"].read())


def slot_of(fleet):
    (slot,) = fleet.documents("slot").values()
    return slot


def payload_of(slot, **changes):
    """Write what the slot's state machine sends to its worker."""
    names = {"slot": "slot_id", "name": "name", "start_epoch": "start_epoch"}
    sent = {name: slot[field] for name, field in names.items()}
    numbers = {"version": 1, "generation": slot["generation"], "crashes": 0}
    return json.dumps(sent | numbers | changes, default=int).encode()


def calls_of(fleet):
    return read_calls(fleet.folder / "ledger.jsonl")


def next_request(fleet, known):
    """Wait for calls by an invocation that is not known yet, and return its request id."""
    return wait_until(
        lambda: next((c.request for c in calls_of(fleet) if c.request not in known), None),
        what="calls by another invocation",
        within_s=90,
        fleet=fleet,
    )


def settled(fleet):
    """Wait until one invocation handles every shard; return its request id and its process."""

    def alone():
        busy = [w for w in fleet.aws.worker_processes(fleet.outputs["WorkerFunction"]) if w.busy]
        recent = calls_of(fleet)[-10:]
        requests = {call.request for call in recent}
        shards = {call.shard for call in recent}
        if len(busy) == len(requests) == 1 and shards == set(fleet.leases()):
            return requests.pop(), busy[0].pid
        return None

    return wait_until(alone, what="one worker on all shards", within_s=120, fleet=fleet)


def assert_all_is_well(fleet, feed, watch):
    expected = feed.expected
    wait_until(
        lambda: handled(calls_of(fleet)) >= expected,
        what="every record handled",
        within_s=120,
        fleet=fleet,
    )
    assert out_of_order(calls_of(fleet)) == []
    assert watch.problems() == []


def first_and_last(fleet, request):
    times = [call.at for call in calls_of(fleet) if call.request == request]
    return min(times), max(times)


def test_a_second_invocation_takes_over_and_the_running_one_stops(clicks):
    with LeaseWatch(clicks) as watch:
        with Feed(clicks, name="second") as feed:
            first, _ = settled(clicks)
            known = {call.request for call in calls_of(clicks)}
            direct = Invocation(clicks, payload_of(slot_of(clicks)))
            direct.start()
            second = next_request(clicks, known)
            # The state machine invokes the worker again when the first one has stopped.
            third = next_request(clicks, known | {second})
            direct.join(timeout=90)
        assert_all_is_well(clicks, feed, watch)

    assert direct.reply == {"version": 1, "outcome": "CONTINUE"}
    for older, newer in pairwise([first, second, third]):
        assert first_and_last(clicks, older)[1] - first_and_last(clicks, newer)[0] < FAILOVER_S


def test_an_invocation_that_was_stalled_finds_itself_replaced_and_delivers_nothing_new(clicks):
    with LeaseWatch(clicks) as watch:
        with Feed(clicks, name="stalled") as feed:
            first, pid = settled(clicks)
            known = {call.request for call in calls_of(clicks)}
            os.kill(pid, signal.SIGSTOP)
            try:
                stopped = time.time()
                direct = Invocation(clicks, payload_of(slot_of(clicks)))
                direct.start()
                second = next_request(clicks, known)
                wait_until(
                    lambda: first_and_last(clicks, second)[1] - stopped > FAILOVER_S,
                    what="calls by the new invocation beyond the failover time",
                    within_s=90,
                    fleet=clicks,
                )
            finally:
                resumed = time.time()
                os.kill(pid, signal.SIGCONT)
            next_request(clicks, known | {second})
            direct.join(timeout=90)
        assert_all_is_well(clicks, feed, watch)

    calls = calls_of(clicks)
    late = [call for call in calls if call.request == first and call.at > resumed]
    before = handled(call for call in calls if call.at <= resumed)
    assert direct.reply == {"version": 1, "outcome": "CONTINUE"}
    assert len(late) <= 1  # A call that had been about to begin.
    assert handled(late) <= before


def test_an_outdated_execution_is_told_to_end_and_touches_nothing(clicks):
    with Feed(clicks, name="outdated") as feed:
        request, pid = settled(clicks)
        before = slot_of(clicks)
        outdated = Invocation(
            clicks, payload_of(before, start_epoch=int(before["start_epoch"]) - 1)
        )
        outdated.start()
        outdated.join(timeout=90)
        after = slot_of(clicks)
        goes_on = feed.rounds

        assert outdated.reply == {"version": 1, "outcome": "DRAINED"}
        assert after["epoch"] == before["epoch"]
        wait_until(
            lambda: any(
                call.request == request and ("outdated-0", goes_on) in call.records
                for call in calls_of(clicks)
            ),
            what="the same invocation goes on",
            within_s=60,
            fleet=clicks,
        )
    assert settled(clicks) == (request, pid)
