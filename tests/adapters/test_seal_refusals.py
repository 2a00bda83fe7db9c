"""What S3 and DynamoDB answer beside yes and no, and what the seal stores make of it."""

from types import SimpleNamespace

import boto3
import pytest
from botocore.stub import Stubber

from shardfleet.errors import ConfigurationError, Throttled, Unsettled
from shardfleet_spark.aws.seal_stores import DynamoDBSealStore, S3SealStore
from shardfleet_testkit.clock import VirtualClock
from tests.adapters.loopback import doubted

KEY = SimpleNamespace(sid="sid", plan="0000000002-bb", partition=3)
NAME = "a/sid/0000000002-bb/00000003"


@pytest.fixture
def s3():
    """A store, and what its client is to answer, in order; the whole of it must be asked for."""
    client = boto3.client("s3")
    with Stubber(client) as answers:
        yield S3SealStore(client, bucket="seals", prefix="a"), answers
        answers.assert_no_pending_responses()


@pytest.fixture
def dynamodb():
    client = boto3.client("dynamodb")
    with Stubber(client) as answers:
        yield DynamoDBSealStore(client, table="seals", clock=VirtualClock()), answers
        answers.assert_no_pending_responses()


def old(count):
    return [SimpleNamespace(sid="sid", plan="0000000001-aa", partition=n) for n in range(count)]


def name_of(key):
    return f"a/sid/0000000001-aa/{key.partition:08d}"


@pytest.mark.parametrize(
    ("code", "error", "words"),
    [
        ("InternalError", Throttled, "2 of 1500 .*InternalError"),
        ("SlowDown", Throttled, "2 of 1500 .*SlowDown"),
        ("AccessDenied", Unsettled, "2 of 1500 .*AccessDenied.*s3:DeleteObject"),
    ],
)
def test_what_s3_says_it_could_not_delete_does_not_count_as_deleted(s3, code, error, words):
    """DeleteObjects answers 200 whatever becomes of the keys; in quiet mode it lists failures."""
    store, answers = s3
    keys = old(1_500)
    kept = [{"Key": name_of(each), "Code": code, "Message": "We"} for each in keys[7:9]]
    answers.add_response("delete_objects", {"Errors": kept})
    answers.add_response("delete_objects", {})  # The others are not left for it.
    with pytest.raises(error, match=words):
        store.delete(keys)


def test_s3_is_asked_to_delete_what_is_named_and_lists_nothing(s3):
    store, answers = s3
    objects = [{"Key": name_of(each)} for each in old(3)]
    asked = {"Bucket": "seals", "Delete": {"Objects": objects, "Quiet": True}}
    answers.add_response("delete_objects", {}, asked)
    store.delete(old(3))


def test_what_a_batch_left_unprocessed_does_not_count_as_deleted(dynamodb):
    """BatchWriteItem answers 200 and returns what it did not do."""
    store, answers = dynamodb
    item = {"sid": {"S": "sid"}, "item": {"S": "0000000001-aa/00000000"}}
    unprocessed = {"seals": [{"DeleteRequest": {"Key": item}}]}
    answers.add_response("batch_write_item", {"UnprocessedItems": unprocessed})
    answers.add_response("batch_write_item", {"UnprocessedItems": {}})
    with pytest.raises(Throttled, match="1 of 30"):
        store.delete(old(30))


def test_a_conflict_with_another_put_says_nothing_of_who_won(s3):
    """PutObject: 409 ConditionalRequestConflict, and nothing was stored by this put."""
    store, answers = s3
    answers.add_client_error("put_object", "ConditionalRequestConflict", http_status_code=409)
    with pytest.raises(Throttled, match="ConditionalRequestConflict"):
        store.put_if_absent(KEY, b"x")


def test_a_seal_that_may_not_be_known_to_be_missing_is_looked_for_in_the_listing(s3):
    """
    GetObject: without s3:ListBucket a missing key is 403, Access Denied.

    With a right to list that names prefixes as a condition, too: GetObject has no prefix.
    """
    store, answers = s3
    answers.add_client_error("get_object", "AccessDenied", http_status_code=403)
    asked = {"Bucket": "seals", "Prefix": NAME}
    answers.add_response("list_objects_v2", {"KeyCount": 0}, asked)
    assert store.get(KEY) is None


def test_a_seal_that_is_there_and_may_not_be_read_is_a_missing_right(s3):
    store, answers = s3
    answers.add_client_error("get_object", "AccessDenied", http_status_code=403)
    answers.add_response("list_objects_v2", {"Contents": [{"Key": NAME}]})
    with doubted(ConfigurationError, match=r"GetObject.*AccessDenied.*allow s3:GetObject"):
        store.get(KEY)


def test_where_neither_reading_nor_listing_is_allowed_a_person_must_act(s3):
    store, answers = s3
    answers.add_client_error("get_object", "AccessDenied", http_status_code=403)
    answers.add_client_error("list_objects_v2", "AccessDenied", http_status_code=403)
    with doubted(ConfigurationError, match=r"ListObjectsV2.*AccessDenied"):
        store.get(KEY)
