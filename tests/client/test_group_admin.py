"""The synchronous admin client's calls about groups."""

from __future__ import annotations

import inspect

import pytest

from raftlog.client.admin import Admin
from raftlog.client.aio.group_admin import AsyncGroupAdmin
from raftlog.client.group_admin import GroupAdmin
from raftlog.client.host import Host
from raftlog.errors import UnknownGroupError
from raftlog.types import OffsetAndMetadata, TopicPartition
from tests.client.groups.coordinated import Coordination
from tests.client.test_fetcher import fill
from tests.client.world import FakeCluster

A, B = TopicPartition("t", 0), TopicPartition("t", 1)


def test_every_call() -> None:
    fake = FakeCluster()
    Coordination(fake)
    fake.create("t", 2)
    fill(fake, 10)
    with Admin(fake.bootstrap, host=Host(connector=fake.connect)) as admin:
        admin.alter_group_offsets("g", {A: 4, B: 0}, metadata="note")
        admin.commit_offsets("g", {A: 5})
        assert admin.group_offsets("g") == {
            A: OffsetAndMetadata(5, "", 3),
            B: OffsetAndMetadata(0, "note", 3),
        }
        assert [row.group for row in admin.list_groups()] == ["g"]
        assert [described.lag for described in admin.describe_groups(["g"])] == [5]
        admin.delete_group_offsets("g", [B])
        assert list(admin.group_offsets("g")) == [A]
        admin.delete_groups(["g"])
        with pytest.raises(UnknownGroupError, match="no consumer group 'g'"):
            admin.group_offsets("g")


def test_both_say_the_same() -> None:
    for name, method in vars(GroupAdmin).items():
        if not name.startswith("_"):
            other = getattr(AsyncGroupAdmin, name)
            assert inspect.signature(method) == inspect.signature(other)
            assert inspect.getdoc(method) == inspect.getdoc(other)
