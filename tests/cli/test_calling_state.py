"""A command's prompt calls the manager, once, and is written whatever becomes of the call."""

import pytest

from shardfleet.errors import RightMissing
from shardfleet_ops.aws.calling_state import CallingState
from shardfleet_testkit.clock import VirtualClock
from shardfleet_testkit.memory import MemoryStateStore
from tests.virtual import in_a_loop


@pytest.mark.parametrize("error", [None, RightMissing("no"), OSError("no network")])
@in_a_loop
async def test_the_first_prompt_calls_the_manager_and_each_is_written(error):
    called = []

    def call():
        called.append(1)
        if error:
            raise error

    state = CallingState(MemoryStateStore(), VirtualClock(), call=call)
    assert [await state.prompt_manager() for _ in range(3)] == [1, 2, 3]
    assert await state.prompts() == 3
    assert called == [1]
