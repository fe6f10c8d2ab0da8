"""Users and their SCRAM credentials, as the cluster state stores them. No password is stored.

A credential contains the keys of RFC 5802 that a broker needs to verify a password. An attacker
with a credential cannot authenticate, but can act as a broker and guess the password offline.
"""

from __future__ import annotations

import hashlib
import hmac
import unicodedata
from typing import Annotated, Final, Literal, TypeAlias

import msgspec
from msgspec import Meta

from raftlog import limits
from raftlog.errors import InvalidRequestError
from raftlog.security.principal import check_name

Mechanism: TypeAlias = Literal["SCRAM-SHA-256", "SCRAM-SHA-512"]

SCRAM_SHA_256: Final = "SCRAM-SHA-256"
SCRAM_SHA_512: Final = "SCRAM-SHA-512"
SCRAM_MECHANISMS: Final[tuple[Mechanism, ...]] = (SCRAM_SHA_256, SCRAM_SHA_512)

_Key = Annotated[bytes, Meta(min_length=32, max_length=64)]


class ScramCredential(msgspec.Struct, frozen=True, array_like=True):
    """Stored values that verify the password of a user (RFC 5802, section 3)."""

    iterations: Annotated[int, Meta(ge=limits.SCRAM_ITERATIONS_MIN, le=limits.SCRAM_ITERATIONS_MAX)]
    salt: Annotated[
        bytes,
        Meta(min_length=limits.SCRAM_SALT_BYTES_MIN, max_length=limits.SCRAM_SALT_BYTES_MAX),
    ]
    stored_key: _Key
    server_key: _Key

    def __repr__(self) -> str:
        return f"ScramCredential(iterations={self.iterations}, keys=(hidden))"


Credentials = Annotated[dict[Mechanism, ScramCredential], Meta(max_length=len(SCRAM_MECHANISMS))]


class User(msgspec.Struct, frozen=True, array_like=True):
    """One user. ``credentials``: by mechanism, at least one."""

    name: str
    credentials: Credentials


def check_user_name(name: str) -> str:
    """Return the name of a new user if it is valid.

    Names are compared character by character, and SASL converts some characters (RFC 4013). So a
    name must be in Unicode's normal form KC.

    Raises ``InvalidRequestError``.
    """
    if not unicodedata.is_normalized("NFKC", check_name(name)):
        raise InvalidRequestError(
            f"the name of the user {name!r} has characters that SASL converts (RFC 4013). Use "
            f"{unicodedata.normalize('NFKC', name)!r}"
        )
    return name


def of_salted_password(
    mechanism: Mechanism, salted: bytes, *, salt: bytes, iterations: int
) -> ScramCredential:
    """Return the credential of a password that a client has salted (KIP-554).

    Raises ``InvalidRequestError`` if a value is out of bounds.
    """
    digest = "sha256" if mechanism == SCRAM_SHA_256 else "sha512"
    client_key = hmac.digest(salted, b"Client Key", digest)
    values = (
        iterations,
        salt,
        hashlib.new(digest, client_key).digest(),
        hmac.digest(salted, b"Server Key", digest),
    )
    try:
        return msgspec.convert(values, ScramCredential)
    except msgspec.ValidationError:
        raise InvalidRequestError(
            f"{iterations} iterations and a salt of {len(salt)} bytes. Use "
            f"{limits.SCRAM_ITERATIONS_MIN} to {limits.SCRAM_ITERATIONS_MAX} iterations, and a "
            f"salt of {limits.SCRAM_SALT_BYTES_MIN} to {limits.SCRAM_SALT_BYTES_MAX} bytes"
        ) from None
