"""Joining, staying, giving up, leaving, being away; and heartbeats that are late, old or wrong."""

from __future__ import annotations

import pytest

from raftlog.consumer_groups import AWAY_EPOCH, LEAVE_EPOCH, HeartbeatResult, Share
from raftlog.consumer_groups import values as ours
from raftlog.errors import (
    FencedMemberError,
    InvalidGroupError,
    InvalidRequestError,
    ThrottledError,
    UnknownAssignorError,
    UnknownMemberError,
)
from raftlog.protocol import records
from tests.consumer_groups.scene import GROUP, Scene, share


def two() -> Scene:
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
    scene = two()
    epoch = scene.epoch_of("m1")
    assert scene.join("m1") == HeartbeatResult(epoch, (share("t", 0, 1),))
    assert scene.of("m2") == {2, 3}


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
    scene = two()
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
    assert scene.told["m2"].assignment == (share("t", 2, 3),)
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
    scene = two()
    scene.leave("m2")
    with pytest.raises(UnknownMemberError, match="no longer a member: it left"):
        scene.beat("m2", (), epoch=0, sequence=1)
    assert scene.join("m2").member_epoch > 0  # a newer one does


def test_that_is_forgotten_after_a_session() -> None:
    scene = two()
    scene.leave("m2")
    scene.after(11)
    scene.beat("m2", (), epoch=0, sequence=1)


# -- epochs ------------------------------------------------------------------------------------


def test_an_epoch_above_the_members_is_fenced() -> None:
    scene = two()
    with pytest.raises(
        FencedMemberError, match=r"sent epoch 9, but its epoch is 2\. .* join again"
    ):
        scene.beat("m1", epoch=9)
    assert scene.of("m1") == {0, 1}


def test_an_epoch_that_the_member_has_left_behind_is_fenced() -> None:
    scene = two()
    assert scene.epoch_of("m1") == 2
    with pytest.raises(FencedMemberError, match="sent epoch 1, but its epoch is 2"):
        scene.beat("m1", epoch=1)


def test_a_lost_answer_does_no_harm() -> None:
    """m2 gets something at an epoch of which it never hears."""
    scene = two()
    scene.leave("m1")
    scene.woken.clear()
    assert scene.epoch_of("m2") == 3
    beat = scene.beat("m2", [share("t", 2, 3)], epoch=2)
    assert beat == HeartbeatResult(3, (share("t", 0, 1, 2, 3),))


def test_at_an_older_epoch_nothing_is_released() -> None:
    """m2 has all at epoch 3, of which it does not know, when it is asked for 2 and 3."""
    scene = two()
    scene.leave("m1")
    scene.join("m3", "t")
    assert scene.beat("m2", (), epoch=2) == HeartbeatResult(3, (share("t", 0, 1),))
    assert scene.of("m3") == set()
    scene.beat("m2", [share("t", 0, 1)])
    assert scene.of("m3") == {2, 3}


def test_at_an_older_epoch_nobody_claims_what_is_not_its() -> None:
    scene = two()
    scene.join("m3", "t")
    scene.settle()
    scene.leave("m3")
    mine, epoch = scene.told["m1"], scene.epoch_of("m1")
    assert scene.of("m1") | scene.of("m2") == {0, 1, 2, 3}
    late = "m1" if epoch > mine.member_epoch else "m2"
    with pytest.raises(FencedMemberError, match="reports 2 partitions that it does not own"):
        scene.beat(late, [share("t", 0, 1, 2, 3)])
    gone = Share("t", "id-of-one-that-was-deleted", (0,))
    assert scene.beat(late, [gone]).member_epoch > mine.member_epoch


def test_at_its_own_epoch_what_is_not_the_members_is_simply_not_its() -> None:
    scene = two()
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
    scene = two()
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
    scene = two()
    before = len(scene.log)
    for _ in range(3):
        scene.after(5)
        scene.beat("m1")
        scene.beat("m2", reversed(scene.told["m2"].assignment))
    assert (len(scene.log), scene.state) == (before, "stable")


# -- leaving -----------------------------------------------------------------------------------


def test_what_a_leaver_had_is_free_at_once() -> None:
    scene = two()
    assert scene.leave("m1") == HeartbeatResult(LEAVE_EPOCH)
    assert scene.woken == {"m1", "m2"}
    assert scene.of("m2") == {0, 1, 2, 3}
    with pytest.raises(UnknownMemberError, match="it left"):
        scene.shard.beat(GROUP, "m1")


def test_leaving_late_counts_for_nothing() -> None:
    scene = two()
    scene.beat("m1", (), epoch=LEAVE_EPOCH, sequence=1)
    assert scene.of("m1") == {0, 1}
