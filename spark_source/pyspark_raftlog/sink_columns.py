"""The columns that a sink accepts: names, types, and advice for other columns. Pure.

The names are those of Spark's Kafka connector, and ``timestamp``: the record's own time, which a
replay into another topic keeps.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    ByteType,
    CharType,
    DataType,
    IntegerType,
    LongType,
    ShortType,
    StringType,
    StructType,
    TimestampType,
    VarcharType,
)

from raftlog.errors import InvalidRequestError


@dataclass(frozen=True, slots=True)
class SinkColumns:
    """Index of each written column in a DataFrame; None if it is missing."""

    value: int
    key: int | None = None
    headers: int | None = None
    topic: int | None = None
    partition: int | None = None
    timestamp: int | None = None


_TEXT: Final = (StringType, CharType, VarcharType)
_OCTETS: Final = (BinaryType, *_TEXT)
_INTEGER: Final = (ByteType, ShortType, IntegerType, LongType)


def _is_headers(data_type: DataType) -> bool:
    """Return whether the type is array<struct<key, value>>, in this order."""
    if not isinstance(data_type, ArrayType) or not isinstance(data_type.elementType, StructType):
        return False
    fields = data_type.elementType.fields
    return (
        [field.name.lower() for field in fields] == ["key", "value"]
        and isinstance(fields[0].dataType, _TEXT)
        and isinstance(fields[1].dataType, _OCTETS)
    )


# Columns of a read that are not written. A table without listed columns has both.
_OF_READS: Final = frozenset({"offset", "timestamptype"})
# Accepted types of each column: text for messages, and the check.
_COLUMNS: Final[dict[str, tuple[str, Callable[[DataType], bool]]]] = {
    "value": ("string or binary", lambda kind: isinstance(kind, _OCTETS)),
    "key": ("string or binary", lambda kind: isinstance(kind, _OCTETS)),
    "headers": ("array<struct<key:string,value:binary>>", _is_headers),
    "topic": ("string", lambda kind: isinstance(kind, _TEXT)),
    "partition": ("int", lambda kind: isinstance(kind, _INTEGER)),
    "timestamp": ("timestamp", lambda kind: isinstance(kind, TimestampType)),
}


def sink_columns(schema: StructType, *, topic: str | None) -> SinkColumns:
    """Return the columns of a DataFrame to write, if the sink accepts them.

    ``topic``: the option; if it is set, a column ``topic`` is ignored. Names are case-insensitive.
    Raises ``InvalidRequestError``, which contains the remedy.
    """
    found: dict[str, int] = {}
    for index, field in enumerate(schema.fields):
        name = field.name.lower()
        if name not in _COLUMNS:
            raise InvalidRequestError(_unknown_column(field.name, schema))
        if name in found:
            raise InvalidRequestError(f"the DataFrame has two columns {name!r}: drop one of them")
        wanted, fits = _COLUMNS[name]
        if not fits(field.dataType):
            raise InvalidRequestError(
                f"column {field.name!r} is {field.dataType.simpleString()}, where {wanted} is "
                f"needed. {_cast_advice(name, field.dataType)}"
            )
        found[name] = index
    if "value" not in found:
        raise InvalidRequestError(
            "the DataFrame has no column 'value', which becomes the records' values: create one, "
            'for example with .selectExpr("to_json(struct(*)) AS value")'
        )
    if topic is None and "topic" not in found:
        raise InvalidRequestError(
            "no topic to write to: set the option topic, or add a column 'topic'"
        )
    if topic is not None:
        found.pop("topic", None)
    return SinkColumns(**found)


def _unknown_column(name: str, schema: StructType) -> str:
    if name.lower() in _OF_READS and {each.name.lower() for each in schema.fields} >= _OF_READS:
        return (
            f"column {name!r} is only read: brokers assign it. Leave it out: .select('key', "
            "'value'). For INSERT INTO a table that was created without columns, to which Spark "
            "adds all that it has: insert into a table of the columns to write, as in CREATE TABLE "
            "sink (key string, value string) USING raftlog"
        )
    known = [repr(field.name) for field in schema.fields if field.name.lower() in _COLUMNS]
    if known:
        advice = f"Leave it out: .select({', '.join(known)})"
    else:
        advice = 'Put all columns into one: .selectExpr("to_json(struct(*)) AS value")'
    return f"column {name!r} is not a column of records: {', '.join(_COLUMNS)}. {advice}"


def _cast_advice(name: str, data_type: DataType) -> str:
    if name == "headers":
        return "Its fields are named key and value, in this order"
    if isinstance(data_type, (StructType, ArrayType)):
        return f'Turn it into text: .withColumn("{name}", to_json("{name}"))'
    return f'Cast it: .withColumn("{name}", col("{name}").cast("{_COLUMNS[name][0].split()[0]}"))'
