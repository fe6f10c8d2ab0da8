"""What users pass: taken, turned into bytes, or refused with a reason; long lists cut to fit."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from raftlog import limits
from raftlog.client.accumulator import BATCH_BYTES, Run
from raftlog.client.records import (
    checked_headers,
    checked_timestamp,
    column,
    columns_of,
    cut,
    octets,
)
from raftlog.errors import InvalidRequestError
from raftlog.record import Codec


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        (b"a", b"a"),
        (None, None),
        (bytearray(b"a"), b"a"),
        (memoryview(b"abc")[1:], b"bc"),
    ],
)
def test_what_is_bytes_or_like_them_is_taken(value: Any, expected: bytes | None) -> None:
    assert octets(value, "value") == expected


@pytest.mark.parametrize(("value", "hint"), [("a", "encode"), (3, "bytes"), ([1], "bytes")])
def test_what_is_not_is_refused_with_a_hint(value: Any, hint: str) -> None:
    with pytest.raises(TypeError, match=hint) as caught:
        octets(value, "key")
    assert "key_serializer" in str(caught.value)


@pytest.mark.parametrize(
    ("headers", "expected"),
    [
        (None, None),
        ([], None),
        ([("a", b"1"), ("a", None)], (("a", b"1"), ("a", None))),
        ({"a": b"1"}, (("a", b"1"),)),
        ((("a", bytearray(b"1")),), (("a", b"1"),)),
    ],
)
def test_headers_become_tuples(headers: Any, expected: object) -> None:
    assert checked_headers(headers) == expected


@pytest.mark.parametrize(
    "headers", ["ab", [("a",)], [("a", "text")], [(b"a", b"1")], [3], 3, [("a", b"1", b"2")]]
)
def test_bad_headers_are_refused(headers: Any) -> None:
    with pytest.raises(TypeError, match="header"):
        checked_headers(headers)


def test_timestamps_are_milliseconds() -> None:
    assert checked_timestamp(0) == 0
    with pytest.raises(TypeError, match="milliseconds"):
        checked_timestamp(1.5)
    with pytest.raises(TypeError):
        checked_timestamp(True)
    for wrong in (-1, limits.TIMESTAMP_MS_MAX + 1):
        with pytest.raises(InvalidRequestError, match="milliseconds since 1970"):
            checked_timestamp(wrong)


def test_columns_are_taken_as_they_are_when_they_can_be() -> None:
    values = [b"a", None]
    assert column(values, None, "value")[0] is values
    assert column(values, None, "value") == (values, True)
    assert column((b"a",), None, "value") == ((b"a",), False)
    assert column(iter([b"a"]), None, "value") == ([b"a"], False)  # type: ignore[arg-type]
    assert column([bytearray(b"a"), None], None, "value") == ([b"a", None], True)
    assert column([1, 2], lambda number: b"%d" % number, "value") == ([b"1", b"2"], False)
    with pytest.raises(TypeError, match="value_serializer"):
        column([b"a", "b"], None, "value")
    for one in (b"ab", "ab", bytearray(b"ab")):
        with pytest.raises(TypeError, match="a list, with one value"):
            column(one, None, "value")


def columns(values: list[Any], **more: Any) -> Run:
    arguments: dict[str, Any] = {"keys": None, "headers": None, "timestamps_ms": 1, **more}
    return columns_of(
        values,
        arguments["keys"],
        arguments["headers"],
        arguments["timestamps_ms"],
        key_serializer=None,
        value_serializer=None,
    )


@pytest.mark.parametrize(
    "more", [{"keys": [b"a"]}, {"headers": [None]}, {"timestamps_ms": [1]}, {"keys": []}]
)
def test_columns_have_one_entry_for_each_record(more: dict[str, Any]) -> None:
    with pytest.raises(InvalidRequestError, match="for 2 values"):
        columns([b"1", b"2"], **more)


def test_all_columns_together() -> None:
    run = columns(
        [b"1", None], keys=[None, b"k"], headers=[None, [("h", b"x")]], timestamps_ms=[3, 4]
    )
    assert run == Run([b"1", None], [None, b"k"], [None, (("h", b"x"),)], [3, 4], 0)
    assert not columns([b"1"], keys=[b"k"]).has_nulls
    assert columns([b"1", None]).has_nulls
    assert columns([b"1"], keys=[None]).has_nulls
    with pytest.raises(InvalidRequestError):
        columns([b"1"], timestamps_ms=-5)


OPTIONAL = st.none() | st.binary(max_size=40)


@given(
    st.lists(st.tuples(OPTIONAL, OPTIONAL, st.integers(0, 9)), min_size=1, max_size=60),
    st.integers(1, 400),
    st.sampled_from(["keyed", "keyless", "plain", "plain keyed"]),
)
def test_pieces_are_the_run_and_fit(
    records: list[tuple[bytes | None, bytes | None, int]], bytes_max: int, kind: str
) -> None:
    run = columns(
        [value or b"" if "plain" in kind else value for value, _, _ in records],
        keys=[key or b"" if "plain" in kind else key for _, key, _ in records]
        if "keyed" in kind
        else None,
        timestamps_ms=[stamp for _, _, stamp in records],
    )
    assert not run.has_nulls or "plain" not in kind
    pieces = list(cut(run, bytes_max))
    assert [value for piece in pieces for value in piece.values] == list(run.values)
    assert [s for piece in pieces for s in piece.timestamps_ms] == run.timestamps_ms  # type: ignore[union-attr]
    for piece in pieces:
        body = piece.encode(Codec.NONE, None)
        assert body.size_bytes <= BATCH_BYTES + piece.size_bytes
        assert piece.size_bytes <= bytes_max or len(piece.values) == 1


def test_a_run_that_fits_is_one_piece() -> None:
    run = Run([b"x" * 100] * 1_000, None, None, 0, 0, has_nulls=False)
    (piece,) = cut(run, 112_000)
    assert piece.values is run.values
    assert len(list(cut(run, 111_999))) == 2
    assert [len(piece.values) for piece in cut(run, 11_200)] == [100] * 10
