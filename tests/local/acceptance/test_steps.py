"""What a step waits for, against a scene that only tells which executions run."""

import pytest

from shardfleet_local.acceptance.plan import SHORT
from shardfleet_local.acceptance.scene import Scene, StepFailed
from shardfleet_local.acceptance.steps import replacement
from shardfleet_testkit.clock import VirtualClock, run_virtual


def a_scene(*answers):
    """A fleet of two workers at least; each look sees the next answer, and then the last one."""
    left = list(answers)

    class Told(Scene):
        async def running(self):
            return set(left.pop(0) if len(left) > 1 else left[0])

    nothing = dict.fromkeys(("deployment", "stack", "folder", "feeder", "notes"))
    return Told(**nothing, size=SHORT, clock=VirtualClock())


def replaced(before, stopped, *answers):
    return run_virtual(replacement(a_scene(*answers), set(before), stopped=stopped))


def test_another_execution_takes_the_place_of_a_stopped_one():
    # It is listed as running for a moment more.
    assert replaced("ab", "a", "ab", "b", "bc") == "another execution after 1.0 s"


def test_beside_a_stand_in_for_a_worker_that_stood_still_nothing_is_to_be_started():
    """Z8: three run where two are wanted, and which of them is stopped is chance."""
    assert replaced("abc", "a", "bc") == "2 others ran on, and 2 are wanted"


def test_a_place_that_nobody_takes_fails_the_step():
    with pytest.raises(StepFailed, match="another execution: not within 180 s"):
        replaced("ab", "a", "b")
