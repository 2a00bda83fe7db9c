"""
A canary in keys and payloads is in nothing that a failing query says, logs or keeps.

As in `tests/canary`, on real Spark. What is the reader's own data holds it by design: the rows, and
of these the column that says what is wrong with a bad payload.
"""

import http.client
import json
from contextlib import redirect_stdout
from io import StringIO
from pathlib import Path
from urllib.parse import urlsplit

import pytest

from shardfleet.kpl.packing import OutgoingRecord
from shardfleet.producer.aggregate import aggregate
from shardfleet_spark.payload.parsing import parse_payload
from shardfleet_spark.pipelines.patience import start_patiently
from tests.spark.test_stream_source import put

pytestmark = pytest.mark.processes

CANARY = "canary-jane-doe-4711"
AVRO = {"type": "record", "name": "R", "fields": [{"name": "d", "type": "double"}]}
GOOD = aggregate([OutgoingRecord(CANARY, CANARY.encode())] * 2)
PAYLOADS = [
    CANARY.encode(),
    b'{"d": "%s"}' % CANARY.encode(),
    CANARY.encode() + b"," * 20_480,
    GOOD,
    GOOD[:-1] + bytes([GOOD[-1] ^ 1]),
]


@pytest.fixture
def java_says(spark):
    """Let Spark log all that it does; return what it and its Python processes have written."""
    process = spark._jvm.java.lang.ProcessHandle.current().pid()
    written = Path(f"/proc/{process}/fd/2")
    if not written.is_file():
        pytest.skip("what Spark writes is not caught: run without -s, on Linux")
    spark.sparkContext.setLogLevel("INFO")
    yield lambda: written.read_text("utf-8", "replace")
    spark.sparkContext.setLogLevel("ERROR")


def plans(query):
    """Return how Spark explains a query."""
    with redirect_stdout(StringIO()) as shown:
        query.explain(extended=True)
    return shown.getvalue()


def trim(aws, stream):
    """Let the stream forget what it has."""
    connection = http.client.HTTPConnection(urlsplit(aws.endpoint_url).netloc)
    body = {"Action": "Trim", "StreamName": stream, "ShardId": "shardId-000000000000"}
    headers = {
        "X-Amz-Target": "ShardfleetLocal.Faults",
        "Content-Type": "application/x-amz-json-1.1",
        # What is signed for is what is called.
        "Authorization": f"{aws.key.authorization()}20240101/{aws.region}/kinesis/aws4_request",
    }
    connection.request("POST", "/", json.dumps(body), headers)
    assert connection.getresponse().status == http.HTTPStatus.OK
    connection.close()


def test_a_query_that_fails_says_where_it_stood_and_not_what_it_read(
    embedded_aws, make_stream, source, tmp_path, java_says
):
    stream, bad = make_stream(), []
    keys = embedded_aws.key.environment()
    secret = keys["AWS_SECRET_ACCESS_KEY"]

    def parse(batch, _batch_id):
        for kind, schema in {
            "json": "d double",
            "csv": "d double",
            "avro": json.dumps(AVRO),
        }.items():
            bad.extend(parse_payload(batch, schema, kind=kind).select("bad_record").collect())

    def run():
        options = {"startingPosition": "TRIM_HORIZON", "sealStore": f"file:{tmp_path}/seals"}
        options |= {"accessKeyId": keys["AWS_ACCESS_KEY_ID"], "secretAccessKey": secret}
        frame = source(stream, **options).load()
        writer = frame.writeStream.foreachBatch(parse)
        writer = writer.option("checkpointLocation", str(tmp_path / "checkpoint"))
        query = start_patiently(writer.trigger(processingTime="100 milliseconds").start)
        try:
            while query.isActive and len(bad) < 3 * (len(PAYLOADS) + 1):
                assert not query.awaitTermination(1)
        except Exception as error:  # noqa: BLE001 - whatever it is, its text is judged
            return f"{error}\n{query.exception()}\n{query.recentProgress}\n{plans(query)}"
        finally:
            query.stop()
        return f"{query.recentProgress}\n{plans(query)}"

    put(embedded_aws, stream, [(CANARY, data) for data in PAYLOADS])
    said = [run()]
    assert "shardfleet" in said[0], "the plan is not shown"
    assert CANARY in str(bad), "the payloads were not read"
    # Spark repeats a batch that it has not committed: the task finds its records gone.
    for file in (tmp_path / "checkpoint" / "commits").iterdir():
        file.unlink()
    trim(embedded_aws, stream)
    bad.clear()
    said.append(run())
    assert "the batch was read again" in said[1]
    said.append(java_says())
    assert "DataLost" in said[2]
    said += [str(file) for file in tmp_path.rglob("*")]
    said += [file.read_bytes().decode("latin-1") for file in tmp_path.rglob("*") if file.is_file()]
    assert [text for text in said if CANARY in text or secret in text] == []
