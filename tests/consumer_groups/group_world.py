"""Members, a network, a coordinator and its log, as a whole: what the model of groups is made of.

A member here follows the rules that a client has to: it takes only the answer to its newest
heartbeat; it says what it owns until it has given it up; and if no heartbeat of it was answered for
its session timeout, it owns nothing. Answers come when the log has what they tell of.
"""

from __future__ import annotations

from collections import Counter, deque
from dataclasses import dataclass, field
from random import Random
from typing import NamedTuple

from raftlog.consumer_groups import (
    AWAY_EPOCH,
    BUILT_IN,
    JOIN_EPOCH,
    LEAVE_EPOCH,
    NO_MEMBER_EPOCH,
    Commit,
    GroupRecord,
    GroupSettings,
    GroupShard,
    Heartbeat,
    HeartbeatResult,
    Share,
    StateChange,
    TopicInfo,
)
from raftlog.consumer_groups.group import Member
from raftlog.consumer_groups.values import Part, parts_of
from raftlog.errors import (
    CoordinatorLoadingError,
    FencedMemberError,
    InstanceFencedError,
    RaftlogError,
    UnknownMemberError,
)
from raftlog.types import TopicPartition
from tests.consumer_groups.scene import check_invariants, compacted, groups_of, replayed, written

GROUP = "g"
SESSION_MS = 10_000
NOWHERE = TopicInfo("", 0)
REST_ROUNDS = 25  # of a second: all sessions can end, and all that follows from it


@dataclass
class Actor:
    """A consumer. ``owned`` is what it reads."""

    id: str
    topics: tuple[str, ...]
    instance_id: str | None = None
    assignor: str | None = None
    rebalance_timeout_ms: int = 30_000
    epoch: int = JOIN_EPOCH
    sequence: int = 0
    owned: set[Part] = field(default_factory=set)
    wanted: frozenset[Part] = frozenset()
    is_running: bool = True  # else it is paused, or dead
    is_over: bool = False  # it left, was fenced for good, or died
    sent_at: dict[int, float] = field(default_factory=dict)
    heard_at: float = 0.0  # when the newest heartbeat that was answered had been sent

    def lose(self) -> None:
        self.owned.clear()
        self.wanted = frozenset()
        self.epoch = JOIN_EPOCH

    def check_session(self, now: float) -> None:
        if self.epoch != JOIN_EPOCH and now - self.heard_at >= SESSION_MS / 1_000:
            self.lose()


class SentCommit(NamedTuple):
    """Of a partition that the member read. ``readers``: that had learned of it until then."""

    actor: Actor
    epoch: int
    part: Part
    readers: int


@dataclass
class Answer:
    actor: Actor
    sequence: int
    result: HeartbeatResult | RaftlogError
    log_end: int


class World:
    """One group, and whatever happens to it."""

    def __init__(self, random: Random) -> None:
        self.random = random
        self.settings = GroupSettings(offsets_retention_ms=60_000)
        self.now, self.topics_version = 100.0, 1
        self.topics = {"a": TopicInfo("a1", 3), "b": TopicInfo("b1", 4)}
        self.old_topics = [(1, dict(self.topics))]
        self.actors: list[Actor] = []
        self.names = 0
        self.log: list[GroupRecord] = []
        self.batch_ends = [0]
        self.committed = 0
        self.requests: list[tuple[Actor, Heartbeat]] = []  # under way
        self.sent: deque[tuple[Actor, Heartbeat]] = deque(maxlen=20)  # may come again, or late
        self.answers: list[Answer] = []
        self.parked: dict[str, tuple[Actor, Heartbeat]] = {}
        self.commits: deque[SentCommit] = deque(maxlen=20)  # under way
        self.reader: dict[Part, Actor] = {}  # the last to learn that it has the partition
        self.readers: Counter[Part] = Counter()  # how often that was another one than before
        # What is committed, by when the log had so many records: (topic id, offset, when).
        self.offsets: dict[int, dict[TopicPartition, tuple[str, int, float]]] = {0: {}}
        self.next_offset = 0
        self.shard = GroupShard(self.settings, BUILT_IN)
        self._take(self.shard.start(self.topics, version=1, now=self.now, now_ms=self.now_ms))

    @property
    def now_ms(self) -> int:
        return int(self.now * 1_000)

    @property
    def members(self) -> dict[str, Member]:
        """As the coordinator has them."""
        group = groups_of(self.shard).get(GROUP)
        return group.members if group is not None else {}

    # -- members -----------------------------------------------------------------------------------

    def send(self, actor: Actor, epoch: int | None = None) -> None:
        """A heartbeat is under way."""
        actor.sequence += 1
        actor.sent_at[actor.sequence] = self.now
        by_topic: dict[str, list[int]] = {}
        for topic_id, partition in sorted(actor.owned):
            by_topic.setdefault(topic_id, []).append(partition)
        heartbeat = Heartbeat(
            group=GROUP,
            member_id=actor.id,
            member_epoch=actor.epoch if epoch is None else epoch,
            sequence=actor.sequence,
            topics=actor.topics,
            owned=tuple(Share(t[0], t, tuple(ps)) for t, ps in by_topic.items()),
            session_timeout_ms=SESSION_MS,
            rebalance_timeout_ms=actor.rebalance_timeout_ms,
            instance_id=actor.instance_id,
            assignor=actor.assignor,
        )
        self.requests.append((actor, heartbeat))
        self.sent.append((actor, heartbeat))

    def finish(self, actor: Actor, epoch: int) -> None:
        """It leaves, or is away: in both cases it reads nothing from here on."""
        actor.owned.clear()
        actor.wanted = frozenset()
        self.send(actor, epoch)
        actor.is_over = epoch == LEAVE_EPOCH
        if epoch == AWAY_EPOCH:
            actor.epoch = JOIN_EPOCH
            actor.is_running = False

    def hear(self, answer: Answer) -> None:
        """The answer arrives."""
        actor = answer.actor
        if actor.is_over or not actor.is_running or answer.sequence != actor.sequence:
            return
        # A request that arrived twice has one answer: the other one is for a closed connection.
        sent_at = actor.sent_at.pop(answer.sequence, None)
        if sent_at is None:
            return
        actor.check_session(self.now)
        result = answer.result
        if isinstance(result, InstanceFencedError):
            actor.lose()
            actor.is_over = True
        elif isinstance(result, UnknownMemberError | FencedMemberError):
            actor.lose()
        elif isinstance(result, HeartbeatResult):
            actor.heard_at = sent_at
            if self.now - actor.heard_at >= SESSION_MS / 1_000:
                return  # too late to count on
            actor.epoch = result.member_epoch
            actor.wanted = parts_of(result.assignment)
            # One that was fenced while its answer was under way reads on until its next heartbeat,
            # but can commit nothing: it takes the partition from no one.
            for part in actor.wanted - actor.owned if self.is_heard(actor) else ():
                self.readers[part] += self.reader.get(part) is not actor
                self.reader[part] = actor
            actor.owned |= actor.wanted

    def release(self, actor: Actor, count: int) -> None:
        """It has given up some of what it was asked for."""
        if actor.is_running:
            for part in sorted(actor.owned - actor.wanted)[:count]:
                actor.owned.discard(part)

    # -- the coordinator ---------------------------------------------------------------------------

    def deliver(self, actor: Actor, heartbeat: Heartbeat) -> None:
        """The heartbeat arrives, for the first time or once more; of those that join, maybe all
        that are on their way at once.
        """
        if heartbeat.member_epoch == JOIN_EPOCH and self.random.random() < 0.8:
            others = [sent for sent in self.requests if sent[1].member_epoch == JOIN_EPOCH]
            self.requests = [sent for sent in self.requests if sent not in others]
            self._admit([(actor, heartbeat), *others])
            return
        self._answer_parked(heartbeat.member_id)
        try:
            step = self.shard.heartbeat(heartbeat, now=self.now, now_ms=self.now_ms)
        except CoordinatorLoadingError:
            return
        except RaftlogError as error:
            self._answer(actor, heartbeat, error)
            return
        self._take(step)
        if step.result.is_news_to(heartbeat):
            self._answer(actor, heartbeat, step.result)
        else:
            self.parked[heartbeat.member_id] = (actor, heartbeat)

    def _admit(self, sent: list[tuple[Actor, Heartbeat]]) -> None:
        for _, heartbeat in sent:
            self._answer_parked(heartbeat.member_id)
        joins = [heartbeat for _, heartbeat in sent]
        try:
            step = self.shard.join_all(joins, now=self.now, now_ms=self.now_ms)
        except CoordinatorLoadingError:
            return
        self._take(step)
        for (actor, heartbeat), outcome in zip(sent, step.result, strict=True):
            self._answer(actor, heartbeat, outcome)

    def send_commit(self, actor: Actor, part: Part) -> None:
        self.commits.append(SentCommit(actor, actor.epoch, part, self.readers[part]))

    def deliver_commit(self, sent: SentCommit) -> None:
        """Deliver the commit, possibly late. The coordinator accepts it only if no other member has
        read the partition since then."""
        if self.commit(sent.actor, sent.part, epoch=sent.epoch):
            assert self.readers[sent.part] == sent.readers, sent

    def commit(self, actor: Actor | None, part: Part, *, epoch: int | None = None) -> bool:
        """Commit as a member, or as a client that is none. What was accepted must be fetched from
        then on.

        ``epoch``: default: the member's. Returns whether it was accepted.
        """
        topic = part[0][0]
        self.next_offset += 1
        where, commit = TopicPartition(topic, part[1]), Commit(topic, part[1], self.next_offset)
        who = ("", NO_MEMBER_EPOCH)
        if actor is not None:
            who = (actor.id, actor.epoch if epoch is None else epoch)
        ids = {topic: part[0]}
        try:
            step = self.shard.commit(GROUP, *who, [commit], ids, now=self.now, now_ms=self.now_ms)
        except RaftlogError:
            return False
        before = self.offsets[len(self.log)]
        self._take(step)
        if step.result != [None]:
            return False
        for other in self.actors:
            assert other is actor or part not in other.owned or not self.is_heard(other)
        after = {**before, where: (part[0], self.next_offset, self.now)}
        self.offsets[len(self.log)] = after
        return True

    def tick(self) -> None:
        deadline = self.shard.deadline()
        while deadline is not None and deadline <= self.now:
            self._take(self.shard.tick(now=self.now, now_ms=self.now_ms, expiry_ms=self.now_ms))
            deadline = self.shard.deadline()

    def set_topics(self) -> None:
        self.topics_version += 1
        self.old_topics.append((self.topics_version, dict(self.topics)))
        self.catch_up()

    def catch_up(self) -> None:
        """The coordinator hears of the newest topics."""
        topics, version = dict(self.topics), self.topics_version
        self._take(self.shard.set_topics(topics, version=version, now=self.now, now_ms=self.now_ms))

    def commit_log(self) -> None:
        self.committed = len(self.log)

    def fail_over(self, *, is_behind: bool) -> None:
        """Another coordinator, which knows what was committed, and maybe some more of the log."""
        possible = [end for end in self.batch_ends if end >= self.committed]
        end = self.random.choice(possible)
        del self.log[end:]
        self.offsets = {at: offsets for at, offsets in self.offsets.items() if at <= end}
        self.batch_ends = [at for at in self.batch_ends if at <= end]
        self.committed = end
        self.answers = [answer for answer in self.answers if answer.log_end <= end]
        self.parked.clear()
        self.shard = replayed(compacted(self.log, self.random), self.settings)
        version, topics = self.random.choice(self.old_topics) if is_behind else self.old_topics[-1]
        self._take(
            self.shard.start(dict(topics), version=version, now=self.now, now_ms=self.now_ms)
        )
        if not self.shard.is_started:
            return
        self.catch_up()

    # -- what has to hold --------------------------------------------------------------------------

    def check(self, *, with_log: bool = True) -> None:
        """``with_log``: and a new coordinator would know the same, which takes longest."""
        if not self.shard.is_started:
            return
        check_invariants(self.shard)
        self.check_owners()
        self.check_offsets()
        for log in (self.log, compacted(self.log, self.random)) if with_log else ():
            assert written(replayed(log, self.settings)) == written(self.shard)

    def check_owners(self) -> None:
        """No two read one partition at epochs at which they would be heard, or could commit."""
        reads: dict[Part, str] = {}
        for actor in self.actors:
            for part in actor.owned if self.is_heard(actor) else ():
                assert reads.setdefault(part, actor.id) == actor.id, part

    def is_heard(self, actor: Actor) -> bool:
        """Whether the coordinator would take something from it as it is."""
        member = self.members.get(actor.id)
        return member is not None and member.known_epoch <= actor.epoch <= member.epoch

    def check_offsets(self) -> None:
        """Nothing is lost, old or invented."""
        found = {TopicPartition(c.topic, c.partition): c.offset for c in self.shard.fetch(GROUP)}
        expected = self.offsets[len(self.log)]
        known = self.shard._world.topics.names
        for where, (topic_id, offset, since) in expected.items():
            if topic_id not in known or self.topics.get(where.topic, NOWHERE).id != topic_id:
                assert where not in found or found[where] > offset
            elif where in found:
                assert found[where] == offset
            else:  # expired, which takes a group without members
                assert self.now - since >= self.settings.offsets_retention_ms / 1_000
        assert found.keys() <= expected.keys()

    def come_to_rest(self) -> None:
        """Everybody who can does what it should, until nothing changes any more."""
        self.requests.clear()
        for actor in self.actors:
            actor.is_running = not actor.is_over
            actor.rebalance_timeout_ms = 30_000
        if not self.shard.is_started:
            self.catch_up()
        for _ in range(REST_ROUNDS):
            self.now += 1.0
            for actor in self.actors:
                actor.check_session(self.now)
                if not actor.is_over:
                    self.release(actor, len(actor.owned))
                    self.send(actor)
            while self.requests:
                self.deliver(*self.requests.pop(0))
            for name in list(self.parked):
                self._answer_parked(name)
            self.commit_log()
            self.hear_all()
            self.tick()
            self.check(with_log=False)
        self.check()
        self._check_rest()

    def hear_all(self) -> None:
        answers, self.answers = self.answers, []
        for answer in answers:
            if answer.log_end <= self.committed:
                self.hear(answer)

    def _check_rest(self) -> None:
        """All is assigned, to those that think so, and evenly."""
        group = groups_of(self.shard).get(GROUP)
        living = [actor for actor in self.actors if not actor.is_over]
        members = self.members
        assert members.keys() == {actor.id for actor in living}
        if not living:
            return
        assert group is not None
        assert group.state == "stable"
        wanted = {topic for actor in living for topic in actor.topics if topic in self.topics}
        everything = {
            (self.topics[topic].id, partition)
            for topic in wanted
            for partition in range(self.topics[topic].partition_count)
        }
        assert {part for actor in living for part in actor.owned} == everything
        for actor in living:
            assert actor.owned == members[actor.id].assigned
        if len({actor.topics for actor in living}) == 1 and group.assignor == "uniform":
            sizes = [len(actor.owned) for actor in living]
            assert max(sizes) - min(sizes) <= 1

    # -- parts of the above ------------------------------------------------------------------------

    def _take(self, step: StateChange[HeartbeatResult] | StateChange[None]) -> None:
        if step.records:
            before = self.offsets[len(self.log)]
            self.log += step.records
            self.batch_ends.append(len(self.log))
            self.offsets[len(self.log)] = before
        for _, member in sorted(step.wake):
            self._answer_parked(member)

    def _answer_parked(self, member: str) -> None:
        waiting = self.parked.pop(member, None)
        if waiting is None:
            return
        actor, heartbeat = waiting
        try:
            result: HeartbeatResult | RaftlogError = self.shard.beat(GROUP, member)
        except RaftlogError as error:
            result = error
        self._answer(actor, heartbeat, result)

    def _answer(
        self, actor: Actor, heartbeat: Heartbeat, result: HeartbeatResult | RaftlogError
    ) -> None:
        self.answers.append(Answer(actor, heartbeat.sequence, result, len(self.log)))
