"""Many seeds in several processes."""

import contextlib
import os
import signal
import subprocess
import sys
import time

import pytest

pytestmark = pytest.mark.processes

DEADLINE_S = 60
PROGRAM = """
from shardfleet.testing.simulation.campaign import campaign
campaign(minutes=10, jobs=2, done=lambda result, _: print(result.seed, flush=True))
"""


def anybody_of(group):
    try:
        os.killpg(group, 0)
    except ProcessLookupError:
        return False
    return True


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
