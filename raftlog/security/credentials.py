"""Lookup of credentials that does not reveal which users exist."""

from __future__ import annotations

import hmac
from collections.abc import Mapping
from types import MappingProxyType
from typing import Final, NamedTuple

from raftlog import limits
from raftlog.security.delegation import DelegationToken
from raftlog.security.principal import Principal
from raftlog.security.users import SCRAM_MECHANISMS, Mechanism, ScramCredential, User

SALT_BYTES: Final = 32
_KEY_BYTES: Final[Mapping[Mechanism, int]] = {"SCRAM-SHA-256": 32, "SCRAM-SHA-512": 64}


class UsedCredential(NamedTuple):
    """The credential with which a user has authenticated. ``token``: ID of the delegation token
    that it belongs to; "" for a credential of the user.
    """

    user: str
    mechanism: Mechanism
    credential: ScramCredential
    token: str = ""


class CredentialStore:
    """Finds the credential of a user, or a plausible one for a name that no user has.

    The mock credential of a name is constant, and has the format of real credentials. So neither a
    response nor its time reveals whether a user exists.
    """

    def __init__(
        self,
        users: Mapping[str, User],
        secret: bytes,
        tokens: Mapping[str, DelegationToken] = MappingProxyType({}),
    ) -> None:
        """``secret``: random bytes of the cluster, the same on all brokers. ``tokens``: valid ones,
        by ID.
        """
        self._users = users
        self._tokens = tokens
        self._secret = secret
        self._shapes = {
            mechanism: frozenset(
                (len(found.salt), found.iterations)
                for user in users.values()
                if (found := user.credentials.get(mechanism)) is not None
            )
            or frozenset(((SALT_BYTES, limits.SCRAM_ITERATIONS_DEFAULT),))
            for mechanism in SCRAM_MECHANISMS
        }
        self._verifying = frozenset(map(_verifying, users.values())) or frozenset(
            SCRAM_MECHANISMS[:1]
        )

    def find(self, name: str, mechanism: Mechanism) -> ScramCredential:
        """Return the credential of the user, or a mock one that no password matches."""
        mock = self._mock(name, mechanism)  # also for an existing user, to take the same time
        user = self._users.get(name)
        return mock if user is None else user.credentials.get(mechanism, mock)

    def find_token(self, token_id: str, mechanism: Mechanism) -> UsedCredential:
        """Return the credential of the token, or a mock one that no HMAC matches."""
        mock = self._mock(token_id, mechanism)
        token = self._tokens.get(token_id)
        if token is None:
            return UsedCredential("", mechanism, mock, token_id)
        owner = Principal.parse(token.owner).name
        return UsedCredential(owner, mechanism, token.credentials.get(mechanism, mock), token_id)

    def has(self, used: UsedCredential) -> bool:
        """Return whether the user still has the credential."""
        held = self._tokens.get(used.token) if used.token else self._users.get(used.user)
        return held is not None and held.credentials.get(used.mechanism) == used.credential

    def mechanism_of(self, name: str) -> Mechanism:
        """Return the mechanism whose credential verifies a plain password of the user."""
        user = self._users.get(name)
        if user is None:
            return max(
                self._verifying, key=lambda mechanism: self._random(f"{mechanism} {name}", 8)
            )
        return _verifying(user)

    def _mock(self, name: str, mechanism: Mechanism) -> ScramCredential:
        seed = f"{mechanism} {name}"
        salt_bytes, iterations = max(
            self._shapes[mechanism], key=lambda shape: self._random(f"{seed} {shape}", 8)
        )
        key_bytes = _KEY_BYTES[mechanism]
        return ScramCredential(
            iterations=iterations,
            salt=self._random(f"{seed} salt", salt_bytes),
            stored_key=self._random(f"{seed} stored", key_bytes),
            server_key=self._random(f"{seed} server", key_bytes),
        )

    def _random(self, purpose: str, count: int) -> bytes:
        """Return bytes that only the owner of the secret can predict."""
        mac = hmac.digest(self._secret, purpose.encode("utf-8", "surrogatepass"), "sha512")
        return (mac * (count // len(mac) + 1))[:count]


def _verifying(user: User) -> Mechanism:
    return next(mechanism for mechanism in SCRAM_MECHANISMS if mechanism in user.credentials)
