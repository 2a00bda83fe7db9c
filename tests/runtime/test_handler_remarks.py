"""What a handler does, and should not, that no error tells."""

import contextlib
import io
import sys
import threading
import warnings

import pytest

from shardfleet.runtime.handler_remarks import (
    PRINTED_BYTES_PER_MINUTE,
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

        assert remarks.found(1) == ()
        assert sys.stdout.getvalue() == "a line\n"


def forgetful():
    remarks = HandlerRemarks()
    store()
    return remarks.found(1)


def test_a_coroutine_that_nobody_awaits_is_named_and_warned_of_as_ever():
    with pytest.warns(RuntimeWarning, match="was never awaited"):
        found = forgetful()

    assert found == ("coroutine store was never awaited, so it did nothing: await it",)


@pytest.mark.parametrize(("minutes", "is_said"), [(1, True), (3, False)])
def test_prints_are_a_remark_by_how_many_they_are_in_a_minute(minutes, is_said):
    with watching() as remarks:
        remarks.found(0)
        for _ in range(25):
            print("x" * (PRINTED_BYTES_PER_MINUTE // 10))  # noqa: T201 - as above

        found = remarks.found(minutes * 60_000)
        assert bool(found) is is_said
        if is_said:
            assert found[0].startswith("its code prints 25 MiB a minute")


def test_threads_that_are_left_behind_are_a_remark_beyond_what_pools_have():
    with watching() as remarks:
        end = threading.Event()
        threads = [threading.Thread(target=end.wait, daemon=True) for _ in range(THREADS_MOST + 1)]
        try:
            for thread in threads[1:]:
                thread.start()
            assert remarks.found(1) == ()
            threads[0].start()
            assert remarks.found(1) == ("its code left 101 threads behind: end them",)
        finally:
            end.set()
            for thread in threads:
                thread.join()
