"""What this broker has of each topic: opened, dropped, made anew; and tried again when it fails."""

from __future__ import annotations

import asyncio
import errno
from typing import Any

import pytest

from raftlog.errors import RaftlogError, UnknownTopicError
from raftlog.protocol.peer import EncodedPartitionState
from raftlog.replication.cluster_commands import (
    AddPartitions,
    AlterTopic,
    CreateTopic,
    DeleteTopic,
    FenceBroker,
    RegisterBroker,
    UnfenceBroker,
)
from raftlog.replication.partition_state import ChangeIsr, Elect
from raftlog.server.cluster.replicas import RETRY_SECONDS
from raftlog.storage import Store
from raftlog.testing.disk import Fault
from tests.running import runs
from tests.server.cluster.hosting import Hosting, hosting
from tests.server.cluster.paper import DISKS, append, state_of, status


@runs(hosting)
async def test_a_new_topic_is_led_from_the_start(h: Hosting) -> None:
    """Its first state names the leader: no election, and metadata that clients can use."""
    h.upgrade()
    record = await h.create(partitions=3)
    for partition, assignment in enumerate(record.partitions):
        hosted, first = h.hosted(partition=partition), assignment.replicas[0]
        assert (hosted.state.leader, hosted.state.leader_epoch) == (first, 1)
        assert h.partitions.state_of("T1", partition) is hosted.state
        assert hosted.is_current
        if first == 1:
            assert append(h.host(partition=partition), b"a") == 1
        else:
            assert h.host(partition=partition).follows(first, 1)
    assert not h.s.services.events.events


@pytest.mark.parametrize(("directory_id", "boot"), [(DISKS[1], 2), ("another", 1)])
@runs(hosting)
async def test_another_incarnation_does_not_know_the_first_leader(
    h: Hosting, *, directory_id: str, boot: int
) -> None:
    """The others may have elected another leader since: it waits for the state of the group."""
    h.s.command(FenceBroker(id=1, broker_epoch=h.s.machine.brokers[1].broker_epoch))
    epoch = h.s.command(
        RegisterBroker(id=1, host="h", port=1, rack="", directory_id=directory_id, boot=boot)
    )
    h.s.command(UnfenceBroker(id=1, broker_epoch=epoch))
    h.upgrade()
    await h.create(partitions=3)
    state = h.partitions.state_of("T1", 0)
    assert state is not None
    assert state.leader is None


@runs(hosting)
async def test_a_topic_is_opened_its_group_too_and_led_when_it_is_elected(h: Hosting) -> None:
    record = await h.create()
    assert h.partitions.is_ready
    hosted = h.hosted()
    assert h.topics.topic("t").hosts == [hosted.host]
    assert list(h.s.plane.machines) == ["T1/0"]
    assert hosted.state.leader_epoch == 0
    assert h.host().leadership is None, "nobody was elected in this run"
    assert hosted.is_current
    assert record.partitions[0].replicas == hosted.state.replicas
    await h.elect(1)
    assert h.host().leadership is not None
    assert h.partitions.leading() == [hosted]
    assert append(h.host(), b"a") == 1


@runs(hosting)
async def test_a_witness_votes_and_stores_nothing(h: Hosting) -> None:
    record = await h.create(partitions=3, replicas=2)
    for number, assignment in enumerate(record.partitions):
        hosted = h.hosted(partition=number)
        assert (hosted.host is not None) == (1 in assignment.replicas)
    assert 1 <= len(h.on_disk()) < 3


@runs(hosting)
async def test_a_former_voter_opens_the_group_that_its_journal_has(h: Hosting) -> None:
    h.s.plane.journaled_groups.add("T1/1")
    record = await h.create(partitions=3, replicas=1)
    opened = {p for p in range(3) if h.partitions.find("T1", p) is not None}
    mine = {p for p, assignment in enumerate(record.partitions) if assignment.replicas == (1,)}
    assert opened == mine | {1}
    assert len(opened) == 2


@runs(hosting)
async def test_more_partitions_are_opened_when_there_are_more(h: Hosting) -> None:
    await h.create()
    host = h.host()
    h.s.command(AddPartitions(name="t", total=3))
    await h.partitions.until_seen("t")
    assert len(h.topics.topic("t").local_hosts()) == 3
    assert h.host() is host


@runs(hosting)
async def test_changed_settings_reach_the_log_and_the_disk(h: Hosting) -> None:
    await h.create()
    h.s.command(AlterTopic(name="t", changes={"retention.ms": "1234"}))
    await h.partitions.until_seen("t")
    assert h.host().log.config.retention_ms == 1234
    assert h.store.topics["t"].overrides == {"retention.ms": "1234"}


@runs(hosting)
async def test_a_deleted_topic_ends_every_wait_and_leaves_nothing(h: Hosting) -> None:
    await h.create()
    await h.elect(1)
    host, hosted = h.host(), h.hosted()
    told: list[RaftlogError | None] = []
    host.when_committed(append(host, b"a"), told.append)
    state = EncodedPartitionState("T1", 9, 1, state_of(2).encode())
    h.state_broadcast.receive([state])
    h.s.command(DeleteTopic(name="t"))
    await h.partitions.until_seen("t")
    assert [type(error) for error in told] == [UnknownTopicError]
    assert h.roles[-1] == (hosted, True)
    assert h.s.plane.closed == [("T1/0", True)]
    assert "t" not in h.topics
    assert h.on_disk() == []
    assert not h.partitions.hosted
    assert not h.state_broadcast.received


@runs(hosting)
async def test_a_topic_that_was_made_anew_is_another_one(h: Hosting) -> None:
    """S19: both changes may be seen at once."""
    await h.create()
    old = h.host()
    h.s.command(DeleteTopic(name="t"))
    await h.create(topic_id="T2")
    await h.partitions.until_seen("t")
    assert old.closed is not None
    assert h.on_disk() == [("T2", 0)]
    assert h.topics.topic("t").id == "T2"
    assert h.host("T2").log.log_end_offset == 0


@runs(hosting)
async def test_copies_of_topics_that_are_gone_go_when_it_is_certain(h: Hosting) -> None:
    h.store.host_partitions("old", "T0", (0,), total_partitions=1, overrides={})
    await h.create()
    assert h.on_disk() == [("T0", 0), ("T1", 0)]
    h.partitions.delete_strays()
    await h.s.come_to_rest()
    assert h.on_disk() == [("T1", 0)]


@runs(hosting)
async def test_a_deletion_that_went_half_way_is_finished_later(h: Hosting) -> None:
    h.partitions.delete_strays()
    await h.create()
    h.s.disk.faults.append(Fault(error=errno.ENOSPC, path="/data/*", times=2))
    h.s.command(DeleteTopic(name="t"))
    await h.s.come_to_rest()
    assert h.on_disk() == [("T1", 0)]
    assert "t" not in h.topics
    await asyncio.sleep(2 * RETRY_SECONDS)
    assert h.on_disk() == []
    assert h.s.failures == []


@runs(hosting)
async def test_a_topic_that_cannot_be_opened_is_tried_again_and_holds_up_no_other(
    h: Hosting, *, caplog: pytest.LogCaptureFixture
) -> None:
    h.s.disk.faults.append(Fault(error=errno.ENOSPC, path="*/bad/*", times=2))
    h.s.command(CreateTopic(name="bad", topic_id="T0", partitions=1, replication_factor=3))
    seen = asyncio.ensure_future(h.partitions.until_seen("bad"))
    await h.create("good")
    assert seen.done(), "nobody waits for what may never come"
    assert h.host("T1").closed is None
    assert h.partitions.find("T0", 0) is None
    assert "topic or replica update failed, retrying: object=topic bad" in caplog.text
    await asyncio.sleep(RETRY_SECONDS * 0.9)
    assert h.partitions.find("T0", 0) is None
    for _ in range(3):
        await asyncio.sleep(RETRY_SECONDS)
    assert h.host("T0").closed is None
    assert h.topics.topic("bad").hosts == [h.host("T0")]


def test_a_mistake_with_one_topic_holds_up_no_other(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = Store.host_partitions
    failures = [ZeroDivisionError(), KeyError("x")]

    def broken(store: Store, name: str, *args: Any, **options: Any) -> Any:
        if name == "bad" and failures:
            raise failures.pop()
        return real(store, name, *args, **options)

    monkeypatch.setattr(Store, "host_partitions", broken)

    async def test(h: Hosting) -> None:
        await h.create("bad", topic_id="T0")
        await h.create("good")
        assert h.host("T1").closed is None
        assert "KeyError" in caplog.text
        for _ in range(3):
            await asyncio.sleep(RETRY_SECONDS)
        assert h.host("T0").closed is None

    hosting(test)


@runs(hosting)
async def test_a_disk_that_failed_is_the_end_and_not_tried_again(h: Hosting) -> None:
    h.s.disk.faults.append(Fault(error=errno.EIO, path="*/t/*", times=1))
    await h.create()
    assert len(h.s.failures) == 1
    await asyncio.sleep(10)
    assert h.partitions.find("T1", 0) is None
    assert len(h.s.failures) == 1


@runs(hosting)
async def test_a_stop_leaves_no_retry_behind(h: Hosting) -> None:
    h.s.disk.faults.append(Fault(error=errno.ENOSPC, path="*/t/*", times=1))
    await h.create()
    await h.partitions.stop()
    await asyncio.sleep(10)
    assert h.partitions.find("T1", 0) is None


@runs(hosting)
async def test_a_start_begins_with_what_is_on_the_disk(h: Hosting) -> None:
    h.store.host_partitions("t", "T1", (0,), total_partitions=1, overrides={})
    log = h.store.hosted_log("T1", 0)
    log.restart_at(7)
    await h.create()
    assert h.host().log is log


@runs(hosting)
async def test_a_group_that_was_in_a_term_before_is_not_current_until_it_says_so(
    h: Hosting,
) -> None:
    h.s.plane.statuses["T1/0"] = status(term=3)
    await h.create()
    assert not h.hosted().is_current
    assert h.host().leader is None
    assert len(h.s.plane.proposals) == 1
    h.s.plane.agree()
    await h.s.come_to_rest()
    assert h.hosted().is_current
    assert h.host().leader == h.hosted().state.leader or h.hosted().state.leader == 1


@runs(hosting)
async def test_consensus_that_has_ended_is_no_mistake(h: Hosting) -> None:
    h.s.plane.has_ended = True
    await h.create()
    assert h.partitions.state_of("T1", 0) is not None
    assert not h.hosted().is_current


# -- what is known of partitions


@runs(hosting)
async def test_a_state_from_before_the_start_names_no_leader(h: Hosting) -> None:
    await h.create()
    state = h.partitions.state_of("T1", 0)
    assert state is not None
    assert state.leader is None
    plane = h.s.plane
    for known in (
        status(leader=2, commit_index=1, applied_index=1),
        status(leader=None, commit_index=5, applied_index=5),
        status(leader=2, commit_index=5, applied_index=4),
    ):
        plane.statuses["T1/0"] = known
        state = h.partitions.state_of("T1", 0)
        assert state is not None
        assert state.leader is None
    plane.statuses["T1/0"] = status(leader=2, commit_index=5, applied_index=5)
    assert h.partitions.state_of("T1", 0) is h.hosted().state
    plane.statuses["T1/0"] = status()
    assert h.partitions.state_of("T1", 0) is h.hosted().state, "once is enough"


@runs(hosting)
async def test_of_others_partitions_it_knows_what_it_was_told(h: Hosting) -> None:
    assert h.partitions.state_of("T9", 0) is None
    told = state_of(2, 3)
    h.state_broadcast.receive([EncodedPartitionState("T9", 0, 1, told.encode())])
    assert h.partitions.state_of("T9", 0) == told


@runs(hosting)
async def test_replicas_are_known_before_their_state_is_received(h: Hosting) -> None:
    """A broker without a vote describes a new topic: its assigned replicas, and no leader."""
    h.upgrade()
    record = await h.create(partitions=3, replicas=1)
    others = [p for p, held in enumerate(record.partitions) if 1 not in held.voters]
    assert others
    for partition in others:
        assigned = record.partitions[partition]
        state = h.partitions.state_of("T1", partition)
        assert state is not None
        assert (state.leader, state.replicas) == (None, assigned.replicas)
        assert h.partitions.state_of("T1", 3) is None
        led = state_of(*assigned.replicas, epoch=1)
        h.state_broadcast.receive([EncodedPartitionState("T1", partition, 1, led.encode())])
        assert h.partitions.state_of("T1", partition) == led


@runs(hosting)
async def test_a_former_voter_knows_what_it_was_told(h: Hosting) -> None:
    await h.create()
    told = state_of(2, 3, version=9)
    h.state_broadcast.receive([EncodedPartitionState("T1", 0, 9, told.encode())])
    assert h.partitions.state_of("T1", 0) != told, "a voter receives commands"
    h.s.plane.statuses["T1/0"] = status(role="observer")
    assert h.partitions.state_of("T1", 0) == told


@runs(hosting)
async def test_it_is_not_ready_while_it_opens_something(h: Hosting) -> None:
    h.s.workers.hold()
    await h.create()
    assert not h.partitions.is_ready
    seen = asyncio.ensure_future(h.partitions.until_seen("t"))
    await h.s.come_to_rest()
    assert not seen.done()
    h.s.workers.release()
    await seen
    assert h.partitions.is_ready


# -- roles, over time


@runs(hosting)
async def test_many_changes_at_once_are_taken_over_as_one(h: Hosting) -> None:
    await h.create()
    h.roles.clear()
    for leader in (2, 3, 2):
        hosted = h.hosted()
        elect = Elect(hosted.state.version, leader, DISKS[leader], 1)
        hosted.machine.apply(elect.encode())
    await h.s.come_to_rest()
    assert [hosted for hosted, _ in h.roles] == [h.hosted()]
    assert h.host().follows(2, 3)


@runs(hosting)
async def test_a_new_state_is_told_to_those_who_have_no_vote(h: Hosting) -> None:
    record = await h.create(replicas=1)
    if record.partitions[0].replicas != (1,):
        record = await h.create("u", topic_id="T2", replicas=1)
    assert record.partitions[0].replicas == (1,)
    h.s.plane.leading.add(f"{record.id}/0")
    await h.elect(1, record.id)
    assert {broker for broker, _ in h.s.links.told} == {2, 3}


@runs(hosting)
async def test_a_change_that_is_applied_is_an_event_and_one_that_is_replayed_is_none(
    h: Hosting,
) -> None:
    await h.create()
    await h.elect(1)  # this broker knows no leader of the group yet: it may be a replay
    events = h.s.services.events
    assert not events.events
    h.hosted().is_known = True
    await h.elect(2)
    await h.apply(ChangeIsr(h.hosted().state.version, 2, {2: DISKS[2], 3: DISKS[3]}, 1))
    kinds = [(event.kind, event.broker) for _, event in events.events]
    assert kinds == [("leader-elected", 2), ("isr-shrunk", -1)]
    assert {at_ms for at_ms, _ in events.events} == {h.s.services.clock.wall_ms()}
