"""What a broker with a full disk proposes, and that many of them do not pass it round all day."""

from __future__ import annotations

import asyncio
import errno
from contextlib import suppress
from typing import Any

import pytest

from raftlog.errors import DiskFullError, DiskHungError, NotEnoughReplicasError
from raftlog.replication.cluster_commands import (
    CreateTopic,
    Move,
    Reassign,
    SetReplicas,
    founding_state,
)
from raftlog.replication.partition_state import (
    Accepted,
    ChangeIsr,
    ChangeReplicas,
    Elect,
    PartitionState,
    apply,
)
from raftlog.server.cluster.elections import HostedPartition, Stage
from raftlog.server.cluster.membership import Incarnation, Liveness
from raftlog.server.cluster.replicas import RoleManager, next_step_down, successor
from raftlog.server.partition import FULL_SECONDS, Partition
from raftlog.testing.disk import FOREVER, Fault
from tests.replication.samples import View
from tests.running import runs
from tests.server.cluster.acting import REPLACEMENT_S, Acting, PaperEffects, leading
from tests.server.cluster.paper import (
    DISKS,
    TOPIC_ID,
    PaperSurveys,
    Scene,
    append,
    play,
    state_of,
    write,
)


def step(
    state: PartitionState,
    *,
    me: int = 1,
    live: set[int] = frozenset(DISKS),  # type: ignore[assignment]
    disks: dict[int, str] = DISKS,
) -> Elect | ChangeIsr | None:
    return next_step_down(
        state,
        me,
        View(lambda broker: broker in live, disks.get, lambda broker: 10 + broker),
    )


def test_a_leader_hands_over_to_the_next_that_is_in_sync_and_there() -> None:
    state = state_of(1, 2, 3)
    assert step(state) == Elect(1, 2, "disk-2", 12)
    assert step(state, live={1, 3}) == Elect(1, 3, "disk-3", 13)
    assert step(state, disks={**DISKS, 2: "new"}) == Elect(1, 3, "disk-3", 13)
    assert step(state_of(1, 2, 3, isr=[1, 3])) == Elect(1, 3, "disk-3", 13)
    assert isinstance(apply(state, Elect(1, 2, "disk-2", 12)), Accepted)


def test_in_a_ring_everybody_gets_a_turn() -> None:
    state, led = state_of(1, 2, 3), []
    for _ in range(4):
        assert state.leader is not None
        led.append(state.leader)
        elect = step(state, me=state.leader)
        assert elect is not None
        accepted = apply(state, elect)
        assert isinstance(accepted, Accepted)
        state = accepted.state
    assert led == [1, 2, 3, 1]


def test_a_leader_that_nobody_in_sync_can_replace_stays() -> None:
    assert step(state_of(1, 2, isr=[1])) is None
    assert step(state_of(1, 2), live={1}) is None
    assert step(state_of(1, 2, isr=[1], elr=[2], min_isr=2)) is None


def test_a_leader_hands_over_also_where_too_few_are_left() -> None:
    """Whether they can commit is the next one's to find out: here nobody can."""
    assert step(state_of(1, 2, min_isr=2)) == Elect(1, 2, "disk-2", 12)


def test_a_follower_leaves_and_nothing_is_lost() -> None:
    state = state_of(2, 1, 3, min_isr=2, version=4, epoch=6)
    left = step(state)
    assert left == ChangeIsr(4, 6, {2: "disk-2", 3: "disk-3"}, 2)
    accepted = apply(state, left)
    assert isinstance(accepted, Accepted)
    assert accepted.state.leader_epoch == 6, "its copy is as good as it was"
    assert step(accepted.state) is None


def test_a_follower_without_which_nothing_is_committed_stays() -> None:
    assert step(state_of(2, 1, min_isr=2)) is None


def test_who_is_no_replica_and_who_has_no_leader_waits() -> None:
    assert step(state_of(2, 3, witnesses=[1])) is None
    assert step(state_of(2, 1, 3, leader=2, isr=[2, 3])) is None


def its_successor(
    state: PartitionState, *, live: frozenset[int] = frozenset(DISKS)
) -> ChangeReplicas | None:
    """Of broker 1, with a replication factor of 3."""
    change = successor(state, 1, replication_factor=3, is_live=lambda broker: broker in live)
    assert change is None or isinstance(apply(state, change), Accepted)
    return change


def test_a_witness_takes_the_place_of_one_without_which_too_few_are_in_sync() -> None:
    state = state_of(2, 1, 3, witnesses=[4, 5], isr=[2], elr=[3], min_isr=2)
    assert its_successor(state) == ChangeReplicas(1, (2, 4, 3), (1, 5))
    assert its_successor(state, live=frozenset({1, 2, 3, 5})) == ChangeReplicas(
        1, (2, 5, 3), (4, 1)
    )
    assert its_successor(state, live=frozenset({1, 2, 3})) is None
    assert its_successor(state, live=frozenset({1, 3, 4})) is None, "nobody could be copied from"


def test_one_that_is_eligible_stays_and_a_witness_copies_beside_it() -> None:
    state = state_of(2, 1, 3, witnesses=[4, 5], isr=[2], elr=[1], min_isr=2)
    assert its_successor(state) == ChangeReplicas(1, (2, 1, 3, 4), (5,))


def test_nobody_takes_the_place_of_one_that_is_in_sync_or_not_needed() -> None:
    assert its_successor(state_of(2, 1, 3, witnesses=[4, 5], isr=[2, 1], min_isr=3)) is None
    assert its_successor(state_of(2, 1, 3, witnesses=[4, 5], isr=[2, 3], min_isr=2)) is None


# -- one full disk


FULL = {"create", "write"}


def refuse_room(a: Acting) -> Fault:
    """The disk is full from now on; something was to be appended to what this broker leads."""
    full = Fault(FULL, errno.ENOSPC, times=FOREVER)
    a.s.disk.faults.append(full)
    with pytest.raises(DiskFullError):
        append(a.host, b"a")
    return full


async def wait_and_look(a: Acting, seconds: float = FULL_SECONDS) -> list[Any]:
    """What is proposed then."""
    await asyncio.sleep(seconds)
    a.poll()
    return a.s.plane.commands()


@runs(play)
async def test_a_leader_without_room_hands_over_in_a_while(s: Scene) -> None:
    s.register(1, 2, 3)
    a = leading(s)
    refuse_room(a)
    assert await wait_and_look(a, 0.9 * FULL_SECONDS) == []
    assert await wait_and_look(a) == [Elect(1, 2, DISKS[2], 1)]
    assert await wait_and_look(a) == [Elect(1, 2, DISKS[2], 1)], "one at a time"
    assert a.host.leadership is not None, "it is read from until the other one leads"
    s.plane.agree()
    a.poll()
    assert a.host.follows(2, 2)
    assert await wait_and_look(a) == [], "it is in sync, and nothing new has come"


@runs(play)
async def test_a_leader_that_finds_room_again_stays(s: Scene) -> None:
    s.register(1, 2, 3)
    a = leading(s)
    full = refuse_room(a)
    s.disk.faults.remove(full)
    await asyncio.sleep(0.9 * FULL_SECONDS)
    append(a.host, b"b")
    assert await wait_and_look(a) == []


@runs(play)
async def test_a_leader_without_room_stays_while_nobody_else_could_lead(s: Scene) -> None:
    s.register(1, 2, 3)
    a = leading(s, isr=[1, 2])
    s.lose(2)
    refuse_room(a)
    found = await wait_and_look(a)
    assert not any(isinstance(command, Elect) for command in found)
    s.see(2)
    found = await wait_and_look(a)
    assert any(isinstance(command, Elect) for command in found)


@pytest.mark.parametrize("outcome", ["refuse", "lose"])
@runs(play)
async def test_handing_over_is_tried_again(s: Scene, *, outcome: str) -> None:
    s.register(1, 2, 3)
    a = leading(s)
    refuse_room(a)
    assert len(await wait_and_look(a)) == 1
    getattr(s.plane, outcome)()
    assert await wait_and_look(a, 0.1) == [Elect(1, 2, DISKS[2], 1)]


@runs(play)
async def test_a_follower_without_room_leaves_before_it_lags_for_long(s: Scene) -> None:
    s.register(1, 2, 3)
    a = Acting(s, state_of(2, 1, 3, min_isr=2))
    host = a.poll()
    source = s.log()
    write(source, b"a")
    (copied,) = source.read(start_offset=0, end_offset=1, bytes_max=1_000)
    full = Fault(FULL, errno.ENOSPC, times=FOREVER)
    s.disk.faults.append(full)
    for _ in range(2):
        with pytest.raises(DiskFullError):
            host.append_copied(copied)
        found = await wait_and_look(a, 0.6 * FULL_SECONDS)
    (left,) = found
    assert isinstance(left, ChangeIsr)
    assert (set(left.isr), left.lost) == ({2, 3}, ())
    s.plane.agree()
    assert host.follows(2, 1), "it goes on copying"
    s.disk.faults.remove(full)
    host.append_copied(copied)
    assert not host.hindrance.is_short
    assert await wait_and_look(a) == []


@runs(play)
async def test_a_follower_without_room_for_long_has_a_witness_take_its_place(s: Scene) -> None:
    """Two of three disks are full, and the third broker can commit nothing alone."""
    s.register(1, 2, 3, 4)
    s.see(4)
    a = Acting(s, state_of(2, 1, 3, witnesses=[4, 5], isr=[2], elr=[3], min_isr=2))
    host = a.poll()
    source = s.log()
    write(source, b"a")
    (copied,) = source.read(start_offset=0, end_offset=1, bytes_max=1_000)
    s.disk.faults.append(Fault(FULL, errno.ENOSPC, times=FOREVER))
    with pytest.raises(DiskFullError):
        host.append_copied(copied)
    assert await wait_and_look(a, 0.9 * REPLACEMENT_S) == []
    s.machine.restore(founding_state("c"))
    s.register(1, 2, 3, 4)
    s.command(CreateTopic(name="t", topic_id=TOPIC_ID, partitions=1, replication_factor=3))
    held = s.machine.topics["t"].partitions[0].replicas
    s.command(Reassign(topic_id=TOPIC_ID, moves=(Move(0, held[::-1], 0),)))
    assert await wait_and_look(a, 0.2 * REPLACEMENT_S) == [], "an operator moves the replicas"
    s.command(Reassign(topic_id=TOPIC_ID, moves=(Move(0, held, 0, held[::-1]),)))
    s.command(SetReplicas(topic_id=TOPIC_ID, partition=0, replicas=held, witnesses=(), version=1))
    assert await wait_and_look(a, 1) == [ChangeReplicas(1, (2, 4, 3), (1, 5))]


# -- disks that hang


@runs(play)
async def test_a_leader_whose_disk_hangs_hands_over_at_once(s: Scene) -> None:
    s.register(1, 2, 3)
    a = leading(s)
    s.services.disk.is_hung = True
    a.poll()
    assert s.plane.commands() == [Elect(1, 2, DISKS[2], 1)], "it has lasted long enough"
    s.plane.agree()
    a.poll()
    assert a.host.follows(2, 2)
    assert await wait_and_look(a, 100) == [], "it lacks nothing, and may stay in sync"


@runs(play)
async def test_a_leader_whose_disk_trails_the_others_hands_over(s: Scene) -> None:
    s.register(1, 2, 3)
    a = leading(s)
    s.workers.hold()
    append(a.host, b"a")
    timeout_s = s.services.disk.timeout_s
    for broker in (2, 3):
        a.host.on_follower(broker, DISKS[broker], fetch_offset=1, durable_offset=1)
    a.poll()
    assert await wait_and_look(a, 0.9 * timeout_s) == []
    assert await wait_and_look(a, 0.2 * timeout_s) == [Elect(1, 2, DISKS[2], 1)]
    s.workers.release()


@runs(play)
async def test_a_follower_whose_disk_hangs_leaves_once_it_lacks_something(s: Scene) -> None:
    s.register(1, 2, 3)
    a = Acting(s, state_of(2, 1, 3, min_isr=2))
    host = a.poll()
    source = s.log()
    write(source, b"a")
    s.services.disk.is_hung = True
    assert await wait_and_look(a, 100) == [], "it has everything"
    s.workers.hold()
    host.append_copied(*source.read(start_offset=0, end_offset=1, bytes_max=1_000))
    a.poll()
    (left,) = s.plane.commands()
    assert isinstance(left, ChangeIsr)
    assert set(left.isr) == {2, 3}
    s.workers.release()


@runs(play)
async def test_a_follower_on_another_disk_appends_nothing_while_that_hangs(s: Scene) -> None:
    """A new segment, or the first one, would hold up the event loop."""
    s.register(1, 2, 3)
    host = Acting(s, state_of(2, 1, 3, min_isr=2)).poll()
    host.log.log_dir.id = "2"
    source = s.log()
    write(source, b"a")
    batches = source.read(start_offset=0, end_offset=1, bytes_max=1_000)
    s.services.disk.is_hung = True
    with pytest.raises(DiskHungError):
        host.append_copied(*batches)
    assert (host.log.log_end_offset, host.hindrance.is_short) == (0, True)
    s.services.disk.is_hung = False
    host.append_copied(*batches)
    assert host.log.log_end_offset == 1


@runs(play)
async def test_giving_way_for_a_disk_that_hangs_in_vain_is_ever_rarer(s: Scene) -> None:
    s.register(1, 2, 3)
    a = leading(s)
    s.services.disk.is_hung = True
    a.poll()
    s.plane.agree()
    a.poll()
    a.poll(leader=1, leader_epoch=3, leader_boot=1)
    assert a.host.leadership is not None
    proposed = len(s.plane.commands())
    assert len(await wait_and_look(a, 0.9 * FULL_SECONDS)) == proposed, "others hang as well"
    assert len(await wait_and_look(a, 4 * FULL_SECONDS)) == proposed + 1


# -- all disks at once


class Ring:
    """Three brokers with the same group's state, a log each, and one disk that has no room."""

    def __init__(self, s: Scene) -> None:
        s.register(1, 2, 3)
        self.s = s
        shared = s.hosted(state_of(1, 2, 3, min_isr=2))
        self.machine = shared.machine
        self.partitions: dict[int, HostedPartition] = {}
        self.roles: dict[int, RoleManager] = {}
        for broker in (1, 2, 3):
            liveness = Liveness(
                broker,
                Incarnation(DISKS[broker], 1),
                now=s.loop.time,
                is_fenced=lambda _: False,
                is_heard=lambda _: True,
            )
            for other in {1, 2, 3} - {broker}:
                liveness.link_up(other, Incarnation(DISKS[other], 1))
            self.partitions[broker] = HostedPartition(
                "t", shared.topic_id, 0, 3, self.machine, host=s.host(), stage=Stage.CURRENT
            )
            self.roles[broker] = RoleManager(
                broker,
                Incarnation(DISKS[broker], 1),
                lag_max_seconds=10,
                replacement_delay_seconds=REPLACEMENT_S,
                machine=s.machine,
                plane=s.plane.as_plane,
                liveness=liveness,
                services=s.services,
                surveys=PaperSurveys(s),
                effects=PaperEffects(),
            )

    def _fetch(self, host: Partition) -> None:
        """The followers have all that the leader has."""
        end = host.log.log_end_offset
        for other in {1, 2, 3} - {host.leader}:
            assert other is not None
            host.on_follower(other, DISKS[other], fetch_offset=end, durable_offset=end)

    async def run(self, seconds: float) -> list[float]:
        """When leadership moved. A producer tries all the time, and each broker looks."""
        moved = []
        end = self.s.loop.time() + seconds
        while self.s.loop.time() < end:
            epoch = self.machine.state.leader_epoch
            for broker, hosted in self.partitions.items():
                self.roles[broker].poll(hosted)
                host = hosted.host
                if host is not None and host.leadership is not None:
                    self._fetch(host)
                    with suppress(DiskFullError, NotEnoughReplicasError):
                        append(host, b"a")
            while self.s.plane.proposals:
                self.s.plane.agree()
            if self.machine.state.leader_epoch > epoch:
                moved.append(self.s.loop.time())
            await asyncio.sleep(0.1)
        return moved


@runs(play)
async def test_where_all_are_full_leadership_moves_ever_more_seldom(s: Scene) -> None:
    s.disk.faults.append(Fault({"create", "write"}, errno.ENOSPC, times=FOREVER))
    ring = Ring(s)
    moved = await ring.run(60)
    assert 6 <= len(moved) <= 9, "each has tried, more than once, and not all the time"
    rounds = [later - earlier for earlier, later in zip(moved, moved[3:], strict=False)]
    assert min(rounds) > 3.0
    assert 5 <= len(await ring.run(480)) <= 9, "once a minute or so"


@pytest.mark.parametrize("seconds", [30, 300])
@runs(play)
async def test_with_room_again_it_stays_where_it_is(s: Scene, *, seconds: float) -> None:
    full = Fault({"create", "write"}, errno.ENOSPC, times=FOREVER)
    s.disk.faults.append(full)
    ring = Ring(s)
    assert await ring.run(seconds)
    s.disk.faults.remove(full)
    assert await ring.run(120) == []
