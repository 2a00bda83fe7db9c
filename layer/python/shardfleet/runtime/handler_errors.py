"""
What is told of a handler's error: its kind and the last line of the user's own code, no record.

What an error says may quote a record, so it is left out unless `log_errors` asks for it. Its kind,
its place, and the code and operation of a refusal by AWS are of code alone.
"""

from __future__ import annotations

import logging
import re
import traceback
from collections.abc import Iterable, Iterator, Mapping
from itertools import islice
from pathlib import Path
from types import FrameType
from typing import Any

from shardfleet.engine.ports import HandlerResult
from shardfleet.errors import InvalidReply, is_of_sdk, kind_of, refusal_told, where_raised
from shardfleet.records import Batch
from shardfleet.runtime.own_code import own_code, place_among, place_in

_ERROR_CHARACTERS_MOST = 1_000
_ERRORS_MOST = 4  # told beside the one that was raised
_LINKS_MOST = 100  # of a chain and its groups
# A traceback's line (Lambda, stackTrace), and how botocore's ClientError begins (MSG_TEMPLATE).
_FRAME = re.compile(r'\s*File "([^"\n]+)", line (\d+), in ([\w<>.]+)')
_REFUSAL = re.compile(r"An error occurred \(([^()]+)\) when calling the (\w+) operation")
_NOT_OWN = re.compile(r"^/opt/|^/var/(lang|runtime)/|/(site|dist)-packages/|^<")
_TASK_ROOT = Path("/var/task")  # Packages have folders there.
_log = logging.getLogger("shardfleet.handler")


class HandlerErrors:
    """
    Tells a handler's errors.

    Args:
        module_name: of the handler.
        tells_words: whether what an error says is told, which may be record data.

    """

    def __init__(self, module_name: str, *, tells_words: bool) -> None:
        """Look at nothing yet: most handlers never fail."""
        self._module_names = {module_name}
        self._tells_words = tells_words

    def failure(self, batch: Batch, error: BaseException) -> HandlerResult:
        """Log an error, and return the result of the call that raised it."""
        kind = kind_of(error)
        if type(error) is InvalidReply:  # Ours, not one that a handler derives from it.
            text, details = f"{kind}: {error}", f": {error}"
        else:
            text = self.told(error)
            details = "\n" + "".join(traceback.format_tb(error.__traceback__))
        _log.error("the handler failed on a batch of %s: %s%s", batch.shard_id, kind, details)
        return HandlerResult(done_count=batch.done_count, error=text)

    def told(self, error: BaseException) -> str:
        """
        Return an error as ``Kind (file:line in function)``.

        Behind it, as many as are useful: what a group of errors holds, and each refusal by AWS that
        it was raised from.
        """
        said = f": {error}"[:_ERROR_CHARACTERS_MOST] if self._tells_words else ""
        text = f"{kind_of(error)}{said} ({self._place(error)})"
        behind = (f"{kind_of(each)} ({self._place(each)})" for each in _behind(error))
        return ", from ".join([text, *islice(behind, _ERRORS_MOST)])

    def know(self, handler: Any) -> None:
        """Take the module of what a handler wraps for the user's own, too."""
        if wrapped := getattr(handler, "__wrapped__", None):
            self._module_names.add(wrapped.__module__)

    def late(self, batch: Batch, frames: Iterable[tuple[FrameType, int]]) -> str:
        """Log the stack of a call that outlived its time-out, inmost frame first; return where."""
        stack = list(frames)
        lines = traceback.StackSummary.extract(iter(stack[::-1])).format()
        _log.error("a call on %s outlived its time-out:\n%s", batch.shard_id, "".join(lines))
        place = place_among(map(own_code, self._module_names), stack)
        return f" at {_written(place)}" if place else ""

    def _place(self, error: BaseException) -> str:
        place = place_in(map(own_code, self._module_names), error)
        return _written(place) if place else where_raised(error)


def _written(place: tuple[str, int, str]) -> str:
    return f"{Path(place[0]).name}:{place[1]} in {place[2]}"


def _behind(error: BaseException) -> Iterator[BaseException]:
    """Yield the members of groups, and AWS's refusals, that an error holds or was raised from."""
    waiting, seen = [error], {id(error)}
    while waiting and len(seen) < _LINKS_MOST:
        this = waiting.pop(0)
        members = this.exceptions if isinstance(this, BaseExceptionGroup) else ()
        cause = this.__cause__ or (None if this.__suppress_context__ else this.__context__)
        for each in (*members, cause):
            if each is None or id(each) in seen:
                continue
            seen.add(id(each))
            waiting.append(each)
            is_member = each is not cause and not isinstance(each, BaseExceptionGroup)
            if is_member or is_of_sdk(each):
                yield each


def told_by_lambda(found: Mapping[str, Any], function: str, *, tells_words: bool) -> str:
    """
    Return the error of a function of its own, as its answer has it.

    Args:
        found: ``errorType``, and ``errorMessage`` and ``stackTrace`` if it says so.
        function: its name.
        tells_words: whether what the error says is told.

    """
    kind = str(found.get("errorType") or "an error without a type")
    said = str(found.get("errorMessage"))
    refusal = _REFUSAL.match(said)
    if refusal and kind in ("ClientError", refusal[1]):
        kind += refusal_told(kind, *refusal.groups())
    words = f": {said}" if tells_words else ""
    return f"{kind}{words} ({_place_of(found.get('stackTrace'))}in {function})"


def _place_of(trace: object) -> str:
    """Return the last place beside or below the first that is the user's own."""
    matches = [_FRAME.match(str(line)) for line in trace] if isinstance(trace, list) else []
    own = [(Path(m[1]), m[2], m[3]) for m in matches if m and not _NOT_OWN.search(m[1])]
    if not own:
        return ""
    folder = own[0][0].parent
    beside = [
        place
        for place in own
        if place[0].parent == folder or (folder != _TASK_ROOT and place[0].is_relative_to(folder))
    ]
    file, line, name = beside[-1]
    return f"{file.name}:{line} in {name}, "
