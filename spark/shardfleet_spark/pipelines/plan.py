"""
What a pipeline is asked to do: plain values, readable as JSON, complete, checked before Spark.

A place is written ``format:where``: ``shardfleet:clicks`` (a stream), ``parquet:folder``,
``json:folder``, ``csv:folder``, ``console``; any other format that Spark knows works too.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, field, fields
from typing import Any

from shardfleet.errors import ConfigurationError
from shardfleet.foreign import read_json
from shardfleet_spark.options.options import option_names, read_options
from shardfleet_spark.options.sink_options import SinkOptions
from shardfleet_spark.options.source_options import BatchOptions, SourceOptions
from shardfleet_spark.payload.kinds import KINDS

ARCHIVE = "archive"
AGGREGATE = "aggregate"
READY = (ARCHIVE, AGGREGATE)
"""Pipelines that stand in the place of a transform of the user's."""

AVAILABLE_NOW = "available-now"
TABLES = ("delta", "iceberg")
"""Sinks that take each micro-batch once, appended or merged by key."""

_PLACE = re.compile(r"(\w[\w.]*)(?::(.+))?", re.DOTALL)
_TRANSFORM = re.compile(r"[A-Za-z_][\w.]*:[A-Za-z_]\w*")
_INTERVAL = re.compile(r"(\d+) ?(ms|s|m|h|seconds?|minutes?|hours?)")
_UNIT_MS = {"ms": 1, "s": 1_000, "m": 60_000, "h": 3_600_000}
_FORMATS_WITHOUT_PLACE = ("console", "noop")


@dataclass(frozen=True, slots=True)
class TablePlace:
    """
    Where rows come from or go to.

    Attributes:
        format: a Spark format.
        where: a stream's name or ARN, a folder, a file; empty where the format needs none.

    """

    format: str
    where: str = ""

    @classmethod
    def parse(cls, text: str, *, side: str) -> TablePlace:
        """
        Read ``format:where``.

        Raises:
            ConfigurationError: it is none; ``side`` says which it was.

        """
        found = _PLACE.fullmatch(text)
        if found is None or (found[2] is None and found[1] not in _FORMATS_WITHOUT_PLACE):
            raise ConfigurationError(
                f"{side} {text!r}: format:place is needed, such as shardfleet:clicks (a stream), "
                "parquet:folder, json:folder" + (" or console" if side == "sink" else "")
            )
        return cls(found[1], found[2] or "")

    @property
    def is_stream(self) -> bool:
        """Return whether it is a Kinesis stream."""
        return self.format == "shardfleet"


@dataclass(frozen=True, slots=True, kw_only=True)
class PipelinePlan:
    """
    One pipeline.

    Attributes:
        source: ``format:where``.
        sink: ``format:where``.
        transform: ``package.module:function``, or ``archive`` or ``aggregate``; empty: none.
        schema: of the payload, as :func:`shardfleet_spark.payload.parsing.parse_payload` takes it;
            empty: the transform gets the source's columns as they are.
        payload: ``json``, ``ndjson``, ``csv`` or ``avro``.
        payload_options: of Spark's JSON or CSV reader, such as ``timestampFormat``.
        bad_records: folder for records that do not fit the schema, which the transform then does
            not get; empty: it gets them, with ``bad_record``.
        source_options: of the source's format.
        sink_options: of the sink's format.
        merge_key: columns with commas between them: a table keeps the newest row of each key;
            empty: rows are appended.
        backfill: folder of an archive of the stream, which goes into the table first; empty: none.
        backfill_positions: file with where the archive's query stood; the stream is read from
            there on.
        settings: of a ready pipeline (see its module).
        checkpoint: folder of the query's checkpoint; needed for streams.
        trigger: ``available-now`` (everything there is, then the end) or an interval (``10s``).
        batch: read the source once, as a batch.
        output_mode: ``append``, ``update`` or ``complete``.

    Raises:
        ConfigurationError: names every wrong field.

    """

    source: str
    sink: str
    transform: str = ""
    schema: str = ""
    payload: str = "json"
    payload_options: Mapping[str, str] = field(default_factory=dict)
    bad_records: str = ""
    source_options: Mapping[str, str] = field(default_factory=dict)
    sink_options: Mapping[str, str] = field(default_factory=dict)
    merge_key: str = ""
    backfill: str = ""
    backfill_positions: str = ""
    settings: Mapping[str, str] = field(default_factory=dict)
    checkpoint: str = ""
    trigger: str = AVAILABLE_NOW
    batch: bool = False
    output_mode: str = "append"

    def __post_init__(self) -> None:
        """Refuse what cannot work, all of it at once."""
        problems = [*self._wrong_places(), *self._wrong_transform(), *self._wrong_payload()]
        problems += [*self._wrong_table(), *self._wrong_backfill()]
        # Their formats check them again: here a wrong one costs no Java.
        problems = problems or [*self._wrong_options()]
        if not self.batch and not self.checkpoint:
            problems.append(
                "checkpoint is missing: the folder in which a stream's query keeps its position "
                "(or run it as a batch)"
            )
        if self.trigger != AVAILABLE_NOW and not _INTERVAL.fullmatch(self.trigger):
            problems.append(
                f"trigger {self.trigger!r}: {AVAILABLE_NOW} or an interval such as 10s or 5m"
            )
        if self.output_mode not in ("append", "update", "complete"):
            problems.append(f"output mode {self.output_mode!r}: append, update or complete")
        if problems:
            raise ConfigurationError("; ".join(problems))

    def _wrong_places(self) -> Iterator[str]:
        for side in ("source", "sink"):
            try:
                TablePlace.parse(getattr(self, side), side=side)
            except ConfigurationError as error:
                yield str(error)

    def _wrong_options(self) -> Iterator[str]:
        reading: type[Any] = BatchOptions if self.batch else SourceOptions
        for place, options, given, other in (
            (self.from_place, reading, self.source_options, SinkOptions),
            (self.to_place, SinkOptions, self.sink_options, BatchOptions),
        ):
            if place.is_stream:
                try:
                    read_options(
                        options, {**given, "stream": place.where}, elsewhere=option_names(other)
                    )
                except ConfigurationError as error:
                    yield str(error)

    def _wrong_transform(self) -> Iterator[str]:
        ready = " and ".join(READY)
        if self.transform in READY:
            if self.batch:
                yield f"{self.transform} runs as a stream; leave batch out"
        elif self.transform and not _TRANSFORM.fullmatch(self.transform):
            yield f"transform {self.transform!r}: package.module:function is needed, or {ready}"
        elif self.settings:
            yield f"settings {', '.join(self.settings)}: only {ready} have any"

    def _wrong_payload(self) -> Iterator[str]:
        if self.payload not in KINDS:
            yield f"payload {self.payload!r}: {', '.join(KINDS)} are known"
        elif self.payload != "json" and not self.schema:
            yield f"payload {self.payload}: a schema is needed, or the payload is not read"
        if self.bad_records and not self.schema:
            yield f"bad records {self.bad_records!r}: a schema is needed to tell them"
        if self.bad_records and (self.batch or not self.source.startswith("shardfleet:")):
            yield (
                f"bad records {self.bad_records!r}: they are told apart for a stream's query only "
                "(source shardfleet:STREAM, not as a batch)"
            )

    def _wrong_table(self) -> Iterator[str]:
        is_table = self.sink.partition(":")[0] in TABLES
        if self.merge_key and not is_table:
            yield f"merge key {self.merge_key!r}: the sink has to be {' or '.join(TABLES)}"
        if is_table and self.output_mode != "append":
            yield (
                f"sink {self.sink!r}: output mode {self.output_mode!r}: to a table each row is "
                "written once, appended or merged by key; leave the mode out"
            )

    def _wrong_backfill(self) -> Iterator[str]:
        if bool(self.backfill) != bool(self.backfill_positions):
            yield "backfill and backfill positions: both are needed, or neither"
        if not self.backfill:
            return
        is_table = self.sink.partition(":")[0] in TABLES
        if self.batch or not self.source.startswith("shardfleet:") or not is_table:
            yield (
                f"backfill {self.backfill!r}: a stream's query into a table is needed (source "
                f"shardfleet:STREAM, sink {' or '.join(TABLES)}, not as a batch)"
            )
        if self.transform in READY:
            yield f"backfill {self.backfill!r}: not with {self.transform}; a function is needed"
        if self.bad_records:
            yield f"backfill {self.backfill!r}: not with bad records beside the output"
        if "startingposition" in {name.lower() for name in self.source_options}:
            yield "backfill: the positions say where the stream begins; leave startingPosition out"

    @property
    def merge_keys(self) -> tuple[str, ...]:
        """Return the columns of the merge key."""
        return tuple(name for each in self.merge_key.split(",") if (name := each.strip()))

    @property
    def from_place(self) -> TablePlace:
        """Return the source."""
        return TablePlace.parse(self.source, side="source")

    @property
    def to_place(self) -> TablePlace:
        """Return the sink."""
        return TablePlace.parse(self.sink, side="sink")

    @property
    def trigger_ms(self) -> int:
        """Return the interval of the trigger in milliseconds; 0: there is none."""
        found = _INTERVAL.fullmatch(self.trigger)
        if found is None:
            return 0
        unit = found[2] if found[2] == "ms" else found[2][0]
        return int(found[1]) * _UNIT_MS[unit]

    def to_json(self) -> str:
        """Return the plan as one argument of a job."""
        return json.dumps(asdict(self))

    @classmethod
    def from_json(cls, text: str) -> PipelinePlan:
        """
        Read what :meth:`to_json` wrote.

        Raises:
            ConfigurationError: it is no plan.

        """
        try:
            found: Any = read_json(text)
        except ValueError as error:
            raise ConfigurationError(f"the pipeline's plan: {error}") from error
        known = {each.name for each in fields(cls)}
        if not isinstance(found, dict) or not {"source", "sink"} <= set(found) <= known:
            raise ConfigurationError(
                f"the pipeline's plan has to be an object with source and sink, and of "
                f"{', '.join(sorted(known))}; found: {text[:200]}"
            )
        return cls(**found)
