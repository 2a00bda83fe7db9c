"""The example that buffers to S3, deployed: whole files, and a checkpoint behind each."""

from pathlib import Path

import pytest

from tests.end_to_end.cloud import deployed, wait_until

pytestmark = pytest.mark.processes

EXAMPLE = Path(__file__).resolve().parents[2] / "functions/examples/buffer_to_s3"
BUCKET = "clicks-buffered"
CLICKS, IN_A_FILE = 60, 25


@pytest.fixture(scope="module")
def buffering(tmp_path_factory):
    """One shard; the worker's role is the stack's own, which knows no bucket."""
    with deployed(
        tmp_path_factory.mktemp("buffering"),
        handler=EXAMPLE,
        function="handler:Buffer",
        environment={"BUFFER_BUCKET": BUCKET},
        config={
            "checkpoint": "manual",
            "max_open_records": IN_A_FILE,
            "max_open_age_ms": 5_000,
            "max_attempts": 0,
            "max_workers": 1,
        },
        enforce_iam=False,
    ) as fleet:
        fleet.client("s3").create_bucket(Bucket=BUCKET, **in_region(fleet))
        yield fleet


def in_region(fleet):
    """Return where the bucket is to be: us-east-1 is named by saying nothing."""
    region = fleet.outputs["StateMachineArn"].split(":")[3]
    is_first = region == "us-east-1"
    return {} if is_first else {"CreateBucketConfiguration": {"LocationConstraint": region}}


def files_of(fleet):
    s3 = fleet.client("s3")
    pages = s3.get_paginator("list_objects_v2").paginate(Bucket=BUCKET)
    names = sorted(each["Key"] for page in pages for each in page.get("Contents", ()))
    return {
        name: [int(n) for n in s3.get_object(Bucket=BUCKET, Key=name)["Body"].read().split()]
        for name in names
    }


def test_what_is_put_is_in_files_without_gaps_and_checkpointed(buffering):
    kinesis = buffering.client("kinesis")
    stream = buffering.outputs["StreamName"]
    numbers = [
        kinesis.put_record(StreamName=stream, PartitionKey="k", Data=str(n).encode())[
            "SequenceNumber"
        ]
        for n in range(CLICKS)
    ]

    wait_until(
        lambda: {lease["checkpoint"] for lease in buffering.leases().values()} == {numbers[-1]},
        what="the last click's checkpoint",
        within_s=120,
        fleet=buffering,
    )
    files = files_of(buffering)
    assert [n for file in files.values() for n in file] == list(range(CLICKS))
    assert max(map(len, files.values())) == IN_A_FILE
    first, last = next(iter(files)).partition("/")[2].split("-")
    assert first == f"{numbers[0]:0>56}.000000"
    assert last == f"{numbers[len(next(iter(files.values()))) - 1]:0>56}.000000"
