"""
How much to send to a shard at once, and how long to wait after it refused: quick up, slow down.

The idea is Hazelcast Jet's (`KinesisSinkP`: batches of 500 down to 10 entries, pauses of 0.1 to
10 s, a refusal weighs as much as ten successes); the steps are ours, because Jet counts a request
with one refused entry like one that was refused whole, and so nearly stops for a shard of which
other producers take a part. Here the answer says how much the shard can take, and if that is less
than half of what was sent, the batch shrinks to it. A refusal of everything halves the batch and
doubles the pause; a batch that passes whole makes the pause two fifths shorter and the next batch
a tenth larger. While anything is refused, there is a pause (see docs/img/flow_control.svg).

What a shard may take at most (1,000 records and 1 MiB a second) is decided in ``pacing``: a
producer alone on its stream is never refused, and then nothing of this happens.
"""

from __future__ import annotations

from msgspec import Struct


class FlowLimits(Struct, frozen=True, kw_only=True):
    """
    The range of the two.

    Attributes:
        max_entries: largest batch; 500 is the quota of ``PutRecords``.
        min_entries: smallest batch (Jet: 10).
        pause_first_ms: pause after the first refusal (Jet: 100).
        max_pause_ms: longest pause (Jet: 10,000).

    """

    max_entries: int = 500
    min_entries: int = 10
    pause_first_ms: int = 100
    max_pause_ms: int = 10_000


class Flow(Struct, frozen=True):
    """
    The state of the flow to one shard.

    Attributes:
        batch: most entries for the shard in the next request.
        pause_ms: wait between two requests; 0 while nothing is refused.

    """

    batch: int
    pause_ms: int = 0


def unhindered(limits: FlowLimits) -> Flow:
    """Return the flow to a shard of which nothing is known yet: full batches, no pause."""
    return Flow(limits.max_entries)


def after_answer(flow: Flow, limits: FlowLimits, *, sent: int, refused: int) -> Flow:
    """
    Return the flow after an answer.

    Args:
        flow: as it was.
        limits: its range.
        sent: entries of the shard in the request, at least 1.
        refused: how many of them the shard did not take.

    """
    accepted = sent - refused
    if refused == 0:
        # Growing is earned: a batch that was not used up proves nothing about a larger one.
        grown = flow.batch + -(-flow.batch // 10) if sent >= flow.batch else flow.batch
        return Flow(min(grown, limits.max_entries), _shorter(flow.pause_ms, limits))
    if accepted == 0:
        halved = max(flow.batch // 2, limits.min_entries)
        doubled = max(2 * flow.pause_ms, limits.pause_first_ms)
        return Flow(halved, min(doubled, limits.max_pause_ms))
    pause_ms = max(limits.pause_first_ms, _shorter(flow.pause_ms, limits))
    if accepted >= refused:
        return Flow(flow.batch, pause_ms)  # It takes most of it: sending the rest again is cheap.
    if flow.batch <= limits.min_entries:
        pause_ms = min(max(flow.pause_ms * 3 // 2, limits.pause_first_ms), limits.max_pause_ms)
    share = flow.batch * accepted // sent  # What it would have taken of a full batch.
    return Flow(max(share, limits.min_entries), pause_ms)


def _shorter(pause_ms: int, limits: FlowLimits) -> int:
    shorter = pause_ms * 3 // 5
    return shorter if shorter >= limits.pause_first_ms else 0
