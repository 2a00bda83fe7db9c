"""
Asking idle shards whether there is something, at a pace of its own.

Spark may ask for the latest offset ninety times a second; a shard is asked at most once in an
interval, all of them together at most so many times a second, and not at all while a batch is
known to have work. An empty answer with lag is followed through its next iterator (hazard H6).
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

from shardfleet.domain.positions.positions import position_text
from shardfleet.domain.reading.cursor import ShardCursor
from shardfleet.domain.reading.pages import RecordsPage
from shardfleet.domain.refusals import Doubt
from shardfleet.errors import (
    FalseEnd,
    ForeignPosition,
    IteratorExpired,
    OutcomeUnknown,
    PositionTrimmed,
    ShardGone,
    Throttled,
    settled,
)
from shardfleet_spark.offsets.plan_token import Stand
from shardfleet_spark.read.shard_pages import (
    FetchPorts,
    Hint,
    ShardRange,
    is_beginning_in_doubt,
    is_done,
    origin_of,
)

# The record at the position itself may come first (hazard H4), so two are asked for.
_PROBE_RECORDS = 2
_AT_ONCE = 8


@dataclass(slots=True)
class Hints:
    """What is known of shards beside their positions; void once a position has moved."""

    known: dict[str, tuple[str, Hint]] = field(default_factory=dict)

    def keep(self, shard_id: str, stand: Stand, hint: Hint) -> None:
        """Remember a hint for a shard at this position."""
        self.known[shard_id] = (position_text(stand.position), hint)

    def of(self, shard_id: str, stand: Stand) -> Hint:
        """Return what is known of a shard at this position."""
        position, hint = self.known.get(shard_id, ("", Hint()))
        return hint if position == position_text(stand.position) else Hint()


@dataclass(frozen=True, slots=True, kw_only=True)
class ProbePace:
    """
    How often idle shards are asked.

    Attributes:
        interval_ms: least time between two rounds.
        per_second: most calls a second over all shards.

    """

    interval_ms: int = 1_000
    per_second: int = 100


class IdleShardProber:
    """
    Looks for work in idle shards.

    Attributes:
        tips: shard to the wall clock at which nothing was behind its position.
        found: the shards that had something in the last round.
        calls: GetRecords calls that were made.
        throttles: those that were refused.

    """

    def __init__(self, ports: FetchPorts, pace: ProbePace, hints: Hints) -> None:
        """Ask nothing yet; the first round is due at once."""
        self._ports = ports
        self._pace = pace
        self._hints = hints
        self._due_ms: int | None = None
        self._after = ""
        self._lagging = False
        self._doubt = Doubt()
        self.tips: dict[str, int] = {}
        self.found: frozenset[str] = frozenset()
        self.calls = 0
        self.throttles = 0

    @property
    def wait_ms(self) -> int:
        """Return when the next round may begin: in so many milliseconds."""
        if self._due_ms is None:
            return 0
        return max(0, self._due_ms - self._ports.clock.monotonic_ms())

    def hurry(self) -> None:
        """Let the next round be due at once: something is new."""
        self._due_ms = None

    async def has_work(self, stands: Mapping[str, Stand]) -> bool:
        """
        Return whether any shard has something to read, if a round is due; else False.

        Args:
            stands: the live shards.

        """
        clock = self._ports.clock
        if self.wait_ms:
            return False
        now_ms = clock.now_ms()
        free_ms = {each: self._hints.of(each, stand).free_ms for each, stand in stands.items()}
        free = sorted(each for each in stands if free_ms[each] <= now_ms)
        if not free:
            soonest_ms = min(free_ms.values(), default=now_ms + self._pace.interval_ms)
            self._due_ms = clock.monotonic_ms() + soonest_ms - now_ms
            return False
        asked, self._lagging, self.found = 0, False, frozenset()
        for some in self._groups(free):
            answers = await asyncio.gather(*(self._probe(each, stands[each]) for each in some))
            asked += len(some)
            self._after = some[-1]
            self.found = frozenset(each for each, has in zip(some, answers, strict=True) if has)
            if self.found:
                break
        interval_ms = self._pace.interval_ms
        if self._lagging:
            interval_ms = self._ports.policy.poll_interval_ms
        at_pace_ms = asked * 1000 // self._pace.per_second
        self._due_ms = clock.monotonic_ms() + max(interval_ms, at_pace_ms)
        return bool(self.found)

    def _groups(self, shard_ids: Sequence[str]) -> list[Sequence[str]]:
        """Return whom to ask in this round, beginning behind the last one of the former round."""
        first = sum(1 for shard_id in shard_ids if shard_id <= self._after)
        most = max(1, self._pace.per_second * max(self._pace.interval_ms, 1_000) // 1_000)
        turn = [*shard_ids[first:], *shard_ids[:first]][:most]
        return [turn[index : index + _AT_ONCE] for index in range(0, len(turn), _AT_ONCE)]

    async def _probe(self, shard_id: str, stand: Stand) -> bool:
        ports, now = self._ports, self._ports.now
        hint = self._hints.of(shard_id, stand)
        origin = origin_of(ShardRange(shard_id, stand, hint), now)
        cursor = ShardCursor(shard_id, origin, limits=ports.limits, now=now)
        cursor.asked(now)
        self.calls += 1
        try:
            page = await ports.source.page(
                shard_id, origin.start, resume_token=origin.resume_token, limit=_PROBE_RECORDS
            )
            cursor.answered(page, ports.now)
            self._doubt.clear()
        except (Throttled, OutcomeUnknown) as error:
            self.throttles += 1
            if self._doubt.believes(error, ports.clock.monotonic_ms()):
                raise settled(error) from error
            return False
        except IteratorExpired:
            self._hints.known.pop(shard_id, None)
            return False
        except (ShardGone, PositionTrimmed, ForeignPosition, FalseEnd):
            return True  # The batch finds out, and says what is lost.
        hint = replace(hint, free_ms=now.wall_ms + ports.policy.poll_interval_ms)
        has_news = any(not is_done(stand, record) for record in page.records)
        is_sure = isinstance(cursor.next(), RecordsPage)
        is_sure = is_sure and not is_beginning_in_doubt(stand, now)
        if page.resume_token is None or has_news or not is_sure:
            # What was found, be it a loss, is read by a batch, from where this probe began.
            issued_ms = hint.iterator_ms if origin.resume_token else now.wall_ms
            found = replace(hint, iterator=page.page_token, iterator_ms=issued_ms)
            self._hints.keep(shard_id, stand, found)
            return True
        hint = replace(hint, iterator=page.resume_token, iterator_ms=ports.clock.now_ms())
        self._hints.keep(shard_id, stand, hint)
        if page.millis_behind_latest:
            self._lagging = True
        elif page.millis_behind_latest == 0:
            self.tips[shard_id] = now.wall_ms
        return False
