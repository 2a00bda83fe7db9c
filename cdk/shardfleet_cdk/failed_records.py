"""
Where records go that are given up after `max_attempts`: a queue, a bucket, a topic, or nowhere.

The bucket has the states of tumbling windows, too, that an item of DynamoDB has no room for.

Both are encrypted, take TLS only, and keep what they get: these are the only copies once the
stream's retention has passed.
"""

from __future__ import annotations

from aws_cdk import Duration
from aws_cdk import aws_kms as kms
from aws_cdk import aws_s3 as s3
from aws_cdk import aws_sns as sns
from aws_cdk import aws_sqs as sqs
from constructs import Construct

from shardfleet.domain.delivery.policies import POLICIES, Destination
from shardfleet_cdk.acknowledgements import BUCKET, DEAD_LETTERS, acknowledge
from shardfleet_cdk.options import FleetTables, Operations

# Where the worker writes in the bucket; see shardfleet.adapters.dead_letters.
KEY_PREFIX = "shardfleet/failed/"
# ... and where it keeps states; see shardfleet.adapters.window_states.
STATES_PREFIX = "shardfleet/windows/"


def dead_letter_queue(scope: Construct, construct_id: str, *, operations: Operations) -> sqs.Queue:
    """Make an encrypted queue that takes TLS only and keeps messages for SQS's most, 14 days."""
    key = operations.encryption_key
    queue = sqs.Queue(
        scope,
        construct_id,
        encryption=sqs.QueueEncryption.KMS if key else sqs.QueueEncryption.SQS_MANAGED,
        encryption_master_key=key,
        enforce_ssl=True,
        retention_period=Duration.days(14),
        removal_policy=operations.removal_policy,
    )
    acknowledge(queue, DEAD_LETTERS)
    return queue


class FailedRecordDestinations(Construct):
    """
    The destinations of given-up records.

    Attributes:
        queue: for ``on_exhausted`` ``sqs``, else None.
        bucket: for ``s3``, and for the others too: a record may be larger than a message, and a
            topic keeps none; with tumbling windows whatever is given.
        topic: for ``sns``, else None.

    """

    def __init__(
        self,
        scope: Construct,
        construct_id: str,
        *,
        on_exhausted: str,
        has_windows: bool,
        given: FleetTables,
        operations: Operations,
    ) -> None:
        super().__init__(scope, construct_id)
        self.queue: sqs.IQueue | None = None
        self.bucket: s3.IBucket | None = None
        self.topic: sns.ITopic | None = None
        terms = POLICIES.get(on_exhausted)
        destination = terms.destination if terms else Destination.NOTHING
        if destination is Destination.QUEUE:
            self.queue = given.failed_queue or dead_letter_queue(
                self, "Queue", operations=operations
            )
        if destination is not Destination.NOTHING:
            self.bucket = given.failed_bucket or self._new_bucket(
                operations, has_windows=has_windows
            )
        elif has_windows:
            self.bucket = given.failed_bucket
        if destination is Destination.TOPIC:
            self.topic = given.failed_topic or self._new_topic(operations)

    def _new_topic(self, operations: Operations) -> sns.Topic:
        # AWS's key lets who may use SNS in this account publish, as the worker does, and no
        # service, as a CloudWatch alarm would: no alarm is told to this topic.
        key = operations.encryption_key or kms.Alias.from_alias_name(
            self, "TopicKey", "alias/aws/sns"
        )
        topic = sns.Topic(self, "Topic", master_key=key, enforce_ssl=True)
        topic.apply_removal_policy(operations.removal_policy)
        return topic

    def _new_bucket(self, operations: Operations, *, has_windows: bool) -> s3.Bucket:
        key = operations.encryption_key
        # A state that is written over is deleted, of which a version would be left.
        old_states = s3.LifecycleRule(
            prefix=STATES_PREFIX,
            noncurrent_version_expiration=Duration.days(1),
            expired_object_delete_marker=True,
        )
        bucket = s3.Bucket(
            self,
            "Bucket",
            block_public_access=s3.BlockPublicAccess.BLOCK_ALL,
            encryption=s3.BucketEncryption.KMS if key else s3.BucketEncryption.S3_MANAGED,
            encryption_key=key,
            bucket_key_enabled=True if key else None,
            enforce_ssl=True,
            versioned=True,
            lifecycle_rules=[old_states] if has_windows else None,
            removal_policy=operations.removal_policy,
        )
        acknowledge(bucket, BUCKET)
        return bucket
