"""JSON and Avro to Arrow: a row for each value, whatever a value contains."""

from __future__ import annotations

import json
from contextlib import nullcontext
from datetime import UTC, date, datetime
from decimal import Decimal
from typing import Any
from uuid import UUID

import pytest
from hypothesis import given
from hypothesis import strategies as st

pa = pytest.importorskip("pyarrow")

from raftlog import limits  # noqa: E402
from raftlog.client.scan_values import (  # noqa: E402
    BadValueError,
    JsonDecoder,
    TypedDecoder,
    decode_text,
    infer,
)
from raftlog.errors import InvalidRequestError, SchemaError, UnsupportedFeatureError  # noqa: E402
from raftlog.record.arrow import arrow_schema  # noqa: E402
from raftlog.registry.formats import AVRO, JSON, PROTOBUF, Parsed, parse  # noqa: E402
from raftlog.registry.values import encoder_of, with_id  # noqa: E402

IDS = pa.schema([("id", pa.int64())])


def decoded(values: list[bytes | None], *, null_on_error: bool = False) -> list[int | None]:
    (column,) = JsonDecoder(IDS, null_on_error=null_on_error).decode(pa.array(values, pa.binary()))
    found: list[int | None] = column.to_pylist()
    return found


PIECES = st.sampled_from(
    [b'{"id": 1}', b'{"id": 2', b"}", b'"', b"\n", b",", b'{"r":', b"[", b"null", b'"id"', b": 3"]
)


@given(st.lists(st.one_of(st.none(), st.lists(PIECES, max_size=3).map(b"".join)), max_size=8))
def test_pieces_of_json_never_shift_other_rows(values: list[bytes | None]) -> None:
    whole = [b'{"id": %d}' % row for row in range(len(values))]
    mixed = [each for pair in zip(values, whole, strict=True) for each in pair]
    assert decoded(mixed, null_on_error=True)[1::2] == [*range(len(values))]


@pytest.mark.parametrize(
    "bad",
    [
        *(b"", b" ", b"{", b'{"id": 1} {"id": 2}', b'{"id": 1},{"id": 2}', b"[1]", b"5", b"\xff"),
        *(b'{"id": 1.5}', b'{"id": "1"}', b'{"id": 99999999999999999999}'),
    ],
)
def test_a_value_that_does_not_match_is_found(bad: bytes) -> None:
    values: list[bytes | None] = [b'{"id": 1}', None, bad, b'{"id": 2}']
    with pytest.raises(BadValueError) as raised:
        decoded(values)
    assert raised.value.row == 2
    assert decoded(values, null_on_error=True) == [1, None, None, 2]


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        (b'{"n": NaN}', "nan"),
        (b'{"n": -Infinity}', "-inf"),
        (b'{"n": Inf}', "inf"),
        (b'{"n": NaN, "t": 1}', None),
        (b'{"t": "a\nb"}', None),
        (b'{"t": "a\rb"}', None),
        (b'{"t": "\xff"}', None),
        (b'{"x": "\xed\xa0\x80"}', None),
        (b'\r\n{"n":\n1\r}', "1.0"),
    ],
)
def test_a_value_is_the_same_among_any_others(value: bytes, expected: str | None) -> None:
    """The rows of a batch depend on its size, on compaction and on the bounds of the read."""
    schema = pa.schema([("n", pa.float64()), ("t", pa.string())])
    decoder = JsonDecoder(schema, null_on_error=True)
    for others in ([], [b'{"n": 2}'], [b"bad"]):
        number, _ = decoder.decode(pa.array([*others, value], pa.binary()))
        assert (None if (last := number.to_pylist()[-1]) is None else str(last)) == expected
    strict = JsonDecoder(schema, null_on_error=False)
    with nullcontext() if expected else pytest.raises(BadValueError):
        strict.decode(pa.array([value], pa.binary()))


def test_objects_may_have_line_breaks_nulls_and_other_fields() -> None:
    values = [json.dumps({"id": 1, "x": [1, {}]}, indent=2).encode(), b"null", b'{"x": 1}\r\n']
    assert decoded([*values]) == [1, None, None]


def test_large_whole_numbers_are_not_rounded() -> None:
    """Arrow alone makes doubles of them: the IDs of different things become equal."""
    large = [(1 << 63) + 1, (1 << 64) - 1, 9007199254740993]
    values = [b'{"id": %d, "at": {"ids": [%d, 1]}, "part": 1.5}' % (each, each) for each in large]
    column = pa.array([*values, b"{}"], pa.binary())
    schema = infer(column, null_on_error=False)
    assert schema is not None
    assert schema.field("id").type == pa.uint64()
    ids, at, part = JsonDecoder(schema, null_on_error=False).decode(column)
    assert ids.to_pylist() == [*large, None]
    assert [each and each["ids"] for each in at.to_pylist()] == [*([n, 1] for n in large), None]
    assert part.to_pylist() == [1.5, 1.5, 1.5, None]
    for other in (b'{"id": -1}', b'{"id": 0.5}', b'{"id": 1e19}'):  # one type for all values
        mixed = infer(pa.array([b'{"id": %d}' % large[0], other]), null_on_error=False)
        assert mixed == pa.schema([("id", pa.float64())])
    far = infer(pa.array([b'{"id": %d, "far": 1e300}' % large[0]]), null_on_error=False)
    assert far == pa.schema([("id", pa.uint64()), ("far", pa.float64())])


def test_types_are_inferred_without_guesses() -> None:
    values = [b'{"t": "2026-01-01T00:00:00", "n": null, "in": {"a": [1]}}', None, b'{"f": 1.5}']
    inner = pa.struct([("a", pa.list_(pa.int64()))])
    expected = [("t", pa.string()), ("n", pa.string()), ("in", inner), ("f", pa.float64())]
    assert infer(pa.array(values, pa.binary()), null_on_error=False) == pa.schema(expected)
    assert infer(pa.array([None], pa.binary()), null_on_error=False) is None
    mixed = pa.array([b"x", b'{"id": 1}', b'{"id": "x"}'], pa.binary())
    assert infer(mixed, null_on_error=True) == IDS
    unreadable = [b'{"id": [1, "x"]}'] * 3  # by Arrow: the elements differ in type
    mixed = pa.array([None, *unreadable, b'{"id": 1}', b'{"id": "x"}'], pa.binary())
    assert infer(mixed, null_on_error=True) == IDS
    assert infer(mixed[:4], null_on_error=True) is None
    mixed = mixed[4:]
    with pytest.raises(BadValueError):
        infer(mixed, null_on_error=False)
    with pytest.raises(InvalidRequestError, match="not objects"):
        infer(pa.array([b"1"], pa.binary()), null_on_error=False)


def test_values_of_too_many_levels_are_refused() -> None:
    for levels in (70, 1_200):
        deep = b'{"id": ' + b"[" * levels + b"]" * levels + b"}"
        with pytest.raises(InvalidRequestError, match="too many levels"):
            infer(pa.array([deep], pa.binary()), null_on_error=False)
    mixed = pa.array([deep, b'{"id": 1}'], pa.binary())
    assert infer(mixed, null_on_error=True) == IDS
    times = JsonDecoder(pa.schema([("id", pa.timestamp("us"))]), null_on_error=True)
    assert times.decode(pa.array([deep, b"{}"], pa.binary()))[0].to_pylist() == [None, None]


def test_text_is_utf8() -> None:
    values = pa.array(["é".encode(), b"\xff", None], pa.binary())
    assert decode_text(values, null_on_error=True).to_pylist() == ["é", None, None]
    with pytest.raises(BadValueError, match="not UTF-8"):
        decode_text(values, null_on_error=False)


# -- values with the ID of a schema ----------------------------------------------------------------

OLD = {"type": "record", "name": "R", "fields": [{"name": "a", "type": "int"}]}
NEW = {**OLD, "fields": [{"name": "a", "type": "long"},
                         {"name": "b", "type": ["null", "string"], "default": None}]}  # fmt: skip
GUID = "11111111-2222-3333-4444-555555555555"


class Registry:
    """Schemas by the end of their paths; notes what was asked."""

    def __init__(self, **schemas: Any) -> None:
        self.schemas = {
            path: parse(kind, json.dumps(text)) for path, (kind, text) in schemas.items()
        }
        self.asked: list[str] = []

    def __call__(self, path: str) -> Parsed:
        self.asked.append(path)
        found = self.schemas.get(path.rpartition("/")[2])
        if found is None:
            raise SchemaError("Schema not found", 40403)
        return found

    def decoder(self, reader: str, *, null_on_error: bool = False) -> TypedDecoder:
        return TypedDecoder(self, self.schemas[reader], null_on_error=null_on_error)


def avro(schema: Any, value: Any, schema_id: int) -> bytes:
    return with_id(schema_id, encoder_of(parse(AVRO, json.dumps(schema)))(value))


def columns(
    decoder: TypedDecoder, values: list[bytes | None], headers: Any = None
) -> list[list[Any]]:
    kind = arrow_schema().field("headers").type
    given = pa.array(headers or [None] * len(values), kind)
    arrays = decoder.decode(pa.array(values, pa.binary()), given, decoder.schema.names)
    assert [each.type for each in arrays] == decoder.schema.types
    return [each.to_pylist() for each in arrays]


def test_avro_values_are_resolved_from_the_schema_of_their_id() -> None:
    registry = Registry(**{"1": (AVRO, OLD), "2": (AVRO, NEW)})
    decoder = registry.decoder("2")
    old, new = avro(OLD, {"a": 1}, 1), avro(NEW, {"a": 2, "b": "x"}, 2)
    for _ in range(2):
        assert columns(decoder, [old, None, new, old]) == [[1, None, 2, 1], [None, None, "x", None]]
    assert decoder.schema.field("a").type == pa.int64()
    assert registry.asked == ["/schemas/ids/1", "/schemas/ids/2"]  # once each


def test_the_schema_can_be_in_a_header() -> None:
    registry = Registry(**{GUID: (AVRO, OLD), "1": (AVRO, OLD)})
    value = encoder_of(registry.schemas["1"])({"a": 0})  # begins like a value with an ID
    guid = [{"key": "__value_schema_id", "value": b"\1" + UUID(GUID).bytes}]
    found = columns(registry.decoder("1"), [value, avro(OLD, {"a": 5}, 1)], [guid, None])
    assert found == [[0, 5]]
    assert registry.asked[0] == f"/schemas/guids/{GUID}"


BAD = [
    (b"plain", "zero byte"),
    (b"\0\0\0", "zero byte"),
    (with_id(9, b"\2"), "9 is not in the registry"),
    (with_id(1, b""), "does not match"),
    (with_id(1, b"\2\2"), "follow the value"),
    (with_id(7, b"{}"), "7 is JSON, and that of the topic AVRO"),
]


@pytest.mark.parametrize(("bad", "reason"), BAD)
def test_a_value_that_is_not_of_a_known_schema(bad: bytes, reason: str) -> None:
    registry = Registry(**{"1": (AVRO, OLD), "7": (JSON, {"type": "object"})})
    good = avro(OLD, {"a": 3}, 1)
    with pytest.raises(BadValueError, match=reason) as caught:
        columns(registry.decoder("1"), [None, good, bad, b"later", good])
    assert caught.value.row == 2
    found = columns(registry.decoder("1", null_on_error=True), [good, bad, None, good])
    assert found == [[3, None, None, 3]]


def test_more_ids_than_a_topic_has_end_the_scan(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "SCAN_SCHEMAS_MAX", 3)
    registry = Registry(**{"1": (AVRO, OLD)})
    decoder = registry.decoder("1", null_on_error=True)
    with pytest.raises(UnsupportedFeatureError, match="more than 3 IDs"):
        columns(decoder, [with_id(number, b"") for number in range(5)])
    assert len(registry.asked) == 3


AVRO_TYPES = [
    ("boolean", True, pa.bool_()),
    ("float", 1.5, pa.float32()),
    ("bytes", b"\xff", pa.binary()),
    ({"type": "enum", "name": "E", "symbols": ["X", "Y"]}, "Y", pa.string()),
    ({"type": "fixed", "name": "F", "size": 2}, b"ab", pa.binary(2)),
    ({"type": "array", "items": ["null", "int"]}, [1, None], pa.list_(pa.int32())),
    ({"type": "map", "values": "long"}, [("k", 1)], pa.map_(pa.string(), pa.int64())),
    ({"type": "record", "name": "I",
      "fields": [{"name": "m", "type": {"type": "map", "values": "int"}}]},
     {"m": [("k", 1)]}, pa.struct([("m", pa.map_(pa.string(), pa.int32()))])),
    ({"type": "long", "logicalType": "timestamp-millis"}, datetime(2026, 1, 2, tzinfo=UTC),
     pa.timestamp("ms", "UTC")),
    ({"type": "int", "logicalType": "date"}, date(2026, 1, 2), pa.date32()),
    ({"type": "string", "logicalType": "uuid"}, GUID, pa.string()),
    ({"type": "bytes", "logicalType": "decimal", "precision": 5, "scale": 2}, Decimal("1.25"),
     pa.decimal128(5, 2)),
    (["null", "int", "string"], "7", pa.string()),  # as JSON
    (["null", "R"], '{"f": null}', pa.string()),
]  # fmt: skip


@pytest.mark.parametrize(("kind", "value", "data_type"), AVRO_TYPES)
def test_types_of_avro(kind: Any, value: Any, data_type: Any) -> None:
    schema = {"type": "record", "name": "R", "fields": [{"name": "f", "type": kind}]}
    given = value
    if kind == ["null", "int", "string"]:
        given = 7
    elif kind == ["null", "R"]:
        given = {"f": None}
    elif isinstance(data_type, pa.MapType):
        given = dict(value)
    elif isinstance(data_type, pa.StructType):
        given = {"m": dict(value["m"])}
    decoder = Registry(**{"1": (AVRO, schema)}).decoder("1")
    assert decoder.schema.field("f").type == data_type
    assert columns(decoder, [avro(schema, {"f": given}, 1)]) == [[value]]


def test_a_schema_of_one_value_is_one_column() -> None:
    decoder = Registry(**{"1": (AVRO, "long")}).decoder("1")
    assert (decoder.schema.names, columns(decoder, [avro("long", 5, 1)])) == (["value"], [[5]])


def test_a_number_that_does_not_fit_its_column_is_a_bad_value() -> None:
    def schema(digits: int) -> Any:
        kind = {"type": "bytes", "logicalType": "decimal", "precision": digits}
        return {**OLD, "fields": [{"name": "a", "type": kind}]}

    registry = Registry(**{"1": (AVRO, schema(9)), "2": (AVRO, schema(2))})
    values = [avro(schema(9), {"a": Decimal(number)}, 1) for number in (12, 12345, 7)]
    with pytest.raises(BadValueError, match="does not fit") as caught:
        columns(registry.decoder("2"), [None, *values])
    assert caught.value.row == 2
    assert columns(registry.decoder("2", null_on_error=True), values) == [[12, None, 7]]


JSON_SCHEMA = {
    "type": "object",
    "properties": {
        "id": {"type": "integer"},
        "tags": {"type": ["array", "null"], "items": {"$ref": "#/definitions/tag"}},
        "size": {"oneOf": [{"type": "null"}, {"type": "number"}]},
        "more": {},
        "next": {"$ref": "#"},
    },
    "definitions": {"tag": {"type": "object", "properties": {"t": {"type": "string"}}}},
}


def test_json_values_have_the_types_of_their_schema() -> None:
    registry = Registry(**{"1": (JSON, JSON_SCHEMA)})
    decoder = registry.decoder("1")
    value = b'{"id": 1, "tags": [{"t": "x"}], "size": 2, "more": [1, "a"], "other": 0}'
    found = columns(decoder, [with_id(1, value), None, with_id(1, b'{"more": null}')])
    assert dict(zip(decoder.schema.names, found, strict=True)) == {
        "id": [1, None, None],
        "tags": [[{"t": "x"}], None, None],
        "size": [2.0, None, None],
        "more": ['[1, "a"]', None, None],
        "next": [None, None, None],
    }


@pytest.mark.parametrize("bad", [b"{", b'{"id": "x"}', b"[]"])
def test_a_json_value_that_does_not_match_is_a_bad_value(bad: bytes) -> None:
    registry = Registry(**{"1": (JSON, JSON_SCHEMA)})
    values = [with_id(1, b'{"id": 1}'), with_id(1, bad), b"plain", with_id(1, b'{"id": 2}')]
    with pytest.raises(BadValueError) as caught:
        columns(registry.decoder("1"), values)
    assert caught.value.row == 1
    assert columns(registry.decoder("1", null_on_error=True), values)[0] == [1, None, None, 2]


def test_schemas_that_repeat_do_not_grow_without_end() -> None:
    fields: Any = "int"
    for depth in range(40):
        first = {"type": "record", "name": f"R{depth}", "fields": [{"name": "x", "type": fields}]}
        again = fields if isinstance(fields, str) else fields["name"]
        first["fields"].append({"name": "y", "type": again})
        fields = first
    decoder = Registry(**{"1": (AVRO, fields)}).decoder("1")
    assert decoder.schema.types == [pa.string(), pa.string()]


def test_other_formats_say_what_to_do() -> None:
    reader = parse(PROTOBUF, 'syntax = "proto3"; message M { int32 a = 1; }')
    with pytest.raises(UnsupportedFeatureError, match=r"PROTOBUF.*Consumer"):
        TypedDecoder(Registry(), reader, null_on_error=False)
