"""The contract of our own PutRecords and GetRecords in CBOR: taken, answered and refused."""

import botocore.session
import pytest
from botocore.config import Config
from botocore.exceptions import ClientError

from shardfleet.adapters.kinesis.wire import open_wire
from shardfleet.kpl.packing import OutgoingRecord
from shardfleet_spark.aws.columns import CBOR_PAGES, RecordColumns

pytestmark = pytest.mark.observed("AWS SDKs for Java, since 2016 (fact K100)")
ENTRIES = [
    OutgoingRecord("k", b""),
    OutgoingRecord("k", bytes(range(256))),
    OutgoingRecord("\u00e9\u20ac\U0001f600", b"x" * 70_000, str(2**128 - 1)),
]


@pytest.fixture
def wire_to(endpoint):
    """Return a function: our wire to a stream of an ARN at the endpoint."""
    _, url, key = endpoint
    session = botocore.session.get_session()
    if key:
        session.set_credentials(key["aws_access_key_id"], key["aws_secret_access_key"])
    once = Config(retries={"total_max_attempts": 1})
    client = session.create_client("kinesis", endpoint_url=url, config=once)
    opened = []

    def open_to(arn, **settings):
        opened.append(open_wire(arn, client=client, session=session, **settings))
        return opened[-1]

    yield open_to
    for wire in opened:
        wire.close()


def test_a_body_in_cbor_is_taken_and_answered(stream, wire_to):
    stream.create(1)
    outcomes = wire_to(stream.arn).put_records(ENTRIES)
    (shard,) = stream.shards()
    assert {each.shard_id for each in outcomes} == {shard["ShardId"]}
    found = stream.get(shard["ShardId"])["Records"]
    assert [(each["PartitionKey"], each["Data"]) for each in found] == [
        (entry.partition_key, entry.data) for entry in ENTRIES
    ]
    assert [each["SequenceNumber"] for each in found] == [each.sequence_number for each in outcomes]


@pytest.mark.parametrize("number", [1, 500])
def test_every_entry_has_its_outcome(stream, wire_to, number):
    stream.create(2)
    outcomes = wire_to(stream.arn).put_records([OutgoingRecord(str(n), b"") for n in range(number)])
    assert len(outcomes) == number
    assert all(each.shard_id and each.sequence_number for each in outcomes)


def test_a_refusal_says_why(stream, wire_to):
    stream.create(1)
    wire = wire_to(stream.arn.replace(stream.name, "no-such-stream"))
    with pytest.raises(ClientError, match=r"\(ResourceNotFoundException\)"):
        wire.put_records(ENTRIES)


@pytest.mark.parametrize("number", [0, 1, 200])
def test_a_page_in_cbor_is_the_page_in_json(stream, wire_to, endpoint, number):
    name, *_ = endpoint
    stream.create(1)
    entries = [OutgoingRecord(f"k\u00e9-{n}", bytes([n]) * (7 * n)) for n in range(number)]
    in_json, in_cbor = wire_to(stream.arn), wire_to(stream.arn, long_pages=CBOR_PAGES)
    if entries:
        in_json.put_records(entries)
    (shard,) = stream.shards()
    pages = [
        wire.get_records(stream.iterator(shard["ShardId"]), limit=1_000)
        for wire in (in_json, in_cbor)
    ]
    first, second = ([*page.records] for page in pages)
    assert first == second
    assert [each.data for each in second] == [each.data for each in entries]
    assert pages[0].millis_behind_latest == pages[1].millis_behind_latest == 0
    assert pages[1].resume_token
    # kinesis-local sends data in base64, as text, also in CBOR.
    may_be_columns = number == 200 and name != "kinesis-local"
    assert isinstance(pages[1].records, RecordColumns) == may_be_columns
