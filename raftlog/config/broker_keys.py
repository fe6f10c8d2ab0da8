"""Table of the broker settings: name, default, accepted values and help.

``raftlog.config.broker.BrokerConfig`` has a field for each key.
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
        "Address of the HTTP port: console at /, /metrics, /healthz, /readyz and /api/v1. Nothing: "
        "no HTTP port. With `authentication.required`, it uses TLS (https) and requires the name "
        "and the password of a user (HTTP Basic), except for /healthz and /readyz. Otherwise it "
        "shows records to everyone: use a loopback address, such as 127.0.0.1:9200, or a network "
        "that only operators reach. Port 0: a free port.",
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
