"""A page is read exactly or not at all: in JSON, in CBOR, and asked for by botocore's client."""

import json

import botocore.session
import cbor2
import pytest

from shardfleet.adapters.clients.aws_clients import AwsClients
from shardfleet.adapters.kinesis.decode import decode_page
from shardfleet.adapters.kinesis.polling import PageSource
from shardfleet.adapters.sdk_errors import UnreadableAnswer
from shardfleet.errors import Throttled
from shardfleet_spark.aws.columns import FEWEST, decode_columns
from tests.adapters.loopback import Service, serving
from tests.adapters.tables import LIMITS

NAN = float("nan")
INFINITE = float("inf")
CHILD = {
    "ShardId": "shardId-000000000001",
    "ParentShards": ["shardId-000000000000"],
    "HashKeyRange": {"StartingHashKey": "0", "EndingHashKey": "9"},
}
RECORD = {
    "SequenceNumber": "4950",
    "ApproximateArrivalTimestamp": 1_700_000_000,
    "Data": "QUJD",
    "PartitionKey": "k",
    "EncryptionType": "KMS",
}
PAGE = {"Records": [RECORD], "NextShardIterator": "AAA", "MillisBehindLatest": 7}


def keys(**ends):
    return CHILD | {"HashKeyRange": CHILD["HashKeyRange"] | ends}


# By the model (kinesis GetRecordsOutput, Record, ChildShard, HashKeyRange): what a member is not.
OF_A_PAGE = {
    "Records": [None, {}, "text", 1, [None], [1], ["text"], [[]], True],
    "NextShardIterator": [1, 1.5, True, [], {}],
    "MillisBehindLatest": [NAN, INFINITE, -INFINITE, -1, 1.5, 7.0, "7", "NaN", True, [], {}],
    "ChildShards": [
        *({}, "text", 1, [None], [1], ["text"], [{}]),
        *([{name: value for name, value in CHILD.items() if name != each}] for each in CHILD),
        *([CHILD | {"ShardId": each}] for each in (None, 1, [])),
        *([CHILD | {"ParentShards": each}] for each in (None, 1, "text", [1], [None])),
        *([CHILD | {"HashKeyRange": each}] for each in (None, 1, "text", {})),
        *(
            [keys(StartingHashKey=each)]
            for each in (None, 0, "", "x", "-1", "+1", " 1", "1_0", "01", "1.0", "٣", "1" * 40)
        ),
        *([keys(EndingHashKey=each)] for each in (None, 9, "x", "9 ")),
    ],
}
OF_A_RECORD = {
    "SequenceNumber": [None, 1, 1.5, True, [], {}],
    "PartitionKey": [None, 1, True, [], {}],
    "Data": [
        *(None, 1, True, [], {}, "!!!!", "QUJ", "QUJD!", "QU JD", "QUJD\n", "Q=JD", "QUJDQQ==QUJD"),
        *("=", "QQ=", "QQ===", "QUJDé", "Q-J_"),
    ],
    "ApproximateArrivalTimestamp": [
        *(NAN, INFINITE, -INFINITE, True, [], {}, "", "NaN", "noon", "May", "10:30", 1e300),
        *(253_402_300_800 * 1_000, -(10**18)),
    ],
    "EncryptionType": [1, True, [], {}],
}
MALFORMED = [
    *(pytest.param(PAGE | {n: v}, id=f"{n}={v}") for n, all_ in OF_A_PAGE.items() for v in all_),
    *(
        pytest.param(PAGE | {"Records": [RECORD | {n: v}]}, id=f"{n}={v}")
        for n, all_ in OF_A_RECORD.items()
        for v in all_
    ),
    *(
        pytest.param(
            PAGE | {"Records": [{n: v for n, v in RECORD.items() if n != each}]}, id=f"no {each}"
        )
        for each in ("SequenceNumber", "PartitionKey", "Data")
    ),
]
# What is odd and says the same all the same.
ODD = [
    ({"MillisBehindLatest": None}, {}),
    ({"NextShardIterator": None}, {}),
    ({"ChildShards": None}, {}),
    ({"ChildShards": []}, {}),
    ({"Member": "of tomorrow"}, {"Member": NAN}),
    ({}, {"ApproximateArrivalTimestamp": None}),
    ({}, {"ApproximateArrivalTimestamp": "2023-11-14T22:13:20Z"}),
    ({}, {"ApproximateArrivalTimestamp": "1700000000"}),
    ({}, {"EncryptionType": None}),
]


def refuses(decode, body):
    with pytest.raises(UnreadableAnswer, match="GetRecords: the answer cannot be read"):
        decode(body)


def written(page, *, large):
    """Write JSON; with data so long that it is cut out, if there is a record that has data."""
    text = json.dumps(page, separators=(",", ":"))
    return text.replace('"QUJD"', f'"{"QUJD" * 600}"').encode() if large else text.encode()


@pytest.mark.parametrize("large", [False, True])
@pytest.mark.parametrize("page", MALFORMED)
def test_a_malformed_member_makes_a_page_in_json_unreadable(page, large):
    refuses(decode_page, written(page, large=large))
    before = json.loads(written(PAGE, large=True))["Records"]
    if isinstance(page["Records"], list) and page["Records"]:
        among = page | {"Records": [*before, *page["Records"], *before]}
        refuses(decode_page, written(among, large=large))


def in_cbor(page):
    """Return a page with data as bytes and times in milliseconds, as far as they are any."""

    def record(each):
        if not isinstance(each, dict):
            return each
        data, at = each.get("Data"), each.get("ApproximateArrivalTimestamp")
        made = dict(each)
        if data == "QUJD":
            made["Data"] = b"ABC"
        if type(at) is int and abs(at) < 10**15:
            made["ApproximateArrivalTimestamp"] = at * 1_000
        return made

    records = page["Records"]
    return page | {"Records": [*map(record, records)] if isinstance(records, list) else records}


@pytest.mark.parametrize("number", [1, FEWEST + 3])
@pytest.mark.parametrize("page", MALFORMED)
def test_a_malformed_member_makes_a_page_in_cbor_unreadable(page, number):
    page = in_cbor(page)
    if isinstance(page["Records"], list):
        page = page | {"Records": page["Records"] * number}
    refuses(decode_columns, cbor2.dumps(page))


@pytest.mark.parametrize("page", MALFORMED)
def test_a_malformed_member_makes_the_client_s_answer_unreadable(client, page):
    service, source = client
    service.answers = [(200, written(page, large=False))]
    with pytest.raises(Throttled, match="the answer cannot be read"):
        source.page("AAA", shard_id="shardId-0", limit=1)


@pytest.fixture(scope="module")
def client():
    service = Service()
    with pytest.MonkeyPatch.context() as patch, serving(service) as endpoint:
        patch.setenv("AWS_ENDPOINT_URL", endpoint)
        records = AwsClients(LIMITS, stream_region="eu-central-1").stream_records
        yield service, PageSource("arn:aws:kinesis:eu-central-1:1:stream/s", records=records)


@pytest.mark.parametrize(("of_page", "of_record"), ODD, ids=str)
def test_what_is_odd_and_says_the_same_is_read(client, of_page, of_record):
    body = written(PAGE | of_page | {"Records": [RECORD | of_record]}, large=False)
    service, source = client
    service.answers = [(200, body)]
    for page in (decode_page(body), source.page("AAA", shard_id="shardId-0", limit=1)):
        (record,) = page.records
        assert record.data == b"ABC"
        assert record.approximate_arrival_ms in (0, 1_700_000_000_000)
        assert page.millis_behind_latest in (7, None)


def test_every_member_of_the_model_is_in_the_table():
    model = botocore.session.get_session().get_service_model("kinesis")
    assert OF_A_PAGE.keys() == model.operation_model("GetRecords").output_shape.members.keys()
    assert OF_A_RECORD.keys() == model.shape_for("Record").members.keys()
    assert CHILD.keys() == model.shape_for("ChildShard").members.keys()
