"""The error tree: drawn as it is, each with its number, kind to numbers that it does not know."""

from __future__ import annotations

import re

import pytest

from raftlog import errors
from raftlog.errors import (
    OutcomeUnknownError,
    RaftlogError,
    RefusedError,
    RetriableError,
    StorageError,
    from_code,
)


def tree(base: type[RaftlogError]) -> list[type[RaftlogError]]:
    return [base, *(leaf for child in base.__subclasses__() for leaf in tree(child))]


ALL = [error for error in tree(RaftlogError) if error.__module__ == "raftlog.errors"]


def test_the_drawing_is_the_tree() -> None:
    drawn = re.findall(
        r"^    ((?:[│ ]   )*)(?:[├└]── )?(\w+Error)\b", errors.__doc__ or "", re.MULTILINE
    )
    depths = {name: len(error.__mro__) for error in ALL for name in [error.__name__]}
    assert [name for _, name in drawn] == [error.__name__ for error in ALL]
    root = depths["RaftlogError"]
    for indent, name in drawn[1:]:
        assert len(indent) // 4 + 1 == depths[name] - root, name


def test_every_error_has_a_number_of_its_own() -> None:
    codes = [error.code for error in ALL]
    assert len(set(codes)) == len(codes)


@pytest.mark.parametrize(
    ("first", "kind"),
    [(1, RetriableError), (100, OutcomeUnknownError), (200, RefusedError), (300, StorageError)],
)
def test_numbers_lie_in_the_range_of_their_kind(first: int, kind: type[RaftlogError]) -> None:
    for error in tree(kind):
        assert first <= error.code < first + (99 if first == 1 else 100), error


def test_an_error_survives_the_wire() -> None:
    for error in ALL[1:]:
        again = from_code(error.code, "what happened")
        assert type(again) is error
        assert str(again) == "what happened"


@pytest.mark.parametrize(
    ("code", "kind"),
    [
        (99, RetriableError),
        (199, OutcomeUnknownError),
        (299, RefusedError),
        (399, StorageError),
        (9_999, RaftlogError),
        (-7, RaftlogError),
    ],
)
def test_an_unknown_number_becomes_the_kind_of_its_range(
    code: int, kind: type[RaftlogError]
) -> None:
    error = from_code(code, "from the future")
    assert type(error) is kind
    assert str(error) == f"from the future (error code {code})"


def test_every_error_says_what_it_means() -> None:
    assert all((error.__doc__ or "").strip().endswith(".") for error in ALL)
