"""
What becomes of records that failed for good: the terms of each failure policy, in one table.

Configuration, runtime, construct and commands read terms, never the option's value. What carries
them out is :class:`shardfleet.engine.shard.failure_policy.FailurePolicy`.
"""

from __future__ import annotations

from enum import Enum

from msgspec import Struct


class Destination(Enum):
    """Where records are kept in full; the value has the options that name the places."""

    NOTHING = ()
    QUEUE = ("failed_queue_url",)
    BUCKET = ("failed_bucket",)
    # A topic keeps nothing, and without a subscriber nobody has the record.
    TOPIC = ("failed_bucket", "failed_topic_arn")


class PolicyTerms(Struct, frozen=True):
    """
    What a policy does about a record that has used up its attempts.

    Attributes:
        means: the same for a person, the end of a sentence.
        destination: where the record is kept.
        stops: the shard rests at the record until somebody resumes it; else it goes on behind it.

    """

    means: str
    destination: Destination = Destination.NOTHING
    stops: bool = False

    @property
    def only_skips(self) -> bool:
        """Return whether the shard goes on, and nobody has the record."""
        return not self.stops and self.destination is Destination.NOTHING


POLICIES = {
    "stop": PolicyTerms("the shard is stopped", stops=True),
    "skip": PolicyTerms("the record is skipped, and where it stands is told"),
    "sqs": PolicyTerms("the record is kept in sqs and skipped", Destination.QUEUE),
    "s3": PolicyTerms("the record is kept in s3 and skipped", Destination.BUCKET),
    "sns": PolicyTerms("the record is kept in s3, told to sns and skipped", Destination.TOPIC),
}
"""By the values of ``on_exhausted``; a further policy is a row."""
