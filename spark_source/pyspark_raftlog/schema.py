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
    BooleanType,
    DataType,
    DoubleType,
    FloatType,
    IntegerType,
    LongType,
    ShortType,
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


def check_schema(
    schema: StructType,
    columns: Sequence[str] | None = None,
    *,
    json: bool = False,
    fields: bool = False,
) -> StructType:
    """Return ``schema`` if it is a subset of the columns, in any order.

    A column that never has nulls may be declared ``not null``. ``columns``: the value of the
    option, which must be equal. With ``json`` or ``fields``, all other columns are fields of the
    values; those of JSON have types of JSON. Raises ``InvalidRequestError``.
    """
    if columns is not None and _folded(columns) != _folded(schema.fieldNames()):
        raise InvalidRequestError(
            f"the schema names {', '.join(schema.fieldNames())}, and the option columns names "
            f"{', '.join(columns)}: leave one of them out"
        )
    if not schema.fields:
        raise InvalidRequestError(f"the schema names no column: name some of {_known()}")
    for field in schema:
        if (json or fields) and not is_record_column(field.name):
            if json:
                _check_json(field.name, field.dataType)
            if not field.nullable:
                raise InvalidRequestError(
                    f"the schema declares column {field.name!r} as not null: a field may be "
                    "missing in a value. Leave `not null` out"
                )
            continue
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


def check_no_json(json: bool) -> None:
    """Raise ``InvalidRequestError`` if JSON values are to be columns and there is no schema."""
    if json:
        raise InvalidRequestError(
            "value=json needs a schema with the fields of the values, and with the columns of the "
            'records that are needed: .schema("offset long, page string, ms int")'
        )


_JSON_TYPES: Final = (
    StringType,
    BooleanType,
    ShortType,
    IntegerType,
    LongType,
    FloatType,
    DoubleType,
)
_JSON_PREFIX: Final = "value_"  # of a JSON field that has the name of a column


def is_record_column(name: str) -> bool:
    """Return whether this is a column of records, and not a field of JSON values."""
    return name.lower() in _FIELDS


def json_field(name: str) -> str:
    """Return the JSON field of a column: ``value_offset`` is the field ``offset``."""
    bare = name.removeprefix(_JSON_PREFIX)
    return bare if is_record_column(bare) else name


def shown_field(name: str) -> str:
    """Return the column of a field: the inverse of ``json_field``."""
    return f"{_JSON_PREFIX}{name}" if is_record_column(name) else name


def select_columns(known: Sequence[str], columns: Sequence[str]) -> list[int]:
    """Return the places of ``columns``, the value of the option, in ``known``.

    Names are case-insensitive; of names that differ in case only, the one as it is written.
    Raises ``InvalidRequestError``.
    """
    places = {name: place for place, name in enumerate(_folded(known))}
    places |= {name: place for place, name in enumerate(known)}
    found: list[int] = []
    for name in map(str.strip, columns):
        place = places.get(name, places.get(name.lower()))
        if place is None:
            raise InvalidRequestError(
                f"the option columns names {name!r}, which is no column: there are "
                f"{', '.join(known)}"
            )
        found.append(place)
    _check_distinct(columns, "the option columns")
    return found


def _check_json(name: str, data_type: DataType) -> None:
    """Raise ``InvalidRequestError`` for a type that JSON does not have."""
    if isinstance(data_type, ArrayType):
        _check_json(name, data_type.elementType)
    elif isinstance(data_type, StructType):
        for field in data_type:
            _check_json(f"{name}.{field.name}", field.dataType)
    elif not isinstance(data_type, _JSON_TYPES):
        raise InvalidRequestError(
            f"the schema declares the JSON field {name!r} as {data_type.simpleString()}: with "
            "value=json the types are string, boolean, short, int, long, float, double, and "
            "arrays and structs of them. Declare it as string, and cast it afterwards: "
            f'df.selectExpr("cast({name} as {data_type.simpleString()})")'
        )


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
    """Names in ``decode_arrow`` of the columns of ``schema`` that records have, in order."""
    names = (_FIELDS[f.name.lower()].name for f in schema if is_record_column(f.name))
    return [_ARROW_NAMES.get(name, name) for name in names]


def arrow_schema(schema: StructType) -> pa.Schema:
    """Return the only Arrow schema that Spark accepts for a DataFrame of ``schema``."""
    from pyspark.sql.pandas.types import to_arrow_schema

    return to_arrow_schema(schema, timezone="UTC")
