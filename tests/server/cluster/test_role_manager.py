"""What a copy does: only what was committed, only what is current, and never when damaged."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from raftlog.errors import CommitUnknownError, NotEnoughReplicasError, RaftlogError
from raftlog.replication.cluster_commands import CreateTopic, SetReplicas, founding_state
from raftlog.replication.partition_state import ChangeIsr, Elect, PartitionState
from raftlog.server.cluster.elections import Stage
from raftlog.server.cluster.replicas import NO_OP
from raftlog.server.partition import Partition
from tests.running import runs
from tests.server.cluster.acting import Acting, leading
from tests.server.cluster.paper import (
    DISKS,
    TOPIC_ID,
    Scene,
    append,
    play,
    state_of,
    status,
)


@runs(play)
async def test_it_leads_when_it_was_elected_in_this_very_run_on_this_very_disk(s: Scene) -> None:
    a = Acting(s, state_of(1, 2, epoch=4))
    host = a.poll()
    assert host.leadership is not None
    assert host.leader_epoch == 4
    assert a.told == [(1, 4)]
    a.poll()
    assert a.told == [(1, 4)], "nothing has changed"


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
    assert a.told == [(1, 4), (1, 5)]


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
    told: list[RaftlogError | None] = []
    host.when_committed(append(host, b"a"), told.append)
    a.poll(leader=2, leader_epoch=2)
    assert [type(error) for error in told] == [CommitUnknownError]
    assert (host.leader, host.leader_epoch) == (2, 2)


@runs(play)
async def test_it_follows_the_leader_of_the_epoch_and_waits_for_one(s: Scene) -> None:
    a = Acting(s, state_of(2, 1, epoch=4))
    host = a.poll()
    assert host.follows(2, 4)
    a.poll()
    a.poll(leader=None, leader_epoch=5)
    assert (host.leader, host.leader_epoch) == (None, 5)
    assert a.told == [(2, 4), (None, 5)]


@runs(play)
async def test_an_older_state_changes_nothing(s: Scene) -> None:
    """A group's log that is replayed, or one that was recovered from less."""
    a = Acting(s, state_of(2, 1, epoch=4))
    host = a.poll()
    a.poll(leader=3, leader_epoch=3)
    assert host.follows(2, 4)
    assert a.told == [(2, 4)]


@runs(play)
async def test_nobody_is_followed_before_it_is_known_what_the_last_run_acted_on(s: Scene) -> None:
    """Else it would acknowledge to an old leader, or cut for it, what a newer one committed."""
    a = Acting(s, state_of(2, 1, epoch=4), current=False)
    host = a.poll()
    assert (host.leader, host.leader_epoch, a.told) == (None, -1, [])
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
    s.plane.statuses[a.hosted.group_id] = status(voters=DISKS)
    s.command(SetReplicas(topic_id=TOPIC_ID, partition=0, replicas=(2, 3), witnesses=(), version=7))
    a.poll()
    assert a.copies == []
    s.plane.statuses[a.hosted.group_id] = status(voters={2: DISKS[2], 3: DISKS[3]})
    a.poll()
    assert a.copies == [a.hosted]


@runs(play)
async def test_a_former_voter_that_was_down_deletes_its_copy_without_a_vote(s: Scene) -> None:
    s.machine.restore(founding_state("c"))
    s.register(1, 2, 3)
    s.command(CreateTopic(name="t", topic_id=TOPIC_ID, partitions=1, replication_factor=3))
    s.command(SetReplicas(topic_id=TOPIC_ID, partition=0, replicas=(2, 3), witnesses=(), version=7))
    a = Acting(s, state_of(2, 3, version=7), current=False)
    s.plane.statuses[a.hosted.group_id] = status(voters={2: DISKS[2], 3: DISKS[3]})
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
    s.plane.statuses[a.hosted.group_id] = status(voters={**DISKS, 1: "the former disk"})
    a.poll()
    assert a.copies == [], "a replica that is to be readmitted"
    s.command(SetReplicas(topic_id=TOPIC_ID, partition=0, replicas=(2, 3), witnesses=(), version=7))
    s.plane.statuses[a.hosted.group_id] = status(voters=DISKS)
    a.poll()
    assert a.copies == [], "a voter receives the command itself"
    s.plane.statuses[a.hosted.group_id] = status(voters={**DISKS, 1: "the former disk"})
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
    s.plane.statuses[a.hosted.group_id] = status(voters=DISKS)
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
    assert a.told == []


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
    s.plane.statuses[a.hosted.group_id] = status(leader=leader, voters=voters)
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
    s.plane.statuses[a.hosted.group_id] = status(leader=None, voters=voters)
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
