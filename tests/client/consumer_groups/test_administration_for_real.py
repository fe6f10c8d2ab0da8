"""Groups from outside, on three real brokers: nothing is missing, even while one is gone."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from raftlog import Admin, NewTopic, Producer, TopicPartition
from raftlog.errors import UnknownGroupError
from raftlog.testing import Cluster, cluster

pytestmark = pytest.mark.integration

GROUPS = [f"g{number:02}" for number in range(24)]
PARTITIONS = [TopicPartition("t", number) for number in range(6)]


@pytest.fixture(scope="module")
def running() -> Iterator[Cluster]:
    """Three brokers, and 24 groups that have read two of the three records of each partition."""
    with cluster(brokers=3) as started:
        with Admin(started.bootstrap) as admin, Producer(started.bootstrap) as producer:
            admin.create_topics([NewTopic("t", len(PARTITIONS))])
            for tp in PARTITIONS:
                producer.send_many("t", [b"x"] * 3, partition=tp.partition)
            producer.flush(timeout=30)
            for group in GROUPS:
                admin.alter_group_offsets(group, dict.fromkeys(PARTITIONS, 2))
        yield started


def test_the_groups_of_all_coordinators_are_listed(running: Cluster) -> None:
    with Admin(running.bootstrap) as admin:
        found = admin.list_groups()
        assert [row.group for row in found] == GROUPS
        assert {row.coordinator for row in found} == {1, 2, 3}
        assert {row.state for row in found} == {"empty"}


def test_a_dead_coordinators_groups_are_neither_missing_nor_forgotten(running: Cluster) -> None:
    with Admin(running.bootstrap) as admin:
        before = {row.group: row.coordinator for row in admin.list_groups()}
        running.brokers[0].kill()
        found = admin.list_groups()
        assert [row.group for row in found] == GROUPS
        moved = [row for row in found if before[row.group] == 1]
        assert moved
        assert {row.coordinator for row in moved} <= {2, 3}
        described = admin.describe_groups(GROUPS)
        assert [group.lag for group in described] == [len(PARTITIONS)] * len(GROUPS)
        assert all(part.problem == "" for group in described for part in group.partitions)
        assert all((group.lag_seconds or 0) > 0 for group in described)
        running.brokers[0].start()


def test_what_is_set_is_set_for_all_that_come_after(running: Cluster) -> None:
    with Admin(running.bootstrap) as admin:
        admin.alter_group_offsets("set", {PARTITIONS[0]: 3, PARTITIONS[1]: 0}, metadata="note")
        admin.delete_group_offsets("set", [PARTITIONS[1]])
    with Admin(running.bootstrap) as admin:
        ((tp, committed),) = admin.group_offsets("set").items()
        assert (tp, committed.offset, committed.metadata) == (PARTITIONS[0], 3, "note")
        admin.delete_groups(["set"])
        with pytest.raises(UnknownGroupError):
            admin.describe_groups(["set"])
        assert [row.group for row in admin.list_groups()] == GROUPS
