"""Many seeds in several processes."""

import contextlib
import os
import signal
import subprocess
import sys
import time

import pytest

from shardfleet_testkit.simulation.campaign import campaign
from shardfleet_testkit.simulation.running import Options

pytestmark = pytest.mark.processes

DEADLINE_S = 60
PROGRAM = """
from shardfleet_testkit.simulation.campaign import campaign
campaign(minutes=10, jobs=2, done=lambda result, _: print(result.seed, flush=True))
"""


def anybody_of(group):
    try:
        os.killpg(group, 0)
    except ProcessLookupError:
        return False
    return True


def test_the_sums_tell_the_rate_of_a_core_apart_from_that_of_the_run():
    told = []
    totals = campaign(
        iter((1, 2)),
        minutes=10,
        jobs=1,
        options=Options(seed=0, is_small=True, busy_s=10.0),
        done=lambda result, _: told.append(result.seed),
    )
    body = totals.body()
    assert told == [1, 2]
    assert body["cpu_s"] > 0
    assert body["port_calls_per_core_s"] == round(body["port_calls"] / totals.cpu_s)
    assert {body["seeds_by_pair"][pair] for pair in body["pairs_of_fewest_seeds"]} == {0}


def test_the_processes_of_a_run_that_is_killed_end_too():
    parent = subprocess.Popen(
        [sys.executable, "-c", PROGRAM], stdout=subprocess.PIPE, start_new_session=True
    )
    try:
        assert parent.stdout.readline()  # the processes are there, and at work
        parent.kill()
        parent.wait()
        deadline_s = time.monotonic() + DEADLINE_S
        while anybody_of(parent.pid):
            assert time.monotonic() < deadline_s
            time.sleep(0.1)
    finally:
        parent.stdout.close()
        parent.kill()
        parent.wait()
        with contextlib.suppress(ProcessLookupError):
            os.killpg(parent.pid, signal.SIGKILL)
