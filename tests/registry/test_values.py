"""Values with the ID of their schema: bytes, objects, and the IDs of whole batches."""

from __future__ import annotations

import json
from typing import Any

import pytest

from raftlog.errors import SchemaError
from raftlog.record import encode, seal
from raftlog.registry.formats import AVRO, JSON, PROTOBUF, parse
from raftlog.registry.values import (
    ID_HEADER,
    Row,
    decoder_of,
    encoder_of,
    ids_of,
    rows_of,
    split_value,
    with_id,
)

GUID = "01234567-89ab-cdef-0123-456789abcdef"
R = {"type": "record", "name": "R", "fields": [{"name": "a", "type": "int"}]}
PROTO = 'syntax = "proto3"; message M { int32 a = 1; message N { int32 b = 1; } } message O {}'


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
        [(ID_HEADER, b"\0\0\0\0\7")],
        [(ID_HEADER, b"\1" + bytes.fromhex(GUID.replace("-", "")))],
        [(ID_HEADER, b"\1short"), ("other", None)],
        None,
    ]
    found = rows_of(batch(values, headers))
    assert [(row.row, row.key) for row in found] == [(0, 1), (2, 7), (3, GUID), (4, None), (5, 1)]
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


def test_messages_of_protobuf_have_indexes() -> None:
    parsed = parse(PROTOBUF, PROTO)
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
