"""Who may commit what: each check has its error, and changes nothing."""

from __future__ import annotations

import pytest

from raftlog import limits
from raftlog.consumer_groups import Committed, TopicInfo
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
    UnknownMemberError,
    UnknownPartitionError,
    UnknownTopicError,
)
from raftlog.types import TopicPartition
from tests.consumer_groups.scene import GROUP, Scene, share


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


@pytest.mark.parametrize("member", ["m1", None])
def test_a_member_gives_id_and_epoch_and_others_neither(member: str | None) -> None:
    scene = two()
    with pytest.raises(InvalidRequestError, match="epoch"):
        scene.commit(member, ("t", 0), epoch=-1 if member else 2)


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
