"""
Standard output and error by whole lines, whichever thread writes them.

Python's runtime of Lambda passes on each piece of a ``print`` by itself (fact L29), and the user's
handler prints in a thread of its own. A line of the fleet that came between two pieces would be
joined with them: CloudWatch would make no metrics of it, and nobody would find it by its fields.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable
from threading import RLock, get_ident
from typing import IO, Any

BEGUN_MOST = 65_536
"""Characters of a line without an end that are kept; more are written as they are."""


class WholeLines:
    """
    A stream that passes on what each thread writes once its line has an end.

    A flush ends no line. What a process has begun when it is killed, or leaves by ``os._exit``, is
    not written.

    Args:
        stream: where whole lines go, one write for all that came at once.

    """

    def __init__(self, stream: IO[str]) -> None:
        """Write nothing yet."""
        self._stream = stream
        # Of one thread again: a finalizer may print while a line is written.
        self._lock = RLock()
        self._begun: dict[int, str] = {}

    def write(self, text: str) -> int:
        """Write up to the last end of a line and keep the rest; return how much was taken."""
        thread = get_ident()
        whole, end, rest = text.rpartition("\n")
        begun = self._begun.pop(thread, "")
        if end:
            self._pass_on(begun + whole + end)
            begun = ""
        if rest:
            self._keep(thread, begun + rest)
        return len(text)

    def writelines(self, texts: Iterable[str]) -> None:
        """Write one after another."""
        for text in texts:
            self.write(text)

    def flush(self) -> None:
        """Flush the stream: whole lines, that is."""
        self._stream.flush()

    def finish(self) -> None:
        """End and write each thread's line that has been begun."""
        while self._begun:
            _, begun = self._begun.popitem()
            self._pass_on(begun + "\n")

    def __getattr__(self, name: str) -> Any:
        """Be the stream in all else, such as its encoding."""
        return getattr(self._stream, name)

    def _keep(self, thread: int, begun: str) -> None:
        if len(begun) > BEGUN_MOST:
            self._pass_on(begun)
        else:
            self._begun[thread] = begun

    def _pass_on(self, text: str) -> None:
        with self._lock:
            self._stream.write(text)


def write_whole_lines() -> None:
    """Let all that this process prints from now on come by whole lines."""
    sys.stdout = WholeLines(sys.stdout)
    sys.stderr = WholeLines(sys.stderr)


def finish_lines() -> None:
    """End and write what was begun, before a process rests or ends."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, WholeLines):
            stream.finish()
