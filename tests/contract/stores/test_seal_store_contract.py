"""One contract for every seal store: memory, a folder, DynamoDB of each place, S3 of one."""

import threading
import uuid

import pytest

from shardfleet.adapters.system import SystemClock
from shardfleet.errors import ConfigurationError
from shardfleet_spark.aws.seal_stores import (
    BODY,
    EXPIRES,
    ITEM,
    SID,
    DynamoDBSealStore,
    S3SealStore,
)
from shardfleet_spark.offsets.file_seals import FileSealStore
from shardfleet_spark.offsets.seals import (
    MARK,
    SealKey,
    executed_seals,
    in_groups,
    seal_to_bytes,
)
from tests.adapters.loopback import doubted
from tests.contract.stores.conftest import PLACES, SERVERS
from tests.spark.many_seals import busy_seal
from tests.spark.memory_seals import MemorySealStore

PLANS = ["0000000001-aa", "0000000002-bb", "0000000010-cc"]


def make_table(aws):
    name = f"seals-{uuid.uuid4().hex[:8]}"
    aws.client("dynamodb").create_table(
        TableName=name,
        KeySchema=[
            {"AttributeName": SID, "KeyType": "HASH"},
            {"AttributeName": ITEM, "KeyType": "RANGE"},
        ],
        AttributeDefinitions=[
            {"AttributeName": SID, "AttributeType": "S"},
            {"AttributeName": ITEM, "AttributeType": "S"},
        ],
        BillingMode="PAY_PER_REQUEST",
    )
    return name


def make_bucket(aws):
    name = f"seals-{uuid.uuid4().hex[:8]}"
    aws.client("s3").create_bucket(Bucket=name)
    return name


@pytest.fixture(params=["memory", "file", "s3", *PLACES])
def store(request, tmp_path):
    if request.param == "memory":
        return MemorySealStore()
    if request.param == "file":
        return FileSealStore(tmp_path / "seals")
    aws = request.getfixturevalue(SERVERS.get(request.param, "embedded_aws"))
    if request.param == "s3":
        return S3SealStore(aws.client("s3"), bucket=make_bucket(aws), prefix="a/b/")
    return DynamoDBSealStore(aws.client("dynamodb"), table=make_table(aws), clock=SystemClock())


def test_nothing_is_stored_at_first(store):
    assert store.get(SealKey("sid", PLANS[0], 0)) is None
    assert store.read_plan("sid", PLANS[0]) == {}


def test_the_first_writer_wins_and_the_next_is_told_what_stands(store):
    key = SealKey("sid", PLANS[0], 3)

    assert store.put_if_absent(key, b"first") == b"first"
    assert store.put_if_absent(key, b"second") == b"first"
    assert store.get(key) == b"first"


def test_of_many_writers_at_once_exactly_one_wins(store):
    key, found = SealKey("sid", PLANS[0], 0), []
    start = threading.Barrier(6)

    def write(number):
        start.wait()
        found.append(store.put_if_absent(key, b"writer %d" % number))

    writers = [threading.Thread(target=write, args=(number,)) for number in range(6)]
    for writer in writers:
        writer.start()
    for writer in writers:
        writer.join()

    assert len(found) == 6
    assert len(set(found)) == 1
    assert store.get(key) == found[0]


def test_a_plan_is_read_whole_and_alone(store):
    for plan in PLANS:
        for partition in (0, 11, MARK):
            body = f"{plan} {partition}".encode()
            store.put_if_absent(SealKey("sid", plan, partition), body)
    store.put_if_absent(SealKey("other", PLANS[0], 0), b"of another query")

    assert store.read_plan("sid", PLANS[1]) == {
        0: b"0000000002-bb 0",
        11: b"0000000002-bb 11",
        MARK: b"0000000002-bb %d" % MARK,
    }


def test_a_plan_larger_than_a_page_is_read_whole(store):
    """A page of DynamoDB has at most 1 MB, a listing of S3 1,000 keys."""
    bodies = {number: b"%d" % number * 390_000 for number in range(4)}
    for number, body in bodies.items():
        store.put_if_absent(SealKey("sid", PLANS[0], number), body)
    assert store.read_plan("sid", PLANS[0]) == bodies


def test_what_is_named_is_deleted_and_nothing_beside_it(store):
    numbers = (0, 1, MARK)
    keys = [SealKey(s, p, n) for s in ("sid", "other") for p in PLANS for n in numbers]
    for key in keys:
        store.put_if_absent(key, b"x")
    old = [SealKey("sid", PLANS[0], 0), SealKey("sid", PLANS[0], MARK)]
    old += [SealKey("sid", PLANS[1], n) for n in numbers]

    store.delete(old)
    store.delete([*old, SealKey("sid", PLANS[1], 7)])  # Again, and one that never was.

    assert [key for key in keys if store.get(key) is None] == old
    assert store.read_plan("sid", PLANS[0]) == {1: b"x"}
    assert store.read_plan("sid", PLANS[1]) == {}


def test_many_seals_are_deleted(store):
    keys = [SealKey("sid", f"{number:010d}-x", 0) for number in range(60)]
    for key in keys:
        store.put_if_absent(key, b"x")

    store.delete(keys[:59])

    assert [bool(store.get(key)) for key in keys] == [False] * 59 + [True]


def test_a_missing_table_or_bucket_is_named(embedded_aws):
    key = SealKey("sid", PLANS[0], 0)

    with doubted(ConfigurationError, match=r"no-such-table.*partition key sid"):
        DynamoDBSealStore(
            embedded_aws.client("dynamodb"), table="no-such-table", clock=SystemClock()
        ).get(key)
    with doubted(ConfigurationError, match="no-such-bucket"):
        S3SealStore(embedded_aws.client("s3"), bucket="no-such-bucket", prefix="").put_if_absent(
            key, b"x"
        )


def test_a_seal_has_a_time_to_live_beyond_any_retention(embedded_aws):
    client, table = embedded_aws.client("dynamodb"), make_table(embedded_aws)
    clock = SystemClock()

    DynamoDBSealStore(client, table=table, clock=clock).put_if_absent(
        SealKey("sid", PLANS[0], 0), b"seal"
    )

    (item,) = client.scan(TableName=table)["Items"]
    assert item.keys() == {SID, ITEM, BODY, EXPIRES}
    # TTL wants seconds; Kinesis retains records for 8,760 hours at most.
    left_s = int(item[EXPIRES]["N"]) - clock.now_ms() // 1_000
    assert 8_760 * 3_600 < left_s < 2 * 8_760 * 3_600


def test_the_seals_of_5000_shards_fit_into_items(embedded_aws):
    client = embedded_aws.client("dynamodb")
    store = DynamoDBSealStore(client, table=make_table(embedded_aws), clock=SystemClock())
    groups = in_groups(range(5_000))

    for number, group in enumerate(groups):
        body = seal_to_bytes(busy_seal(group))
        assert store.put_if_absent(SealKey("sid", PLANS[0], number), body) == body

    found, is_whole = executed_seals(store.read_plan("sid", PLANS[0]), seals=len(groups))
    assert is_whole
    assert sum(len(seal.shards) for seal in found.values()) == 5_000
    assert all(shard.iterator for seal in found.values() for shard in seal.shards)
