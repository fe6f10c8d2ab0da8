"""A log gives the state, in any order and however often; and a new coordinator goes on from it."""

from __future__ import annotations

from random import Random

import pytest

from raftlog.consumer_groups import BUILT_IN, GroupRecord, GroupSettings, GroupShard, TopicInfo
from raftlog.consumer_groups import shard as replaying
from raftlog.consumer_groups.group import Group
from raftlog.consumer_groups.values import (
    FormerKey,
    FormerValue,
    GroupKey,
    GroupValue,
    MemberKey,
    MemberValue,
    OffsetKey,
    OffsetValue,
    record,
)
from tests.consumer_groups.scene import GROUP, Scene, share
from tests.consumer_groups.states import check_invariants, groups_of, replayed, written


def member(**fields: object) -> MemberValue:
    return MemberValue(
        **{  # type: ignore[arg-type]
            "version": 1,
            "epoch": 3,
            "known_epoch": 2,
            "sequence": 4,
            "instance_id": None,
            "client_id": "",
            "host": "",
            "rack": "",
            "topics": ("t",),
            "assignor": None,
            "session_timeout_ms": 10_000,
            "rebalance_timeout_ms": 30_000,
            "is_away": False,
            "assigned": {},
            "revoking": {},
            "target": {},
            **fields,
        }
    )


GROUP_RECORD = record(GroupKey(GROUP), GroupValue(1, 3, 1, None, "uniform"))
OFFSET_RECORD = record(OffsetKey(GROUP, "t", 0), OffsetValue(1, "id-t", 7, 2, "", 0, 1))


def started(*records: object) -> GroupShard:
    shard = replayed(records, GroupSettings())  # type: ignore[arg-type]
    shard.start({"t": TopicInfo("id-t", 4)}, version=1, now=0.0, now_ms=0)
    check_invariants(shard)
    return shard


def test_records_may_come_in_any_order_and_twice(seed: int) -> None:
    random = Random(seed)
    scene = Scene()
    scene.join("m1", instance_id="i1")
    scene.join("m2")
    scene.join("m3", "t", instance_id="i1")
    scene.commit("m3", ("t", 0))
    last = list({one.key: one for one in scene.log}.values())
    for _ in range(20):
        order = [one for one in random.sample(last, len(last)) for _ in range(random.randint(1, 2))]
        living = [one for one in order if one.value is not None]
        assert written(replayed(living, scene.settings)) == written(scene.shard)


def test_the_tombstone_of_a_group_removes_all_of_it() -> None:
    rest = record(MemberKey(GROUP, "m"), member()), OFFSET_RECORD
    former = record(FormerKey(GROUP, "f"), FormerValue(1, "i", 10_000, 3))
    records = (GROUP_RECORD, *rest, former, record(GroupKey(GROUP), None))
    assert written(replayed(records, GroupSettings())) == {}


@pytest.mark.parametrize(
    "key", [GroupKey("x"), MemberKey("x", "m"), OffsetKey("x", "t", 0), FormerKey("x", "m")]
)
def test_tombstones_of_what_is_not_there_are_nothing(key: object) -> None:
    gone = record(key, None)  # type: ignore[arg-type]
    assert written(replayed([gone, GROUP_RECORD], GroupSettings())).keys() == {GROUP}


def test_each_record_has_its_tombstone() -> None:
    keys = MemberKey(GROUP, "m"), FormerKey(GROUP, "f"), OffsetKey(GROUP, "t", 0)
    values = member(), FormerValue(1, "i", 10_000, 3), OffsetValue(1, "id-t", 7, 2, "", 0, 1)
    records = [record(key, value) for key, value in zip(keys, values, strict=True)]
    tombstones = [record(key, None) for key in keys]
    assert written(replayed([GROUP_RECORD, *records, *tombstones], GroupSettings())) == written(
        replayed([GROUP_RECORD], GroupSettings())
    )


def test_sessions_and_times_to_give_up_begin_anew() -> None:
    scene = Scene()
    scene.join("m1")
    scene.join("m2")
    scene.after(8)
    scene.fail_over()
    assert scene.state == "reconciling"
    scene.after(9)
    scene.settle("m2")
    assert {one.member_id for one in scene.members} == {"m1", "m2"}
    scene.beat("m1", [share("t", 0, 1, 2, 3)])
    for _ in range(4):
        scene.after(5)
        scene.beat("m1", [share("t", 0, 1, 2, 3)])
        scene.settle("m2")
    assert {one.member_id for one in scene.members} == {"m1", "m2"}  # 29 s after the failover
    scene.after(2)
    assert {one.member_id for one in scene.members} == {"m2"}


def test_a_member_that_dies_in_a_failover_is_found_out() -> None:
    scene = Scene()
    scene.join("m1")
    scene.fail_over()
    scene.after(11)
    assert scene.state == "empty"


def test_two_owners_in_a_log_become_one() -> None:
    """Half of a step that was too large for one batch."""
    rows = {"id-t": [0, 1]}
    shard = started(
        GROUP_RECORD,
        record(MemberKey(GROUP, "m1"), member(assigned=rows, target=rows)),
        record(MemberKey(GROUP, "m2"), member(assigned={"id-t": [1]}, target={"id-t": [1, 2, 3]})),
    )
    assert shard.describe(GROUP).state == "stable"
    assert groups_of(shard)[GROUP].owner.keys() == {("id-t", number) for number in range(4)}


def test_what_is_free_in_a_log_is_given_out() -> None:
    shard = started(
        GROUP_RECORD,
        record(MemberKey(GROUP, "m1"), member(target={"id-t": [0, 1, 2, 3]})),
    )
    assert shard.beat(GROUP, "m1").assignment == (share("t", 0, 1, 2, 3),)


def test_a_group_without_a_record_of_its_own_is_a_group() -> None:
    shard = started(OFFSET_RECORD)
    assert shard.describe(GROUP).state == "empty"
    assert shard.fetch(GROUP)[0].offset == 7


def test_a_log_of_nothing_is_a_coordinator_of_nothing() -> None:
    assert started().list() == []
    assert not GroupShard(GroupSettings(), BUILT_IN)._groups


# -- what follows from the records -----------------------------------------------------------------


def completed(*records: GroupRecord, now: float = 100.0, now_ms: int = 900) -> Group:
    group = groups_of(replayed(records, GroupSettings()))[GROUP]
    replaying.complete(group, now=now, now_ms=now_ms)
    return group


def test_owners_heirs_and_instances_follow_from_the_members() -> None:
    group = completed(
        record(
            MemberKey(GROUP, "m1"),
            member(assigned={"id-t": [0]}, revoking={"id-t": [1]}, instance_id="i", target={}),
        ),
        record(MemberKey(GROUP, "m2"), member(target={"id-t": [1, 2]})),
    )
    assert group.owner == dict.fromkeys([("id-t", 0), ("id-t", 1)], "m1")
    assert group.heir == dict.fromkeys([("id-t", 1), ("id-t", 2)], "m2")
    assert group.instances == {"i": "m1"}
    assert group.members["m1"].revoking == {("id-t", 1): 130.0}
    assert group.members["m1"].session_ends == 110.0


@pytest.mark.parametrize("names", [("m1", "m2"), ("m2", "m1")])
def test_of_two_owners_the_first_by_name_has_it(names: tuple[str, str]) -> None:
    rows = {"id-t": [0]}
    group = completed(
        *(record(MemberKey(GROUP, name), member(assigned=rows, target=rows)) for name in names)
    )
    assert group.owner == {("id-t", 0): "m1"}
    assert [group.members[name].assigned for name in ("m1", "m2")] == [{("id-t", 0)}, frozenset()]


def test_those_that_lost_their_instance_are_remembered_for_as_long_again() -> None:
    former = record(FormerKey(GROUP, "f"), FormerValue(1, "i", 10_000, 3))
    assert completed(GROUP_RECORD, former, now=100.0).former["f"].until == 3_700.0


@pytest.mark.parametrize(("epoch", "after"), [(2, 3), (3, 3), (4, 4)])
def test_a_group_is_not_at_an_older_epoch_than_a_member(epoch: int, after: int) -> None:
    group = record(GroupKey(GROUP), GroupValue(1, epoch, 1, None, "uniform"))
    assert completed(group, record(MemberKey(GROUP, "m"), member())).epoch == after


def test_a_group_whose_record_is_missing_is_empty_from_now_on_and_says_so() -> None:
    group = completed(OFFSET_RECORD, now_ms=900)
    assert group.empty_since_ms == 900
    assert [one.key for one in group.take_records()] == [record(GroupKey(GROUP), None).key]


def test_a_group_that_is_empty_stays_so_since_when_it_was() -> None:
    group = completed(record(GroupKey(GROUP), GroupValue(1, 3, 1, 500, "range")), now_ms=900)
    assert (group.empty_since_ms, group.take_records()) == (500, [])
