"""
Avro payloads in the frames of a schema registry: each read in the schema that its frame names.

The column `payload` has the fields of all schemas that were met: what a record's own schema lacks
is null. A task that meets a schema with further fields notes its type in a folder and fails; when
the query is started again, which pipelines do at once, the column has them, and the repeated
micro-batch is read again, whole. A schema that says otherwise of a field that is there makes bad
records.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import lru_cache, partial
from typing import TYPE_CHECKING, Any
from uuid import uuid4

import pyarrow as pa
from pyarrow import fs
from pyspark.sql.types import StringType, StructField, StructType

from shardfleet.errors import ConfigurationError, ShardfleetError
from shardfleet.foreign import read_bytes, read_json
from shardfleet_spark.aws.schema_registries import (
    ConfluentRegistry,
    GlueRegistry,
    KeptSchemas,
    NoSuchSchema,
    Registry,
)
from shardfleet_spark.host.files import file_system
from shardfleet_spark.payload.avro_payload import NoAvroRecord, avro_reader, struct_of_avro
from shardfleet_spark.payload.frames import AVRO_CONFLUENT, AVRO_GLUE, FRAMES
from shardfleet_spark.payload.growth import grown, misfit, missing_fields
from shardfleet_spark.payload.kinds import SCHEMAS

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

REGISTRY = "registry"
OPTIONS = {
    AVRO_CONFLUENT: (REGISTRY, SCHEMAS),
    AVRO_GLUE: ("region", "endpoint", "roleArn", SCHEMAS),
}
"""Payload options of each kind."""
_PLACE = (REGISTRY, "region", "endpoint", "roleArn")

UNKNOWN_MOST = 100
"""So many ids that the registry has not are asked for in a task; a frame may make up any id."""
ASKED_IN_VAIN_S = 60
"""No longer is asked in a task for ids that the registry has not."""
SCHEMAS_MOST = 1_000
"""So many schemas a task reads by: a registry may have whatever a frame makes up."""
ASKED_S = 600
"""When asking took a task longer, it fails; its process knows what was answered until then."""
_SHOWN = 300

_MET = "met-"
_READ = "read.json"


class SchemaGrew(ShardfleetError):
    """A record's schema has fields that the column has not; they are noted for the next start."""


@dataclass(frozen=True)
class Registered:
    """
    How payloads of a registry are read.

    Attributes:
        kind: of the payload.
        options: see `OPTIONS`.

    Raises:
        ConfigurationError: an option is not known, or is missing.

    """

    kind: str
    options: Mapping[str, str]

    def __post_init__(self) -> None:
        """Refuse options that the kind has not."""
        allowed = OPTIONS[self.kind]
        wrong = sorted(set(self.options) - set(allowed))
        if wrong:
            raise ConfigurationError(
                f"payload option {', '.join(wrong)}: {self.kind} has {', '.join(allowed)}"
            )
        if self.kind == AVRO_CONFLUENT and REGISTRY not in self.options:
            raise ConfigurationError(
                f"payload {self.kind}: payload option {REGISTRY} is missing: the registry's URL"
            )

    @property
    def registry(self) -> Registry:
        """The registry, one in a process."""
        return _registry_at(self.kind, **{key: self.options.get(key, "") for key in _PLACE})

    def struct(self, schema: str) -> StructType:
        """
        Return the type of the payloads: that of a schema, and all that was met before.

        What was met is written down as one type, so that its fields keep their order.

        Args:
            schema: Avro's JSON, or an id of the registry.

        Raises:
            ConfigurationError: it is neither.

        """
        if schema.lstrip().startswith("{"):
            first = struct_of_avro(schema)
        else:
            try:
                first = struct_of_registered(schema, self.registry.schema_of(schema))
            except NoSuchSchema as error:
                raise ConfigurationError(
                    f"payload schema {schema!r}: {error}; Avro's JSON or an id that it has is "
                    "needed"
                ) from error
        folder = self.options.get(SCHEMAS)
        if not folder:
            return first
        noted = _Noted(folder)
        read = grown(noted.read() or first, first)
        for each in noted.met():
            read = grown(read, each)
        assert isinstance(read, StructType)
        noted.write(_READ, read)
        return read


def struct_of_registered(schema_id: str, text: str) -> StructType:
    """
    Return the type of the payloads of a registry's schema.

    Raises:
        ConfigurationError: it has none; a text that is no schema is not quoted.

    """
    try:
        return struct_of_avro(text)
    except NoAvroRecord:
        raise ConfigurationError(
            f"schema {schema_id} of the registry: an Avro record is needed"
        ) from None


@lru_cache(maxsize=8)
def _registry_at(kind: str, *, registry: str, region: str, endpoint: str, roleArn: str) -> Registry:  # noqa: N803 - the option's
    if kind == AVRO_CONFLUENT:
        return KeptSchemas(ConfluentRegistry(registry))
    from shardfleet.adapters.clients.account_access import (  # noqa: PLC0415 - needs boto3
        Access,
        AccountClients,
    )

    access = Access(region=region, endpoint=endpoint, role_arn=roleArn)
    return KeptSchemas(GlueRegistry(AccountClients(access).glue))


def parse_registered(
    df: DataFrame, schema: str, *, kind: str, column: str, options: Mapping[str, str]
) -> DataFrame:
    """
    Add ``payload`` and ``bad_record``; see :func:`shardfleet_spark.payload.parsing.parse_payload`.

    Raises:
        ConfigurationError: the schema or an option is wrong.

    """
    how = Registered(kind, dict(options))
    struct = how.struct(schema)
    wanted = StructType(
        [*df.schema.fields, StructField("bad_record", StringType()), StructField("payload", struct)]
    )
    read = partial(
        _read, kind=kind, options=dict(options), struct_json=struct.json(), column=column
    )
    return df.mapInArrow(read, wanted)


def _read(
    batches: Iterable[pa.RecordBatch],
    *,
    kind: str,
    options: Mapping[str, str],
    struct_json: str,
    column: str,
) -> Iterator[pa.RecordBatch]:
    reader = _Reader(Registered(kind, options), StructType.fromJson(json.loads(struct_json)))
    for batch in batches:
        results = [reader.read(each) for each in batch.column(column).cast(pa.binary()).to_pylist()]
        yield pa.RecordBatch.from_arrays(
            [
                *batch.columns,
                pa.array([problem for _, problem in results], pa.string()),
                pa.array([value for value, _ in results], reader.arrow),
            ],
            names=[*batch.schema.names, "bad_record", "payload"],
        )


class _Reader:
    """
    Reads the payloads of a task.

    Args:
        how: they are read.
        struct: the column's type.
        registry: that is asked (default: the one of `how`).
        now_s: a clock that only goes forwards.

    """

    def __init__(
        self,
        how: Registered,
        struct: StructType,
        *,
        registry: Registry | None = None,
        now_s: Callable[[], float] = time.monotonic,
    ) -> None:
        from pyspark.sql.pandas.types import to_arrow_type  # noqa: PLC0415 - in the tasks alone

        self._how = how
        self._registry = registry or how.registry
        self._now_s = now_s
        self._unknown = 0
        self._asked_s = self._in_vain_s = 0.0
        self._frame = FRAMES[how.kind]
        self._struct = struct
        self.arrow: pa.DataType = to_arrow_type(struct)
        self._readers: dict[str, Any] = {}

    def read(self, data: bytes | None) -> tuple[Any, str | None]:
        """Return a payload's value and what is wrong with it, one of them None."""
        if data is None:
            return None, "there is no data"
        try:
            schema_id, body = self._frame(data)
        except ValueError as error:
            return None, str(error)
        read = self._readers.get(schema_id)
        if read is None:
            if refusal := self._refusal():
                return None, f"schema {schema_id} was not asked for: {refusal}"
            read = self._readers[schema_id] = self._reader_of(schema_id)
        if isinstance(read, str):
            return None, read
        found: tuple[Any, str | None] = read(body)
        return found

    def _refusal(self) -> str:
        """Return why no further schema is asked for; nothing where one may be."""
        if self._unknown >= UNKNOWN_MOST or self._in_vain_s >= ASKED_IN_VAIN_S:
            return f"the registry had none of {self._unknown} ids before it"
        if len(self._readers) >= SCHEMAS_MOST:
            return f"a task does not read by more than {SCHEMAS_MOST} schemas"
        return ""

    def _asked(self, schema_id: str) -> str:
        """Ask for a schema; raise ShardfleetError when asking took too long altogether."""
        if self._asked_s >= ASKED_S:
            raise ShardfleetError(
                f"{len(self._readers)} schemas took the registry {self._asked_s:.0f} s, more than "
                "a task waits for; what was answered is known when it is tried again"
            )
        begun_s = self._now_s()
        try:
            return self._registry.schema_of(schema_id)
        except NoSuchSchema:
            self._unknown += 1
            self._in_vain_s += self._now_s() - begun_s
            raise
        finally:
            self._asked_s += self._now_s() - begun_s

    def _reader_of(self, schema_id: str) -> Any:
        """Return the function that reads a schema's payloads, or why there is none."""
        try:
            text = self._asked(schema_id)
            written = struct_of_registered(schema_id, text)
            read, _ = avro_reader(text)
        except (NoSuchSchema, ConfigurationError) as error:
            return str(error)[:_SHOWN]
        if said := misfit(self._struct, written):
            return f"schema {schema_id}: {said}"[:_SHOWN]
        if more := list(missing_fields(self._struct, written)):
            self._note(schema_id, written, ", ".join(".".join(path) for path, _ in more))
        return read

    def _note(self, schema_id: str, written: StructType, more: str) -> None:
        more = more if len(more) <= _SHOWN else f"{more[:_SHOWN]} …"
        folder = self._how.options.get(SCHEMAS)
        if not folder:
            raise ConfigurationError(
                f"schema {schema_id} of the registry has further fields: {more}; name it as the "
                f"schema, or give payload option {SCHEMAS}, a folder where what was met is kept"
            )
        _Noted(folder).write(f"{_MET}{schema_id}.json", written)
        raise SchemaGrew(
            f"schema {schema_id} of the registry has further fields: {more}; they are noted, and "
            "are columns when the query is started again"
        )


def has_met_more(folder: str) -> bool:
    """Return whether schemas were met that the type of the payloads had no room for."""
    noted = _Noted(folder)
    read = noted.read()
    return read is not None and any(any(missing_fields(read, each)) for each in noted.met())


class _Noted:
    """The types in a folder: those that were met, and what was made of them."""

    def __init__(self, folder: str) -> None:
        self._system, self._root = file_system(folder)

    def read(self) -> StructType | None:
        """Return what was made of those that were met; None: nothing yet."""
        path = f"{self._root}/{_READ}"
        if self._system.get_file_info(path).type == fs.FileType.NotFound:
            return None
        return self._type_in(path)

    def met(self) -> list[StructType]:
        """Return the types that were met."""
        files = self._system.get_file_info(fs.FileSelector(self._root, allow_not_found=True))
        return [
            self._type_in(each.path)
            for each in sorted(files, key=lambda each: str(each.base_name))
            if each.base_name.startswith(_MET)
        ]

    def write(self, name: str, found: StructType) -> None:
        """Write a type, whole or not at all."""
        self._system.create_dir(self._root, recursive=True)
        aside = f"{self._root}/_writing-{uuid4().hex}"
        with self._system.open_output_stream(aside) as output:
            output.write(found.json().encode())
        self._system.move(aside, f"{self._root}/{name}")

    def _type_in(self, path: str) -> StructType:
        with self._system.open_input_stream(path) as stored:
            try:
                return StructType.fromJson(read_json(read_bytes(stored)))
            except Exception as error:  # PySpark may raise anything.
                raise ConfigurationError(
                    f"payload option {SCHEMAS}: {path} is no type that was written there "
                    f"({type(error).__name__}); name another folder"
                ) from error
