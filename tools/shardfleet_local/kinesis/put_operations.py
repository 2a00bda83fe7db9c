"""
PutRecord and PutRecords.

Data stay in base64 as they came: the size is reckoned from the length, nothing is decoded. A
PutRecords request is checked whole before anything is stored; after that each entry succeeds or is
throttled on its own.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from hashlib import md5
from typing import Any, Final

from shardfleet_local.kinesis.account import Account
from shardfleet_local.kinesis.errors import (
    KinesisError,
    invalid_argument,
    rate_exceeded_text,
    throughput_exceeded,
)
from shardfleet_local.kinesis.faults import FaultKind, Site
from shardfleet_local.kinesis.quotas import KIB, PUT_RECORDS_BYTES, PUT_RECORDS_COUNT
from shardfleet_local.kinesis.record_log import StoredRecord
from shardfleet_local.kinesis.requests import Request, broken, hash_key, optional_text
from shardfleet_local.kinesis.sequence import is_well_formed
from shardfleet_local.kinesis.shards import HASH_KEYS, StoredShard
from shardfleet_local.kinesis.streams import Stream

Response = dict[str, Any]

LONGEST_KEY: Final = 256  # fact K60
"""Characters of a partition key (service model)."""


Entry = tuple[str, str, int, int]
"""A checked record: base64 data, partition key, its hash key, size in bytes (data and key)."""


def put_record(account: Account, request: Request) -> Response:
    """PutRecord."""
    stream = account.usable_stream(request)
    ordering = optional_text(request, "SequenceNumberForOrdering")
    if ordering is not None:
        _check_ordering(stream, ordering)
    account.check_key(stream, "generate data keys for")
    write = Write(account, stream)
    entry = checked_entry(request, "", most_bytes=stream.settings.max_record_kib * KIB)
    answer = write.store(entry)
    write.finish()
    if "ErrorCode" in answer:
        raise throughput_exceeded(answer["ErrorMessage"])  # fact K74
    return answer | write.encryption


def put_records(account: Account, request: Request) -> Response:
    """PutRecords."""
    stream = account.usable_stream(request)
    records = request.get("Records")
    if not isinstance(records, list) or not 1 <= len(records) <= PUT_RECORDS_COUNT:
        raise broken(  # fact K76
            None if records is None else f"a list of {len(records)}",
            "records",
            constraint=f"Member must have length from 1 to {PUT_RECORDS_COUNT}",
        )
    most_bytes = stream.settings.max_record_kib * KIB
    entries = [
        checked_entry(record, f"records.{index}.member.", most_bytes=most_bytes)
        for index, record in enumerate(records, 1)
    ]
    total = sum(entry[3] for entry in entries)
    if total > PUT_RECORDS_BYTES:
        raise invalid_argument(  # fact K76
            f"Records have {total} bytes with their partition keys; a request may have "
            f"{PUT_RECORDS_BYTES}."
        )
    account.check_key(stream, "generate data keys for")
    write = Write(account, stream)
    results = write.store_all(entries)
    write.finish()
    failed = sum("ErrorCode" in result for result in results)
    return {"FailedRecordCount": failed, "Records": results, **write.encryption}


def checked_entry(record: Request, member: str, *, most_bytes: int) -> Entry:
    """
    Check one record and reckon its hash key and size.

    Raises:
        KinesisError: ValidationException naming the member (`records.3.member.partitionKey`),
            SerializationException for data that is no base64, InvalidArgumentException for a hash
            key out of range or a record above `most_bytes`.

    """
    data, key = record.get("Data"), record.get("PartitionKey")
    if not isinstance(key, str) or not 1 <= len(key) <= LONGEST_KEY:
        raise broken(  # fact K60
            key,
            f"{member}partitionKey",
            constraint=f"Member must have length from 1 to {LONGEST_KEY}",
        )
    if not isinstance(data, str):
        raise broken(data, f"{member}data", constraint="Member must not be null")  # fact K60
    if len(data) % 4 or not data.isascii():
        raise KinesisError(  # fact K61
            "SerializationException",
            f"'{data[:100]}' can not be converted to a Blob: Base64 encoded length is expected a "
            f"multiple of 4 bytes but found: {len(data)}",
        )
    key_bytes = key.encode()
    size = len(data) // 4 * 3 - (data[-2:].count("=") if data[-1:] == "=" else 0) + len(key_bytes)
    if size > most_bytes:
        raise invalid_argument(  # fact K77
            f"{member or 'The record '}has {size} bytes with its partition key; this stream takes "
            f"{most_bytes} per record (MaxRecordSizeInKiB)."
        )
    if record.get("ExplicitHashKey") is None:
        digest = md5(key_bytes, usedforsecurity=False).digest()
        return data, key, int.from_bytes(digest, "big"), size
    explicit = hash_key(record, "ExplicitHashKey")
    if explicit is None or explicit >= HASH_KEYS:
        raise invalid_argument(  # fact K78
            f"Invalid ExplicitHashKey. It must be in the range: [0, 2^128-1]. It is {explicit}."
        )
    return data, key, explicit, size


def _check_ordering(stream: Stream, number: str) -> None:
    if not is_well_formed(number) or int(number) > int(stream.mint.last):
        raise invalid_argument(  # fact K79
            f"SequenceNumberForOrdering {number} did not come from stream {stream.name}."
        )


@dataclass(slots=True)
class Tally:
    """What one call did to one shard."""

    shard: StoredShard
    records: int = 0
    size_bytes: int = 0
    throttled: int = 0


class Write:
    """
    The records of one call on their way into their shards.

    `finish` must be called once at the end: it wakes subscribers and counts the metrics.
    """

    def __init__(self, account: Account, stream: Stream) -> None:
        self._account = account
        self._stream = stream
        self._now_ms = account.now_ms()
        self._faults = account.faults
        # Most calls meet neither quotas nor faults; they should not pay for them per record.
        self._may_throttle = account.settings.quotas or account.faults.any
        self._tallies: dict[StoredShard, Tally] = {}
        encrypted = stream.settings.key_id is not None
        self.encryption = {"EncryptionType": "KMS"} if encrypted else {}

    def store_all(self, entries: list[Entry]) -> list[Response]:
        """Store or refuse each record; return their entries of the answer, in their order."""
        site = Site(self._stream.name)
        if not self._faults.any or self._faults.take(FaultKind.SHUFFLED_PUTS, site) is None:
            return [self._failure(entry) or self.store(entry) for entry in entries]
        order = self._faults.random.sample(range(len(entries)), len(entries))
        results = {
            index: self._failure(entries[index]) or self.store(entries[index]) for index in order
        }
        return [results[index] for index in range(len(entries))]

    def _failure(self, entry: Entry) -> Response | None:
        if not self._faults.any:
            return None
        site = Site(self._stream.name, self._stream.route(entry[2]).shard_id)
        if self._faults.take(FaultKind.FAILED_ENTRIES, site) is None:
            return None
        return {"ErrorCode": "InternalFailure", "ErrorMessage": "Internal service failure."}

    def store(self, entry: Entry) -> Response:
        """Store the record, or refuse it; return its entry of the PutRecords answer."""
        data, partition_key, key_hash, size_bytes = entry
        shard = self._stream.route(key_hash)
        tally = self._tallies.get(shard)
        if tally is None:
            tally = self._tallies[shard] = Tally(shard)
            shard.log.trim(self._stream.horizon_ms(self._now_ms))
        if self._may_throttle and self._is_throttled(shard, size_bytes):
            tally.throttled += 1
            return self._refusal(shard.shard_id)
        number = self._stream.mint.mint(shard.number, self._now_ms)
        uneven = self._faults.any and self._faults.take(
            FaultKind.UNEVEN_ARRIVALS, Site(self._stream.name, shard.shard_id)
        )
        early_ms = self._faults.random.randint(1, max(1, uneven.delay_ms)) if uneven else 0  # K28
        record = StoredRecord(
            {
                "SequenceNumber": number,
                "ApproximateArrivalTimestamp": (self._now_ms - early_ms) / 1000,
                "Data": data,
                "PartitionKey": partition_key,
            }
        )
        if self.encryption:
            record |= self.encryption
        shard.log.append(record, arrival_ms=self._now_ms, size_bytes=size_bytes)
        tally.records += 1
        tally.size_bytes += size_bytes
        return {"SequenceNumber": number, "ShardId": shard.shard_id}

    def finish(self) -> None:
        """Wake those who wait for the shards written to, and count what happened."""
        for tally in self._tallies.values():
            shard_id = tally.shard.shard_id
            if tally.records:
                tally.shard.wake()
                self._count("IncomingRecords", tally.records, shard_id=shard_id)
                self._count("IncomingBytes", tally.size_bytes, shard_id=shard_id)
            self._count("WriteProvisionedThroughputExceeded", tally.throttled, shard_id=shard_id)

    def _is_throttled(self, shard: StoredShard, size_bytes: int) -> bool:
        site = Site(self._stream.name, shard.shard_id)
        if self._account.faults.take(FaultKind.THROTTLE_WRITES, site) is not None:
            return True
        quotas = self._account.settings.quotas
        return quotas and not shard.quota.take_write(size_bytes, self._now_ms)

    def _refusal(self, shard_id: str) -> Response:
        return {
            "ErrorCode": "ProvisionedThroughputExceededException",
            "ErrorMessage": rate_exceeded_text(
                shard_id=shard_id,
                stream_name=self._stream.name,
                account_id=self._account.settings.account_id,
            ),
        }

    def _count(self, metric: str, value: int, *, shard_id: str) -> None:
        self._account.metrics.add(
            metric, value, stream=self._stream.name, shard=shard_id, now_ms=self._now_ms
        )


OPERATIONS: Final[Mapping[str, Callable[[Account, Request], Response]]] = {
    "PutRecord": put_record,
    "PutRecords": put_records,
}
