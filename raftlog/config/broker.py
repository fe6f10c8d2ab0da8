"""Settings of a broker. Settings that Kafka also has keep Kafka's names.

They are read as text from a TOML file (dotted keys, so ``data.dir = "x"`` and ``[data] dir = "x"``
are the same) or from the command line. ``BROKER_KEYS`` describes each setting. ``raftlog.limits``
has the limits that no setting can change.
"""

from __future__ import annotations

import tomllib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, fields, replace
from itertools import pairwise
from typing import Any, Final, NamedTuple

from raftlog import limits
from raftlog.config.address import (
    Address,
    PrincipalRule,
    Watermark,
    parse_address,
    parse_addresses,
    parse_principal_rules,
    parse_watermark,
    show_principal_rules,
)
from raftlog.config.keys import HIDDEN, INT64_MAX, ConfigKey, hidden, number, parse, word
from raftlog.errors import InvalidConfigError

# -- voters ----------------------------------------------------------------------------------------
#
# Voters of the cluster state as text, ``1@host:port,2@host:port``.


BROKER_ID_MAX: Final = (1 << 31) - 1


class Voter(NamedTuple):
    """A voter: broker id, and the address at which other brokers connect to it."""

    id: int
    address: Address

    def __str__(self) -> str:
        return f"{self.id}@{self.address}"


def parse_voters(text: str) -> tuple[Voter, ...]:
    """Parse voters, sorted by id; none for an empty text.

    Raises ``ValueError`` with the reason: no ``ID@HOST:PORT``, a duplicate id or address, port 0
    (other brokers cannot know the assigned port), or too many voters.
    """
    voters = sorted(map(_voter, text.split(","))) if text.strip() else []
    if len(voters) > limits.VOTERS_PER_CLUSTER_MAX:
        raise ValueError(f"{len(voters)} voters; the limit is {limits.VOTERS_PER_CLUSTER_MAX}")
    for one, other in pairwise(voters):
        if one.id == other.id:
            raise ValueError(f"broker id {one.id} is listed twice")
    holders: dict[Address, int] = {}
    for voter in voters:
        holder = holders.setdefault(voter.address, voter.id)
        if holder != voter.id:
            raise ValueError(f"{voter.address} is the address of both {holder} and {voter.id}")
    return tuple(voters)


def show_voters(voters: tuple[Voter, ...]) -> str:
    """Return the text for ``parse_voters``."""
    return ",".join(map(str, voters))


def _voter(text: str) -> Voter:
    id_, at, address = text.strip().partition("@")
    if not at:
        raise ValueError(f"{text.strip()!r} is not ID@HOST:PORT, as in 1@10.0.0.1:9100")
    # Bounds the number of digits, which int() limits.
    is_number = id_.isascii() and id_.isdigit() and len(id_) <= len(str(BROKER_ID_MAX))
    if not is_number or int(id_) > BROKER_ID_MAX:
        raise ValueError(f"{id_[:100]!r} is not a broker id (0 to {BROKER_ID_MAX})")
    voter = Voter(int(id_), parse_address(address))
    if voter.address.port == 0:
        raise ValueError(f"{voter}: the port must not be 0, so that other brokers can connect")
    return voter


# -- broker keys -----------------------------------------------------------------------------------
#
# Table of the broker settings: name, default, accepted values and help.
#
# ``raftlog.config.broker.BrokerConfig`` has a field for each key.


LOGGING_FORMATS: Final = ("text", "json")
DISK_WATERMARK_PRODUCERS: Final = Watermark(percent=5, size_bytes=limits.GIB)
DISK_WATERMARK_REPLICATION: Final = Watermark(percent=1, size_bytes=256 * limits.MIB)
LOGGING_LEVELS: Final = ("debug", "info", "warning", "error")


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


def _directories(text: str) -> tuple[str, ...]:
    if len(text) > limits.CONFIG_VALUE_CHARS_MAX:
        raise ValueError(f"{len(text)} characters")
    paths = [part.strip() for part in text.split(",")] if text.strip() else []
    if len(paths) > limits.LOG_DIRS_MAX:
        raise ValueError(f"{len(paths)} directories; the limit is {limits.LOG_DIRS_MAX}")
    return tuple(_directory(path.rstrip("/")) for path in paths)


def _key_url(text: str) -> str:
    if text and not text.startswith(("https://", "file:///")):
        raise ValueError("neither https:// nor file:///")
    return text


def _optional_path(text: str) -> str:
    return _directory(text) if text else ""


def _secret(text: str) -> str:
    if len(text) > limits.CLUSTER_SECRET_CHARS_MAX:
        raise ValueError(f"{len(text)} characters")
    if text == HIDDEN:
        raise ValueError("this is the text that a dump of the settings shows for a secret")
    count = len(text.strip())  # as for a secret in a file
    if text and count < limits.CLUSTER_SECRET_CHARS_MIN:
        raise ValueError(f"{count} characters can be guessed")
    return text


def _switch(text: str) -> bool:
    if text not in {"true", "false"}:
        raise ValueError("true or false")
    return text == "true"


def _show_switch(is_on: bool) -> str:
    return "true" if is_on else "false"


def _ciphers(text: str) -> str:
    if len(text) > limits.CONFIG_VALUE_CHARS_MAX or not text.isascii():
        raise ValueError(f"longer than {limits.CONFIG_VALUE_CHARS_MAX} characters, or not ASCII")
    return text


def _broker_ids(text: str) -> tuple[int, ...]:
    ids = [part.strip() for part in text.split(",")] if text.strip() else []
    if not all(part.isascii() and part.isdigit() and int(part) <= BROKER_ID_MAX for part in ids):
        raise ValueError(f"broker ids are numbers from 0 to {BROKER_ID_MAX}")
    return tuple(sorted({int(part) for part in ids}))


def _assignors(text: str) -> tuple[str, ...]:
    names = tuple(name.strip() for name in text.split(","))
    if not all(names) or len(set(names)) < len(names):
        raise ValueError("an empty or duplicate name")
    if len(text) > limits.CONFIG_VALUE_CHARS_MAX:
        raise ValueError(f"{len(text)} characters")
    return names


def _principals(text: str) -> tuple[str, ...]:
    names = tuple(name.strip() for name in text.split(";")) if text.strip() else ()
    if not all(name.startswith("User:") and name != "User:" for name in names):
        raise ValueError("not User:NAME;User:NAME")
    if len(text) > limits.CONFIG_VALUE_CHARS_MAX:
        raise ValueError(f"{len(text)} characters")
    return names


# Kafka's names of its two classes (replica.selector.class).
LEADER_SELECTOR: Final = "org.apache.kafka.common.replica.LeaderSelector"
RACK_AWARE_SELECTOR: Final = "org.apache.kafka.common.replica.RackAwareReplicaSelector"


BROKER_KEYS: Final[tuple[ConfigKey[Any], ...]] = (
    number("id", 1, 0, BROKER_ID_MAX, "", "The broker's number, unique in its cluster."),
    ConfigKey(
        "listen",
        Address("127.0.0.1", 9100),
        parse_address,
        "HOST:PORT",
        "Address on which the broker accepts connections. Port 0: a free port, which the ready "
        "line shows.",
    ),
    ConfigKey(
        "advertised.listen",
        None,
        _optional_address,
        "HOST:PORT, or nothing",
        "The address that the broker reports to clients; by default, that of `listen`.",
    ),
    ConfigKey(
        "http.listen",
        None,
        _optional_address,
        "HOST:PORT, or nothing",
        "Address of the HTTP port: console at /, /metrics, /healthz, /readyz, /api/v1 and the "
        "schema registry. Nothing: no HTTP port. With `authentication.required`, it uses TLS "
        "(https) and requires the name and the password of a user (HTTP Basic), except for "
        "/healthz and /readyz. Otherwise it shows records to everyone: use a loopback address, "
        "such as 127.0.0.1:9200, or a network that only operators reach. Port 0: a free port.",
    ),
    ConfigKey(
        "http.console.read.only",
        True,
        _switch,
        "true or false",
        "Whether the console only shows the cluster. With false it can create topics, change their "
        "settings and reset consumer groups; that requires a loopback address in `http.listen`, or "
        "`authentication.required`.",
        show=_show_switch,
    ),
    ConfigKey(
        "http.console.avro.schemas",
        "",
        _optional_path,
        "a directory, or nothing",
        "Avro schemas with which the console shows records: `TOPIC-value.avsc` and "
        "`TOPIC-key.avsc` for the values and keys of a topic, `ID.avsc` (such as `7.avsc`) for "
        "those that begin with a zero byte and the ID of a schema registry. Requires the extra "
        "`avro`. Container files of Avro contain their schema.",
    ),
    ConfigKey(
        "http.metrics.public",
        False,
        _switch,
        "true or false",
        "Whether /metrics requires no authentication, with `authentication.required`. It contains "
        "the names of topics and of consumer groups.",
        show=_show_switch,
    ),
    ConfigKey(
        "data.dir",
        "raftlog-data",
        _directory,
        "a directory",
        "Directory of all data. Only one broker at a time can use it.",
    ),
    ConfigKey(
        "log.dirs",
        (),
        _directories,
        "DIRECTORY,DIRECTORY,... or nothing",
        "Further directories for partitions; use one disk for each. The broker places a new "
        "replica in the one of these and `data.dir` that has the fewest. If one of these disks "
        "fails, its replicas are offline, and the broker continues with the others. If the disk of "
        "`data.dir` fails, the broker ends.",
        show=",".join,
    ),
    ConfigKey(
        "rack",
        "",
        _text(limits.RACK_CHARS_MAX),
        "text",
        "Rack of the broker, shown in metadata. Replicas of a partition are placed in different "
        "racks.",
    ),
    ConfigKey(
        "voters",
        (),
        parse_voters,
        "ID@HOST:PORT,ID@HOST:PORT,... or nothing",
        "Brokers that vote on the cluster state, including this one: the same list on each of "
        "them. Use three or five. Nothing: a cluster of this one broker.",
        show=show_voters,
    ),
    ConfigKey(
        "join",
        (),
        parse_addresses,
        "HOST:PORT,HOST:PORT,... or nothing",
        "Brokers of a running cluster that this broker joins. At least one must respond. Only the "
        "first start needs it; later the data directory has the addresses. Not with `voters`.",
        show=lambda addresses: ",".join(map(str, addresses)),
    ),
    ConfigKey(
        "bootstrap.without",
        (),
        _broker_ids,
        "broker ids, such as 2,3, or nothing",
        "Voters that the first start of a new cluster does not wait for, because they do not exist "
        "yet or are lost permanently. A cluster is created when all other voters reach each other "
        "and none of them has been in one. Remove the setting afterwards: with it, these brokers "
        "create a second cluster if the listed voters are only down.",
        show=lambda ids: ",".join(map(str, ids)),
    ),
    ConfigKey(
        "cluster.secret",
        "",
        _secret,
        f"text, {limits.CLUSTER_SECRET_CHARS_MIN} to {limits.CLUSTER_SECRET_CHARS_MAX} characters",
        "Secret with which brokers authenticate to each other; the same on each. Use a long random "
        "text: a process that knows it can act as a broker.",
        show=hidden,
    ),
    ConfigKey(
        "cluster.secret.file",
        "",
        _optional_path,
        "a file, or nothing",
        "File with the secret, instead of `cluster.secret`. Only the broker's user and group may "
        "read it (chmod 600).",
    ),
    ConfigKey(
        "operations.require.secret",
        True,
        _switch,
        "true or false",
        "Whether requests that recover the cluster or move leaders require the cluster secret, if "
        "there is one. `raftlog up`, which listens on this machine only, sets false.",
        show=_show_switch,
    ),
    ConfigKey(
        "admin.credentials.file",
        "",
        _optional_path,
        "a file, or nothing",
        "File with one line NAME:PASSWORD: the first user of a new cluster. It is used once, while "
        "the cluster has never had a user; then delete it. The environment variable "
        "RAFTLOG_ADMIN_CREDENTIALS can contain the line instead. Only the broker's user and group "
        "may read the file (chmod 600).",
    ),
    ConfigKey(
        "authentication.required",
        False,
        _switch,
        "true or false",
        "Whether clients must authenticate: by SASL with a user of the cluster, or by TLS with a "
        "certificate (`tls.client.ca.file`). They may then do only what access rules allow them. "
        "The same on each broker.",
        show=_show_switch,
    ),
    ConfigKey(
        "auto.create.topics.enable",
        True,
        _switch,
        "true or false",
        "Whether a topic is created when a Kafka client requests its metadata and permits this. "
        "It gets `num.partitions` partitions. raftlog's own clients never create topics this way.",
        show=_show_switch,
    ),
    number(
        "broker.heartbeat.interval.ms",
        500,
        1,
        3_600_000,
        "ms",
        "Interval of the heartbeats between brokers; less than `broker.session.timeout.ms`.",
    ),
    number(
        "broker.session.timeout.ms",
        3_000,
        10,
        3_600_000,
        "ms",
        "Time without a heartbeat after which a broker is fenced: it leads no partition and leaves "
        "every ISR.",
    ),
    number(
        "connections.max.idle.ms",
        600_000,
        1,
        INT64_MAX,
        "ms",
        "Close a connection without requests for this time.",
    ),
    number(
        "connections.max.reauth.ms",
        0,
        0,
        INT64_MAX,
        "ms",
        "Time in which a client that has authenticated by SASL must authenticate again on the same "
        "connection (KIP-368). Otherwise the broker closes it at the next request. 0: never.",
    ),
    number(
        "controlled.shutdown.timeout.ms",
        10_000,
        0,
        INT64_MAX,
        "ms",
        "How long a shutdown waits for the responses to requests in flight.",
    ),
    number(
        "default.replication.factor",
        0,
        0,
        limits.REPLICATION_FACTOR_MAX,
        "replicas",
        "Replication factor of topics that are created without one. 0: "
        f"{limits.REPLICATION_FACTOR_DEFAULT}, or the number of brokers if there are fewer; those "
        "that are down count, and the topic is created when they are up.",
    ),
    number(
        "delegation.token.expiry.time.ms",
        86_400_000,
        1,
        limits.DELEGATION_TOKEN_LIFETIME_MS_MAX,
        "ms",
        "Time after which a delegation token expires unless it is renewed.",
    ),
    number(
        "delegation.token.max.lifetime.ms",
        604_800_000,
        1,
        limits.DELEGATION_TOKEN_LIFETIME_MS_MAX,
        "ms",
        "How long after its creation a delegation token can be renewed.",
    ),
    number(
        "disk.stall.timeout.ms",
        5_000,
        100,
        INT64_MAX,
        "ms",
        "Time after which a sync in progress means that the disk hangs: the broker transfers the "
        "leadership of its partitions. If it is a sync of the consensus journal, and other brokers "
        "can continue, the broker ends.",
    ),
    ConfigKey(
        "disk.watermark.producers",
        DISK_WATERMARK_PRODUCERS,
        parse_watermark,
        "PERCENT% and/or BYTES, with a comma",
        "The broker rejects producers while less of the disk of `data.dir` is free: the smaller of "
        "a part of the disk and a number of bytes. It accepts them again when 20 % more is free. "
        "0: never. The same applies to each disk of `log.dirs` and its partitions.",
    ),
    ConfigKey(
        "disk.watermark.replication",
        DISK_WATERMARK_REPLICATION,
        parse_watermark,
        "PERCENT% and/or BYTES, with a comma",
        "Below this free space, the broker also stops copying from leaders: only internal topics "
        "and the consensus journal grow. Format as in `disk.watermark.producers`. 0: never.",
    ),
    number(
        "fetch.max.bytes",
        16 * limits.MIB,
        1_024,
        limits.FETCH_BYTES_MAX,
        "bytes",
        "The largest fetch response, independent of the consumer's request (at least one batch).",
    ),
    ConfigKey(
        "group.assignors",
        ("uniform", "range"),
        _assignors,
        "NAME,NAME,...",
        "Assignors of consumer groups: `uniform`, `range`, and custom ones as module:attribute. "
        "The first one is the default.",
        show=",".join,
    ),
    number(
        "group.consumer.heartbeat.interval.ms",
        5_000,
        limits.SESSION_TIMEOUT_MS_MIN // 2,
        limits.HEARTBEAT_WAIT_MS_MAX,
        "ms",
        "Time between two heartbeats of a Kafka consumer with `group.protocol=consumer`. The "
        "response to the next heartbeat has a new assignment.",
    ),
    number(
        "group.consumer.session.timeout.ms",
        45_000,
        limits.SESSION_TIMEOUT_MS_MIN,
        limits.SESSION_TIMEOUT_MS_MAX,
        "ms",
        "Time without a heartbeat after which a Kafka consumer with `group.protocol=consumer` is "
        "removed from its group, within `group.min.session.timeout.ms` and "
        "`group.max.session.timeout.ms`.",
    ),
    number(
        "group.initial.rebalance.delay.ms",
        limits.INITIAL_REBALANCE_DELAY_MS,
        0,
        limits.HEARTBEAT_WAIT_MS_MAX,
        "ms",
        "Time by which the first rebalance of an empty classic group waits for more Kafka "
        "consumers. Each one that joins extends it, up to the rebalance timeout.",
    ),
    number(
        "group.max.session.timeout.ms",
        limits.SESSION_TIMEOUT_MS_MAX,
        limits.SESSION_TIMEOUT_MS_MIN,
        limits.SESSION_TIMEOUT_MS_MAX,
        "ms",
        "The longest session timeout that a member of a consumer group can request.",
    ),
    number(
        "group.max.size",
        limits.MEMBERS_PER_GROUP_MAX,
        1,
        limits.MEMBERS_PER_GROUP_MAX,
        "members",
        "Maximum number of members of a consumer group.",
    ),
    number(
        "group.min.session.timeout.ms",
        limits.SESSION_TIMEOUT_MS_MIN,
        limits.SESSION_TIMEOUT_MS_MIN,
        limits.SESSION_TIMEOUT_MS_MAX,
        "ms",
        "The shortest session timeout that a member of a consumer group can request.",
    ),
    ConfigKey(
        "insecure.allowed",
        False,
        _switch,
        "true or false",
        "Whether the broker may listen beyond this machine without TLS and authentication: every "
        "host that reaches the port can then read, change and delete all data.",
        show=_show_switch,
    ),
    ConfigKey(
        "kafka.advertised.listen",
        None,
        _optional_address,
        "HOST:PORT, or nothing",
        "The address that Kafka clients connect to; by default, that of `kafka.listen`.",
    ),
    ConfigKey(
        "kafka.listen",
        None,
        _optional_address,
        "HOST:PORT, or nothing",
        "An address for Kafka clients only. `listen` then serves only raftlog's own clients and "
        "other brokers. Nothing: `listen` serves both. Set it once all brokers have a release with "
        "this setting.",
    ),
    ConfigKey(
        "kafka.protocol.enable",
        True,
        _switch,
        "true or false",
        "Whether Kafka clients can connect, to `kafka.listen` or else to `listen`.",
        show=_show_switch,
    ),
    number(
        "leader.rebalance.delay.ms",
        300_000,
        0,
        INT64_MAX,
        "ms",
        "Transfer a partition to its preferred leader after that has been in sync for this time.",
    ),
    number(
        "log.checkpoint.interval.ms",
        60_000,
        1,
        INT64_MAX,
        "ms",
        "Interval at which the checkpoint of each partition is written. It limits the time of a "
        "recovery.",
    ),
    number(
        "log.cleaner.dedupe.buffer.size",
        128 * limits.MIB,
        limits.MIB,
        INT64_MAX,
        "bytes",
        "Memory for compaction: 32 bytes per key of the part to compact. A log with more keys is "
        "compacted in several passes.",
    ),
    number(
        "log.cleaner.interval.ms",
        15_000,
        1,
        INT64_MAX,
        "ms",
        "Interval at which the logs of compacted topics are checked for compaction.",
    ),
    number(
        "log.cleaner.io.max.bytes.per.second",
        0,
        0,
        INT64_MAX,
        "bytes",
        "Maximum bytes per second that compaction reads and writes in total. 0: no limit.",
    ),
    number(
        "log.retention.check.interval.ms",
        300_000,
        1,
        INT64_MAX,
        "ms",
        "Interval at which segments are checked for retention, rolling and deletion.",
    ),
    number(
        "log.scrub.interval.ms",
        604_800_000,
        0,
        INT64_MAX,
        "ms",
        "Time within which every stored batch is read and checked for corruption, at up to 4 MiB "
        "per second. 0: never.",
    ),
    word(
        "logging.format",
        "text",
        LOGGING_FORMATS,
        "Format of the broker's log on stderr: one line per event, with the time in UTC, or "
        "one JSON object per line (time, level, logger, message, traceback).",
    ),
    word(
        "logging.level",
        "info",
        LOGGING_LEVELS,
        "The lowest level that the broker logs.",
    ),
    number(
        "max.connections",
        10_000,
        1,
        1_000_000,
        "connections",
        "Maximum number of connections of clients. The broker closes further ones immediately or, "
        "in a cluster, if they do not authenticate as another broker's. Those of authenticated "
        "brokers do not count.",
    ),
    number(
        "num.partitions",
        1,
        1,
        limits.PARTITIONS_PER_TOPIC_MAX,
        "partitions",
        "Number of partitions of a topic that a Kafka client creates without a number.",
    ),
    number(
        "offsets.retention.minutes",
        10_080,
        1,
        INT64_MAX // 60_000,
        "minutes",
        "How long the offsets of a consumer group are kept after its last member has left. For a "
        "group that never had members: after the last commit of the partition.",
    ),
    number(
        "offsets.topic.num.partitions",
        16,
        1,
        limits.PARTITIONS_PER_TOPIC_MAX,
        "partitions",
        "Number of partitions of `__consumer_offsets`, when it is created.",
    ),
    number(
        "offsets.topic.replication.factor",
        0,
        0,
        limits.REPLICATION_FACTOR_MAX,
        "replicas",
        "Replication factor of `__consumer_offsets`, when it is created. 0: "
        "`default.replication.factor`, or fewer if brokers are down for 10 s. If both are 0, the "
        f"topic gets more replicas, up to {limits.REPLICATION_FACTOR_DEFAULT}, as brokers join or "
        "return.",
    ),
    number(
        "offsets.topic.segment.bytes",
        16 * limits.MIB,
        limits.SEGMENT_BYTES_MIN,
        limits.SEGMENT_BYTES_MAX,
        "bytes",
        "Segment size of `__consumer_offsets`, when it is created.",
    ),
    number(
        "queued.max.request.bytes",
        64 * limits.MIB,
        limits.MIB,
        INT64_MAX,
        "bytes",
        "Memory for requests of all connections: partly received, queued, or without a response. "
        "Above it, the broker reads only from the connection with the oldest of them. Fetches that "
        "wait for records use at most half of it: above that, some receive an early response.",
    ),
    number(
        "queued.max.response.bytes",
        64 * limits.MIB,
        limits.MIB,
        INT64_MAX,
        "bytes",
        "Memory for fetch responses of all connections that clients have not read yet. Above it, "
        "fetches wait.",
    ),
    number(
        "queued.max.wait.ms",
        10_000,
        1,
        INT64_MAX,
        "ms",
        "While other requests wait for memory: close a connection that has used some for this "
        "time with an incomplete request or an unread response.",
    ),
    number(
        "queued.min.bytes.per.second",
        64 * limits.KIB,
        0,
        INT64_MAX,
        "bytes",
        "While other requests wait for memory: close a connection whose request arrives slower "
        "than this. 0: none.",
    ),
    number(
        "replica.fetch.max.bytes",
        8 * limits.MIB,
        1_024,
        limits.FETCH_BYTES_MAX,
        "bytes",
        "Maximum size of one fetch response to a follower (at least one batch).",
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
        "A follower that has not caught up for this time leaves the ISR.",
    ),
    number(
        "replica.replacement.delay.ms",
        600_000,
        0,
        INT64_MAX,
        "ms",
        "Copy a replica to a witness after its broker was unavailable, or its disk full or hung "
        "while the replica is needed, for this time.",
    ),
    word(
        "replica.selector.class",
        LEADER_SELECTOR,
        (LEADER_SELECTOR, RACK_AWARE_SELECTOR),
        "Where Kafka's consumers with a `client.rack` read (KIP-392): from the leader, or from an "
        "in-sync replica of their rack. raftlog's consumers have the setting `read_from`.",
    ),
    number(
        "request.receive.timeout.ms",
        60_000,
        1,
        INT64_MAX,
        "ms",
        "Close a connection whose request is not complete this time after its first byte.",
    ),
    number(
        "sasl.oauthbearer.clock.skew.seconds",
        30,
        0,
        600,
        "s",
        "Maximum difference between the clocks of the identity provider and the broker.",
    ),
    ConfigKey(
        "sasl.oauthbearer.expected.audience",
        "",
        _text(limits.OAUTH_TEXT_CHARS_MAX),
        "text",
        "The audience (aud) that tokens must have.",
    ),
    ConfigKey(
        "sasl.oauthbearer.expected.issuer",
        "",
        _text(limits.OAUTH_TEXT_CHARS_MAX),
        "text",
        "The issuer (iss) that tokens must have.",
    ),
    number(
        "sasl.oauthbearer.jwks.endpoint.refresh.ms",
        3_600_000,
        1_000,
        INT64_MAX,
        "ms",
        "Interval at which the broker loads the keys of the identity provider. It also loads them "
        "for a token with an unknown key.",
    ),
    ConfigKey(
        "sasl.oauthbearer.jwks.endpoint.url",
        "",
        _key_url,
        "an https:// or file:// URL, or nothing",
        "URL of the public keys of an identity provider (JWKS). With it, clients can authenticate "
        "with its tokens (OAUTHBEARER, over TLS). Requires the package `joserfc`.",
    ),
    ConfigKey(
        "sasl.oauthbearer.sub.claim.name",
        "sub",
        _text(limits.OAUTH_TEXT_CHARS_MAX),
        "text",
        "The claim of a token that is the name of the user.",
    ),
    ConfigKey(
        "schema.registry.listen",
        None,
        _optional_address,
        "HOST:PORT, or nothing",
        "An address of the schema registry alone, such as 127.0.0.1:8081, in addition to "
        "`http.listen`, which serves it too. TLS and users as for `http.listen`. Port 0: a free "
        "port.",
    ),
    number(
        "socket.request.max.bytes",
        limits.FRAME_BYTES_MAX,
        limits.MIB,
        limits.FRAME_BYTES_MAX,
        "bytes",
        "Maximum size of a request.",
    ),
    ConfigKey(
        "ssl.principal.mapping.rules",
        (),
        parse_principal_rules,
        "RULE:pattern/replacement/[LU],... or DEFAULT, or nothing",
        "Rules in Kafka's syntax that map the distinguished name of a client certificate, such as "
        "`CN=alice,OU=apps,O=Example`, to the name of the user. The first rule that matches the "
        "whole name applies; DEFAULT: the whole name. A certificate that no rule matches has no "
        "user. Nothing: the common name.",
        show=show_principal_rules,
    ),
    ConfigKey(
        "super.users",
        ("User:admin",),
        _principals,
        "User:NAME;User:NAME;... or nothing",
        "Principals that have all permissions: access rules do not apply to them. Only effective "
        "with `authentication.required`.",
        show=";".join,
    ),
    ConfigKey(
        "tls.broker.id.required",
        False,
        _switch,
        "true or false",
        "Whether another broker must have a certificate from `tls.ca.file` that names its ID, as "
        "`URI:raftlog:broker:ID` in the subjectAltName, besides the cluster secret. A broker "
        "whose certificate does not name its ID does not start.",
        show=_show_switch,
    ),
    ConfigKey(
        "tls.ca.file",
        "",
        _optional_path,
        "a file, or nothing",
        "CA certificates (PEM) with which this broker verifies other brokers. Required for TLS in "
        "a cluster of several brokers.",
    ),
    ConfigKey(
        "tls.certificate.file",
        "",
        _optional_path,
        "a file, or nothing",
        "Certificate chain of this broker (PEM). With it, the broker accepts only TLS on `listen`, "
        "from clients and brokers. A changed file is reloaded without a restart.",
    ),
    ConfigKey(
        "tls.ciphers",
        "",
        _ciphers,
        "a list of OpenSSL, or nothing",
        "Ciphers of TLS 1.2, such as ECDHE+AESGCM:ECDHE+CHACHA20, for clients and for connections "
        "to other brokers. Nothing: those of Python. OpenSSL selects the ciphers of TLS 1.3.",
    ),
    ConfigKey(
        "tls.client.ca.file",
        "",
        _optional_path,
        "a file, or nothing",
        "CA certificates (PEM) of clients and brokers. With it, the broker accepts only "
        "connections with a certificate that one of them signed.",
    ),
    ConfigKey(
        "tls.key.file",
        "",
        _optional_path,
        "a file, or nothing",
        "Private key of `tls.certificate.file` (PEM, without a password). Only the broker's user "
        "and group may read it (chmod 600).",
    ),
    word(
        "tls.min.version",
        "TLSv1.2",
        ("TLSv1.2", "TLSv1.3"),
        "Oldest TLS version that the broker accepts.",
    ),
    number(
        "transaction.max.timeout.ms",
        900_000,
        1,
        (1 << 31) - 1,
        "ms",
        "The longest `transaction.timeout.ms` that a producer can have. A transaction that takes "
        "longer than its time limit is aborted.",
    ),
    number(
        "transaction.state.log.num.partitions",
        16,
        1,
        limits.PARTITIONS_PER_TOPIC_MAX,
        "partitions",
        "Number of partitions of `__transaction_state`, when it is created.",
    ),
    number(
        "transaction.state.log.replication.factor",
        0,
        0,
        limits.REPLICATION_FACTOR_MAX,
        "replicas",
        "Replication factor of `__transaction_state`, when it is created: as "
        "`offsets.topic.replication.factor`.",
    ),
    number(
        "transaction.state.log.segment.bytes",
        16 * limits.MIB,
        limits.SEGMENT_BYTES_MIN,
        limits.SEGMENT_BYTES_MAX,
        "bytes",
        "Segment size of `__transaction_state`, when it is created.",
    ),
    number(
        "transactional.id.expiration.ms",
        604_800_000,
        1,
        INT64_MAX,
        "ms",
        "How long a transactional id is kept after its last transaction has ended.",
    ),
    number(
        "unclean.recovery.timeout.ms",
        300_000,
        0,
        INT64_MAX,
        "ms",
        "How long a partition waits for an in-sync replica whose broker is unavailable, if all "
        "available in-sync replicas stopped uncleanly and may lack acknowledged records: with "
        "`flush.policy=os`, or with a torn write at the end of the log. After this time, the "
        "replica with the longest log becomes the leader.",
    ),
)


# -- broker ----------------------------------------------------------------------------------------


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
    replica_selector_class: str = LEADER_SELECTOR
    request_receive_timeout_ms: int = 60_000
    sasl_oauthbearer_clock_skew_seconds: int = 30
    sasl_oauthbearer_expected_audience: str = ""
    sasl_oauthbearer_expected_issuer: str = ""
    sasl_oauthbearer_jwks_endpoint_refresh_ms: int = 3_600_000
    sasl_oauthbearer_jwks_endpoint_url: str = ""
    sasl_oauthbearer_sub_claim_name: str = "sub"
    schema_registry_listen: Address | None = None
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
    transaction_max_timeout_ms: int = 900_000
    transaction_state_log_num_partitions: int = 16
    transaction_state_log_replication_factor: int = 0
    transaction_state_log_segment_bytes: int = 16 * limits.MIB
    transactional_id_expiration_ms: int = 604_800_000
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
    def has_secret(self) -> bool:
        """Whether other brokers can connect to this one: they prove to know the secret."""
        return bool(self.cluster_secret or self.cluster_secret_file)

    @property
    def http_uses_tls(self) -> bool:
        """Whether the HTTP port uses TLS: its requests contain passwords."""
        return self.authentication_required and bool(self.tls_certificate_file)

    def alone(self) -> BrokerConfig:
        """Return the settings of the only voter of a cluster, for a broker that names no other."""
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
    addresses = {
        "listen": config.listen,
        "kafka.listen": config.kafka_listen,
        "schema.registry.listen": config.schema_registry_listen,
    }
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
    if (len(config.voters) > 1 or config.join) and not config.has_secret:
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
    if (config.voters or config.join) and advertised is None and listen.host in EVERYWHERE:
        raise InvalidConfigError(
            f"kafka.listen={listen} is every interface: set kafka.advertised.listen to the address "
            "at which Kafka clients reach this broker"
        )


def _check_http(config: BrokerConfig) -> None:
    """Require a read-only console on a port that other machines reach without authentication."""
    listen = config.http_listen
    if config.authentication_required or config.http_console_read_only:
        return
    # guard: a console that changes the cluster listens on the loopback interface
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
    # guard: tokens require TLS, an issuer and an audience
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
        # Some editors begin a file with a byte order mark.
        table = tomllib.loads(document.removeprefix("\ufeff"))
    except ValueError as error:  # also of a number with thousands of digits
        raise InvalidConfigError(f"the configuration is not TOML: {error}") from error
    found: dict[str, str] = {}
    for name, text in _flatten(table, prefix=""):
        if name in found:  # as "a.b" and as b of the table a: another key for TOML
            raise InvalidConfigError(f"{name} is set twice. Remove one of them")
        found[name] = text
    return found


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
