"""`shardfleet put`: a user's records into the fleet's stream."""

import asyncio
from collections.abc import Iterator
from typing import TYPE_CHECKING, Annotated

import typer
from msgspec import to_builtins
from rich.text import Text

from shardfleet.errors import ConfigurationError
from shardfleet_ops.cli.fleet_access import (
    FleetAccess,
    JsonOption,
    with_fleet,
)
from shardfleet_ops.cli.fleets import DEFAULT_STACK, FleetName, FleetOption, StackOption
from shardfleet_ops.cli.input_options import (
    DelimiterOption,
    InputOption,
    KeyOption,
    RejectsOption,
)
from shardfleet_ops.cli.telling import say, shown, tell
from shardfleet_ops.explain.spoken import counted

if TYPE_CHECKING:
    from shardfleet.producer.settings import ProducerCounts
    from shardfleet_local.rig.source import Source

PROGRESS_EVERY_S = 2.0
"""How often is told how far it is."""


def put(
    *,
    input_file: InputOption,
    key: KeyOption = None,
    delimiter: DelimiterOption = None,
    aggregate: Annotated[
        bool, typer.Option("--aggregate", help="Send KPL aggregates: fewer, larger records.")
    ] = False,
    rejects: RejectsOption = False,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Read and check the input; send nothing.")
    ] = False,
    stack: StackOption = DEFAULT_STACK,
    fleet_name: FleetOption = "",
    as_json: JsonOption = False,
) -> None:
    """Put records into the stream, in order per key; the whole input is checked first."""
    from shardfleet_local.rig.source import read_source

    source = read_source(input_file, key, delimiter=delimiter, rejects=rejects)
    counts = None
    if not dry_run:
        counts = with_fleet(
            FleetName(stack, fleet_name), lambda fleet: _send(fleet, source, aggregate=aggregate)
        )
    found = {
        "read": len(source.records),
        "form": source.form,
        "rejected": {why: list(lines) for why, lines in source.rejects.items()},
        "sent": to_builtins(counts) if counts else None,
    }
    tell(found, _lines(source, counts), as_json=as_json)


async def _send(fleet: FleetAccess, source: "Source", *, aggregate: bool) -> "ProducerCounts":
    from shardfleet.adapters.system import SystemEntropy
    from shardfleet.kpl.packing import OutgoingRecord
    from shardfleet.producer.aggregate import STREAM_RECORD_BYTES
    from shardfleet.producer.sending import Producer
    from shardfleet.producer.settings import ProducerSettings

    line, size = source.largest()
    most = STREAM_RECORD_BYTES
    if size > most:  # Only then is it worth a call, and a right.
        most = await fleet.writer.record_bytes_most()
    if size > most:
        raise ConfigurationError(
            f"{source.name}: {source.unit} {line}: {size:,} bytes with its key, this stream takes "
            f"{most:,}. Cut the record, or raise the stream's MaxRecordSizeInKiB (10,240 at most)"
        )
    producer = Producer(
        fleet.writer,
        clock=fleet.clock,
        entropy=SystemEntropy(),
        settings=ProducerSettings(record_bytes=most),
    )
    records = [OutgoingRecord(each.key, each.data) for each in source.records]
    sending = asyncio.create_task(producer.send(records, aggregate=aggregate))
    while not (await asyncio.wait({sending}, timeout=PROGRESS_EVERY_S))[0]:
        say(f"{producer.counts.accepted:,} of {len(records):,} records sent", err=True)
    await sending
    return producer.counts


def _lines(source: "Source", counts: "ProducerCounts | None") -> Iterator[str | Text]:
    yield shown(f"{source.name}: {source.form}.")
    yield from source.rejected()
    if counts is None:
        yield f"{counted(len(source.records), 'record')} read; nothing was sent (--dry-run)."
        return
    yield (
        f"{counted(counts.accepted, 'record')} sent in {counted(counts.entries, 'stream record')} "
        f"and {counted(counts.requests, 'request')}; refused, and sent again: "
        f"{counted(counts.refused, 'entry')}."
    )
    if counts.unanswered:
        lost = counted(counts.unanswered, "request")
        many = f"{lost} had no answer; the records may be there twice."
        yield Text(many, "yellow")
