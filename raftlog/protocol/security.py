"""Access rules and quotas: ``create_acls``, ``describe_acls``, ``delete_acls``, ``check_acl``,
``describe_quotas`` and ``alter_quotas``.

Rules and quotas are those of ``raftlog.security``.
"""

from __future__ import annotations

import hashlib
import hmac
from collections.abc import Iterator
from typing import Annotated, Final, Literal

from msgspec import Meta

from raftlog import limits
from raftlog.errors import (
    AccessDeniedError,
    BrokerIdInUseError,
    BrokerUnavailableError,
    StaleBrokerError,
    UnsupportedVersionError,
    WrongClusterError,
)
from raftlog.protocol.peer import (
    NONCE_BYTES,
    PROOF_BYTES,
    PeerHelloRequest,
    PeerHelloResponse,
    PeerIdentity,
    PeerProveRequest,
)
from raftlog.protocol.schema import ClusterId, Failure, Message, NodeId
from raftlog.security.acl import Acl, AclFilter, Operation, ResourceType
from raftlog.security.credentials import (
    HMAC_BYTES,
    SCRAM_MECHANISMS,
    Credentials,
    Mechanism,
    TimeMs,
    TokenPrincipal,
)
from raftlog.security.quota import QuotaEntity, QuotaKey

_Name = Annotated[str, Meta(max_length=2 * limits.ACL_RESOURCE_CHARS_MAX)]
_Host = Annotated[str, Meta(max_length=limits.HOST_CHARS_MAX)]
_Rules = Annotated[list[Acl], Meta(max_length=limits.ACLS_PER_CLUSTER_MAX)]
Rate = Annotated[float, Meta(gt=0, le=limits.QUOTA_MAX)]


class CreateAclsRequest(Message):
    """Add rules: all of them or none. Those that exist stay."""

    acls: Annotated[list[Acl], Meta(min_length=1, max_length=limits.ACLS_PER_REQUEST_MAX)]


class CreateAclsResponse(Message):
    pass


class DescribeAclsRequest(Message):
    """Return the rules that a filter selects."""

    filter: AclFilter


class DescribeAclsResponse(Message):
    acls: _Rules


class DeleteAclsRequest(Message):
    """Delete the rules that any of the filters selects."""

    filters: Annotated[
        list[AclFilter], Meta(min_length=1, max_length=limits.ACL_FILTERS_PER_REQUEST_MAX)
    ]


class DeleteAclsResponse(Message):
    """The deleted rules."""

    acls: _Rules


class CheckAclRequest(Message):
    """Ask whether a principal at a host may do an operation. ``host``: an IP address."""

    principal: _Name
    operation: Operation
    resource_type: ResourceType
    resource_name: _Name
    host: _Host


class CheckAclResponse(Message):
    """The decision. ``acl``: the rule that decides; None for super users, and if none applies.

    ``is_enforced``: False if the broker does not require authentication; then everyone may do
    everything.
    """

    is_allowed: bool
    acl: Acl | None = None
    is_super_user: bool = False
    is_enforced: bool = True


class DescribeQuotasRequest(Message):
    """Return all quotas."""


class QuotaDescription(Message):
    entity: QuotaEntity
    limits: dict[QuotaKey, Rate]


class DescribeQuotasResponse(Message):
    quotas: Annotated[list[QuotaDescription], Meta(max_length=limits.QUOTAS_PER_CLUSTER_MAX)]


class QuotaAlteration(Message):
    """Change of limits of one entity; None removes a limit."""

    entity: QuotaEntity
    changes: dict[QuotaKey, Rate | None]


class AlterQuotasRequest(Message):
    """Change quotas: all of them or none."""

    quotas: Annotated[
        list[QuotaAlteration], Meta(min_length=1, max_length=limits.QUOTAS_PER_REQUEST_MAX)
    ]


class AlterQuotasResponse(Message):
    pass


# -- users -----------------------------------------------------------------------------------------
#
# ``describe_users`` and ``alter_users``: the users of the cluster and their SCRAM credentials.
#
# A client sends the keys of a new credential, and no password.


_User = Annotated[str, Meta(min_length=1, max_length=limits.PRINCIPAL_NAME_CHARS_MAX)]


class DescribeUsersRequest(Message):
    """Request these users, or all of them. Names that no user has are left out of the response."""

    users: Annotated[list[_User], Meta(max_length=limits.USERS_PER_REQUEST_MAX)] | None = None


class UserDescription(Message):
    """A user. ``iterations``: of its SCRAM credentials, by mechanism."""

    name: _User
    iterations: dict[Mechanism, int]


class DescribeUsersResponse(Message):
    """Users, sorted by name."""

    users: Annotated[list[UserDescription], Meta(max_length=limits.USERS_PER_CLUSTER_MAX)]


class UserAlteration(Message):
    """Set ``credentials`` of a user, or delete those of the mechanisms ``delete``.

    ``expected``: "absent" or "present" to set credentials only of a new or an existing user.
    """

    name: _User
    credentials: Credentials = {}
    delete: Annotated[list[Mechanism], Meta(max_length=len(SCRAM_MECHANISMS))] = []
    expected: Literal["any", "absent", "present"] = "any"


class AlterUsersRequest(Message):
    """Change users, one after the other. Each has a separate result."""

    users: Annotated[list[UserAlteration], Meta(max_length=limits.USERS_PER_REQUEST_MAX)]


class UserResult(Message):
    """Result for one user. ``failure``: None if the change is committed."""

    name: _User
    failure: Failure | None = None


class AlterUsersResponse(Message):
    """Results, in the order of the request."""

    results: Annotated[list[UserResult], Meta(max_length=limits.USERS_PER_REQUEST_MAX)]


# -- delegation tokens -----------------------------------------------------------------------------
#
# ``create_token``, ``describe_tokens``, ``renew_token``, ``expire_token``: delegation tokens.


TOKEN_ID_CHARS: Final = 32
_TokenId = Annotated[str, Meta(min_length=TOKEN_ID_CHARS, max_length=TOKEN_ID_CHARS)]
_Renewers = Annotated[list[TokenPrincipal], Meta(max_length=limits.DELEGATION_TOKEN_RENEWERS_MAX)]
_Milliseconds = Annotated[int, Meta(ge=-1, le=limits.DELEGATION_TOKEN_LIFETIME_MS_MAX)]


class TokenDescription(Message):
    """A delegation token. Times: milliseconds since 1970."""

    id: _TokenId
    owner: TokenPrincipal
    renewers: _Renewers
    issued_ms: TimeMs
    expires_ms: TimeMs
    max_ms: TimeMs


class CreateTokenRequest(Message):
    """Create a token of the client. ``lifetime_ms``: until it can be renewed no longer; -1: as long
    as the broker permits.
    """

    renewers: _Renewers = []
    lifetime_ms: _Milliseconds = -1


class CreateTokenResponse(Message):
    """The token. ``hmac``: its secret, which no other response contains."""

    token: TokenDescription
    hmac: Annotated[bytes, Meta(min_length=HMAC_BYTES, max_length=HMAC_BYTES)]

    def __repr__(self) -> str:
        return f"CreateTokenResponse(token={self.token!r}, hmac=(hidden))"


class DescribeTokensRequest(Message):
    """Request the tokens of these owners, or all of them, that the client may see."""

    owners: (
        Annotated[list[TokenPrincipal], Meta(max_length=limits.DELEGATION_TOKEN_OWNERS_MAX)] | None
    ) = None


class DescribeTokensResponse(Message):
    """Tokens that have not expired, sorted by owner and time of issue."""

    tokens: Annotated[
        list[TokenDescription], Meta(max_length=limits.DELEGATION_TOKENS_PER_CLUSTER_MAX)
    ]


class RenewTokenRequest(Message):
    """Let a token expire ``period_ms`` from now; -1: after the broker's default."""

    token_id: _TokenId
    period_ms: _Milliseconds = -1


class ExpireTokenRequest(Message):
    """Let a token expire ``period_ms`` from now; -1: at once."""

    token_id: _TokenId
    period_ms: _Milliseconds = -1


class TokenExpiryResponse(Message):
    """The time at which the token expires: milliseconds since 1970."""

    expires_ms: TimeMs


# -- authentication --------------------------------------------------------------------------------
#
# ``sasl_authenticate``: one message of a SASL exchange (RFC 4422). ``raftlog.security`` has the
# mechanisms.


_Data = Annotated[bytes, Meta(max_length=limits.SASL_MESSAGE_BYTES_MAX)]


class SaslAuthenticateRequest(Message):
    """A message of the client. ``mechanism``: begins an exchange; empty: continues it.

    On a connection that is authenticated, a new exchange extends the session. It must be of the
    same user.
    """

    data: _Data
    mechanism: Annotated[str, Meta(max_length=64)] = ""

    def __repr__(self) -> str:
        return f"SaslAuthenticateRequest(mechanism={self.mechanism!r}, data=(hidden))"


class SaslAuthenticateResponse(Message):
    """A challenge, or the last message of the broker if ``is_complete``.

    ``session_lifetime_ms``: the client must authenticate again in this time, or the broker closes
    the connection; 0: never.
    """

    data: _Data
    is_complete: bool
    session_lifetime_ms: Annotated[int, Meta(ge=0, le=(1 << 63) - 1)] = 0

    def __repr__(self) -> str:
        return f"SaslAuthenticateResponse(is_complete={self.is_complete}, data=(hidden))"


# -- operator auth ---------------------------------------------------------------------------------
#
# Authentication of operators: proof of the cluster secret, without sending the secret.
#
# Mutual challenge-response with HMAC-SHA-256, as between brokers (below). Requests that can
# lose data or change the cluster require it, because raftlog has no user permissions yet:
#
#     operator                                 broker
#     --------                                 ------
#     hello()  -- nonce ------------------>    answer(hello)
#     check()  <- broker, nonce, proof -----
#              -- proof ------------------>    check(prove)
#
# The role names differ from those of brokers, so an operator's proof is never valid as a broker's
# proof, or vice versa. The module does no I/O and draws no random numbers: nonces are arguments.
# Each object is used for one handshake.


_ROLE_OPERATOR: Final = b"raftlog operator, asking"
_ROLE_BROKER: Final = b"raftlog operator, answering"

_Nonce = Annotated[bytes, Meta(min_length=NONCE_BYTES, max_length=NONCE_BYTES)]
_Proof = Annotated[bytes, Meta(min_length=PROOF_BYTES, max_length=PROOF_BYTES)]


class OperatorHelloRequest(Message):
    """Start of the handshake. ``nonce``: random bytes, used once."""

    nonce: _Nonce


class OperatorHelloResponse(Message):
    """Response to the hello. ``proof``: shows that the broker knows the secret."""

    broker: NodeId
    cluster_id: ClusterId
    nonce: _Nonce
    proof: _Proof


class OperatorProveRequest(Message):
    """Second request. ``proof``: shows that the operator knows the secret."""

    proof: _Proof


class OperatorProveResponse(Message):
    """Success: the connection is now authenticated as an operator's."""


class Asking:
    """The operator's side of a handshake."""

    def __init__(self, secret: bytes, nonce: bytes) -> None:
        self._secret = secret
        self._hello = OperatorHelloRequest(nonce=nonce)

    def hello(self) -> OperatorHelloRequest:
        """Return the first message."""
        return self._hello

    def check(self, response: OperatorHelloResponse) -> OperatorProveRequest:
        """Verify the broker's proof and return the operator's.

        Raises ``AccessDeniedError`` if the broker has another secret.
        """
        wanted = _proof(self._secret, _ROLE_BROKER, self._hello, response)
        if not hmac.compare_digest(wanted, response.proof):
            raise AccessDeniedError(
                f"broker {response.broker} has a different cluster secret. Use the secret of the "
                "cluster's brokers"
            )
        return OperatorProveRequest(
            proof=_proof(self._secret, _ROLE_OPERATOR, self._hello, response)
        )


class Granting:
    """The broker's side of a handshake. ``cluster_id``: empty if it has not joined a cluster."""

    def __init__(self, secret: bytes, broker: int, cluster_id: str, nonce: bytes) -> None:
        self._secret = secret
        self._broker = broker
        self._cluster_id = cluster_id
        self._nonce = nonce
        self._said: tuple[OperatorHelloRequest, OperatorHelloResponse] | None = None

    def answer(self, hello: OperatorHelloRequest) -> OperatorHelloResponse:
        """Return the response to ``hello``, with the broker's proof."""
        claim = OperatorHelloResponse(
            broker=self._broker,
            cluster_id=self._cluster_id,
            nonce=self._nonce,
            proof=bytes(PROOF_BYTES),
        )
        proof = _proof(self._secret, _ROLE_BROKER, hello, claim)
        response = OperatorHelloResponse(
            broker=claim.broker, cluster_id=claim.cluster_id, nonce=claim.nonce, proof=proof
        )
        self._said = hello, response
        return response

    def check(self, prove: OperatorProveRequest) -> None:
        """Verify the operator's proof.

        Raises ``AccessDeniedError`` if the proof is invalid, on a second call, or without a hello.
        """
        said, self._said = self._said, None
        if said is None:
            raise AccessDeniedError("operator_prove without operator_hello. Send operator_hello")
        if not hmac.compare_digest(_proof(self._secret, _ROLE_OPERATOR, *said), prove.proof):
            raise AccessDeniedError(
                "the operator has a different cluster secret. Use the secret of the cluster's "
                "brokers"
            )


def _proof(
    secret: bytes, role: bytes, hello: OperatorHelloRequest, response: OperatorHelloResponse
) -> bytes:
    """Return the HMAC of the role and all fields that both sides have sent."""
    mac = hmac.new(secret, digestmod=hashlib.sha256)
    broker, cluster_id = str(response.broker).encode(), response.cluster_id.encode()
    for field in (role, hello.nonce, broker, cluster_id, response.nonce):
        mac.update(len(field).to_bytes(4, "little"))
        mac.update(field)
    return mac.digest()


# -- handshake -------------------------------------------------------------------------------------
#
# ``api_versions``: the APIs and versions that a broker supports, and its identity.


_UnsignedShort = Annotated[int, Meta(ge=0, le=(1 << 16) - 1)]  # u16 in the frame


class ApiVersionsRequest(Message):
    client_id: Annotated[str, Meta(max_length=limits.CLIENT_ID_CHARS_MAX)] = ""
    client_software: Annotated[str, Meta(max_length=limits.CLIENT_ID_CHARS_MAX)] = ""


class ApiVersionRange(Message):
    api: _UnsignedShort
    version_min: _UnsignedShort
    version_max: _UnsignedShort


class FeatureRange(Message):
    """One format or protocol: the versions that the broker reads, and ``level``: the version that
    it writes.
    """

    name: Annotated[str, Meta(max_length=limits.FEATURE_NAME_CHARS_MAX)]
    version_min: _UnsignedShort
    version_max: _UnsignedShort
    level: _UnsignedShort


class ApiVersionsResponse(Message):
    """``features``: empty from brokers that do not report them."""

    broker_software: str
    broker_id: NodeId
    cluster_id: str
    apis: list[ApiVersionRange]
    features: Annotated[list[FeatureRange], Meta(max_length=limits.FEATURES_MAX)] = []


# -- peer auth -------------------------------------------------------------------------------------
#
# Authentication between brokers: mutual proof of the cluster secret, without sending the secret.
#
# Mutual challenge-response with HMAC-SHA-256 (RFC 2104), similar to ISO/IEC 9798-4:
#
#     dialling side                                answering side
#     -------------                                --------------
#     hello()   -- identity, nonce ------------->  answer(hello)
#     check()   <- identity, nonce, proof -------
#               -- proof ----------------------->  check(prove)  returns the peer
#
# A proof is the HMAC of a role, both identities and both nonces. Each field is preceded by its
# length. A recorded proof is invalid for a new nonce (replay). The proof of one role is invalid for
# the other role (reflection). A broker rejects peers with its own ID, so it cannot be made to
# answer its own challenge. Before the proof is verified, a broker checks only that the peer is not
# itself.
#
# Limits: the handshake authenticates the broker that opened the connection. It does not protect the
# following bytes from modification in transit; this requires TLS. An attacker with one response can
# test secrets offline, so a secret should be 32 random bytes and not a word.
#
# The module does no I/O and draws no random numbers: nonces are arguments. Each object is used for
# one handshake.


# Highest supported version. 2: the broker applies ``RaisePeerProtocol``, and the first leaders that
# partitions have from then on. 3: delegation tokens. 4: ``DeclareLost``, and histories. 5:
# transactions. 6: ``AlterGroup``, and Raft envelopes of over 4 MiB.
PEER_PROTOCOL_VERSION: Final = 6
PEER_PROTOCOL_VERSION_MIN: Final = 1  # lowest supported version

_ROLE_DIALLING: Final = b"raftlog peer, dialling"
# guard: a proof is of one role
_ROLE_ANSWERING: Final = b"raftlog peer, answering"


class Dialling:
    """The side that opened the connection. ``expected``: broker ID of the intended peer."""

    def __init__(
        self, secret: bytes, me: PeerIdentity, nonce: bytes, *, expected: int | None = None
    ) -> None:
        assert len(nonce) == NONCE_BYTES
        self._secret = secret
        self._hello = PeerHelloRequest(identity=me, nonce=nonce)
        self._expected = expected
        self._checked = False

    def hello(self) -> PeerHelloRequest:
        """Return the first message."""
        return self._hello

    def check(self, response: PeerHelloResponse) -> PeerProveRequest:
        """Verify the peer's proof and return ours. ``response.identity`` is then authentic.

        Call ``check_cluster`` for the cluster of the peer after sending the returned proof. Both
        sides are then authenticated, and both can report a difference.

        Raises ``AccessDeniedError`` (another secret, or a second response), ``BrokerIdInUseError``
        (the peer has our broker ID), ``UnsupportedVersionError``, or ``BrokerUnavailableError``
        (an authentic peer, but not the expected one).
        """
        if self._checked:
            raise AccessDeniedError("second response to one peer_hello")
        self._checked = True
        me, peer = self._hello.identity, response.identity
        wanted = self._proof(_ROLE_ANSWERING, response)
        # guard: the accepting side proves the secret
        if not hmac.compare_digest(wanted, response.proof):
            raise _no_proof(peer)
        _check_other(me, peer)
        check_version(peer)
        if self._expected is not None and peer.broker_id != self._expected:
            raise BrokerUnavailableError(
                f"expected broker {self._expected} at {peer.host}:{peer.port}, but broker "
                f"{peer.broker_id} responded. Check the addresses of both brokers"
            )
        return PeerProveRequest(proof=self._proof(_ROLE_DIALLING, response))

    def _proof(self, role: bytes, response: PeerHelloResponse) -> bytes:
        return _peer_proof(self._secret, role, self._hello, response.identity, response.nonce)


class Answering:
    """The side that accepted the connection. ``me``: its own identity."""

    def __init__(self, secret: bytes, me: PeerIdentity, nonce: bytes) -> None:
        assert len(nonce) == NONCE_BYTES
        self._secret = secret
        self.me = me
        self._nonce = nonce
        self._hello: PeerHelloRequest | None = None  # answered, proof pending
        self._answered = False

    def answer(self, hello: PeerHelloRequest) -> PeerHelloResponse:
        """Return the response to ``hello``, whose identity is not authenticated yet.

        Raises ``AccessDeniedError`` (second ``hello``, or our own data directory) or
        ``BrokerIdInUseError`` (the peer has our broker ID).
        """
        if self._answered:
            raise AccessDeniedError("second peer_hello on one connection")
        self._answered = True
        _check_other(self.me, hello.identity)
        self._hello = hello
        proof = self._proof(_ROLE_ANSWERING, hello)
        return PeerHelloResponse(identity=self.me, nonce=self._nonce, proof=proof)

    def check(self, prove: PeerProveRequest) -> PeerIdentity:
        """Verify the peer's proof and return its identity, which is then authentic.

        Call ``check_cluster`` for the cluster of the peer.

        Raises ``AccessDeniedError`` (another secret, no ``hello`` before, or a second call) or
        ``UnsupportedVersionError``.
        """
        # guard: one proof per connection
        hello, self._hello = self._hello, None
        if hello is None:
            raise AccessDeniedError("peer_prove without peer_hello. Send peer_hello first")
        wanted = self._proof(_ROLE_DIALLING, hello)
        # guard: the connecting side proves the secret
        if not hmac.compare_digest(wanted, prove.proof):
            raise _no_proof(hello.identity)
        check_version(hello.identity)
        return hello.identity

    def _proof(self, role: bytes, hello: PeerHelloRequest) -> bytes:
        return _peer_proof(self._secret, role, hello, self.me, self._nonce)


def check_boot(
    peer: PeerIdentity, *, seen_directory_id: str, seen_boot: int, seen_run: str = ""
) -> None:
    """Check that the peer's data directory is not an old copy.

    ``seen_*``: the newest known data directory, boot number and run of this broker ID. A data
    directory with another ID passes: the voters of each group decide which directory counts.

    Raises ``StaleBrokerError`` if the directory was seen with a later boot number, or with the same
    boot number and another run. Each boot number is used once, so one of the two is a copy.
    """
    is_other_run = bool(peer.run and seen_run) and peer.run != seen_run
    # guard: an old copy of a peer's directory that is one start behind
    # guard: an old copy of a peer's directory
    is_stale = peer.boot < seen_boot or (peer.boot == seen_boot and is_other_run)
    if peer.directory_id == seen_directory_id and is_stale:
        raise StaleBrokerError(
            f"broker {peer.broker_id} uses an old copy of data directory {peer.directory_id}: "
            f"boot {peer.boot}, but boot {seen_boot} was seen before. Start the broker with an "
            "empty directory. It then copies all data from the other brokers"
        )


def check_journal(
    peer: PeerIdentity, *, heard_directory_id: str, heard_boot: int, heard_sequence: int
) -> None:
    """Check that the peer's consensus journal contains all blocks that the peer has reported.

    ``heard_*``: the last journal block that this broker ID has reported, and its newest boot. That
    boot started with fewer blocks than it reported later. Only a later boot must find all of them.
    Brokers report durable blocks only, so a crash cannot remove them.

    Raises ``StaleBrokerError`` if blocks are missing.
    """
    # guard: a peer's journal that has lost its end
    is_short = peer.boot > heard_boot and peer.journal_sequence < heard_sequence
    if peer.directory_id == heard_directory_id and is_short:
        raise StaleBrokerError(
            f"the consensus journal of broker {peer.broker_id} has lost acknowledged blocks: at "
            f"boot {peer.boot} of data directory {peer.directory_id} it ends with block "
            f"{peer.journal_sequence}, but the broker had reported block {heard_sequence}. "
            "Start the broker with an empty data directory. It then copies all data from the "
            "other brokers"
        )


# -- proofs and claims -----------------------------------------------------------------------------


def _peer_proof(
    secret: bytes, role: bytes, hello: PeerHelloRequest, answering: PeerIdentity, nonce: bytes
) -> bytes:
    """Return the HMAC of all fields. ``answering`` and ``nonce`` are of the answering side."""
    mac = hmac.new(secret, digestmod=hashlib.sha256)
    # guard: a proof is of fresh nonces
    for field in (role, *_fields(hello.identity), hello.nonce, *_fields(answering), nonce):
        # guard: fields of a proof have their lengths
        mac.update(len(field).to_bytes(4, "little"))
        mac.update(field)
    return mac.digest()


def _fields(identity: PeerIdentity) -> Iterator[bytes]:
    for value in (
        identity.broker_id,
        identity.directory_id,
        identity.boot,
        identity.host,
        identity.port,
        identity.protocol_version,
        identity.cluster_id,
        identity.run,
        identity.journal_sequence,
        identity.voters,
    ):
        yield str(value).encode("utf-8")
    if identity.history:  # earlier releases do not know it, and prove what they know
        yield identity.history.encode("utf-8")


def _no_proof(peer: PeerIdentity) -> AccessDeniedError:
    return AccessDeniedError(
        f"the peer that claims to be broker {peer.broker_id} at {peer.host}:{peer.port} has a "
        "different cluster secret. Configure the same secret on every broker of the cluster"
    )


def _check_other(me: PeerIdentity, peer: PeerIdentity) -> None:
    """Check that the peer is not this broker and has another broker ID."""
    # guard: the data directory of this broker, elsewhere
    if peer.directory_id == me.directory_id:
        raise AccessDeniedError(
            f"broker {me.broker_id} is connected to its own data directory ({me.directory_id}): "
            "the peer is the broker itself, or uses a copy. Check the addresses of its peers"
        )
    # guard: another broker with the same id
    if peer.broker_id == me.broker_id:
        raise BrokerIdInUseError(
            f"two brokers have the ID {me.broker_id}: data directory {me.directory_id} at "
            f"{me.host}:{me.port} and {peer.directory_id} at {peer.host}:{peer.port}. Configure "
            "another ID for one of them"
        )


def check_cluster(me: PeerIdentity, peer: PeerIdentity) -> None:
    """Check that an authenticated peer has the same cluster ID or, if neither has one, the same
    configured voters.

    The configuration matters only for the creation of a cluster: later, its own state names the
    voters. A broker without configured voters joins a cluster that exists.

    Raises ``WrongClusterError``, with both values, if they differ.
    """
    # guard: brokers of another cluster
    if me.cluster_id and peer.cluster_id and me.cluster_id != peer.cluster_id:
        raise WrongClusterError(
            f"broker {peer.broker_id} at {peer.host}:{peer.port} belongs to cluster "
            f"{peer.cluster_id}, but broker {me.broker_id} to {me.cluster_id}. Check the "
            "addresses of its peers"
        )
    is_creation = not (me.cluster_id or peer.cluster_id) and me.voters and peer.voters
    # guard: brokers with other voters do not work together
    if is_creation and me.voters != peer.voters:
        raise WrongClusterError(
            f"broker {peer.broker_id} at {peer.host}:{peer.port} has the voters "
            f"{peer.voters}, but broker {me.broker_id} has {me.voters}. Configure the same list "
            "(voters) on every broker of the cluster"
        )


def check_version(peer: PeerIdentity, version_min: int = PEER_PROTOCOL_VERSION_MIN) -> None:
    """Check that the peer supports version ``version_min`` of the protocol between brokers.

    Raises ``UnsupportedVersionError``.
    """
    if peer.protocol_version < version_min:
        raise UnsupportedVersionError(
            f"broker {peer.broker_id} supports the peer protocol up to version "
            f"{peer.protocol_version}, but this broker requires at least "
            f"{version_min}. Upgrade broker {peer.broker_id}"
        )
