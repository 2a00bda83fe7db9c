"""The system's clock, randomness and end."""

import asyncio
import subprocess
import sys
import time

from shardfleet.adapters.system import EXIT_CODE, SystemClock, SystemEntropy


def test_the_clock_tells_epoch_milliseconds_and_never_goes_back():
    clock = SystemClock()
    before, after = time.time(), None
    now_ms = clock.now_ms()
    after = time.time()
    assert int(before * 1000) <= now_ms <= int(after * 1000)
    seen = [clock.monotonic_ms() for _ in range(100)]
    assert seen == sorted(seen)


def test_the_clock_sleeps_at_least_as_long_as_asked():
    clock = SystemClock()
    began_ms = clock.monotonic_ms()
    asyncio.run(clock.sleep_ms(20))
    assert clock.monotonic_ms() - began_ms >= 19


def test_tokens_are_unique_and_of_32_hexadecimal_characters():
    entropy = SystemEntropy()
    tokens = {entropy.token() for _ in range(100)}
    assert len(tokens) == 100
    assert all(len(token) == 32 and int(token, 16) >= 0 for token in tokens)


def test_a_uniform_number_lies_between_its_bounds():
    entropy = SystemEntropy()
    assert all(2.0 <= entropy.uniform(2.0, 3.0) <= 3.0 for _ in range(100))


def test_the_process_ends_at_once_with_its_reason_and_no_exit_handlers():
    """A thread that cannot be stopped must not keep the process (hazard H10)."""
    code = (
        "import atexit, threading\n"
        "from shardfleet.adapters.system import SystemProcess\n"
        "threading.Thread(target=threading.Event().wait).start()\n"
        "atexit.register(print, 'an exit handler ran')\n"
        "SystemProcess().end('a handler hangs')\n"
        "print('still here')\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=120, check=False
    )
    assert done.returncode == EXIT_CODE
    assert done.stdout == ""
    assert done.stderr == "shardfleet: process ends: a handler hangs\n"
