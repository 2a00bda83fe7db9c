"""Keys that a person presses while a command shows something; none where there is no terminal."""

from __future__ import annotations

import asyncio
import os
import re
import sys
from collections.abc import Iterator
from contextlib import contextmanager

UP, DOWN, ESCAPE, ENTER, RUB_OUT = "\x1b[A", "\x1b[B", "\x1b", "\n", "\x7f"
_KEY = r"(?s)\x1b\[[A-Z]|."
_BYTES_MOST = 64


@contextmanager
def keys() -> Iterator[asyncio.Queue[str] | None]:
    """Yield the keys as they are pressed, or None where standard input is no terminal."""
    if not sys.stdin.isatty():
        yield None
        return
    import termios
    import tty

    pressed: asyncio.Queue[str] = asyncio.Queue()
    terminal = sys.stdin.fileno()

    def take() -> None:
        for key in keys_of(os.read(terminal, _BYTES_MOST)):
            pressed.put_nowait(key)

    loop, before = asyncio.get_running_loop(), termios.tcgetattr(terminal)
    # Each key at once and not shown, what was pressed before, too; Ctrl-C is a signal as ever.
    tty.setcbreak(terminal, termios.TCSADRAIN)
    loop.add_reader(terminal, take)
    try:
        yield pressed
    finally:
        loop.remove_reader(terminal)
        termios.tcsetattr(terminal, termios.TCSADRAIN, before)


def keys_of(data: bytes) -> list[str]:
    """Return the keys in what a terminal sends: a character each, an arrow as its sequence."""
    return re.findall(_KEY, data.decode("utf-8", "ignore"))
