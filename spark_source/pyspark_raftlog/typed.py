"""Reading values with the ID of a schema (option value=typed): fields of the values as columns.

The columns are those of the latest schema of ``TOPIC-value`` in the registry, when the read is
planned. A task decodes each value with the schema of its ID, and resolves it to this one.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import lru_cache, partial
from typing import TYPE_CHECKING, NamedTuple

from pyspark.errors import PySparkException
from pyspark.sql.types import DataType, StructField, StructType

from pyspark_raftlog import clients
from pyspark_raftlog.clients import Connection
from pyspark_raftlog.schema import (
    check_schema,
    is_record_column,
    json_field,
    read_schema,
    select_columns,
    shown_field,
)
from raftlog.client.scan import schema_at, schema_of_values
from raftlog.client.scan_values import TypedDecoder
from raftlog.errors import InvalidRequestError, UnsupportedFeatureError
from raftlog.registry.formats import Parsed, parse

if TYPE_CHECKING:
    import pyarrow as pa

_FETCHED_MAX = 1_000  # schemas that a process keeps


class ReaderSchema(NamedTuple):
    """The schema of the columns, as it travels to the tasks."""

    kind: str
    text: str
    named: tuple[tuple[str, str], ...]

    @classmethod
    def latest(cls, connection: Connection, topic: str) -> ReaderSchema:
        """Fetch the latest schema of the values of a topic. Raises ``SchemaError``."""
        with clients.catalogs.lend(connection) as catalog:
            found = schema_of_values(partial(schema_at, catalog.admin), topic)
        return cls(found.kind, found.text, tuple(found.named))

    def decoder(self, connection: Connection, *, null_on_error: bool) -> TypedDecoder:
        """Return a decoder of values. Raises ``UnsupportedFeatureError`` for Protobuf."""
        reader = parse(self.kind, self.text, self.named)
        return TypedDecoder(partial(_fetched, connection), reader, null_on_error=null_on_error)


@lru_cache(_FETCHED_MAX)
def _fetched(connection: Connection, path: str) -> Parsed:
    with clients.catalogs.lend(connection) as catalog:
        return schema_at(catalog.admin, path)


def typed_schema(
    fields: pa.Schema, columns: Sequence[str] | None, *, include_headers: bool
) -> StructType:
    """Return the columns of a read: those of records, with ``fields`` in place of the value.

    ``fields``: of ``TypedDecoder``. A field with the name of a column of records has the prefix
    ``value_``. ``columns``: selects some of them. Raises ``UnsupportedFeatureError`` for a type
    that Spark does not have, and ``InvalidRequestError`` for unknown columns.
    """
    full: list[StructField | pa.Field] = []
    for field in read_schema(None, include_headers=include_headers or columns is not None):
        full += fields if field.name == "value" else [field]
    names = [
        each.name if isinstance(each, StructField) else shown_field(each.name) for each in full
    ]
    chosen = range(len(names)) if columns is None else select_columns(names, columns)
    found = StructType()
    for index in chosen:
        each = full[index]
        if not isinstance(each, StructField):
            each = StructField(names[index], _spark_type(each))
        found.add(each)
    return found


def check_typed_schema(
    schema: StructType, fields: pa.Schema, columns: Sequence[str] | None
) -> StructType:
    """Return ``schema`` if its columns are those of records, or of ``fields`` with their types.

    Raises ``InvalidRequestError`` and ``UnsupportedFeatureError``.
    """
    check_schema(schema, columns, fields=True)
    for column in schema:
        if is_record_column(column.name):
            continue
        name = json_field(column.name)
        if name not in fields.names:
            raise InvalidRequestError(
                f"the schema names {column.name!r}, which is no field of the values: there are "
                f"{', '.join(fields.names)}"
            )
        known = _spark_type(fields.field(name))
        if _bare(column.dataType) != _bare(known):
            raise InvalidRequestError(
                f"the schema declares column {column.name!r} as {column.dataType.simpleString()}: "
                f"it is {known.simpleString()} in the registry. Declare it so, and cast it "
                "afterwards, or leave the schema out"
            )
    return schema


def _bare(data_type: DataType) -> str:
    """Return the type without nullability, which is not compared."""
    return data_type.simpleString()


def _spark_type(field: pa.Field) -> DataType:
    import pyarrow as pa
    from pyspark.sql.pandas.types import from_arrow_type, to_arrow_type

    kind = pa.time64("us") if pa.types.is_time32(field.type) else field.type
    try:
        found: DataType = from_arrow_type(kind, prefer_timestamp_ntz=True)
        to_arrow_type(found, timezone="UTC")  # refuses decimals of too many digits
    except (PySparkException, ValueError) as error:
        raise UnsupportedFeatureError(
            f"value=typed: Spark has no type for the field {field.name!r}, which is {field.type}. "
            "Name the other fields in the option columns, or use value=raw"
        ) from error
    return found


def decoded(
    decoder: TypedDecoder, batch: pa.RecordBatch, fields: Mapping[str, pa.DataType]
) -> list[pa.Array]:
    """Return the columns ``fields``, by the names of the fields, as the types of Spark.

    ``batch``: with the columns ``value`` and ``headers``. Raises ``BadValueError``. Times are
    rounded down to microseconds.
    """
    arrays = decoder.decode(batch.column("value"), batch.column("headers"), list(fields))
    return [
        each.cast(data_type, safe=False)
        for each, data_type in zip(arrays, fields.values(), strict=True)
    ]
