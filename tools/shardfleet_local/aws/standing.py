"""
What a running `local up` tells a second one: the lines to paste, over a socket of this user's.

The lines have the account's key, which is in no file: the socket lies in a folder that
nobody else may enter, and answers as long as the first one runs.
"""

from __future__ import annotations

import contextlib
import socket
import threading
from collections.abc import Sequence
from pathlib import Path
from typing import Self

ANSWER_LIMIT_S = 5.0  # ours
"""Longest wait for the first one's answer."""


def lines_of(path: Path) -> list[str]:
    """Return what the one that stands at this socket says; nothing if nobody does."""
    with socket.socket(socket.AF_UNIX) as asking:
        asking.settimeout(ANSWER_LIMIT_S)
        try:
            asking.connect(str(path))
            with asking.makefile("r", encoding="utf-8") as answer:
                return answer.read().splitlines()
        except OSError:  # No such socket, one that somebody left behind, or too long a name.
            return []


class Standing:
    """
    Answers whoever connects with lines, as long as it is entered.

    Where the system has no such socket (a path of more than some 100 characters), nobody is
    answered, and a second one is told that the port is in use.

    Args:
        path: of the socket; its folder is made, for this user alone.
        lines: what to say.

    """

    def __init__(self, path: Path, lines: Sequence[str]) -> None:
        self._path = path
        self._answer = "".join(f"{line}\n" for line in lines).encode()
        self._socket = socket.socket(socket.AF_UNIX)

    def __enter__(self) -> Self:
        with contextlib.suppress(OSError):
            self._path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)  # ours
            self._path.parent.chmod(0o700)
            self._path.unlink(missing_ok=True)  # Of one that was killed: the port is ours now.
            self._socket.bind(str(self._path))
            self._socket.listen()
            threading.Thread(target=self._serve, daemon=True).start()
        return self

    def __exit__(self, *_: object) -> None:
        with contextlib.suppress(OSError):
            self._socket.shutdown(socket.SHUT_RDWR)  # Wakes the thread.
        self._socket.close()
        self._path.unlink(missing_ok=True)

    def _serve(self) -> None:
        while True:
            try:
                asking, _ = self._socket.accept()
            except OSError:
                return
            with asking, contextlib.suppress(OSError):
                asking.settimeout(ANSWER_LIMIT_S)
                asking.sendall(self._answer)
