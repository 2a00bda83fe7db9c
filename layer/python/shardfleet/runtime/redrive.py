"""
Records that were given up, once more through the deployed handler, outside of any slot.

A worker's function that is invoked with ``{"redrive": event}`` loads its handler, hands it these
records as one batch, and says how many are done. It reads and writes no lease: whoever asks keeps
the records until they are done.
"""

from __future__ import annotations

import base64
import binascii
import json
from collections.abc import Mapping, Sequence
from typing import Any

from shardfleet.adapters.invoked_function import FunctionAnswer, InvokedFunction
from shardfleet.domain.delivery.hooks import Hook
from shardfleet.domain.delivery.ways import Way
from shardfleet.engine.ports import Clock, HandlerResult, HandlerRunner
from shardfleet.engine.retry import Patience, insisting
from shardfleet.errors import ConfigurationError, HandlerTimedOut
from shardfleet.records import Batch, Record, ShardLife, leave_open
from shardfleet.runtime.function_runner import EVENT_BYTES_LIMIT
from shardfleet.runtime.handler_call import REDRIVE


def records_of(event: Mapping[str, Any]) -> list[Record]:
    """
    Return the records of an event of the event source mapping; what the worker has made of them.

    Raises:
        ConfigurationError: it is no such event, or its records are of several shards.

    """
    try:
        records = [_record(each) for each in event["Records"]]
    except (KeyError, OverflowError, TypeError, ValueError, binascii.Error) as error:
        raise ConfigurationError(f"{REDRIVE}: no event of Kinesis: {error!r}") from error
    if len({record.shard_id for record in records}) != 1:
        raise ConfigurationError(f"{REDRIVE}: records of one shard expected")
    return records


def _record(given: Mapping[str, Any]) -> Record:
    kinesis = given["kinesis"]
    return Record(
        data=base64.b64decode(kinesis["data"], validate=True),
        partition_key=kinesis["partitionKey"],
        sequence_number=kinesis["sequenceNumber"],
        sub_sequence_number=int(kinesis.get("subSequenceNumber", 0)),
        aggregated="subSequenceNumber" in kinesis,
        shard_id=given["eventID"].rpartition(":")[0],
        approximate_arrival_ms=round(kinesis.get("approximateArrivalTimestamp", 0) * 1000),
        explicit_hash_key=kinesis.get("explicitHashKey"),
    )


class Redrive:
    """One batch of records that were given up."""

    def __init__(
        self,
        records: Sequence[Record],
        *,
        stream_arn: str,
        way: Way,
        timeout_ms: int,
        clock: Clock,
    ) -> None:
        """
        Call nothing yet.

        Args:
            records: of one shard, in order.
            stream_arn: what the batch says about its stream.
            way: how the fleet delivers.
            timeout_ms: of each call.
            clock: for the deadline.

        """
        self._records = records
        self._stream_arn = stream_arn
        self._life = ShardLife() if way.handler_checkpoints else None
        self._refusal = way.no_redrive
        self._timeout_ms = timeout_ms
        self._clock = clock

    async def run(self, runner: HandlerRunner) -> HandlerResult:
        """
        Load the handler and hand the records over; a class is told ``started`` and ``stopping``.

        Raises:
            ConfigurationError: the handler cannot be loaded.
            HandlerTimedOut: the process must end.

        """
        if self._refusal:
            return HandlerResult(done_count=0, error=self._refusal)
        await runner.load()
        if runner.has_hooks:
            started = self._in_time(await runner.tell(Hook.STARTED, self._batch(())))
            if started.error is not None:
                return HandlerResult(done_count=0, error=started.error)
        result = self._in_time(await runner.run(self._batch(self._records)))
        last = None
        if runner.has_hooks:
            last = self._in_time(await runner.tell(Hook.STOPPING, self._batch(())))
        elif self._life is not None and self._life.through < self._life.handed:
            last = self._in_time(await runner.run(self._batch(())))
        if self._life is None or result.error is not None:
            return result
        done = self._batch(self._records).done_count
        if done == len(self._records):
            return HandlerResult(done_count=done)
        told = (last and last.error) or "the handler has not checkpointed them (checkpoint manual)"
        return HandlerResult(done_count=done, error=told)

    def _batch(self, records: Sequence[Record]) -> Batch:
        batch = Batch(
            records,
            shard_id=self._records[0].shard_id,
            stream_arn=self._stream_arn,
            millis_behind_latest=None,
            attempt=1,
            deadline_ms=self._clock.now_ms() + self._timeout_ms,
        )
        if self._life is not None:
            leave_open(batch, self._life, must_flush=True)
        return batch

    def _in_time(self, result: HandlerResult) -> HandlerResult:
        if result.timed_out:
            raise HandlerTimedOut(f"{REDRIVE}: the call took longer than {self._timeout_ms} ms")
        return result


class RedrivingWorker:
    """
    The handler of a deployed worker, for whoever asks from outside.

    Args:
        worker: the worker's function.
        patience: how long to wait when Lambda refuses.

    """

    def __init__(self, worker: InvokedFunction, *, patience: Patience) -> None:
        """Call nothing yet."""
        self._worker = insisting(worker, patience)
        self._name = worker.name

    async def handle(self, event: Mapping[str, Any]) -> HandlerResult:
        """
        Have the worker's handler called with an event.

        Raises:
            Throttled: Lambda refuses.
            OutcomeUnknown: no answer came; the handler may have been called.
            ConfigurationError: there is no such worker, or no right to invoke it.

        """
        text = json.dumps({REDRIVE: event}).encode()
        if len(text) >= EVENT_BYTES_LIMIT:
            told = f"{len(text)} bytes, and Lambda takes fewer than {EVENT_BYTES_LIMIT}"
            return HandlerResult(done_count=0, error=f"its event has {told} (synchronous Invoke)")
        answer = await self._worker.invoke(text)
        if answer.refusal:
            return HandlerResult(done_count=0, error=answer.refusal)
        return self._result(answer)

    def _result(self, answer: FunctionAnswer) -> HandlerResult:
        try:
            reply = json.loads(answer.payload)
            if answer.failed:
                told = f"{reply.get('errorType')}: {reply.get('errorMessage')}"
                return HandlerResult(done_count=0, error=f"the worker failed: {told}")
            found = reply[REDRIVE]
            return HandlerResult(done_count=int(found["done"]), error=found["error"])
        except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
            error = f"{self._name} answers otherwise than a worker of this version; deploy it again"
            return HandlerResult(done_count=0, error=error)
