"""Copies of a cluster: ``raftlog backup``, ``raftlog restore`` and ``raftlog mirror``."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from raftlog.testing import Cluster, cluster
from tests.cli.conftest import Raftlog

pytestmark = pytest.mark.integration

# -- backup ----------------------------------------------------------------------------------------

# `raftlog backup` and `raftlog restore`.


def topics_of(raftlog: Raftlog) -> set[str]:
    """Topics of which the group has offsets."""
    described = raftlog("group", "describe", "readers", "--json").json
    return {part["topic"] for part in described["partitions"]}


def test_a_backup_is_verified_and_restored(raftlog: Raftlog, topic: str, tmp_path: Path) -> None:
    assert raftlog("produce", topic, "-p", 0, stdin=b"a\nb\n").status == 0
    ran = raftlog(
        "group", "reset", "readers", "--topic", topic, "--to", "latest", "--create", "--execute"
    )
    assert ran.status == 0, ran.err
    made = raftlog("backup", "--to", tmp_path, "--topics", topic, "--json").json
    assert (made["topics"], made["offsets"]) == (1, 2)
    ran = raftlog("restore", "--from", tmp_path, "--verify")
    assert ran.out.decode().splitlines() == [
        f"{topic}:0: offsets 0 to 2: ok",
        f"{topic}:1: offsets 0 to 0: ok",
    ]
    again = ("restore", "--from", tmp_path, "--prefix", "r-")
    ran = raftlog(*again)
    assert (ran.status, "the offsets of group readers are not copied" in ran.err) == (0, True)
    assert topics_of(raftlog) == {topic}, "the live group is unchanged"
    assert raftlog(*again, "--overwrite-groups").err == ""
    assert topics_of(raftlog) == {topic, f"r-{topic}"}
    with cluster(brokers=1) as other:
        ran = raftlog("restore", "--from", tmp_path, "--bootstrap", other.bootstrap)
        assert ran.status == 0, ran.err
        assert ran.out.startswith(b"1 topic, 2 partitions, 1 group: 2 records copied")
        tailed = raftlog("tail", topic, "-o", "earliest", "--bootstrap", other.bootstrap)
        assert tailed.out == b"a\nb\n"
    (file,) = tmp_path.rglob("*.batches")
    file.write_bytes(file.read_bytes()[:-1])
    ran = raftlog("restore", "--from", tmp_path, "--verify", "--json")
    assert (ran.status, "bytes instead of" in ran.json_lines[0]["problem"]) == (1, True)
    assert raftlog("restore", "--from", tmp_path / "none").status == 1


def test_a_pattern_that_matches_no_topic_fails(
    raftlog: Raftlog, bootstrap: str, topic: str, other: Cluster, tmp_path: Path
) -> None:
    """A typo in a regular job would be noticed when the backup is needed."""
    assert raftlog("backup", "--to", tmp_path, "--topics", topic).status == 0
    typo = ["--topics", topic[:-1]]  # as a part of the name, it does not match
    for command in (
        ["backup", "--to", tmp_path],
        ["restore", "--from", tmp_path, "--bootstrap", other.bootstrap],
        ["restore", "--from", tmp_path, "--verify"],
        ["mirror", "--from", bootstrap, "--to", other.bootstrap, "--once"],
    ):
        ran = raftlog(*command, *typo)
        assert (ran.status, f"no topic matches --topics '{typo[1]}'" in ran.err) == (1, True)
    empty = tmp_path / "empty"
    assert raftlog("backup", "--to", empty, "--bootstrap", other.bootstrap).status == 0


# -- mirror ----------------------------------------------------------------------------------------


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
