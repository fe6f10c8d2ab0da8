"""Cache of recently verified passwords, which saves expensive hashes. Pure."""

from __future__ import annotations

import hmac
from collections import OrderedDict
from typing import Final, NamedTuple

from raftlog import limits
from raftlog.security.credentials import CredentialStore, UsedCredential

KEY_BYTES: Final = 32


class _Verified(NamedTuple):
    used: UsedCredential
    until_seconds: float


class VerifiedPasswords:
    """Cache of at most ``HTTP_CREDENTIALS_KEPT_MAX`` entries, for ``HTTP_CREDENTIAL_KEPT_S`` each.

    No password is stored: a keyed hash of user and password identifies an entry.
    """

    def __init__(self, key: bytes) -> None:
        """``key``: ``KEY_BYTES`` random bytes."""
        self._key = key
        self._verified: OrderedDict[bytes, _Verified] = OrderedDict()

    def find(
        self, user: str, password: str, store: CredentialStore, now: float
    ) -> UsedCredential | None:
        """Return the credential that the password matched, if the user still has it.

        ``now``: seconds, monotonic.
        """
        digest = self._digest(user, password)
        found = self._verified.get(digest)
        if found is None:
            return None
        if now >= found.until_seconds or not store.has(found.used):
            del self._verified[digest]
            return None
        return found.used

    def put(self, user: str, password: str, used: UsedCredential, now: float) -> None:
        """Add a password that was verified at ``now``."""
        digest = self._digest(user, password)
        self._verified[digest] = _Verified(used, now + limits.HTTP_CREDENTIAL_KEPT_S)
        self._verified.move_to_end(digest)
        if len(self._verified) > limits.HTTP_CREDENTIALS_KEPT_MAX:
            self._verified.popitem(last=False)

    def _digest(self, user: str, password: str) -> bytes:
        return hmac.digest(self._key, f"{user}\0{password}".encode(), "sha256")
