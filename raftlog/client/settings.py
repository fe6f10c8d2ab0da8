"""The settings of clients, checked. Frozen values; defaults stand once, in the public signatures.

Every check says which argument is wrong, what it was, and what it takes.
"""

from __future__ import annotations

import os
import shlex
import ssl
import subprocess
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import repeat
from operator import index
from pathlib import Path
from typing import Any, Final, Literal, Protocol, SupportsIndex, TypeAlias, TypedDict

from murmurhash2 import murmurhash2

from raftlog import limits, tls
from raftlog.client.defaults import TRANSACTION_TIMEOUT_MS_DEFAULT
from raftlog.config import Address, parse_address
from raftlog.config.address import BOOTSTRAP_DEFAULT
from raftlog.errors import (
    AuthenticationError,
    InvalidConfigError,
    InvalidGroupError,
    InvalidRequestError,
)
from raftlog.record import Codec
from raftlog.record.key_hash import KAFKA_SEED, POSITIVE, partition_of_key
from raftlog.security.credentials import SCRAM_MECHANISMS
from raftlog.types import Isolation, check_group_id

# -- partitioner -----------------------------------------------------------------------------------
#
# Partition selection for records with keys. Pure. Hashes keys exactly as Kafka's clients do.
#
# Records without keys go to one partition until its batch is full or sent, and then to the next:
# full batches cost less than an even distribution of records. ``accumulator`` implements that,
# because it owns the batches. This module hashes keys and groups records.


# (topic, key, value, partition count) -> partition; key and value as serialized.
Partitioner: TypeAlias = Callable[[str, bytes | None, bytes | None, int], int]

__all__ = [
    "KAFKA_SEED",
    "POSITIVE",
    "Partitioner",
    "checked",
    "groups",
    "partition_of_key",
    "partitions_of_keys",
]


def partitions_of_keys(keys: Sequence[bytes], partition_count: int) -> list[int]:
    """``partition_of_key`` of many keys at once."""
    hashes = map(murmurhash2, keys, repeat(KAFKA_SEED))
    return [(digest & POSITIVE) % partition_count for digest in hashes]


def checked(partition: object, partition_count: int, topic: str) -> int:
    """Return the result of a custom partitioner, if it is a partition of ``topic``.

    Raises ``InvalidRequestError`` if it is not.
    """
    if isinstance(partition, SupportsIndex) and 0 <= index(partition) < partition_count:
        return index(partition)
    raise InvalidRequestError(
        f"the partitioner returned {partition!r} for topic {topic!r}, which has {partition_count} "
        f"partitions. It must return an int from 0 to {partition_count - 1}"
    )


def groups(partitions: Iterable[int]) -> Iterable[tuple[int, list[int]]]:
    """Return (partition, indexes of its records in input order) for each partition that occurs.

    Partitions are in the order of their first record.
    """
    found: dict[int, list[int]] = {}
    for row, partition in enumerate(partitions):
        indexes = found.get(partition)
        if indexes is None:
            found[partition] = [row]
        else:
            indexes.append(row)
    return found.items()


# -- settings --------------------------------------------------------------------------------------


Bootstrap: TypeAlias = str | Sequence[str] | None
Serializer: TypeAlias = Callable[[Any], bytes | None]
Deserializer: TypeAlias = Callable[[bytes], Any]
OffsetReset: TypeAlias = Literal["earliest", "latest", "error"]
# Start of a partition without a position: a reset policy, or the committed offset of the group.
Start: TypeAlias = Literal["earliest", "latest", "error", "committed"]
ReadFrom: TypeAlias = Literal["leader", "replica"]

BOOTSTRAP_VARIABLE: Final = "RAFTLOG_BOOTSTRAP"
PROFILE_VARIABLE: Final = "RAFTLOG_PROFILE"
SECRET_FILE_VARIABLE: Final = "RAFTLOG_CLUSTER_SECRET_FILE"  # noqa: S105 - a name, no secret
DAY_MS: Final = 86_400_000

SECURITY_PROTOCOLS: Final = ("PLAINTEXT", "SSL", "SASL_PLAINTEXT", "SASL_SSL")
SASL_MECHANISMS: Final = ("SCRAM-SHA-256", "SCRAM-SHA-512", "PLAIN")
OAUTHBEARER: Final = "OAUTHBEARER"
SASL_MECHANISM_DEFAULT: Final = "SCRAM-SHA-512"
ISOLATIONS: Final = ("committed", "uncommitted")
SASL_ARGUMENTS: Final = ("sasl_mechanism", "sasl_username", "sasl_password")
TOKEN_SOURCES: Final = ("sasl_oauthbearer_token_file", "sasl_oauthbearer_token_command")
TLS_FILES: Final = ("ssl_cafile", "ssl_certfile", "ssl_keyfile")
TRUE: Final = {"true": True, "false": False}

LINGER_MS_MAX: Final = 60_000
BATCH_BYTES_MIN: Final = 1_024
BUFFER_BYTES_MAX: Final = 64 * limits.GIB
LEVELS: Final = (-131_072, 22)  # of all codecs; each codec checks its range
ACKS: Final[dict[object, Literal[-1, 0, 1]]] = {
    "all": -1,
    "-1": -1,
    -1: -1,
    "1": 1,
    1: 1,
    "0": 0,
    0: 0,
}
SOURCES: Final = ("leader", "replica")
# "none" is Kafka's name for "error".
RESETS: Final[dict[object, OffsetReset]] = {
    "earliest": "earliest",
    "latest": "latest",
    "error": "error",
    "none": "error",
}


class TokenProvider(Protocol):
    """Source of tokens, as in kafka-python."""

    def token(self) -> str:
        """Return a token that is valid now. Called in a thread, for each authentication."""
        ...


class SecurityArguments(TypedDict, total=False):
    """TLS and SASL arguments of every client, with the names of kafka-python.

    An argument that is not set, or None, is taken from ``profile``; else from the environment
    variable RAFTLOG_ and its name in capitals, such as RAFTLOG_SSL_CAFILE; else from the profile in
    RAFTLOG_PROFILE.

    ``profile``: name of a profile in ~/.config/raftlog/config.toml, or path of a profile file. It
        also has the default of ``bootstrap``.
    ``security_protocol``: "PLAINTEXT", "SSL" for TLS, or "SASL_SSL" for TLS with a user name and a
        password; "SASL_PLAINTEXT" is for tests. Default: "PLAINTEXT".
    ``ssl_cafile``: file with the accepted CA certificates (PEM). Default: those of the system.
    ``ssl_certfile``, ``ssl_keyfile``: certificate and key (PEM) of this client, for brokers with
        tls.client.ca.file. Set both or none.
    ``ssl_check_hostname``: require the host name of the broker in its certificate. Default: True.
    ``ssl_ciphers``: ciphers of TLS 1.2 as a list of OpenSSL, such as "ECDHE+AESGCM". Default: those
        of Python.
    ``sasl_mechanism``: "SCRAM-SHA-256", "SCRAM-SHA-512" or, with TLS only, "PLAIN", which sends the
        password to the broker, or "OAUTHBEARER". Default: "SCRAM-SHA-512".
    ``sasl_username``, ``sasl_password``: of a user of the cluster (`raftlog user create`).
    ``sasl_token_auth``: user name and password are ID and HMAC of a delegation token (`raftlog
        token create`). Default: False.
    ``sasl_oauth_token_provider``: for OAUTHBEARER: an object with a method ``token``, which returns
        a token of an identity provider. It is called in a thread, for each authentication.
    ``sasl_oauthbearer_token_file``, ``sasl_oauthbearer_token_command``: instead of a provider: a
        file with a token, or a command that prints one, for each authentication.
    """

    profile: str | None
    security_protocol: str | None
    ssl_cafile: str | None
    ssl_certfile: str | None
    ssl_keyfile: str | None
    ssl_check_hostname: bool | None
    ssl_ciphers: str | None
    sasl_mechanism: str | None
    sasl_username: str | None
    sasl_password: str | None
    sasl_token_auth: bool | None
    sasl_oauth_token_provider: TokenProvider | None
    sasl_oauthbearer_token_file: str | None
    sasl_oauthbearer_token_command: str | None


@dataclass(frozen=True, slots=True, kw_only=True)
class SaslSettings:
    """Authentication of a client on each connection."""

    mechanism: str
    username: str
    password: str = field(repr=False)
    token_provider: TokenProvider | None = None
    is_token: bool = False  # user name and password are those of a delegation token


@dataclass(frozen=True, slots=True, kw_only=True)
class ConnectionSettings:
    """Settings of every client: broker addresses and time limits."""

    bootstrap: tuple[Address, ...]
    client_id: str
    request_timeout_ms: int
    bootstrap_timeout_ms: int
    metadata_max_age_ms: int
    tls: ssl.SSLContext | None = None  # None: connections without TLS
    sasl: SaslSettings | None = None  # None: connections without SASL
    operator_secret: bytes = field(default=b"", repr=False)  # of the cluster; of admin clients


@dataclass(frozen=True, slots=True, kw_only=True)
class ProducerSettings:
    """Settings of a producer. ``acks`` is the protocol value: -1 all, 1 leader, 0 none."""

    acks: Literal[-1, 0, 1]
    idempotent: bool
    codec: Codec
    compression_level: int | None
    linger_ms: int
    batch_bytes_max: int
    buffer_memory: int
    max_block_ms: int
    delivery_timeout_ms: int
    partitioner: Partitioner | None
    transactional_id: str = ""  # "": no transactions
    transaction_timeout_ms: int = TRANSACTION_TIMEOUT_MS_DEFAULT


@dataclass(frozen=True, slots=True, kw_only=True)
class ConsumerSettings:
    """Settings of a consumer."""

    auto_offset_reset: OffsetReset
    check_crcs: bool
    fetch_min_bytes: int
    fetch_max_wait_ms: int
    fetch_max_bytes: int
    max_partition_fetch_bytes: int
    read_from: ReadFrom = "leader"
    client_rack: str | None = None
    isolation: Isolation = "committed"
    has_stand_in: bool = True  # whether another replica is read while the leader is unreachable


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupSettings:
    """Settings of a consumer in a consumer group."""

    group: str
    instance_id: str | None = None
    auto_commit: bool = True
    auto_commit_interval_ms: int = 5_000
    session_timeout_ms: int = 45_000
    heartbeat_interval_ms: int = 5_000  # Invariant: at most a third of the session timeout
    max_poll_interval_ms: int = 300_000
    assignor: str | None = None
    client_id: str = ""
    rack: str = ""


# Settings that need a consumer group, with the defaults that mean "not set".
GROUP_ONLY: Final[Mapping[str, object]] = {
    "group_instance_id": None,
    "auto_commit": True,
    "auto_commit_interval_ms": 5_000,
    "session_timeout_ms": 45_000,
    "heartbeat_interval_ms": 5_000,
    "max_poll_interval_ms": 300_000,
    "assignor": None,
}
POLL_INTERVAL_MS_MAX: Final = (1 << 31) - 1


# Arguments of a client's constructor, by name.
Arguments: TypeAlias = Mapping[str, Any]


def connection_settings(arguments: Arguments) -> ConnectionSettings:
    security = Security(arguments["security"])
    client_id = arguments["client_id"]
    if not isinstance(client_id, str) or len(client_id) > limits.CLIENT_ID_CHARS_MAX:
        raise InvalidRequestError(
            f"client_id={client_id!r} is not a str of up to {limits.CLIENT_ID_CHARS_MAX} characters"
        )
    return ConnectionSettings(
        bootstrap=parse_bootstrap(
            security.bootstrap if arguments["bootstrap"] is None else arguments["bootstrap"]
        ),
        client_id=client_id,
        request_timeout_ms=_integer(arguments, "request_timeout_ms", 1, DAY_MS),
        bootstrap_timeout_ms=_integer(arguments, "bootstrap_timeout_ms", 0, DAY_MS),
        metadata_max_age_ms=_integer(arguments, "metadata_max_age_ms", 100, DAY_MS),
        tls=security.tls_context(),
        sasl=security.sasl_settings(),
        operator_secret=arguments.get("operator", b""),
    )


def producer_settings(arguments: Arguments) -> ProducerSettings:
    acks, idempotent, level = (
        arguments[name] for name in ("acks", "idempotent", "compression_level")
    )
    number = None if isinstance(acks, bool) else ACKS.get(acks)
    if number is None:
        raise InvalidRequestError(f"acks={acks!r} is not valid. Set 'all' (or -1), 1 or 0")
    if idempotent and number != -1:
        raise InvalidRequestError(
            f"idempotent=True requires acks='all', not acks={acks!r}. Remove one of them"
        )
    transactional_id = _transactional_id(arguments["transactional_id"])
    if transactional_id and (number != -1 or idempotent is False):
        raise InvalidRequestError(
            "transactional_id requires acks='all' and idempotent=True. Remove acks and idempotent"
        )
    linger_ms = _integer(arguments, "linger_ms", 0, LINGER_MS_MAX)
    batch_bytes_max = _integer(
        arguments, "batch_bytes_max", BATCH_BYTES_MIN, limits.PRODUCER_BATCH_BYTES_MAX
    )
    delivery_ms_min = linger_ms + int(arguments["request_timeout_ms"])
    return ProducerSettings(
        acks=number,
        idempotent=number == -1 if idempotent is None else bool(idempotent),
        codec=Codec.parse(arguments["compression"]),
        compression_level=None if level is None else integer("compression_level", level, *LEVELS),
        linger_ms=linger_ms,
        batch_bytes_max=batch_bytes_max,
        buffer_memory=_integer(arguments, "buffer_memory", batch_bytes_max, BUFFER_BYTES_MAX),
        max_block_ms=_integer(arguments, "max_block_ms", 0, DAY_MS),
        delivery_timeout_ms=_integer(arguments, "delivery_timeout_ms", delivery_ms_min, DAY_MS),
        partitioner=function("partitioner", arguments["partitioner"]),
        transactional_id=transactional_id,
        transaction_timeout_ms=_integer(arguments, "transaction_timeout_ms", 1, DAY_MS),
    )


def _transactional_id(given: object) -> str:
    if given is None:
        return ""
    if not isinstance(given, str):
        raise TypeError(f"transactional_id={given!r} is not a str")
    if not 1 <= len(given) <= limits.TRANSACTIONAL_ID_CHARS_MAX:
        raise InvalidRequestError(
            f"transactional_id={given[:100]!r} has {len(given)} characters. Set 1 to "
            f"{limits.TRANSACTIONAL_ID_CHARS_MAX}"
        )
    return given


def consumer_settings(arguments: Arguments) -> ConsumerSettings:
    reset = arguments["auto_offset_reset"]
    if reset not in RESETS:
        raise InvalidRequestError(
            f"auto_offset_reset={reset!r} is not valid. Set 'earliest', 'latest' or 'error'"
        )
    bytes_max = limits.FETCH_BYTES_MAX
    read_from, rack = arguments["read_from"], arguments["client_rack"]
    if read_from not in SOURCES:
        raise InvalidRequestError(
            f"read_from={read_from!r} is not valid. Set 'leader' or 'replica'"
        )
    if rack is not None and not isinstance(rack, str):
        raise TypeError(
            f"client_rack={rack!r} is not a str. Set the `rack` value of the nearest brokers"
        )
    if rack and read_from == "leader":
        raise InvalidRequestError(f"client_rack={rack!r} requires read_from='replica'")
    return ConsumerSettings(
        auto_offset_reset=RESETS[reset],
        check_crcs=bool(arguments["check_crcs"]),
        fetch_min_bytes=_integer(arguments, "fetch_min_bytes", 0, bytes_max),
        fetch_max_wait_ms=_integer(arguments, "fetch_max_wait_ms", 0, limits.FETCH_WAIT_MS_MAX),
        fetch_max_bytes=_integer(arguments, "fetch_max_bytes", 1, bytes_max),
        max_partition_fetch_bytes=_integer(arguments, "max_partition_fetch_bytes", 1, bytes_max),
        read_from=read_from,
        client_rack=rack,
        isolation=isolation_of(arguments.get("isolation", "committed")),
    )


def isolation_of(given: Any) -> Isolation:
    """Return ``given``, if it is an isolation. Raises ``InvalidRequestError``."""
    if given not in ISOLATIONS:
        raise InvalidRequestError(
            f"isolation={given!r} is not valid. Set 'committed' or 'uncommitted'"
        )
    found: Isolation = given
    return found


def group_settings(arguments: Arguments) -> GroupSettings | None:
    """Return the checked group settings, or None without a group.

    Raises ``InvalidRequestError`` if a group setting is set without a group, and
    ``InvalidGroupError`` or ``TypeError`` if a value is wrong.
    """
    group = arguments["group"]
    if group is None:
        for name, default in GROUP_ONLY.items():
            if arguments[name] != default:
                raise InvalidRequestError(
                    f"{name}={arguments[name]!r} requires a consumer group. Set group=..., or "
                    f"remove {name}"
                )
        return None
    instance_id, assignor = arguments["group_instance_id"], arguments["assignor"]
    for name, value, chars_max in (
        ("group", group, None),  # check_group_id checks the length
        ("group_instance_id", instance_id, limits.INSTANCE_ID_CHARS_MAX),
        ("assignor", assignor, limits.ASSIGNOR_CHARS_MAX),
    ):
        if value is not None and not isinstance(value, str):
            raise TypeError(f"{name}={value!r} is not a str")
        if value is not None and chars_max is not None and not 1 <= len(value) <= chars_max:
            raise InvalidGroupError(f"{name} has {len(value)} characters. Use 1 to {chars_max}")
    session_ms = _integer(
        arguments,
        "session_timeout_ms",
        limits.SESSION_TIMEOUT_MS_MIN,
        limits.SESSION_TIMEOUT_MS_MAX,
    )
    heartbeat_ms = _integer(arguments, "heartbeat_interval_ms", 1, limits.HEARTBEAT_WAIT_MS_MAX)
    return GroupSettings(
        group=check_group_id(group),
        instance_id=instance_id,
        auto_commit=bool(arguments["auto_commit"]),
        auto_commit_interval_ms=_integer(arguments, "auto_commit_interval_ms", 1, DAY_MS),
        session_timeout_ms=session_ms,
        heartbeat_interval_ms=min(heartbeat_ms, session_ms // 3),
        max_poll_interval_ms=_integer(arguments, "max_poll_interval_ms", 1, POLL_INTERVAL_MS_MAX),
        assignor=assignor,
        client_id=arguments["client_id"],
        rack=arguments["client_rack"] or "",
    )


# -- checks ----------------------------------------------------------------------------------------


def parse_bootstrap(bootstrap: Bootstrap) -> tuple[Address, ...]:
    """Parse ``host:port[,host:port]``, or a sequence of ``host:port``. IPv6 hosts are in brackets.

    None selects the environment variable RAFTLOG_BOOTSTRAP; without it, BOOTSTRAP_DEFAULT. Raises
    ``TypeError`` or ``InvalidRequestError`` if an address is wrong.
    """
    source = "bootstrap"
    if bootstrap is None:
        environment = os.environ.get(BOOTSTRAP_VARIABLE)
        source = BOOTSTRAP_VARIABLE if environment else source
        bootstrap = environment or BOOTSTRAP_DEFAULT
    texts: Any = bootstrap.split(",") if isinstance(bootstrap, str) else bootstrap
    if isinstance(texts, dict):
        raise TypeError(
            f"{source}={bootstrap!r} is a dict. Pass settings as keyword arguments, for example "
            "bootstrap='127.0.0.1:9100'"
        )
    if isinstance(texts, bytes) or not isinstance(texts, Sequence):
        raise TypeError(
            f"{source}={bootstrap!r} is not a str. Pass 'host:port[,host:port]', or a list of "
            "'host:port'"
        )
    addresses: list[Address] = []
    for text in texts:
        if not isinstance(text, str):
            raise TypeError(f"{source}={bootstrap!r}: {text!r} is not a str. Write 'host:port'")
        if not text.strip() and len(texts) > 1:
            continue  # a trailing comma
        try:
            address = parse_address(text)
        except ValueError as error:
            raise InvalidRequestError(
                f"{source}={bootstrap!r}: {error}. Write host:port[,host:port]"
            ) from error
        if address.port == 0:
            raise InvalidRequestError(
                f"{source}={bootstrap!r}: port 0 in {text!r} is not valid. Write a port from 1 to "
                "65535"
            )
        if address not in addresses:
            addresses.append(address)
    if not addresses:
        raise InvalidRequestError(
            f"{source}={bootstrap!r} contains no address. Write host:port[,host:port]"
        )
    return tuple(addresses)


BROKER_IDS: Final = (0, (1 << 31) - 1)  # least and greatest id of a broker


def integer(name: str, value: object, minimum: int, maximum: int) -> int:
    """Return ``value`` if it is an int within the bounds.

    Raises ``TypeError`` if it is not an int, and ``InvalidRequestError`` if it is out of bounds.
    Both name the argument.
    """
    if isinstance(value, bool) or not isinstance(value, int):
        raise TypeError(f"{name}={value!r} is not an int. Pass an int from {minimum} to {maximum}")
    if not minimum <= value <= maximum:
        raise InvalidRequestError(f"{name}={value!r} is not from {minimum} to {maximum}")
    return value


def _integer(arguments: Arguments, name: str, minimum: int, maximum: int) -> int:
    return integer(name, arguments[name], minimum, maximum)


class NeedsSchemaError(Exception):
    """A deserializer needs a schema of the registry: call ``learn``, and deserialize again."""

    def __init__(self, deserializer: Any, schema_id: int) -> None:
        super().__init__(f"schema {schema_id} is not known yet")
        self.deserializer = deserializer
        self.schema_id = schema_id


def function(name: str, value: Any) -> Any:
    """Return ``value`` if it is None or callable; of a format of ``raftlog.schema``, what it makes
    for this argument of a client. Raises ``TypeError`` for others.
    """
    if hasattr(value, "for_client"):
        return value.for_client(name)
    if value is not None and not callable(value):
        raise TypeError(f"{name}={value!r} is not a function or None")
    return value


def _load(profile: str) -> dict[str, str]:

    from raftlog.client import profiles  # with pathlib and tomllib, which most clients never use

    return profiles.load(profile)


class Security:
    """The security arguments of a client, from all their sources.

    Raises ``InvalidRequestError`` or ``TypeError`` if an argument or the profile is wrong.
    """

    def __init__(self, arguments: SecurityArguments) -> None:
        for name in arguments.keys() - SecurityArguments.__annotations__.keys():
            raise TypeError(f"unexpected keyword argument {name!r}")
        self._given: dict[str, Any] = {
            name: value for name, value in arguments.items() if value is not None
        }
        named, default = arguments.get("profile"), os.environ.get(PROFILE_VARIABLE)
        self._profile = _load(named) if named else {}
        self._default = _load(default) if default and not named else {}
        self._protocol = self._value("security_protocol") or "PLAINTEXT"
        if self._protocol not in SECURITY_PROTOCOLS:
            raise InvalidRequestError(
                f"security_protocol={self._protocol!r} is not valid. Set one of "
                f"{', '.join(SECURITY_PROTOCOLS)}"
            )

    @property
    def bootstrap(self) -> str | None:
        """Brokers to connect to if the client has no argument for them; None: the default."""
        if os.environ.get(BOOTSTRAP_VARIABLE):
            return self._profile.get("bootstrap")
        return self._profile.get("bootstrap") or self._default.get("bootstrap")

    def sasl_settings(self) -> SaslSettings | None:
        """Return how the client authenticates; None without SASL."""
        given = self._given.keys() & {*SASL_ARGUMENTS, *TOKEN_SOURCES}
        if not self._protocol.startswith("SASL_"):
            others = {"sasl_token_auth", "sasl_oauth_token_provider"}
            for name in (*given, *(self._given.keys() & others)):
                raise InvalidRequestError(f"{name} requires security_protocol='SASL_SSL'")
            return None
        for name in given:
            if not isinstance(self._given[name], str):
                raise TypeError(f"{name} is a {type(self._given[name]).__name__}, not a str")
        mechanism, username, password = map(self._value, SASL_ARGUMENTS)
        mechanism = mechanism or SASL_MECHANISM_DEFAULT
        if mechanism not in (*SASL_MECHANISMS, OAUTHBEARER):
            raise InvalidRequestError(
                f"sasl_mechanism={mechanism!r} is not valid. Set one of "
                f"{', '.join((*SASL_MECHANISMS, OAUTHBEARER))}"
            )
        if mechanism in ("PLAIN", OAUTHBEARER) and self._protocol != "SASL_SSL":
            what = "password" if mechanism == "PLAIN" else "token"
            raise InvalidRequestError(
                f"sasl_mechanism={mechanism!r} sends the {what}: it requires "
                "security_protocol='SASL_SSL'"
            )
        provider = self._token_provider(mechanism)
        is_token = self._flag("sasl_token_auth", default="false")
        if is_token and mechanism not in SCRAM_MECHANISMS:
            raise InvalidRequestError(
                f"sasl_token_auth requires sasl_mechanism={' or '.join(SCRAM_MECHANISMS)}"
            )
        if provider is not None:
            return SaslSettings(
                mechanism=mechanism, username="", password="", token_provider=provider
            )
        if not username or not password:
            raise InvalidRequestError(
                f"security_protocol={self._protocol!r} requires sasl_username and sasl_password"
            )
        return SaslSettings(
            mechanism=mechanism, username=username, password=password, is_token=is_token
        )

    def _token_provider(self, mechanism: str) -> TokenProvider | None:
        """Return the source of bearer tokens; None for other mechanisms."""
        provider: TokenProvider | None = self._given.get("sasl_oauth_token_provider")
        named = {name for name in TOKEN_SOURCES if self._given.get(name)}
        if mechanism != OAUTHBEARER:
            for name in (*named, *(("sasl_oauth_token_provider",) if provider else ())):
                raise InvalidRequestError(f"{name} requires sasl_mechanism='OAUTHBEARER'")
            return None
        if len(named) + (provider is not None) > 1:
            raise InvalidRequestError(
                "sasl_oauth_token_provider, sasl_oauthbearer_token_file and "
                "sasl_oauthbearer_token_command exclude each other. Set one"
            )
        if provider is not None:
            if not callable(getattr(provider, "token", None)):
                raise TypeError("sasl_oauth_token_provider has no method token()")
            return provider

        file, command = (
            self._value(name) if name in named or not named else "" for name in TOKEN_SOURCES
        )
        if file:
            return TokenFile(file)
        if not command:
            raise InvalidRequestError(
                "sasl_mechanism='OAUTHBEARER' requires sasl_oauth_token_provider, "
                "sasl_oauthbearer_token_file or sasl_oauthbearer_token_command"
            )
        try:
            return TokenCommand(command)
        except ValueError as error:
            raise InvalidRequestError(
                f"sasl_oauthbearer_token_command is not valid: {error}"
            ) from error

    def tls_context(self) -> ssl.SSLContext | None:
        """Return the TLS context of the client; None without TLS. Reads the files."""
        given = self._given.keys() & {*TLS_FILES, "ssl_ciphers"}
        if not self._protocol.endswith("SSL"):
            for name in given:
                raise InvalidRequestError(f"{name} requires security_protocol='SSL' or 'SASL_SSL'")
            return None
        for name in given:
            if not isinstance(self._given[name], str | os.PathLike):
                raise TypeError(f"{name}={self._given[name]!r} is not a str")
        ca, certificate, key = (os.fspath(self._value(name)) for name in TLS_FILES)
        if bool(certificate) != bool(key):
            raise InvalidRequestError("ssl_certfile and ssl_keyfile require each other. Set both")
        try:
            return tls.client_context(
                ca=ca,
                certificate=certificate,
                key=key,
                check_hostname=self._flag("ssl_check_hostname", default="true"),
                ciphers=self._value("ssl_ciphers"),
            )
        except InvalidConfigError as error:
            raise InvalidRequestError(
                f"ssl_cafile, ssl_certfile, ssl_keyfile or ssl_ciphers: {error}"
            ) from error

    def _flag(self, name: str, *, default: str) -> bool:
        value = self._given.get(name)
        if value is None:
            text = self._value(name) or default
            if text not in TRUE:
                raise InvalidRequestError(
                    f"RAFTLOG_{name.upper()}={text!r} is not valid. Set true or false"
                )
            return TRUE[text]
        if not isinstance(value, bool):
            raise TypeError(f"{name}={value!r} is not a bool")
        return value

    def _value(self, name: str) -> Any:
        """Return the argument from the first source that has it; empty if none has."""
        return (
            self._given.get(name)
            or self._profile.get(name)
            or os.environ.get(f"RAFTLOG_{name.upper()}")
            or self._default.get(name)
            or ""
        )


def operator_secret(secret: str | None, path: str | None) -> bytes:
    """Return the cluster secret from a str or from a file; empty without one.

    Raises ``InvalidRequestError`` if both are set, or if the file cannot be read or is empty.
    """
    if secret is not None and path is not None:
        raise InvalidRequestError("cluster_secret and cluster_secret_file are both set. Remove one")
    if secret is not None:
        return secret.encode()
    path = path or os.environ.get(SECRET_FILE_VARIABLE)
    if not path:
        return b""
    try:
        with open(path, "rb") as file:
            found = file.read(limits.CLUSTER_SECRET_CHARS_MAX + 1).strip()
    except OSError as error:
        raise InvalidRequestError(
            f"cannot read cluster_secret_file={path}: {error.strerror}"
        ) from error
    if not found:
        raise InvalidRequestError(f"cluster_secret_file={path} is empty")
    try:
        found.decode()
    except UnicodeDecodeError as error:
        raise InvalidRequestError(f"cluster_secret_file={path} is not UTF-8") from error
    return found


# -- bearer tokens ---------------------------------------------------------------------------------
#
# Sources of bearer tokens (OAUTHBEARER): a file, or a command that prints a token.


class TokenFile:
    """A file that another program keeps up to date, such as a projected token of Kubernetes."""

    def __init__(self, path: str) -> None:
        self._path = Path(path).expanduser()

    def token(self) -> str:
        """Read the token. Raises ``AuthenticationError`` if that is not possible."""
        try:
            with self._path.open("rb") as file:
                data = file.read(limits.SASL_MESSAGE_BYTES_MAX + 1)
        except OSError as error:
            raise AuthenticationError(
                f"sasl_oauthbearer_token_file={self._path} cannot be read: {error.strerror}"
            ) from error
        return _text(data)


class TokenCommand:
    """A command whose standard output is a token. It runs without a shell."""

    def __init__(self, command: str) -> None:
        """Raises ``ValueError`` if the quotation marks of the command are not in pairs."""
        self._words = shlex.split(command)

    def token(self) -> str:
        """Run the command. Raises ``AuthenticationError`` if it fails, or takes too long."""
        try:
            done = subprocess.run(  # noqa: S603 - the command that the user configured
                self._words,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                timeout=limits.TOKEN_COMMAND_S,
                check=True,
            )
        except (OSError, subprocess.SubprocessError) as error:
            status = getattr(error, "returncode", None)
            reason = f"exit status {status}" if status is not None else type(error).__name__
            raise AuthenticationError(
                f"sasl_oauthbearer_token_command failed ({reason}): {self._words[:1]}"
            ) from None  # the error contains the output
        return _text(done.stdout)


def _text(data: bytes) -> str:
    """Return the token. ``authentication.token_of`` checks its characters."""
    return data.strip().decode("ascii", "replace")
