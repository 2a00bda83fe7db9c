"""
A redrive deletes what it has read from the fleet's own place for those records, and nothing else.

Every form of a place that a message can name, with and without records in the message, by itself
and through a topic; every object there is one that would be handled if it were believed.
"""

import asyncio
import hashlib
import io
import json
import uuid
from types import SimpleNamespace

import pytest
from botocore.exceptions import ClientError
from msgspec.structs import replace

from shardfleet.adapters.dead_letters import S3DeadLetters, invocation_record, object_key
from shardfleet.adapters.thread_pool import ThreadPool
from shardfleet.domain.delivery.given_up import folder_of
from shardfleet.engine.ports import HandlerResult
from shardfleet_ops.aws.kept_records import KeptInBucket, KeptInQueue
from shardfleet_ops.operate.given_up import FailedBucket, GivenUp, RefusedDocument
from shardfleet_ops.operate.redrive import redrive
from tests.adapters.test_dead_letters import INVOCATION, failed

run = asyncio.run
BUCKET, OTHER = "fulfilment-failed", "payroll"
URL = "https://sqs.eu-central-1.amazonaws.com/111122223333/failed"
FOLDER = folder_of("fulfilment", account="111122223333", region="eu-central-1")
OWN = FailedBucket(bucket=BUCKET, folder=FOLDER)
POOL = ThreadPool("redrive-places", threads=1)
LETTER = failed(b"one", b"two")
KEY = object_key(LETTER, INVOCATION)
NEIGHBOUR = "shardId-000000000009"


def in_folder(old, new):
    assert old in KEY
    return f"s3://{BUCKET}/{KEY.replace(old, new, 1)}"


# What a message may name beside the one right place.
PLACES = {
    "another bucket": f"s3://{OTHER}/{KEY}",
    "another bucket, another key": f"s3://{OTHER}/salaries.csv",
    "a bucket that begins alike": f"s3://{BUCKET}-2/{KEY}",
    "a window's state": f"s3://{BUCKET}/shardfleet/windows/111122223333/eu-central-1/fulfilment/w",
    "no folder": f"s3://{BUCKET}/{KEY.rpartition('/')[2]}",
    "another prefix": in_folder("shardfleet/failed", "terraform/state"),
    "another account's folder": in_folder("111122223333", "999988887777"),
    "another region's folder": in_folder("eu-central-1", "eu-west-1"),
    "another fleet's folder": in_folder("/fulfilment/", "/billing/"),
    "a fleet that begins alike": in_folder("/fulfilment/", "/fulfilment-2/"),
    "another stream's folder": in_folder("/orders/", "/invoices/"),
    "another shard's folder": in_folder("shardId-000000000001", "shardId-000000000002"),
    "another day": in_folder("/2023/", "/2024/"),
    "another first record": in_folder("/100-7", "/99-7"),
    "another last record": in_folder("101-7.json", "102-7.json"),
    "up and down again": f"s3://{BUCKET}/{FOLDER}../{KEY.removeprefix('shardfleet/')}",
    "up, out of the folder": f"s3://{BUCKET}/{FOLDER}../../../../../salaries.csv",
    "up, into another bucket": f"s3://{BUCKET}/../{OTHER}/{KEY}",
    "up, encoded": f"s3://{BUCKET}/{FOLDER}%2e%2e/%2e%2e/salaries.csv",
    "encoded": f"s3://{BUCKET}/{KEY.replace('/', '%2F')}",
    "encoded twice": f"s3://{BUCKET}/{KEY.replace('/', '%252F')}",
    "two slashes": in_folder("shardfleet/failed", "shardfleet//failed"),
    "a slash before it": f"s3://{BUCKET}//{KEY}",
    "a version": f"s3://{BUCKET}/{KEY}?versionId=3HL4kqtJlcpXroDTDmJ",
    "a fragment": f"s3://{BUCKET}/{KEY}#x",
    "a line behind it": f"s3://{BUCKET}/{KEY}\n",
    "a space behind it": f"s3://{BUCKET}/{KEY} ",
    "capitals": in_folder("shardfleet", "ShardFleet"),
    "the scheme's capitals": f"S3://{BUCKET}/{KEY}",
    "Hadoop's scheme": f"s3a://{BUCKET}/{KEY}",
    "an ARN": f"arn:aws:s3:::{BUCKET}/{KEY}",
    "an access point": f"s3://arn:aws:s3:eu-central-1:999988887777:accesspoint/x/{KEY}",
    "an address": f"https://{BUCKET}.s3.amazonaws.com/{KEY}",
    "a bucket alone": f"s3://{BUCKET}",
    "no bucket": f"s3:///{KEY}",
    "a key alone": KEY,
    "a number": 5,
    "a list": [f"s3://{BUCKET}/{KEY}"],
}
MESSAGES = ("records elsewhere", "records in it, too", "through a topic")


class Objects:
    """S3, as it answers: conditions are kept (S3, GetObject and DeleteObject, If-Match)."""

    def __init__(self):
        self.bodies = {}

    def put(self, location, body):
        bucket, _, key = str(location).partition("://")[2].partition("/")
        self.bodies[bucket, key] = body.encode()

    def get_object(self, **asked):
        body = self._body("GetObject", asked)
        return {"Body": io.BytesIO(body), "ETag": etag(body)}

    def delete_object(self, **asked):
        self._body("DeleteObject", asked)
        del self.bodies[asked["Bucket"], asked["Key"]]

    def _body(self, operation, asked):
        body = self.bodies.get((asked["Bucket"], asked["Key"]))
        if body is None:
            raise ClientError({"Error": {"Code": "NoSuchKey"}}, operation)
        if asked.get("IfMatch", etag(body)) != etag(body):
            raise ClientError({"Error": {"Code": "PreconditionFailed"}}, operation)
        return body


def etag(body):
    return f'"{hashlib.md5(body, usedforsecurity=False).hexdigest()}"'


class Queue:
    """SQS with one consumer."""

    def __init__(self, *bodies):
        self.messages = {str(n): body for n, body in enumerate(bodies)}
        self.hidden = {}

    def receive_message(self, **_):
        found = [name for name in self.messages if not self.hidden.get(name)][:10]
        self.hidden |= dict.fromkeys(found, 900)
        messages = [
            {"MessageId": name, "ReceiptHandle": name, "Body": self.messages[name]}
            for name in found
        ]
        return {"Messages": messages} if messages else {}

    def change_message_visibility(self, **asked):
        self.hidden[asked["ReceiptHandle"]] = asked["VisibilityTimeout"]

    def delete_message(self, **asked):
        del self.messages[asked["ReceiptHandle"]]


def message(kind, location, letter=LETTER, **changes):
    document = invocation_record(letter, INVOCATION)
    document["KinesisBatchInfo"] |= changes
    document["shardfleet"]["payloadLocation"] = location
    if kind == "records elsewhere":
        del document["payload"]
    text = json.dumps(document)
    if kind == "through a topic":
        return json.dumps({"Type": "Notification", "Message": text})
    return text


def neighbour():
    document = invocation_record(failed(b"n"), INVOCATION)
    document["KinesisBatchInfo"]["shardId"] = NEIGHBOUR
    return json.dumps(document)


def stored(letter=LETTER):
    return json.dumps(invocation_record(letter, INVOCATION))


def redriven(queue, objects, *, meanwhile=lambda: None):
    """Redrive a queue with a handler that succeeds; return what was found, and what came of it."""
    handled = []

    async def handle(event):
        handled.append([each["kinesis"]["sequenceNumber"] for each in event["Records"]])
        meanwhile()
        return HandlerResult(done_count=len(event["Records"]))

    kept = KeptInQueue(URL, client=queue, objects=objects, own=OWN, pool=POOL)

    async def main():
        found = await kept.look()
        documents = [each for each in found if isinstance(each, GivenUp)]
        refused = [each for each in found if isinstance(each, RefusedDocument)]
        results = await redrive(documents, kept=kept, handle=handle, within_s=60)
        return SimpleNamespace(
            refused=refused, results={each.shard_id: each for each in results}, handled=handled
        )

    return run(main())


@pytest.mark.parametrize("kind", MESSAGES)
@pytest.mark.parametrize("place", PLACES)
def test_nothing_is_deleted_that_a_message_names_and_the_fleet_does_not_keep_there(place, kind):
    objects, queue = Objects(), Queue(message(kind, PLACES[place]), neighbour())
    for location in (*PLACES.values(), f"s3://{BUCKET}/{KEY}", f"s3://{OTHER}/salaries.csv"):
        objects.put(location, stored())
    before = dict(objects.bodies)

    came = redriven(queue, objects)

    assert objects.bodies == before
    assert set(queue.messages) == {"0"}
    assert came.results[NEIGHBOUR].records == 1
    shard = came.results["shardId-000000000001"]
    assert (shard.records, shard.left, shard.where) == (0, 1, f"{URL}#0")
    assert str(PLACES[place]) in shard.error
    assert came.handled == [["100"]]  # The neighbour's.


@pytest.mark.parametrize("kind", MESSAGES)
def test_what_was_read_from_the_fleets_own_place_is_deleted_there_and_alone(kind):
    objects, queue = Objects(), Queue(message(kind, f"s3://{BUCKET}/{KEY}"))
    for location in (*PLACES.values(), f"s3://{BUCKET}/{KEY}"):
        objects.put(location, stored())
    before = dict(objects.bodies)

    came = redriven(queue, objects)

    assert came.handled == [["100", "101"]]
    assert {place: body for place, body in before.items() if place not in objects.bodies} == {
        (BUCKET, KEY): stored().encode()
    }
    assert not queue.messages


CLAIMS = {
    "streamArn": "arn:aws:kinesis:eu-central-1:111122223333:stream/invoices",
    "shardId": "shardId-000000000002",
    "startSequenceNumber": "99",
    "endSequenceNumber": "102",
    "batchSize": 3,
    "approximateArrivalOfFirstRecord": "2023-11-14T22:13:20.124Z",
    "approximateArrivalOfLastRecord": "2023-11-14T22:13:21.000Z",
}


@pytest.mark.parametrize("kind", MESSAGES)
@pytest.mark.parametrize("claim", CLAIMS)
def test_an_object_that_is_not_what_the_message_says_is_left(claim, kind):
    """Where such records would be kept, there is an object of others."""
    changes = {claim: CLAIMS[claim]}
    (document,) = run(_looked(message(kind, "s3://x/y", **changes)))
    location = OWN.location_of(document)
    objects, queue = Objects(), Queue(message(kind, location, **changes), neighbour())
    objects.put(location, stored())
    before = dict(objects.bodies)

    came = redriven(queue, objects)

    assert objects.bodies == before
    assert set(queue.messages) == {"0"}
    assert "has other records than the message says" in came.results[document.shard_id].error
    assert came.results[NEIGHBOUR].records == 1


async def _looked(text):
    return await KeptInQueue(URL, client=Queue(text), objects=None, own=OWN, pool=POOL).look()


@pytest.mark.parametrize("kind", MESSAGES)
def test_an_object_that_is_another_when_it_is_deleted_is_left_and_told(kind):
    location = f"s3://{BUCKET}/{KEY}"
    objects, queue = Objects(), Queue(message(kind, location))
    objects.put(location, stored())

    came = redriven(queue, objects, meanwhile=lambda: objects.put(location, "another"))

    assert objects.bodies == {(BUCKET, KEY): b"another"}
    assert f"DeleteObject of {location}" in came.results["shardId-000000000001"].error
    assert "is another than was read, and is left" in came.results["shardId-000000000001"].error


def test_two_messages_that_name_the_same_object_are_both_handled_before_it_is_deleted():
    """SendMessage whose answer was lost is repeated, and is there twice."""
    location = f"s3://{BUCKET}/{KEY}"
    queue = Queue(*[message("records elsewhere", location)] * 2)
    objects = Objects()
    objects.put(location, stored())

    came = redriven(queue, objects)

    assert came.handled == [["100", "101"]] * 2
    assert not queue.messages
    assert not objects.bodies


def test_of_an_object_that_is_gone_a_topics_message_has_the_records_and_goes_alone():
    objects, queue = Objects(), Queue(message("through a topic", f"s3://{BUCKET}/{KEY}"))
    came = redriven(queue, objects)
    assert came.handled == [["100", "101"]]
    assert not queue.messages

    queue = Queue(message("records elsewhere", f"s3://{BUCKET}/{KEY}"))
    came = redriven(queue, objects)
    assert "GetObject" in came.results["shardId-000000000001"].error
    assert set(queue.messages) == {"0"}


def test_a_fleet_without_a_bucket_reads_no_place_that_a_message_names():
    own = FailedBucket(bucket="", folder=FOLDER)
    (document,) = run(_looked(message("records elsewhere", f"s3:///{KEY}")))
    assert "it has none" in own.refusal_of(document)


def test_an_answer_without_an_etag_deletes_nothing():
    """GetObject need not name one (its model requires no member)."""
    location = f"s3://{BUCKET}/{KEY}"
    objects, queue = Objects(), Queue(message("records elsewhere", location))
    objects.put(location, stored())
    answer = objects.get_object
    objects.get_object = lambda **asked: {"Body": answer(**asked)["Body"]}
    came = redriven(queue, objects)
    assert "named no ETag" in came.results["shardId-000000000001"].error
    assert (BUCKET, KEY) in objects.bodies


def region_of(s3):
    region = s3.meta.region_name
    return (
        {}
        if region == "us-east-1"
        else {"CreateBucketConfiguration": {"LocationConstraint": region}}
    )


@pytest.mark.parametrize("moment", ["shown", "taken"])
@pytest.mark.processes
def test_an_object_of_the_bucket_that_is_another_by_now_is_left(embedded_clients, moment):
    """By a service that keeps the conditions of GetObject and DeleteObject."""
    s3, bucket = embedded_clients.s3, f"failed-{moment}-{uuid.uuid4().hex[:8]}"
    s3.create_bucket(Bucket=bucket, **region_of(s3))
    s3.put_object(Bucket=bucket, Key=KEY, Body=stored())
    own = FailedBucket(bucket=bucket, folder=FOLDER)
    kept = KeptInBucket(f"s3://{bucket}/{FOLDER}", client=s3, own=own, pool=POOL)
    another = stored(failed(b"another", b"two"))

    def put():
        s3.put_object(Bucket=bucket, Key=KEY, Body=another)

    async def main():
        documents = await kept.look()
        if moment == "shown":
            put()

        async def handle(event):
            put()
            return HandlerResult(done_count=len(event["Records"]))

        return await redrive(documents, kept=kept, handle=handle, within_s=60)

    (result,) = run(main())
    assert result.left == 1
    assert "is another than was read, and is left" in result.error
    assert s3.get_object(Bucket=bucket, Key=KEY)["Body"].read() == another.encode()


@pytest.mark.processes
def test_more_records_from_the_same_first_one_on_are_kept_beside_and_stay(embedded_clients):
    """E5: the first three were kept, the worker died, and meanwhile all hundred are kept."""
    s3, bucket = embedded_clients.s3, f"failed-more-{uuid.uuid4().hex[:8]}"
    s3.create_bucket(Bucket=bucket, **region_of(s3))
    own = FailedBucket(bucket=bucket, folder=FOLDER)
    kept = KeptInBucket(f"s3://{bucket}/{FOLDER}", client=s3, own=own, pool=POOL)
    letters = S3DeadLetters(bucket, client=s3, pool=POOL, invocation=INVOCATION)
    all_of_them = failed(*(b"%d" % n for n in range(100)))
    some = replace(all_of_them, records=all_of_them.records[:3])
    handled = []

    async def main():
        await letters.record(some)

        async def handle(event):
            await letters.record(all_of_them)
            handled.append(len(event["Records"]))
            return HandlerResult(done_count=len(event["Records"]))

        return [
            await redrive(await kept.look(), kept=kept, handle=handle, within_s=60)
            for _ in range(2)
        ]

    assert [each.records for results in run(main()) for each in results] == handled == [3, 100]
    assert s3.list_objects_v2(Bucket=bucket)["KeyCount"] == 0


@pytest.mark.parametrize(
    ("is_there", "etag", "code"),
    [
        (True, "own", None),
        (True, "*", None),
        (True, '"0123456789abcdef0123456789abcdef"', "PreconditionFailed"),
        (False, "*", "NoSuchKey"),
        (False, '"0123456789abcdef0123456789abcdef"', "NoSuchKey"),
    ],
)
@pytest.mark.processes
def test_the_embedded_s3_answers_a_conditional_delete_as_s3(embedded_clients, is_there, etag, code):
    """S3 user guide, "How to perform conditional deletes"; botocore's DeleteObject, IfMatch."""
    s3, bucket = embedded_clients.s3, f"conditional-{uuid.uuid4().hex[:8]}"
    s3.create_bucket(Bucket=bucket, **region_of(s3))
    asked = {"Bucket": bucket, "Key": "k"}
    if is_there:
        put = s3.put_object(**asked, Body=b"x")
        etag = put["ETag"] if etag == "own" else etag
    if code is None:
        s3.delete_object(**asked, IfMatch=etag)
    else:
        with pytest.raises(ClientError) as refused:
            s3.delete_object(**asked, IfMatch=etag)
        assert refused.value.response["Error"]["Code"] == code
    left = s3.list_objects_v2(Bucket=bucket)["KeyCount"]
    assert left == (1 if code and is_there else 0)


FLEETS = {
    "shardfleet/failed/": {"fulfilment"},
    "shardfleet/failed/111122223333/eu-central-1/ful": {"fulfilment"},
    "shardfleet/failed/111122223333/eu-central-1/fulfilment/": {"fulfilment"},
    "shardfleet/failed/111122223333/eu-central-1/fulfilment-2/": {"fulfilment-2"},
    "": {"fulfilment"},
}


@pytest.mark.parametrize("prefix", FLEETS)
def test_another_fleets_objects_are_taken_only_where_its_folder_is_named(moto_clients, prefix):
    s3, bucket = moto_clients.s3, f"failed-{uuid.uuid4().hex[:8]}"
    s3.create_bucket(Bucket=bucket, **region_of(s3))
    for fleet in ("fulfilment", "fulfilment-2"):
        key = KEY.replace("/fulfilment/", f"/{fleet}/")
        s3.put_object(Bucket=bucket, Key=key, Body=stored())
    own = FailedBucket(bucket=bucket, folder=FOLDER)
    kept = KeptInBucket(f"s3://{bucket}/{prefix}", client=s3, own=own, pool=POOL)
    taken = [each.where for each in run(kept.look()) if isinstance(each, GivenUp)]
    assert {where.split("/")[7] for where in taken} == FLEETS[prefix]
