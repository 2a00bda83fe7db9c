"""
States of tumbling windows that an item of DynamoDB has no room for, each an object in S3.

A key is never used for another state, so no write changes what a shard's note names. Below
``shardfleet/windows/<account>/<region>/<fleet>/``, which is all of it that a worker's role has
rights to.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from shardfleet.adapters.sdk_errors import SdkCall, unsettled
from shardfleet.adapters.thread_pool import ThreadPool, in_threads_of
from shardfleet.errors import ConfigurationError

if TYPE_CHECKING:
    from mypy_boto3_s3.client import S3Client

S3_PREFIX = "shardfleet/windows"
_GONE = ("NoSuchBucket", "NoSuchKey")


class S3WindowStates:
    """
    The ``WindowStates`` port over a bucket.

    Args:
        bucket: its name.
        client: may repeat; a write replaces itself.
        pool: threads of the calls.
        fleet: the fleet's name.
        function_arn: of the worker function: its account and region are part of each key.

    """

    def __init__(
        self, bucket: str, *, client: S3Client, pool: ThreadPool, fleet: str, function_arn: str
    ) -> None:
        """Write nothing yet."""
        _arn, _aws, _lambda, region, account, *_ = function_arn.split(":")
        self._bucket = bucket
        self._client = client
        self._pool = pool
        self._prefix = f"{S3_PREFIX}/{account}/{region}/{fleet}"

    @in_threads_of("_pool")
    def keep(self, lease_key: str, token: str, state: str) -> str:
        """
        Store durably and return ``s3://bucket/key``.

        Raises:
            Throttled: refused or never sent.
            OutcomeUnknown: sent, but no answer came; a repeat replaces the same object.
            ConfigurationError: no such bucket, or no right to write to it.

        """
        key = f"{self._prefix}/{lease_key}/{token}.json"
        call = SdkCall(
            f"PutObject of the state of a window to {self._bucket}",
            writes=True,
            codes=dict.fromkeys(_GONE, unsettled(ConfigurationError)),
        )
        call.run(
            self._client.put_object,
            Bucket=self._bucket,
            Key=key,
            Body=state.encode(),
            ContentType="application/json",
        )
        return f"s3://{self._bucket}/{key}"

    @in_threads_of("_pool")
    def fetch(self, place: str) -> str:
        """
        Return the state that is kept at a place.

        Raises:
            Throttled: try again later.
            ConfigurationError: it is gone, or there is no right to read it.

        """
        call = SdkCall(
            f"GetObject of the state of a window, {place}",
            codes=dict.fromkeys(_GONE, unsettled(ConfigurationError)),
        )
        bucket, key = _parts(place)
        answer = call.run(self._client.get_object, Bucket=bucket, Key=key)
        state: bytes = call.run(answer["Body"].read)
        return state.decode()

    @in_threads_of("_pool")
    def drop(self, place: str) -> None:
        """Delete what is kept at a place; raises if that is not known to be done."""
        call = SdkCall(f"DeleteObject of the state of a window, {place}", writes=True)
        bucket, key = _parts(place)
        call.run(self._client.delete_object, Bucket=bucket, Key=key)


def _parts(place: str) -> tuple[str, str]:
    bucket, _, key = place.removeprefix("s3://").partition("/")
    return bucket, key
