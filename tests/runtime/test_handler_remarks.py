"""What a handler does, and should not, that no error tells."""

import contextlib
import io
import sys
import threading
import warnings

import pytest

from shardfleet.runtime.handler_remarks import (
    PRINTED_BYTES_MOST,
    THREADS_MOST,
    HandlerRemarks,
)


@contextlib.contextmanager
def watching():
    """A process of its own: what is printed and warned of here is this test's alone."""
    with (
        contextlib.redirect_stdout(io.StringIO()),
        contextlib.redirect_stderr(io.StringIO()),
        warnings.catch_warnings(),
    ):
        warnings.simplefilter("default")
        yield HandlerRemarks()


async def store():
    pass


def test_nothing_is_said_of_a_handler_in_order():
    with watching() as remarks:
        print("a line")  # noqa: T201 - what handlers do

        assert remarks.found() == ()
        assert sys.stdout.getvalue() == "a line\n"


def forgetful():
    remarks = HandlerRemarks()
    store()
    return remarks.found()


def test_a_coroutine_that_nobody_awaits_is_named_and_warned_of_as_ever():
    with pytest.warns(RuntimeWarning, match="was never awaited"):
        found = forgetful()

    assert found == ("coroutine store was never awaited, so it did nothing: await it",)


def test_what_one_call_prints_beyond_a_bound_is_a_remark():
    with watching() as remarks:
        for _ in range(3):  # Calls; each may print so much.
            print("x" * (PRINTED_BYTES_MOST - 1), end="")  # noqa: T201 - as above
            assert remarks.found() == ()
        for _ in range(3):
            print("x" * PRINTED_BYTES_MOST, end="")  # noqa: T201 - as above

        assert remarks.found() == ("a call printed 3 MiB, and each is paid for: print less",)


def test_threads_that_are_left_behind_are_a_remark_beyond_what_pools_have():
    with watching() as remarks:
        end = threading.Event()
        threads = [threading.Thread(target=end.wait, daemon=True) for _ in range(THREADS_MOST + 1)]
        try:
            for thread in threads[1:]:
                thread.start()
            assert remarks.found() == ()
            threads[0].start()
            assert remarks.found() == ("its code left 101 threads behind: end them",)
        finally:
            end.set()
            for thread in threads:
                thread.join()
