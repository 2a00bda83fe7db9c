"""Tests that are coroutines: in virtual or real time, or within whatever runs a scenario."""

import asyncio
import inspect
from functools import partial, wraps

from shardfleet_testkit.clock import run_virtual


def virtual(test):
    """Run a coroutine function in virtual time, with the same arguments."""

    @wraps(test)
    def run(*args, **options):
        return run_virtual(test(*args, **options))

    return run


def in_a_loop(test):
    """Run a coroutine function in real time, with the same arguments."""

    @wraps(test)
    def run(*args, **options):
        return asyncio.run(test(*args, **options))

    return run


def within(runner, *places, **options):
    """
    Let a runner of scenarios run a test; what it hands over are the test's positional parameters.

    Args:
        runner: takes a coroutine function first, and calls it with what it has made.
        places: what it takes next.
        options: what it takes by name.

    """

    def decorate(test):
        signature = inspect.signature(test)
        asked = [p for p in signature.parameters.values() if p.kind is not p.POSITIONAL_ONLY]

        @wraps(test)
        def run(**given):
            return runner(partial(test, **given), *places, **options)

        run.__signature__ = signature.replace(parameters=asked)
        return run

    return decorate
