"""The tests of franz-go's client (pkg/kgo) against one broker.

Each test that cannot pass is listed with its reason. A listed test that passes fails this one, too.
"""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from raftlog.testing.cluster import cluster
from tests.kafka_peers.install import CACHE, kgo_source, version_in
from tests.kafka_peers.suites import run_suite, verify_outcomes

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

pytestmark = [
    pytest.mark.peers,
    pytest.mark.integration,
    pytest.mark.timeout(TIMEOUT_S + 60),
    pytest.mark.feature(
        "franz-go", version_in("go/go.mod", r"franz-go v(\S+)"), "its own tests (pkg/kgo)"
    ),
]


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
