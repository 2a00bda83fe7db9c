"""
Records into a stream, in order per partition key, whatever the stream does meanwhile.

    async with open_producer("clicks") as producer:
        receipts = await producer.send(records, aggregate=True)  # all of them, and where they are

        await producer.put(record)  # or buffered, with back-pressure
        await producer.flush()

    with BlockingProducer(lambda: open_producer("clicks")) as producer:  # without an event loop
        producer.send(records)

Order: one request per shard is in flight at a time, it holds a key once or within one aggregate,
and what was refused stays ahead of everything later of its key. So the accepted records of a key
have the order in which they were given, across throttling, lost replies and resharding; requests
to different shards overlap, and a shard that refuses holds up no other.

Pace: a shard gets 1,000 records and 1 MiB a second at most, so a producer alone on its stream is
not refused; if others write too, batch size and pause follow what the shard accepts
(``shardfleet.domain.reading.flow_control``). ``counts``, ``flows`` and ``observe`` tell about both.

Aggregates: a builder is filled with the records of one shard, as that shard is known. When the
answer names another shard, some records inside may lie outside its hash range, and a consumer with
Java's rule drops such an aggregate whole (protocol.md §5.3, point 5): all of it is sent again, for
the shards as they are now, before anything later of its keys. The KPL does the same.

Refused before anything is sent: keys that are empty or longer than 256 characters, explicit hash
keys that are none, records above ``record_bytes`` (1 MiB unless the stream takes more).

Importing this loads no SDK: what a name needs is loaded when it is first asked for.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from shardfleet.faces import loaded_from

if TYPE_CHECKING:
    from shardfleet.domain.reading.flow_control import FlowLimits
    from shardfleet.errors import InvalidRecord, OutcomeUnknown, StreamGone, Throttled
    from shardfleet.kpl.packing import OutgoingRecord
    from shardfleet.producer.blocking import BlockingProducer
    from shardfleet.producer.open import open_producer
    from shardfleet.producer.sending import Producer
    from shardfleet.producer.settings import (
        ProducerCounts,
        ProducerSettings,
        Receipt,
        ShardAnswer,
        ShardFlow,
    )

__all__ = [
    "BlockingProducer",
    "FlowLimits",
    "InvalidRecord",
    "OutcomeUnknown",
    "OutgoingRecord",
    "Producer",
    "ProducerCounts",
    "ProducerSettings",
    "Receipt",
    "ShardAnswer",
    "ShardFlow",
    "StreamGone",
    "Throttled",
    "open_producer",
]

_HOMES = {
    "FlowLimits": "shardfleet.domain.reading.flow_control",
    **dict.fromkeys(
        ("InvalidRecord", "OutcomeUnknown", "StreamGone", "Throttled"), "shardfleet.errors"
    ),
    "OutgoingRecord": "shardfleet.kpl.packing",
    "BlockingProducer": "shardfleet.producer.blocking",
    "open_producer": "shardfleet.producer.open",
    "Producer": "shardfleet.producer.sending",
    **dict.fromkeys(
        ("ProducerCounts", "ProducerSettings", "Receipt", "ShardAnswer", "ShardFlow"),
        "shardfleet.producer.settings",
    ),
}

__getattr__ = loaded_from(__name__, _HOMES)
