"""The integration tests of kafka-python and confluent-kafka against one broker.

Each test that cannot pass is listed with its reason. A listed test that passes fails this one, too.
"""

from __future__ import annotations

import os
import sys
import xml.etree.ElementTree as ET
from pathlib import Path

import pytest

from raftlog.testing.cluster import cluster
from tests.kafka_peers.install import (
    CONFLUENT_TESTS,
    CONFLUENT_TESTS_VERSION,
    KAFKA_PYTHON,
    PYTHON_LIBRARY,
    version_in,
)
from tests.kafka_peers.suites import run_suite, verify_outcomes

TIMEOUT_S = 600
TEST_TIMEOUT_S = 120
KAFKA_VERSION = "4.2"  # as kafka-python identifies our brokers
SETTINGS = {"group.initial.rebalance.delay.ms": "0", "num.partitions": "4"}
TRANSACTIONS = "transactions are not available"
API = "is not available: the API {}"
KAFKA_PYTHON_CANNOT_PASS = {
    "test_alter_partition_reassignments": API.format("AlterPartitionReassignments"),
    "test_alter_replica_log_dirs": API.format("AlterReplicaLogDirs"),
    "test_create_describe_delete_acls": "sets access rules on a broker without authentication",
    "test_create_partitions": "assigns the replicas of new partitions",
    "test_describe_configs_broker_resource_returns_configs": (
        "expects advertised.listeners, a setting that brokers do not have"
    ),
    "test_describe_metadata_quorum": API.format("DescribeQuorum"),
    "test_describe_topic_partitions": API.format("DescribeTopicPartitions"),
    "test_describe_topic_partitions_pagination": API.format("DescribeTopicPartitions"),
    "test_elect_leaders": API.format("ElectLeaders"),
    "test_list_config_resources": API.format("ListConfigResources"),
    "test_transactional_producer_messages": TRANSACTIONS,
    "test_transactional_producer_offsets": TRANSACTIONS,
}
KAFKA_PYTHON_NOT_RUN = {
    "test_ssl_integration.py": "starts Kafka's broker",
    "test_sasl_integration.py": "starts Kafka's broker",
}

pytestmark = [
    pytest.mark.peers,
    pytest.mark.integration,
    pytest.mark.timeout(TIMEOUT_S + 60),
]


def run_pytest(source: Path, words: list[str], environment: dict[str, str]) -> tuple[dict, str]:
    """Run tests of ``source``. Returns the outcomes by test, and the output."""
    report = Path(environment["KAFKA_ROOT"]) / "report.xml"
    output = run_suite(
        [sys.executable, "-m", "pytest", "-c", os.devnull, f"--rootdir={source}"]
        + [f"--junitxml={report}", f"--timeout={TEST_TIMEOUT_S}", "--tb=short", *words],
        source,
        {**environment, "PYTHONPATH": os.pathsep.join((str(PYTHON_LIBRARY), str(source)))},
        TIMEOUT_S,
    )
    return outcomes_in(report), output


def outcomes_in(report: Path) -> dict[str, str]:
    """Return the outcomes by test that a report of pytest in the format of JUnit has."""
    outcomes = {}
    for case in ET.parse(report).iter("testcase"):  # noqa: S314 - our own process wrote it
        children = {child.tag for child in case}
        failed, skipped = children & {"failure", "error"}, "skipped" in children
        outcomes[case.attrib["name"]] = "FAIL" if failed else "SKIP" if skipped else "PASS"
    return outcomes


@pytest.mark.feature(
    "kafka-python",
    version_in("python/requirements.txt", r"kafka-python\S*==(\S+)"),
    "its own tests (test/integration)",
)
def test_the_tests_of_kafka_python(tmp_path: Path) -> None:
    with cluster(1, directory=tmp_path, settings=SETTINGS) as brokers:
        outcomes, output = run_pytest(
            KAFKA_PYTHON,
            ["test/integration", *(f"--ignore-glob=*/{name}" for name in KAFKA_PYTHON_NOT_RUN)],
            {
                "KAFKA_URI": f"kafka://{brokers.bootstrap}",
                "KAFKA_VERSION": KAFKA_VERSION,
                "KAFKA_ROOT": str(tmp_path),
            },
        )
    verify_outcomes(outcomes, KAFKA_PYTHON_CANNOT_PASS, 40, output)
