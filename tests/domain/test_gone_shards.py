"""When a shard that is not found is over: by its last record, by the retention, by listings."""

import pytest

from shardfleet.domain.reasons import (
    MayHaveRecords,
    MissedForRetention,
    OlderThanRetention,
    SecondListingAwaited,
)
from shardfleet.domain.stream.gone_shards import GoneNote, judge_gone
from shardfleet.domain.stream.hash_ranges import WHOLE_HASH_SPACE
from shardfleet.domain.stream.shards import Shard

HOUR_MS = 3_600_000
DAY_MS = 24 * HOUR_MS
NOW_MS = 1_700_000_000_000


def judged(**note):
    given = {"lease_key": "gone", "first_ms": NOW_MS - HOUR_MS, "unlisted_ms": NOW_MS - HOUR_MS}
    return judge_gone(
        GoneNote(**given | note),
        [Shard(shard_id="one", hash_key_range=WHOLE_HASH_SPACE)],
        shard_id=(given | note)["lease_key"],
        retention_ms=DAY_MS,
        failover_ms=10_000,
        listed_ms=(NOW_MS, NOW_MS + 50),
    )


@pytest.mark.parametrize(
    ("known_ago_ms", "reason"),
    [(DAY_MS + 1, OlderThanRetention), (DAY_MS, MayHaveRecords), (HOUR_MS, MayHaveRecords)],
)
def test_it_is_over_only_when_its_last_known_record_has_expired(known_ago_ms, reason):
    """DescribeStreamSummary's RetentionPeriodHours: younger records are there, somewhere."""
    verdict = judged(known_ms=NOW_MS - known_ago_ms)
    assert type(verdict.reason) is reason
    assert verdict.is_over == (reason is OlderThanRetention)


@pytest.mark.parametrize("missed_ms", [DAY_MS, DAY_MS + 1])
def test_of_which_nothing_is_known_it_is_over_after_one_retention(missed_ms):
    verdict = judged(first_ms=NOW_MS - missed_ms)
    assert type(verdict.reason) is (MissedForRetention if missed_ms > DAY_MS else MayHaveRecords)


@pytest.mark.parametrize("unlisted_ago_ms", [0, 9_999])
def test_one_listing_without_it_is_not_enough(unlisted_ago_ms):
    verdict = judged(known_ms=1, unlisted_ms=NOW_MS - unlisted_ago_ms)
    assert type(verdict.reason) is SecondListingAwaited
    assert not verdict.is_over
