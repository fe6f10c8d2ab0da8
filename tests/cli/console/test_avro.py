"""Avro values: what is recognised, and that hostile values and schemas cost little."""

from __future__ import annotations

import importlib.util
import io
import json
import tracemalloc
from pathlib import Path
from typing import Any

import fastavro
import pytest
from hypothesis import given
from hypothesis import strategies as st

from raftlog import limits
from raftlog_cli.console import records
from raftlog_cli.console.records import Decoder, NotAvroError, Schemas, decode, parse

USER = {
    "type": "record",
    "name": "shop.User",
    "fields": [
        {"name": "id", "type": "long"},
        {"name": "name", "type": ["null", "string"], "default": None},
        {"name": "at", "type": {"type": "long", "logicalType": "timestamp-millis"}},
        {
            "name": "sum",
            "type": {"type": "bytes", "logicalType": "decimal", "precision": 9, "scale": 2},
        },
        {"name": "raw", "type": {"type": "fixed", "name": "Raw", "size": 2}},
        {"name": "tags", "type": {"type": "array", "items": "string"}},
    ],
}
ADA = b"\x0a" + b"\x02\x06Ada" + b"\x00" + b"\x04\x04\xd2" + b"\xff\x00" + b"\x02\x02a\x00"
SHOWN = {
    "id": 5,
    "name": "Ada",
    "at": "1970-01-01T00:00:00+00:00",
    "sum": "12.34",
    "raw": "ff00",
    "tags": ["a"],
}


def container(schema: Any, values: list[Any], codec: str = "null") -> bytes:
    """A file whose sync marker is not drawn: tests change its last byte, or ask if it is text."""
    file = io.BytesIO()
    fastavro.writer(file, schema, values, codec=codec, sync_marker=b"\xff" * 16)
    return file.getvalue()


def a_decoder(directory: Path | str = "") -> Decoder:
    return Decoder(Schemas(str(directory)), "users")


def with_schema(directory: Path, schema: Any, name: str = "users-value") -> Decoder:
    (directory / f"{name}.avsc").write_text(json.dumps(schema))
    return a_decoder(directory)


def test_a_container_file_needs_no_schema() -> None:
    values = [{"id": number, "name": None} for number in range(3)]
    schema = {**USER, "fields": USER["fields"][:2]}
    for codec in ("null", "deflate"):
        shown = decode(container(schema, values, codec), avro=a_decoder())
        assert (shown.kind, json.loads(shown.text), shown.problem) == ("avro", values, "")


def test_a_schema_is_found_by_topic_and_by_id(tmp_path: Path) -> None:
    decoder = with_schema(tmp_path, USER)
    assert json.loads(decode(ADA, avro=decoder).text) == SHOWN
    assert decode(ADA, avro=decoder, part="key").kind == "hex"
    with_schema(tmp_path, "string", "users-key")
    assert decode(b"\x06abc", avro=decoder, part="key").text == '"abc"'
    with_schema(tmp_path, "long", "7")
    assert decode(b"\0\0\0\0\x07\x0a", avro=decoder).text == "5"
    # Without a schema of this ID, a zero byte is the first of a plain value.
    with_schema(tmp_path, {"type": "fixed", "name": "f", "size": 6})
    assert decode(b"\0\0\0\0\x08\x0a", avro=decoder).text == '"00000000080a"'


def test_a_schema_is_read_again_when_it_changes(tmp_path: Path) -> None:
    decoder = with_schema(tmp_path, "string")
    assert decode(b"\x06abc", avro=decoder).text == '"abc"'
    with_schema(tmp_path, "bytes ".strip())
    assert decode(b"\x06abc", avro=decoder).text == '"616263"'


@pytest.mark.parametrize(
    ("data", "problem"),
    [
        (b"\x06ab", "not avro: a length of 3, with 2 bytes left"),
        (b"\x06abcd", "not avro: 1 bytes follow the value"),
        (b"\x04\xff\xff", "not avro: "),
        (b"Obj\x01\x02", "not avro: "),
        (b"\x00" * limits.CONSOLE_VALUE_BYTES_MAX + b"x", "too long to decode: 65,537 bytes"),
    ],
)
def test_a_value_that_does_not_fit_is_shown_with_the_reason(
    tmp_path: Path, data: bytes, problem: str
) -> None:
    decoder = with_schema(tmp_path, "string")
    for wanted in ("auto", "avro"):
        shown = decode(data, wanted, decoder)
        assert shown.kind in {"hex", "text"}
        assert shown.problem.startswith(problem)


def test_a_missing_schema_is_named(tmp_path: Path) -> None:
    assert "http.console.avro.schemas" in decode(b"x", "avro", a_decoder()).problem
    assert (
        f"no schema {tmp_path}/users-value.avsc: No such file"
        in decode(b"x", "avro", a_decoder(tmp_path)).problem
    )
    assert "/9.avsc" in decode(b"\0\0\0\0\x09x", "avro", a_decoder(tmp_path)).problem
    assert decode(b"\0\0\0\0\x09x", "auto", a_decoder(tmp_path)).problem == ""


def test_without_the_library_the_page_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(records, "find_spec", {"fastavro": None}.get)
    shown = decode(container("long", [1]), avro=a_decoder())
    assert (shown.kind, shown.problem) == (
        "hex",
        "Avro needs fastavro: pip install -e '.[avro]' in a clone of the repository",
    )
    assert importlib.util.find_spec("fastavro") is not None


def record(name: str, *types: Any) -> dict[str, Any]:
    fields = [{"name": f"f{at}", "type": each} for at, each in enumerate(types)]
    return {"type": "record", "name": name, "fields": fields}


def doubled(leaf: Any, times: int) -> Any:
    """A record of 2**times leaves, from few bytes of schema."""
    schema = record("r0", leaf, leaf)
    for at in range(1, times):
        schema = record(f"r{at}", schema, f"r{at - 1}")
    return schema


FREE = "items of the array have too few bytes"
DEEP: Any = []
for _ in range(300):
    DEEP = [DEEP]


@pytest.mark.parametrize(
    ("schema", "problem"),
    [
        ({"type": "array", "items": "null"}, FREE),
        ({"type": "array", "items": record("empty")}, FREE),
        ({"type": "array", "items": {"type": "fixed", "name": "f", "size": 0}}, FREE),
        ({"type": "array", "items": record("r", "int", *["null"] * 9)}, FREE),
        (doubled("null", 20), "its values have too few bytes"),
        # The bytes of these nulls are only read after them.
        (
            record(
                "r", doubled("null", 20), {"type": "fixed", "name": "f", "size": 9}, *["f"] * 99
            ),
            "its values have too few bytes",
        ),
        (record("Node", ["null", "Node"]), "recursive schemas"),
        (record("Node", {"type": "array", "items": "Node"}), "recursive schemas"),
        (record("Node", "Node"), "recursive schemas"),
        ({"type": "long", "doc": DEEP}, "deeper than 64"),
        ({"type": "fixed", "name": "f", "size": 2**40}, "size 1099511627776"),
        ({"type": "fixed", "name": "f", "size": "x"}, "size x"),
        ({"type": "array"}, "bad schema: 'items'"),
        ({"type": "nothing"}, "bad schema: "),
        ({"no": "type"}, "bad schema: "),
        (7, "bad schema: "),
    ],
)
def test_a_hostile_schema_is_rejected(schema: Any, problem: str) -> None:
    with pytest.raises(NotAvroError, match=problem):
        parse(json.dumps(schema).encode(), 100_000)


def test_a_rejected_schema_is_the_reason_on_the_page(tmp_path: Path) -> None:
    many = b"\xfe" + b"\xff" * 7 + b"\x7f"  # a block of 2**61 items
    decoder = with_schema(tmp_path, record("Node", ["null", "Node"]))
    shown = decode(many, avro=decoder)
    assert (shown.kind, shown.problem) == ("hex", "recursive schemas are not decoded: Node")


def test_types_nest_by_name_up_to_the_limit() -> None:
    schema: Any = record("r0", "long")
    for at in range(1, 15):
        schema = record(f"r{at}", schema)
    text = json.dumps(record("all", schema, *[f"r{at}" for at in range(10)])).encode()
    parse(text, len(text))
    union: Any = record("u0", "long")
    parts = [union, *(record(f"u{at}", f"u{at - 1}") for at in range(1, 99))]
    with pytest.raises(NotAvroError, match="deeper than 64"):
        parse(json.dumps(parts).encode(), 1_000_000)


def test_the_length_of_a_schema_is_limited(tmp_path: Path) -> None:
    long = {**USER, "doc": "x" * limits.CONSOLE_AVRO_FILE_BYTES_MAX}
    assert "more than 262144" in decode(ADA, avro=with_schema(tmp_path, long)).problem
    embedded = container({"type": "record", "name": "r", "fields": [], "doc": "x" * 20_000}, [{}])
    assert "its schema has" in decode(embedded, avro=a_decoder()).problem


def test_a_container_file_does_not_expand(tmp_path: Path) -> None:
    bomb = container("bytes", [bytes(10_000_000)], "deflate")
    assert len(bomb) < limits.CONSOLE_VALUE_BYTES_MAX
    assert "after decompression" in decode(bomb, avro=a_decoder()).problem
    many = container("bytes", [bytes(60_000)] * 2, "deflate")
    assert "after decompression" in decode(many, avro=a_decoder()).problem
    nulls = container("null", [None])
    assert FREE in decode(nulls, avro=a_decoder()).problem
    other = container("bytes", [b"x"], "bzip2")
    assert "compressed by 'bzip2'" in decode(other, avro=a_decoder()).problem
    corrupt = container("long", [1])[:-1] + b"?"
    assert "corrupt" in decode(corrupt, avro=a_decoder()).problem


def test_text_and_memory_are_bounded(tmp_path: Path) -> None:
    """Long names are repeated for each record, which takes few bytes of the value."""
    field = {"name": "x" * 60_000, "type": "int"}
    schema = {"type": "array", "items": {"type": "record", "name": "r", "fields": [field]}}
    decoder = with_schema(tmp_path, schema)
    data = b"\xfe\xff\x06" + b"\x02" * 57_343 + b"\0"
    decode(b"\x02\x02\0", avro=decoder)
    tracemalloc.start()
    shown = decode(data, avro=decoder)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert (shown.kind, len(shown.text)) == ("avro", limits.CONSOLE_TEXT_MAX)
    assert peak < 50 * limits.MIB


def test_the_cost_of_one_request_is_bounded(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(limits, "CONSOLE_AVRO_READS_MAX", 1_000)
    decoder = with_schema(tmp_path, "string")
    shown = [decode(b"\x06abc", avro=decoder) for _ in range(600)]
    decoded = [each for each in shown if each.kind == "avro"]
    assert 480 < len(decoded) < 520
    assert decoder.is_exhausted
    assert "too many values for one page" in shown[-1].problem
    parsing, number = a_decoder(), 0
    while not parsing.is_exhausted:  # a schema costs too
        decode(container({**record(f"r{number}", "int")}, [{"f0": 1}]), avro=parsing)
        number += 1
    assert number < 60


def test_a_logical_value_outside_its_range_is_shown_as_bytes(tmp_path: Path) -> None:
    largest = b"\xfe" + b"\xff" * 8 + b"\x01"
    for logical, kind, data in [
        *(("timestamp-millis", "long", largest), ("timestamp-micros", "long", largest)),
        *(("date", "int", largest), ("time-millis", "int", largest), ("uuid", "string", b"\x02x")),
    ]:
        decoder = with_schema(tmp_path, {"type": kind, "logicalType": logical})
        assert "not avro" in decode(data, avro=decoder).problem
    digits = {"type": "bytes", "logicalType": "decimal", "precision": 10**6, "scale": 10**6}
    assert decode(b"\x02\x05", avro=with_schema(tmp_path, digits)).text == '"05"'
    digits["scale"] = 2
    long = b"\x80\x80\x02" + b"\x7f" * 16_384
    assert decode(long, avro=with_schema(tmp_path, digits)).text == f'"{"7f" * 16_384}"'
    assert decode(b"\x80\x01" + b"\x7f" * 64, avro=a_decoder(tmp_path)).text[-4:-1].startswith(".")


TYPES = st.recursive(
    st.sampled_from(["null", "int", "string", "bytes", "double", "boolean"]),
    lambda inner: st.one_of(
        st.builds(lambda items: {"type": "array", "items": items}, inner),
        st.builds(lambda values: {"type": "map", "values": values}, inner),
        st.lists(inner, min_size=1, max_size=3),
        st.builds(
            lambda number, *types: record(f"r{number}", *types), st.integers(0, 9), inner, inner
        ),
    ),
    max_leaves=8,
)


def count(value: Any) -> int:
    if isinstance(value, dict):
        return 1 + sum(count(part) for part in value.values())
    return 1 + sum(map(count, value)) if isinstance(value, list) else 1


@given(TYPES, st.binary(max_size=300))
def test_no_value_has_more_parts_than_its_bytes_pay_for(schema: Any, data: bytes) -> None:
    try:
        parsed = parse(json.dumps(schema).encode(), 10_000)
        found = a_decoder()._read(data, parsed)
    except NotAvroError:
        return
    assert count(found) <= records.VALUES_PER_BYTE * len(data) + limits.CONSOLE_AVRO_FREE_VALUES_MAX


@given(st.binary(max_size=100), st.binary(max_size=200))
def test_any_container_file_is_shown(schema: bytes, data: bytes) -> None:
    good = container("long", [1, 2])
    for bad in (b"Obj\x01" + data, good.replace(b'"long"', schema), good[:30] + data + good[30:]):
        assert decode(bad, avro=a_decoder()).text


# -- of the schema registry ------------------------------------------------------------------------


class Registry:
    """Schemas by ID, and the IDs that were asked for."""

    def __init__(self, **schemas: Any) -> None:
        self.schemas = {int(name[1:]): content for name, content in schemas.items()}
        self.asked: list[int] = []

    def __call__(self, schema_id: int) -> Any:
        self.asked.append(schema_id)
        return self.schemas.get(schema_id)


def test_values_are_shown_with_schemas_of_the_registry(tmp_path: Path) -> None:
    proto = 'syntax = "proto3"; message M { int32 a = 1; }'
    registry = Registry(
        _1={"schema": json.dumps(USER)},
        _2={"schema": "{}", "schemaType": "JSON"},
        _3={"schema": proto, "schemaType": "PROTOBUF"},
        _4={"schema": '"R"', "references": [{"name": "R", "subject": "s", "version": 1}]},
    )
    schemas = Schemas("", registry)

    def shown(schema_id: int, body: bytes) -> records.Shown:
        value = b"\0" + schema_id.to_bytes(4, "big") + body
        return decode(value, avro=Decoder(schemas, "t"))

    assert (shown(1, ADA).kind, json.loads(shown(1, ADA).text)) == ("avro", SHOWN)
    assert (shown(2, b'{"a":1}').kind, json.loads(shown(2, b'{"a":1}').text)) == ("json", {"a": 1})
    message = shown(3, b"\0\x08\x05")
    assert (message.kind, json.loads(message.text)) == ("protobuf", {"a": 5})
    assert shown(3, b"\0\xff").problem.startswith("the value does not match")
    assert "references" in shown(4, b"").problem
    assert shown(5, b"\xff").kind == "hex"
    assert registry.asked == [1, 2, 3, 4, 5]  # each known one once
    (tmp_path / "1.avsc").write_text('"string"')
    own = Decoder(Schemas(str(tmp_path), registry), "t")
    assert decode(b"\0\0\0\0\1\x02x", avro=own).text == '"x"'  # a file of the operator is first


def test_unknown_ids_are_asked_for_a_few_times_only() -> None:
    registry = Registry()
    decoder = Decoder(Schemas("", registry), "t")
    for number in range(2 * limits.CONSOLE_LOOKUPS_MAX):
        value = b"\0" + (number % 30).to_bytes(4, "big")
        assert decode(value, avro=decoder).kind in ("hex", "text")
    assert len(registry.asked) == limits.CONSOLE_LOOKUPS_MAX
