"""Principals and the names of users."""

from __future__ import annotations

from typing import Any

import pytest

from raftlog import limits
from raftlog.config.address import parse_principal_rules
from raftlog.errors import InvalidRequestError
from raftlog.security.acl import ANONYMOUS, Principal, distinguished_name, of_certificate


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


SUBJECT = [
    [("countryName", "DE")],
    [("organizationName", "Example, Inc.")],
    [("organizationalUnitName", "apps"), ("userId", "7")],
    [("commonName", "Alice")],
]


def test_a_distinguished_name_is_that_of_rfc_2253() -> None:
    assert distinguished_name(SUBJECT) == r"CN=Alice,OU=apps+UID=7,O=Example\, Inc.,C=DE"
    assert distinguished_name([[("commonName", "#a ")]]) == r"CN=\#a\ "
    assert distinguished_name([[("emailAddress", "a@b")]]) == "emailAddress=a@b"


@pytest.mark.parametrize(
    ("rules", "name"),
    [
        ("DEFAULT", r"CN=Alice,OU=apps+UID=7,O=Example\, Inc.,C=DE"),
        ("RULE:^CN=(.*?),OU=apps.*$/$1/L,DEFAULT", "alice"),
        ("RULE:^CN=Bob,.*$/bob/ , RULE:.*UID=([0-9]+).*/user-$1/U", "USER-7"),
        ("RULE:CN=Alice/alice/", None),  # it does not match all of the name
        ("RULE:^.*$//", None),
        ("RULE:^CN=(.*?),.*$/$1\\n/", "Alicen"),
    ],
)
def test_rules_make_the_name_of_the_user(rules: str, name: str | None) -> None:
    expected = None if name is None else Principal("User", name)
    assert of_certificate({"subject": SUBJECT}, parse_principal_rules(rules)) == expected


def test_a_long_name_is_not_matched() -> None:
    subject = [[("commonName", "a" * limits.CERTIFICATE_NAME_CHARS_MAX)]]
    rules = parse_principal_rules("RULE:.*/alice/")
    assert of_certificate({"subject": subject}, rules) is None
