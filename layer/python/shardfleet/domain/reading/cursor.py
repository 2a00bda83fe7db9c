"""
Where a shard is read: a machine without I/O; worker, prober, commands and Spark drive this one.

Events go in: what was :meth:`~ShardCursor.asked`, what was :meth:`~ShardCursor.answered`, what
:meth:`~ShardCursor.failed`, how a missing shard was :meth:`~ShardCursor.judged`. Actions come out
of :meth:`~ShardCursor.next`: ask, deliver a page, tell a gap, judge a missing shard, end.

Accepted is what a page brought, whole stream records only. When a resume token is too old, reading
goes on *after* the last accepted record; before the first one it begins again at the start, which
is never LATEST (hazards H4, H6, H7; protocol.md §5.1, §8 rows 2, 3, 8a). Java:
``KinesisDataFetcher`` and ``PrefetchRecordsPublisher``, without the prefetching.

Kinesis skips what it has trimmed without a word. So an answer counts only if all that arrived
before a moment within the shortest retention is accepted, or if the *witness*, the last record
that was read, is still there: nothing behind a record goes before it (protocol.md §5.1).

Before a witness was read here, it may be a number that no record ever had: a shard's first, or the
``ContinuationSequenceNumber`` of a subscription (facts: K13, K35). Then the oldest record there is
decides: trimming goes in order, so nothing is lost behind a number that is not older. The same is
asked when a number is answered with nothing but the lag of a whole retention (K15: for a quarter of
an hour and more, where a new iterator at the oldest record finds data at once).

How often a shard may be asked is its source's to know; here a failure is waited after.

A closed page is the end of a shard; that the service does not know it proves nothing, and what
does is decided in :mod:`shardfleet.domain.stream.gone_shards`. There is no work per record here.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

from msgspec import Struct

from shardfleet.domain.reading.pages import (
    FROM_TRIM_HORIZON,
    RecordsPage,
    StartingPosition,
    StartKind,
    start_of,
)
from shardfleet.domain.refusals import Doubt
from shardfleet.domain.stream.gone_shards import GoneVerdict
from shardfleet.domain.stream.sequence import Position
from shardfleet.domain.stream.shards import ChildShard, end_contradiction
from shardfleet.errors import (
    FalseEnd,
    IteratorExpired,
    OutcomeUnknown,
    PositionTrimmed,
    ShardfleetError,
    ShardGone,
    Throttled,
    settled,
)

# Kinesis quota: no stream retains records for less than 24 hours. One that retains them longer may
# be set back to that at any moment, so only what is younger is certain to be there.
SHORTEST_RETENTION_MS = 24 * 3_600_000
# Lags are approximate, and clocks differ: AWS refuses a signature that is 5 minutes off.
_RETENTION_MARGIN_MS = 600_000
# K15 (harlow/kinesis-consumer#125, #98): so long is waited for what an old number may still bring,
# and then so long for the oldest record: one that is lost begins anew within a minute.
_SILENCE_MS, _OLDEST_MS = 30_000, 15_000


class Moment(NamedTuple):
    """Now: epoch milliseconds, and milliseconds that never go back."""

    wall_ms: int
    steady_ms: int


class ReadLimits(Struct, frozen=True, kw_only=True):
    """
    How much is asked for at once, and how often in vain.

    Attributes:
        back_off_ms: how long to wait after so many failures in a row; the jitter is the world's.
        records_most: stream records of one answer.
        attempts_most: failures in a row after which it is left at that; 0: never.

    """

    back_off_ms: Callable[[int], int]
    records_most: int = 1_000
    attempts_most: int = 0


class ReadFrom(Struct, frozen=True, kw_only=True):
    """
    Where a cursor begins, and what is known there.

    Attributes:
        start: the position.
        resume_token: of an earlier page: goes on there, while it is not too old.
        witness: the last record that was read; None: none was.
        complete_before_ms: all that arrived before is read, epoch milliseconds, 0 unknown; None:
            gaps are nobody's concern here.

    """

    start: StartingPosition
    resume_token: str | None = None
    witness: str | None = None
    complete_before_ms: int | None = None

    @classmethod
    def position(
        cls, position: Position, *, complete_before_ms: int = 0, resume_token: str | None = None
    ) -> ReadFrom:
        """Begin where everything up to a position is done, and let no gap pass."""
        done = position.done
        return cls(
            start=start_of(position),
            resume_token=resume_token,
            witness=None if done is None else done.sequence_number,
            complete_before_ms=complete_before_ms,
        )


class Ask(NamedTuple):
    """Ask the source for a page, not before ``due_ms`` on the steady clock."""

    start: StartingPosition
    resume_token: str | None
    limit: int
    due_ms: int


class End(NamedTuple):
    """The shard is over by evidence, though its end was not read; ``children`` as listed."""

    children: Sequence[ChildShard]


def is_retained(since_ms: int, *, now_ms: int, retention_ms: int = SHORTEST_RETENTION_MS) -> bool:
    """Return whether everything that arrived since a moment has certainly been read."""
    kept_ms = max(retention_ms, SHORTEST_RETENTION_MS)
    return now_ms - since_ms < kept_ms - _RETENTION_MARGIN_MS


class ShardCursor:
    """
    One shard, read forward.

    Attributes:
        start: where reading began.
        accepted: the last record that was read; None: none since the start.
        resume_token: where the next read begins; None: at a position.
        failures: in a row.
        due_ms: the source is asked no sooner than that, on the steady clock.

    """

    def __init__(self, shard_id: str, origin: ReadFrom, *, limits: ReadLimits, now: Moment) -> None:
        """Stand there; nothing is read yet."""
        self.start = origin.start
        self.resume_token = origin.resume_token
        self.accepted: str | None = None
        self.failures = 0
        self._shard_id = shard_id
        self._witness = origin.witness
        self._complete_before_ms = origin.complete_before_ms
        self._limits = limits
        self._told: RecordsPage | PositionTrimmed | ShardGone | End | None = None
        # The service does not take the position, as too old: asked is what is left.
        self._refused: PositionTrimmed | None = None
        # Kept, and not read anew, while the witness is looked for.
        self._in_doubt: RecordsPage | None = None
        self._is_witness_seen = False
        self._proof = origin.start
        self._proof_token: str | None = None
        self._proof_ms = 0
        self._silent_since_ms: int | None = None
        self._disbelief = Doubt()
        self._page_token: str | None = None
        # Where the first of the pages began that is to be accepted next.
        self._began: StartingPosition | None = None
        self._asked = now
        self.due_ms = now.steady_ms

    def next(self) -> Ask | RecordsPage | PositionTrimmed | ShardGone | End:
        """
        Return what is to be done.

        Returns:
            Ask; or, once each: a page to deliver, of which a closed one is the last; a gap, to be
            told or accepted; a missing shard, to be judged; the end of one that is over.

        """
        if self._told is not None:
            told, self._told = self._told, None
            return told
        if self._is_proving:
            return Ask(self._proof, self._proof_token, 1, self.due_ms)
        return Ask(self._where, self.resume_token, self._limits.records_most, self.due_ms)

    def asked(self, now: Moment) -> None:
        """Note that the source is asked, in this moment."""
        self._asked = now
        if not self._is_proving and self.resume_token is None:
            self._began = self._where

    def answered(self, page: RecordsPage, now: Moment) -> None:
        """
        Take an answer.

        Raises:
            FalseEnd: it contradicts itself about the shard's end; that has failed.

        """
        ended = page.resume_token is None
        self._page_token = page.page_token
        contradiction = ""
        if ended or page.child_shards:
            contradiction = end_contradiction(
                page.child_shards, ended=ended, shard_id=self._shard_id
            )
        if contradiction:
            raise FalseEnd(contradiction)
        self.failures = 0
        if self._disbelief.times:
            self._disbelief.clear()
        if self._refused is not None:
            self._look_left(page, self._refused, now)
            return
        if self._in_doubt is not None:
            self._weigh(page, self._in_doubt, now)
            return
        if self._is_silent(page, now):
            self._doubt(page, FROM_TRIM_HORIZON, now)
            return
        is_doubtful = self._may_follow_a_gap(page, now)
        lag_ms = page.millis_behind_latest
        says_something = bool(page.records) or not page.says_nothing
        if self._complete_before_ms is not None and lag_ms is not None and says_something:
            self._complete_before_ms = self._asked.wall_ms - lag_ms
        if not is_doubtful:
            self._accept(page)
        else:
            self._doubt(page, self._at_witness, now)
            if self._began == self._at_witness:
                self._weigh(page, page, now)

    def failed(self, error: ShardfleetError, now: Moment) -> bool:
        """
        Take a failure; return whether there is anything to be done but raising it.

        Raises:
            ShardfleetError: the verdict of what was refused for as long as it is doubted.

        """
        if isinstance(error, PositionTrimmed) and not self._is_proving:
            self._refused, self._proof, self._proof_token = error, FROM_TRIM_HORIZON, None
            self._proof_ms = now.steady_ms
            return True
        if isinstance(error, ShardGone | PositionTrimmed):
            self._told, self._refused = error, None
            return True
        if isinstance(error, IteratorExpired | FalseEnd):
            token = None if isinstance(error, IteratorExpired) else self._page_token
            if self._is_proving:
                self._proof_token = token
            else:
                self.resume_token = token
        elif not isinstance(error, Throttled | OutcomeUnknown):
            return False
        elif self._disbelief.believes(error, now.steady_ms):
            raise settled(error) from error
        self.failures += 1
        self._wait_after(self._limits.back_off_ms(self.failures), now)
        return self.failures != self._limits.attempts_most

    def judged(self, verdict: GoneVerdict, *, wait_ms: int, now: Moment) -> None:
        """Take what was found out of a missing shard: it is over, or asked again after a while."""
        self._told = End(verdict.children) if verdict.is_over else None
        self._wait_after(wait_ms, now)

    def accept_gap(self) -> None:
        """Go on behind a gap, from the oldest record that is left."""
        page, self._told, self._witness, self._in_doubt = self._in_doubt, None, None, None
        if page is not None and not page.says_nothing:
            self._accept(page)
        else:
            self.start, self.accepted, self.resume_token = FROM_TRIM_HORIZON, None, None

    @property
    def _is_proving(self) -> bool:
        """Return whether what is asked for is no page to go on with, but what is there."""
        return self._refused is not None or self._in_doubt is not None

    @property
    def _where(self) -> StartingPosition:
        if self.accepted is None:
            return self.start
        return StartingPosition(StartKind.AFTER_SEQUENCE_NUMBER, self.accepted)

    @property
    def _at_witness(self) -> StartingPosition:
        return StartingPosition(StartKind.AT_SEQUENCE_NUMBER, self._witness)

    def _may_follow_a_gap(self, page: RecordsPage, now: Moment) -> bool:
        """Return whether records may be missing between what was read before and an answer."""
        if self._witness is None or self._complete_before_ms is None or page.says_nothing:
            return False
        retained = is_retained(self._complete_before_ms, now_ms=now.wall_ms)
        return not retained and page.first != self._witness

    def _is_silent(self, page: RecordsPage, now: Moment) -> bool:
        """Return whether a number has been answered with nothing but a whole retention's lag."""
        old_ms = SHORTEST_RETENTION_MS - _RETENTION_MARGIN_MS
        has_proof = self._witness is not None and self._complete_before_ms is not None
        if not (has_proof and page.says_nothing and page.lag_ms >= old_ms):
            self._silent_since_ms = None
        elif self._silent_since_ms is None:
            self._silent_since_ms = now.steady_ms
        since_ms = self._silent_since_ms
        return since_ms is not None and now.steady_ms - since_ms >= _SILENCE_MS

    def _doubt(self, page: RecordsPage, proof: StartingPosition, now: Moment) -> None:
        self._in_doubt, self._proof, self._proof_token = page, proof, None
        self._proof_ms = now.steady_ms

    def _look_left(self, answer: RecordsPage, refused: PositionTrimmed, now: Moment) -> None:
        """Take the oldest that is left behind a position that the service refuses (K14, K16)."""
        self._proof_token = answer.resume_token
        if answer.says_nothing and now.steady_ms - self._proof_ms < _OLDEST_MS:
            return
        nothing_left = not answer.records and not answer.says_nothing
        self._told = PositionTrimmed(str(refused), nothing_left=nothing_left)
        self._refused = None

    def _weigh(self, answer: RecordsPage, page: RecordsPage, now: Moment) -> None:
        """Take what is there where the witness was: it shows whether a page follows a gap."""
        is_of_oldest = self._proof == FROM_TRIM_HORIZON
        oldest = answer.first
        if answer.says_nothing:
            self._proof_token = answer.resume_token
            if page.says_nothing and now.steady_ms - self._proof_ms >= _OLDEST_MS:
                self._silent_since_ms = None
                self._accept(page)
        elif oldest == self._witness:
            self._accept(page)
        elif not is_of_oldest and not self._is_witness_seen:
            self._doubt(page, FROM_TRIM_HORIZON, now)
        elif is_of_oldest and oldest is not None and int(oldest) < int(self._witness or 0):
            self._silent_since_ms = None
            self._accept(page)
        else:
            self._told = PositionTrimmed(
                f"shard {self._shard_id}: record {self._witness} is older than what the stream "
                f"retains (the oldest now is {oldest or 'none'}); "
                "records behind it may be lost",
                nothing_left=oldest is None,
            )

    def _accept(self, page: RecordsPage) -> None:
        if page.records:
            self.accepted = self._witness = page.records[-1].sequence_number
            self._is_witness_seen = True
        if page.records or not page.says_nothing:
            self._began = None
        self.resume_token, self._in_doubt = page.resume_token, None
        self._told = page

    def _wait_after(self, duration_ms: int, now: Moment) -> None:
        """Make the next call no sooner than that from now (row 8a: no storms of retries)."""
        self.due_ms = max(self.due_ms, now.steady_ms + duration_ms)
