"""The own tests of Kafka's clients, against brokers of raftlog."""

from __future__ import annotations

import json
import os
import re
import sys
import xml.etree.ElementTree as ET
from pathlib import Path

import pytest

from raftlog.testing.cluster import cluster, free_port
from tests.kafka_peers.install import (
    CACHE,
    CONFLUENT_TESTS,
    CONFLUENT_TESTS_VERSION,
    JAVA_LIBRARY,
    KAFKA_PYTHON,
    LIBRDKAFKA,
    PYTHON_LIBRARY,
    kgo_source,
    version_in,
)
from tests.kafka_peers.suites import run_suite, verify_outcomes
from tests.kafka_peers.test_tools import TOOLS

# -- franz-go --------------------------------------------------------------------------------------

# The tests of franz-go's client (pkg/kgo) against one broker.
#
# Each test that cannot pass is listed with its reason. A listed test that passes fails this one,
# too.


TIMEOUT_S = 900
TESTS_MIN = 350
CANNOT_PASS: dict[str, str] = {}
NOT_RUN = {
    "TestShareGroup.*": "share groups are not available",
}
SETTINGS = {
    "group.initial.rebalance.delay.ms": "0",
    "group.consumer.heartbeat.interval.ms": "500",
    "num.partitions": "4",
}


@pytest.mark.peers
@pytest.mark.integration
@pytest.mark.timeout(TIMEOUT_S + 60)
@pytest.mark.feature(
    "franz-go", version_in("go/go.mod", r"franz-go v(\S+)"), "its own tests (pkg/kgo)"
)
def test_the_tests_of_kgo(tmp_path: Path) -> None:
    with cluster(1, directory=tmp_path, settings=SETTINGS) as brokers:
        output = run_suite(
            [
                str(CACHE / "go/kgo.test"),
                "-test.v",
                f"-test.timeout={TIMEOUT_S}s",
                f"-test.skip={'|'.join(NOT_RUN)}",
            ],
            kgo_source(),
            {
                "KGO_SEEDS": brokers.bootstrap,
                "KGO_TEST_RF": "1",
                "KGO_TEST_RECORDS": "10000",
                "KGO_LOG_LEVEL": "none",
            },
            TIMEOUT_S + 30,
        )
    lines = re.findall(r"^ *--- (PASS|FAIL|SKIP): (\S+)", output, re.MULTILINE)
    outcomes = {name: outcome for outcome, name in lines}
    verify_outcomes(outcomes, CANNOT_PASS, TESTS_MIN, output)


# -- librdkafka ------------------------------------------------------------------------------------

# The tests of librdkafka (tests/) against brokers, except those that need none.
#
# Each test that cannot pass is listed with its reason. A listed test that passes fails this one,
# too. On a busy machine, the one that limits latencies is not considered.


VERSION = version_in("librdkafka/package.json", r'"librdkafka": "(.*?)"')
KAFKA_VERSION = version_in("java/pom.xml", r"kafka-tools</artifactId>\s*<version>(.*?)<")
IN_PARALLEL = 8
SCRIPTS = ("kafka-topics", "kafka-acls")  # that the tests call
THREE_BROKERS = "0103"  # of transactions: creates topics of three replicas
TIMED = "0055_producer_latency"  # limits latencies to 55 ms
REPEATS = 2  # of tests that failed beside others, each time alone: their time limits are short
QUICK = "0113"  # takes ten minutes, except in the quick mode of its suite
LIBRDKAFKA_SUITE_CANNOT_PASS = {
    "0081_admin": "creates topics with assigned replicas",
    "0109_auto_create_topics": "sets access rules on a broker without authentication",
}
LIBRDKAFKA_SUITE_NOT_RUN = {  # tests by number: all with this number are skipped
    "share groups are not available": tuple(f"{number:04}" for number in range(170, 187)),
    "they require a broker with authentication and its certificates": (
        "0097",
        "0115",
        "0119",
        "0126",
        "0142",
    ),
}
LIBRDKAFKA_SUITE_SETTINGS = {"group.initial.rebalance.delay.ms": "3000", "num.partitions": "4"}


def write_kafka(directory: Path) -> Path:
    """Write Kafka's scripts as in its distribution. Returns the directory for KAFKA_PATH."""
    (directory / "bin").mkdir(parents=True, exist_ok=True)
    for name in SCRIPTS:
        script = directory / f"bin/{name}.sh"
        script.write_text(f"#!/bin/sh\nexec java -cp '{JAVA_LIBRARY}/*' {TOOLS[name]} \"$@\"\n")
        script.chmod(0o755)
    return directory


@pytest.mark.peers
@pytest.mark.integration
@pytest.mark.timeout(TIMEOUT_S + 60)
@pytest.mark.feature("librdkafka", VERSION, "its own tests (tests/)")
@pytest.mark.parametrize(
    ("scenario", "is_quick", "count", "passed_min", "only"),
    [
        ("default", False, 1, 73, ""),
        ("default", True, 1, 1, ""),
        ("noautocreate", False, 3, 4, ""),
        ("default", False, 3, 1, THREE_BROKERS),
    ],
)
def test_the_tests_of_librdkafka(
    tmp_path: Path, scenario: str, is_quick: bool, count: int, passed_min: int, only: str
) -> None:
    report, conf = tmp_path / "report.json", tmp_path / "test.conf"
    settings = {
        **LIBRDKAFKA_SUITE_SETTINGS,
        "auto.create.topics.enable": str(scenario == "default").lower(),
    }
    skipped = [number for numbers in LIBRDKAFKA_SUITE_NOT_RUN.values() for number in numbers]
    words = ["-Q", QUICK] if is_quick else []
    if not is_quick:
        skipped.append(QUICK)
    if not only:
        skipped.append(THREE_BROKERS)
    environment = {
        "RDKAFKA_TEST_CONF": str(conf),
        "LD_LIBRARY_PATH": "../src:../src-cpp",
        "TEST_REPORT": str(report),
        "TEST_KAFKA_VERSION": KAFKA_VERSION,
        "TESTS_SKIP": ",".join(skipped),
        "KAFKA_PATH": str(write_kafka(tmp_path / "kafka")),
    }

    def run(tests: str, parallel: int) -> str:
        return run_suite(
            ["./test-runner", f"-p{parallel}", "-L", "-K", "-E", "-s", scenario, *words],
            LIBRDKAFKA / "tests",
            {**environment, **({"TESTS": tests} if tests else {})},
            TIMEOUT_S,
        )

    with cluster(count, directory=tmp_path, settings=settings) as brokers:
        conf.write_text(f"bootstrap.servers={brokers.bootstrap}\ntest.topic.random=true\n")
        environment["BROKERS"] = brokers.bootstrap
        output = run(only, IN_PARALLEL)
        outcomes = outcomes_of(report)
        for _repeat in range(REPEATS):
            if failed := {n for n in outcomes if outcomes[n].startswith("FAIL")}.difference(
                LIBRDKAFKA_SUITE_CANNOT_PASS
            ):
                output += run(",".join(name.partition("_")[0] for name in failed), 1)
                outcomes |= {
                    name: state for name, state in outcomes_of(report).items() if name in failed
                }
    is_busy = os.getloadavg()[0] > (os.cpu_count() or 1)
    may_fail = {TIMED} if is_busy else ()
    verify_outcomes(outcomes, LIBRDKAFKA_SUITE_CANNOT_PASS, passed_min, output, may_fail=may_fail)


def outcomes_of(report: Path) -> dict[str, str]:
    """Return the outcomes by name of the tests that were selected."""
    return {
        name: test["state"]
        for name, test in json.loads(report.read_text())["tests"].items()
        if name[0].isdigit()
    }


# -- clients for Python ----------------------------------------------------------------------------

# The integration tests of kafka-python and confluent-kafka against brokers.
#
# Each test that cannot pass is listed with its reason. A listed test that passes fails this one,
# too.


PYTHON_SUITES_TIMEOUT_S = 600
TEST_TIMEOUT_S = 120
PYTHON_SUITES_KAFKA_VERSION = "4.2"  # as kafka-python identifies our brokers
PYTHON_SUITES_SETTINGS = {"group.initial.rebalance.delay.ms": "0", "num.partitions": "4"}
CONFLUENT_SETTINGS = {
    **PYTHON_SUITES_SETTINGS,
    "group.min.session.timeout.ms": "6000",
}  # a test expects it
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
        PYTHON_SUITES_TIMEOUT_S,
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


@pytest.mark.peers
@pytest.mark.integration
@pytest.mark.timeout(PYTHON_SUITES_TIMEOUT_S + 60)
@pytest.mark.feature(
    "kafka-python",
    version_in("python/requirements.txt", r"kafka-python\S*==(\S+)"),
    "its own tests (test/integration)",
)
def test_the_tests_of_kafka_python(tmp_path: Path) -> None:
    with cluster(1, directory=tmp_path, settings=PYTHON_SUITES_SETTINGS) as brokers:
        outcomes, output = run_pytest(
            KAFKA_PYTHON,
            ["test/integration", *(f"--ignore-glob=*/{name}" for name in KAFKA_PYTHON_NOT_RUN)],
            {
                "KAFKA_URI": f"kafka://{brokers.bootstrap}",
                "KAFKA_VERSION": PYTHON_SUITES_KAFKA_VERSION,
                "KAFKA_ROOT": str(tmp_path),
            },
            tmp_path / "report.xml",
        )
    verify_outcomes(outcomes, KAFKA_PYTHON_CANNOT_PASS, 40, output, may_fail=KAFKA_PYTHON_MAY_FAIL)


@pytest.mark.peers
@pytest.mark.integration
@pytest.mark.timeout(PYTHON_SUITES_TIMEOUT_S + 60)
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


@pytest.mark.peers
@pytest.mark.integration
@pytest.mark.timeout(PYTHON_SUITES_TIMEOUT_S + 60)
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
