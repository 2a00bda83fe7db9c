"""
Tumbling windows of a shard: which records a window has, when it is over, and what its state is.

As of the event source mapping (AWS Lambda developer guide, "Implementing stateful Kinesis Data
Streams processing in Lambda"): windows are aligned to the epoch and a record belongs to one by its
approximate arrival. Each call answers with the state that the next one of the window is given, and
a last call, without records, is for the result. A shard's end closes its window, and its children
begin with none; a state above 1 MB ends its window early.

Arrivals need not ascend: one that lies before the open window counts in it, for its own is over.
The state is kept beside the checkpoint, in one document with the position that it stands for, so
that the two cannot come apart.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from itertools import takewhile
from typing import Any

from msgspec import Struct

from shardfleet.domain.delivery.progress import read_position, stands_for
from shardfleet.domain.item_size import DOCUMENT_BYTES_MOST
from shardfleet.domain.leases.lease import Lease
from shardfleet.domain.leases.stamps import Generation, Stamp
from shardfleet.domain.stream.sequence import ExtendedSequenceNumber
from shardfleet.errors import InvalidReply, ProtocolError
from shardfleet.records import Record, TumblingWindow, arrival_of

STATE = "state"
"""The key of a reply with the window's state."""
STATE_BYTES_MOST = 1024 * 1024
EMPTY = "{}"
# Of a shard that is read to its tip nothing more comes of a window so long after its end; the
# mapping waits up to two minutes.
GRACE_MS = 10_000


def state_of(reply: object) -> tuple[str, object]:
    """
    Take the state out of a reply of a handler with windows.

    Returns:
        The state as JSON, and the rest of the reply, which means what it means without windows.

    Raises:
        InvalidReply: there is no state, or it is no JSON object.

    """
    if not isinstance(reply, Mapping) or STATE not in reply:
        found = f"an object without {STATE}" if isinstance(reply, Mapping) else type(reply).__name__
        raise InvalidReply(
            f"the handler returned {found}; with tumbling windows each call returns "
            f'{{"{STATE}": {{...}}}}, the last one of a window, too'
        )
    state = reply[STATE]
    if not isinstance(state, Mapping):
        found = type(state).__name__
        raise InvalidReply(f"{STATE}: {found} found, an object (dict) allowed")
    try:
        text = json.dumps(dict(state), ensure_ascii=False, allow_nan=False, separators=(",", ":"))
        text.encode()
    except (TypeError, ValueError, RecursionError) as error:
        # Its words may hold record data.
        raise InvalidReply(
            f"{STATE}: it is no JSON ({type(error).__name__}); text, numbers, booleans, None, "
            "lists and dicts of these are allowed"
        ) from error
    return text, {name: value for name, value in reply.items() if name != STATE}


def read_state(text: str) -> dict[str, Any]:
    """
    Read what was kept of a state.

    Raises:
        ProtocolError: it is no JSON object.

    """
    try:
        state = json.loads(text)
    except (ValueError, RecursionError):
        state = None
    if not isinstance(state, dict):
        raise ProtocolError(
            "the state of a window that was kept is no JSON object; delete the shard's document "
            "of the kind window: its window begins again behind the checkpoint"
        )
    return state


def too_large(state: str) -> str:
    """Return why a window may not have a state; "" if it may."""
    size = len(state.encode())
    if size <= STATE_BYTES_MOST:
        return ""
    return f"{STATE}: {size} bytes of JSON found, at most {STATE_BYTES_MOST} allowed"


def fits_item(state: str) -> bool:
    """Return whether a state fits into the item of its shard in the fleet-state table."""
    return len(state.encode()) <= DOCUMENT_BYTES_MOST


class WindowNote(Struct, frozen=True, kw_only=True):
    """
    What is kept of a shard's window beside its checkpoint.

    Attributes:
        lease_key: the lease.
        since: the checkpoint in the lease table when this was noted.
        through: up to where the state has the records; the checkpoint that is written next.
        start_ms: of the open window, epoch milliseconds; -1: none is open.
        state: as JSON; "" where it is kept elsewhere.
        kept_at: where that is.
        between: checkpoints that were on their way to the lease table then; None: not kept.
        stamp: whose lease it was then; None: not kept.

    """

    lease_key: str
    since: str
    through: str
    start_ms: int = -1
    state: str = EMPTY
    kept_at: str = ""
    between: tuple[str, ...] | None = None
    stamp: Stamp | None = None

    @property
    def is_open(self) -> bool:
        """Return whether a window is open."""
        return self.start_ms >= 0

    @property
    def done(self) -> ExtendedSequenceNumber:
        """Return up to where the state has the records."""
        return read_position(self.through)

    def counts_for(self, lease: Lease, generation: Generation) -> bool:
        """Return whether no setting-back of ours came since; for which checkpoints, it says."""
        if self.stamp is None:
            return not generation.number
        return any(self.stamp.is_of(lease, each) for each in generation.numbers_for(lease))

    def is_for(self, checkpoint: ExtendedSequenceNumber) -> bool:
        """Return whether a window is open that goes on behind a checkpoint."""
        return self.is_open and stands_for(
            checkpoint, since=self.since, through=self.through, between=self.between
        )


class ShardWindow:
    """
    The window of one shard.

    Attributes:
        start_ms: of the open one, epoch milliseconds; -1: none is open.
        state: of it, as JSON.
        outgrown: it ends before its time, for its state would be too large. That is noted nowhere:
            the call that says so comes again.

    """

    __slots__ = ("_length_ms", "outgrown", "start_ms", "state")

    def __init__(self, length_ms: int) -> None:
        """Open none."""
        self._length_ms = length_ms
        self.close()

    def close(self) -> None:
        """Have none open."""
        self.start_ms, self.state, self.outgrown = -1, EMPTY, False

    def go_on(self, note: WindowNote, *, state: str) -> None:
        """Open the one that was noted."""
        self.start_ms, self.state, self.outgrown = note.start_ms, state, False

    @property
    def is_open(self) -> bool:
        """Return whether one is open."""
        return self.start_ms >= 0

    @property
    def end_ms(self) -> int:
        """Return when it ends."""
        return self.start_ms + self._length_ms

    def fitting(self, records: Sequence[Record], *, now_ms: int) -> int:
        """
        Return how many of the first records are of the open window; 0: it is over.

        A record of which Kinesis did not say when it arrived is of the window that is open. None is
        opened by it, but where nobody says: then by this moment, `now_ms`, epoch milliseconds.
        """
        if not self.is_open:
            arrival_ms = arrival_of(records) or now_ms
            self.start_ms = arrival_ms - arrival_ms % self._length_ms
        if self.outgrown:
            return 0
        end_ms = self.end_ms
        return sum(1 for _ in takewhile(lambda r: r.approximate_arrival_ms < end_ms, records))

    def is_over(self, read_ms: int) -> bool:
        """Return whether a read at the tip, epoch milliseconds, shows that nothing more comes."""
        return self.is_open and read_ms >= self.end_ms + GRACE_MS

    def outgrow(self) -> bool:
        """End early, with what there is; False: there is nothing yet that could be told."""
        self.outgrown = self.state != EMPTY
        return self.outgrown

    def call(self, *, is_final: bool) -> TumblingWindow:
        """Return what a call is told of it."""
        return TumblingWindow(
            start_ms=self.start_ms,
            end_ms=self.end_ms,
            is_final=is_final,
            is_terminated_early=is_final and self.outgrown,
        )
