"""
Which records of a shard go side by side: lanes by partition key, each of them in order.

A key is always of the same lane, and of a lane one batch at a time is handed over, so records of
one key never overlap and stay in order; the event source mapping does the same with
``ParallelizationFactor``. Then what is done of a shard is no longer one position. The checkpoint
goes to the end of what is done without a gap, and how far each lane is beyond it is noted beside
it, so that whoever goes on repeats only what was not done.
"""

from __future__ import annotations

import re
from collections import deque
from collections.abc import Mapping, Sequence
from itertools import islice
from typing import Any, Self
from zlib import crc32

from msgspec import Struct

from shardfleet.domain.delivery.progress import position_text, read_position, stands_for
from shardfleet.domain.leases.lease import Lease
from shardfleet.domain.leases.stamps import Generation, Stamp
from shardfleet.domain.stream.sequence import ExtendedSequenceNumber
from shardfleet.errors import ProtocolError
from shardfleet.records import Record, place_of

# How many lanes, and which: no more than `parallelism` allows, and never none.
_WHOLE = re.compile(r"0|[1-9][0-9]{0,3}")
_Place = tuple[int, int]  # sequence number and sub-sequence number


def lane_of(partition_key: str, count: int) -> int:
    """Return the lane of a key, 0 to ``count`` - 1: the same in every process, at any time."""
    return crc32(partition_key.encode("utf-8", "surrogatepass")) % count


class DoneAhead:
    """
    How far lanes are done, beyond what is done without a gap.

    By the number of lanes: another number deals the keys out otherwise.
    """

    __slots__ = ("_places",)

    def __init__(self) -> None:
        """Begin with nothing done."""
        self._places: dict[int, dict[int, _Place]] = {}

    def __bool__(self) -> bool:
        """Return whether any lane is ahead."""
        return bool(self._places)

    def has(self, partition_key: str, place: _Place) -> bool:
        """Return whether the record of that key at that place is done."""
        return any(
            place <= places.get(lane_of(partition_key, count), (-1, -1))
            for count, places in self._places.items()
        )

    def note(self, count: int, lane: int, place: _Place) -> None:
        """Note that of one of so many lanes everything up to a place is done."""
        places = self._places.setdefault(count, {})
        places[lane] = max(place, places.get(lane, place))

    @property
    def last(self) -> _Place | None:
        """Return the furthest place of any lane; None if none is ahead."""
        return max((max(places.values()) for places in self._places.values()), default=None)

    def forget(self, through: _Place) -> None:
        """Forget what lies within what is done without a gap."""
        for count, places in list(self._places.items()):
            left = {lane: place for lane, place in places.items() if place > through}
            self._places[count] = left
            if not left:
                del self._places[count]

    def body(self) -> dict[str, Any]:
        """Return it as JSON-like data."""
        return {
            str(count): {str(lane): f"{n}:{sub}" for lane, (n, sub) in sorted(places.items())}
            for count, places in sorted(self._places.items())
        }

    @classmethod
    def of(cls, body: Mapping[str, Mapping[str, str]]) -> Self:
        """
        Read what :meth:`body` returned.

        Raises:
            ProtocolError: it is something else.

        """
        found = cls()
        for count, places in body.items():
            for lane, text in places.items():
                place = read_position(text)
                are_whole = _WHOLE.fullmatch(count) and _WHOLE.fullmatch(lane) and count != "0"
                if not are_whole or place.is_sentinel:
                    what = f"{count[:20]!r}, {lane[:20]!r}, {text[:200]!r}"
                    raise ProtocolError(f"note of lanes: {what} found, three numbers expected")
                number = int(place.sequence_number), place.sub_sequence_number
                found.note(int(count), int(lane), number)
        return found


class LanesNote(Struct, frozen=True, kw_only=True):
    """
    What is noted beside a checkpoint while lanes are ahead of it.

    Attributes:
        lease_key: the lease.
        since: the checkpoint in the lease table when this was noted.
        through: what was done without a gap; the checkpoint that is written next.
        ahead: how far lanes were done beyond that, as :meth:`DoneAhead.body` says it.
        between: checkpoints that were on their way to the lease table then; None: not kept.
        stamp: whose lease it was then; None: not kept.

    """

    lease_key: str
    since: str
    through: str
    ahead: Mapping[str, Mapping[str, str]]
    between: tuple[str, ...] | None = None
    stamp: Stamp | None = None

    @classmethod
    def of(
        cls,
        lease_key: str,
        *,
        since: ExtendedSequenceNumber,
        through: ExtendedSequenceNumber,
        ahead: DoneAhead,
        between: tuple[str, ...] = (),
    ) -> Self:
        """Write down how far a shard is."""
        return cls(
            lease_key=lease_key,
            since=position_text(since),
            through=position_text(through),
            ahead=ahead.body(),
            between=between,
        )

    def counts_for(self, lease: Lease, generation: Generation) -> bool:
        """Return whether it may count still; one of an earlier release, without a stamp, not."""
        return self.stamp is not None and self.stamp.counts(lease, generation.number)

    def done_ahead(self, checkpoint: ExtendedSequenceNumber) -> DoneAhead:
        """
        Return what is done beyond a checkpoint: nothing, unless it is one that was noted for.

        What was done before somebody set it does not count.
        """
        counts = stands_for(
            checkpoint, since=self.since, through=self.through, between=self.between
        )
        return DoneAhead.of(self.ahead if counts else {})


class OpenLanes:
    """
    The records of one shard that are open, in lanes, within bounds.

    Attributes:
        through: up to where everything is done; None: nothing is known to be.
        ahead: how far lanes are done beyond that.

    Args:
        count: how many lanes.
        records_most: with so many open, no more are taken.
        bytes_most: the same for their payload; one larger record is taken alone.
        ahead: what was done of the shard before.

    """

    def __init__(
        self, count: int, *, records_most: int, bytes_most: int, ahead: DoneAhead | None = None
    ) -> None:
        """Begin with nothing open."""
        self._records_most = records_most
        self._bytes_most = bytes_most
        self._lanes: list[deque[tuple[_Place, Record]]] = []
        # Places of all that is open or was passed by and is not within `through` yet, in order.
        self._order: deque[_Place] = deque()
        self._records = self._bytes = 0
        self.through: ExtendedSequenceNumber | None = None
        self.ahead = ahead or DoneAhead()
        self.deal(count)

    def __len__(self) -> int:
        """Return how many records are open."""
        return self._records

    @property
    def count(self) -> int:
        """Return how many lanes there are."""
        return len(self._lanes)

    def deal(self, count: int) -> None:
        """Change the number of lanes; nothing is open."""
        self._lanes = [deque() for _ in range(count)]

    def take(self, records: Sequence[Record]) -> int:
        """
        Put records into their lanes as long as there is room; what is done already is passed by.

        Args:
            records: in the order of the shard.

        Returns:
            How many of the first were taken.

        """
        taken, count = 0, self.count
        for record in records:
            size = len(record.data)
            is_over = self._bytes + size > self._bytes_most and self._records
            if self._records >= self._records_most or is_over:
                break
            place = place_of(record)
            taken += 1
            self._order.append(place)
            if self.ahead and self.ahead.has(record.partition_key, place):
                continue
            self._lanes[lane_of(record.partition_key, count)].append((place, record))
            self._records += 1
            self._bytes += size
        self._settle()
        return taken

    def pass_by(self, position: ExtendedSequenceNumber) -> None:
        """Note that no handler gets what lies behind the last record, up to here."""
        self._order.append((int(position.sequence_number), position.sub_sequence_number))
        self._settle()

    def waiting(self, lane: int, count: int) -> list[Record]:
        """Return the next records of a lane, at most so many."""
        return [record for _, record in islice(self._lanes[lane], count)]

    def done(self, lane: int, count: int) -> None:
        """Note that the first records of a lane are done, or given up."""
        place: _Place | None = None
        for _ in range(count):
            place, record = self._lanes[lane].popleft()
            self._records -= 1
            self._bytes -= len(record.data)
        if place is not None:
            self.ahead.note(self.count, lane, place)
            self._settle()

    def _settle(self) -> None:
        """Move on to the first record that is not done."""
        least = min((lane[0][0] for lane in self._lanes if lane), default=None)
        last: _Place | None = None
        while self._order and (least is None or self._order[0] < least):
            last = self._order.popleft()
        if last is not None:
            self.through = ExtendedSequenceNumber(str(last[0]), last[1])
            self.ahead.forget(last)
