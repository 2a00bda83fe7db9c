"""
The demo's second half: the same stream through Spark, and its numbers against the input.

Two pipelines: `aggregate` counts and sums per key in windows of arrival time, into a second
stream; `archive` brings that stream into Parquet. What is compared is what arrives at the very
end: the last record of each key and window, in the files.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from importlib.util import find_spec
from operator import add
from pathlib import Path
from typing import Any

from shardfleet.adapters.system import SystemClock
from shardfleet.domain.delivery.record_ids import split_record_id
from shardfleet_local.aws.launcher import EmbeddedAws
from shardfleet_local.rig.feed import InputRecord

WINDOW = "10 seconds"
BATCHES = 6
"""So many micro-batches, so that there is a curve to look at."""

LIMIT_S = 600
"""Longest run of Spark; about 60 s on two cores."""

FOLDS: Mapping[str, Callable[[int, int], int]] = {"sum": add, "min": min, "max": max}
"""How the columns of a field are added up, as `aggregate` names them."""

KeyFigures = dict[str, dict[str, int]]
"""Of each key its count, and of each field sum, least and greatest."""

_FIELDS_MOST = 3
_SHOWN = 3
_LOG_LINES = 15
_INTEGERS_MOST = 2**62  # A sum of more could pass the end of Spark's bigint.


@dataclass(frozen=True, slots=True, kw_only=True)
class MicroBatch:
    """
    One micro-batch of the first pipeline.

    Attributes:
        began_ms: epoch milliseconds.
        took_ms: until it was committed.
        rows: user records.

    """

    began_ms: int
    took_ms: int
    rows: int


@dataclass(frozen=True, slots=True, kw_only=True)
class SparkOutcome:
    """
    What came out of Spark.

    Attributes:
        skipped: why it did not run; empty if it did.
        rows: records that the first pipeline read.
        keys: keys that came out.
        windows: rows that came out: keys times windows.
        fields: integer fields that were summed.
        wrong: differences from the input, in words.
        batches: of the first pipeline.
        wall_ms: both pipelines, the start of Spark included.

    """

    skipped: str = ""
    rows: int = 0
    keys: int = 0
    windows: int = 0
    fields: Sequence[str] = ()
    wrong: Sequence[str] = ()
    batches: Sequence[MicroBatch] = ()
    wall_ms: int = 0

    def figures(self) -> dict[str, object]:
        """Return what `result.json` says of it."""
        paces = (each.rows * 1000 // max(1, each.took_ms) for each in self.batches)
        return {
            "skipped": self.skipped,
            "passed": not self.wrong,
            "records": self.rows,
            "keys": self.keys,
            "windows": self.windows,
            "summed": list(self.fields),
            "differences": list(self.wrong),
            "micro_batches": len(self.batches),
            "records_per_s_most": max(paces, default=0),
            "wall_seconds": round(self.wall_ms / 1000, 1),
        }


def why_not() -> str:
    """Return why Spark cannot run here; empty if it can."""
    for module in ("pyspark", "pyarrow"):
        if find_spec(module) is None:
            return f"{module} is not installed: pip install 'shardfleet[spark]'"
    from shardfleet_spark.host.java import NEEDED, find_java  # noqa: PLC0415 - an extra

    return NEEDED if find_java() is None else ""


def run_spark(
    aws: EmbeddedAws,
    records: Sequence[InputRecord],
    *,
    stream_name: str,
    say: Callable[[str], None] = lambda _: None,
) -> SparkOutcome:
    """
    Run both pipelines over everything that is in the stream, and compare.

    Args:
        aws: the account.
        records: what was fed.
        stream_name: the stream.
        say: told what happens.

    """
    reason = why_not()
    if reason:
        return SparkOutcome(skipped=reason)
    fields = integer_fields(records)
    clock = SystemClock()
    began_ms = clock.monotonic_ms()
    say("the same stream through Spark: counts and sums per key and window")
    counts = f"{stream_name[:100]}-counts"
    client = aws.client("kinesis")
    client.create_stream(StreamName=counts, ShardCount=2)
    client.get_waiter("stream_exists").wait(StreamName=counts)
    with tempfile.TemporaryDirectory(prefix="shardfleet-spark-") as name:
        folder = Path(name)
        plans = _plans(stream_name, counts, folder, fields=fields, total=len(records))
        failure = _run(aws, plans, folder)
        if failure:
            return SparkOutcome(
                wrong=[failure], fields=fields, wall_ms=clock.monotonic_ms() - began_ms
            )
        progress = json.loads((folder / "result.json").read_text(encoding="utf-8"))
        rows = archived_rows(folder / "archive")
    found = figures_of_rows(rows, fields)
    return SparkOutcome(
        rows=sum(each["numInputRows"] for each in progress[0]),
        keys=len(found),
        windows=len(rows),
        fields=fields,
        wrong=differences(figures_of_input(records, fields), found),
        batches=[micro_batch(each) for each in progress[0]],
        wall_ms=clock.monotonic_ms() - began_ms,
    )


def integer_fields(records: Iterable[InputRecord]) -> list[str]:
    """Return the fields that are integers in every record, in the first one's order."""
    common: list[str] | None = None
    for record in records:
        parsed = json.loads(record.data)
        common = [
            name
            for name in (parsed if common is None else common)
            if type(parsed.get(name)) is int and abs(parsed[name]) < _INTEGERS_MOST
        ]
    usable = [name for name in common or [] if name.isidentifier() and name.isascii()]
    return usable[:_FIELDS_MOST]


def figures_of_input(records: Iterable[InputRecord], fields: Sequence[str]) -> KeyFigures:
    """Return the figures of the input itself: each record as if it were a window."""
    parsed = ((record.key, json.loads(record.data)) for record in records)
    return figures_of_rows(
        (
            {"key": key, "count": 1}
            | {f"{how}_{name}": data[name] for how in FOLDS for name in fields}
            for key, data in parsed
        ),
        fields,
    )


def figures_of_rows(rows: Iterable[Mapping[str, Any]], fields: Sequence[str]) -> KeyFigures:
    """Add up the windows of each key."""
    columns = {f"{how}_{name}": fold for how, fold in FOLDS.items() for name in fields}
    columns["count"] = add
    figures: KeyFigures = {}
    for row in rows:
        key, known = row["key"], figures.get(row["key"], row)
        folded = {name: fold(known[name], row[name]) for name, fold in columns.items()}
        figures[key] = folded if key in figures else {name: row[name] for name in columns}
    return figures


def differences(wanted: KeyFigures, found: KeyFigures) -> list[str]:
    """Return in words where the two differ, the first few of each kind."""
    both = sorted(wanted.keys() & found.keys())
    different = {
        "did not come out of Spark": sorted(wanted.keys() - found.keys()),
        "came out of Spark alone": sorted(found.keys() - wanted.keys()),
        "have other figures in Spark": [
            f"{key!r} has {found[key]}, the input {wanted[key]}"
            for key in both
            if wanted[key] != found[key]
        ],
    }
    return [
        f"{len(keys)} keys {how}: {', '.join(keys[:_SHOWN])}"
        for how, keys in different.items()
        if keys
    ]


def archived_rows(folder: Path) -> list[dict[str, Any]]:
    """Return, of the archived records, the last one of each id: key and window."""
    import pyarrow.parquet as pq  # noqa: PLC0415 - an extra

    last: dict[str, tuple[tuple[int, int], dict[str, Any]]] = {}
    for file in folder.rglob("*.parquet"):
        table = pq.read_table(file, partitioning=None)
        columns = (table.column(n).to_pylist() for n in ("data", "sequence_number"))
        sub = table.column("sub_sequence_number").to_pylist()
        for data, sequence, index in zip(*columns, sub, strict=True):
            record_id, payload = split_record_id(data)
            place = (int(sequence), index)
            key = record_id or ""
            # All records of an id have one key, hence one shard, hence comparable numbers.
            if key not in last or place > last[key][0]:
                last[key] = place, json.loads(payload)
    return [row for _, row in last.values()]


def micro_batch(progress: Mapping[str, Any]) -> MicroBatch:
    """Read one of Spark's reports."""
    began = datetime.fromisoformat(progress["timestamp"])
    return MicroBatch(
        began_ms=int(began.timestamp() * 1000),
        took_ms=int(progress["durationMs"]["triggerExecution"]),
        rows=int(progress["numInputRows"]),
    )


def _plans(
    stream: str, counts: str, folder: Path, *, fields: Sequence[str], total: int
) -> list[dict[str, Any]]:
    common = {"startingPosition": "TRIM_HORIZON", "misrouted": "kpl"}
    aggregate = {
        "source": f"shardfleet:{stream}",
        "sink": f"shardfleet:{counts}",
        "transform": "aggregate",
        "schema": ", ".join(f"`{name}` bigint" for name in fields),
        "output_mode": "update",
        # The watermark is wide: a shard that is read late must not lose its windows.
        "settings": {"window": WINDOW, "watermark": "1 day", "sum": ",".join(fields)},
        "source_options": {
            **common,
            "sealStore": f"file:{folder}/seals",
            "maxRecordsPerBatch": str(max(1, total // BATCHES)),
        },
        "checkpoint": f"{folder}/aggregate",
    }
    archive = {
        "source": f"shardfleet:{counts}",
        "sink": f"parquet:{folder}/archive",
        "transform": "archive",
        "source_options": {**common, "sealStore": f"file:{folder}/seals-of-counts"},
        "checkpoint": f"{folder}/archiving",
    }
    return [aggregate, archive]


def _run(aws: EmbeddedAws, plans: Sequence[Mapping[str, Any]], folder: Path) -> str:
    """Run the Spark process; return what went wrong, empty if nothing."""
    (folder / "plans.json").write_text(json.dumps(plans), encoding="utf-8")
    program = [sys.executable, "-P", "-m", "shardfleet_local.rig.spark_program"]
    try:
        run = subprocess.run(
            [*program, str(folder / "plans.json"), str(folder / "result.json")],
            env={**os.environ, **aws.environment()},
            capture_output=True,
            text=True,
            timeout=LIMIT_S,
            check=False,
        )
    except subprocess.TimeoutExpired:
        return f"Spark did not come to its end within {LIMIT_S} s"
    if run.returncode:
        said = run.stderr.partition("=== Streaming Query ===")[0].strip().splitlines()
        return "Spark failed: " + "\n".join(said[-_LOG_LINES:])
    return ""
