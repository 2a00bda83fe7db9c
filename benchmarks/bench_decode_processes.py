"""
What do processes that decode bring: how much more is decoded, and how much is taken off the worker?

`scale_2proc`: bodies of GetRecords answers become user records in two processes, against as many in
one; wall time on a quiet machine, nothing is handed over. `decode_processes_*`: pages are read over
TLS by the worker's reader, through two decoding processes or in the worker itself; CPU time of the
worker's process alone, from the call to the user records, batch by batch: what is left of its vCPU
is the handler's. The records are compared first. Loads: see `answers.py`.

    python benchmarks/bench_decode_processes.py [--only scale_2proc] [--rounds 15] [--folder DIR]
"""

from __future__ import annotations

import asyncio
import hashlib
import os
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from functools import partial
from multiprocessing import get_context
from multiprocessing.connection import Connection

import answers
import side_by_side
from side_by_side import Contest
from tls_server import serving

from shardfleet.adapters.clients.aws_clients import AwsClients, ConnectionLimits
from shardfleet.adapters.decode.processes import DecodeProcesses
from shardfleet.adapters.decode.server import Served
from shardfleet.adapters.kinesis.decode import decode_page
from shardfleet.adapters.kinesis.page_messages import Asked
from shardfleet.adapters.kinesis.polling import KinesisPolling
from shardfleet.adapters.thread_pool import ThreadPool
from shardfleet.domain.reading.pages import FROM_TRIM_HORIZON, RecordsPage

ARN = "arn:aws:kinesis:us-east-1:123456789012:stream/bench"
PAGES, PROCESSES, READY_S = 8, 2, 60
# Not in performance.md §10: what was measured first, less a fifth.
GATES = {"a": (2.5, 3.5), "b": (2.5, 3.5), "c": (2.1, 3.0), "d": (3.0, 4.5)}
CONFIG = answers.CONFIG


def decode_for_ever(orders: Connection) -> None:
    """In a process of its own: decode a body as often as told, answer with the records' number."""
    body = answers.body_of(answers.payloads("c"))
    orders.send(answers.count_delivered(decode_page(body)))
    while times := orders.recv():
        orders.send(sum(answers.count_delivered(decode_page(body)) for _ in range(times)))


class Decoders:
    """Processes that decode bodies; the user records stay where they are."""

    def __init__(self, stack: ExitStack) -> None:
        """Start them, and wait until each has decoded once."""
        self._pipes = []
        for _ in range(PROCESSES):
            ours, theirs = get_context("spawn").Pipe()
            process = get_context("spawn").Process(
                target=decode_for_ever, args=(theirs,), daemon=True
            )
            process.start()
            stack.callback(process.join)
            stack.callback(ours.send, 0)
            self._pipes.append(ours)
        assert len({ours.recv() for ours in self._pipes}) == 1

    def decode(self, processes: int) -> int:
        """Decode all pages in so many processes; return the number of user records."""
        busy = self._pipes[:processes]
        for pipe in busy:
            pipe.send(PAGES // processes)
        return sum(pipe.recv() for pipe in busy)


def same(ours: int, theirs: int) -> None:
    assert ours == theirs > 0


def scale() -> Iterator[Contest]:
    """Yield the contest of two processes against one."""
    with ExitStack() as stack:
        decoders = Decoders(stack)
        yield Contest(
            name="scale_2proc",
            compares=f"{PAGES} bodies -> user records in {PROCESSES} processes",
            ours=partial(decoders.decode, PROCESSES),
            peer=partial(decoders.decode, 1),
            peer_name="one process",
            check=same,
            gate=1.6,
            goal=1.9,
            clock=time.monotonic,
            wall=True,
            time_goes_to=(
                "memory and caches that the cores share; on a machine of hyperthreads, the core."
            ),
        )


Read = Callable[[], RecordsPage]


def digest(page: RecordsPage) -> tuple[int, str]:
    """Return the number of user records of a page and a digest of all that they say."""
    found = answers.user_records(page)
    return len(found), hashlib.sha256(repr(list(found)).encode()).hexdigest()


def handed_over() -> Iterator[Contest]:
    """Yield a contest for each load: by processes, and without."""
    os.environ |= {
        "AWS_ACCESS_KEY_ID": "bench",
        "AWS_SECRET_ACCESS_KEY": "bench",
        "AWS_DEFAULT_REGION": "us-east-1",
        "TZ": "UTC",
    }
    time.tzset()
    bodies = {load: answers.body_of(answers.payloads(load)) for load in answers.LOADS}
    with ExitStack() as stack:
        endpoint, authority = stack.enter_context(serving(bodies))
        os.environ |= {"AWS_CA_BUNDLE": str(authority), "AWS_ENDPOINT_URL": endpoint}
        loop = stack.enter_context(asyncio.Runner()).get_loop()
        clients = AwsClients(ConnectionLimits(writes=1, reads=1, streams=4))
        pool = ThreadPool("streams", threads=4)
        stack.callback(lambda: loop.run_until_complete(pool.close(within_ms=5_000)))
        served = Served(
            stream_arn=ARN,
            region=None,
            wire=True,
            misrouted="deliver",
            aggregate_records_most=CONFIG.aggregate_records_most,
            aggregate_bytes_most=CONFIG.aggregate_bytes_most,
        )
        decoders = DecodeProcesses(PROCESSES, lanes=4, served=served)
        stack.callback(decoders.close)
        _await_ready(decoders)
        for load, (gate, goal) in GATES.items():
            reads = [_read(loop, clients, pool, load, decoders=each) for each in (decoders, None)]
            assert digest(reads[0]()) == digest(reads[1]()), "different records"
            ours, theirs = (partial(_consumed, read) for read in reads)
            yield Contest(
                name=f"decode_processes_{load}",
                compares="call -> user records, CPU of the worker's own process",
                ours=ours,
                peer=theirs,
                peer_name="decoding in the worker",
                check=same,
                gate=gate,
                goal=goal,
                unit_bytes=sum(map(len, answers.payloads(load))),
                time_goes_to="receiving the page from the other process, an object per record.",
            )


def _await_ready(decoders: DecodeProcesses) -> None:
    deadline = time.monotonic() + READY_S
    ready: list[int] = []
    while len(ready) < 2 * PROCESSES:
        assert time.monotonic() < deadline, "the processes did not start"
        if decoders.page(Asked("d", answers.SHARD, 10_000)) is None:
            time.sleep(0.05)
        else:
            ready.append(1)


def _read(
    loop: asyncio.AbstractEventLoop,
    clients: AwsClients,
    pool: ThreadPool,
    load: str,
    *,
    decoders: DecodeProcesses | None,
) -> Read:
    reader = KinesisPolling(
        ARN,
        records=clients.stream_records,
        control=clients.stream_control,
        pool=pool,
        wire=clients.wire_to(ARN),
        decoders=decoders,
    )

    def read() -> RecordsPage:
        call = reader.page(answers.SHARD, FROM_TRIM_HORIZON, resume_token=load, limit=10_000)
        return loop.run_until_complete(call)

    read()  # Now the reader knows that there is much to read.
    if decoders is not None:
        assert read().size_bytes, "not read by a process"
    return read


def _consumed(read: Read) -> int:
    return answers.count_delivered(read())


def contests() -> Iterator[Contest]:
    """Yield all."""
    yield from scale()
    yield from handed_over()


if __name__ == "__main__":
    side_by_side.main(__doc__, contests)
