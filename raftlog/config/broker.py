"""Settings of a broker. Settings that Kafka also has keep Kafka's names.

They are read as text from a TOML file (dotted keys, so ``data.dir = "x"`` and ``[data] dir = "x"``
are the same) or from the command line. ``broker_keys`` describes each setting. ``raftlog.limits``
has the limits that no setting can change.
"""

from __future__ import annotations

import tomllib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, fields, replace
from typing import Any, Final

from raftlog import limits
from raftlog.config.address import Address
from raftlog.config.broker_keys import (
    BROKER_KEYS,
    DISK_WATERMARK_PRODUCERS,
    DISK_WATERMARK_REPLICATION,
)
from raftlog.config.keys import HIDDEN, parse
from raftlog.config.principal_rules import PrincipalRule
from raftlog.config.voters import Voter, show_voters
from raftlog.config.watermark import Watermark
from raftlog.errors import InvalidConfigError

EVERYWHERE: Final = ("0.0.0.0", "::")  # hosts that mean every interface  # noqa: S104 - compared


@dataclass(frozen=True, slots=True, kw_only=True)
class BrokerConfig:
    """The settings of one broker; each field is the key of ``BROKER_KEYS`` with ``.`` for ``_``."""

    id: int = 1
    listen: Address = Address("127.0.0.1", 9100)
    advertised_listen: Address | None = None
    http_listen: Address | None = None
    http_console_read_only: bool = True
    http_console_avro_schemas: str = ""
    http_metrics_public: bool = False
    data_dir: str = "raftlog-data"
    log_dirs: tuple[str, ...] = ()
    rack: str = ""
    voters: tuple[Voter, ...] = ()
    join: tuple[Address, ...] = ()
    bootstrap_without: tuple[int, ...] = ()
    cluster_secret: str = field(default="", repr=False)
    cluster_secret_file: str = ""
    operations_require_secret: bool = True
    admin_credentials_file: str = ""
    authentication_required: bool = False
    auto_create_topics_enable: bool = True
    broker_heartbeat_interval_ms: int = 500
    broker_session_timeout_ms: int = 3_000
    connections_max_idle_ms: int = 600_000
    connections_max_reauth_ms: int = 0
    controlled_shutdown_timeout_ms: int = 10_000
    default_replication_factor: int = 0
    delegation_token_expiry_time_ms: int = 86_400_000
    delegation_token_max_lifetime_ms: int = 604_800_000
    disk_stall_timeout_ms: int = 5_000
    disk_watermark_producers: Watermark = DISK_WATERMARK_PRODUCERS
    disk_watermark_replication: Watermark = DISK_WATERMARK_REPLICATION
    fetch_max_bytes: int = 16 * limits.MIB
    group_assignors: tuple[str, ...] = ("uniform", "range")
    group_consumer_heartbeat_interval_ms: int = 5_000
    group_consumer_session_timeout_ms: int = 45_000
    group_initial_rebalance_delay_ms: int = limits.INITIAL_REBALANCE_DELAY_MS
    group_max_session_timeout_ms: int = limits.SESSION_TIMEOUT_MS_MAX
    group_max_size: int = limits.MEMBERS_PER_GROUP_MAX
    group_min_session_timeout_ms: int = limits.SESSION_TIMEOUT_MS_MIN
    insecure_allowed: bool = False
    kafka_advertised_listen: Address | None = None
    kafka_listen: Address | None = None
    kafka_protocol_enable: bool = True
    leader_rebalance_delay_ms: int = 300_000
    log_checkpoint_interval_ms: int = 60_000
    log_cleaner_dedupe_buffer_size: int = 128 * limits.MIB
    log_cleaner_interval_ms: int = 15_000
    log_cleaner_io_max_bytes_per_second: int = 0
    log_retention_check_interval_ms: int = 300_000
    log_scrub_interval_ms: int = 604_800_000
    logging_format: str = "text"
    logging_level: str = "info"
    max_connections: int = 10_000
    num_partitions: int = 1
    offsets_retention_minutes: int = 10_080
    offsets_topic_num_partitions: int = 16
    offsets_topic_replication_factor: int = 0
    offsets_topic_segment_bytes: int = 16 * limits.MIB
    queued_max_request_bytes: int = 64 * limits.MIB
    queued_max_response_bytes: int = 64 * limits.MIB
    queued_max_wait_ms: int = 10_000
    queued_min_bytes_per_second: int = 64 * limits.KIB
    replica_fetch_max_bytes: int = 8 * limits.MIB
    replica_fetch_wait_max_ms: int = 500
    replica_lag_time_max_ms: int = 10_000
    replica_replacement_delay_ms: int = 600_000
    request_receive_timeout_ms: int = 60_000
    sasl_oauthbearer_clock_skew_seconds: int = 30
    sasl_oauthbearer_expected_audience: str = ""
    sasl_oauthbearer_expected_issuer: str = ""
    sasl_oauthbearer_jwks_endpoint_refresh_ms: int = 3_600_000
    sasl_oauthbearer_jwks_endpoint_url: str = ""
    sasl_oauthbearer_sub_claim_name: str = "sub"
    socket_request_max_bytes: int = limits.FRAME_BYTES_MAX
    ssl_principal_mapping_rules: tuple[PrincipalRule, ...] = ()
    super_users: tuple[str, ...] = ("User:admin",)
    tls_broker_id_required: bool = False
    tls_ca_file: str = ""
    tls_certificate_file: str = ""
    tls_ciphers: str = ""
    tls_client_ca_file: str = ""
    tls_key_file: str = ""
    tls_min_version: str = "TLSv1.2"
    unclean_recovery_timeout_ms: int = 300_000

    @classmethod
    def from_text(cls, overrides: Mapping[str, str]) -> BrokerConfig:
        """Return the settings with ``overrides``.

        Raises ``InvalidConfigError`` with the invalid setting, or the settings that contradict each
        other.
        """
        config = cls(**parse(BROKER_KEYS, overrides, what="broker"))
        _check_voters(config)
        _check_http(config)
        _check_kafka(config)
        _check_tls(config)
        _check_authentication(config)
        _check_times(config)
        return config

    @property
    def has_peers(self) -> bool:
        """Whether the broker is part of a cluster of several brokers, or joins one."""
        return bool(self.voters or self.join)

    @property
    def http_uses_tls(self) -> bool:
        """Whether the HTTP port uses TLS: its requests contain passwords."""
        return self.authentication_required and bool(self.tls_certificate_file)

    def alone(self) -> BrokerConfig:
        """Return the settings of the only broker of a cluster, which also has a cluster state."""
        return replace(self, voters=(Voter(self.id, self.advertised_listen or self.listen),))

    def joining(self, brokers: tuple[Address, ...]) -> BrokerConfig:
        """Return the settings of a broker that has already joined the cluster of ``brokers``.

        Raises ``InvalidConfigError`` if a setting is missing that brokers of a cluster need.
        """
        config = replace(self, join=brokers)
        _check_voters(config)
        _check_tls(config)
        return config

    @classmethod
    def from_toml(cls, document: str, overrides: Mapping[str, str] | None = None) -> BrokerConfig:
        """Return the settings of a TOML document. ``overrides`` (of the command line) prevail."""
        return cls.from_text({**read_toml(document), **(overrides or {})})

    def to_text(self) -> dict[str, str]:
        """Return all keys and values as text: empty if not set, "(hidden)" for a secret."""
        values = ((key, getattr(self, key.field)) for key in BROKER_KEYS)
        return {key.name: "" if value is None else key.show(value) for key, value in values}


def check_exposure(config: BrokerConfig) -> None:
    """Raise ``InvalidConfigError`` if other hosts can use the broker without authentication.

    Either the broker listens on this machine only, or it uses TLS and its clients authenticate, or
    ``insecure.allowed`` is set.
    """
    authenticates = config.authentication_required or bool(config.tls_client_ca_file)
    is_secured = bool(config.tls_certificate_file) and authenticates
    if is_secured or config.insecure_allowed:
        return
    addresses = {"listen": config.listen, "kafka.listen": config.kafka_listen}
    exposed = [
        f"{name}={address}"
        for name, address in addresses.items()
        if address is not None and not address.is_loopback
    ]
    if not exposed:
        return
    raise InvalidConfigError(
        f"{' and '.join(exposed)} is reached from other machines, and "
        + ("clients need not authenticate" if config.tls_certificate_file else "TLS is off")
        + ": they could read, change and delete all data. Secure the broker: run `raftlog security "
        "init DIR --hosts HOST`, and add the settings that it prints. Or listen on 127.0.0.1. Or "
        "accept the risk: --insecure (insecure.allowed=true)"
    )


def _check_voters(config: BrokerConfig) -> None:
    if config.cluster_secret and config.cluster_secret_file:
        raise InvalidConfigError("set cluster.secret or cluster.secret.file, not both")
    if config.voters and config.join:
        raise InvalidConfigError(
            "set voters or join, not both: voters create a cluster, and a broker that joins one "
            "gets the voters from it"
        )
    if config.voters and config.id not in (voter.id for voter in config.voters):
        raise InvalidConfigError(
            f"voters={show_voters(config.voters)} does not contain this broker, whose id is "
            f"{config.id}. Set the same list on every broker, and id to the number of this one"
        )
    strangers = set(config.bootstrap_without) - {voter.id for voter in config.voters}
    if strangers or config.id in config.bootstrap_without:
        raise InvalidConfigError(
            f"bootstrap.without={','.join(map(str, config.bootstrap_without))} must contain only "
            f"voters other than this broker, {config.id}; voters={show_voters(config.voters)}"
        )
    if (len(config.voters) > 1 or config.join) and not (
        config.cluster_secret or config.cluster_secret_file
    ):
        what = "join" if config.join else f"{len(config.voters)} voters"
        raise InvalidConfigError(
            f"{what} without a secret: set cluster.secret or cluster.secret.file to the same text "
            "on every broker"
        )
    if config.join and not config.advertised_listen and config.listen.host in EVERYWHERE:
        raise InvalidConfigError(
            f"listen={config.listen} is every interface: set advertised.listen to the address at "
            "which the other brokers and the clients reach this broker"
        )


def _check_kafka(config: BrokerConfig) -> None:
    listen, advertised = config.kafka_listen, config.kafka_advertised_listen
    if listen is None:
        if advertised is not None:
            raise InvalidConfigError(
                f"kafka.advertised.listen={advertised} requires kafka.listen. Without it, Kafka "
                "clients get the address in advertised.listen"
            )
        return
    if not config.kafka_protocol_enable:
        raise InvalidConfigError(
            f"kafka.listen={listen} and kafka.protocol.enable=false contradict each other: remove "
            "one of them"
        )
    if config.has_peers and advertised is None and listen.host in EVERYWHERE:
        raise InvalidConfigError(
            f"kafka.listen={listen} is every interface: set kafka.advertised.listen to the address "
            "at which Kafka clients reach this broker"
        )


def _check_http(config: BrokerConfig) -> None:
    """Require a read-only console on a port that other machines reach without authentication."""
    listen = config.http_listen
    if config.authentication_required or config.http_console_read_only:
        return
    if listen is not None and not listen.is_loopback:
        raise InvalidConfigError(
            f"http.console.read.only=false lets anyone who reaches http.listen={listen} change the "
            "cluster. Set authentication.required=true, or http.listen to a loopback address, "
            "such as 127.0.0.1:9200, or http.console.read.only=true"
        )


def _check_tls(config: BrokerConfig) -> None:
    if not config.tls_certificate_file:
        for name, path in (
            ("tls.key.file", config.tls_key_file),
            ("tls.ca.file", config.tls_ca_file),
            ("tls.client.ca.file", config.tls_client_ca_file),
        ):
            if path:
                raise InvalidConfigError(
                    f"{name}={path} requires tls.certificate.file: without it, the broker does not "
                    "use TLS. Set tls.certificate.file and tls.key.file"
                )
        if config.tls_broker_id_required:
            raise InvalidConfigError("tls.broker.id.required requires tls.certificate.file")
        return
    if config.tls_broker_id_required and not config.tls_ca_file:
        raise InvalidConfigError(
            "tls.broker.id.required requires the CA of the certificates of brokers. Set tls.ca.file"
        )
    if not config.tls_key_file:
        raise InvalidConfigError(
            f"tls.certificate.file={config.tls_certificate_file} requires its private key. Set "
            "tls.key.file"
        )
    if (len(config.voters) > 1 or config.join) and not config.tls_ca_file:
        raise InvalidConfigError(
            "brokers with tls.certificate.file connect to each other by TLS. Set tls.ca.file to "
            "the CA certificate that signed the certificates of all brokers"
        )


def _check_authentication(config: BrokerConfig) -> None:
    if config.sasl_oauthbearer_jwks_endpoint_url and not (
        config.tls_certificate_file
        and config.sasl_oauthbearer_expected_audience
        and config.sasl_oauthbearer_expected_issuer
    ):
        raise InvalidConfigError(
            "sasl.oauthbearer.jwks.endpoint.url requires TLS, and an issuer and an audience that "
            "tokens must have: the provider issues tokens for other services too. Set "
            "tls.certificate.file, sasl.oauthbearer.expected.issuer and "
            "sasl.oauthbearer.expected.audience"
        )


def _check_times(config: BrokerConfig) -> None:
    """Check times that must be shorter than another time."""
    heartbeat, session = config.broker_heartbeat_interval_ms, config.broker_session_timeout_ms
    if heartbeat >= session:
        raise InvalidConfigError(
            f"broker.heartbeat.interval.ms={heartbeat} must be less than "
            f"broker.session.timeout.ms={session}. Set it to a third of that"
        )
    shortest, longest = config.group_min_session_timeout_ms, config.group_max_session_timeout_ms
    if shortest > longest:
        raise InvalidConfigError(
            f"group.min.session.timeout.ms={shortest} is more than "
            f"group.max.session.timeout.ms={longest}: no consumer could join a group"
        )
    heartbeat, session = (
        config.group_consumer_heartbeat_interval_ms,
        config.group_consumer_session_timeout_ms,
    )
    if heartbeat >= session:
        raise InvalidConfigError(
            f"group.consumer.heartbeat.interval.ms={heartbeat} must be less than "
            f"group.consumer.session.timeout.ms={session}. Set it to a third of that"
        )
    wait, lag = config.replica_fetch_wait_max_ms, config.replica_lag_time_max_ms
    if wait >= lag:
        raise InvalidConfigError(
            f"replica.fetch.wait.max.ms={wait} must be less than replica.lag.time.max.ms={lag}: "
            "otherwise followers without new records leave the ISR"
        )


def read_toml(document: str) -> dict[str, str]:
    """Return the settings of a document by dotted key, as text. They are not validated."""
    try:
        return dict(_flatten(tomllib.loads(document), prefix=""))
    except tomllib.TOMLDecodeError as error:
        raise InvalidConfigError(f"the configuration is not TOML: {error}") from error


def _flatten(table: Mapping[str, Any], *, prefix: str) -> Iterator[tuple[str, str]]:
    for key, value in table.items():
        name = prefix + key
        if isinstance(value, dict):
            yield from _flatten(value, prefix=name + ".")
        elif isinstance(value, bool):
            yield name, str(value).lower()
        elif isinstance(value, str | int):
            yield name, str(value)
        else:
            shown = HIDDEN if name in _SECRETS else str(value)[:100]
            raise InvalidConfigError(
                f"{name} = {shown} is a {type(value).__name__}; settings must be text, integers, "
                "or true or false"
            )


_SECRETS: Final = frozenset(key.name for key in BROKER_KEYS if key.is_secret)

assert [f.name for f in fields(BrokerConfig)] == [key.field for key in BROKER_KEYS]
assert all(getattr(BrokerConfig(), key.field) == key.default for key in BROKER_KEYS)
