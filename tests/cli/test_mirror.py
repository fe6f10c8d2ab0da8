"""Tests of ``raftlog mirror``."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from raftlog.testing import Cluster, cluster
from tests.cli.conftest import Raftlog

pytestmark = pytest.mark.integration


@pytest.fixture(scope="module")
def other() -> Iterator[Cluster]:
    with cluster(brokers=1) as running:
        yield running


def test_a_topic_is_copied(raftlog: Raftlog, bootstrap: str, topic: str, other: Cluster) -> None:
    addresses = ["--from", bootstrap, "--to", other.bootstrap]
    arguments = ["mirror", *addresses, "--topics", topic, "--once"]
    assert raftlog("produce", topic, "-p", 1, stdin=b"1\n2\n").status == 0
    assert raftlog(*arguments).out.startswith(b"1 topic, 2 partitions: 2 records copied")
    assert raftlog(*arguments, "--json").json_lines[-1] == {
        "topics": 1,
        "partitions": 2,
        "records": 0,
        "bytes": 0,
        "skipped": 0,
        "lag": 0,
        "refused": [],
        "groups": 0,
        "refused_groups": [],
        "copied_again": [],
        "altered": [],
    }
    copied = raftlog("tail", topic, "--bootstrap", other.bootstrap)
    assert sorted(copied.out.split()) == [b"1", b"2"]
    written = raftlog("produce", topic, "-p", 1, "--bootstrap", other.bootstrap, stdin=b"3\n")
    assert written.status == 0
    refused = raftlog(*arguments)
    assert refused.status == 1
    assert f"{topic}:1 is not mirrored: another producer has written" in refused.err


def test_a_cluster_is_not_mirrored_to_itself(raftlog: Raftlog, bootstrap: str, topic: str) -> None:
    ran = raftlog("mirror", "--from", bootstrap, "--to", bootstrap, "--topics", topic)
    assert ran.status == 1
    assert "same cluster" in ran.err


def test_a_pattern_that_is_none_is_wrong_usage(raftlog: Raftlog, bootstrap: str) -> None:
    ran = raftlog("mirror", "--from", bootstrap, "--to", bootstrap, "--topics", "(")
    assert ran.status == 2
