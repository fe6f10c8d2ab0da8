"""Users: their names, and credentials that show no key."""

from __future__ import annotations

import pytest

from raftlog.errors import InvalidRequestError
from raftlog.security.credentials import User, check_user_name, of_salted_password
from raftlog.security.sasl import make_credential

SALTED = bytes(range(32))


@pytest.mark.parametrize("name", ["alice", "Zoë", "svc-1@example.org", "a b"])
def test_a_name_is_returned(name: str) -> None:
    assert check_user_name(name) == name


@pytest.mark.parametrize("name", ["", "a\nb", "x" * 257, "ﬁ", "a\u00a0b"])
def test_a_name_that_sasl_would_change_is_rejected(name: str) -> None:
    with pytest.raises(InvalidRequestError):
        check_user_name(name)


def test_a_salted_password_gives_the_keys_of_the_password() -> None:
    import hashlib

    salt = b"salt of 16 bytes"
    salted = hashlib.pbkdf2_hmac("sha512", b"the password", salt, 4_096)
    made = of_salted_password("SCRAM-SHA-512", salted, salt=salt, iterations=4_096)
    assert made == make_credential("SCRAM-SHA-512", "the password", salt=salt, iterations=4_096)


@pytest.mark.parametrize(
    ("salt_bytes", "iterations"), [(11, 4_096), (129, 4_096), (16, 4_095), (16, 16_385)]
)
def test_values_out_of_bounds_are_rejected(salt_bytes: int, iterations: int) -> None:
    with pytest.raises(InvalidRequestError, match=f"{iterations} iterations and a salt of"):
        of_salted_password("SCRAM-SHA-256", SALTED, salt=bytes(salt_bytes), iterations=iterations)


def test_the_text_of_a_user_has_no_keys() -> None:
    made = of_salted_password("SCRAM-SHA-256", SALTED, salt=b"0123456789abcdef", iterations=4_096)
    text = repr(User("alice", {"SCRAM-SHA-256": made}))
    assert "4096" in text
    assert not any(repr(secret)[2:-1] in text for secret in (made.salt, made.stored_key))
