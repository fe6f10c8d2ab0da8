"""Lookup of credentials that does not reveal which users exist."""

from __future__ import annotations

import base64
import hashlib
import hmac
import ipaddress
import unicodedata
from collections import OrderedDict
from collections.abc import Callable, Iterable, Mapping
from types import MappingProxyType
from typing import Annotated, Final, Literal, NamedTuple, TypeAlias

import msgspec
from msgspec import Meta

from raftlog import limits
from raftlog.errors import InvalidRequestError, TokenExpiredError
from raftlog.security.acl import Principal, check_name

# -- users -----------------------------------------------------------------------------------------
#
# Users and their SCRAM credentials, as the cluster state stores them. No password is stored.
#
# A credential contains the keys of RFC 5802 that a broker needs to verify a password. An attacker
# with a credential cannot authenticate, but can act as a broker and guess the password offline.


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


# -- credentials -----------------------------------------------------------------------------------


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


# -- passwords -------------------------------------------------------------------------------------
#
# Cache of recently verified passwords, which saves expensive hashes. Pure.


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
        # guard: a remembered password is that of a current credential
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


# -- failures --------------------------------------------------------------------------------------
#
# Limit of failed authentication attempts by source address.


class _Failures(NamedTuple):
    number: float  # at that time; decreases by 1 every AUTHENTICATION_FAILURE_S
    at_seconds: float


class FailureLimit:
    """Counts failures per address. The count decreases by 1 every ``AUTHENTICATION_FAILURE_S``.

    An IPv6 address counts as its /64 network, which one host can own. At most
    ``FAILING_ADDRESSES_MAX`` addresses are kept: those with the most recent failures.
    """

    def __init__(self) -> None:
        self._failures: OrderedDict[str, _Failures] = OrderedDict()

    def is_reached(self, host: str, now: float) -> bool:
        """Return whether the count of the address is ``AUTHENTICATION_FAILURES_MAX``.

        ``now``: seconds, monotonic.
        """
        return self._count(_source(host), now) >= limits.AUTHENTICATION_FAILURES_MAX

    def note(self, host: str, now: float) -> None:
        """Count a failure."""
        source = _source(host)
        self._failures[source] = _Failures(self._count(source, now) + 1, now)
        self._failures.move_to_end(source)
        if len(self._failures) > limits.FAILING_ADDRESSES_MAX:
            self._failures.popitem(last=False)

    def _count(self, source: str, now: float) -> float:
        found = self._failures.get(source)
        if found is None:
            return 0.0
        forgiven = (now - found.at_seconds) / limits.AUTHENTICATION_FAILURE_S
        return max(0.0, found.number - forgiven)


def _source(host: str) -> str:
    try:
        address = ipaddress.ip_address(host.partition("%")[0])
    except ValueError:
        return host
    if isinstance(address, ipaddress.IPv4Address):
        return host
    if address.ipv4_mapped is not None:
        return str(address.ipv4_mapped)
    return str(ipaddress.ip_network((address, 64), strict=False))


# -- delegation ------------------------------------------------------------------------------------
#
# Delegation tokens (KIP-48): credentials of limited lifetime that act as their owner. Pure.
#
# A token has an ID, which is public, and an HMAC, which is secret. Clients authenticate by SCRAM
# with the ID as the user name, the HMAC in base64 as the password, and the extension
# ``tokenauth=true``. The HMAC consists of random bytes: in contrast to Kafka, no secret of the
# brokers can restore it, and the cluster state contains only hashes of it.


HMAC_BYTES: Final = 64  # of HMAC-SHA-512, as in Kafka
DIGEST_BYTES: Final = 32

TokenId = Annotated[str, Meta(pattern=r"\A[0-9a-f]{32}\Z")]
TokenPrincipal = Annotated[str, Meta(min_length=1, max_length=2 * limits.PRINCIPAL_NAME_CHARS_MAX)]
TimeMs = Annotated[int, Meta(ge=0, le=(1 << 63) - 1)]
Renewers = Annotated[
    tuple[TokenPrincipal, ...], Meta(max_length=limits.DELEGATION_TOKEN_RENEWERS_MAX)
]


class DelegationToken(msgspec.Struct, frozen=True, array_like=True):
    """A token, as the cluster state stores it.

    ``owner``, ``renewers``: principals, such as ``User:alice``. Times: milliseconds since 1970.
    ``expires_ms`` can be extended up to ``max_ms``. ``digest``: SHA-256 of the HMAC.
    """

    id: TokenId
    owner: TokenPrincipal
    renewers: Renewers
    issued_ms: TimeMs
    expires_ms: TimeMs
    max_ms: TimeMs
    digest: Annotated[bytes, Meta(min_length=DIGEST_BYTES, max_length=DIGEST_BYTES)]
    credentials: Annotated[Credentials, Meta(min_length=1)]

    def __repr__(self) -> str:
        return f"DelegationToken(id={self.id!r}, owner={self.owner!r}, secrets=(hidden))"

    def may_renew(self, principal: str) -> bool:
        """Return whether a principal may extend and shorten the lifetime of the token."""
        return principal == self.owner or principal in self.renewers


def make_token(
    *,
    owner: Principal,
    renewers: Iterable[str],
    hmac: bytes,
    now_ms: int,
    lifetime_ms: int,
    renewal_ms: int,
    entropy: Callable[[int], bytes],
) -> DelegationToken:
    """Return a new token. Takes about 10 ms of CPU.

    ``hmac``: ``HMAC_BYTES`` random bytes. ``lifetime_ms``: maximum lifetime. ``renewal_ms``: time
    until it expires unless it is renewed. Raises ``InvalidRequestError`` if a renewer is not a
    principal, or if there are too many.
    """
    from raftlog.security.sasl import make_credentials  # takes 0.2 s of CPU

    named = tuple(dict.fromkeys(str(Principal.parse(each)) for each in renewers))
    if len(named) > limits.DELEGATION_TOKEN_RENEWERS_MAX:
        raise InvalidRequestError(
            f"the token has {len(named)} renewers, over the limit of "
            f"{limits.DELEGATION_TOKEN_RENEWERS_MAX}"
        )
    max_ms = now_ms + lifetime_ms
    return DelegationToken(
        id=entropy(16).hex(),
        owner=str(owner),
        renewers=named,
        issued_ms=now_ms,
        expires_ms=min(max_ms, now_ms + renewal_ms),
        max_ms=max_ms,
        digest=digest_of(hmac),
        credentials=make_credentials(password_of(hmac), entropy),
    )


def password_of(hmac: bytes) -> str:
    """Return the password of a token for SCRAM."""
    return base64.b64encode(hmac).decode()


def digest_of(hmac: bytes) -> bytes:
    """Return the hash that identifies an HMAC of Kafka's clients. A random HMAC needs no salt."""
    return hashlib.sha256(hmac).digest()


def with_expiry(token: DelegationToken, expires_ms: int, now_ms: int) -> DelegationToken | None:
    """Return the token with a new expiry, at most ``max_ms``; None if that time has passed.

    Raises ``TokenExpiredError`` if the token has expired: it cannot be renewed.
    """
    if expires_ms <= now_ms:
        return None
    if token.expires_ms <= now_ms or token.max_ms <= now_ms:
        raise TokenExpiredError(f"delegation token {token.id} has expired. Create another one")
    return msgspec.structs.replace(token, expires_ms=min(expires_ms, token.max_ms))
