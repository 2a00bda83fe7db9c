"""A stream as a view: read and written by SQL."""

import pytest

from tests.spark.test_stream_source import put

pytestmark = pytest.mark.processes


def test_a_stream_is_read_and_written_by_sql(spark, embedded_aws, make_stream):
    stream = make_stream(shards=2)
    put(embedded_aws, stream, [("key", b"%d" % number) for number in range(9)])
    options = {
        "stream": stream,
        "endpoint": embedded_aws.endpoint_url,
        "region": embedded_aws.region,
        "columns": "data, partition_key",
    }
    listed = ", ".join(f"`{name}` '{value}'" for name, value in options.items())
    spark.sql(f"CREATE TEMPORARY VIEW clicks USING shardfleet OPTIONS ({listed})")
    try:
        spark.sql(
            "INSERT INTO clicks SELECT CAST(CONCAT('sql-', id) AS BINARY), 'other' FROM RANGE(3)"
        )
        counted = spark.sql("SELECT partition_key, COUNT(*) FROM clicks GROUP BY 1 ORDER BY 1")
        assert [tuple(row) for row in counted.collect()] == [("key", 9), ("other", 3)]
    finally:
        spark.catalog.dropTempView("clicks")
