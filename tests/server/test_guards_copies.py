"""Work on a copy that had to wait for the disk: by then the state may be another one."""

from __future__ import annotations

from raftlog.replication.cluster_commands import CreateTopic, SetReplicas
from raftlog.replication.partition_state import ChangeIsr, ChangeReplicas
from tests.server.cluster.hosting import Hosting, hosting
from tests.server.cluster.paper import DISKS


async def keep_the_disk_busy(h: Hosting) -> None:
    """With another topic, until the workers are released."""
    h.s.workers.hold()
    h.s.command(CreateTopic(name="u", topic_id="T2", partitions=1, replication_factor=3))
    await h.s.come_to_rest()


def test_a_copy_that_counts_again_is_not_set_aside() -> None:
    async def test(h: Hosting) -> None:
        await h.create()
        await h.elect(2)
        old, hosted = h.host(), h.hosted()
        await keep_the_disk_busy(h)
        h.partitions.damaged(old, "bad")
        h.s.plane.agree()
        await h.s.come_to_rest()
        assert 1 not in hosted.state.isr, "it may go: as soon as the disk is free"
        back = {**hosted.state.isr, 1: DISKS[1]}
        state = hosted.state
        await h.apply(ChangeIsr(state.version, state.leader_epoch, back, state.min_isr))
        h.s.workers.release()
        await h.partitions.until_seen("u")
        await h.s.come_to_rest()
        assert h.host() is old
        assert old.closed is None

    hosting(test)


def test_a_copy_of_who_is_a_replica_again_is_not_dropped() -> None:
    async def test(h: Hosting) -> None:
        await h.create()
        await h.elect(2)
        old, hosted = h.host(), h.hosted()
        await keep_the_disk_busy(h)
        await h.apply(ChangeReplicas(hosted.state.version, (2, 3), (1,)))
        h.s.command(
            SetReplicas(
                topic_id="T1",
                partition=0,
                replicas=(2, 3),
                witnesses=(1,),
                version=hosted.state.version,
            )
        )
        h.partitions.review(list(h.partitions.hosted.values()))
        await h.apply(ChangeReplicas(hosted.state.version, (2, 3, 1), ()))
        h.s.workers.release()
        await h.partitions.until_seen("t")
        await h.s.come_to_rest()
        assert h.host() is old
        assert old.closed is None

    hosting(test)
