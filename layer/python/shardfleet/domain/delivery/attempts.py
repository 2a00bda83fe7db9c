"""
What is next for a shard's records: another attempt, fewer at once, one alone, or giving up.

Every record is tried until it is done or has used up its attempts, in order, and is given up only
once it is known exactly: the last attempts are made with one record at a time, so that no innocent
neighbour is. A process that died over a range is charged to that range (hazard H9): it goes one
record at a time, too, for a death costs a worker where a failure costs a call, and so many deaths
over one record alone are as good as failures of it.

Between two records that are known to fail, the attempts of a shard are

* *together*: the batch that failed goes again, with nobody who was not in it;
* *alone*: all but the last attempt are used up, so its records go one by one. One that fails as the
  batch did is the one that made it fail; one that fails otherwise begins with attempts of its own.

With ``on_failure`` ``bisect`` they are halved instead, as the event source mapping does with
``BisectBatchOnFunctionError``: a batch that fails is split, which uses up no attempt, until the
record that fails is alone. To know one of a thousand takes ten more failures, where ``retry`` takes
none, and as many calls, where ``retry`` takes one for each neighbour.

How a batch goes again says :data:`RETRIES`; what becomes of a record that is given up,
:data:`shardfleet.domain.delivery.policies.POLICIES`.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Sequence

from msgspec import Struct

from shardfleet.domain.delivery.progress import position_of
from shardfleet.domain.stream.sequence import ExtendedSequenceNumber
from shardfleet.records import Record

_MOST_DOUBLINGS = 60  # beyond this any back-off has long reached its limit


RETRIES = {"retry": False, "bisect": True}
"""
Whether a batch that failed is split in two, and the halves again, before an attempt counts; else
its records go together, and one by one for the last attempt. By the values of ``on_failure``.
"""


class FailedAttempt(Struct, frozen=True, kw_only=True):
    """
    What a failure comes to.

    Attributes:
        attempt: how often the first record that is not done was tried.
        gives_up: it is known to fail, and has used up its attempts.
        reason: for a person.

    """

    attempt: int
    gives_up: bool
    reason: str


class CrashCharge(Struct, frozen=True, kw_only=True):
    """
    A range that the process died over.

    Attributes:
        first: position of its first record.
        last: position of its last record.
        crashes: deaths on its account.

    """

    first: ExtendedSequenceNumber
    last: ExtendedSequenceNumber
    crashes: int


class Attempts:
    """
    The attempts at the records of one shard.

    Attributes:
        attempt: number of the next call for the first of its records, from 1.
        charge: what the process died over and is not done yet, if anything.

    """

    __slots__ = (
        "_batch_error",
        "_ends",
        "_halves",
        "_is_suspect",
        "_max_crashes",
        "_most",
        "_through",
        "attempt",
        "charge",
    )

    def __init__(
        self,
        *,
        attempts_most: int,
        max_crashes: int,
        halves: bool = False,
    ) -> None:
        """
        Begin with nothing tried.

        Args:
            attempts_most: attempts per record; 0 tries for ever.
            max_crashes: deaths over one record.
            halves: how records of a call that failed go again, see :data:`RETRIES`.

        """
        self._halves = halves
        self._most = attempts_most
        self._max_crashes = max_crashes
        self.charge: CrashCharge | None = None
        self.begin_anew()

    def begin_anew(self) -> None:
        """Forget what failed: the next record has all its attempts, and its neighbours go along."""
        self.attempt = 1
        # No record beyond this goes along: it has not failed with the others.
        self._through: ExtendedSequenceNumber | None = None
        # How the batch failed whose records go one at a time; None: they go together.
        self._batch_error: str | None = None
        # The first record has failed with the batch only, not in a way of its own.
        self._is_suspect = False
        # Of the ranges that failed and were split: where they end, the innermost last.
        self._ends: list[ExtendedSequenceNumber] = []

    def fitting(self, records: Sequence[Record]) -> int:
        """Return how many of the next records, at least one, may go into one call."""
        if self._through is None and self.charge is None and not self._ends:
            return len(records)
        first = position_of(records[0])
        while self._ends and self._ends[-1] < first:
            self._ends.pop()
            self.attempt = 1
        if self._through is not None and self._through < first:
            self.begin_anew()
        if self.charge is not None and self.charge.last < first:
            # The dead process had finished the range, and stored that.
            self.charge = None
        if self._batch_error is not None:
            return 1
        count = len(records)
        if self._through is not None:
            count = bisect_right(records, self._through, key=position_of)
        if self._ends:
            count = min(count, bisect_right(records, self._ends[-1], key=position_of))
        if self.charge is not None:
            count = min(count, bisect_left(records, self.charge.first, key=position_of) or 1)
        return count

    def deaths_over(self, record: Record) -> int:
        """Return the deaths over exactly this record if they are too many, else 0."""
        charge = self.charge
        if charge is None or charge.crashes < self._max_crashes:
            return 0
        return charge.crashes if charge.first == charge.last == position_of(record) else 0

    def deaths_near(self, position: ExtendedSequenceNumber) -> int:
        """Return the deaths on the account of the range that a record is of."""
        charge = self.charge
        return charge.crashes if charge and charge.first <= position <= charge.last else 0

    def passed(self, record: Record) -> None:
        """Acquit the shard once everything that it is charged with is done, or given up."""
        if self.charge is not None and position_of(record) >= self.charge.last:
            self.charge = None

    def gave_up(self, record: Record) -> None:
        """Go on behind a record that was given up; the policy was carried out."""
        self.passed(record)
        self._go_on()

    def handled(self) -> None:
        """All records of a call are done: count anew; among suspects, as if with the batch."""
        self._is_suspect = self._batch_error is not None
        if self._is_suspect:
            self.attempt = max(2, self._most)
        else:
            self._go_on()

    def _go_on(self) -> None:
        """Begin anew behind a record; what was split off with it still goes by itself."""
        ends = self._ends
        self.begin_anew()
        self._ends = ends

    def failed(self, records: Sequence[Record], *, done_count: int, error: str) -> FailedAttempt:
        """
        Decide about the first record of a call that is not done.

        Args:
            records: of the call.
            done_count: how many of them are done, not all.
            error: what went wrong; the same words mean the same failure.

        """
        if self._halves and len(records) > 1:
            return self._split(records[done_count:], is_known=done_count > 0)
        if done_count or (self._is_suspect and error != self._batch_error):
            # This call is the first that the record is known to fail.
            self.attempt, self._is_suspect = 1, False
        attempt, most = self.attempt, self._most
        is_known = len(records) == 1
        if most and attempt >= most and is_known:
            reason = f"{attempt} attempts failed, {most} allowed"
            return FailedAttempt(attempt=attempt, gives_up=True, reason=reason)
        self.attempt += 1
        if self._batch_error is None:
            self._through = position_of(records[-1])
            if most and self.attempt >= most and not is_known:
                self._batch_error, self._is_suspect = error, True
        reason = f"attempt {attempt} of {most or 'any number'} failed"
        return FailedAttempt(attempt=attempt, gives_up=False, reason=reason)

    def _split(self, left: Sequence[Record], *, is_known: bool) -> FailedAttempt:
        """
        Set records apart that failed together, the first half of them first.

        Where the handler said how far it got, the batch is split there and the rest goes together
        (AWS Lambda developer guide, "Configuring partial batch response").
        """
        if is_known:
            self.attempt = 1
        self._ends = [end for end in self._ends if end > position_of(left[-1])]
        self._ends.append(position_of(left[-1]))
        count = len(left)
        if not is_known:
            count //= 2
            self._ends.append(position_of(left[count - 1]))
        reason = f"split, which is no attempt: {count} of {len(left)} records go first"
        return FailedAttempt(attempt=self.attempt, gives_up=False, reason=reason)


def back_off_ms(attempt: int, *, first_ms: int, most_ms: int, jitter: float) -> int:
    """
    Return how long to wait after the ``attempt``-th failure in a row: exponential with jitter.

    Half of the wait is fixed and half is up to ``jitter`` (0 to 1), so that workers that failed
    together do not come back together, and none comes back at once.
    """
    doublings = min(max(attempt, 1) - 1, _MOST_DOUBLINGS)
    ceiling = min(most_ms, first_ms << doublings)
    return round(ceiling / 2 + ceiling / 2 * jitter)
