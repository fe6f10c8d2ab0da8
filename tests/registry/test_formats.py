"""Schemas: their formats, and values with the ID of one."""

from __future__ import annotations

import json
from typing import Any

import pytest

from raftlog import limits
from raftlog.errors import SchemaError, UnsupportedFeatureError
from raftlog.record import encode, seal
from raftlog.registry import formats
from raftlog.registry.formats import AVRO, JSON, PROTOBUF, parse, problems
from raftlog.registry.values import (
    ID_HEADERS,
    VALUE,
    Row,
    decoder_of,
    encoder_of,
    ids_of,
    rows_of,
    split_value,
    with_id,
)

# -- formats ---------------------------------------------------------------------------------------

# Formats of schemas: what parses, which texts are equal, and what a newer schema can still read.
#
# The pairs are those of the test suites of Confluent's registry and of Karapace, as far as the
# specifications of the formats decide them.


def codes(kind: str, reader: Any, writer: Any) -> list[str]:
    """The problems without their texts. Schemas are texts, or what JSON encodes."""
    one, other = (
        parse(kind, each if isinstance(each, str) and kind != AVRO else json.dumps(each))
        for each in (reader, writer)
    )
    return [text.partition(":")[0] for text in problems(one, other)]


def record(*fields: Any, name: str = "R", **more: Any) -> dict[str, Any]:
    return {"type": "record", "name": name, "fields": list(fields), **more}


def field(name: str, schema: Any = "string", **more: Any) -> dict[str, Any]:
    return {"name": name, "type": schema, **more}


def enum(*symbols: str, name: str = "E", **more: Any) -> dict[str, Any]:
    return {"type": "enum", "name": name, "symbols": list(symbols), **more}


LIST = record(field("head", "int"), field("tail", ["null", "List"]), name="List")
LONG_LIST = record(field("head", "long"), field("tail", ["null", "List"]), name="List")

AVRO_PAIRS = [
    # reader, writer, problems
    ("long", "int", []),
    ("int", "long", ["TYPE_MISMATCH"]),
    ("double", "float", []),
    ("string", "bytes", []),
    ("null", "int", ["TYPE_MISMATCH"]),
    (record(field("f1"), field("f2", default="x")), record(field("f1")), []),
    (
        record(field("f1"), field("f2")),
        record(field("f1")),
        ["READER_FIELD_MISSING_DEFAULT_VALUE"],
    ),
    (record(field("f1")), record(field("f1"), field("f2")), []),
    (record(field("new", aliases=["f1"])), record(field("f1")), []),
    (record(field("f1", ["null", "string"])), record(field("f1")), []),
    (record(field("f1")), record(field("f1", ["null", "string"])), ["TYPE_MISMATCH"]),
    (["null", "string", "int"], ["null", "string"], []),
    (["null", "string"], ["null", "string", "int"], ["MISSING_UNION_BRANCH"]),
    (["long", "string"], "int", []),
    (enum("A", "B", "C"), enum("A", "B"), []),
    (enum("A", "B"), enum("A", "B", "C"), ["MISSING_ENUM_SYMBOLS"]),
    (enum("A", "B", default="A"), enum("A", "B", "C"), []),
    (enum("A", name="E1"), enum("A", name="E2"), ["NAME_MISMATCH"]),
    (record(name="a.R"), record(name="b.R"), []),  # Avro's Java library ignores the namespace
    (record(name="Q", aliases=["R"]), record(), []),
    ({"type": "fixed", "name": "F", "size": 4}, {"type": "fixed", "name": "F", "size": 8},
     ["FIXED_SIZE_MISMATCH"]),
    ({"type": "array", "items": "long"}, {"type": "array", "items": "int"}, []),
    ({"type": "map", "values": "int"}, {"type": "map", "values": "long"}, ["TYPE_MISMATCH"]),
    (LONG_LIST, LIST, []),
    (LIST, LONG_LIST, ["TYPE_MISMATCH"]),
]  # fmt: skip

CLOSED = {"type": "object", "additionalProperties": False}
DRAFT = "https://json-schema.org/draft/2020-12/schema"
REFERENCE = {"$ref": "#/$defs/a", "$defs": {"a": {"type": "string"}}}

JSON_PAIRS: list[tuple[Any, Any, list[str]]] = [
    (True, {"type": "string"}, []),
    ({"type": "string"}, True, ["TYPE_NARROWED"]),
    ({"type": "number"}, {"type": "integer"}, []),
    ({"type": "integer"}, {"type": "number"}, ["TYPE_NARROWED"]),
    ({"type": ["string", "null"]}, {"type": "string"}, []),
    ({"type": "integer"}, {"enum": ["A"]}, ["TYPE_CHANGED"]),
    ({"enum": ["A"]}, {"enum": ["A", "B"]}, ["ENUM_ARRAY_NARROWED"]),
    ({"enum": ["A", "B"]}, {"const": "A"}, []),
    ({"maxLength": 2}, {"maxLength": 3}, ["MAX_LENGTH_NARROWED"]),
    ({"minimum": 2}, {"minimum": 3}, []),
    ({"pattern": "a+"}, {"pattern": "a*"}, ["PATTERN_CHANGED"]),
    ({"oneOf": [{"type": "string"}]}, {"oneOf": [{"type": "string"}, {"type": "integer"}]},
     ["SUM_TYPE_NARROWED"]),
    ({"anyOf": [{"type": "string"}, {"type": "integer"}]}, {"type": "integer"}, []),
    ({"not": {"type": "integer"}}, {"not": {"type": "number"}}, []),
    ({"not": {"type": "number"}}, {"not": {"type": "integer"}}, ["NOT_TYPE_NARROWED"]),
    ({"type": "object", "properties": {"a": {"type": "string"}}}, {"type": "object"},
     ["PROPERTY_ADDED_TO_OPEN_CONTENT_MODEL"]),
    ({"type": "object", "properties": {"a": {"type": "string"}}},
     {"type": "object", "additionalProperties": False}, []),
    ({"type": "object", "additionalProperties": False},
     {"type": "object", "properties": {"a": True}, "additionalProperties": False},
     ["PROPERTY_REMOVED_FROM_CLOSED_CONTENT_MODEL"]),
    ({"type": "object", "required": ["a"]}, {"type": "object"}, ["REQUIRED_ATTRIBUTE_ADDED"]),
    ({"type": "object", "properties": {"a": {"default": 1}}, "required": ["a"]},
     {"type": "object", "additionalProperties": False}, []),
    ({"type": "array", "items": {"type": "integer"}}, {"type": "array"}, ["TYPE_NARROWED"]),
    ({"type": "array", "items": [{"type": "integer"}], "additionalItems": False},
     {"type": "array", "items": [{"type": "integer"}]}, ["SCHEMA_REMOVED"]),
    ({"$ref": "#/$defs/a", "$defs": {"a": {"type": "string"}}}, {"type": "string"}, []),
    ({"$ref": "#/$defs/a", "$defs": {"a": {"type": "string"}}}, {"type": "null"},
     ["TYPE_CHANGED"]),
    # Properties that a pattern allows.
    (CLOSED, {**CLOSED, "patternProperties": {"^x": {"type": "string"}}}, ["SCHEMA_REMOVED"]),
    ({**CLOSED, "properties": {"xa": {"type": "integer"}}},
     {**CLOSED, "patternProperties": {"^x": {"type": "string"}}},
     ["TYPE_CHANGED", "SCHEMA_REMOVED"]),
    ({**CLOSED, "properties": {"a": {"type": "integer"}}},
     {**CLOSED, "patternProperties": {"[a-z]$": {"type": "string"}}},
     ["TYPE_CHANGED", "SCHEMA_REMOVED"]),
    ({**CLOSED, "properties": {"xa": {}}, "patternProperties": {"^x": {"type": "integer"}}},
     {**CLOSED, "properties": {"xa": {}}}, ["TYPE_NARROWED"]),
    ({**CLOSED, "properties": {"a": {}}, "patternProperties": {"^x": {"type": "integer"}}},
     {**CLOSED, "properties": {"a": {}}}, []),
    ({**CLOSED, "patternProperties": {"^x": {"type": "integer"}}},
     {**CLOSED, "properties": {"xa": {"type": "integer"}}}, []),
    ({**CLOSED, "patternProperties": {"^xa$": {"type": "integer"}}},
     {**CLOSED, "properties": {"xab": {"type": "integer"}}},
     ["PROPERTY_REMOVED_FROM_CLOSED_CONTENT_MODEL"]),
    ({**CLOSED, "patternProperties": {"^x": {"type": "integer"}, "^y": {"type": "string"}}},
     {**CLOSED, "patternProperties": {"^x": {"type": "integer"}}}, []),
    ({**CLOSED, "patternProperties": {"^x": {"type": "integer"}, "^xy": {"type": "string"}}},
     {**CLOSED, "patternProperties": {"^x": {"type": "integer"}}}, ["TYPE_CHANGED"]),
    ({"properties": {"xa": {"type": "string"}, "ya": {"type": "string"}}},
     {"properties": {"xa": {"type": "string"}}, "patternProperties": {"^y": {"type": "string"}}},
     []),
    # Keywords of an old schema that depend on those of its branches.
    ({**CLOSED, "properties": {"b": {}}},
     {**CLOSED, "properties": {"a": {}}, "anyOf": [{"properties": {"b": {}}}]},
     ["SCHEMA_REMOVED"]),
    # Keywords at a reference have an effect since draft 2019-09.
    ({**REFERENCE, "$schema": DRAFT, "maxLength": 3}, {**REFERENCE, "$schema": DRAFT},
     ["MAX_LENGTH_NARROWED"]),
    ({**REFERENCE, "$schema": DRAFT, "maxLength": 3},
     {**REFERENCE, "$schema": DRAFT, "maxLength": 3, "title": "T"}, []),
    ({**REFERENCE, "maxLength": 3}, REFERENCE, []),
    ({"$schema": DRAFT, "$ref": "#", "maxLength": 3}, {"$schema": DRAFT, "$ref": "#"},
     ["MAX_LENGTH_NARROWED"]),
]  # fmt: skip

P3 = 'syntax = "proto3"; '
PROTOBUF_PAIRS = [
    ("message M { int64 a = 1; }", "message M { int32 a = 1; }", []),
    ("message M { E a = 1; } enum E { Z = 0; }", "message M { int32 a = 1; }", []),
    ("message M { bytes a = 1; }", "message M { string a = 1; }", []),
    ("message M { sint32 a = 1; }", "message M { int32 a = 1; }", ["FIELD_SCALAR_KIND_CHANGED"]),
    ("message M { M a = 1; }", "message M { string a = 1; }", ["FIELD_KIND_CHANGED"]),
    ("message M { N a = 1; } message N {} message O {}",
     "message M { O a = 1; } message N {} message O {}", ["FIELD_NAMED_TYPE_CHANGED"]),
    ("message M { }", "message M { int32 a = 1; }", []),
    ("message M { int32 a = 1; }", "message M { }", []),
    ("message M { int32 b = 1; }", "message M { int32 a = 1; }", []),
    ("message M { repeated int32 a = 1; }", "message M { int32 a = 1; }",
     ["FIELD_NUMERIC_LABEL_CHANGED"]),
    ("message M { repeated string a = 1; }", "message M { string a = 1; }", []),
    ("message N { }", "message M { }", ["MESSAGE_REMOVED"]),
    ("package b; message M { }", "package a; message M { }", []),
    ("message M { oneof o { int32 b = 2; } }",
     "message M { oneof o { int32 a = 1; int32 b = 2; } }",
     ["ONEOF_FIELD_REMOVED"]),
    ("message M { oneof o { int32 a = 1; int32 b = 2; } }",
     "message M { int32 a = 1; int32 b = 2; }",
     ["MULTIPLE_FIELDS_MOVED_TO_ONEOF"]),
    ("message M { optional int32 a = 1; }", "message M { int32 a = 1; }", []),
    ("message M { map<string, int32> a = 1; }", "message M { map<string, string> a = 1; }",
     ["FIELD_NAMED_TYPE_CHANGED"]),
]  # fmt: skip


@pytest.mark.parametrize(("reader", "writer", "found"), AVRO_PAIRS)
def test_what_an_avro_reader_can_read(reader: Any, writer: Any, found: list[str]) -> None:
    assert codes(AVRO, reader, writer) == found


@pytest.mark.parametrize(("reader", "writer", "found"), JSON_PAIRS)
def test_what_a_json_schema_still_accepts(reader: Any, writer: Any, found: list[str]) -> None:
    assert codes(JSON, reader, writer) == found


@pytest.mark.parametrize(("reader", "writer", "found"), PROTOBUF_PAIRS)
def test_what_a_protobuf_reader_can_read(reader: str, writer: str, found: list[str]) -> None:
    assert codes(PROTOBUF, P3 + reader, P3 + writer) == found


def test_a_required_field_of_proto2_must_stay() -> None:
    with_it, without = "message M { required int32 a = 1; }", "message M { }"
    assert codes(PROTOBUF, with_it, without) == ["REQUIRED_FIELD_ADDED"]
    assert codes(PROTOBUF, without, with_it) == ["REQUIRED_FIELD_REMOVED"]


@pytest.mark.parametrize("kind", ["n.N", "repeated n.N", "map<string, n.N>"])
def test_a_message_of_another_file_is_compared_too(kind: str) -> None:
    inner = P3 + "package n; message N { %s a = 1; }"
    text = P3 + f'import "n.proto"; message M {{ {kind} n = 1; }}'
    new, old = (parse(PROTOBUF, text, [("n.proto", inner % each)]) for each in ("string", "int32"))
    assert [each.partition(":")[0] for each in problems(new, old)] == ["FIELD_SCALAR_KIND_CHANGED"]


def test_another_type_of_schema_is_not_compatible() -> None:
    found = problems(parse(JSON, "true"), parse(AVRO, '"int"'))
    assert [text.partition(":")[0] for text in found] == ["SCHEMA_TYPE_CHANGED"]


@pytest.mark.parametrize(
    ("kind", "one", "other"),
    [
        (AVRO, '{"type": "string"}', '"string"'),
        (AVRO, '{"name": "R", "type": "record", "fields": []}', json.dumps(record())),
        (JSON, '{"a": 1, "type": "null"}', '{"type":"null","a":1}'),
        (PROTOBUF, P3 + "message M { int32 a = 1; }", P3 + "// text\nmessage M {\nint32 a=1;}"),
    ],
)
def test_texts_of_equal_content_are_one_schema(kind: str, one: str, other: str) -> None:
    assert parse(kind, one).normal == parse(kind, other).normal


def test_a_default_is_content() -> None:
    one, other = record(field("a", default="x")), record(field("a", default="y"))
    assert parse(AVRO, json.dumps(one)).normal != parse(AVRO, json.dumps(other)).normal


PROTO = (
    'syntax = "proto3"; package a.b; import "google/protobuf/timestamp.proto"; message M { '
    'reserved 20 to 29, 40 to max; reserved "x"; map<string, N> m = 2; oneof o { string s = 3; } '
    "optional google.protobuf.Timestamp t = 5; message N { repeated double d = 1 [packed = false]; "
    "} enum E { option allow_alias = true; A = 0; B = 0; } E e = 6; }"
)


def test_protobuf_survives_its_serialized_form_and_its_own_text() -> None:
    parsed = parse(PROTOBUF, PROTO)
    again = parse(PROTOBUF, formats.serialized(parsed))  # as clients of Confluent send it
    assert again.text == again.normal == parsed.normal == parse(PROTOBUF, parsed.normal).normal
    fields = parsed.model.file.message_types_by_name["M"].fields_by_name
    assert fields["t"].has_presence
    assert fields["e"].enum_type.full_name == "a.b.M.E"


def test_names_in_json_and_texts_of_protobuf_are_kept() -> None:
    text = r"""syntax = "proto2"; message M {
        optional string a_b = 1 [json_name = "a\"c", default = "x\"y\\z\n\xc3\xa9é"];
        optional bytes b = 2 [default = "\001\xffa"];
        optional bool c = 3 [default = true];
        optional float d = 4 [default = inf];
        optional E e = 5 [default = B, json_name = "e"];
        enum E { A = 0; B = 1; } }"""
    parsed = parse(PROTOBUF, text)
    again = parse(PROTOBUF, formats.serialized(parsed))
    assert again.text == parsed.normal == parse(PROTOBUF, parsed.normal).normal
    for each in (parsed, again, parse(PROTOBUF, parsed.normal)):
        fields = each.model.file.message_types_by_name["M"].fields_by_name
        assert fields["a_b"].json_name == 'a"c'
        assert fields["a_b"].default_value == 'x"y\\z\néé'
        assert fields["b"].default_value == b"\x01\xffa"
        assert (fields["c"].default_value, fields["d"].default_value) == (True, float("inf"))
        assert fields["e"].default_value == 1
    without = parse(PROTOBUF, text.replace('json_name = "a\\"c", ', ""))
    assert without.normal != parsed.normal
    assert parse(PROTOBUF, text.replace(', json_name = "e"', "")).normal == parsed.normal
    with pytest.raises(SchemaError):
        parse(PROTOBUF, text.replace(r"\n\xc3\xa9", r"\xff"))


def test_references_resolve_by_name() -> None:
    named = [("R", json.dumps(record(field("a", "int"))))]
    root = parse(AVRO, json.dumps(record(field("r", "R"), name="Q")), named).model.root
    assert root.fields[0].schema.fields[0].name == "a"
    customer = '{"type": "object", "properties": {"id": {"type": "integer"}}}'
    order = '{"$id": "http://x/order.json", "properties": {"by": {"$ref": "customer.json"}}}'
    validator = parse(JSON, order, [("customer.json", customer)]).model.validator
    assert not validator.is_valid({"by": {"id": "text"}})
    text = P3 + 'import "n.proto"; message M { n.N n = 1; }'
    named = [("n.proto", P3 + "package n; message N { int32 a = 1; }")]
    message = parse(PROTOBUF, text, named).model.file.message_types_by_name["M"]
    assert message.fields_by_name["n"].message_type.full_name == "n.N"


@pytest.mark.parametrize(
    ("kind", "text"),
    [
        ("XML", "<a/>"),
        (AVRO, ""),
        (AVRO, "{"),
        (AVRO, '"nothing"'),
        (AVRO, '{"type": "record", "name": "R"}'),
        (AVRO, json.dumps(record(field("a"), field("a")))),
        (AVRO, json.dumps(record(name="R", namespace="a-b"))),
        (AVRO, json.dumps(record(field("a", "int", default="text")))),
        (AVRO, "[" * (limits.SCHEMA_DEPTH_MAX + 1) + "]" * (limits.SCHEMA_DEPTH_MAX + 1)),
        (AVRO, '"' + "x" * limits.SCHEMA_BYTES_MAX + '"'),
        (JSON, "5"),
        (JSON, '{"type": 5}'),
        (JSON, '{"pattern": "("}'),
        (JSON, '{"$ref": "http://127.0.0.1:9/none.json"}'),
        (PROTOBUF, "message {"),
        (PROTOBUF, '{"type": "string"}'),
        (PROTOBUF, P3 + "message M { Missing a = 1; }"),
        (PROTOBUF, P3 + 'import "missing.proto"; message M { }'),
        (PROTOBUF, P3 + "message M { int32 a = 0; }"),
        (PROTOBUF, "x" * (limits.SCHEMA_PROTOBUF_BYTES_MAX + 1)),
    ],
)
def test_what_is_no_schema_is_refused_with_the_reason(
    kind: str, text: str, capfd: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SchemaError) as caught:
        parse(kind, text)
    assert caught.value.registry_code == 42201
    assert len(str(caught.value)) < 1_000
    assert capfd.readouterr().err == ""  # the parser of Protobuf would print there


def test_a_missing_library_names_the_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    def missing(name: str) -> Any:
        raise ImportError(name)

    monkeypatch.setattr(formats, "import_module", missing)
    for kind in formats.FORMATS:
        with pytest.raises(UnsupportedFeatureError, match=r"\[schema\]"):
            parse(kind, "true")


# -- values ----------------------------------------------------------------------------------------

# Values with the ID of their schema: bytes, objects, and the IDs of whole batches.


GUID = "01234567-89ab-cdef-0123-456789abcdef"
R = {"type": "record", "name": "R", "fields": [{"name": "a", "type": "int"}]}
VALUES_PROTO = (
    'syntax = "proto3"; message M { int32 a = 1; message N { int32 b = 1; } } message O {}'
)


def batch(values: list[bytes | None], headers: list[Any] | None = None) -> bytes:
    body = encode(values, headers=headers, timestamps_ms=1)
    return seal(body) + body.payload


def test_an_id_is_in_front_of_a_value() -> None:
    assert with_id(7, b"x") == b"\0\0\0\0\7x"
    schema_id, rest = split_value(b"\0\x01\0\0\0x")
    assert (schema_id, bytes(rest)) == (1 << 24, b"x")
    for data in (b"", b"\0\0\0\1", b"\1\0\0\0\1x"):
        with pytest.raises(SchemaError):
            split_value(data)


def test_ids_of_a_batch() -> None:
    high = (1 << 31) + 5
    values = [with_id(1, b"a"), None, with_id(high, b""), b"", b"{}", with_id(1, b"b" * 300)]
    assert ids_of(batch(values)) == ({1, high}, [3, 4])
    assert ids_of(batch([None, None])) == (set(), [])
    headers = [
        [],
        None,
        [(ID_HEADERS[VALUE], b"\0\0\0\0\7")],
        [(ID_HEADERS[VALUE], b"\1" + bytes.fromhex(GUID.replace("-", "")))],
        [(ID_HEADERS[VALUE], b"\1short"), ("other", None)],
        None,
    ]
    found = rows_of(batch(values, headers))
    assert [(row.row, row.schema) for row in found] == [
        (0, 1),
        (2, 7),
        (3, GUID),
        (4, None),
        (5, 1),
    ]
    assert found[0] == Row(0, 1, b"a")


@pytest.mark.parametrize(
    ("kind", "text", "value", "wrong"),
    [
        (AVRO, json.dumps(R), {"a": 5}, {"a": "text"}),
        (JSON, '{"properties": {"a": {"type": "integer"}}}', {"a": 5}, {"a": "text"}),
    ],
)
def test_objects_become_bytes_and_objects(kind: str, text: str, value: Any, wrong: Any) -> None:
    parsed = parse(kind, text)
    data = encoder_of(parsed)(value)
    assert decoder_of(parsed)(data) == value
    with pytest.raises(SchemaError):
        encoder_of(parsed)(wrong)
    for malformed in (b"", b"\xff\xff", data + b"\0"):
        with pytest.raises(SchemaError):
            decoder_of(parsed)(malformed)


@pytest.mark.parametrize(
    ("root", "value"),
    [
        (["null", "n.A", "n.B"], {"b": {"a": 1}, "c": {"a": 2}}),
        (["n.B", "n.A", {"type": "map", "values": "n.A"}], {"key": {"a": 1}}),
        ("n.B", {"b": {"a": 1}, "c": None}),
        ({"type": "array", "items": "n.A"}, [{"a": 1}, {"a": 2}]),
        ([record(field("e", "n.A"), name="C"), "n.A"], {"e": {"a": 1}}),
        (["n.L", "n.A"], {"next": {"next": None}}),
    ],
)
def test_a_schema_of_avro_can_be_a_name_or_a_union_of_references(root: Any, value: Any) -> None:
    a = record(field("a", "int"), name="A", namespace="n")
    b = record(field("b", "A"), field("c", ["null", "n.A"], default=None), name="n.B")
    linked = record(field("next", ["null", "L"]), name="L", namespace="n")
    named = [(each["name"], json.dumps(each)) for each in (a, b, linked)]
    parsed = parse(AVRO, json.dumps(root), named)
    data = encoder_of(parsed)(value)
    assert decoder_of(parsed)(data) == value
    assert decoder_of(parsed, parse(AVRO, json.dumps(root), named))(data) == value
    with pytest.raises(SchemaError):
        encoder_of(parsed)(b"text")


def chain(depth: int, last: str, *, names: str) -> str:
    """A union of records whose fields have the records of the next level, up to ``last``."""
    levels = [record(field("f", last), name=f"{name}{depth}") for name in names]
    for level in reversed(range(depth)):
        inner = [f"{name}{level + 1}" for name in names]
        fields = [field("f", inner if len(inner) > 1 else inner[0])]
        levels += [record(*fields, name=f"{name}{level}") for name in names]
    return json.dumps(levels)


def test_a_comparison_that_would_take_too_long_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each level doubles the number of comparisons if the last one is not compatible."""
    one, other = (parse(AVRO, chain(12, last, names="AB")) for last in ("int", "string"))
    assert problems(one, other)
    monkeypatch.setattr(limits, "SCHEMA_COMPARISONS_MAX", 1_000)
    with pytest.raises(SchemaError, match="SCHEMA_COMPARISONS_MAX"):
        problems(one, other)


@pytest.mark.parametrize(
    ("new", "old"),
    [
        ("patternProperties", "patternProperties"),
        ("patternProperties", "properties"),
        ("properties", "patternProperties"),
    ],
)
def test_many_patterns_take_no_time_without_a_limit(
    new: str, old: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each pattern of one schema is compared with each name and pattern of the other one."""
    monkeypatch.setattr(limits, "SCHEMA_COMPARISONS_MAX", 1_000)
    pairs = [
        parse(JSON, json.dumps({key: {f"^{key}{number}": {} for number in range(count)}}))
        for key, count in ((new, 40), (old, 41))
    ]
    with pytest.raises(SchemaError, match="SCHEMA_COMPARISONS_MAX"):
        problems(*pairs)


def test_schemas_with_too_many_levels_are_not_compared() -> None:
    one, other = (parse(AVRO, chain(600, last, names="A")) for last in ("int", "string"))
    with pytest.raises(SchemaError, match="too many levels"):
        problems(one, other)


@pytest.mark.parametrize("number", [float("nan"), float("inf")])
def test_json_has_no_number_that_others_cannot_read(number: float) -> None:
    parsed = parse(JSON, '{"properties": {"a": {"type": "number"}}}')
    with pytest.raises(SchemaError, match="not JSON compliant"):
        encoder_of(parsed)({"a": number})


def test_messages_of_protobuf_have_indexes() -> None:
    parsed = parse(PROTOBUF, VALUES_PROTO)
    encode_one, decode_one = encoder_of(parsed), decoder_of(parsed)
    data = encode_one({"a": 5})
    assert data[:1] == b"\0"  # the first message, in short
    message = decode_one(data)
    assert (message.DESCRIPTOR.full_name, message.a) == ("M", 5)
    inner = decode_one(b"\4\0\0" + b"\x08\x07")  # of 0, its 0: zigzag 2, 0, 0
    assert (inner.DESCRIPTOR.full_name, inner.b) == ("M.N", 7)
    assert encode_one(inner) == b"\4\0\0\x08\x07"
    assert decode_one(b"\2\2").DESCRIPTOR.full_name == "O"
    for malformed in (b"", b"\2\4", b"\1", b"\x80", b"\xff\xff\xff\xff\xff\x01", b"\0\xff"):
        with pytest.raises(SchemaError):
            decode_one(malformed)
    with pytest.raises(SchemaError):
        encode_one({"none": 1})
