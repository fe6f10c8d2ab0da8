"""Quotas: limits of the use of a broker by a user, a client ID or an address.

A client that exceeds a quota is throttled. Kafka's model (KIP-13, KIP-55, KIP-546): the most
specific quota applies, and each broker enforces it separately. Pure: time is an argument.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from typing import Annotated, Final, Literal, NamedTuple, Self, TypeAlias, get_args

import msgspec
from msgspec import Meta

from raftlog import limits
from raftlog.errors import InvalidRequestError
from raftlog.security.acl import ANY, canonical_host, check_name

# Kafka's names of the limits. Only raftlog has ``connections``: open connections of a user.
QuotaKey: TypeAlias = Literal[
    "producer_byte_rate",
    "consumer_byte_rate",
    "request_percentage",
    "connections",
    "connection_creation_rate",
]
QUOTA_KEYS: Final[tuple[QuotaKey, ...]] = get_args(QuotaKey)
DEFAULT: Final = "<default>"  # as a user, client ID or address: all others

_CLIENT_KEYS: Final[frozenset[QuotaKey]] = frozenset((
    "producer_byte_rate", "consumer_byte_rate", "request_percentage",
))  # fmt: skip
_USER_KEYS: Final[frozenset[QuotaKey]] = _CLIENT_KEYS | {"connections"}
_ADDRESS_KEYS: Final[frozenset[QuotaKey]] = frozenset(("connection_creation_rate",))

_UserName = Annotated[str, Meta(max_length=limits.PRINCIPAL_NAME_CHARS_MAX)]
_ClientId = Annotated[str, Meta(max_length=limits.CLIENT_ID_CHARS_MAX)]
_Host = Annotated[str, Meta(max_length=limits.HOST_CHARS_MAX)]


class QuotaEntity(msgspec.Struct, frozen=True):
    """Entity of a quota: a user, a client ID, both together, or an address.

    None: not part of the entity. ``<default>``: each user, client ID or address that has no other
    quota.
    """

    user: _UserName | None = None
    client_id: _ClientId | None = None
    address: _Host | None = None

    def __str__(self) -> str:
        parts = (("user", self.user), ("client-id", self.client_id), ("address", self.address))
        return ", ".join(f"{kind} {name}" for kind, name in parts if name is not None)

    def checked(self) -> Self:
        """Return the entity with its address in canonical form. Raises ``InvalidRequestError`` if
        it is empty, or combines an address with a user or client ID.
        """
        if self.address is None:
            if self.user is None and self.client_id is None:
                raise InvalidRequestError("a quota requires a user, a client ID or an address")
            if self.user not in (None, DEFAULT):
                check_name(self.user)
            return self
        if self.user is not None or self.client_id is not None:
            raise InvalidRequestError(
                "a quota for an address cannot have a user or client ID: connections are counted "
                "before the broker knows them"
            )
        if self.address == DEFAULT:
            return self
        if self.address == ANY:
            raise InvalidRequestError(f"write {DEFAULT} for the quota of all other addresses")
        return msgspec.structs.replace(self, address=canonical_host(self.address))

    @property
    def keys(self) -> frozenset[QuotaKey]:
        """The limits that can be enforced for the entity."""
        if self.address is not None:
            return _ADDRESS_KEYS
        return _USER_KEYS if self.client_id is None else _CLIENT_KEYS

    def check_key(self, key: QuotaKey) -> None:
        """Raise ``InvalidRequestError`` for a limit that the entity cannot have."""
        if key not in self.keys:
            raise InvalidRequestError(
                f"a quota for {self} has no {key}. Use {', '.join(sorted(self.keys))}"
            )


# Values of the limits that are set.
Quota: TypeAlias = Mapping[QuotaKey, float]


class _Found(NamedTuple):
    """The quota that applies, and the user and client ID whose use is counted together."""

    rate: float
    counted: tuple[str | None, str | None]  # user, client ID


class Bucket:
    """Token bucket. It can be overdrawn: the client then waits until it is filled again."""

    __slots__ = ("_at", "_rate", "_tokens")

    def __init__(self, rate: float, now: float) -> None:
        self._rate = rate
        self._tokens = rate * limits.QUOTA_BURST_S
        self._at = now

    def take(self, amount: float, rate: float, now: float) -> float:
        """Return the seconds to wait after the use of ``amount``; ``rate``: units per second."""
        if rate != self._rate:  # the quota has changed
            self._tokens = min(self._tokens, rate * limits.QUOTA_BURST_S)
            self._rate = rate
        grown = self._tokens + (now - self._at) * rate
        self._tokens = min(grown, rate * limits.QUOTA_BURST_S) - amount
        self._at = now
        return 0.0 if self._tokens >= 0 else -self._tokens / rate


class Quotas:
    """All quotas, and their use on this broker."""

    def __init__(self) -> None:
        self._quotas: dict[QuotaEntity, Quota] = {}
        self._counts: Counter[QuotaKey] = Counter()  # entities that have the limit
        self._buckets: dict[tuple[QuotaKey, str | None, str | None], Bucket] = {}

    def __iter__(self) -> Iterator[tuple[QuotaEntity, Quota]]:
        return iter(self._quotas.items())

    def put(self, entity: QuotaEntity, quota: Quota) -> None:
        """Set the quota of an entity; an empty one removes it."""
        self._counts.subtract(self._quotas.pop(entity, {}).keys())
        if quota:
            self._quotas[entity] = quota
            self._counts.update(quota.keys())

    def has(self, key: QuotaKey) -> bool:
        """Return whether any entity has this limit. Otherwise its use need not be counted."""
        return self._counts[key] > 0

    def rate(self, key: QuotaKey, user: str, client_id: str = "") -> float | None:
        """Return the limit that applies to a client of a user; None for no limit."""
        found = self._find(key, user, client_id) if self._counts[key] else None
        return None if found is None else found.rate

    def _find(self, key: QuotaKey, user: str, client_id: str) -> _Found | None:
        """Return the most specific quota (KIP-55)."""
        for by_user, by_client in (
            (user, client_id),
            (user, DEFAULT),
            (user, None),
            (DEFAULT, client_id),
            (DEFAULT, DEFAULT),
            (DEFAULT, None),
            (None, client_id),
            (None, DEFAULT),
        ):
            quota = self._quotas.get(QuotaEntity(by_user, by_client))
            if quota is not None and key in quota:
                counted = (None if by_user is None else user, client_id if by_client else None)
                return _Found(quota[key], counted)
        return None

    def use(self, key: QuotaKey, user: str, client_id: str, amount: float, now: float) -> float:
        """Count the use of a rate, and return the seconds for which the client must wait."""
        if not self._counts[key]:
            return 0.0
        found = self._find(key, user, client_id)
        return 0.0 if found is None else self._take(key, found, amount, now)

    def connect(self, address: str, now: float) -> bool:
        """Count a new connection from an address. Returns False if there are too many."""
        key: QuotaKey = "connection_creation_rate"
        if not self._counts[key]:
            return True
        for name in (address, DEFAULT):
            quota = self._quotas.get(QuotaEntity(address=name))
            if quota is not None:
                found = _Found(quota[key], (address, None))
                if self._take(key, found, 0, now):
                    return False
                self._take(key, found, 1, now)
                return True
        return True

    def _take(self, key: QuotaKey, found: _Found, amount: float, now: float) -> float:
        at = (key, *found.counted)
        bucket = self._buckets.pop(at, None) or Bucket(found.rate, now)
        self._buckets[at] = bucket  # at the end: the least recently used one is the first
        if len(self._buckets) > limits.QUOTA_BUCKETS_MAX:
            del self._buckets[next(iter(self._buckets))]
        return bucket.take(amount, found.rate, now)
