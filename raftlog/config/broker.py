"""The settings of a broker: Kafka's names where Kafka has the setting, short ones where it has not.

They come as text from a TOML file (dotted keys, so ``data.dir = "x"`` and ``[data] dir = "x"`` are
the same) or from the command line. The walls that no setting can move are in ``raftlog.limits``.
"""

from __future__ import annotations

import tomllib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, fields
from typing import Any, Final

from raftlog import limits
from raftlog.config.address import Address, parse_address
from raftlog.config.keys import HIDDEN, INT64_MAX, ConfigKey, hidden, number, parse
from raftlog.config.voters import BROKER_ID_MAX, Voter, parse_voters, show_voters
from raftlog.errors import InvalidConfigError


def _optional_address(text: str) -> Address | None:
    return parse_address(text) if text else None


def _text(chars_max: int) -> Any:
    def parse_text(text: str) -> str:
        if len(text) > chars_max:
            raise ValueError(f"{len(text)} characters")
        return text

    return parse_text


def _directory(text: str) -> str:
    if not text or "\0" in text:
        raise ValueError("not a path")
    return text


def _optional_path(text: str) -> str:
    return _directory(text) if text else ""


def _secret(text: str) -> str:
    if len(text) > limits.CLUSTER_SECRET_CHARS_MAX:
        raise ValueError(f"{len(text)} characters")
    if text == HIDDEN:
        raise ValueError("that is what a dump of the settings shows in place of the secret")
    return text


BROKER_KEYS: Final[tuple[ConfigKey[Any], ...]] = (
    number("id", 1, 0, BROKER_ID_MAX, "", "The broker's number, unique in its cluster."),
    ConfigKey(
        "listen",
        Address("127.0.0.1", 9100),
        parse_address,
        "HOST:PORT",
        "Where to accept connections; port 0 picks a free one, which the ready line shows.",
    ),
    ConfigKey(
        "advertised.listen",
        None,
        _optional_address,
        "HOST:PORT, or nothing",
        "The address that clients are told to connect to; by default, that of `listen`.",
    ),
    ConfigKey(
        "data.dir",
        "raftlog-data",
        _directory,
        "a directory",
        "Where everything is stored. One broker at a time can use it.",
    ),
    ConfigKey(
        "rack",
        "",
        _text(limits.RACK_CHARS_MAX),
        "text",
        "Where the broker stands; shown in metadata. Replicas of a partition are put in different "
        "racks.",
    ),
    ConfigKey(
        "voters",
        (),
        parse_voters,
        "ID@HOST:PORT,ID@HOST:PORT,... or nothing",
        "The brokers that hold the cluster's own state, this one among them: the same list on "
        "each, best three or five. Nothing: a cluster of this one broker.",
        show=show_voters,
    ),
    ConfigKey(
        "cluster.secret",
        "",
        _secret,
        f"text, at most {limits.CLUSTER_SECRET_CHARS_MAX} characters",
        "What brokers prove to each other that they know; the same on each. Long and random: "
        "whoever knows it may act as a broker.",
        show=hidden,
    ),
    ConfigKey(
        "cluster.secret.file",
        "",
        _optional_path,
        "a file, or nothing",
        "The file that holds the secret, in place of `cluster.secret`.",
    ),
    number(
        "broker.heartbeat.interval.ms",
        500,
        1,
        3_600_000,
        "ms",
        "How often brokers show each other that they are alive; less than "
        "`broker.session.timeout.ms`.",
    ),
    number(
        "broker.session.timeout.ms",
        3_000,
        10,
        3_600_000,
        "ms",
        "A broker that was not heard of for so long leads nothing and leaves every ISR.",
    ),
    number(
        "connections.max.idle.ms",
        600_000,
        1,
        INT64_MAX,
        "ms",
        "Close a connection that was silent for so long.",
    ),
    number(
        "controlled.shutdown.timeout.ms",
        10_000,
        0,
        INT64_MAX,
        "ms",
        "How long a shutdown waits for requests in flight to be answered.",
    ),
    number(
        "default.replication.factor",
        0,
        0,
        limits.REPLICATION_FACTOR_MAX,
        "replicas",
        "Of topics made without one; 0 means "
        f"{limits.REPLICATION_FACTOR_DEFAULT}, or all brokers where there are fewer.",
    ),
    number(
        "fetch.max.bytes",
        16 * limits.MIB,
        1_024,
        limits.FETCH_BYTES_MAX,
        "bytes",
        "The largest fetch answer, whatever the consumer asks for (one batch is always sent).",
    ),
    number(
        "leader.rebalance.delay.ms",
        300_000,
        0,
        INT64_MAX,
        "ms",
        "Give a partition back to its preferred leader once that has been in sync for so long.",
    ),
    number(
        "log.checkpoint.interval.ms",
        60_000,
        1,
        INT64_MAX,
        "ms",
        "How often each partition's checkpoint is written, which bounds recovery's work.",
    ),
    number(
        "log.retention.check.interval.ms",
        300_000,
        1,
        INT64_MAX,
        "ms",
        "How often segments are looked at for retention, rolling and deletion.",
    ),
    number(
        "log.scrub.interval.ms",
        604_800_000,
        0,
        INT64_MAX,
        "ms",
        "How often, at least, every stored batch is read and checked for damage, at up to 4 MiB a "
        "second; 0 means never.",
    ),
    number(
        "max.connections",
        10_000,
        1,
        1_000_000,
        "connections",
        "Connections beyond this number are closed as soon as they are accepted.",
    ),
    number(
        "queued.max.request.bytes",
        64 * limits.MIB,
        limits.MIB,
        INT64_MAX,
        "bytes",
        "Memory for requests that have arrived in part, over all connections; above it, reading "
        "waits on all but the oldest of them.",
    ),
    number(
        "queued.max.response.bytes",
        64 * limits.MIB,
        limits.MIB,
        INT64_MAX,
        "bytes",
        "Memory for fetch answers that clients have not taken yet, over all connections; above "
        "it, fetches wait.",
    ),
    number(
        "queued.max.wait.ms",
        10_000,
        1,
        INT64_MAX,
        "ms",
        "While others wait for memory: close a connection that has held some for so long, by not "
        "ending its request or by not taking its answer.",
    ),
    number(
        "replica.fetch.max.bytes",
        8 * limits.MIB,
        1_024,
        limits.FETCH_BYTES_MAX,
        "bytes",
        "The most that a follower takes in one answer (one batch is always sent).",
    ),
    number(
        "replica.fetch.wait.max.ms",
        500,
        0,
        limits.FETCH_WAIT_MS_MAX,
        "ms",
        "How long a follower's fetch waits for new records; less than `replica.lag.time.max.ms`.",
    ),
    number(
        "replica.lag.time.max.ms",
        10_000,
        1,
        INT64_MAX,
        "ms",
        "A follower that was not caught up for so long leaves the ISR.",
    ),
    number(
        "replica.replacement.delay.ms",
        600_000,
        0,
        INT64_MAX,
        "ms",
        "Copy a replica to a witness when its broker was gone for so long.",
    ),
    number(
        "request.receive.timeout.ms",
        60_000,
        1,
        INT64_MAX,
        "ms",
        "Close a connection whose request is not complete so long after its first byte.",
    ),
    number(
        "socket.request.max.bytes",
        limits.FRAME_BYTES_MAX,
        limits.MIB,
        limits.FRAME_BYTES_MAX,
        "bytes",
        "The largest request.",
    ),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class BrokerConfig:
    """The settings of one broker; each field is the key of ``BROKER_KEYS`` with ``.`` for ``_``."""

    id: int = 1
    listen: Address = Address("127.0.0.1", 9100)
    advertised_listen: Address | None = None
    data_dir: str = "raftlog-data"
    rack: str = ""
    voters: tuple[Voter, ...] = ()
    cluster_secret: str = field(default="", repr=False)
    cluster_secret_file: str = ""
    broker_heartbeat_interval_ms: int = 500
    broker_session_timeout_ms: int = 3_000
    connections_max_idle_ms: int = 600_000
    controlled_shutdown_timeout_ms: int = 10_000
    default_replication_factor: int = 0
    fetch_max_bytes: int = 16 * limits.MIB
    leader_rebalance_delay_ms: int = 300_000
    log_checkpoint_interval_ms: int = 60_000
    log_retention_check_interval_ms: int = 300_000
    log_scrub_interval_ms: int = 604_800_000
    max_connections: int = 10_000
    queued_max_request_bytes: int = 64 * limits.MIB
    queued_max_response_bytes: int = 64 * limits.MIB
    queued_max_wait_ms: int = 10_000
    replica_fetch_max_bytes: int = 8 * limits.MIB
    replica_fetch_wait_max_ms: int = 500
    replica_lag_time_max_ms: int = 10_000
    replica_replacement_delay_ms: int = 600_000
    request_receive_timeout_ms: int = 60_000
    socket_request_max_bytes: int = limits.FRAME_BYTES_MAX

    @classmethod
    def from_text(cls, overrides: Mapping[str, str]) -> BrokerConfig:
        """Settings with ``overrides``.

        Raises ``InvalidConfigError`` that names the bad one, or the two that do not go together.
        """
        config = cls(**parse(BROKER_KEYS, overrides, what="broker"))
        _check_voters(config)
        _check_times(config)
        return config

    @classmethod
    def from_toml(cls, document: str, overrides: Mapping[str, str] | None = None) -> BrokerConfig:
        """Settings from a TOML document, with ``overrides`` (the command line's) on top."""
        return cls.from_text({**read_toml(document), **(overrides or {})})

    def to_text(self) -> dict[str, str]:
        """Every key with its value, as text: empty if it is not set, "(hidden)" for a secret."""
        values = ((key, getattr(self, key.field)) for key in BROKER_KEYS)
        return {key.name: "" if value is None else key.show(value) for key, value in values}


def _check_voters(config: BrokerConfig) -> None:
    if config.cluster_secret and config.cluster_secret_file:
        raise InvalidConfigError("set cluster.secret or cluster.secret.file, not both")
    if config.voters and config.id not in (voter.id for voter in config.voters):
        raise InvalidConfigError(
            f"voters={show_voters(config.voters)} does not name this broker, whose id is "
            f"{config.id}: the list is the same on every broker, and id tells which one this is"
        )
    if len(config.voters) > 1 and not (config.cluster_secret or config.cluster_secret_file):
        raise InvalidConfigError(
            f"{len(config.voters)} voters and no secret: set cluster.secret or "
            "cluster.secret.file to the same text on every broker"
        )


def _check_times(config: BrokerConfig) -> None:
    """A time that has to be shorter than another one is."""
    heartbeat, session = config.broker_heartbeat_interval_ms, config.broker_session_timeout_ms
    if heartbeat >= session:
        raise InvalidConfigError(
            f"broker.heartbeat.interval.ms={heartbeat} has to be less than "
            f"broker.session.timeout.ms={session}: a third of it is a good choice"
        )
    wait, lag = config.replica_fetch_wait_max_ms, config.replica_lag_time_max_ms
    if wait >= lag:
        raise InvalidConfigError(
            f"replica.fetch.wait.max.ms={wait} has to be less than replica.lag.time.max.ms={lag}: "
            "else followers with nothing to copy leave the ISR"
        )


def read_toml(document: str) -> dict[str, str]:
    """The document's settings by dotted key, as text; what they mean is not looked at."""
    try:
        return dict(_flatten(tomllib.loads(document), prefix=""))
    except tomllib.TOMLDecodeError as error:
        raise InvalidConfigError(f"the configuration is not TOML: {error}") from error


def _flatten(table: Mapping[str, Any], *, prefix: str) -> Iterator[tuple[str, str]]:
    for key, value in table.items():
        name = prefix + key
        if isinstance(value, dict):
            yield from _flatten(value, prefix=name + ".")
        elif isinstance(value, str | int) and not isinstance(value, bool):
            yield name, str(value)
        else:
            shown = HIDDEN if name in _SECRETS else str(value)[:100]
            raise InvalidConfigError(
                f"{name} = {shown} is a {type(value).__name__}; settings are text or whole numbers"
            )


_SECRETS: Final = frozenset(key.name for key in BROKER_KEYS if key.is_secret)

assert [f.name for f in fields(BrokerConfig)] == [key.field for key in BROKER_KEYS]
assert all(getattr(BrokerConfig(), key.field) == key.default for key in BROKER_KEYS)
