"""Every setting of a broker: its name, its default, what is allowed, and what it is for.

``raftlog.config.broker`` makes a ``BrokerConfig`` of them, which has a field for each key.
"""

from __future__ import annotations

from typing import Any, Final

from raftlog import limits
from raftlog.config.address import Address, parse_address, parse_addresses
from raftlog.config.keys import HIDDEN, INT64_MAX, ConfigKey, hidden, number, word
from raftlog.config.principal_rules import parse_principal_rules, show_principal_rules
from raftlog.config.voters import BROKER_ID_MAX, parse_voters, show_voters
from raftlog.config.watermark import Watermark, parse_watermark

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
        raise ValueError("that is what a dump of the settings shows in place of the secret")
    count = len(text.strip())  # as of a secret in a file
    if text and count < limits.CLUSTER_SECRET_CHARS_MIN:
        raise ValueError(f"{count} characters can be guessed")
    return text


def _switch(text: str) -> bool:
    if text not in {"true", "false"}:
        raise ValueError("true or false")
    return text == "true"


def _show_switch(is_on: bool) -> str:
    return "true" if is_on else "false"


def _broker_ids(text: str) -> tuple[int, ...]:
    ids = [part.strip() for part in text.split(",")] if text.strip() else []
    if not all(part.isascii() and part.isdigit() and int(part) <= BROKER_ID_MAX for part in ids):
        raise ValueError(f"broker ids are numbers from 0 to {BROKER_ID_MAX}")
    return tuple(sorted({int(part) for part in ids}))


def _assignors(text: str) -> tuple[str, ...]:
    names = tuple(name.strip() for name in text.split(","))
    if not all(names) or len(set(names)) < len(names):
        raise ValueError("names, each of them once")
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
        "http.listen",
        None,
        _optional_address,
        "HOST:PORT, or nothing",
        "Where to serve HTTP: the console at /, /metrics, /healthz, /readyz and /api/v1. Nothing: "
        "no HTTP port. With `authentication.required`, it uses TLS (https) and requires the name "
        "and the password of a user (HTTP Basic), except for /healthz and /readyz. Otherwise it "
        "shows records to everyone: use a loopback address, such as 127.0.0.1:9200, or a network "
        "that only operators reach. Port 0 picks a free one.",
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
        "Where everything is stored. One broker at a time can use it.",
    ),
    ConfigKey(
        "log.dirs",
        (),
        _directories,
        "DIRECTORY,DIRECTORY,... or nothing",
        "Further directories for partitions, each best on its own disk. New replicas are placed in "
        "`data.dir` and in these: where there are the fewest. If one of these disks fails, the "
        "replicas on it are offline, and the broker continues with the others. If the disk of "
        "`data.dir` fails, the broker ends.",
        show=",".join,
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
        "join",
        (),
        parse_addresses,
        "HOST:PORT,HOST:PORT,... or nothing",
        "Brokers of a running cluster that this broker joins: one that responds is enough. Only "
        "the first start needs it; later the data directory has the addresses. Not with `voters`.",
        show=lambda addresses: ",".join(map(str, addresses)),
    ),
    ConfigKey(
        "bootstrap.without",
        (),
        _broker_ids,
        "broker ids, such as 2,3, or nothing",
        "Voters that the first start of a new cluster does not wait for, because they do not exist "
        "yet or are lost permanently. A cluster is created when all other voters reach each other "
        "and none of them has been in one. To be removed afterwards: with it, a second cluster is "
        "founded if those that it names are merely down.",
        show=lambda ids: ",".join(map(str, ids)),
    ),
    ConfigKey(
        "cluster.secret",
        "",
        _secret,
        f"text, {limits.CLUSTER_SECRET_CHARS_MIN} to {limits.CLUSTER_SECRET_CHARS_MAX} characters",
        "What brokers prove to each other that they know; the same on each. Long and random: "
        "a process that knows it can act as a broker.",
        show=hidden,
    ),
    ConfigKey(
        "cluster.secret.file",
        "",
        _optional_path,
        "a file, or nothing",
        "The file that holds the secret, in place of `cluster.secret`; only the broker's user and "
        "group may read it (chmod 600).",
    ),
    ConfigKey(
        "operations.require.secret",
        True,
        _switch,
        "true or false",
        "Whether who recovers the cluster or moves leaders has to prove knowledge of its secret, "
        "if it has one. `raftlog up`, which listens on this machine only, says false.",
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
        "delegation.token.expiry.time.ms",
        86_400_000,
        1,
        limits.DELEGATION_TOKEN_LIFETIME_MS_MAX,
        "ms",
        "When a delegation token expires unless it is renewed.",
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
        "A sync that takes so long means that the disk hangs: what this broker leads is handed "
        "over. If it is the consensus journal that waits, and others can go on, the broker ends.",
    ),
    ConfigKey(
        "disk.watermark.producers",
        DISK_WATERMARK_PRODUCERS,
        parse_watermark,
        "PERCENT% and/or BYTES, with a comma",
        "Producers are refused while less of the disk of `data.dir` is free: the smaller of a part "
        "of the disk and a number of bytes. They may write again when 20 % more is free. 0: never. "
        "The same for each disk of `log.dirs`, and the partitions on it.",
    ),
    ConfigKey(
        "disk.watermark.replication",
        DISK_WATERMARK_REPLICATION,
        parse_watermark,
        "PERCENT% and/or BYTES, with a comma",
        "Below that, the broker also copies nothing from leaders: only internal topics and the "
        "consensus journal grow. In the form of `disk.watermark.producers`. 0: never.",
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
        "How partitions are shared out in consumer groups: `uniform`, `range`, and those of your "
        "own as module:attribute. The first one is the default.",
        show=",".join,
    ),
    number(
        "group.consumer.heartbeat.interval.ms",
        5_000,
        limits.SESSION_TIMEOUT_MS_MIN // 2,
        limits.HEARTBEAT_WAIT_MS_MAX,
        "ms",
        "Time between two heartbeats of a Kafka consumer with `group.protocol=consumer`. It learns "
        "of a new assignment with its next heartbeat.",
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
        "The longest session timeout that a member of a consumer group may ask for.",
    ),
    number(
        "group.max.size",
        limits.MEMBERS_PER_GROUP_MAX,
        1,
        limits.MEMBERS_PER_GROUP_MAX,
        "members",
        "The most members that a consumer group may have.",
    ),
    number(
        "group.min.session.timeout.ms",
        limits.SESSION_TIMEOUT_MS_MIN,
        limits.SESSION_TIMEOUT_MS_MIN,
        limits.SESSION_TIMEOUT_MS_MAX,
        "ms",
        "The shortest session timeout that a member of a consumer group may ask for.",
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
        "log.cleaner.dedupe.buffer.size",
        128 * limits.MIB,
        limits.MIB,
        INT64_MAX,
        "bytes",
        "Memory for compaction: 32 bytes for each key of what is to be compacted. Where there are "
        "more keys, a log is compacted in several passes.",
    ),
    number(
        "log.cleaner.interval.ms",
        15_000,
        1,
        INT64_MAX,
        "ms",
        "How often logs of compacted topics are looked at for something to gain.",
    ),
    number(
        "log.cleaner.io.max.bytes.per.second",
        0,
        0,
        INT64_MAX,
        "bytes",
        "The most that compaction reads and writes, together, in a second; 0 is no limit.",
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
    word(
        "logging.format",
        "text",
        LOGGING_FORMATS,
        "The form of the broker's own log on stderr: one line per event, with the time in UTC, or "
        "one JSON object per line (time, level, logger, message, traceback).",
    ),
    word(
        "logging.level",
        "info",
        LOGGING_LEVELS,
        "The least level that the broker logs.",
    ),
    number(
        "max.connections",
        10_000,
        1,
        1_000_000,
        "connections",
        "Clients' connections beyond this number are closed, at once or, in a cluster, when they "
        "do not prove to be another broker's. Those of proved brokers do not count.",
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
        "How long a consumer group's offsets are kept once it has no members, or since the "
        "partition's last commit where it never had any.",
    ),
    number(
        "offsets.topic.num.partitions",
        16,
        1,
        limits.PARTITIONS_PER_TOPIC_MAX,
        "partitions",
        "Of the topic that keeps the consumer groups, when it is made.",
    ),
    number(
        "offsets.topic.replication.factor",
        0,
        0,
        limits.REPLICATION_FACTOR_MAX,
        "replicas",
        "Of the topic that keeps the consumer groups, when it is made; 0 means "
        "`default.replication.factor`.",
    ),
    number(
        "offsets.topic.segment.bytes",
        16 * limits.MIB,
        limits.SEGMENT_BYTES_MIN,
        limits.SEGMENT_BYTES_MAX,
        "bytes",
        "Of the topic that keeps the consumer groups, when it is made.",
    ),
    number(
        "queued.max.request.bytes",
        64 * limits.MIB,
        limits.MIB,
        INT64_MAX,
        "bytes",
        "Memory for requests, over all connections: those that have arrived in part, that wait for "
        "their turn, and that await their answer. Above it, reading waits on all but the oldest of "
        "them. Fetches that wait for records take half of it at most: beyond that, some are "
        "answered before their time.",
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
        "queued.min.bytes.per.second",
        64 * limits.KIB,
        0,
        INT64_MAX,
        "bytes",
        "While others wait for memory: close a connection whose request arrives slower than this; "
        "0 closes none.",
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
        "Copy a replica to a witness when its broker was gone, or its disk full or hung while it "
        "is needed, for so long.",
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
        "sasl.oauthbearer.clock.skew.seconds",
        30,
        0,
        600,
        "s",
        "By how much the clocks of the identity provider and of the broker may differ.",
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
        "How often the keys of the identity provider are loaded. A token with an unknown key has "
        "them loaded earlier.",
    ),
    ConfigKey(
        "sasl.oauthbearer.jwks.endpoint.url",
        "",
        _key_url,
        "an https:// or file:// URL, or nothing",
        "Where the public keys of an identity provider are (JWKS). With it, clients can "
        "authenticate with its tokens (OAUTHBEARER, over TLS). Requires the package `joserfc`.",
    ),
    ConfigKey(
        "sasl.oauthbearer.sub.claim.name",
        "sub",
        _text(limits.OAUTH_TEXT_CHARS_MAX),
        "text",
        "The claim of a token that is the name of the user.",
    ),
    number(
        "socket.request.max.bytes",
        limits.FRAME_BYTES_MAX,
        limits.MIB,
        limits.FRAME_BYTES_MAX,
        "bytes",
        "The largest request.",
    ),
    ConfigKey(
        "ssl.principal.mapping.rules",
        (),
        parse_principal_rules,
        "RULE:pattern/replacement/[LU],... or DEFAULT, or nothing",
        "How the distinguished name of a client certificate, such as `CN=alice,OU=apps,O=Example`, "
        "becomes the name of the user: the first rule that matches all of it, in Kafka's syntax; "
        "DEFAULT: all of it. A certificate that no rule matches names no user. Nothing: the "
        "common name.",
        show=show_principal_rules,
    ),
    ConfigKey(
        "super.users",
        ("User:admin",),
        _principals,
        "User:NAME;User:NAME;... or nothing",
        "Principals that may do everything: access rules do not apply to them. They have an effect "
        "with `authentication.required` only.",
        show=";".join,
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
        "unclean.recovery.timeout.ms",
        300_000,
        0,
        INT64_MAX,
        "ms",
        "How long a partition waits for an in-sync replica whose broker is gone, if all in-sync "
        "replicas that are there stopped uncleanly and may lack acknowledged records: with "
        "`flush.policy=os`, or with a torn write at the end of the log. Then the longest log leads "
        "without it.",
    ),
)
