"""Records' data and partition keys reach no log by default: not even through a handler's error."""

import asyncio
import logging

from shardfleet.records import Batch, Record
from shardfleet.runtime import handler_runner
from shardfleet.runtime.handler_runner import ThreadHandlerRunner

ARN = "arn:aws:kinesis:eu-central-1:123456789012:stream/clicks"
SECRET = "jane.doe@example.org"
HANDLER = """
def handle(batch):
    try:
        int(batch[0].data)
    except ValueError as error:
        raise RuntimeError(f"cannot read {batch[0].partition_key}") from error
"""


class Context:
    invoked_function_arn = "arn:aws:lambda:eu-central-1:123456789012:function:worker"


class Clock:
    def now_ms(self):
        return 0


def a_batch():
    record = Record(
        shard_id="shardId-000000000000",
        partition_key=SECRET,
        sequence_number="1",
        sub_sequence_number=0,
        data=SECRET.encode(),
        approximate_arrival_ms=0,
    )
    return Batch(
        [record],
        shard_id="shardId-000000000000",
        stream_arn=ARN,
        millis_behind_latest=0,
        attempt=1,
        deadline_ms=60_000,
    )


def test_a_failing_handlers_log_tells_kind_and_place_and_no_data(tmp_path, monkeypatch, caplog):
    (tmp_path / "secretive.py").write_text(HANDLER, "utf-8")
    monkeypatch.syspath_prepend(str(tmp_path))
    runner = ThreadHandlerRunner(
        "secretive:handle", contract="native", context=Context(), stream_arn=ARN, clock=Clock()
    )

    async def fail():
        await runner.load()
        result = await runner.run(a_batch())
        await runner.close()
        return result

    with caplog.at_level(logging.DEBUG, logger=handler_runner.__name__):
        result = asyncio.run(fail())

    assert result.error == "RuntimeError (secretive.py:6 in handle)"
    assert "RuntimeError" in caplog.text
    assert "secretive.py" in caplog.text
    assert SECRET not in caplog.text
