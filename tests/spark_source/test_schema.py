"""The columns of a read: which, in which order, of which type, and what is refused."""

from __future__ import annotations

import sys

import pyarrow as pa
import pytest
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.types import (
    BinaryType,
    DataType,
    IntegerType,
    LongType,
    MapType,
    StringType,
    StructField,
    StructType,
    TimestampNTZType,
)

from pyspark_raftlog.schema import (
    ALL_COLUMNS,
    arrow_columns,
    arrow_schema,
    check_arrow,
    check_schema,
    read_schema,
)
from raftlog.errors import InvalidRequestError, UnsupportedFeatureError

KAFKAS = (
    "struct<key:binary,value:binary,topic:string,partition:int,offset:bigint,timestamp:timestamp,"
    "timestampType:int>"
)
HEADERS = "array<struct<key:string,value:binary>>"


def schema(*fields: tuple[str, DataType], nullable: bool = True) -> StructType:
    return StructType([StructField(name, kind, nullable) for name, kind in fields])


def test_the_columns_are_those_of_kafkas_connector() -> None:
    assert read_schema().simpleString() == KAFKAS
    assert read_schema(include_headers=True) == ALL_COLUMNS
    assert ALL_COLUMNS["headers"].dataType.simpleString() == HEADERS
    assert all(field.nullable for field in ALL_COLUMNS)


def test_columns_are_chosen_by_name_in_any_case_and_order() -> None:
    chosen = read_schema([" OFFSET", "value", "timestamptype"])
    assert chosen.fieldNames() == ["offset", "value", "timestampType"]
    assert read_schema(["headers"]).fieldNames() == ["headers"]
    assert read_schema(["value"], include_headers=True).fieldNames() == ["value"]


def test_a_schema_may_be_a_subset_and_is_kept_as_it_was_given() -> None:
    given = schema(("Value", BinaryType()), ("headers", ALL_COLUMNS["headers"].dataType))
    given = given.add(StructField("offset", LongType(), nullable=False))
    assert check_schema(given) is given
    assert arrow_columns(given) == ["value", "headers", "offset"]
    assert arrow_schema(given).names == ["Value", "headers", "offset"]
    assert check_schema(ALL_COLUMNS) is ALL_COLUMNS


@pytest.mark.parametrize(
    ("columns", "message"),
    [
        (["value", "offsett"], r"names 'offsett', which is no column: there are key, value, topic"),
        (["value", "Value"], r"names column 'value' twice"),
        ([], r"names no column"),
        ([""], r"names '', which is no column"),
    ],
)
def test_columns_that_make_no_sense(columns: list[str], message: str) -> None:
    with pytest.raises(InvalidRequestError, match=f"the option columns {message}"):
        read_schema(columns)


@pytest.mark.parametrize(
    ("given", "message"),
    [
        (schema(("valeu", BinaryType())), "names 'valeu', which is no column"),
        (schema(("value", StringType())), "column 'value' as string: it is binary"),
        (schema(("offset", IntegerType())), "column 'offset' as int: it is bigint"),
        (schema(("timestamp", TimestampNTZType())), "as timestamp_ntz: it is timestamp"),
        (schema(("headers", MapType(StringType(), BinaryType()))), r"as map<.*>: it is array<"),
        (schema(("key", BinaryType()), nullable=False), "not null: a record's key may be null"),
        (schema(("offset", LongType()), ("OFFSET", LongType())), "column 'offset' twice"),
        (StructType(), "the schema names no column"),
    ],
)
def test_schemas_that_are_refused(given: StructType, message: str) -> None:
    with pytest.raises(InvalidRequestError, match=message):
        check_schema(given)


@pytest.mark.parametrize(
    ("given", "message"),
    [
        (schema(("at", TimestampNTZType())), r"JSON field 'at' as timestamp_ntz.*cast\(at as time"),
        (schema(("m", MapType(StringType(), BinaryType()))), "JSON field 'm' as map<"),
        (schema(("a", StructType([StructField("b", BinaryType())]))), r"JSON field 'a\.b' as bina"),
        (schema(("page", StringType()), nullable=False), "a field may be missing"),
        (schema(("offset", StringType())), "column 'offset' as string: it is bigint"),
        (schema(("a", LongType()), ("A", LongType())), "column 'a' twice"),
    ],
)
def test_schemas_of_json_that_are_refused(given: StructType, message: str) -> None:
    with pytest.raises(InvalidRequestError, match=message):
        check_schema(given, json=True)


def test_the_advice_for_a_wrong_type_is_a_cast() -> None:
    with pytest.raises(InvalidRequestError, match=r'df.selectExpr\("cast\(value as string\)"\)'):
        check_schema(schema(("VALUE", StringType())))


def test_a_schema_and_the_option_have_to_agree() -> None:
    given = schema(("value", BinaryType()), ("offset", LongType()))
    assert check_schema(given, [" VALUE", "offset"]) is given
    with pytest.raises(InvalidRequestError, match="names value, offset, and the option columns na"):
        check_schema(given, ["offset", "value"])


def test_the_arrow_schema_is_sparks_own() -> None:
    made = arrow_schema(ALL_COLUMNS)
    assert made == to_arrow_schema(ALL_COLUMNS, timezone="UTC")
    assert made.field("timestamp").type == pa.timestamp("us", "UTC")
    assert made.field("value").type == pa.binary()
    names = "key value topic partition offset timestamp timestamp_type headers"
    assert arrow_columns(ALL_COLUMNS) == names.split()


def test_without_pyarrow_it_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    check_arrow()
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    with pytest.raises(UnsupportedFeatureError, match=r"pip install -e '\.\[spark\]'"):
        check_arrow()
