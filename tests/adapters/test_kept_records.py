"""What was given up is found again, in a bucket or a queue, and deleted only when it is handled."""

import asyncio
import uuid

import pytest
from msgspec.structs import replace

from shardfleet.adapters.thread_pool import ThreadPool
from shardfleet.domain.delivery.given_up import folder_of
from shardfleet.errors import ConfigurationError, ShardfleetError
from shardfleet_ops.aws import kept_records
from shardfleet_ops.aws.kept_records import KeptInBucket, KeptInQueue
from shardfleet_ops.operate.given_up import FailedBucket, RefusedDocument, event_of
from tests.adapters.test_dead_letters import clients, failed, places, received

__all__ = ["clients", "places"]  # fixtures
run = asyncio.run
PREFIX = "shardfleet/failed/"
FOLDER = folder_of("fulfilment", account="111122223333", region="eu-central-1")


def own_bucket(letters):
    return FailedBucket(bucket=letters.bucket, folder=FOLDER)


def given_up(number, *payloads):
    """Return records of which the first one has a number."""
    found = failed(*payloads)
    records = [
        type(record)(
            data=record.data,
            partition_key="k",
            sequence_number=str(number + n),
            shard_id=record.shard_id,
            approximate_arrival_ms=record.approximate_arrival_ms,
        )
        for n, record in enumerate(found.records)
    ]
    return replace(found, records=records)


@pytest.fixture
def bucket(places):
    clients, _, letters, _ = places
    pool = ThreadPool("kept", threads=1)

    def kept(prefix=PREFIX):
        place, own = f"s3://{letters.bucket}/{prefix}", own_bucket(letters)
        return KeptInBucket(place, client=clients.s3, own=own, pool=pool)

    return letters, kept


@pytest.fixture
def queue(places):
    clients, letters, overflow, url = places
    pool = ThreadPool("kept", threads=1)

    def kept():
        own = own_bucket(overflow)
        return KeptInQueue(url, client=clients.sqs, objects=clients.s3, own=own, pool=pool)

    return letters, kept


def payloads_of(document):
    return [record["kinesis"]["sequenceNumber"] for record in event_of(document)["Records"]]


@pytest.mark.parametrize("place", ["bucket", "queue"])
def test_what_was_kept_is_found_with_its_records_and_deleted(bucket, queue, place):
    letters, kept = {"bucket": bucket, "queue": queue}[place]
    run(letters.record(given_up(100, b"a", b"b")))
    run(letters.record(given_up(200, b"c")))

    found = kept()
    documents = sorted(run(found.look()), key=lambda each: each.place)
    assert [each.place for each in documents] == [(100, 0), (200, 0)]
    assert [each.count for each in documents] == [2, 1]
    assert not any(each.payload for each in documents)
    taken = [run(found.take(each, within_s=60)) for each in documents]
    assert [payloads_of(each) for each in taken] == [["100", "101"], ["200"]]

    run(found.delete(taken[0]))
    run(found.leave(documents[1:]))

    (left,) = run(kept().look())
    assert left.place == (200, 0)


def test_a_queues_messages_are_hidden_while_they_are_looked_at_and_shown_again(queue):
    letters, kept = queue
    run(letters.record(given_up(100, b"a")))
    found = kept()
    documents = run(found.look())
    assert run(kept().look()) == []
    run(found.leave(documents))
    assert len(run(kept().look())) == 1


def test_what_a_message_could_not_hold_is_taken_from_its_object_and_both_are_deleted(places, queue):
    clients, _, bucket, _ = places
    letters, kept = queue
    run(letters.record(given_up(100, b"x" * 1_000_000)))
    found = kept()
    (document,) = run(found.look())
    taken = run(found.take(document, within_s=60))
    assert payloads_of(taken) == ["100"]
    assert clients.s3.list_objects_v2(Bucket=bucket.bucket)["KeyCount"] == 1
    run(found.delete(taken))
    assert clients.s3.list_objects_v2(Bucket=bucket.bucket)["KeyCount"] == 0
    assert run(kept().look()) == []


def test_an_object_that_is_none_of_ours_is_refused_by_name_beside_what_is(places, bucket):
    clients, *_ = places
    letters, kept = bucket
    run(letters.record(given_up(100, b"a")))
    clients.s3.put_object(Bucket=letters.bucket, Key=f"{PREFIX}notes.txt", Body=b"hello")

    refused = [each for each in run(kept().look()) if isinstance(each, RefusedDocument)]
    assert [each.where for each in refused] == [f"s3://{letters.bucket}/{PREFIX}notes.txt"]
    assert "it is no record of what was given up" in refused[0].reason
    assert len(run(kept(f"{PREFIX}111122223333/").look())) == 1


def test_a_message_that_is_none_of_ours_is_refused_by_name_and_all_are_shown_again(places, queue):
    clients, _, _, url = places
    letters, kept = queue
    run(letters.record(given_up(100, b"a")))
    sent = clients.sqs.send_message(QueueUrl=url, MessageBody="hello")

    found = kept()
    looked = run(found.look())
    (refused,) = (each for each in looked if isinstance(each, RefusedDocument))
    assert refused.where == f"{url}#{sent['MessageId']}"
    assert "it is no record of what was given up" in refused.reason
    run(found.leave(looked))

    seen = {message["Body"] for _ in range(3) for message in _messages(clients, url)}
    assert "hello" in seen
    assert len(seen) == 2


def _messages(clients, url):
    answer = clients.sqs.receive_message(
        QueueUrl=url, MaxNumberOfMessages=10, VisibilityTimeout=0, WaitTimeSeconds=1
    )
    return answer.get("Messages", ())


def test_a_message_that_is_somebody_elses_by_now_is_not_taken(places, queue):
    clients, _, _, url = places
    letters, kept = queue
    run(letters.record(given_up(100, b"a")))
    found = kept()
    (document,) = run(found.look())
    clients.sqs.delete_message(QueueUrl=url, ReceiptHandle=found._messages[document.where].receipt)

    with pytest.raises(ShardfleetError):
        run(found.take(document, within_s=60))
    assert received(clients, url) == []


def test_an_object_that_is_gone_meanwhile_is_told(bucket):
    letters, kept = bucket
    run(letters.record(given_up(100, b"a")))
    found = kept()
    (document,) = run(found.look())
    run(found.delete(document))
    with pytest.raises(ConfigurationError, match="GetObject"):
        run(found.take(document, within_s=60))


def test_a_missing_bucket_or_queue_is_a_matter_of_configuration(places):
    clients, _, letters, url = places
    pool, own = ThreadPool("kept", threads=1), own_bucket(letters)
    place = f"s3://x-{uuid.uuid4().hex}/"
    with pytest.raises(ConfigurationError, match="ListObjectsV2"):
        run(KeptInBucket(place, client=clients.s3, own=own, pool=pool).look())
    missing = KeptInQueue(f"{url}-x", client=clients.sqs, objects=clients.s3, own=own, pool=pool)
    with pytest.raises(ConfigurationError, match="ReceiveMessage"):
        run(missing.look())


@pytest.mark.parametrize("place", ["bucket/prefix", "s3:/b/p", "s3://", "arn:aws:sqs:eu:1:q"])
def test_a_place_that_is_neither_is_refused(place):
    with pytest.raises(ConfigurationError, match="s3://BUCKET/PREFIX or a queue's URL allowed"):
        KeptInBucket(place, client=None, own=None, pool=None)


def test_so_many_at_once_and_the_first_ones(bucket, monkeypatch):
    letters, kept = bucket
    monkeypatch.setattr(kept_records, "OBJECTS_MOST", 2)
    for number in (300, 100, 200):
        run(letters.record(given_up(number, b"a")))
    assert [each.place[0] for each in run(kept().look())] == [100, 200]
