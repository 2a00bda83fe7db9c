"""Keys of `top`: what they make of the rows, and that a terminal's are taken and given back."""

import asyncio
import os
import pty
import sys
import termios

import pytest

from shardfleet_ops.cli.keys import DOWN, ENTER, ESCAPE, RUB_OUT, UP, keys, keys_of
from shardfleet_ops.cli.watching import LeaseView
from shardfleet_ops.explain.fleet_view import LeaseRow, LeaseState


def a_row(key, *, state=LeaseState.READING, owner="w1", lag_ms=0, why=""):
    return LeaseRow(
        lease_key=key,
        state=state,
        owner=owner,
        checkpoint="1",
        lag_ms=lag_ms,
        counter=1,
        seen_ms=None,
        why=why,
    )


ROWS = [
    a_row("shard-1", lag_ms=5, owner="w2"),
    a_row("shard-2", lag_ms=9, state=LeaseState.STOPPED, why="KeyError"),
    a_row("shard-3", lag_ms=None, owner=None),
    a_row("shard-4", state=LeaseState.FINISHED),
]


def after(*pressed):
    view = LeaseView()
    goes_on = [view.press(key) for key in pressed]
    return view, all(goes_on), [row.lease_key[-1] for row in view.rows(ROWS)]


@pytest.mark.parametrize(
    ("pressed", "shown"),
    [
        ("", "213"),  # furthest behind first, unknown last
        ("s", "123"),  # by key
        ("ss", "132"),  # by state: READING, READING, STOPPED
        ("sss", "321"),  # by owner: none, w1, w2
        ("ssss", "213"),
        ("f", "2143"),
        ("ff", "213"),
        (["/", *"keyerr"], "2"),
        (["/", *"W2", ENTER], "1"),
        (["/", *"w22", RUB_OUT, ENTER], "1"),
        (["/", *"w2", ESCAPE], "213"),
        (["/", *"w2", ENTER, ESCAPE], "213"),
        (["/", *"q f", ENTER], ""),  # Keys are words while one types.
        ("j", "13"),
        (["j", DOWN, UP, "k"], "213"),
        ("jjjjjjj", "3"),  # Never past the last one.
        ("k", "213"),
    ],
)
def test_keys_sort_filter_and_scroll(pressed, shown):
    _, goes_on, found = after(*pressed)

    assert (goes_on, "".join(found)) == (True, shown)


def test_q_ends_and_space_holds():
    assert after("q")[1] is False
    assert after(" ")[0].held
    assert not after(" ", " ")[0].held


def test_the_line_of_keys_says_what_they_have_made():
    view, *_ = after("s", "f", "/", "\x1b[C", "w", ENTER)

    assert "order: lease" in view.keys_line().plain
    assert "filter: w " in view.keys_line().plain
    assert "finished: shown" in view.keys_line().plain
    assert after("/", "a")[0].keys_line().plain == "filter: a_"


def test_a_terminal_sends_characters_and_arrows():
    assert keys_of("é\x1b[A\x1b[Bq\x1b".encode()) == ["é", UP, DOWN, "q", ESCAPE]
    assert keys_of(b"\xff") == []


def test_keys_of_a_terminal_come_one_by_one_and_it_is_left_as_it_was(monkeypatch):
    person, terminal = pty.openpty()
    before = termios.tcgetattr(terminal)

    async def two():
        with keys() as pressed:
            os.write(person, b"s")  # No line's end.
            first = await pressed.get()
            os.write(person, b"\x1b[B")
            return first, await pressed.get()

    with open(terminal, closefd=False) as stdin:
        monkeypatch.setattr(sys, "stdin", stdin)
        assert asyncio.run(two()) == ("s", DOWN)
        assert termios.tcgetattr(terminal) == before
    os.close(terminal)
    os.close(person)


def test_there_are_no_keys_without_a_terminal():
    async def none():
        with keys() as pressed:
            return pressed

    assert asyncio.run(none()) is None
