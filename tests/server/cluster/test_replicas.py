"""The steps by which a damaged copy is given up: at no moment may it be elected, or be counted."""

from __future__ import annotations

import asyncio
import errno
from collections.abc import Callable, Coroutine
from dataclasses import replace
from typing import Any, cast

import pytest

from raftlog.errors import (
    CommitUnknownError,
    DiskHungError,
    NotEnoughReplicasError,
    RaftlogError,
    UnknownTopicError,
)
from raftlog.protocol.peer import EncodedPartitionState
from raftlog.replication.cluster_commands import (
    AddPartitions,
    AlterTopic,
    CreateTopic,
    DeleteTopic,
    FenceBroker,
    RegisterBroker,
    SetReplicas,
    UnfenceBroker,
    founding_state,
    recovered,
)
from raftlog.replication.partition_state import (
    Accepted,
    ChangeIsr,
    Command,
    Elect,
    PartitionState,
    apply,
)
from raftlog.server.cluster.elections import CopyChange, HostedPartition, Stage
from raftlog.server.cluster.membership import CLUSTER_GROUP, Membership
from raftlog.server.cluster.replicas import NO_OP, RETRY_SECONDS, Handover, next_step
from raftlog.server.partition import Partition
from raftlog.storage import Store
from raftlog.testing.disk import Fault
from tests.running import runs
from tests.server.cluster.acting import Acting, leading
from tests.server.cluster.fake import DISKS, TOPIC_ID, Scene, append, play, state_of, status
from tests.server.cluster.hosting import Hosting, hosting

OTHER = Elect(1, 2, "disk-2", 12)


def step(
    state: PartitionState,
    *,
    fenced_in: int | None = None,
    has_leader: bool = True,
    is_offline: bool = False,
    sound: tuple[int, ...] = (1, 2, 3),
) -> Command | CopyChange | None:
    return next_step(
        state,
        1,
        fenced_in=fenced_in,
        has_leader=has_leader,
        is_offline=is_offline,
        is_sound=lambda broker: broker in sound,
        choose_other=lambda: OTHER,
    )


def test_a_leader_hands_over_and_says_then_that_its_copy_is_lost() -> None:
    state = state_of(1, 2, 3, leader=1, isr=[1, 2, 3])
    assert step(state) == OTHER
    accepted = apply(state, OTHER)
    assert isinstance(accepted, Accepted)
    lost = step(accepted.state)
    assert isinstance(lost, ChangeIsr)
    assert lost.lost == (1,)


def test_without_a_leader_whose_copy_is_sound_the_copy_stays() -> None:
    """It may be the best that is left."""
    state = state_of(1, 2, leader=2, isr=[1, 2])
    assert step(state, has_leader=False) is None
    assert step(state, sound=(1, 3)) is None
    assert step(state_of(1, 2, leader=1), has_leader=False) is None


def test_a_follower_says_that_its_copy_is_lost_whether_it_is_in_sync_or_not() -> None:
    for isr in ([1, 2, 3], [2, 3]):
        state = state_of(1, 2, 3, leader=2, isr=isr, min_isr=2, version=4, epoch=6)
        lost = step(state)
        assert lost == ChangeIsr(4, 6, {2: "disk-2", 3: "disk-3"}, 2, (1,))
        accepted = apply(state, lost)
        assert isinstance(accepted, Accepted)
        assert 1 not in accepted.state.isr
        assert 1 not in accepted.state.elr
        assert accepted.state.leader_epoch == 7, "what was acknowledged before counts no more"
        assert step(accepted.state, fenced_in=7) == CopyChange.REPLACE


def test_it_is_lost_to_the_elr_too() -> None:
    state = state_of(1, 2, leader=2, isr=[2], elr=[1], min_isr=2)
    lost = step(state)
    accepted = apply(state, lost)  # type: ignore[arg-type]
    assert isinstance(accepted, Accepted)
    assert not accepted.state.elr


def test_nothing_is_set_aside_before_that_is_agreed_on() -> None:
    state = state_of(1, 2, leader=2, isr=[2], epoch=6)
    assert isinstance(step(state), ChangeIsr), "out of sync is not enough: it may be taken in again"
    assert isinstance(step(state, fenced_in=7), ChangeIsr), "the state here is an older one"
    assert step(state, fenced_in=6) == CopyChange.REPLACE
    assert step(replace(state, leader_epoch=9), fenced_in=6) == CopyChange.REPLACE


def test_nothing_is_set_aside_that_was_made_a_member_again() -> None:
    for members in ({"isr": [1, 2]}, {"isr": [2], "elr": [1], "min_isr": 2}):
        state = state_of(1, 2, leader=2, epoch=8, **members)  # type: ignore[arg-type]
        assert isinstance(step(state, fenced_in=6), ChangeIsr)


def test_the_copy_of_a_broker_that_is_no_replica_is_not_its_business() -> None:
    assert step(state_of(2, 3, witnesses=[1])) is None


def test_an_offline_copy_leaves_only_an_isr_that_can_do_without_it() -> None:
    """Its records may return: as one of too few members, it has to stay in the ELR."""
    state = state_of(1, 2, 3, leader=2, isr=[1, 2, 3], min_isr=2)
    assert isinstance(step(state, is_offline=True), ChangeIsr)
    needed = state_of(1, 2, 3, leader=2, isr=[1, 2], min_isr=2)
    assert isinstance(step(needed), ChangeIsr)
    assert step(needed, is_offline=True) is None
    assert step(state_of(1, 2, 3, leader=1, isr=[1, 2], min_isr=2), is_offline=True) == OTHER


def test_an_offline_copy_is_not_replaced() -> None:
    state = state_of(1, 2, 3, leader=2, isr=[2, 3], epoch=6)
    assert step(state, fenced_in=6) is CopyChange.REPLACE
    assert step(state, fenced_in=6, is_offline=True) is None


# -- handover --------------------------------------------------------------------------------------
#
# A broker that is about to stop: others lead, it is fenced, and none of it takes for ever.


SECONDS_MAX = 10.0


class FakeMembership:
    def __init__(self) -> None:
        self.is_leaving = False
        self.is_in = True


class Leaving:
    """Broker 1 stops; it leads the partitions of these states while they say so."""

    def __init__(self, s: Scene, *states: PartitionState) -> None:
        self.s = s
        s.machine.restore(founding_state("c"))
        s.register(1, 2, 3)
        s.see(2, 3)
        s.plane.machines[CLUSTER_GROUP] = s.machine
        s.plane.statuses[CLUSTER_GROUP] = status(voters={b: DISKS[b] for b in (1, 2, 3)})
        self.membership = FakeMembership()
        self.partitions: list[HostedPartition] = []
        for number, state in enumerate(states):
            hosted = s.hosted(state)
            hosted.partition = number
            s.plane.machines[hosted.raft_id] = hosted.machine
            self.partitions.append(hosted)
        self.handover = Handover(
            1,
            machine=s.machine,
            plane=s.plane.as_plane,
            liveness=s.liveness,
            membership=cast(Membership, self.membership),
            leading=lambda: [m for m in self.partitions if m.state.leader == 1],
            hosted=lambda: self.partitions,
            voters=lambda: (
                s.plane.statuses[CLUSTER_GROUP].voters if CLUSTER_GROUP in s.plane.statuses else ()
            ),
        )

    async def begin(self) -> asyncio.Task[None]:
        task = asyncio.ensure_future(self.handover.run(seconds_max=SECONDS_MAX))
        await self.s.come_to_rest()
        return task

    @property
    def fencing(self) -> bool:
        """Whether its fence, and nothing else, is proposed."""
        proposals = self.s.plane.proposals
        fence = FenceBroker(id=1, broker_epoch=self.s.machine.brokers[1].broker_epoch)
        return [(p.raft_id, p.command) for p in proposals] == [(CLUSTER_GROUP, fence.encode())]


def leaving(test: Callable[[Scene], Coroutine[Any, Any, None]]) -> None:
    play(test)


def test_all_that_it_leads_is_led_by_others_before_it_is_fenced() -> None:
    async def test(s: Scene) -> None:
        leave = Leaving(s, state_of(1, 2, 3), state_of(3, 1, leader=1), state_of(2, 1))
        task = await leave.begin()
        assert leave.membership.is_leaving, "nobody lets it in again"
        assert s.plane.commands() == [Elect(1, 2, DISKS[2], 1), Elect(1, 3, DISKS[3], 1)]
        s.plane.agree()
        await s.come_to_rest()
        assert not leave.fencing
        s.plane.agree()
        await s.come_to_rest()
        assert leave.fencing
        s.plane.agree()
        await asyncio.sleep(1)
        assert s.machine.brokers[1].fenced
        assert not task.done(), "it is in their ISRs"
        await task

    leaving(test)


def test_it_copies_until_leaders_do_not_wait_for_it_any_more() -> None:
    """Their high watermarks would stand still from its end until the ISR has changed."""

    async def test(s: Scene) -> None:
        leave = Leaving(s, state_of(2, 1), state_of(3, 1))
        s.lose(3)
        task = await leave.begin()
        assert leave.fencing
        s.plane.agree()
        await asyncio.sleep(1)
        assert not task.done()
        (kept, _) = leave.partitions
        kept.machine.apply(
            ChangeIsr(kept.state.version, kept.state.leader_epoch, {2: DISKS[2]}, 1).encode()
        )
        begun = s.loop.time()
        await task
        assert s.loop.time() - begun < 1, "broker 3, which leads the other one, has failed"

    leaving(test)


def test_what_nobody_else_can_lead_is_led_to_the_end() -> None:
    async def test(s: Scene) -> None:
        leave = Leaving(s, state_of(1, 2, isr=[1]), state_of(1))
        task = await leave.begin()
        assert leave.fencing
        s.plane.agree()
        await task
        assert leave.partitions[0].state.leader == 1

    leaving(test)


def test_nobody_gets_it_who_is_about_to_stop_too() -> None:
    async def test(s: Scene) -> None:
        leave = Leaving(s, state_of(1, 2, 3))
        s.fenced.add(2)
        task = await leave.begin()
        assert s.plane.commands() == [Elect(1, 3, DISKS[3], 1)]
        s.plane.agree()
        await s.come_to_rest()
        s.plane.agree()
        await task

    leaving(test)


@pytest.mark.parametrize("outcome", ["refuse", "lose"])
def test_what_was_not_handed_over_is_waited_for_after_the_fence(outcome: str) -> None:
    """Its arbiter elects another: the leader is not live any more."""

    async def test(s: Scene) -> None:
        leave = Leaving(s, state_of(1, 2))
        task = await leave.begin()
        getattr(s.plane, outcome)()
        await s.come_to_rest()
        assert leave.fencing
        s.plane.agree()
        await asyncio.sleep(1)
        assert not task.done()
        leave.partitions[0].machine.apply(Elect(1, 2, DISKS[2], 1).encode())
        await task

    leaving(test)


def test_it_takes_no_longer_than_it_may() -> None:
    async def test(s: Scene) -> None:
        leave = Leaving(s, state_of(1, 2))
        begun = s.loop.time()
        task = await leave.begin()
        await task
        assert SECONDS_MAX <= s.loop.time() - begun < SECONDS_MAX + 1

    leaving(test)


def test_without_a_majority_nothing_is_waited_for() -> None:
    """All stop together: the last ones would wait for those that are gone."""

    async def test(s: Scene) -> None:
        leave = Leaving(s, state_of(1, 2))
        task = await leave.begin()
        begun = s.loop.time()
        s.lose(2, 3)
        await task
        assert s.loop.time() - begun < 0.1

    leaving(test)


def test_who_is_not_in_needs_no_fence() -> None:
    async def test(s: Scene) -> None:
        leave = Leaving(s)
        leave.membership.is_in = False
        await leave.begin()
        assert s.plane.proposals == []

    leaving(test)


@pytest.mark.parametrize("outcome", ["refuse", "lose"])
def test_a_fence_that_fails_does_not_keep_it(outcome: str) -> None:
    async def test(s: Scene) -> None:
        leave = Leaving(s)
        task = await leave.begin()
        getattr(s.plane, outcome)()
        await task

    leaving(test)


def test_consensus_that_never_began_does_not_keep_it() -> None:
    async def test(s: Scene) -> None:
        leave = Leaving(s, state_of(1, 2))
        s.plane.statuses.clear()
        await (await leave.begin())

    leaving(test)


def test_a_mistake_does_not_keep_it(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def test(s: Scene) -> None:
        leave = Leaving(s)

        def broken(_self: Handover) -> None:
            raise ZeroDivisionError

        monkeypatch.setattr(Handover, "_movable", broken)
        await (await leave.begin())
        assert "leadership transfer failed" in caplog.text

    leaving(test)


# -- partitions ------------------------------------------------------------------------------------
#
# What this broker has of each topic: opened, dropped, made anew; and tried again when it fails.


@runs(hosting)
async def test_a_new_topic_is_led_from_the_start(h: Hosting) -> None:
    """Its first state names the leader: no election, and metadata that clients can use."""
    h.upgrade()
    creation = CreateTopic(name="t", topic_id="T1", partitions=3, replication_factor=3)
    record = h.s.command(creation)
    for partition, assignment in enumerate(record.partitions):
        described = h.partitions.described_state("T1", partition)
        assert described is not None
        assert described.leader == assignment.replicas[0], "its group is not opened yet"
    await h.s.come_to_rest()
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
    h.s.command(CreateTopic(name="t", topic_id="T1", partitions=3, replication_factor=3))
    described = h.partitions.described_state("T1", 0)
    assert described is not None
    assert described.leader is None
    await h.s.come_to_rest()
    state = h.partitions.state_of("T1", 0)
    assert state is not None
    assert state.leader is None
    assert not h.hosted().is_current, "though its group has no term yet"


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
    h.s.plane.journal.add("T1/1")
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
    noted: list[RaftlogError | None] = []
    host.when_committed(append(host, b"a"), noted.append)
    state = EncodedPartitionState("T1", 9, 1, state_of(2).encode())
    h.state_broadcast.receive([state])
    h.s.command(DeleteTopic(name="t"))
    await h.partitions.until_seen("t")
    assert [type(error) for error in noted] == [UnknownTopicError]
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
async def test_generations_of_topics_that_are_gone_go_too(h: Hosting) -> None:
    """The next partition of that number would continue with them."""
    await h.create()
    h.s.plane.journal |= {CLUSTER_GROUP, "T0/0", "T1/0", "T1/1"}
    h.partitions.delete_strays()
    await h.s.come_to_rest()
    assert h.s.plane.closed == [("T0/0", True), ("T1/1", True)]


@runs(hosting)
async def test_partitions_that_a_recovery_has_lost_go_and_can_be_added_again(h: Hosting) -> None:
    await h.create()
    host, before = h.host(), h.s.machine.snapshot()
    h.s.command(AddPartitions(name="t", total=3))
    await h.partitions.until_seen("t")
    lost = h.host(partition=1)
    state = EncodedPartitionState("T1", 2, 1, state_of(2).encode())
    h.state_broadcast.receive([state])
    h.s.machine.restore(recovered(before, recovery="0" * 16, lost=(), unseen=10))
    await h.partitions.until_seen("t")
    assert list(h.partitions.hosted) == ["T1/0"]
    assert h.s.plane.closed == [("T1/1", True), ("T1/2", True)]
    assert lost.closed is not None
    assert h.topics.topic("t").hosts == [host]
    assert h.on_disk() == [("T1", 0)]
    assert not h.state_broadcast.received
    h.s.command(AlterTopic(name="t", changes={"retention.ms": "1234"}))
    h.s.command(AddPartitions(name="t", total=2))
    await h.partitions.until_seen("t")
    assert h.host(partition=1) is not lost
    assert h.host().log.config.retention_ms == 1234


@runs(hosting)
async def test_a_copy_stays_until_it_is_certain_that_its_partition_is_lost(h: Hosting) -> None:
    """After a start, the state of the cluster can be older than the copies."""
    h.store.host_partitions("t", "T1", (0, 1), total_partitions=2, overrides={})
    await h.create()
    assert h.on_disk() == [("T1", 0), ("T1", 1)]
    assert list(h.partitions.hosted) == ["T1/0"]
    h.partitions.delete_strays()
    await h.s.come_to_rest()
    assert h.on_disk() == [("T1", 0)]


@runs(hosting)
async def test_a_deletion_that_went_half_way_is_finished_later(h: Hosting) -> None:
    h.partitions.delete_strays()
    await h.create()
    fault = Fault(error=errno.ENOSPC, path="/data/catalog*", times=4)  # also of the spare space
    h.s.disk.faults.append(fault)
    h.s.command(DeleteTopic(name="t"))
    await h.s.come_to_rest()
    assert h.on_disk() == [("T1", 0)]
    assert "t" not in h.topics
    await asyncio.sleep(2 * RETRY_SECONDS)
    assert h.on_disk() == []
    assert h.s.failures == []


def test_a_topic_is_there_though_old_copies_could_not_be_removed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """It arrives while their removal fails."""

    async def test(h: Hosting) -> None:
        async def remove() -> None:
            monkeypatch.undo()
            h.s.command(CreateTopic(name="t", topic_id="T1", partitions=1, replication_factor=3))
            await asyncio.sleep(0.1)
            raise DiskHungError("it hangs")

        monkeypatch.setattr(h.partitions, "_delete_strays", remove)
        h.partitions.delete_strays()
        await asyncio.sleep(0)
        await h.partitions.until_seen("t")
        assert h.on_disk() == [("T1", 0)]

    hosting(test)


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
    noted = state_of(2, 3)
    h.state_broadcast.receive([EncodedPartitionState("T9", 0, 1, noted.encode())])
    assert h.partitions.state_of("T9", 0) == noted


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
    noted = state_of(2, 3, version=9)
    h.state_broadcast.receive([EncodedPartitionState("T1", 0, 9, noted.encode())])
    assert h.partitions.state_of("T1", 0) != noted, "a voter receives commands"
    h.s.plane.statuses["T1/0"] = status(role="observer")
    assert h.partitions.state_of("T1", 0) == noted


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
    assert {broker for broker, _ in h.s.links.noted} == {2, 3}


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


# -- role manager ----------------------------------------------------------------------------------
#
# What a copy does: only what was committed, only what is current, and never when damaged.


@runs(play)
async def test_it_leads_when_it_was_elected_in_this_very_run_on_this_very_disk(s: Scene) -> None:
    a = Acting(s, state_of(1, 2, epoch=4))
    host = a.poll()
    assert host.leadership is not None
    assert host.leader_epoch == 4
    assert a.noted == [(1, 4)]
    a.poll()
    assert a.noted == [(1, 4)], "nothing has changed"


@pytest.mark.parametrize(
    "state",
    [
        state_of(1, 2, boot=0),
        replace(state_of(1, 2), isr={1: "old-disk", 2: DISKS[2]}),
        state_of(2, 1),
    ],
)
@runs(play)
async def test_it_does_not_lead_what_an_earlier_run_or_another_was_elected_for(
    s: Scene, *, state: PartitionState
) -> None:
    host = Acting(s, state).poll()
    assert host.leadership is None


@runs(play)
async def test_in_a_new_epoch_it_leads_anew(s: Scene) -> None:
    a = Acting(s, state_of(1, 2, epoch=4))
    first = a.poll().leadership
    second = a.poll(leader_epoch=5).leadership
    assert second is not None
    assert second is not first
    assert a.noted == [(1, 4), (1, 5)]


@runs(play)
async def test_a_newer_state_of_the_same_epoch_is_taken_over(s: Scene) -> None:
    a = Acting(s, state_of(1, 2, epoch=4))
    leadership = a.poll().leadership
    a.poll(isr={1: DISKS[1]})
    assert a.host.leadership is leadership
    assert leadership is not None
    assert set(leadership.state.isr) == {1}


@runs(play)
async def test_who_waits_for_a_commit_hears_of_it_when_the_role_ends(s: Scene) -> None:
    a = Acting(s, state_of(1, 2))
    host = a.poll()
    noted: list[RaftlogError | None] = []
    host.when_committed(append(host, b"a"), noted.append)
    a.poll(leader=2, leader_epoch=2)
    assert [type(error) for error in noted] == [CommitUnknownError]
    assert (host.leader, host.leader_epoch) == (2, 2)


@runs(play)
async def test_it_follows_the_leader_of_the_epoch_and_waits_for_one(s: Scene) -> None:
    a = Acting(s, state_of(2, 1, epoch=4))
    host = a.poll()
    assert host.follows(2, 4)
    a.poll()
    a.poll(leader=None, leader_epoch=5)
    assert (host.leader, host.leader_epoch) == (None, 5)
    assert a.noted == [(2, 4), (None, 5)]


@runs(play)
async def test_an_older_state_changes_nothing(s: Scene) -> None:
    """A group's log that is replayed, or one that was recovered from less."""
    a = Acting(s, state_of(2, 1, epoch=4))
    host = a.poll()
    a.poll(leader=3, leader_epoch=3)
    assert host.follows(2, 4)
    assert a.noted == [(2, 4)]


@runs(play)
async def test_nobody_is_followed_before_it_is_known_what_the_last_run_acted_on(s: Scene) -> None:
    """Else it would acknowledge to an old leader, or cut for it, what a newer one committed."""
    a = Acting(s, state_of(2, 1, epoch=4), current=False)
    host = a.poll()
    assert (host.leader, host.leader_epoch, a.noted) == (None, -1, [])
    a.poll()
    (question,) = s.plane.proposals
    assert question.command == NO_OP
    # By the time that is applied, so is what was committed before.
    a.hosted.machine.apply(Elect(1, 1, DISKS[1], 9).encode())
    a.hosted.machine.apply(Elect(2, 2, DISKS[2], 1).encode())
    version = a.hosted.state.version
    s.plane.agree()
    assert a.hosted.state.version == version, "it changes nothing"
    assert a.soon == [a.hosted]
    a.poll()
    assert host.follows(2, 6)


@pytest.mark.parametrize("outcome", ["refuse", "lose"])
@runs(play)
async def test_that_is_asked_again_but_not_at_once(s: Scene, *, outcome: str) -> None:
    a = Acting(s, state_of(2, 1), current=False)
    a.poll()
    getattr(s.plane, outcome)()
    assert a.soon == []
    assert s.plane.proposals == []
    a.poll()
    assert len(s.plane.proposals) == 1
    assert a.host.leader is None


@runs(play)
async def test_an_election_of_this_run_says_the_same(s: Scene) -> None:
    a = Acting(s, state_of(1, 2), current=False)
    a.poll()
    assert a.host.leadership is not None
    assert s.plane.proposals == []
    a.poll(leader=2, leader_epoch=2)
    assert a.host.follows(2, 2)


@runs(play)
async def test_a_witness_that_became_a_replica_gets_a_copy(s: Scene) -> None:
    a = Acting(s, state_of(2, 1), stores=False)
    a.poll()
    assert a.copies == [a.hosted]


@runs(play)
async def test_a_witness_has_none(s: Scene) -> None:
    a = Acting(s, state_of(2, 3, witnesses=[1]), stores=False)
    a.poll()
    assert a.copies == []


@runs(play)
async def test_an_old_state_makes_no_copy(s: Scene) -> None:
    a = Acting(s, state_of(2, 1), stores=False, current=False)
    a.poll()
    assert a.copies == []


@runs(play)
async def test_a_copy_goes_when_the_cluster_too_knows_that_it_is_no_replicas(s: Scene) -> None:
    s.machine.restore(founding_state("c"))
    s.register(1, 2, 3)
    s.command(CreateTopic(name="t", topic_id=TOPIC_ID, partitions=1, replication_factor=3))
    a = Acting(s, state_of(2, 3, witnesses=[1], version=7))
    host = a.poll()
    assert host.leader is None, "it copies no more"
    assert a.copies == [], "a restart now would find it named as a replica"
    s.command(
        SetReplicas(topic_id=TOPIC_ID, partition=0, replicas=(2, 3), witnesses=(1,), version=7)
    )
    a.poll()
    assert a.copies == [a.hosted]


@runs(play)
async def test_a_copy_of_a_former_voter_goes_after_the_seal(s: Scene) -> None:
    """The new generation must be agreed on before a copy that the old one may need is deleted."""
    s.machine.restore(founding_state("c"))
    s.register(1, 2, 3)
    s.command(CreateTopic(name="t", topic_id=TOPIC_ID, partitions=1, replication_factor=3))
    a = Acting(s, state_of(2, 3, version=7))
    s.plane.statuses[a.hosted.raft_id] = status(voters=DISKS)
    s.command(SetReplicas(topic_id=TOPIC_ID, partition=0, replicas=(2, 3), witnesses=(), version=7))
    a.poll()
    assert a.copies == []
    s.plane.statuses[a.hosted.raft_id] = status(voters={2: DISKS[2], 3: DISKS[3]})
    a.poll()
    assert a.copies == [a.hosted]


@runs(play)
async def test_a_former_voter_that_was_down_deletes_its_copy_without_a_vote(s: Scene) -> None:
    s.machine.restore(founding_state("c"))
    s.register(1, 2, 3)
    s.command(CreateTopic(name="t", topic_id=TOPIC_ID, partitions=1, replication_factor=3))
    s.command(SetReplicas(topic_id=TOPIC_ID, partition=0, replicas=(2, 3), witnesses=(), version=7))
    a = Acting(s, state_of(2, 3, version=7), current=False)
    s.plane.statuses[a.hosted.raft_id] = status(voters={2: DISKS[2], 3: DISKS[3]})
    a.roles.poll(a.hosted)
    assert a.copies == [a.hosted]
    assert s.plane.proposals == []


@runs(play)
async def test_without_a_vote_the_clusters_newer_state_counts(s: Scene) -> None:
    """Its disk was wiped, and it knows the first generation only."""
    s.machine.restore(founding_state("c"))
    s.register(1, 2, 3)
    s.command(CreateTopic(name="t", topic_id=TOPIC_ID, partitions=1, replication_factor=3))
    a = Acting(s, state_of(1, 2, 3, version=0, leader=2))
    s.plane.statuses[a.hosted.raft_id] = status(voters={**DISKS, 1: "the former disk"})
    a.poll()
    assert a.copies == [], "a replica that is to be readmitted"
    s.command(SetReplicas(topic_id=TOPIC_ID, partition=0, replicas=(2, 3), witnesses=(), version=7))
    s.plane.statuses[a.hosted.raft_id] = status(voters=DISKS)
    a.poll()
    assert a.copies == [], "a voter receives the command itself"
    s.plane.statuses[a.hosted.raft_id] = status(voters={**DISKS, 1: "the former disk"})
    a.poll()
    assert a.copies == [a.hosted]


@runs(play)
async def test_a_voter_with_an_outdated_state_keeps_its_copy(s: Scene) -> None:
    """It has not applied yet that it is a replica again."""
    s.machine.restore(founding_state("c"))
    s.register(1, 2, 3)
    s.command(CreateTopic(name="t", topic_id=TOPIC_ID, partitions=1, replication_factor=3))
    s.command(
        SetReplicas(topic_id=TOPIC_ID, partition=0, replicas=(2, 3), witnesses=(1,), version=7)
    )
    a = Acting(s, state_of(2, 3, witnesses=[1], version=7), current=False)
    s.plane.statuses[a.hosted.raft_id] = status(voters=DISKS)
    a.roles.poll(a.hosted)
    assert a.copies == []


@runs(play)
async def test_a_damaged_copy_neither_leads_nor_copies(s: Scene) -> None:
    a = Acting(s, state_of(1, 2, epoch=4))
    host = a.poll()
    host.log.note_damage("bad", offset=0)
    a.poll()
    assert host.leadership is None
    assert host.leader is None
    assert s.plane.commands() == [Elect(1, 2, DISKS[2], 1)]
    s.plane.agree()
    assert a.soon == [a.hosted]
    a.poll()
    assert not host.follows(2, 5), "nothing more is said of this log"


@runs(play)
async def test_a_copy_in_doubt_leads_only_if_it_was_elected_as_the_best_that_is_left(
    s: Scene,
) -> None:
    a = Acting(s, state_of(1, 2, leader=2, epoch=4))
    a.host.log.doubt = "it did not stop cleanly"
    host = a.poll(leader=1, leader_epoch=5)
    assert (host.leadership, a.copies) == (None, [])
    assert s.plane.commands() == [Elect(2, 2, DISKS[2], 1)]
    a.poll(leader_epoch=6, unclean_epoch=6)
    assert (host.leadership, a.copies) == (None, [a.hosted])
    host.log.doubt = ""
    assert a.poll().leadership is not None


@runs(play)
async def test_a_damaged_copy_does_not_lead_though_it_was_elected_uncleanly(s: Scene) -> None:
    a = Acting(s, state_of(1, 2, epoch=4))
    a.host.log.note_damage("bad", offset=0)
    assert a.poll(leader_epoch=5, unclean_epoch=5).leadership is None
    assert a.copies == []
    a.host.log.is_torn = True
    a.poll()
    assert a.copies == [a.hosted]


@runs(play)
async def test_a_leader_whose_damage_was_found_is_looked_at_soon_and_decides_nothing(
    s: Scene,
) -> None:
    a = leading(s)
    s.fenced.add(3)
    a.host.log.note_damage("bad", offset=0)
    del a.soon[:]
    a.roles.review(a.hosted)
    assert a.soon == [a.hosted]
    assert s.plane.commands() == [], "nobody leaves the ISR by the word of a damaged copy"


@runs(play)
async def test_a_damaged_follower_leaves_before_its_copy_is_set_aside(s: Scene) -> None:
    a = Acting(s, state_of(2, 1, 3, epoch=4, min_isr=2))
    host = a.poll()
    assert host.follows(2, 4)
    host.log.note_damage("bad", offset=0)
    a.poll()
    a.poll()
    (lost,) = s.plane.commands()
    assert isinstance(lost, ChangeIsr)
    assert lost.lost == (1,)
    assert a.copies == []
    s.plane.agree()
    assert a.hosted.stage is Stage.CURRENT
    a.poll()
    assert a.copies == [a.hosted]
    assert set(a.hosted.state.isr) == {2, 3}


@pytest.mark.parametrize("outcome", ["refuse", "lose"])
@runs(play)
async def test_leaving_is_tried_again_but_not_at_once(s: Scene, *, outcome: str) -> None:
    a = Acting(s, state_of(2, 1))
    a.host.log.note_damage("bad", offset=0)
    a.poll()
    getattr(s.plane, outcome)()
    assert a.soon == []
    assert s.plane.proposals == []
    a.poll()
    assert len(s.plane.proposals) == 1


@runs(play)
async def test_leaving_that_came_too_late_is_tried_again_for_the_newer_state(s: Scene) -> None:
    a = Acting(s, state_of(2, 1))
    a.host.log.note_damage("bad", offset=0)
    a.poll()
    a.hosted.machine.apply(Elect(1, 2, DISKS[2], 1).encode())
    s.plane.agree()
    assert a.hosted.fenced_in is None
    a.poll()
    (lost,) = s.plane.commands()
    assert lost.version == 2
    assert a.copies == []


@runs(play)
async def test_the_only_copy_stays_where_it_is(s: Scene) -> None:
    a = Acting(s, state_of(1, 2, isr=[1]))
    a.host.log.note_damage("bad", offset=0)
    a.poll()
    assert s.plane.proposals == []
    assert a.copies == []
    assert a.host.leadership is None


@runs(play)
async def test_a_mistake_with_one_partition_does_not_reach_others(
    s: Scene, *, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    a = Acting(s, state_of(1, 2))

    def broken(*_args: Any, **_kwargs: Any) -> None:
        raise ZeroDivisionError

    with monkeypatch.context() as patch:
        patch.setattr(Partition, "lead", broken)
        a.poll()
    assert "role change failed, retrying: partition=t:0" in caplog.text
    a.poll()
    assert a.host.leadership is not None, "the next look finds it"


@runs(play)
async def test_a_closed_host_has_no_role_any_more(s: Scene) -> None:
    a = Acting(s, state_of(1, 2))
    a.host.close(RaftlogError("gone"))
    a.poll()
    assert a.noted == []


# -- the in-sync replicas


@runs(play)
async def test_a_member_that_is_gone_leaves(s: Scene) -> None:
    a = leading(s)
    a.roles.review(a.hosted)
    assert s.plane.proposals == []
    s.fenced.add(3)
    a.roles.review(a.hosted)
    a.roles.review(a.hosted)
    (change,) = s.plane.commands()
    assert isinstance(change, ChangeIsr)
    assert set(change.isr) == {1, 2}
    s.plane.agree()
    a.poll()
    a.roles.review(a.hosted)
    assert s.plane.proposals == []


@runs(play)
async def test_a_follower_that_began_a_new_run_joins_by_what_it_has_said_since(s: Scene) -> None:
    """Its files may have vanished before it was started again."""
    a = leading(s, isr=(1, 2))

    def fetch(broker: int, boot: int) -> None:
        assert a.host.leadership is not None
        a.host.leadership.on_fetch(
            broker,
            DISKS[broker],
            boot=boot,
            fetch_offset=0,
            durable_offset=0,
            now=s.loop.time(),
        )

    fetch(3, boot=1)
    s.see(3, boot=2)
    a.roles.review(a.hosted)
    assert s.plane.proposals == []
    fetch(3, boot=2)
    a.roles.review(a.hosted)
    assert [set(change.isr) for change in s.plane.commands()] == [{1, 2, 3}]  # type: ignore[union-attr]


@pytest.mark.parametrize(
    ("leader", "silent", "down", "proposes"),
    [
        (2, {2}, (), False),  # what it says may go out, and be decided without its hearing of it
        (2, {3}, (), True),
        (1, {2}, (), True),
        (1, {2, 3}, (), False),  # what it appends may go out, and be committed by the next leader
        (1, {2}, (3,), False),
        (None, {2, 3}, (), True),  # it waits until a leader is heard of
        (2, {3}, (2,), True),  # the same
    ],
)
@runs(play)
async def test_nobody_leaves_by_the_word_of_a_leader_to_which_nothing_comes(
    s: Scene, *, leader: int | None, silent: set[int], down: tuple[int, ...], proposes: bool
) -> None:
    """Links fail one by one when a broker has become deaf; the others hear it still."""
    a = leading(s)
    voters = {b: DISKS[b] for b in (1, 2, 3)}
    s.plane.statuses[a.hosted.raft_id] = status(leader=leader, voters=voters)
    s.fenced.add(3)
    s.links.silent = silent
    s.lose(*down)
    a.roles.review(a.hosted)
    assert (s.plane.proposals != []) == proposes
    s.links.silent = set()
    a.roles.review(a.hosted)
    assert [set(change.isr) for change in s.plane.commands()] == [{1, 2}]  # type: ignore[union-attr]


@runs(play)
async def test_appends_continue_while_the_group_elects_a_leader(s: Scene) -> None:
    """A broker that stops right after a topic was created is removed once the group has a leader.
    It copies until then.
    """
    a = leading(s)
    voters = {b: DISKS[b] for b in (1, 2, 3)}
    s.plane.statuses[a.hosted.raft_id] = status(leader=None, voters=voters)
    s.fenced.add(3)
    a.roles.review(a.hosted)
    assert append(a.host, b"a") == 1
    s.links.silent = {3}
    a.roles.review(a.hosted)
    assert append(a.host, b"b") == 2
    s.links.silent = {2, 3}
    a.roles.review(a.hosted)
    with pytest.raises(NotEnoughReplicasError, match="no majority of the voters"):
        append(a.host, b"c")


@runs(play)
async def test_a_change_whose_outcome_is_not_known_is_proposed_as_it_was(s: Scene) -> None:
    a = leading(s)
    s.fenced.add(3)
    a.roles.review(a.hosted)
    first = s.plane.proposals[0].command
    s.plane.lose()
    s.fenced.clear()
    a.roles.review(a.hosted)
    assert s.plane.proposals[0].command == first


@runs(play)
async def test_a_change_that_was_not_proposed_is_made_anew(s: Scene) -> None:
    a = leading(s)
    s.fenced.add(3)
    a.roles.review(a.hosted)
    s.plane.refuse()
    s.fenced = {2}
    a.roles.review(a.hosted)
    (change,) = s.plane.commands()
    assert set(change.isr) == {1, 3}  # type: ignore[union-attr]


@runs(play)
async def test_an_outcome_that_comes_after_the_role_has_ended_harms_nobody(s: Scene) -> None:
    a = leading(s)
    s.fenced.add(3)
    a.roles.review(a.hosted)
    a.poll(leader=2, leader_epoch=2)
    s.plane.agree()
    a.roles.review(a.hosted)
    assert s.plane.proposals == []


@runs(play)
async def test_who_does_not_lead_reviews_nothing(s: Scene) -> None:
    a = Acting(s, state_of(2, 1, 3))
    a.poll()
    s.fenced.add(3)
    a.roles.review(a.hosted)
    assert s.plane.proposals == []
