"""Kafka's own command-line tools and kcat, beside raftlog's clients."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
from functools import partial
from pathlib import Path

import pytest

from raftlog import Admin, NewTopic
from raftlog.testing import cluster
from raftlog.testing.cluster import Cluster
from tests.kafka_peers.drivers import CODECS, TIMEOUT_S
from tests.kafka_peers.install import JAVA_LIBRARY, version_in
from tests.kafka_peers.records import native_read, native_write, some_records

VERSION = version_in("java/pom.xml", r"kafka-tools</artifactId>\s*<version>(.*?)<")
KCAT = "1.7.1"
needs_kcat = pytest.mark.skipif(shutil.which("kcat") is None, reason="kcat is not installed")
TOOLS = {
    "kafka-topics": "org.apache.kafka.tools.TopicCommand",
    "kafka-acls": "org.apache.kafka.tools.AclCommand",
    "kafka-configs": "kafka.admin.ConfigCommand",
    "kafka-console-producer": "org.apache.kafka.tools.ConsoleProducer",
    "kafka-console-consumer": "org.apache.kafka.tools.consumer.ConsoleConsumer",
    "kafka-consumer-groups": "org.apache.kafka.tools.consumer.group.ConsumerGroupCommand",
    "kafka-groups": "org.apache.kafka.tools.GroupsCommand",
    "kafka-get-offsets": "org.apache.kafka.tools.GetOffsetShell",
    "kafka-delete-records": "org.apache.kafka.tools.DeleteRecordsCommand",
    "kafka-broker-api-versions": "org.apache.kafka.tools.BrokerApiVersionsCommand",
    "kafka-cluster": "org.apache.kafka.tools.ClusterTool",
    "kafka-log-dirs": "org.apache.kafka.tools.LogDirsCommand",
    "kafka-reassign-partitions": "org.apache.kafka.tools.reassign.ReassignPartitionsCommand",
    "kafka-leader-election": "org.apache.kafka.tools.LeaderElectionCommand",
    "kafka-metadata-quorum": "org.apache.kafka.tools.MetadataQuorumCommand",
    "kafka-delegation-tokens": "org.apache.kafka.tools.DelegationTokenCommand",
    "kafka-verifiable-producer": "org.apache.kafka.tools.VerifiableProducer",
    "kafka-verifiable-consumer": "org.apache.kafka.tools.VerifiableConsumer",
    "kafka-producer-perf-test": "org.apache.kafka.tools.ProducerPerformance",
    "kafka-consumer-perf-test": "org.apache.kafka.tools.ConsumerPerformance",
    "kafka-e2e-latency": "org.apache.kafka.tools.EndToEndLatency",
}

pytestmark = [pytest.mark.peers, pytest.mark.integration]


def works(name: str) -> pytest.MarkDecorator:
    return pytest.mark.feature("Kafka's tools", VERSION, name)


def run(*command: str, text: str = "") -> str:
    done = subprocess.run(
        command, input=text, capture_output=True, text=True, timeout=TIMEOUT_S, check=False
    )
    assert done.returncode == 0, f"{done.stdout[-2_000:]}\n{done.stderr[-2_000:]}"
    return done.stdout


def tool(name: str, bootstrap: str, *words: str, text: str = "") -> str:
    """Run one of Kafka's tools. Returns its output, with runs of spaces as one space."""
    java = ("java", "-XX:TieredStopAtLevel=1", "-cp", f"{JAVA_LIBRARY}/*", TOOLS[name])
    where = ("--bootstrap-server", bootstrap)
    all_words = (*where, *words) if name == "kafka-metadata-quorum" else (*words, *where)
    printed = run(*java, *all_words, text=text)
    assert "Exception" not in printed, printed
    return re.sub(r"[ \t]+", " ", printed)


@works("kafka-topics")
def test_topics_are_created_extended_described_and_deleted(bootstrap: str) -> None:
    settings = ("--config", "retention.ms=86400000")
    counts = ("--partitions", "3", "--replication-factor", "3")
    tool("kafka-topics", bootstrap, "--create", "--topic", "tools", *counts, *settings)
    tool("kafka-topics", bootstrap, "--alter", "--topic", "tools", "--partitions", "4")
    shown = tool("kafka-topics", bootstrap, "--describe", "--topic", "tools")
    assert "PartitionCount: 4 ReplicationFactor: 3 Configs: retention.ms=86400000" in shown
    assert "tools" in tool("kafka-topics", bootstrap, "--list").splitlines()
    tool("kafka-topics", bootstrap, "--delete", "--topic", "tools")


@works("kafka-configs")
def test_settings_are_changed_and_described(bootstrap: str, topic: str) -> None:
    change = "retention.ms=1000000,cleanup.policy=[compact,delete]"
    tool("kafka-configs", bootstrap, "--alter", "--topic", topic, "--add-config", change)
    shown = tool("kafka-configs", bootstrap, "--describe", "--topic", topic)
    assert "cleanup.policy=compact,delete" in shown
    assert "retention.ms=1000000" in shown
    tool("kafka-configs", bootstrap, "--alter", "--topic", topic, "--delete-config", "retention.ms")
    assert "retention" not in tool("kafka-configs", bootstrap, "--describe", "--topic", topic)
    assert "segment.bytes" in tool(
        "kafka-configs", bootstrap, "--describe", "--all", "--topic", topic
    )
    assert "num.partitions=2" in tool(
        "kafka-configs", bootstrap, "--describe", "--all", "--broker", "1"
    )


@works("kafka-configs of users, quotas and loggers")
def test_users_quotas_and_loggers_are_changed_and_described(bootstrap: str) -> None:
    user = ("--entity-type", "users", "--entity-name", "alice")
    for change in ("SCRAM-SHA-256=[password=secret-pass]", "producer_byte_rate=100000"):
        tool("kafka-configs", bootstrap, "--alter", *user, "--add-config", change)
    shown = tool("kafka-configs", bootstrap, "--describe", *user)
    assert "SCRAM-SHA-256=iterations=4096" in shown
    assert "producer_byte_rate=100000" in shown
    for gone in ("SCRAM-SHA-256", "producer_byte_rate"):
        tool("kafka-configs", bootstrap, "--alter", *user, "--delete-config", gone)
    logger = ("--entity-type", "broker-loggers", "--entity-name", "1")
    change = "raftlog.server.maintenance=DEBUG"
    tool("kafka-configs", bootstrap, "--alter", *logger, "--add-config", change)
    assert change in tool("kafka-configs", bootstrap, "--describe", *logger)


@works("kafka-configs of groups")
def test_settings_of_groups_are_changed_listed_and_described(bootstrap: str) -> None:
    group = ("--entity-type", "groups", "--entity-name", "slow")
    session, heartbeat = "consumer.session.timeout.ms=50000", "consumer.heartbeat.interval.ms=7000"
    tool("kafka-configs", bootstrap, "--alter", *group, "--add-config", f"{session},{heartbeat}")
    shown = tool("kafka-configs", bootstrap, "--describe", *group)
    assert session in shown
    assert heartbeat in shown
    assert "slow" in tool("kafka-configs", bootstrap, "--describe", "--entity-type", "groups")
    gone = "consumer.session.timeout.ms"
    tool("kafka-configs", bootstrap, "--alter", *group, "--delete-config", gone)
    assert gone not in tool("kafka-configs", bootstrap, "--describe", *group)


@works("kafka-console-producer, kafka-console-consumer")
def test_the_console_tools_and_raftlog_read_each_other(bootstrap: str, topic: str) -> None:
    keyed = ("--reader-property", "parse.key=true", "--reader-property", "key.separator=:")
    words = ("--topic", topic, "--compression-codec", "zstd", *keyed)
    tool("kafka-console-producer", bootstrap, *words, text="a:1\nb:2\nc:3\n")
    found = {(one["key"], one["value"]) for one in native_read(bootstrap, topic, 3)}
    assert found == {("a", "1"), ("b", "2"), ("c", "3")}
    written = native_write(bootstrap, topic, some_records(20), "lz4")
    expected = ["1", "2", "3", *(one["value"] or "null" for one in written)]
    words = ("--topic", topic, "--from-beginning", "--max-messages", "23")
    for protocol in ("classic", "consumer"):
        group = ("--group", f"console-{protocol}")
        protocol_word = ("--command-property", f"group.protocol={protocol}")
        shown = tool("kafka-console-consumer", bootstrap, *words, *group, *protocol_word)
        assert sorted(shown.splitlines()) == sorted(re.sub(r" +", " ", one) for one in expected)


@works("kafka-consumer-groups, kafka-groups")
def test_groups_of_raftlog_are_shown_reset_and_deleted(bootstrap: str, topic: str) -> None:
    native_write(bootstrap, topic, some_records(20))
    native_read(bootstrap, topic, 20, group="tools-group")
    shown = tool("kafka-consumer-groups", bootstrap, "--describe", "--group", "tools-group")
    assert f"tools-group {topic} 0 10 10 0 - - -" in shown
    words = ("--group", "tools-group", "--reset-offsets", "--topic", topic, "--execute")
    shown = tool("kafka-consumer-groups", bootstrap, *words, "--shift-by", "-5")
    assert f"tools-group {topic} 1 5" in shown
    assert len(native_read(bootstrap, topic, 10, group="tools-group")) == 10
    words = ("--group", "tools-group", "--delete-offsets", "--topic", topic)
    assert "Successful" in tool("kafka-consumer-groups", bootstrap, *words)
    listed = tool("kafka-groups", bootstrap, "--list")
    assert re.search("tools-group Consumer consumer", listed)
    assert "successful" in tool(
        "kafka-consumer-groups", bootstrap, "--group", "tools-group", "--delete"
    )
    assert "tools-group" not in tool("kafka-consumer-groups", bootstrap, "--list")


@works("kafka-get-offsets, kafka-delete-records")
def test_offsets_are_shown_and_records_deleted(bootstrap: str, topic: str, tmp_path: Path) -> None:
    native_write(bootstrap, topic, some_records(20))
    rows = {"partitions": [{"topic": topic, "partition": 1, "offset": 4}], "version": 1}
    path = tmp_path / "delete.json"
    path.write_text(json.dumps(rows))
    shown = tool("kafka-delete-records", bootstrap, "--offset-json-file", str(path))
    assert f"partition: {topic}-1 low_watermark: 4" in shown
    earliest = tool("kafka-get-offsets", bootstrap, "--topic", topic, "--time", "earliest")
    assert earliest.split() == [f"{topic}:0:0", f"{topic}:1:4"]
    latest = tool("kafka-get-offsets", bootstrap, "--topic", topic)
    assert latest.split() == [f"{topic}:0:10", f"{topic}:1:10"]
    highest = tool("kafka-get-offsets", bootstrap, "--topic", topic, "--time", "max-timestamp")
    assert f"{topic}:0:" in highest


@works("kafka-cluster, kafka-broker-api-versions")
def test_the_cluster_is_described(bootstrap: str) -> None:
    assert tool("kafka-cluster", bootstrap, "list-endpoints").count("unfenced broker") == 3
    assert "Produce(0): 0 to 13 [usable: 13]" in tool("kafka-broker-api-versions", bootstrap)


@works("kafka-log-dirs")
def test_log_directories_are_described(bootstrap: str, topic: str) -> None:
    native_write(bootstrap, topic, some_records(20))
    shown = tool("kafka-log-dirs", bootstrap, "--describe", "--topic-list", topic)
    brokers = json.loads(shown.splitlines()[-1])["brokers"]
    replicas = [
        replica
        for broker in brokers
        for logs in broker["logDirs"]
        for replica in logs["partitions"]
    ]
    assert sorted(one["partition"] for one in replicas) == sorted([f"{topic}-0", f"{topic}-1"] * 3)
    assert all(one["size"] > 0 for one in replicas)


@works("kafka-reassign-partitions, kafka-leader-election, kafka-metadata-quorum")
def test_replicas_move_and_the_preferred_one_is_elected(tmp_path: Path) -> None:
    with cluster(brokers=3) as running:
        bootstrap = running.bootstrap
        with Admin(bootstrap) as admin:
            admin.create_topics([NewTopic("moved", partitions=1, replication_factor=2)])
            before = admin.describe_topics(["moved"])[0].partitions[0].replicas
        target = [*({1, 2, 3} - set(before)), before[0]]
        plan = tmp_path / "plan.json"
        part = {"topic": "moved", "partition": 0, "replicas": target}
        plan.write_text(json.dumps({"version": 1, "partitions": [part]}))
        move = partial(tool, "kafka-reassign-partitions", bootstrap)
        file = ("--reassignment-json-file", str(plan))
        assert "Successfully started" in move(*file, "--execute", "--throttle", "50000000")
        assert any("moved-0 is completed" in move(*file, "--verify") for _ in range(60))
        assert "No partition reassignments found" in move("--list")
        elect = ("--election-type", "preferred", "--all-topic-partitions")
        tool("kafka-leader-election", bootstrap, *elect)
        shown = tool("kafka-topics", bootstrap, "--describe", "--topic", "moved")
        assert f"Leader: {target[0]} Replicas: {target[0]},{target[1]}" in shown.replace("\t", " ")
        status = tool("kafka-metadata-quorum", bootstrap, "describe", "--status")
        assert re.search("MaxFollowerLag: [0-9]", status)


@works("kafka-delegation-tokens, and SCRAM with a token")
def test_a_delegation_token_is_created_used_and_expired(tmp_path: Path) -> None:
    with cluster(brokers=1, secure=True) as running:
        environment = running.environment

        def login(name: str, user: str, password: str, more: str = "") -> tuple[str, str]:
            """The argument with a file of settings."""
            path = tmp_path / name
            path.write_text(
                "security.protocol=SASL_SSL\nsasl.mechanism=SCRAM-SHA-256\n"
                "ssl.truststore.type=PEM\n"
                f"ssl.truststore.location={environment['RAFTLOG_SSL_CAFILE']}\n"
                "sasl.jaas.config=org.apache.kafka.common.security.scram.ScramLoginModule required "
                f'username="{user}" password="{password}" {more};\n'
            )
            return "--command-config", str(path)

        admin = environment["RAFTLOG_SASL_USERNAME"]
        own = login("own", admin, environment["RAFTLOG_SASL_PASSWORD"])
        tokens = partial(tool, "kafka-delegation-tokens", running.bootstrap, *own)
        made = tokens("--create", "--max-life-time-period", "-1", "--renewer-principal", "User:bob")
        row = next(line for line in made.splitlines() if f"User:{admin}" in line)
        token_id, hmac = row.split()[:2]
        delegated = login("delegated", token_id, hmac, "tokenauth=true")
        topics = partial(tool, "kafka-topics", running.bootstrap, *delegated)
        topics("--create", "--topic", "by-token")
        assert "by-token" in topics("--list").splitlines()
        describe = ("--describe", "--owner-principal", f"User:{admin}")
        assert token_id in tokens(*describe)
        tokens("--renew", "--renew-time-period", "60000", "--hmac", hmac)
        tokens("--expire", "--expiry-time-period", "-1", "--hmac", hmac)
        assert token_id not in tokens(*describe)


@works("kafka-verifiable-producer, kafka-verifiable-consumer")
@pytest.mark.parametrize("protocol", ["classic", "consumer"])
def test_the_verifiable_tools_lose_nothing(
    brokers: Cluster, bootstrap: str, topic: str, protocol: str
) -> None:
    words = ("--topic", topic, "--max-messages", "5000", "--acks", "-1")
    produced = tool("kafka-verifiable-producer", bootstrap, *words).splitlines()
    assert sum('"producer_send_success"' in line for line in produced) == 5_000
    # The offsets of the last records are committed after --max-messages: it ends by itself.
    words = ("--topic", topic, "--group-id", f"verifiable-{protocol}", "--max-messages", "5000")
    consumed = tool(
        "kafka-verifiable-consumer", bootstrap, *words, "--group-protocol", protocol
    ).splitlines()
    events = [json.loads(line) for line in consumed if line.startswith("{")]
    assert sum(event["count"] for event in events if event["name"] == "records_consumed") == 5_000
    assert all(event["success"] for event in events if event["name"] == "offsets_committed")


@works("kafka-producer-perf-test, kafka-consumer-perf-test, kafka-e2e-latency")
def test_the_performance_tools_end(bootstrap: str, topic: str) -> None:
    words = ("--topic", topic, "--num-records", "2000", "--record-size", "100")
    assert "2000 records sent" in tool(
        "kafka-producer-perf-test", bootstrap, *words, "--throughput", "-1"
    )
    assert "2000" in tool(
        "kafka-consumer-perf-test", bootstrap, "--topic", topic, "--num-records", "2000"
    )
    words = ("--topic", topic, "--num-records", "50", "--record-size", "100")
    assert "Percentiles" in tool("kafka-e2e-latency", bootstrap, *words, "--producer-acks", "all")


@needs_kcat
@pytest.mark.parametrize("codec", CODECS)
@pytest.mark.feature("kcat", KCAT, "produce, consume and subscribe with all codecs")
def test_kcat_and_raftlog_read_each_other(bootstrap: str, topic: str, codec: str) -> None:
    lines = "".join(f"key-{number}:value {number}\n" for number in range(200))
    run("kcat", "-b", bootstrap, "-P", "-t", topic, "-K:", "-z", codec, "-H", "a=b", text=lines)
    found = native_read(bootstrap, topic, 200)
    assert sorted(f"{one['key']}:{one['value']}\n" for one in found) == sorted(
        lines.splitlines(keepends=True)
    )
    assert all(one["headers"] == [["a", "b"]] for one in found)
    native_write(bootstrap, topic, some_records(10), "none" if codec == "snappy" else codec)
    stored = native_read(bootstrap, topic, 210)
    for words in (("-C", "-t", topic), ("-o", "beginning", "-G", f"kcat-{codec}", topic)):
        shown = run("kcat", "-b", bootstrap, "-o", "beginning", "-e", "-q", "-J", *words)
        read = [json.loads(line) for line in shown.splitlines()]
        assert sorted((one["partition"], one["offset"], one["payload"]) for one in read) == [
            (one["partition"], one["offset"], one["value"]) for one in stored
        ]


@needs_kcat
@pytest.mark.feature("kcat", KCAT, "list brokers and topics")
def test_kcat_lists_the_cluster(bootstrap: str, topic: str) -> None:
    shown = json.loads(run("kcat", "-b", bootstrap, "-L", "-J"))
    assert sorted(broker["id"] for broker in shown["brokers"]) == [1, 2, 3]
    (found,) = [one for one in shown["topics"] if one["topic"] == topic]
    assert [len(one["isrs"]) for one in found["partitions"]] == [3, 3]
