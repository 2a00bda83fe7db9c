"""
A process that reads and decodes pages for a worker.

It is started as ``python -m shardfleet.adapters.decode.server``; its one argument is
:class:`Served` as JSON. Each file descriptor there is one end of a connection with a thread of its
own, which answers one question after the other: it waits for the network most of the time. The
process ends when the other side is gone.
"""

from __future__ import annotations

import socket
import sys
from threading import Thread

import msgspec

from shardfleet.adapters.clients.aws_clients import AwsClients, ConnectionLimits
from shardfleet.adapters.http.connections import IDLE_MS
from shardfleet.adapters.kinesis.page_messages import answer, answer_error, asked
from shardfleet.adapters.kinesis.polling import PageSource
from shardfleet.kpl.deaggregate import ExpansionLimits, MisroutedPolicy

READY = b"+"
"""The first byte on each connection."""


class Served(msgspec.Struct, frozen=True, kw_only=True):
    """
    What the process works on.

    Attributes:
        stream_arn: the stream.
        region: of the stream; None: that of the environment.
        wire: whether records come by the thin wire (``stream_calls``).
        misrouted: policy for aggregates of another shard.
        aggregate_records_most: how many records one aggregate may have.
        aggregate_bytes_most: how many bytes one aggregate may have.
        idle_ms: a connection to the stream unused for longer is not used again.
        descriptors: of the connections.

    """

    stream_arn: str
    region: str | None
    wire: bool
    misrouted: MisroutedPolicy
    aggregate_records_most: int
    aggregate_bytes_most: int
    idle_ms: int = IDLE_MS
    descriptors: tuple[int, ...] = ()


def serve(served: Served) -> None:
    """Answer on all connections until they are closed."""
    clients = AwsClients(
        ConnectionLimits(
            writes=1, reads=1, streams=len(served.descriptors), idle_ms=served.idle_ms
        ),
        stream_region=served.region,
    )
    source = PageSource(
        served.stream_arn,
        records=clients.stream_records,
        wire=clients.wire_to(served.stream_arn) if served.wire else None,
    )
    threads = [
        Thread(target=_converse, args=(socket.socket(fileno=descriptor), source, served))
        for descriptor in served.descriptors
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()


def _converse(connection: socket.socket, source: PageSource, served: Served) -> None:
    limits = ExpansionLimits(served.aggregate_records_most, served.aggregate_bytes_most)
    try:
        connection.sendall(READY)
        while True:
            question = asked(connection)
            try:
                page = source.page(
                    question.iterator, shard_id=question.shard_id, limit=question.limit
                )
                answer(connection, page, limits=limits, policy=served.misrouted)
                del page  # Not kept while waiting for the next question.
            except OSError:
                raise
            except Exception as error:  # noqa: BLE001 - the worker will see for itself
                answer_error(connection, error)
    except OSError:
        connection.close()  # The worker is gone, or has given this process up.


if __name__ == "__main__":
    serve(msgspec.json.decode(sys.argv[1], type=Served))
