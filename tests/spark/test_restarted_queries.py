"""Real Spark queries that are started again: without their seal store, and from a copy."""

import shutil
from itertools import product

import pytest

from shardfleet_spark.pipelines.patience import start_patiently
from tests.spark.kept import Kept
from tests.spark.test_replays import LIMIT_S
from tests.spark.test_stream_source import MANY_BATCHES, put, run_available

pytestmark = pytest.mark.processes


def numbered(first, last):
    return [(f"key-{n}", b"%d" % n) for n in range(first, last)]


def read(kept):
    return sorted(int(bytes(row["data"])) for row in kept.rows())


def run_to_its_end(frame, checkpoint, trigger, kept):
    """Run a query with a trigger by which it ends; in the second kind of them in many batches."""
    writer = frame.writeStream.foreachBatch(kept.keep)
    writer = writer.option("checkpointLocation", str(checkpoint)).trigger(**trigger)
    query = start_patiently(writer.start)
    try:
        if "processingTime" in trigger:
            query.processAllAvailable()
        else:
            assert query.awaitTermination(LIMIT_S), "the query did not end"
    finally:
        query.stop()


TRIGGERS = [{"availableNow": True}, {"once": True}, {"processingTime": "200 milliseconds"}]


@pytest.mark.parametrize(
    ("is_committed", "trigger"),
    [*product([True, False], TRIGGERS)],
    ids=lambda each: str(each) if isinstance(each, bool) else next(iter(each)),
)
def test_a_query_that_leaves_out_its_seal_store_is_refused_and_goes_on_with_it(
    embedded_aws, make_stream, source, tmp_path, is_committed, trigger
):
    stream = make_stream(shards=2)
    options = {"startingPosition": "TRIM_HORIZON"}
    store = {"sealStore": f"file:{tmp_path}/seals"}
    put(embedded_aws, stream, numbered(0, 100))
    kept = Kept(tmp_path / "kept")
    run_available(source(stream, **options, **store).load(), tmp_path / "c", into=kept)
    if not is_committed:
        last = max(map(int, (each.name for each in (tmp_path / "c/commits").glob("[0-9]*"))))
        (tmp_path / f"c/commits/{last}").unlink()
    put(embedded_aws, stream, numbered(100, 110))

    with pytest.raises(Exception, match="set option sealStore to the same store"):
        run_to_its_end(source(stream, **options).load(), tmp_path / "c", trigger, kept)
    assert read(kept) == list(range(100))

    run_to_its_end(source(stream, **options, **store).load(), tmp_path / "c", trigger, kept)
    if trigger == {"once": True} and not is_committed:  # Once, and that was the repeated batch.
        run_to_its_end(source(stream, **options, **store).load(), tmp_path / "c", trigger, kept)
    assert read(kept) == list(range(110))


@pytest.mark.skipif(not MANY_BATCHES, reason="AvailableNow of many batches came with Spark 4.2")
def test_a_copy_that_runs_on_the_same_store_does_not_stop_the_query(
    embedded_aws, make_stream, source, tmp_path
):
    stream = make_stream()
    options = {"startingPosition": "TRIM_HORIZON", "sealStore": f"file:{tmp_path}/seals"}
    options |= {"sealsRetained": "2", "maxRecordsPerBatch": "10"}
    put(embedded_aws, stream, numbered(0, 30))
    kept, of_copy = Kept(tmp_path / "kept"), Kept(tmp_path / "of-copy")
    run_available(source(stream, **options).load(), tmp_path / "c", into=kept)
    shutil.copytree(tmp_path / "c", tmp_path / "copy")
    put(embedded_aws, stream, numbered(30, 90))

    run_available(source(stream, **options).load(), tmp_path / "copy", into=of_copy)
    run_available(source(stream, **options).load(), tmp_path / "c", into=kept)

    assert read(of_copy) == list(range(30, 90))
    assert read(kept) == list(range(90))
