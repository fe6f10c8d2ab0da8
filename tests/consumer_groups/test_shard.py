"""All groups of a partition: topics, time, offsets, and what an administrator does."""

from __future__ import annotations

from random import Random
from typing import Any

import msgspec
import pytest

from raftlog.consumer_groups import (
    AWAY_EPOCH,
    BUILT_IN,
    LEAVE_EPOCH,
    Commit,
    Committed,
    GroupListing,
    GroupRecord,
    GroupSettings,
    GroupShard,
    Heartbeat,
    HeartbeatDelta,
    HeartbeatResult,
    Interest,
    TopicInfo,
    partition_of_group,
)
from raftlog.consumer_groups import shard as replaying
from raftlog.consumer_groups.group import Group
from raftlog.consumer_groups.shard import Timers
from raftlog.consumer_groups.values import (
    FormerKey,
    FormerValue,
    GroupKey,
    GroupValue,
    MemberKey,
    MemberValue,
    OffsetKey,
    OffsetValue,
    Topics,
    record,
)
from raftlog.errors import (
    CoordinatorLoadingError,
    GroupNotEmptyError,
    InstanceInUseError,
    InvalidGroupError,
    InvalidRequestError,
    UnknownGroupError,
    UnknownMemberError,
)
from raftlog.record.key_hash import POSITIVE, partition_of_key
from raftlog.types import TopicPartition
from tests.consumer_groups.scene import (
    GROUP,
    REBALANCE_MS,
    SESSION_MS,
    Scene,
    check_invariants,
    groups_of,
    replayed,
    share,
    topics_of,
    written,
)

T0, T1 = TopicPartition("t", 0), TopicPartition("t", 1)


# -- the log -----------------------------------------------------------------------------------


def test_records_of_a_later_release_are_counted_and_left_alone() -> None:
    shard = GroupShard(GroupSettings(), BUILT_IN)
    encode = msgspec.msgpack.encode
    shard.replay(encode([9, "g"]), b"whatever")
    shard.replay(encode([1, "g"]), encode([4, "whatever"]))
    shard.replay(encode([9, "g"]), None)
    assert (shard.skipped_records, len(shard._groups)) == (3, 0)


@pytest.mark.parametrize(("key", "value"), [(b"", b""), (b"\x92\x01\xa1g", b"\xc1")])
def test_bytes_that_nobody_has_written_are_refused(key: bytes, value: bytes) -> None:
    shard = GroupShard(GroupSettings(), BUILT_IN)
    with pytest.raises(InvalidRequestError):
        shard.replay(key, value)
    assert len(shard._groups) == 0


OPERATIONS: dict[str, Any] = {
    "heartbeat": lambda shard: shard.heartbeat(
        Heartbeat(group="g", member_id="m", member_epoch=0, sequence=1, topics=()),
        now=0.0,
        now_ms=0,
    ),
    "join_all": lambda shard: shard.join_all([], now=0.0, now_ms=0),
    "beat": lambda shard: shard.beat("g", "m"),
    "commit": lambda shard: shard.commit("g", "", -1, [Commit("t", 0, 1)], {}, now=0.0, now_ms=0),
    "fetch": lambda shard: shard.fetch("g"),
    "list": lambda shard: shard.list(),
    "describe": lambda shard: shard.describe("g"),
    "delete_group": lambda shard: shard.delete_group("g"),
    "delete_offsets": lambda shard: shard.delete_offsets("g", [], now=0.0),
}


@pytest.mark.parametrize("operation", OPERATIONS.values(), ids=OPERATIONS.keys())
def test_until_the_log_is_read_nobody_is_served(operation: Any) -> None:
    shard = GroupShard(GroupSettings(), BUILT_IN)
    with pytest.raises(CoordinatorLoadingError, match="Try again later"):
        operation(shard)
    assert shard.deadline() is None
    assert shard.tick(now=0.0, now_ms=0, expiry_ms=0).records == ()


def behind() -> tuple[Scene, GroupShard]:
    """A coordinator that has not heard of topic u, for which a member has committed."""
    scene = Scene({"t": 1})
    scene.join("m1", "t", "u")
    scene.set_topics({"t": 1, "u": 2})
    scene.commit("m1", ("u", 1), offset=8)
    shard = replayed(scene.log, scene.settings)
    step = shard.start(topics_of({"t": 1}), version=1, now=0.0, now_ms=0)
    assert (step.records, shard.is_started) == ((), False)
    return scene, shard


@pytest.mark.parametrize("operation", OPERATIONS.values(), ids=OPERATIONS.keys())
def test_until_it_knows_the_topics_that_the_log_knows_nobody_is_served(operation: Any) -> None:
    _, shard = behind()
    with pytest.raises(CoordinatorLoadingError):
        operation(shard)
    assert shard.deadline() is None


def test_no_offset_is_lost_by_a_coordinator_that_has_yet_to_hear_of_the_topic() -> None:
    scene, shard = behind()
    shard.set_topics(scene.topics, version=scene.version, now=0.0, now_ms=0)
    assert shard.is_started
    assert shard.fetch(GROUP) == [Committed("u", 1, 8, 3, "", scene.now_ms)]


def test_a_topic_that_went_while_nobody_coordinated_is_gone() -> None:
    scene = Scene({"t": 2, "u": 2})
    scene.join("m1", "t", "u")
    scene.commit("m1", ("t", 0), ("u", 0))
    scene.topics, scene.version = topics_of({"u": 3}), 2
    scene.fail_over()
    assert (scene.of("m1", "t"), scene.of("m1", "u")) == (set(), {0, 1, 2})
    assert [found.topic for found in scene.shard.fetch(GROUP)] == ["u"]


def test_older_topics_than_the_last_change_nothing() -> None:
    scene = Scene({"t": 2})
    scene.join("m1")
    scene.set_topics({"t": 4})
    step = scene.shard.set_topics(topics_of({}), version=1, now=scene.now, now_ms=0)
    assert (step.records, scene.of("m1")) == ((), {0, 1, 2, 3})


def test_topics_are_as_they_were_given() -> None:
    """What the caller does with its table later is its own business."""
    scene = Scene({"t": 2})
    scene.join("m1")
    scene.topics["t"] = TopicInfo("id-t", 4)
    scene.set_topics({"t": 4})
    assert scene.of("m1") == {0, 1, 2, 3}


def test_topics_to_which_nobody_subscribes_wake_nobody() -> None:
    scene = Scene({"t": 2})
    scene.join("m1")
    before = len(scene.log)
    scene.set_topics({"t": 2, "u": 9})
    assert (len(scene.log), scene.woken) == (before, set())
    scene.beat("m1", topics=("t", "u"))
    scene.beat("m1", topics=("u",))
    scene.settle()
    scene.set_topics({"t": 3, "u": 9})
    assert (scene.of("m1", "t"), scene.woken) == (set(), set())


# -- groups are strangers ----------------------------------------------------------------------


def test_one_group_knows_nothing_of_another() -> None:
    scene = Scene()
    scene.join("m1")
    scene.join("x1", "t", group="other")
    assert scene.of("m1") == {0, 1, 2, 3}
    assert scene.shard.beat("other", "x1").assignment == (share("t", 0, 1, 2, 3),)
    scene.commit("m1", ("t", 0))
    assert scene.offset("t", 0, "other") == -1
    with pytest.raises(UnknownMemberError):
        scene.shard.beat("other", "m1")
    assert scene.shard.list() == [
        GroupListing("g", "stable", 1),
        GroupListing("other", "stable", 1),
    ]


# -- time --------------------------------------------------------------------------------------


def test_a_member_of_which_nothing_is_heard_is_no_member_any_more() -> None:
    scene = Scene()
    scene.join("m1")
    scene.join("m2")
    scene.settle()
    scene.after(9)
    scene.beat("m2")
    scene.after(0.9)
    assert scene.of("m2") == {2, 3}
    scene.after(0.2)
    assert scene.woken == {"m1", "m2"}
    assert scene.of("m2") == {0, 1, 2, 3}
    assert scene.notes == (
        (
            "member removed: group='g' member=m1 reason: no heartbeat within its session timeout "
            "of 10000 ms. Check the consumer and its network"
        ),
    )
    with pytest.raises(
        UnknownMemberError, match="no heartbeat within its session timeout of 10000 ms"
    ):
        scene.beat("m1")
    assert scene.join("m1").member_epoch == 4


def test_one_that_does_not_give_up_in_time_is_no_member_any_more() -> None:
    scene = Scene()
    scene.join("m1", rebalance_timeout_ms=15_000)
    scene.join("m2")
    for _ in range(2):
        scene.after(7)
        scene.beat("m1", [share("t", 0, 1, 2, 3)])
        scene.beat("m2")
    assert scene.of("m2") == set()
    scene.after(1.1)
    assert scene.of("m2") == {0, 1, 2, 3}
    with pytest.raises(UnknownMemberError, match=r"within 15000 ms\. Poll more often"):
        scene.beat("m1")


def test_each_partition_has_its_own_time() -> None:
    """3 is given up in time; 1, which was asked for later, has as long again."""
    scene = Scene()
    scene.join("m1", rebalance_timeout_ms=9_000)
    scene.join("m2")
    scene.after(5)
    scene.settle("m2")
    scene.join("m3")
    scene.join("m4")
    scene.after(3)
    left = scene.members[0].revoking[0].partitions
    assert left == (1, 2, 3)
    scene.beat("m1", [share("t", 0, 1)])
    scene.after(5)
    assert "m1" in {member.member_id for member in scene.members}
    for name in ("m2", "m3", "m4"):
        scene.settle(name)
    scene.after(2)
    assert "m1" not in {member.member_id for member in scene.members}


def test_deadlines_are_told() -> None:
    scene = Scene()
    assert scene.shard.deadline() is None
    scene.join("m1")
    assert scene.shard.deadline() == scene.now + 10
    scene.join("m2", "t", session_timeout_ms=4_000)
    assert scene.shard.deadline() == scene.now + 4


def test_a_shorter_session_counts_at_once() -> None:
    scene = Scene()
    scene.join("m1")
    scene.beat("m1", session_timeout_ms=2_000)
    scene.after(2.1)
    assert scene.state == "empty"


def test_a_coordinator_that_stood_still_hears_everybody_first() -> None:
    scene = Scene()
    scene.join("m1")
    scene.join("m2")
    scene.settle()
    scene.now += 60
    scene.take(scene.shard.tick(now=scene.now, now_ms=scene.now_ms, expiry_ms=scene.now_ms))
    assert len(scene.members) == 2
    scene.beat("m1")
    scene.after(2.1)
    assert [member.member_id for member in scene.members] == ["m1"]


def test_idle_heartbeats_leave_the_timers_alone() -> None:
    scene = Scene()
    scene.join("m1")
    for _ in range(100):
        scene.after(1)
        scene.beat("m1")
    assert len(scene.shard._timers._heap) <= 2
    assert scene.members[0].member_id == "m1"


# -- offsets that nobody needs ------------------------------------------------------------------


def test_offsets_go_when_the_group_has_been_empty_for_long_enough() -> None:
    scene = Scene(offsets_retention_ms=100_000)
    scene.join("m1", session_timeout_ms=1_000_000)
    scene.commit("m1", ("t", 0))
    scene.after(900)
    assert scene.offset("t", 0) == 7
    scene.leave("m1")
    scene.after(99)
    assert scene.offset("t", 0) == 7
    scene.after(102)
    assert scene.offset("t", 0) == -1
    assert scene.shard.list() == []
    assert groups_of(replayed(scene.log, scene.settings)) == {}


def test_no_offset_goes_while_the_time_is_not_known_for_sure() -> None:
    scene = Scene(offsets_retention_ms=100_000)
    scene.commit(None, ("t", 0))
    shard, late_ms = scene.shard, scene.now_ms + 1_000_000
    for expiry_ms, records in ((None, 0), (scene.now_ms + 99_000, 0), (late_ms, 2)):
        scene.now += 100
        step = shard.tick(now=scene.now, now_ms=late_ms, expiry_ms=expiry_ms)
        assert len(step.records) == records


def test_a_commit_of_nobody_keeps_its_offset_for_as_long_again() -> None:
    scene = Scene(offsets_retention_ms=100_000)
    scene.commit(None, ("t", 0), ("t", 1))
    scene.after(90)
    scene.commit(None, ("t", 1))
    scene.after(80)
    scene.fail_over()
    scene.after(19)
    assert (scene.offset("t", 0), scene.offset("t", 1)) == (-1, 7)
    scene.after(100)
    assert (scene.offset("t", 0), scene.shard.list()) == (-1, [])


def test_a_group_with_members_keeps_all_its_offsets() -> None:
    scene = Scene({"t": 1, "u": 1}, offsets_retention_ms=5_000)
    scene.join("m1", "t", "u")
    scene.commit("m1", ("t", 0), ("u", 0))
    scene.beat("m1", topics=("u",))
    for _ in range(10):
        scene.after(9)
        scene.beat("m1")
    assert (scene.offset("t", 0), scene.offset("u", 0)) == (7, 7)


def test_a_group_that_never_committed_is_forgotten_soon() -> None:
    scene = Scene()
    scene.join("m1")
    scene.leave("m1")
    scene.after(500)
    assert scene.state == "empty"
    scene.after(800)
    assert scene.shard.list() == []
    assert scene.shard.deadline() is None
    assert groups_of(replayed(scene.log, scene.settings)) == {}


# -- what an administrator does -----------------------------------------------------------------


def test_a_group_is_described() -> None:
    scene = Scene()
    scene.join("m1", client_id="c", host="h", instance_id="i1")
    scene.join("m2")
    view = scene.shard.describe(GROUP)
    assert (view.state, view.group_epoch, view.assignor) == ("reconciling", 2, "uniform")
    m1, m2 = view.members
    assert (m1.client_id, m1.host, m1.instance_id, m1.topics) == ("c", "h", "i1", ("t",))
    assert (m1.assigned, m1.revoking) == ((share("t", 0, 1),), (share("t", 2, 3),))
    assert (m1.target, m2.target) == ((share("t", 0, 1),), (share("t", 2, 3),))
    assert (m2.assigned, m2.member_epoch, m2.session_timeout_ms) == ((), 2, 10_000)


@pytest.mark.parametrize("operation", ["describe", "delete_group", "delete_offsets"])
def test_a_group_that_there_is_not(operation: str) -> None:
    with pytest.raises(UnknownGroupError, match="consumer group 'g' does not exist"):
        OPERATIONS[operation](Scene().shard)


def test_a_name_that_no_group_can_have_is_told_apart() -> None:
    shard = Scene().shard
    with pytest.raises(InvalidGroupError):
        shard.describe("x" * 300)
    with pytest.raises(InvalidGroupError):
        shard.fetch("")


def test_a_group_with_members_is_not_deleted() -> None:
    scene = Scene()
    scene.join("m1")
    with pytest.raises(GroupNotEmptyError, match=r"has 1 member\. Stop its consumers first"):
        scene.shard.delete_group(GROUP)
    scene.commit("m1", ("t", 0))
    scene.leave("m1")
    scene.take(scene.shard.delete_group(GROUP))
    assert (scene.shard.list(), scene.offset("t", 0)) == ([], -1)
    assert scene.join("m1").member_epoch == 1


def test_every_key_of_a_deleted_group_has_its_tombstone() -> None:
    """One for the group alone would let the rest rise again once compaction drops it."""
    scene = Scene()
    scene.join("m1", instance_id="i1")
    scene.join("m2", "t", instance_id="i1")
    scene.commit("m2", ("t", 0), ("t", 1))
    scene.leave("m2")
    step = scene.shard.delete_group(GROUP)
    scene.take(step)
    last = {one.key: one.value for one in scene.log}
    assert set(last.values()) == {None}
    assert len(step.records) == 4  # group, m1 that was fenced, two offsets


def test_offsets_are_forgotten_unless_a_member_subscribes_to_their_topic() -> None:
    scene = Scene({"t": 2, "u": 2})
    scene.join("m1", "t")
    scene.commit("m1", ("t", 0), ("u", 0))
    results = scene.take(
        scene.shard.delete_offsets(
            GROUP, [T0, TopicPartition("u", 0), TopicPartition("u", 1)], now=scene.now
        )
    )
    assert isinstance(results[0], GroupNotEmptyError)
    assert results[1:] == [None, None]
    assert (scene.offset("t", 0), scene.offset("u", 0)) == (7, -1)
    scene.leave("m1")
    assert scene.take(scene.shard.delete_offsets(GROUP, [T0], now=scene.now)) == [None]
    assert scene.shard.fetch(GROUP) == []


def test_what_is_fetched() -> None:
    scene = Scene()
    scene.commit(None, ("t", 1), ("t", 0), offset=4)
    assert [found.partition for found in scene.shard.fetch(GROUP)] == [0, 1]
    assert [found.offset for found in scene.shard.fetch(GROUP, [T1, TopicPartition("u", 0)])] == [
        4,
        -1,
    ]
    assert scene.shard.fetch("other") == []
    assert scene.shard.fetch("other", [T0]) == [Committed("t", 0)]


# -- deltas ----------------------------------------------------------------------------------------
#
# KIP-848 heartbeats with omitted fields.


class DeltaScene(Scene):
    """Members of the Kafka protocol. ``kept`` is what they say with their joins."""

    def delta(self, name: str, epoch: int | None = None, **fields: Any) -> HeartbeatResult:
        if epoch is None:
            epoch = self.epoch_of(name)
        delta = HeartbeatDelta(
            **{
                "group": GROUP,
                "member_id": name,
                "member_epoch": epoch,
                "connection": 1,
                "session_timeout_ms": SESSION_MS,
                **fields,
            }
        )
        beat = self.shard.complete(delta)
        result: HeartbeatResult = self.take(
            self.shard.heartbeat(beat, now=self.now, now_ms=self.now_ms)
        )
        return result

    def enter(self, name: str, **fields: Any) -> HeartbeatResult:
        said = {"topics": ("t",), "rebalance_timeout_ms": REBALANCE_MS, **fields}
        return self.delta(name, 0, **said)


def owned(*partitions: int) -> tuple[tuple[str, tuple[int, ...]], ...]:
    return (("id-t", partitions),)


def test_omitted_fields_stay_as_they_were() -> None:
    scene = DeltaScene()
    scene.enter("a", rack="r", assignor="range", instance_id="i")
    scene.delta("a")
    member = scene.members[0]
    assert (member.topics, member.instance_id) == (("t",), "i")
    assert scene.shard.describe(GROUP).assignor == "range"
    scene.set_topics({"t": 4, "u": 1})
    scene.delta("a", topics=("u",))
    scene.delta("a", owned=())
    assert scene.of("a", "u") == {0}


def test_omitted_partitions_release_nothing() -> None:
    scene = DeltaScene()
    scene.enter("a")
    scene.enter("b")
    assert scene.of("b") == set()
    scene.delta("a")
    assert scene.of("b") == set(), "a has not said that it gave up anything"
    scene.delta("a", owned=owned(*scene.of("a")))
    assert len(scene.of("b")) == 2


def test_a_heartbeat_of_an_older_connection_changes_nothing() -> None:
    scene = DeltaScene()
    scene.enter("a", connection=5)
    scene.enter("b")
    assert len(scene.delta("a", owned=(), connection=4).assignment[0].partitions) == 2
    assert scene.of("b") == set()
    scene.delta("a", owned=owned(*scene.of("a")), connection=5)
    assert len(scene.of("b")) == 2


def test_a_join_names_its_topics() -> None:
    with pytest.raises(InvalidRequestError, match="subscription"):
        DeltaScene().enter("a", topics=None)
    with pytest.raises(InvalidRequestError):
        DeltaScene().enter("a", rebalance_timeout_ms=-1)
    with pytest.raises(UnknownMemberError):
        DeltaScene().delta("a", 3)


def test_an_instance_is_taken_only_from_a_member_that_is_away() -> None:
    scene = DeltaScene()
    before = scene.enter("a", instance_id="i")
    with pytest.raises(InstanceInUseError):
        scene.enter("b", instance_id="i")
    scene.delta("a", AWAY_EPOCH)
    assert scene.enter("b", instance_id="i").assignment == before.assignment


def test_a_member_that_left_can_join_again() -> None:
    scene = DeltaScene()
    scene.enter("a")
    scene.delta("a", LEAVE_EPOCH)
    assert scene.enter("a").member_epoch > 0


def test_a_regular_expression_stays_with_the_member() -> None:
    scene = DeltaScene()
    both, seen = Interest(("a",), "t.*"), Topics()
    scene.enter("m", topics=("a", "t"), interest=both, matched=Topics())
    scene.delta("m")
    assert scene.shard.interest(GROUP, "m")[0] == both
    scene.delta("m", topics=("a", "t"), interest=both, matched=seen)
    assert scene.shard.interest(GROUP, "m") == (both, seen)
    scene.fail_over()
    assert scene.shard.interest(GROUP, "m") == (both, None), "the topics may have changed since"
    other = Interest(("a",), "t|u")
    before = len(scene.log)
    scene.delta("m", topics=("a", "t"), interest=other, matched=seen)
    assert len(scene.log) > before, "the next coordinator has to know it"
    scene.fail_over()
    assert scene.shard.interest(GROUP, "m")[0] == other
    scene.delta("m", topics=("t",))
    assert scene.shard.interest(GROUP, "m")[0] is None
    assert scene.shard.interest(GROUP, "unknown") == (None, None)


# -- placement -------------------------------------------------------------------------------------
#
# A group's partition is for ever: these are golden.


@pytest.mark.parametrize(
    ("group", "digest"), [("21", -973932308), ("foobar", -790332482), ("abc", 479470107)]
)
def test_a_group_is_hashed_as_kafka_hashes_a_key(group: str, digest: int) -> None:
    assert partition_of_group(group, 16) == (digest & POSITIVE) % 16


def test_its_name_is_hashed_as_utf_8() -> None:
    assert partition_of_group("größe", 16) == partition_of_key("größe".encode(), 16)


# -- replaying -------------------------------------------------------------------------------------
#
# A log gives the state, in any order and however often; and a new coordinator goes on from it.


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


# -- timers ----------------------------------------------------------------------------------------
#
# What is due comes out in the order of time; what is put off costs nothing.


def test_what_is_due_comes_in_the_order_of_time() -> None:
    timers = Timers()
    assert timers.next_at is None
    assert timers.pop_due(9.0) is None
    for at, group, member in ((3.0, "b", "m"), (1.0, "g", ""), (3.0, "a", "m")):
        timers.add(at, group, member)
    assert timers.next_at == 1.0
    assert timers.pop_due(0.9) is None
    due = [timers.pop_due(3.0) for _ in range(4)]
    assert due == [(1.0, "g", ""), (3.0, "b", "m"), (3.0, "a", "m"), None]
