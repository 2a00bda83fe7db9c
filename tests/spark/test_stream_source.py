"""The streaming source on real Spark, against the embedded AWS."""

import pytest

pytestmark = pytest.mark.processes

STOP_LIMIT_S = 300


def put(aws, stream, records):
    client = aws.client("kinesis")
    for first in range(0, len(records), 500):
        answer = client.put_records(
            StreamName=stream,
            Records=[
                {"Data": data, "PartitionKey": key} for key, data in records[first : first + 500]
            ],
        )
        assert answer["FailedRecordCount"] == 0


def run_available(frame, checkpoint, *, into):
    """Run a query to the end of what is there; `into` gets (batch id, rows) of each batch."""

    def keep(batch, batch_id):
        into.append((batch_id, batch.collect()))

    query = (
        frame.writeStream.foreachBatch(keep)
        .option("checkpointLocation", str(checkpoint))
        .trigger(availableNow=True)
        .start()
    )
    try:
        assert query.awaitTermination(STOP_LIMIT_S), "the query did not end"
    finally:
        query.stop()
    return query


@pytest.mark.parametrize("store", ["seals", "driver"])
def test_everything_that_is_there_arrives_once_and_in_order(
    embedded_aws, make_stream, source, tmp_path, store
):
    stream = make_stream(shards=2)
    records = [(f"key-{n % 7}", b"%d" % n) for n in range(1_000)]
    put(embedded_aws, stream, records[:600])
    options = {"startingPosition": "TRIM_HORIZON", "maxRecordsPerBatch": "250"}
    if store == "seals":
        options["sealStore"] = f"file:{tmp_path}/seals"
    batches = []

    run_available(source(stream, **options).load(), tmp_path / "checkpoint", into=batches)
    put(embedded_aws, stream, records[600:])
    run_available(source(stream, **options).load(), tmp_path / "checkpoint", into=batches)

    rows = [row for _, each in sorted(batches) for row in each]
    for key in {key for key, _ in records}:
        expected = [data for each, data in records if each == key]
        assert [bytes(row["data"]) for row in rows if row["partition_key"] == key] == expected
    assert len(rows) == len(records)
    assert {row["stream"] for row in rows} == {stream}
    assert len(batches) > 3
