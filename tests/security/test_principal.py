"""Principals and the names of users."""

from __future__ import annotations

from typing import Any

import pytest

from raftlog import limits
from raftlog.errors import InvalidRequestError
from raftlog.security.principal import ANONYMOUS, Principal, of_certificate


@pytest.mark.parametrize("name", ["alice", "CN=a, O=b", "a:b", "x" * 256, "Zoë"])
def test_a_principal_is_its_text(name: str) -> None:
    principal = Principal.parse(f"User:{name}")
    assert principal == Principal("User", name)
    assert str(principal) == f"User:{name}"


@pytest.mark.parametrize(
    "text",
    ["", "alice", "User:", "user:alice", "Group:a", "User:a\nb", "User:a\0", "User:\ud800",
     "User:" + "x" * (limits.PRINCIPAL_NAME_CHARS_MAX + 1)],
)  # fmt: skip
def test_other_texts_are_rejected(text: str) -> None:
    with pytest.raises(InvalidRequestError):
        Principal.parse(text)


def test_the_anonymous_principal() -> None:
    assert str(ANONYMOUS) == "User:ANONYMOUS"


@pytest.mark.parametrize(
    ("subject", "name"),
    [
        ([[("commonName", "alice")]], "alice"),
        ([[("organizationName", "o")], [("commonName", "alice")]], "alice"),
        ([[("commonName", "a\nb")]], None),
        ([[("commonName", "")]], None),
        ([[("organizationName", "o")]], None),
        ([], None),
    ],
)
def test_a_certificate_names_its_owner(subject: list[Any], name: str | None) -> None:
    expected = None if name is None else Principal("User", name)
    assert of_certificate({"subject": subject}) == expected
