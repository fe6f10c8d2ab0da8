"""The integration tests of kafka-python and confluent-kafka against brokers.

Each test that cannot pass is listed with its reason. A listed test that passes fails this one, too.
"""

from __future__ import annotations

import os
import sys
import xml.etree.ElementTree as ET
from pathlib import Path

import pytest

from raftlog.testing.cluster import cluster, free_port
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
CONFLUENT_SETTINGS = {**SETTINGS, "group.min.session.timeout.ms": "6000"}  # a test expects it
KAFKA_PYTHON_CANNOT_PASS = {
    "test_admin_integration.test_create_describe_delete_acls": (
        "sets access rules on a broker without authentication"
    ),
    "test_admin_integration.test_create_partitions": "assigns the replicas of new partitions",
    "test_admin_integration.test_describe_configs_broker_resource_returns_configs": (
        "expects advertised.listeners, a setting that brokers do not have"
    ),
}
KAFKA_PYTHON_MAY_FAIL = dict.fromkeys(
    [
        f"test_producer_integration.test_idempotent_producer_max_in_flight[{number}]"
        for number in (1, 2, 5)
    ],
    "a race of the client: a consumer that subscribes while its first metadata request (topics=[]) "
    "is in flight takes the response for one to its subscription, and asks again after 5 minutes",
)
KAFKA_PYTHON_NOT_RUN = {
    "test_sasl_integration.py": "starts Kafka's broker",
    "test_ssl_integration.py": "starts Kafka's broker",
}
CONFLUENT_CANNOT_PASS = {
    "test_basic_operations.test_basic_operations": "creates a topic with compression.type=gzip",
    "test_consumer_upgrade_downgrade.test_consumer_upgrade_downgrade": (
        "a group has members with both group protocols"
    ),
    "test_incremental_alter_configs.test_incremental_alter_configs": (
        "creates a topic with compression.type=gzip"
    ),
    "test_user_scram_credentials.test_user_scram_credentials": (
        "sets a password with a salt of 4 bytes. The minimum is 12"
    ),
}
CONFLUENT_NOT_RUN = {
    "admin/test_describe_operations.py": "starts Kafka's broker",
    "schema_registry": "runs with a schema registry, below",
    "share_consumer": "share groups are not available",
    "share_consumer_oauth": "share groups are not available",
    "share_consumer_sasl": "share groups are not available",
}

REGISTRY_CANNOT_PASS = {
    "test_api_client.test_api_get_register_schema_invalid[kafka_cluster_cp_7_0_1-500-500]": (
        "expects the status of releases before 7.0.2"
    ),
}

pytestmark = [
    pytest.mark.peers,
    pytest.mark.integration,
    pytest.mark.timeout(TIMEOUT_S + 60),
]


def run_pytest(
    source: Path, words: list[str], environment: dict[str, str], report: Path
) -> tuple[dict[str, str], str]:
    """Run tests of ``source``. Returns the outcomes by test, and the output."""
    options = (
        "-c",
        os.devnull,
        f"--rootdir={source}",
        f"--junitxml={report}",
        f"--timeout={TEST_TIMEOUT_S}",
        "--tb=short",
        "--override-ini=asyncio_mode=auto",
    )
    output = run_suite(
        [sys.executable, "-m", "pytest", *options, *words],
        source,
        {**environment, "PYTHONPATH": os.pathsep.join((str(PYTHON_LIBRARY), str(source)))},
        TIMEOUT_S,
    )
    assert report.exists(), output
    return outcomes_in(report), output


def outcomes_in(report: Path) -> dict[str, str]:
    """Return the outcomes by test that a report of pytest in the format of JUnit has."""
    outcomes = {}
    for case in ET.parse(report).iter("testcase"):
        children = {child.tag for child in case}
        failed, skipped = children & {"failure", "error"}, "skipped" in children
        name = f"{case.attrib['classname'].rpartition('.')[2]}.{case.attrib['name']}"
        outcomes[name] = "FAIL" if failed else "SKIP" if skipped else "PASS"
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
            tmp_path / "report.xml",
        )
    verify_outcomes(outcomes, KAFKA_PYTHON_CANNOT_PASS, 40, output, may_fail=KAFKA_PYTHON_MAY_FAIL)


@pytest.mark.skipif(
    not CONFLUENT_TESTS.exists(), reason="the repository of confluent-kafka was not reached"
)
@pytest.mark.feature(
    "confluent-kafka",
    version_in("python/requirements.txt", r"confluent-kafka\S*==(\S+)"),
    f"its own tests (tests/integration of {CONFLUENT_TESTS_VERSION})",
)
@pytest.mark.parametrize("protocol", ["classic", "consumer"])
def test_the_tests_of_confluent_kafka(tmp_path: Path, protocol: str) -> None:
    with cluster(3, directory=tmp_path, with_relays=False, settings=CONFLUENT_SETTINGS) as brokers:
        outcomes, output = run_pytest(
            CONFLUENT_TESTS,
            [
                "tests/integration",
                *(f"--ignore=tests/integration/{name}" for name in CONFLUENT_NOT_RUN),
            ],
            {"BROKERS": brokers.bootstrap, "TEST_CONSUMER_GROUP_PROTOCOL": protocol},
            tmp_path / "report.xml",
        )
    verify_outcomes(outcomes, CONFLUENT_CANNOT_PASS, 20, output)


@pytest.mark.skipif(
    not CONFLUENT_TESTS.exists(), reason="the repository of confluent-kafka was not reached"
)
@pytest.mark.feature(
    "confluent-kafka",
    version_in("python/requirements.txt", r"confluent-kafka\S*==(\S+)"),
    "its own tests of schema registries",
)
def test_the_registry_tests_of_confluent_kafka(tmp_path: Path) -> None:
    with cluster(3, directory=tmp_path, with_relays=False, settings=CONFLUENT_SETTINGS) as brokers:
        broker, port = brokers.brokers[0], free_port()
        broker.stop()
        broker.settings["schema.registry.listen"] = f"127.0.0.1:{port}"
        broker.start()
        url, bootstrap = f"http://127.0.0.1:{port}", brokers.bootstrap
        outcomes, output = run_pytest(
            CONFLUENT_TESTS,
            # The asynchronous ones have no registry in their fixture for given brokers.
            ["tests/integration/schema_registry/_sync"],
            {
                "BROKERS": bootstrap,
                "SR_URL": url,
                "BROKERS_7_0_1": bootstrap,
                "SR_URL_7_0_1": url,
            },
            tmp_path / "report.xml",
        )
    verify_outcomes(outcomes, REGISTRY_CANNOT_PASS, 40, output)
