"""Classic groups: joins, syncs, sessions, static members, and what a next coordinator knows."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from random import Random
from typing import Any

import pytest

from raftlog import limits
from raftlog.consumer_groups import (
    BUILT_IN,
    NO_GENERATION,
    Departure,
    GroupRecord,
    GroupSettings,
    GroupShard,
    Join,
    JoinResult,
    Sync,
    SyncResult,
    TopicInfo,
)
from raftlog.consumer_groups.classic import ClassicGroup
from raftlog.errors import (
    FencedMemberError,
    GroupFullError,
    GroupNotEmptyError,
    InconsistentGroupProtocolError,
    InstanceFencedError,
    InvalidGroupError,
    InvalidRequestError,
    RaftlogError,
    RebalanceInProgressError,
    UnknownMemberError,
)
from raftlog.server.groups.coordinator import MESSAGE_BYTES_MAX
from raftlog.server.log_shard import BATCH_OVERHEAD_BYTES
from raftlog.testing.kafka_wire import assignment, subscription
from tests.consumer_groups.scene import (
    GROUP,
    REBALANCE_MS,
    SESSION_MS,
    ClassicScene,
    check_invariants,
    compacted,
    groups_of,
    replayed,
)

SESSION_S, REBALANCE_S = SESSION_MS / 1_000, REBALANCE_MS / 1_000


def test_the_first_member_leads_a_generation_at_once_without_a_delay() -> None:
    scene = ClassicScene()
    result = scene.enter("a")
    assert result is not None
    assert (result.generation, result.leader, result.protocol) == (1, "a", "range")
    assert [(m.member_id, m.metadata) for m in result.members] == [("a", subscription("t"))]
    synced = scene.sync("a", {"a": assignment("t", 0, 1)})
    assert synced is not None
    assert synced.assignment == assignment("t", 0, 1)
    assert scene.group.phase == "stable"


def test_a_member_needs_an_id_first_where_its_client_can_use_one() -> None:
    scene = ClassicScene()
    given = scene.enter("a", needs_member_id=True)
    assert given == JoinResult(NO_GENERATION, "a")
    assert scene.group.members == {}
    result = scene.again("a", needs_member_id=True)
    assert result.generation == 1
    with pytest.raises(UnknownMemberError):
        scene.again("invented")


def test_a_given_id_is_valid_for_the_session_timeout() -> None:
    scene = ClassicScene()
    scene.enter("a", needs_member_id=True)
    scene.after(SESSION_S)
    with pytest.raises(UnknownMemberError):
        scene.again("a")


def test_a_rebalance_waits_for_the_members_and_for_given_ids() -> None:
    scene = ClassicScene()
    scene.formed("a")
    assert scene.enter("b") is None
    with pytest.raises(RebalanceInProgressError):
        scene.pulse("a")
    scene.enter("c", needs_member_id=True)
    assert scene.again("a") is None
    assert scene.group.phase == "preparing_rebalance"
    result = scene.again("c")
    assert result.generation == 2
    assert {scene.answer(name).generation for name in "ab"} == {2}
    assert scene.group.leader == "a"


def test_assignments_are_answered_when_the_leader_has_sent_them() -> None:
    scene = ClassicScene()
    scene.formed("a")
    scene.enter("b")
    scene.again("a")
    assert scene.sync("b") is None
    scene.pulse("b")  # heartbeats go on while members wait for the leader
    mine = scene.sync("a", {"a": assignment("t", 0), "b": assignment("t", 1), "stranger": b"x"})
    assert mine is not None
    assert mine.assignment == assignment("t", 0)
    assert scene.answer("b").assignment == assignment("t", 1)
    again = scene.sync("b")  # the response was lost
    assert again is not None
    assert again.assignment == assignment("t", 1)


def test_the_first_rebalance_waits_for_more_members_but_not_for_ever() -> None:
    scene = ClassicScene(initial_rebalance_delay_ms=3_000)
    assert scene.enter("a", rebalance_timeout_ms=8_000) is None
    scene.after(2.0)
    assert scene.enter("b", rebalance_timeout_ms=8_000) is None
    scene.after(1.0)
    assert not scene.answers
    scene.after(2.0)
    scene.enter("c", rebalance_timeout_ms=8_000)
    scene.after(1.0)  # 6 s
    scene.enter("d", rebalance_timeout_ms=8_000)
    scene.after(1.9)
    assert not scene.answers
    scene.after(0.1)  # 8 s
    assert sorted(scene.answers) == ["a", "b", "c", "d"]
    assert scene.group.generation == 1


def test_members_that_do_not_join_again_in_time_are_removed() -> None:
    scene = ClassicScene()
    scene.formed("a", "b")
    assert scene.enter("c") is None
    assert scene.again("b") is None
    for _ in range(6):
        scene.after(REBALANCE_S / 6)
        if "a" in scene.group.members:
            with pytest.raises(RebalanceInProgressError):
                scene.pulse("a")
    assert sorted(scene.group.members) == ["b", "c"]
    assert scene.answer("b").leader == "b"
    assert scene.answer("c").members == ()


def test_a_leader_that_does_not_assign_is_removed() -> None:
    scene = ClassicScene()
    scene.formed("a")
    scene.enter("b")
    scene.again("a")
    scene.answers.clear()
    scene.sync("b")
    for _ in range(6):
        scene.after(REBALANCE_S / 6)
        if scene.group.phase == "completing_rebalance":
            scene.pulse("a")
    assert isinstance(scene.answer("b"), RebalanceInProgressError)
    assert sorted(scene.group.members) == ["b"]


def test_a_session_ends_without_heartbeats_and_the_rest_rebalances() -> None:
    scene = ClassicScene()
    scene.formed("a", "b")
    scene.after(SESSION_S / 2)
    scene.pulse("a")
    scene.after(SESSION_S / 2)
    assert sorted(scene.group.members) == ["a"]
    with pytest.raises(UnknownMemberError):
        scene.pulse("b")
    with pytest.raises(RebalanceInProgressError):
        scene.pulse("a")


def test_waiting_members_do_not_lose_their_sessions() -> None:
    scene = ClassicScene()
    scene.formed("a")
    scene.enter("b")
    scene.after(SESSION_S - 1)
    with pytest.raises(RebalanceInProgressError):
        scene.pulse("a")
    scene.after(SESSION_S - 1)
    assert sorted(scene.group.members) == ["a", "b"]


def test_a_stalled_coordinator_ends_no_session_before_it_reads_requests() -> None:
    scene = ClassicScene(grace_ms=2_000)
    scene.formed("a")
    scene.now += SESSION_S + 10
    step = scene.shard.tick(now=scene.now, now_ms=scene.now_ms, expiry_ms=None)
    scene.take(step)
    scene.pulse("a")
    scene.after(SESSION_S - 1)
    assert sorted(scene.group.members) == ["a"]


def test_leaving_rebalances_and_the_last_one_empties_the_group() -> None:
    scene = ClassicScene()
    scene.formed("a", "b")
    assert scene.depart("a") == [None]
    with pytest.raises(RebalanceInProgressError):
        scene.pulse("b")
    outcome = scene.depart("b", "nobody")
    assert outcome[0] is None
    assert isinstance(outcome[1], UnknownMemberError)
    assert scene.state == "empty"
    assert scene.enter("c").generation == 4  # never one that was there before


def test_who_stays_is_answered_when_the_missing_one_leaves() -> None:
    scene = ClassicScene()
    scene.formed("a", "b")
    scene.again("a")
    assert scene.waiting
    scene.depart("b")
    assert [m.member_id for m in scene.answer("a").members] == ["a"]


@pytest.mark.parametrize(("generation", "error"), [(0, FencedMemberError), (5, FencedMemberError)])
def test_another_generation_is_refused(generation: int, error: Any) -> None:
    scene = ClassicScene()
    scene.formed("a")
    with pytest.raises(error):
        scene.pulse("a", generation)
    with pytest.raises(error):
        scene.sync("a", generation=generation)
    with pytest.raises(error):
        scene.commit("a", ("t", 0), epoch=generation)


def test_a_follower_that_repeats_its_join_gets_the_same_generation() -> None:
    scene = ClassicScene()
    scene.formed("a", "b")
    generation = scene.group.generation
    assert scene.again("b").generation == generation
    assert scene.group.phase == "stable"
    assert scene.again("a") is None, "the leader's join begins a rebalance"


def test_another_subscription_begins_a_rebalance() -> None:
    scene = ClassicScene()
    scene.formed("a", "b")
    assert scene.again("b", ("range", subscription("other"))) is None


def test_the_protocol_is_what_all_support_and_most_prefer() -> None:
    scene = ClassicScene(initial_rebalance_delay_ms=1_000)
    scene.enter("a", "x", "range", "sticky")
    scene.enter("b", "sticky", "range")
    scene.enter("c", "sticky", "range")
    scene.after(1)
    scene.after(1)
    assert scene.answer("a").protocol == "sticky"
    for protocols, fields in [(("x",), {}), (("range",), {"protocol_type": "connect"}), ((), {})]:
        given = fields if protocols else {"protocols": ()}
        with pytest.raises(InconsistentGroupProtocolError):
            scene.enter("d", *protocols, **given)
    with pytest.raises(InconsistentGroupProtocolError):
        scene.sync("a", protocol="range")
    with pytest.raises(InconsistentGroupProtocolError):
        scene.sync("a", protocol_type="connect")


def test_bounds_are_checked_before_anything_changes() -> None:
    scene = ClassicScene(members_per_group_max=2)
    for fields in (
        {"session_timeout_ms": 1},
        {"protocols": tuple((str(n), b"") for n in range(limits.CLASSIC_PROTOCOLS_MAX + 1))},
        {"protocol_type": "é" * 16_384},
        {"protocols": (("x" * (limits.CLASSIC_NAME_BYTES_MAX + 1), b""),)},
        {"protocols": (("x", bytes(limits.CLASSIC_METADATA_BYTES_MAX + 1)),)},
        {"protocols": tuple((str(n), bytes(limits.CLASSIC_METADATA_BYTES_MAX)) for n in range(9))},
    ):
        with pytest.raises(InvalidRequestError):
            scene.enter("a", **fields)
    with pytest.raises(InvalidGroupError):
        scene.enter("a", instance="")
    with pytest.raises(InvalidGroupError):
        scene.enter("a", group="")
    assert scene.shard.list() == []
    scene.formed("a")
    scene.enter("b", needs_member_id=True)
    with pytest.raises(GroupFullError):
        scene.enter("c")
    scene.again("b")
    scene.again("a")
    for given in ({"a": bytes(limits.CLASSIC_METADATA_BYTES_MAX + 1)},):
        with pytest.raises(InvalidRequestError):
            scene.sync("a", given)
    assert scene.group.phase == "completing_rebalance"


def test_all_subscriptions_of_a_group_are_bounded() -> None:
    scene = ClassicScene(initial_rebalance_delay_ms=1_000)
    for number in range(8):
        big = ("range", bytes(limits.CLASSIC_METADATA_BYTES_MAX - 1_000))
        scene.enter(f"m{number}", big)
    with pytest.raises(InvalidRequestError, match="in total"):
        scene.enter("m8", big)


def test_a_member_and_its_assignment_fit_one_record() -> None:
    """Else the log rejects the record, and all groups of the coordinator are loaded again."""
    scene = ClassicScene()
    size = limits.CLASSIC_METADATA_BYTES_MAX
    most = [(name, bytes(size - 32)) for name in ("range", *"bcdef")]
    with pytest.raises(InvalidRequestError, match="of subscriptions"):
        scene.enter("a", *most, ("g" * 256, b""))
    assert scene.shard.list() == []
    instance = "i" * limits.INSTANCE_ID_CHARS_MAX
    assert scene.enter("a", *most, instance=instance) is not None
    given = (("a", bytes(size)),)
    sync = Sync(group=GROUP, member_id="a", generation=1, instance_id=instance, assignments=given)
    records = scene.shard.sync(sync, now=scene.now, now_ms=scene.now_ms).records
    sizes = [len(each.value or b"") + BATCH_OVERHEAD_BYTES for each in records]
    assert 7 * size - 1_000 < max(sizes) < MESSAGE_BYTES_MAX


# -- static members --------------------------------------------------------------------------------


def test_a_restarted_static_member_has_its_assignment_without_a_rebalance() -> None:
    scene = ClassicScene(initial_rebalance_delay_ms=1_000)
    scene.enter("a")
    scene.enter("b1", instance="i")
    scene.after(1)
    scene.after(1)
    scene.sync("b1", instance="i")
    scene.sync("a", {"a": assignment("t", 0), "b1": assignment("t", 1)})
    joined = scene.enter("b2", instance="i")
    assert joined is not None
    assert (joined.generation, joined.leader, joined.members) == (1, "a", ())
    synced = scene.sync("b2", instance="i")
    assert synced is not None
    assert synced.assignment == assignment("t", 1)
    scene.pulse("a")  # it has not noticed anything
    for request in (scene.pulse, scene.sync, scene.again):
        with pytest.raises(InstanceFencedError):
            request("b1", instance="i")
    with pytest.raises(InstanceFencedError):
        scene.shard.commit(
            GROUP, "b1", 1, [], {}, instance_id="i", now=scene.now, now_ms=scene.now_ms
        )
    with pytest.raises(UnknownMemberError):
        scene.pulse("b1")
    with pytest.raises(UnknownMemberError):
        scene.pulse("a", instance="other")


def test_a_restarted_static_leader_skips_the_assignment() -> None:
    scene = ClassicScene()
    scene.enter("a1", instance="i")
    scene.sync("a1", {"a1": b"mine"}, instance="i")
    new = scene.enter("a2", instance="i", may_skip_assignment=True)
    assert new is not None
    assert (new.skip_assignment, new.leader) == (True, "a2")
    assert [m.member_id for m in new.members] == ["a2"]
    old = scene.enter("a3", instance="i")
    assert old is not None
    assert (old.skip_assignment, old.leader, old.members) == (False, "a2", ())
    assert scene.group.leader == "a3"
    scene.enter("a4", ("range", subscription("t", "u")), instance="i")
    assert scene.group.phase == "completing_rebalance", "it subscribes to more"


def test_a_waiting_static_member_is_fenced_by_its_successor() -> None:
    scene = ClassicScene(initial_rebalance_delay_ms=5_000)
    scene.enter("a1", instance="i")
    scene.enter("a2", instance="i")
    assert isinstance(scene.answer("a1"), InstanceFencedError)
    scene.after(5)
    scene.after(5)
    assert scene.answer("a2").generation == 1


def test_static_members_survive_a_rebalance_that_they_miss() -> None:
    scene = ClassicScene(initial_rebalance_delay_ms=1_000)
    fields = {"session_timeout_ms": int(REBALANCE_MS * 3)}
    scene.enter("a", **fields)
    scene.enter("b", instance="i", **fields)
    scene.after(2)
    scene.synced("a", "b")
    scene.enter("c", **fields)
    scene.again("a", **fields)
    scene.after(REBALANCE_S)
    assert sorted(scene.group.members) == ["a", "b", "c"]
    assert scene.group.phase == "completing_rebalance"


def test_a_rebalance_that_only_static_members_miss_waits_for_their_sessions() -> None:
    scene = ClassicScene()
    scene.enter("a", instance="i", session_timeout_ms=int(REBALANCE_MS * 1.5))
    scene.synced("a")
    scene.enter("b", rebalance_timeout_ms=REBALANCE_MS)
    scene.depart("b")
    scene.after(REBALANCE_S)
    assert sorted(scene.group.members) == ["a"]
    scene.after(REBALANCE_S)
    assert scene.state == "empty"


def test_an_operator_removes_a_static_member_by_its_instance() -> None:
    scene = ClassicScene()
    scene.enter("a", instance="i")
    outcome = scene.depart(Departure("", "nobody"), Departure("x", "i"), Departure("", "i"))
    assert [type(one) for one in outcome] == [UnknownMemberError, InstanceFencedError, type(None)]


# -- offsets ---------------------------------------------------------------------------------------


def test_members_of_the_generation_commit_any_partition() -> None:
    scene = ClassicScene()
    scene.formed("a", "b")
    assert scene.commit("b", ("t", 0), epoch=scene.group.generation) == [None]
    assert scene.offset("t", 0) == 7
    with pytest.raises(GroupNotEmptyError):
        scene.commit(None, ("t", 0))
    with pytest.raises(UnknownMemberError):
        scene.commit("x", ("t", 0), epoch=1)
    scene.enter("c")
    scene.commit("a", ("t", 1), epoch=scene.group.generation)  # before it joins again
    scene.again("a")
    scene.again("b")
    with pytest.raises(RebalanceInProgressError):
        scene.commit("a", ("t", 1), epoch=scene.group.generation)


def test_a_commit_renews_the_session() -> None:
    scene = ClassicScene()
    scene.formed("a")
    for _ in range(3):
        scene.after(SESSION_S - 1)
        scene.commit("a", ("t", 0), epoch=scene.group.generation)
    assert sorted(scene.group.members) == ["a"]


def test_offsets_of_subscribed_topics_cannot_be_deleted() -> None:
    scene = ClassicScene()
    scene.set_topics({"t": 4, "u": 1})
    scene.formed("a")
    scene.commit("a", ("t", 0), ("u", 0), epoch=scene.group.generation)

    def deleted(topic: str) -> Any:
        asked = [(topic, 0)]
        return scene.take(scene.shard.delete_offsets(GROUP, asked, now=scene.now))[0]  # type: ignore[arg-type]

    assert isinstance(deleted("t"), GroupNotEmptyError)
    assert deleted("u") is None
    scene.depart("a")
    assert deleted("t") is None
    scene.enter("x", protocol_type="connect")
    assert isinstance(deleted("u"), GroupNotEmptyError), "what Connect reads is not known"


# -- kinds -----------------------------------------------------------------------------------------


def test_a_group_has_members_of_one_kind_and_keeps_its_offsets() -> None:
    scene = ClassicScene()
    scene.commit(None, ("t", 0))
    scene.enter("a")
    with pytest.raises(InconsistentGroupProtocolError):
        scene.join("n")
    scene.depart("a")
    scene.join("n")
    assert scene.offset("t", 0) == 7
    assert scene.shard.list()[0].type == "consumer"
    with pytest.raises(InconsistentGroupProtocolError):
        scene.enter("a")
    with pytest.raises(UnknownMemberError):
        scene.pulse("a", 1)
    scene.leave("n")
    assert scene.enter("a") is not None
    assert (scene.shard.list()[0].type, scene.offset("t", 0)) == ("classic", 7)


def test_a_group_with_classic_members_is_not_deleted() -> None:
    scene = ClassicScene()
    scene.formed("a")
    with pytest.raises(GroupNotEmptyError):
        scene.shard.delete_group(GROUP)
    scene.depart("a")
    scene.take(scene.shard.delete_group(GROUP))
    assert scene.shard.list() == []


# -- the next coordinator --------------------------------------------------------------------------


def test_the_next_coordinator_serves_the_same_generation() -> None:
    scene = ClassicScene()
    scene.formed("a", "b")
    scene.fail_over()
    scene.pulse("b")
    synced = scene.sync("b")
    assert synced is not None
    assert synced.assignment == assignment("t", 1)
    scene.after(SESSION_S)
    assert scene.state == "empty"


def test_the_next_coordinator_goes_on_with_a_rebalance() -> None:
    scene = ClassicScene()
    scene.formed("a", "b")
    scene.depart("b")
    scene.fail_over()
    with pytest.raises(RebalanceInProgressError):
        scene.pulse("a")
    joined = scene.again("a")
    assert [m.member_id for m in joined.members] == ["a"]
    assert joined.generation == 3
    scene.fail_over()
    assert scene.group.phase == "completing_rebalance"
    assert scene.again("a").generation == 3, "its response was lost"
    assert scene.sync("a", {"a": b"x"}).assignment == b"x"  # type: ignore[union-attr]


def test_the_next_coordinator_ends_a_rebalance_that_members_forget() -> None:
    scene = ClassicScene()
    scene.formed("a", "b")
    scene.depart("b")
    scene.fail_over()
    scene.after(REBALANCE_S)
    assert scene.state == "empty"


def test_a_member_that_no_generation_has_is_unknown_to_the_next_coordinator() -> None:
    scene = ClassicScene()
    scene.formed("a")
    scene.enter("b")
    scene.fail_over()
    with pytest.raises(UnknownMemberError):
        scene.again("b")


# -- classic model ---------------------------------------------------------------------------------
#
# Classic groups under lost answers, ended sessions and failovers, by seeds.
#
# What has to hold: no generation is given to different members or with different assignments,
# however much a failover discards; every rebalance ends; and at rest, all members are in one
# generation.


CLASSIC_MODEL_GROUP = "g"
TOPICS = {"t": TopicInfo("id-t", 4)}
STEPS = 150
CLASSIC_MODEL_SESSION_MS, CLASSIC_MODEL_REBALANCE_MS = 10_000, 20_000


@dataclass
class Actor:
    """A consumer, and what it knows of the group."""

    name: str
    instance: str | None
    member_id: str = ""
    generation: int = NO_GENERATION
    leads: tuple[str, ...] = ()
    wants: str = "join"  # the next request: "join", "sync", or "pulse" when it has an assignment
    is_waiting: bool = False
    number: int = 0  # of its last request: an answer to an older one is not for it


class World:
    """One group. A coordinator's answers come when the log has what they tell of."""

    def __init__(self, random: Random) -> None:
        self.random = random
        self.now = 100.0
        self.settings = GroupSettings(initial_rebalance_delay_ms=random.choice((0, 2_000)))
        self.shard = GroupShard(self.settings, BUILT_IN)
        self.log: list[GroupRecord] = []
        self.ends = [0]
        self.committed = 0
        self.ids = 0
        self.actors: list[Actor] = []
        self.parked: dict[str, tuple[Actor, int, str]] = {}
        self.answers: list[tuple[Actor, int, Any, int]] = []
        self.generations: dict[int, tuple[str, tuple[str, ...]]] = {}
        self.assignments: dict[tuple[int, str], bytes] = {}
        self._start()

    @property
    def now_ms(self) -> int:
        return int(self.now * 1_000)

    def add(self) -> None:
        instance = self.random.choice((None, None, "i", "j"))
        if instance is not None:  # a newer process takes the place of the older one
            self.actors = [one for one in self.actors if one.instance != instance]
        self.actors.append(Actor(f"c{len(self.actors)}", instance))

    def request(self, actor: Actor) -> None:
        """The actor sends what it wants next, also when an answer is outstanding: it lost it."""
        actor.number += 1
        actor.is_waiting = True
        self.ids += 1
        new_id = f"m{self.ids}"
        name = actor.member_id or new_id
        old = self.parked.pop(name, None)
        if old is not None:
            self._answer(*old[:2], RebalanceInProgressError("an older request"))
        try:
            result = self._ask(actor, new_id)
        except RaftlogError as error:
            self._answer(actor, actor.number, error)
            return
        if result is None and actor.wants != "pulse":
            self.parked[name] = actor, actor.number, actor.wants
        else:
            self._answer(actor, actor.number, result)

    def _ask(self, actor: Actor, new_id: str) -> Any:
        if actor.wants == "join":
            join = Join(
                group=CLASSIC_MODEL_GROUP,
                member_id=actor.member_id,
                new_member_id=new_id,
                instance_id=actor.instance,
                protocol_type="consumer",
                protocols=(("range", b"x"),),
                session_timeout_ms=CLASSIC_MODEL_SESSION_MS,
                rebalance_timeout_ms=CLASSIC_MODEL_REBALANCE_MS,
                needs_member_id=self.random.random() < 0.7,
                may_skip_assignment=True,
            )
            return self._take(self.shard.join(join, now=self.now, now_ms=self.now_ms))
        who = actor.member_id, actor.instance
        if actor.wants == "sync":
            given = tuple((name, self.random.randbytes(4)) for name in actor.leads)
            sync = Sync(
                group=CLASSIC_MODEL_GROUP,
                member_id=actor.member_id,
                instance_id=actor.instance,
                generation=actor.generation,
                assignments=given,
            )
            return self._take(self.shard.sync(sync, now=self.now, now_ms=self.now_ms))
        return self._take(
            self.shard.classic_heartbeat(CLASSIC_MODEL_GROUP, *who, actor.generation, now=self.now)
        )

    def leave(self, actor: Actor) -> None:
        self.actors.remove(actor)
        if actor.member_id and self.random.random() < 0.7:
            gone = [Departure(actor.member_id, actor.instance)]
            try:
                self._take(
                    self.shard.leave(CLASSIC_MODEL_GROUP, gone, now=self.now, now_ms=self.now_ms)
                )
            except RaftlogError:
                return

    def hear(self, actor: Actor, number: int, result: Any) -> None:
        if number != actor.number:
            return
        actor.is_waiting = False
        if isinstance(result, JoinResult):
            actor.member_id = result.member_id
            if result.generation == NO_GENERATION:
                return
            actor.generation = result.generation
            actor.leads = () if result.skip_assignment else self._led(result)
            actor.wants = "sync"
        elif isinstance(result, SyncResult):
            key = actor.generation, actor.member_id
            assert self.assignments.setdefault(key, result.assignment) == result.assignment
            actor.wants = "pulse"
        elif isinstance(result, RaftlogError):
            actor.wants = "join"
            if not isinstance(result, RebalanceInProgressError):
                actor.member_id = ""

    def _led(self, result: JoinResult) -> tuple[str, ...]:
        members = tuple(sorted(member.member_id for member in result.members))
        if members and not self._has_static():
            known = self.generations.setdefault(result.generation, (result.leader, members))
            assert known == (result.leader, members), "a generation was given twice"
        return members

    def _has_static(self) -> bool:
        """A static member changes its ID within a generation."""
        return any(name.startswith(("i", "j")) for name in self.classic.instances)

    @property
    def classic(self) -> ClassicGroup:
        found = groups_of(self.shard)[CLASSIC_MODEL_GROUP].classic
        assert found is not None
        return found

    def answer_committed(self) -> None:
        answers, self.answers = self.answers, []
        for actor, number, result, end in answers:
            if end <= self.committed:
                self.hear(actor, number, result)
            else:
                self.answers.append((actor, number, result, end))

    def pass_time(self, seconds: float) -> None:
        end = self.now + seconds
        while (at := self.shard.deadline()) is not None and at <= end:
            self.now = max(self.now, at)
            self._take(self.shard.tick(now=self.now, now_ms=self.now_ms, expiry_ms=self.now_ms))
        self.now = end

    def fail_over(self) -> None:
        end = self.random.choice([end for end in self.ends if end >= self.committed])
        del self.log[end:]
        self.ends = [at for at in self.ends if at <= end]
        self.committed = end
        self.answers = [answer for answer in self.answers if answer[3] <= end]
        self.parked.clear()
        self.shard = replayed(compacted(self.log, self.random), self.settings)
        self._start()

    def come_to_rest(self) -> None:
        for _ in range(60):
            for actor in self.actors:
                if not actor.is_waiting or self.random.random() < 0.2:
                    self.request(actor)
            self.committed = len(self.log)
            self.answer_committed()
            self.pass_time(2)
        if self.actors:
            assert self.classic.phase == "stable"
            assert {actor.wants for actor in self.actors} == {"pulse"}
            assert {actor.generation for actor in self.actors} == {self.classic.generation}
            assert {actor.member_id for actor in self.actors} == self.classic.members.keys()

    def _start(self) -> None:
        self._take(self.shard.start(TOPICS, version=1, now=self.now, now_ms=self.now_ms))

    def _answer(self, actor: Actor, number: int, result: Any) -> None:
        self.answers.append((actor, number, result, len(self.log)))

    def _take(self, step: Any) -> Any:
        if step.records:
            self.log += step.records
            self.ends.append(len(self.log))
        for _, name in sorted(step.wake):
            waiting = self.parked.pop(name, None)
            if waiting is None:
                continue
            actor, number, kind = waiting
            ask = self.shard.join_result if kind == "join" else self.shard.sync_result
            try:
                self._answer(actor, number, ask(CLASSIC_MODEL_GROUP, name, actor.instance))
            except RaftlogError as error:
                self._answer(actor, number, error)
        check_invariants(self.shard)
        return step.result


def run(seed: int) -> None:
    random = Random(seed)
    world = World(random)
    world.add()
    for _ in range(STEPS):
        roll = random.random()
        actor = random.choice(world.actors) if world.actors else None
        if roll < 0.5 and actor is not None:
            if not actor.is_waiting or random.random() < 0.1:
                world.request(actor)
        elif roll < 0.6:
            world.committed = random.choice([e for e in world.ends if e >= world.committed])
        elif roll < 0.8:
            world.answer_committed()
        elif roll < 0.9:
            world.pass_time(random.choice((0.5, 3.0, 12.0)))
        elif roll < 0.93:
            world.fail_over()
        elif roll < 0.97 and len(world.actors) < 5:
            world.add()
        elif actor is not None:
            world.leave(actor)
    world.come_to_rest()


def test_seeded_runs_break_no_promise(seed: int) -> None:
    for number in range(seed, seed + 150):
        run(number)


@pytest.mark.parametrize(
    "runs",
    [
        pytest.param(2_500, marks=pytest.mark.seeds),
        pytest.param(50_000, marks=pytest.mark.nightly),
    ],
)
@pytest.mark.timeout(0)
def test_many_seeded_runs_break_no_promise(seed: int, runs: int) -> None:
    for number in range(seed, seed + runs):
        run(number)


def gives_a_generation_twice(patch: pytest.MonkeyPatch) -> None:
    restore = ClassicGroup.restore

    def careless(self: ClassicGroup, value: Any) -> None:
        restore(self, value)
        self.generation = max(0, self.generation - 1)

    patch.setattr(ClassicGroup, "restore", careless)


def forgets_that_a_rebalance_began(patch: pytest.MonkeyPatch) -> None:
    restore = ClassicGroup.restore

    def careless(self: ClassicGroup, value: Any) -> None:
        restore(self, value)
        self.phase = "stable" if self.members else "empty"

    patch.setattr(ClassicGroup, "restore", careless)


def waits_for_all(patch: pytest.MonkeyPatch) -> None:
    def careless(self: ClassicGroup, *, now: float) -> None:
        self.phase_ends = math.inf

    patch.setattr(ClassicGroup, "_end_phase", careless)


@pytest.mark.parametrize(
    "mistake", [gives_a_generation_twice, forgets_that_a_rebalance_began, waits_for_all]
)
def test_the_model_sees_mistakes(
    mistake: Callable[[pytest.MonkeyPatch], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Or else it would prove nothing."""
    mistake(monkeypatch)
    with pytest.raises(AssertionError):
        deque((run(seed) for seed in range(1_000)), maxlen=0)
