"""One group: what moves when members come and go, and that nothing else does."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from raftlog.consumer_groups import BUILT_IN, GroupSettings, TopicInfo
from raftlog.consumer_groups.group import Group, Member, World, rows_of
from raftlog.consumer_groups.values import GroupKey, MemberKey, decode_key
from tests.consumer_groups.scene import GROUP, Scene, share
from tests.consumer_groups.states import groups_of


def held(scene: Scene) -> dict[str, set[int]]:
    return {member.member_id: scene.of(member.member_id) for member in scene.members}


@given(
    partitions=st.integers(1, 12),
    story=st.lists(st.tuples(st.booleans(), st.integers(0, 5)), min_size=1, max_size=12),
)
def test_nobody_gives_up_more_than_balance_needs(
    partitions: int, story: list[tuple[bool, int]]
) -> None:
    """Members come or go, one at a time; all is settled in between."""
    scene = Scene({"t": partitions})
    scene.join("m0")
    for number, (comes, place) in enumerate(story, start=1):
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
