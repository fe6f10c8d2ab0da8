"""One group: what moves when members come and go, and that nothing else does."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from raftlog import limits
from raftlog.consumer_groups import (
    AWAY_EPOCH,
    BUILT_IN,
    LEAVE_EPOCH,
    Committed,
    GroupSettings,
    HeartbeatResult,
    MemberSpec,
    Share,
    Spec,
    TopicInfo,
)
from raftlog.consumer_groups import values as ours
from raftlog.consumer_groups.group import Group, Member, OffsetTable, World, rows_of
from raftlog.consumer_groups.values import GroupKey, MemberKey, OffsetValue, Topics, decode_key
from raftlog.errors import (
    FencedMemberError,
    GroupNotEmptyError,
    InvalidGroupError,
    InvalidRequestError,
    OffsetMovedError,
    PartitionNotOwnedError,
    RaftlogError,
    StaleMemberEpochError,
    ThrottledError,
    UnknownAssignorError,
    UnknownMemberError,
    UnknownPartitionError,
    UnknownTopicError,
)
from raftlog.protocol import records
from raftlog.testing.kafka_wire import assignment
from raftlog.types import TopicPartition
from tests.consumer_groups.scene import GROUP, ClassicScene, Scene, groups_of, share


def held(scene: Scene) -> dict[str, set[int]]:
    return {member.member_id: scene.of(member.member_id) for member in scene.members}


@given(
    partitions=st.integers(1, 12),
    timeline=st.lists(st.tuples(st.booleans(), st.integers(0, 5)), min_size=1, max_size=12),
)
def test_nobody_gives_up_more_than_balance_needs(
    partitions: int, timeline: list[tuple[bool, int]]
) -> None:
    """Members come or go, one at a time; all is settled in between."""
    scene = Scene({"t": partitions})
    scene.join("m0")
    for number, (comes, place) in enumerate(timeline, start=1):
        before = held(scene)
        if comes or len(before) == 1:
            scene.join(f"m{number}", "t")
        else:
            scene.leave(sorted(before)[place % len(before)])
        scene.settle()
        after = held(scene)
        assert scene.state == "stable"
        assert sorted(n for mine in after.values() for n in mine) == list(range(partitions))
        each, more = divmod(partitions, len(after))
        assert all(each <= len(mine) <= each + bool(more) for mine in after.values())
        for name, mine in after.items():
            kept = before.get(name, set())
            # Either it keeps all that it had, or it had more than its fair share.
            assert kept <= mine or (mine < kept and len(mine) >= each)


def test_all_at_once_or_one_by_one_all_is_given_out() -> None:
    scene = Scene({"t": 64, "u": 10})
    for number in range(16):
        scene.join(f"m{number}", "t", "u")
    assert scene.state == "reconciling"
    scene.settle()
    assert scene.state == "stable"
    sizes = [len(scene.of(f"m{n}")) + len(scene.of(f"m{n}", "u")) for n in range(16)]
    assert sorted(set(sizes)) == [4, 5]
    assert sum(sizes) == 74


def test_one_that_gives_nothing_up_holds_up_nobody_else() -> None:
    """m1 is slow to give up 2; m3 gets 5 of m2 meanwhile."""
    scene = Scene({"t": 6})
    scene.join("m1")
    scene.join("m2")
    scene.settle()
    assert held(scene) == {"m1": {0, 1, 2}, "m2": {3, 4, 5}}
    scene.join("m3")
    scene.beat("m1", [share("t", 0, 1, 2)])
    scene.settle("m2", "m3")
    assert held(scene) == {"m1": {0, 1}, "m2": {3, 4}, "m3": {5}}
    scene.beat("m1", [share("t", 0, 1)])
    assert scene.of("m3") == {2, 5}


def test_new_partitions_are_given_out_and_no_other_moves() -> None:
    scene = Scene({"t": 2})
    scene.join("m1")
    scene.join("m2")
    scene.settle()
    before = held(scene)
    scene.set_topics({"t": 4})
    assert scene.woken == {"m1", "m2"}
    after = held(scene)
    assert all(before[name] < after[name] for name in before)
    assert scene.state == "stable"


def test_a_topic_that_is_deleted_takes_its_partitions_and_offsets_along() -> None:
    scene = Scene({"t": 2, "u": 2})
    scene.join("m1", "t", "u")
    scene.commit("m1", ("t", 0), ("u", 0))
    scene.set_topics({"u": 2})
    assert (scene.of("m1", "t"), scene.of("m1", "u")) == (set(), {0, 1})
    assert scene.woken == {"m1"}
    assert (scene.offset("t", 0), scene.offset("u", 0)) == (-1, 7)
    scene.set_topics({"t": 2, "u": 2})
    assert scene.offset("t", 0) == -1


def test_one_that_is_made_anew_is_another_and_nobody_waits_for_the_old_ones_release() -> None:
    scene = Scene({"t": 4})
    scene.join("m1")
    scene.join("m2")
    assert scene.state == "reconciling"
    scene.set_topics(t=TopicInfo("another", 2))
    assert (scene.of("m1"), scene.of("m2"), scene.state) == ({0}, {1}, "stable")
    assert scene.shard.beat(GROUP, "m1").assignment[0].topic_id == "another"
    # What the member says of the old topic is no matter.
    scene.beat("m1")
    assert scene.state == "stable"


def test_what_a_deleted_topic_leaves_free_is_given_out() -> None:
    """m1 has yet to give up something of u, which is why it gets nothing of t; u is deleted."""
    scene = Scene({"t": 2, "u": 2})
    scene.join("m1", "u")
    scene.join("m2", "t")
    scene.beat("m1", topics=("t", "u"))
    scene.join("m3", "u")
    assert scene.state == "reconciling"
    scene.set_topics({"t": 2})
    scene.settle()
    assert scene.state == "stable"
    assert scene.of("m1") | scene.of("m2") == {0, 1}


def test_only_so_many_former_members_are_remembered() -> None:
    scene = Scene(members_per_group_max=3)
    for number in range(9):
        scene.join(f"m{number}", "t")
        scene.leave(f"m{number}")
    assert set(groups_of(scene.shard)[GROUP].former) == {"m6", "m7", "m8"}


def test_who_keeps_what_it_has_is_neither_woken_nor_written() -> None:
    scene = Scene()
    scene.join("m1")
    scene.join("m2")
    scene.settle()
    start = len(scene.log)
    scene.join("m3")
    assert scene.woken == {"m2", "m3"}
    assert {decode_key(one.key) for one in scene.log[start:]} == {
        GroupKey(GROUP),
        MemberKey(GROUP, "m2"),
        MemberKey(GROUP, "m3"),
    }
    assert (groups_of(scene.shard)[GROUP].epoch, scene.epoch_of("m1")) == (3, 2)


def test_a_topic_that_goes_while_it_is_asked_back_is_given_up() -> None:
    scene = Scene({"t": 1, "u": 1})
    scene.join("m1", "t", "u")
    scene.join("m2", "u")
    group = groups_of(scene.shard)[GROUP]
    assert group.members["m1"].revoking == {("id-u", 0): scene.now + 30}
    assert scene.epoch_of("m1") == 1
    scene.set_topics({"t": 1})
    assert group.members["m1"].revoking == {}
    assert scene.epoch_of("m1") == group.epoch == 2


def alone() -> Group:
    """A group without a shard, with member m, whose records were taken."""
    group = Group("g", World(GroupSettings(), BUILT_IN))
    group.admit(Member("m", None, "", "", "", ("t",), None, 10_000, 30_000, sequence=1))
    group.take_records()
    return group


def test_one_that_changes_and_goes_within_a_step_leaves_its_tombstone_alone() -> None:
    group = alone()
    group.write(group.members["m"])
    group.expel(group.members["m"], "it left", now=1.0, now_ms=5)
    records = [(decode_key(one.key), one.value is None) for one in group.take_records()]
    assert records == [(MemberKey("g", "m"), True), (GroupKey("g"), False)]
    assert group.take_records() == []


def test_a_former_member_is_forgotten_when_its_time_is_over() -> None:
    group = alone()
    group.expel(group.members["m"], "it left", now=100.0, now_ms=5)
    group.forget_former(now=109.9)
    assert list(group.former) == ["m"]
    group.forget_former(now=110.0)
    assert group.former == {}


def test_tombstones_name_every_key_in_the_log_and_the_groups_last() -> None:
    scene = Scene()
    scene.join("m1", instance_id="i1")
    scene.join("m2", "t", instance_id="i1")
    scene.join("m3")
    scene.leave("m3")  # it is remembered, but not in the log
    scene.commit("m2", ("t", 0), ("t", 1))
    latest = {one.key: one.value for one in scene.log}
    tombstones = groups_of(scene.shard)[GROUP].tombstones()
    assert {one.key for one in tombstones} == {key for key, value in latest.items() if value}
    assert all(one.value is None for one in tombstones)
    assert decode_key(tombstones[-1].key) == GroupKey(GROUP)


def test_rows_have_topics_and_partitions_in_order() -> None:
    rows = rows_of([("b", 2), ("a", 1), ("b", 0), ("a", 0)])
    assert list(rows.items()) == [("a", [0, 1]), ("b", [0, 2])]


# -- classic view ----------------------------------------------------------------------------------
#
# Descriptions of classic groups.


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


# -- commits ---------------------------------------------------------------------------------------
#
# Who may commit what: each check has its error, and changes nothing.


def two() -> Scene:
    """m1 has 0 and 1, m2 has 2 and 3; the group is at epoch 2."""
    scene = Scene()
    scene.join("m1")
    scene.join("m2")
    scene.settle()
    return scene


def only(results: list[RaftlogError | None]) -> RaftlogError:
    (error,) = results
    assert error is not None
    return error


def test_a_member_commits_for_what_it_has() -> None:
    scene = two()
    assert scene.commit("m1", ("t", 0), ("t", 1), offset=5, metadata="note") == [None, None]
    found = scene.shard.fetch(GROUP, [TopicPartition("t", 1), TopicPartition("t", 2)])
    assert found == [
        Committed("t", 1, 5, 3, "note", scene.now_ms),
        Committed("t", 2, -1, -1, "", -1),
    ]


def test_an_offset_may_go_back() -> None:
    scene = two()
    scene.commit("m1", ("t", 0), offset=5)
    scene.commit("m1", ("t", 0), offset=0)
    assert scene.offset("t", 0) == 0


def test_a_commit_that_arrives_late_replaces_no_newer_one() -> None:
    scene = two()
    scene.commit("m1", ("t", 0), offset=2, sequence=7)
    scene.commit("m1", ("t", 0), offset=3, sequence=9)
    assert scene.commit("m1", ("t", 0), ("t", 1), offset=2, sequence=8) == [None, None]
    assert (scene.offset("t", 0), scene.offset("t", 1)) == (3, 2)
    assert scene.commit("m1", ("t", 0), offset=1, sequence=9) == [None]  # sent once more
    assert scene.offset("t", 0) == 1


def test_a_late_commit_is_known_after_a_start_of_the_coordinator() -> None:
    scene = two()
    scene.commit("m1", ("t", 0), offset=3, sequence=9)
    scene.fail_over()
    scene.commit("m1", ("t", 0), offset=2, sequence=8)
    assert scene.offset("t", 0) == 3


def test_clients_that_are_not_members_have_no_order_among_them() -> None:
    scene = Scene()
    scene.commit(None, ("t", 0), offset=5, sequence=9)
    scene.commit(None, ("t", 0), offset=6, sequence=1)
    assert scene.offset("t", 0) == 6


def test_the_commits_of_another_member_have_their_own_order() -> None:
    scene = Scene()
    scene.join("m1")
    scene.settle()
    scene.commit("m1", ("t", 0), offset=3, sequence=9)
    scene.leave("m1")
    scene.join("m2")
    scene.settle()
    scene.commit("m2", ("t", 0), offset=2, sequence=1)
    assert scene.offset("t", 0) == 2


def test_a_commit_replaces_what_it_expects_and_nothing_else() -> None:
    scene = Scene()
    assert scene.commit(None, ("t", 0), offset=5, expected=-1) == [None]
    error = only(scene.commit(None, ("t", 0), offset=6, expected=-1))
    assert isinstance(error, OffsetMovedError)
    assert str(error).startswith("the committed offset of t:0 in group 'g' is 5, not none")
    assert isinstance(only(scene.commit(None, ("t", 0), offset=6, expected=4)), OffsetMovedError)
    assert scene.offset("t", 0) == 5
    assert scene.commit(None, ("t", 0), offset=4, expected=5) == [None]
    assert scene.commit(None, ("t", 0), offset=4, expected=5) == [None]  # sent once more
    assert scene.offset("t", 0) == 4


def test_what_is_asked_back_is_committed_for_until_it_is_given_up() -> None:
    scene = Scene()
    scene.join("m1")
    scene.join("m2")
    assert scene.commit("m1", ("t", 3)) == [None]
    error = only(scene.commit("m2", ("t", 3)))
    assert isinstance(error, PartitionNotOwnedError)
    scene.beat("m1", [share("t", 0, 1)])
    assert isinstance(only(scene.commit("m1", ("t", 3))), PartitionNotOwnedError)
    assert scene.commit("m2", ("t", 3)) == [None]


def test_nobody_commits_for_what_another_member_has() -> None:
    scene = two()
    results = scene.commit("m1", ("t", 0), ("t", 2))
    assert results[0] is None
    assert isinstance(results[1], PartitionNotOwnedError)
    assert str(results[1]).startswith("t:2 is assigned to member m2 of group 'g', not to m1")
    assert (scene.offset("t", 0), scene.offset("t", 2)) == (7, -1)


def test_what_nobody_has_any_member_may_commit_for() -> None:
    scene = Scene({"t": 2, "u": 2})
    scene.join("m1", "t")
    assert scene.commit("m1", ("u", 1)) == [None]


def test_an_epoch_that_was_is_to_be_repeated_with_the_newest() -> None:
    """Partition 3 was m1's at epoch 1, then m2's, and is m1's again at epoch 3. Whether m1 has
    confirmed these epochs does not matter.
    """
    scene = Scene()
    scene.join("m1")
    scene.join("m2")
    scene.beat("m1", [share("t", 0, 1)])
    scene.settle("m2")
    assert scene.commit("m2", ("t", 3), offset=9) == [None]
    scene.leave("m2")
    assert (scene.of("m1"), scene.epoch_of("m1")) == ({0, 1, 2, 3}, 3)
    for epoch in (1, 2):
        with pytest.raises(StaleMemberEpochError, match=f"epoch 3, and the commit .* {epoch}"):
            scene.commit("m1", ("t", 0), ("t", 3), epoch=epoch)
    assert (scene.offset("t", 0), scene.offset("t", 3)) == (-1, 9)
    assert scene.commit("m1", ("t", 0), ("t", 3), epoch=3) == [None, None]


def test_an_epoch_that_was_suffices_for_what_the_member_has_had_since_then() -> None:
    """KIP-1251: the heartbeat response with the newest epoch may be on its way."""
    scene = two()
    assert scene.commit("m1", ("t", 0), ("t", 1), epoch=1) == [None, None]
    for other in (("t", 2), ("t", 3), ("u", 0)):
        with pytest.raises(StaleMemberEpochError):
            scene.commit("m1", ("t", 0), other, offset=8, epoch=1)
    assert scene.offset("t", 0) == 7
    scene.fail_over()  # after which it is not known since when
    with pytest.raises(StaleMemberEpochError):
        scene.commit("m1", ("t", 0), epoch=1)
    assert scene.commit("m1", ("t", 0), epoch=2) == [None]


def test_an_epoch_that_never_was_is_fenced() -> None:
    scene = two()
    with pytest.raises(FencedMemberError, match="with epoch 3, but its epoch is 2"):
        scene.commit("m1", ("t", 0), epoch=3)
    assert scene.offset("t", 0) == -1


def test_an_unknown_member_commits_nothing() -> None:
    scene = two()
    with pytest.raises(UnknownMemberError, match="member m9 of group 'g' is unknown"):
        scene.commit("m9", ("t", 0), epoch=2)
    scene.leave("m2")
    with pytest.raises(UnknownMemberError, match="it left"):
        scene.commit("m2", ("t", 2), epoch=2)
    with pytest.raises(UnknownMemberError):
        scene.commit("m9", ("t", 0), epoch=2, group="other")


def test_a_member_gives_id_and_epoch_and_others_neither() -> None:
    scene = two()
    for member, epoch in (("m1", -1), (None, -2)):
        with pytest.raises(InvalidRequestError, match="epoch"):
            scene.commit(member, ("t", 0), epoch=epoch)
    for group in ("g", "other"):
        with pytest.raises(UnknownMemberError, match="without a member ID"):
            scene.commit(None, ("t", 0), epoch=0, group=group)


def test_an_id_without_an_epoch_commits_only_where_there_are_no_members() -> None:
    scene = two()
    assert scene.commit("m9", ("t", 0), epoch=-1, group="other") == [None]
    with pytest.raises(UnknownMemberError):
        scene.commit("m9", ("t", 0), epoch=-1)
    scene.leave("m1")
    scene.leave("m2")
    assert scene.commit("m9", ("t", 0), epoch=-1) == [None]


def test_a_topic_or_partition_that_is_not_there() -> None:
    scene = two()
    results = scene.commit("m1", ("u", 0), ("t", 4), ("t", 0))
    assert isinstance(results[0], UnknownTopicError)
    assert isinstance(results[1], UnknownPartitionError)
    assert str(results[1]) == "topic 't' has no partition 4: it has partitions 0 to 3"
    assert results[2] is None


def test_a_topic_that_was_made_anew_is_another_one() -> None:
    scene = two()
    scene.commit("m1", ("t", 0), offset=5, topic_ids={"t": "id-t"})
    assert scene.offset("t", 0) == 5
    scene.set_topics(t=TopicInfo("another", 4))
    assert scene.offset("t", 0) == -1
    error = only(scene.commit("m1", ("t", 0), topic_ids={"t": "id-t"}))
    assert isinstance(error, UnknownTopicError)
    assert "was deleted and created again" in str(error)
    assert scene.offset("t", 0) == -1


def test_metadata_is_for_people_and_has_a_limit() -> None:
    scene = two()
    long = "x" * (limits.OFFSET_METADATA_CHARS_MAX + 1)
    assert isinstance(only(scene.commit("m1", ("t", 0), metadata=long)), InvalidRequestError)
    assert scene.commit("m1", ("t", 0), metadata=long[1:]) == [None]


@pytest.mark.parametrize("offset", [-1, -2, -(1 << 63)])
def test_an_offset_below_0_is_kept_and_expected_as_none(offset: int) -> None:
    scene = two()
    assert scene.commit("m1", ("t", 0), offset=offset) == [None]
    scene.fail_over()
    assert scene.offset("t", 0) == offset
    assert scene.commit("m1", ("t", 0), offset=3, expected=-1) == [None]
    assert scene.offset("t", 0) == 3


def test_a_group_has_offsets_of_so_many_partitions_at_most() -> None:
    scene = Scene(offsets_per_group_max=2)
    assert scene.commit(None, ("t", 0), ("t", 1)) == [None, None]
    error = only(scene.commit(None, ("t", 2)))
    assert isinstance(error, ThrottledError)
    assert "2 partitions, which is the limit (2)" in str(error)
    assert scene.commit(None, ("t", 1), offset=9) == [None]


# -- by nobody ---------------------------------------------------------------------------------


def test_nobody_commits_in_a_group_without_members_and_makes_one() -> None:
    scene = Scene()
    assert scene.commit(None, ("t", 0), offset=3) == [None]
    assert scene.shard.list()[0].state == "empty"
    scene.fail_over()
    assert scene.offset("t", 0) == 3


def test_nobody_commits_where_there_are_members() -> None:
    scene = two()
    with pytest.raises(GroupNotEmptyError, match="has 2 members, and only members can commit"):
        scene.commit(None, ("t", 0))
    scene.leave("m1")
    scene.leave("m2")
    assert scene.commit(None, ("t", 0)) == [None]


def test_no_group_is_made_for_nothing() -> None:
    scene = Scene(groups_max=1)
    assert isinstance(only(scene.commit(None, ("u", 0))), UnknownTopicError)
    assert scene.shard.list() == []
    scene.commit(None, ("t", 0))
    with pytest.raises(ThrottledError, match="1 groups, which is the limit"):
        scene.commit(None, ("t", 0), group="other")
    with pytest.raises(InvalidGroupError):
        scene.commit(None, ("t", 0), group="x" * 300)


@pytest.mark.parametrize("number", [-1, 4])
def test_a_partition_has_a_number_from_0_on(number: int) -> None:
    scene = Scene()
    scene.join("m1")
    (error,) = scene.commit("m1", ("t", number))
    assert type(error) is UnknownPartitionError
    assert f"has no partition {number}: it has partitions 0 to 3" in str(error)
    assert scene.shard.fetch(GROUP) == []


# -- heartbeats ------------------------------------------------------------------------------------
#
# Joining, staying, giving up, leaving, being away; and heartbeats that are late, old or wrong.


def heartbeats_two() -> Scene:
    """m1 and m2 with two partitions each, and all at rest."""
    scene = Scene()
    scene.join("m1")
    scene.join("m2")
    scene.settle()
    assert (scene.of("m1"), scene.of("m2")) == ({0, 1}, {2, 3})
    return scene


def test_the_epochs_that_mean_something_else_are_those_of_the_protocol() -> None:
    for name in ("JOIN_EPOCH", "LEAVE_EPOCH", "AWAY_EPOCH", "NO_MEMBER_EPOCH"):
        assert getattr(ours, name) == getattr(records, name)


# -- joining -----------------------------------------------------------------------------------


def test_the_first_member_gets_everything_at_once() -> None:
    scene = Scene()
    assert scene.join("m1") == HeartbeatResult(1, (share("t", 0, 1, 2, 3),))
    assert scene.state == "stable"


def test_a_newcomer_waits_for_what_another_has_to_give_up() -> None:
    scene = Scene()
    scene.join("m1")
    assert scene.join("m2") == HeartbeatResult(2, ())
    assert scene.woken == {"m1", "m2"}
    assert scene.state == "reconciling"
    assert scene.shard.beat(GROUP, "m1") == HeartbeatResult(1, (share("t", 0, 1),))
    scene.beat("m1", [share("t", 0, 1, 2)])  # 3 is given up, 2 not yet
    assert scene.woken == {"m1", "m2"}
    assert (scene.epoch_of("m1"), scene.of("m2")) == (1, {3})
    assert scene.beat("m1", [share("t", 0, 1)]).member_epoch == 2
    assert (scene.of("m2"), scene.state) == ({2, 3}, "stable")


def test_who_keeps_what_it_has_is_neither_woken_nor_moved_nor_written() -> None:
    """m1 has two, m2 one; m3 gets one of m1's."""
    scene = Scene({"t": 3})
    scene.join("m1")
    scene.join("m2")
    scene.settle()
    before, kept = len(scene.log), scene.shard.beat(GROUP, "m2")
    assert len(kept.assignment[0].partitions) == 1
    scene.join("m3")
    assert scene.woken == {"m1", "m3"}
    scene.settle("m1")
    assert scene.woken <= {"m1", "m3"}
    scene.settle("m3")
    assert [len(scene.of(name)) for name in ("m1", "m2", "m3")] == [1, 1, 1]
    assert scene.shard.beat(GROUP, "m2") == kept
    assert all(b"m2" not in record.key for record in scene.log[before:])


def test_a_member_that_joins_again_keeps_what_is_its() -> None:
    scene = heartbeats_two()
    epoch = scene.epoch_of("m1")
    assert scene.join("m1") == HeartbeatResult(epoch + 1, (share("t", 0, 1),))
    assert scene.of("m2") == {2, 3}


def test_a_commit_that_was_held_back_is_refused_once_its_member_has_joined_again() -> None:
    """The member reads the committed offsets again: they must not change behind its back."""
    scene = heartbeats_two()
    epoch = scene.epoch_of("m1")
    scene.join("m1")
    with pytest.raises(StaleMemberEpochError):
        scene.commit("m1", ("t", 0), epoch=epoch, sequence=1)
    assert scene.commit("m1", ("t", 0), sequence=2) == [None]


def test_a_member_that_joins_again_with_its_partitions_may_commit_what_it_has_read() -> None:
    scene = heartbeats_two()
    epoch = scene.epoch_of("m1")
    scene.beat("m1", [share("t", 0, 1)], epoch=0)
    assert scene.commit("m1", ("t", 0), epoch=epoch) == [None]


def test_joining_again_gives_up_what_was_asked_for_and_is_not_owned() -> None:
    scene = Scene()
    scene.join("m1")
    scene.join("m2")
    assert scene.of("m2") == set()
    assert scene.join("m1").assignment == (share("t", 0, 1),)
    assert scene.of("m2") == {2, 3}


def test_joining_again_with_something_to_give_up_waits_for_that() -> None:
    scene = Scene()
    scene.join("m1")
    scene.join("m2")
    scene.beat("m1", [share("t", 0, 1, 2)], epoch=0)
    assert (scene.of("m2"), scene.state) == ({3}, "reconciling")
    scene.beat("m1", [share("t", 0, 1)])
    assert scene.of("m2") == {2, 3}


@pytest.mark.parametrize("epoch", [1, 5, LEAVE_EPOCH, AWAY_EPOCH])
def test_only_joining_makes_a_member(epoch: int) -> None:
    scene = Scene()
    with pytest.raises(UnknownMemberError, match=r"m1 of group 'g' is unknown.* join again"):
        scene.beat("m1", epoch=epoch, topics=("t",))
    assert scene.shard.list() == []


@pytest.mark.parametrize("name", ["", "x" * 300, " g", "g ", "a\nb", "a\0b", "\ud800"])
def test_a_groups_name_is_checked_when_somebody_joins(name: str) -> None:
    with pytest.raises(InvalidGroupError, match="use 1 to 255 printable characters"):
        Scene().join("m1", group=name)


@pytest.mark.parametrize("name", ["", "x" * 300, "a\tb"])
def test_so_is_an_instances(name: str) -> None:
    scene = Scene()
    with pytest.raises(InvalidGroupError, match="group instance: use 1 to 255"):
        scene.join("m1", instance_id=name)
    assert scene.shard.list() == []


@pytest.mark.parametrize(
    ("fields", "error", "says"),
    [
        ({"session_timeout_ms": 5_999}, InvalidRequestError, "group.min.session.timeout.ms"),
        ({"session_timeout_ms": 60_001}, InvalidRequestError, "60000 ms .group.max.session"),
        ({"rebalance_timeout_ms": 0}, InvalidRequestError, "max_poll_interval_ms"),
        ({"topics": ("t",) * 1_001}, InvalidRequestError, "1001 topics: the maximum is 1000"),
        ({"assignor": "fair"}, UnknownAssignorError, "This coordinator has range, uniform"),
    ],
)
def test_what_no_member_may_ask_for(
    fields: dict[str, object], error: type[Exception], says: str
) -> None:
    scene = Scene(session_timeout_ms_min=6_000, session_timeout_ms_max=60_000)
    with pytest.raises(error, match=says):
        scene.beat("m1", **{"topics": ("t",), **fields})
    assert scene.shard.list() == []
    scene.join("m2")
    with pytest.raises(error, match=says):
        scene.beat("m2", **fields)
    assert scene.of("m2") == {0, 1, 2, 3}


def test_a_group_has_so_many_members_at_most() -> None:
    scene = Scene(members_per_group_max=2)
    scene.join("m1", instance_id="i1")
    scene.join("m2")
    with pytest.raises(ThrottledError, match="2 members, which is the limit"):
        scene.join("m3")
    scene.join("m4", "t", instance_id="i1")  # takes a place over
    assert {member.member_id for member in scene.members} == {"m2", "m4"}


def test_a_coordinator_has_so_many_groups_at_most() -> None:
    scene = Scene(groups_max=1)
    scene.join("m1")
    with pytest.raises(ThrottledError, match="1 groups, which is the limit"):
        scene.join("m2", group="other")


def test_a_member_may_have_nothing_and_has_an_epoch() -> None:
    scene = Scene({"t": 1})
    scene.join("m1")
    assert scene.join("m2") == HeartbeatResult(2, ())
    assert scene.state == "stable"


def test_a_topic_that_does_not_exist_has_no_partitions_until_it_does() -> None:
    scene = Scene({})
    assert scene.join("m1", "t", "u") == HeartbeatResult(1, ())
    scene.set_topics({"u": 2})
    assert scene.woken == {"m1"}
    assert scene.of("m1", "u") == {0, 1}


# -- sequences ---------------------------------------------------------------------------------


@pytest.mark.parametrize("sequence", [1, 2])
def test_an_older_or_equal_sequence_changes_nothing(sequence: int) -> None:
    scene = heartbeats_two()
    scene.join("m3")
    asked = scene.of("m1"), scene.of("m2")
    scene.heard["m1"] = scene.heard["m2"]
    before = len(scene.log)
    beat = scene.beat("m1", (), sequence=sequence, topics=("u",))
    assert beat == scene.shard.beat(GROUP, "m1")
    assert (scene.of("m1"), scene.of("m2")) == asked
    assert (len(scene.log), scene.woken) == (before, set())


def test_an_old_heartbeat_does_not_release_what_was_given_later() -> None:
    """m2 says that it has nothing, gets 2 and 3 at the same epoch, and is asked for one."""
    scene = Scene()
    scene.join("m1")
    scene.join("m2")
    scene.beat("m2", ())
    old = scene.heard["m2"]
    scene.settle()
    assert scene.of("m2") == {2, 3}
    scene.join("m3", "t")
    scene.join("m4", "t")
    assert scene.epoch_of("m2") == old.member_epoch
    assert len(scene.of("m2")) == 1
    scene.take(scene.shard.heartbeat(old, now=scene.now, now_ms=scene.now_ms))
    assert [m.member_id for m in scene.members if m.revoking and m.member_id == "m2"] == ["m2"]


def test_nor_after_a_failover_although_nothing_but_its_answer_told_of_it() -> None:
    """m2's heartbeat, which says that it has nothing yet, is answered with what it has by then."""
    scene = Scene()
    scene.join("m1")
    scene.join("m2")
    scene.beat("m1", [share("t", 0, 1)])
    scene.beat("m2", ())
    old = scene.heard["m2"]
    assert scene.noted["m2"].assignment == (share("t", 2, 3),)
    scene.fail_over()
    scene.join("m3", "t")
    scene.join("m4", "t")
    scene.take(scene.shard.heartbeat(old, now=scene.now, now_ms=scene.now_ms))
    assert [m.member_id for m in scene.members if m.revoking and m.member_id == "m2"] == ["m2"]


def test_an_old_sequence_proves_no_life() -> None:
    scene = Scene()
    scene.join("m1")
    scene.after(9)
    scene.beat("m1", sequence=1)
    scene.after(2)
    with pytest.raises(
        UnknownMemberError, match="no heartbeat within its session timeout of 10000 ms"
    ):
        scene.beat("m1")


def test_a_join_that_comes_late_does_not_bring_a_member_back() -> None:
    scene = heartbeats_two()
    scene.leave("m2")
    with pytest.raises(UnknownMemberError, match="no longer a member: it left"):
        scene.beat("m2", (), epoch=0, sequence=1)
    assert scene.join("m2").member_epoch > 0  # a newer one does


def test_that_is_forgotten_after_a_session() -> None:
    scene = heartbeats_two()
    scene.leave("m2")
    scene.after(11)
    scene.beat("m2", (), epoch=0, sequence=1)


# -- epochs ------------------------------------------------------------------------------------


def test_an_epoch_above_the_members_is_fenced() -> None:
    scene = heartbeats_two()
    with pytest.raises(
        FencedMemberError, match=r"sent epoch 9, but its epoch is 2\. .* join again"
    ):
        scene.beat("m1", epoch=9)
    assert scene.of("m1") == {0, 1}


def test_an_epoch_that_the_member_has_left_behind_is_fenced() -> None:
    scene = heartbeats_two()
    assert scene.epoch_of("m1") == 2
    with pytest.raises(FencedMemberError, match="sent epoch 1, but its epoch is 2"):
        scene.beat("m1", epoch=1)


def test_a_lost_answer_does_no_harm() -> None:
    """m2 gets something at an epoch of which it never hears."""
    scene = heartbeats_two()
    scene.leave("m1")
    scene.woken.clear()
    assert scene.epoch_of("m2") == 3
    beat = scene.beat("m2", [share("t", 2, 3)], epoch=2)
    assert beat == HeartbeatResult(3, (share("t", 0, 1, 2, 3),))


def test_at_an_older_epoch_nothing_is_released() -> None:
    """m2 has all at epoch 3, of which it does not know, when it is asked for 2 and 3."""
    scene = heartbeats_two()
    scene.leave("m1")
    scene.join("m3", "t")
    assert scene.beat("m2", (), epoch=2) == HeartbeatResult(3, (share("t", 0, 1),))
    assert scene.of("m3") == set()
    scene.beat("m2", [share("t", 0, 1)])
    assert scene.of("m3") == {2, 3}


def test_at_an_older_epoch_nobody_claims_what_is_not_its() -> None:
    scene = heartbeats_two()
    scene.join("m3", "t")
    scene.settle()
    scene.leave("m3")
    mine, epoch = scene.noted["m1"], scene.epoch_of("m1")
    assert scene.of("m1") | scene.of("m2") == {0, 1, 2, 3}
    late = "m1" if epoch > mine.member_epoch else "m2"
    with pytest.raises(FencedMemberError, match="reports 2 partitions that it does not own"):
        scene.beat(late, [share("t", 0, 1, 2, 3)])
    gone = Share("t", "id-of-one-that-was-deleted", (0,))
    assert scene.beat(late, [gone]).member_epoch > mine.member_epoch


def test_at_its_own_epoch_what_is_not_the_members_is_simply_not_its() -> None:
    scene = heartbeats_two()
    assert scene.beat("m1", [share("t", 0, 1, 2)]).assignment == (share("t", 0, 1),)
    assert scene.of("m2") == {2, 3}


# -- what a member says of itself --------------------------------------------------------------


def test_another_subscription_moves_only_what_it_must() -> None:
    scene = Scene({"t": 2, "u": 2})
    scene.join("m1", "t", "u")
    scene.join("m2", "t", "u")
    scene.settle()
    mine = scene.of("m1", "t"), scene.of("m1", "u")
    scene.beat("m2", topics=("t",))
    scene.settle()
    assert scene.of("m1", "u") == {0, 1}
    assert scene.of("m2", "t") == {0, 1} - scene.of("m1", "t")
    assert mine[1] <= scene.of("m1", "u")


def test_other_timeouts_are_written_and_move_nothing() -> None:
    scene = heartbeats_two()
    epoch = scene.shard.describe(GROUP).group_epoch
    scene.beat("m1", session_timeout_ms=20_000)
    assert scene.shard.describe(GROUP).group_epoch == epoch
    scene.fail_over()
    assert scene.members[0].session_timeout_ms == 20_000


def test_an_instance_id_is_for_life() -> None:
    scene = Scene()
    scene.join("m1", instance_id="i1")
    with pytest.raises(InvalidRequestError, match="A member cannot change"):
        scene.beat("m1", instance_id="i2")


def test_topics_may_be_named_twice() -> None:
    scene = Scene()
    scene.join("m1", "t", "t")
    assert scene.members[0].topics == ("t",)


def test_an_idle_heartbeat_writes_nothing() -> None:
    scene = heartbeats_two()
    before = len(scene.log)
    for _ in range(3):
        scene.after(5)
        scene.beat("m1")
        scene.beat("m2", reversed(scene.noted["m2"].assignment))
    assert (len(scene.log), scene.state) == (before, "stable")


# -- leaving -----------------------------------------------------------------------------------


def test_what_a_leaver_had_is_free_at_once() -> None:
    scene = heartbeats_two()
    assert scene.leave("m1") == HeartbeatResult(LEAVE_EPOCH)
    assert scene.woken == {"m1", "m2"}
    assert scene.of("m2") == {0, 1, 2, 3}
    with pytest.raises(UnknownMemberError, match="it left"):
        scene.shard.beat(GROUP, "m1")


def test_leaving_late_counts_for_nothing() -> None:
    scene = heartbeats_two()
    scene.beat("m1", (), epoch=LEAVE_EPOCH, sequence=1)
    assert scene.of("m1") == {0, 1}


# -- offsets ---------------------------------------------------------------------------------------
#
# One group's committed offsets: what was put is found, and nothing else.


TOPICS = Topics({"t": TopicInfo("id-t", 4)})
T0, T1 = TopicPartition("t", 0), TopicPartition("t", 1)


def value(offset: int, *, topic_id: str = "id-t", at_ms: int = 0) -> OffsetValue:
    return OffsetValue(1, topic_id, offset, 2, "note", at_ms, 1)


def table(**values: OffsetValue) -> OffsetTable:
    """By topic and partition, as in ``t0``."""
    found = OffsetTable()
    for name, one in values.items():
        found.put(TopicPartition(name[0], int(name[1])), one)
    return found


def test_the_last_one_counts() -> None:
    offsets = table(t0=value(5), t1=value(6))
    offsets.put(T0, value(7, at_ms=9))
    assert offsets.count == 2
    assert offsets.committed(T0, TOPICS) == Committed("t", 0, 7, 2, "note", 9)
    assert [where for where, _ in offsets] == [T0, T1]


def test_none_is_none_and_never_0() -> None:
    offsets = table(t0=value(0), t1=value(4, topic_id="another"), u0=value(3))
    assert offsets.committed(T0, TOPICS).offset == 0
    for where in (T1, TopicPartition("t", 2), TopicPartition("u", 0)):
        assert offsets.committed(where, TOPICS) == Committed(*where)
        assert offsets.committed(where, TOPICS).offset == -1


def test_what_is_removed_is_gone() -> None:
    offsets = table(t0=value(5))
    assert T0 in offsets
    assert offsets.remove(T0)
    assert not offsets.remove(T0)
    assert T0 not in offsets
    assert (offsets.count, list(offsets)) == (0, [])


def test_those_of_topics_that_are_no_more() -> None:
    offsets = table(t0=value(5), t1=value(6, topic_id="another"), u2=value(7, topic_id="id-u"))
    assert offsets.without_topic(TOPICS) == [T1, TopicPartition("u", 2)]


def test_those_whose_last_commit_is_older() -> None:
    offsets = table(t0=value(5, at_ms=99), t1=value(6, at_ms=100))
    assert offsets.committed_before(100) == [T0]


def test_a_topic_has_the_offsets_of_its_id() -> None:
    offsets = table(t0=value(5), t1=value(6, topic_id="another"), u0=value(7))
    assert offsets.topics() == ["t", "u"]
    assert offsets.of_topic("t", "id-t") == [(0, 5)]
    assert offsets.of_topic("v", "id-t") == []


# -- targets ---------------------------------------------------------------------------------------
#
# Who is asked for the targets of a group, and what happens if that one fails.


class Own:
    """Does what the test says."""

    name = "own"

    def __init__(self, result: Any = None) -> None:
        self.result = result
        self.asked: list[Spec] = []

    def assign(self, spec: Spec) -> Mapping[str, Collection[TopicPartition]]:
        self.asked.append(spec)
        if isinstance(self.result, BaseException):
            raise self.result
        return self.result  # type: ignore[no-any-return]


def scene_with(own: Own, **settings: Any) -> Scene:
    return Scene({"t": 3}, assignors={**BUILT_IN, "own": own}, **settings)


def test_the_assignor_of_most_members_is_asked() -> None:
    own = Own({"m1": [TopicPartition("t", 2)]})
    scene = scene_with(own)
    scene.join("m1", assignor="own", client_id="c", rack="r1")
    assert scene.of("m1") == {2}
    assert scene.shard.describe(GROUP).assignor == "own"
    assert own.asked == [
        Spec({"m1": MemberSpec(frozenset({"t"}), client_id="c", rack="r1")}, {"t": 3})
    ]
    scene.join("m2")
    assert own.asked[-1].members["m1"].owned == {TopicPartition("t", 2)}
    scene.join("m3", "t", assignor="range")
    assert scene.shard.describe(GROUP).assignor == "uniform"  # the default, as two tie


def test_a_changed_vote_counts() -> None:
    scene = Scene({"t": 3})
    scene.join("m1")
    scene.join("m2", "t", assignor="range")
    assert scene.shard.describe(GROUP).assignor == "range"
    scene.beat("m2", assignor=None)
    assert scene.shard.describe(GROUP).assignor == "uniform"


ALL_THREE = [TopicPartition("t", number) for number in range(3)]


def epochs_of(how: str) -> int:
    """By how much the group's epoch grows: by one for the assignor, and for who comes again."""
    return 1 if how == "beat" else 2


@pytest.mark.parametrize("how", ["beat", "rejoin", "restart"])
def test_who_comes_with_another_assignor_and_nothing_else_has_the_group_rebalanced(
    how: str,
) -> None:
    """``restart``: a static member that was away, and has another member id now."""
    who = "m3" if how == "restart" else "m2"
    scene = scene_with(Own({who: ALL_THREE}))
    scene.join("m1", "t")
    scene.join("m2", "t", instance_id="n2")
    scene.settle()
    before = scene.shard.describe(GROUP)
    assert (before.assignor, before.state) == ("uniform", "stable")
    if how == "beat":
        scene.beat("m2", assignor="own")
    elif how == "rejoin":
        scene.join("m2", assignor="own")
    else:
        scene.go_away("m2")
        scene.join("m3", "t", instance_id="n2", assignor="own")
    after = scene.shard.describe(GROUP)
    assert (after.assignor, after.group_epoch) == ("own", before.group_epoch + epochs_of(how))
    scene.settle()
    assert (scene.of("m1"), scene.of(who)) == (set(), {0, 1, 2})


@pytest.mark.parametrize("how", ["beat", "rejoin", "restart"])
def test_a_vote_that_moves_nothing_moves_nobody(how: str) -> None:
    """The group's epoch grows, as the assignor is another one; its members' do not."""
    scene = Scene({"t": 4})
    scene.join("m2", "t", instance_id="n2")
    scene.join("m1", "t")
    scene.settle()
    before = scene.shard.describe(GROUP)
    share = scene.of("m2")
    if how == "beat":
        scene.beat("m2", assignor="range")
    elif how == "rejoin":
        scene.join("m2", assignor="range")
    else:
        scene.go_away("m2")
        scene.join("m3", "t", instance_id="n2", assignor="range")
    after = scene.shard.describe(GROUP)
    assert (after.assignor, after.state) == ("range", "stable")
    assert after.group_epoch == before.group_epoch + epochs_of(how)
    assert scene.epoch_of("m1") == before.group_epoch
    assert "m1" not in scene.woken
    assert scene.of("m3" if how == "restart" else "m2") == share


@pytest.mark.parametrize("how", ["rejoin", "restart"])
def test_who_comes_again_with_the_same_assignor_has_nothing_rebalanced(how: str) -> None:
    own = Own({"m1": ALL_THREE})
    scene = scene_with(own)
    scene.join("m1", "t", instance_id="i1", assignor="own")
    scene.settle()
    asked = len(own.asked)
    if how == "rejoin":
        scene.join("m1")
    else:
        scene.go_away("m1")
        scene.join("m2", "t", instance_id="i1", assignor="own")
    assert len(own.asked) == asked
    assert scene.shard.describe(GROUP).group_epoch == 2


@pytest.mark.parametrize(
    "result",
    [
        ValueError("a mistake"),
        None,
        {"m1": [("t", 0)], "stranger": []},
        {"m1": [("t", 0), ("t", 3)]},
        {"m1": ["nonsense"]},
    ],
    ids=repr,
)
def test_one_that_fails_does_not_break_the_group(result: Any) -> None:
    scene = scene_with(Own(result))
    scene.join("m1", assignor="own")
    assert scene.of("m1") == {0, 1, 2}
    assert scene.shard.describe(GROUP).assignor == "uniform"
    assert scene.shard.assignor_failures == 1
    (note,) = scene.notes
    assert note.startswith("assignor failed: group='g' assignor='own' fallback='uniform' error=")
    scene.beat("m1")
    assert scene.notes == ()


def test_one_that_the_next_coordinator_does_not_have_is_not_asked() -> None:
    scene = scene_with(Own({}))
    scene.join("m1", assignor="own")
    assert scene.of("m1") == set()
    scene.assignors = BUILT_IN
    scene.fail_over()
    assert scene.of("m1") == {0, 1, 2}
    assert scene.shard.describe(GROUP).assignor == "uniform"


def test_there_is_another_default_if_the_operator_says_so() -> None:
    scene = scene_with(Own({}), default_assignor="own")
    scene.join("m1")
    assert scene.shard.describe(GROUP).assignor == "own"


def test_a_default_that_there_is_not_is_a_mistake() -> None:
    with pytest.raises(ValueError, match="default assignor 'fair' does not exist"):
        Scene(default_assignor="fair")


def test_what_nobody_is_to_have_any_more_stays_best_with_who_has_it() -> None:
    """m2 is to get m1's last one and leaves before it does: it is m1's again, not m3's."""
    scene = Scene({"t": 2})
    scene.join("m1")
    scene.join("m2")
    assert scene.of("m1") == {0}
    scene.leave("m2")
    view = scene.shard.describe(GROUP).members[0]
    assert view.target[0].partitions == (0, 1)


def test_what_is_on_its_way_to_a_member_counts_as_that_members() -> None:
    """m1 has yet to give 3, 4 and 5 up when m3 comes: two of them are to stay meant for m2."""
    scene = Scene({"t": 6})
    for name in ("m1", "m2", "m3"):
        scene.join(name)
    targets = [set(member.target[0].partitions) for member in scene.members]
    assert targets == [{0, 1}, {3, 4}, {2, 5}]


def test_an_assignor_is_told_all_that_it_may_know_of_a_member() -> None:
    own = Own({})
    scene = scene_with(own, default_assignor="own")
    scene.join("m1", "t", "gone", instance_id="i1", client_id="c1", rack="r1")
    topics = frozenset({"t", "gone"})
    assert own.asked == [Spec({"m1": MemberSpec(topics, frozenset(), "i1", "c1", "r1")}, {"t": 3})]
