"""What happened, for a person who looks at one screen: a failing play and how it came about."""

from __future__ import annotations

import re

from shardfleet_testkit.simulation.running import RunResult, story

_LINES_MOST = 30
_WIDTH = 160
# What befalls an invocation as a whole, and is not about one shard.
_FATE = re.compile(r" (begins|killed|dies|frozen|timed out|ends its process|connection lost)\b")
_PART = re.compile(r"handler\.run|sink\.|VIOLATION")


def tell(result: RunResult) -> list[str]:
    """
    Return the story of a failing play: the violation, and what led to it.

    Of a violation that is about a shard these are the handler's calls and the sink's for that
    shard, and what befell the invocations that made them; else it is the plain story.
    """
    violation = result.violations[0]
    head = f"seed {result.seed}: {violation}"
    shard_id = violation.subject
    calls = [line for line in result.lines if f" {shard_id} " in line and _PART.search(line)]
    if not calls:
        return [head, "", *(_cut(line) for line in story(result)[-_LINES_MOST:])]
    actors = {_actor_of(line) for line in calls}
    told = [
        line
        for line in result.lines
        if line in calls or (_FATE.search(line) and _actor_of(line) in actors)
    ]
    until = [line for line in told if _at_ms(line) <= violation.at_ms]
    return [head, "", *(_cut(line) for line in until[-_LINES_MOST:])]


def _actor_of(line: str) -> str:
    return line[10:].split(maxsplit=1)[0]


def _at_ms(line: str) -> int:
    return int(line[:9])


def _cut(line: str) -> str:
    return line if len(line) <= _WIDTH else f"{line[: _WIDTH - 2]} …"
