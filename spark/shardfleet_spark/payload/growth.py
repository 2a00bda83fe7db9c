"""How the type of a table or payload grows: columns are added, and none goes or changes."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from pyspark.sql.types import (
    ArrayType,
    DataType,
    DoubleType,
    FloatType,
    IntegerType,
    LongType,
    MapType,
    StructField,
    StructType,
)

_WIDER: Mapping[type[DataType], tuple[type[DataType], ...]] = {
    IntegerType: (LongType, DoubleType),
    FloatType: (DoubleType,),
}
"""What a written number may be read as without a loss; a part of Avro's "Schema Resolution"."""


def missing_fields(
    there: DataType, wanted: DataType, path: tuple[str, ...] = ()
) -> Iterator[tuple[tuple[str, ...], DataType]]:
    """Yield the fields that a type lacks of another, however deep: path and type."""
    match there, wanted:
        case StructType(), StructType():
            types = {field.name.lower(): field.dataType for field in there}
            for field in wanted:
                at = (*path, field.name)
                if field.name.lower() in types:
                    yield from missing_fields(types[field.name.lower()], field.dataType, at)
                else:
                    yield at, field.dataType
        case ArrayType(), ArrayType():
            yield from missing_fields(there.elementType, wanted.elementType, (*path, "element"))
        case MapType(), MapType():
            yield from missing_fields(there.valueType, wanted.valueType, (*path, "value"))
        case _:
            return


def grown(there: DataType, wanted: DataType) -> DataType:
    """Return a type with the fields that it lacks of another behind its own, however deep."""
    match there, wanted:
        case StructType(), StructType():
            types = {field.name.lower(): field.dataType for field in wanted}
            names = {field.name.lower() for field in there}
            own = [
                StructField(field.name, grown(field.dataType, types[field.name.lower()]))
                if field.name.lower() in types
                else field
                for field in there
            ]
            return StructType([*own, *(each for each in wanted if each.name.lower() not in names)])
        case ArrayType(), ArrayType():
            return ArrayType(grown(there.elementType, wanted.elementType))
        case MapType(), MapType():
            return MapType(there.keyType, grown(there.valueType, wanted.valueType))
        case _:
            return there


def misfit(read: DataType, written: DataType, path: str = "payload") -> str:
    """
    Return why values of a type cannot be read as another; empty: they can.

    A field that only one of them has is none of its business.
    """
    match read, written:
        case StructType(), StructType():
            fields = {field.name.lower(): field for field in read}
            for field in written:
                own = fields.get(field.name.lower())
                if own is None:
                    continue
                if own.name != field.name:
                    return f"{path}.{field.name} is {own.name} in the schema that is read"
                if said := misfit(own.dataType, field.dataType, f"{path}.{field.name}"):
                    return said
            return ""
        case ArrayType(), ArrayType():
            return misfit(read.elementType, written.elementType, f"{path}[]")
        case MapType(), MapType():
            return misfit(read.valueType, written.valueType, f"{path}{{}}")
        case _:
            if read == written or type(read) in _WIDER.get(type(written), ()):
                return ""
            found, wanted = written.simpleString(), read.simpleString()
            return f"{path} is {found}, which cannot be read as {wanted}"
