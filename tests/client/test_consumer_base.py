"""What consumers are given, checked."""

from __future__ import annotations

import re
from typing import Any

import pytest

from raftlog.client.consumer import check_callback, check_interest, check_some, chosen
from raftlog.errors import InvalidRequestError
from raftlog.types import OffsetAndMetadata
from tests.client.test_subscription import A, B


def test_topics_or_a_pattern() -> None:
    assert check_interest(["a", "b", "a"], None) == (["a", "b"], None)
    compiled = re.compile("a.")
    assert check_interest(None, "a.") == ([], compiled)
    assert check_interest(None, compiled) == ([], compiled)


@pytest.mark.parametrize(
    ("topics", "pattern", "error"),
    [
        (None, None, InvalidRequestError),
        (["a"], "a", InvalidRequestError),
        ("a", None, TypeError),
        (None, 7, TypeError),
        (None, b"a", TypeError),
        (None, re.compile(b"a"), TypeError),
        (None, "[", InvalidRequestError),
    ],
)
def test_neither_both_or_nonsense(topics: Any, pattern: Any, error: type[Exception]) -> None:
    with pytest.raises(error):
        check_interest(topics, pattern)


def test_one_partition_gives_one_answer_and_several_a_dict() -> None:
    assert check_some(A) == ([A], True)
    assert check_some([A, B]) == ([A, B], False)
    noted = OffsetAndMetadata(3, "note")
    assert chosen({A: noted}, is_one=True, metadata=False) == 3
    assert chosen({A: noted}, is_one=True, metadata=True) == noted
    assert chosen({A: None}, is_one=True, metadata=False) is None
    assert chosen({A: noted, B: None}, is_one=False, metadata=False) == {A: 3, B: None}
    assert chosen({}, is_one=False, metadata=True) == {}
    with pytest.raises(TypeError):
        check_some("t")  # type: ignore[arg-type]


def test_a_callback_can_be_called() -> None:
    check_callback(None)
    check_callback(print)
    with pytest.raises(TypeError, match="callback=3"):
        check_callback(3)
