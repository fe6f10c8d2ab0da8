"""The columns of a DataFrame that is read from topics: their names, types and order. No I/O.

The names and types are those of Spark's Kafka connector. Spark accepts an Arrow batch only if its
schema is exactly the one that Spark derives from the DataFrame's: order, types and nullability.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Final

from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    IntegerType,
    LongType,
    StringType,
    StructField,
    StructType,
    TimestampType,
)

from raftlog.errors import InvalidRequestError, UnsupportedFeatureError
from raftlog.install import install_command

if TYPE_CHECKING:
    import pyarrow as pa

_HEADER: Final = StructType([StructField("key", StringType()), StructField("value", BinaryType())])
_HEADERS: Final = "headers"

# In the order of the Kafka connector.
ALL_COLUMNS: Final = StructType(
    [
        StructField("key", BinaryType()),
        StructField("value", BinaryType()),
        StructField("topic", StringType()),
        StructField("partition", IntegerType()),
        StructField("offset", LongType()),
        StructField("timestamp", TimestampType()),
        StructField("timestampType", IntegerType()),
        StructField(_HEADERS, ArrayType(_HEADER)),
    ]
)
_FIELDS: Final = {field.name.lower(): field for field in ALL_COLUMNS}
_HAVE_NULLS: Final = frozenset({"key", "value", _HEADERS})
# Names of columns in `decode_arrow`, where they differ.
_ARROW_NAMES: Final = {"timestampType": "timestamp_type"}


def read_schema(
    columns: Sequence[str] | None = None, *, include_headers: bool = False
) -> StructType:
    """Return the schema of a read: ``columns`` in their order, or all of them.

    ``include_headers`` adds the headers if ``columns`` is None; otherwise ``columns`` must name
    ``headers``. Names are case-insensitive. Raises ``InvalidRequestError``.
    """
    if columns is None:
        return StructType([f for f in ALL_COLUMNS if include_headers or f.name != _HEADERS])
    if not columns:
        raise InvalidRequestError(f"the option columns names no column: name some of {_known()}")
    chosen = [_field(name, "the option columns") for name in columns]
    _check_distinct(columns, "the option columns")
    return StructType(chosen)


def check_schema(schema: StructType, columns: Sequence[str] | None = None) -> StructType:
    """Return ``schema`` if it is a subset of the columns, in any order.

    A column that never has nulls may be declared ``not null``. ``columns``: the value of the
    option, which must be equal. Raises ``InvalidRequestError``.
    """
    if columns is not None and _folded(columns) != _folded(schema.fieldNames()):
        raise InvalidRequestError(
            f"the schema names {', '.join(schema.fieldNames())}, and the option columns names "
            f"{', '.join(columns)}: leave one of them out"
        )
    if not schema.fields:
        raise InvalidRequestError(f"the schema names no column: name some of {_known()}")
    for field in schema:
        known = _field(field.name, "the schema")
        if field.dataType != known.dataType:
            raise InvalidRequestError(
                f"the schema declares column {field.name!r} as {field.dataType.simpleString()}: it "
                f"is {known.dataType.simpleString()}. Declare it so, and cast it afterwards: "
                f'df.selectExpr("cast({known.name} as {field.dataType.simpleString()})")'
            )
        if not field.nullable and known.name in _HAVE_NULLS:
            raise InvalidRequestError(
                f"the schema declares column {field.name!r} as not null: a record's {known.name} "
                "may be null. Leave `not null` out"
            )
    _check_distinct(schema.fieldNames(), "the schema")
    return schema


def _field(name: str, where: str) -> StructField:
    field = _FIELDS.get(name.strip().lower())
    if field is None:
        raise InvalidRequestError(
            f"{where} names {name!r}, which is no column: there are {_known()}"
        )
    return field


def _check_distinct(names: Sequence[str], where: str) -> None:
    seen: set[str] = set()
    for name in _folded(names):
        if name in seen:
            raise InvalidRequestError(f"{where} names column {name!r} twice: name it once")
        seen.add(name)


def _folded(names: Sequence[str]) -> list[str]:
    return [name.strip().lower() for name in names]


def _known() -> str:
    return ", ".join(field.name for field in ALL_COLUMNS)


# -- Arrow -----------------------------------------------------------------------------------------


def check_arrow() -> None:
    """Raise ``UnsupportedFeatureError`` if there is no pyarrow."""
    try:
        import pyarrow as pa  # noqa: F401 - to see whether it can be
    except ImportError as error:
        raise UnsupportedFeatureError(
            "topics in Spark need pyarrow, on the driver and on every executor. Run "
            f"{install_command('spark')} ({error})"
        ) from error


def arrow_columns(schema: StructType) -> list[str]:
    """Names of the columns of ``schema`` in ``decode_arrow``, in order."""
    names = (_FIELDS[field.name.lower()].name for field in schema)
    return [_ARROW_NAMES.get(name, name) for name in names]


def arrow_schema(schema: StructType) -> pa.Schema:
    """Return the only Arrow schema that Spark accepts for a DataFrame of ``schema``."""
    from pyspark.sql.pandas.types import to_arrow_schema

    return to_arrow_schema(schema, timezone="UTC")
