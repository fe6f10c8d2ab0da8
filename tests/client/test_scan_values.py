"""JSON to Arrow: a row for each value, whatever a value contains."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

pa = pytest.importorskip("pyarrow")

from raftlog.client.scan_values import BadValueError, JsonDecoder, decode_text, infer  # noqa: E402
from raftlog.errors import InvalidRequestError  # noqa: E402

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


def test_objects_may_have_line_breaks_nulls_and_other_fields() -> None:
    values = [json.dumps({"id": 1, "x": [1, {}]}, indent=2).encode(), b"null", b'{"x": 1}\r\n']
    assert decoded([*values]) == [1, None, None]


def test_types_are_inferred_without_guesses() -> None:
    values = [b'{"t": "2026-01-01T00:00:00", "n": null, "in": {"a": [1]}}', None, b'{"f": 1.5}']
    inner = pa.struct([("a", pa.list_(pa.int64()))])
    expected = [("t", pa.string()), ("n", pa.string()), ("in", inner), ("f", pa.float64())]
    assert infer(pa.array(values, pa.binary()), null_on_error=False) == pa.schema(expected)
    assert infer(pa.array([None], pa.binary()), null_on_error=False) is None
    mixed = pa.array([b"x", b'{"id": 1}', b'{"id": "x"}'], pa.binary())
    assert infer(mixed, null_on_error=True) == IDS
    with pytest.raises(BadValueError):
        infer(mixed[1:], null_on_error=False)
    with pytest.raises(InvalidRequestError, match="not objects"):
        infer(pa.array([b"1"], pa.binary()), null_on_error=False)


def test_text_is_utf8() -> None:
    values = pa.array(["é".encode(), b"\xff", None], pa.binary())
    assert decode_text(values, null_on_error=True).to_pylist() == ["é", None, None]
    with pytest.raises(BadValueError, match="not UTF-8"):
        decode_text(values, null_on_error=False)
