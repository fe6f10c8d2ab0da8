"""The tests of librdkafka (tests/) against brokers, except those that need none.

Each test that cannot pass is listed with its reason. A listed test that passes fails this one, too.
On a busy machine, the one that limits latencies is not considered.
"""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from raftlog.testing.cluster import cluster
from tests.kafka_peers.install import JAVA_LIBRARY, LIBRDKAFKA, version_in
from tests.kafka_peers.suites import run_suite, verify_outcomes
from tests.kafka_peers.test_tools import TOOLS

VERSION = version_in("librdkafka/package.json", r'"librdkafka": "(.*?)"')
KAFKA_VERSION = version_in("java/pom.xml", r"kafka-tools</artifactId>\s*<version>(.*?)<")
TIMEOUT_S = 900
IN_PARALLEL = 8
SCRIPTS = ("kafka-topics", "kafka-acls")  # that the tests call
THREE_BROKERS = "0103"  # of transactions: creates topics of three replicas
TIMED = "0055_producer_latency"  # limits latencies to 55 ms
REPEATS = 2  # of tests that failed beside others, each time alone: their time limits are short
QUICK = "0113"  # takes ten minutes, except in the quick mode of its suite
CANNOT_PASS = {
    "0081_admin": "creates topics with assigned replicas",
    "0109_auto_create_topics": "sets access rules on a broker without authentication",
}
NOT_RUN = {  # tests by number: all with this number are skipped
    "share groups are not available": tuple(f"{number:04}" for number in range(170, 187)),
    "they require a broker with authentication and its certificates": (
        "0097",
        "0115",
        "0119",
        "0126",
        "0142",
    ),
}
SETTINGS = {"group.initial.rebalance.delay.ms": "3000", "num.partitions": "4"}

pytestmark = [
    pytest.mark.peers,
    pytest.mark.integration,
    pytest.mark.timeout(TIMEOUT_S + 60),
    pytest.mark.feature("librdkafka", VERSION, "its own tests (tests/)"),
]


def write_kafka(directory: Path) -> Path:
    """Write Kafka's scripts as in its distribution. Returns the directory for KAFKA_PATH."""
    (directory / "bin").mkdir(parents=True, exist_ok=True)
    for name in SCRIPTS:
        script = directory / f"bin/{name}.sh"
        script.write_text(f"#!/bin/sh\nexec java -cp '{JAVA_LIBRARY}/*' {TOOLS[name]} \"$@\"\n")
        script.chmod(0o755)
    return directory


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
    settings = {**SETTINGS, "auto.create.topics.enable": str(scenario == "default").lower()}
    skipped = [number for numbers in NOT_RUN.values() for number in numbers]
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
                CANNOT_PASS
            ):
                output += run(",".join(name.partition("_")[0] for name in failed), 1)
                outcomes |= {
                    name: state for name, state in outcomes_of(report).items() if name in failed
                }
    is_busy = os.getloadavg()[0] > (os.cpu_count() or 1)
    may_fail = {TIMED} if is_busy else ()
    verify_outcomes(outcomes, CANNOT_PASS, passed_min, output, may_fail=may_fail)


def outcomes_of(report: Path) -> dict[str, str]:
    """Return the outcomes by name of the tests that were selected."""
    return {
        name: test["state"]
        for name, test in json.loads(report.read_text())["tests"].items()
        if name[0].isdigit()
    }
