"""Descriptions of classic groups."""

from __future__ import annotations

from raftlog.testing.kafka_wire import assignment
from tests.consumer_groups.classic_scene import ClassicScene
from tests.consumer_groups.scene import GROUP


def test_a_description_reads_the_bytes_of_consumers_only() -> None:
    scene = ClassicScene()
    scene.formed("a", "b")
    view = scene.shard.describe(GROUP)
    assert (view.type, view.state, view.assignor, view.group_epoch) == (
        *("classic", "stable", "range"),
        scene.group.generation,
    )
    assert [(m.member_id, m.topics) for m in view.members] == [("a", ("t",)), ("b", ("t",))]
    assert [share.partitions for share in view.members[1].assigned] == [(1,)]
    assert view.members[1].assignment == assignment("t", 1)
    scene.depart("a", "b")
    scene.enter("x", ("p", b"opaque"), protocol_type="connect")
    member = scene.shard.describe(GROUP).members[0]
    assert (member.topics, member.assigned, member.metadata) == ((), (), b"opaque")
