"""Consumer groups over the wire: finding them, members, offsets, and what is wrong with requests.

One broker on real sockets. What its groups decide is tested with ``raftlog.consumer_groups``.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from raftlog import limits
from raftlog.errors import (
    FencedMemberError,
    GroupNotEmptyError,
    InstanceFencedError,
    InvalidGroupError,
    InvalidRequestError,
    NotCoordinatorError,
    PartitionNotOwnedError,
    RetriableError,
    UnknownAssignorError,
    UnknownGroupError,
    UnknownMemberError,
    UnknownPartitionError,
    UnknownTopicError,
)
from raftlog.protocol import api as apis
from raftlog.protocol import records
from raftlog.protocol.records import AWAY_EPOCH, LEAVE_EPOCH, DeleteTopicsRequest
from raftlog.server.apis.groups import (
    change_offsets,
    delete_groups,
    describe_groups,
    fetch_offsets,
    list_groups,
)
from raftlog.server.context import BrokerContext
from raftlog.types import OFFSETS_TOPIC, TopicPartition
from tests.server.handlers.group_client import GroupClient, at, group_client, partitions_of
from tests.server.harness import Client, RunningBroker, error_of, only, running


@pytest.fixture
def groups(client: Client) -> GroupClient:
    return group_client(client)


# -- finding


def test_the_topic_is_made_when_somebody_asks(broker: RunningBroker, client: Client) -> None:
    assert OFFSETS_TOPIC not in broker.broker.context.topics
    first, second = GroupClient(client).find("g", "é")
    assert (first.broker_id, second.broker_id) == (1, 1)
    assert (first.host, first.port) == tuple(broker.address)
    topic = broker.call(lambda: broker.broker.context.topics.topic(OFFSETS_TOPIC))
    assert len(topic.hosts) == 16
    assert topic.config.cleanup_policy == "compact"
    assert topic.config.segment_bytes == 16 * limits.MIB


def test_many_may_ask_at_the_same_time(broker: RunningBroker) -> None:
    message = records.FindCoordinatorsRequest(groups=["g"])
    with broker.client() as one, broker.client() as other:
        sent = [(each, each.send(apis.FIND_COORDINATORS, message)) for each in [one, other] * 10]
        for each, number in sent:
            answer = each.answer(number).message
            assert isinstance(answer, records.FindCoordinatorsResponse)
            assert only(answer.coordinators).broker_id == 1


def test_settings_of_the_topic(tmp_path: Path) -> None:
    with (
        running(
            tmp_path / "data", offsets_topic_num_partitions="3", offsets_topic_segment_bytes="65536"
        ) as broker,
        broker.client() as client,
    ):
        GroupClient(client).find("g")
        topic = broker.call(lambda: broker.broker.context.topics.topic(OFFSETS_TOPIC))
        assert (len(topic.hosts), topic.config.segment_bytes) == (3, 65_536)


def test_names_that_are_none(groups: GroupClient) -> None:
    long, empty, good = groups.find("x" * 300, "", "g")
    assert isinstance(error_of(long), InvalidGroupError)
    assert "it has 300" in str(error_of(long)) or "(300)" in str(error_of(long))
    assert isinstance(error_of(empty), InvalidGroupError)
    assert good.failure is None
    for ask in (groups.join, lambda member, group: groups.fetch(group=group)):
        with pytest.raises(InvalidGroupError):
            ask("m", group="x" * 300)
    with pytest.raises(InvalidGroupError):
        groups.commit(at(0, 1), group="x" * 300)
    assert isinstance(error_of(groups.described("x" * 300)), InvalidGroupError)
    assert isinstance(error_of(only(groups.delete(""))), InvalidGroupError)


def test_before_there_is_a_topic_nobody_coordinates(client: Client) -> None:
    groups = GroupClient(client)
    with pytest.raises(NotCoordinatorError, match="__consumer_offsets does not exist"):
        groups.fetch()
    assert isinstance(error_of(groups.described()), NotCoordinatorError)
    assert groups.listed() == {}


# -- members


def test_a_member_joins_stays_and_leaves(groups: GroupClient) -> None:
    joined = groups.join("m", client_id="app")
    assert partitions_of(joined) == {0, 1, 2, 3}
    again = groups.beat("m", joined.member_epoch, owned=joined.assignment)
    assert (again.member_epoch, again.assignment) == (joined.member_epoch, joined.assignment)
    (member,) = groups.described().members
    assert (member.member_id, member.client_id, member.host) == ("m", "app", "127.0.0.1")
    assert groups.listed()["g"].members == 1
    groups.beat("m", LEAVE_EPOCH)
    assert groups.described().members == []
    with pytest.raises(UnknownMemberError):
        groups.beat("m", joined.member_epoch)


def test_two_members_share(groups: GroupClient) -> None:
    """The second gets what the first has given up, when it has said so, and is told at once."""
    one = groups.join("m")
    two = groups.join("n")
    assert partitions_of(two) == set()
    waiting = groups.send_beat("n", two.member_epoch, wait_ms=15_000)
    less = groups.beat("m", one.member_epoch, owned=one.assignment)
    assert len(partitions_of(less)) == 2
    groups.beat("m", less.member_epoch, owned=less.assignment)
    answer = groups.client.answer(waiting).message
    assert isinstance(answer, records.GroupHeartbeatResponse)
    assert partitions_of(answer) | partitions_of(less) == {0, 1, 2, 3}
    assert groups.described().state in ("stable", "reconciling")


def test_a_heartbeat_that_waits_is_answered_by_the_next(groups: GroupClient) -> None:
    one = groups.join("m")
    fields: dict[str, Any] = {"owned": one.assignment, "wait_ms": 15_000}
    first = groups.send_beat("m", one.member_epoch, **fields)
    second = groups.send_beat("m", one.member_epoch, **fields)
    assert isinstance(groups.client.answer(first).message, records.GroupHeartbeatResponse)
    assert not groups.client.answered(second)


def test_a_heartbeat_waits_a_third_of_the_session_at_most(groups: GroupClient) -> None:
    one = groups.join("m", session_timeout_ms=300)
    sent = groups.send_beat(
        "m", one.member_epoch, owned=one.assignment, wait_ms=60_000, session_timeout_ms=300
    )
    assert isinstance(groups.client.answer(sent).message, records.GroupHeartbeatResponse)


def test_heartbeats_of_a_lost_connection_are_forgotten(
    broker: RunningBroker, groups: GroupClient
) -> None:
    one = groups.join("m")
    with broker.client() as other:
        GroupClient(other).send_beat("m", one.member_epoch, owned=one.assignment, wait_ms=15_000)
        assert GroupClient(other).listed()

    def parked() -> int:
        shards = broker.broker.context.coordinator.shards()
        return sum(len(shard._parked) for shard in shards)

    broker.wait_until(lambda: parked() == 0)


def test_members_that_are_none(groups: GroupClient) -> None:
    joined = groups.join("m")
    with pytest.raises(UnknownMemberError):
        groups.beat("nobody", 3)
    with pytest.raises(FencedMemberError):
        groups.beat("m", joined.member_epoch + 7)
    with pytest.raises(UnknownAssignorError, match="range"):
        groups.join("n", assignor="sticky")
    with pytest.raises(InvalidRequestError, match=r"group\.max\.session\.timeout\.ms"):
        groups.join("n", session_timeout_ms=(1 << 31) - 1)
    with pytest.raises(InvalidRequestError, match=r"group\.min\.session\.timeout\.ms"):
        groups.join("n", session_timeout_ms=1)


def test_one_instance_id_is_one_member(groups: GroupClient) -> None:
    one = groups.join("m", instance_id="pod-0")
    two = groups.join("n", instance_id="pod-0")
    assert partitions_of(two) == partitions_of(one)
    with pytest.raises(InstanceFencedError):
        groups.beat("m", one.member_epoch, instance_id="pod-0")
    groups.beat("n", AWAY_EPOCH, instance_id="pod-0")
    back = groups.join("o", instance_id="pod-0")
    assert partitions_of(back) == partitions_of(one)


def test_the_size_of_a_group_is_bounded(tmp_path: Path) -> None:
    with running(tmp_path / "data", group_max_size="1") as broker, broker.client() as client:
        client.create("t")
        groups = GroupClient(client)
        groups.find("g")
        groups.join("m")
        with pytest.raises(RetriableError, match="1"):
            groups.join("n")


def test_an_operators_default_assignor(tmp_path: Path) -> None:
    with (
        running(tmp_path / "data", group_assignors="range,uniform") as broker,
        broker.client() as client,
    ):
        client.create("t")
        groups = GroupClient(client)
        groups.find("g")
        groups.join("m")
        assert groups.described().assignor == "range"


# -- offsets


def test_what_is_committed_is_fetched(groups: GroupClient) -> None:
    outcomes = groups.commit(at(0, 5, metadata="of job 7"), at(1, 6))
    assert [one.failure for one in outcomes] == [None, None]
    assert groups.fetch() == {0: 5, 1: 6}
    assert groups.fetch(1, 3) == {1: 6, 3: -1}
    assert groups.fetch(group="another") == {}
    assert groups.listed()["g"].state == "empty"


def test_a_members_commit(groups: GroupClient) -> None:
    joined = groups.join("m")
    assert only(groups.commit(at(0, 5), member="m", epoch=joined.member_epoch)).failure is None
    with pytest.raises(UnknownMemberError):
        groups.commit(at(0, 6), member="n", epoch=joined.member_epoch)
    with pytest.raises(FencedMemberError):
        groups.commit(at(0, 6), member="m", epoch=joined.member_epoch + 7)
    with pytest.raises(GroupNotEmptyError):
        groups.commit(at(0, 6))
    assert groups.fetch() == {0: 5}


def test_a_partition_of_another_member(groups: GroupClient) -> None:
    groups.join("m", topics=["t"])
    two = groups.join("n", topics=["t"])
    outcome = only(groups.commit(at(0, 5), member="n", epoch=two.member_epoch))
    assert isinstance(error_of(outcome), PartitionNotOwnedError)


def test_offsets_that_are_refused_one_by_one(groups: GroupClient) -> None:
    long_note = "x" * (limits.OFFSET_METADATA_CHARS_MAX + 1)
    elsewhere = records.OffsetToCommit(topic="gone", partition=0, offset=1)
    outcomes = groups.commit(at(0, 5), at(9, 5), elsewhere, at(1, 5, metadata=long_note))
    assert outcomes[0].failure is None
    errors = [error_of(outcome) for outcome in outcomes[1:]]
    assert [type(error) for error in errors] == [
        UnknownPartitionError,
        UnknownTopicError,
        InvalidRequestError,
    ]
    assert groups.fetch() == {0: 5}


def test_offsets_of_a_topic_that_was_made_anew_are_gone(
    broker: RunningBroker, groups: GroupClient
) -> None:
    old = only(groups.join("m").assignment).topic_id
    groups.beat("m", LEAVE_EPOCH)
    groups.commit(at(0, 5))
    client = groups.client
    client.ask(apis.DELETE_TOPICS, DeleteTopicsRequest(topics=["t"]))
    client.create("t", 4)
    outcome = only(groups.commit(at(1, 5), topic_ids={"t": old}))
    assert isinstance(error_of(outcome), UnknownTopicError)
    broker.wait_until(lambda: True)
    while groups.fetch(0) != {0: -1}:  # the coordinator hears of it a moment later
        pass


def test_offsets_can_be_forgotten(groups: GroupClient) -> None:
    groups.commit(at(0, 5), at(1, 6))
    names = [records.PartitionName(topic="t", partition=0)]
    message = records.DeleteOffsetsRequest(group="g", partitions=names)
    answer: records.DeleteOffsetsResponse = groups.client.ask(apis.DELETE_OFFSETS, message)
    assert only(answer.partitions).failure is None
    assert groups.fetch() == {1: 6}
    groups.join("m")
    answer = groups.client.ask(apis.DELETE_OFFSETS, message)
    assert isinstance(error_of(only(answer.partitions)), GroupNotEmptyError)
    unknown = records.DeleteOffsetsRequest(group="another", partitions=names)
    with pytest.raises(UnknownGroupError):
        groups.client.ask(apis.DELETE_OFFSETS, unknown)


def test_groups_can_be_deleted(groups: GroupClient) -> None:
    groups.commit(at(0, 5))
    groups.join("m", group="busy")
    gone, busy, unknown = groups.delete("g", "busy", "unknown")
    assert gone.failure is None
    assert isinstance(error_of(busy), GroupNotEmptyError)
    assert isinstance(error_of(unknown), UnknownGroupError)
    assert groups.fetch() == {}
    assert list(groups.listed()) == ["busy"]
    assert isinstance(error_of(groups.described()), UnknownGroupError)


def test_groups_are_listed_by_name(groups: GroupClient) -> None:
    for name in ("b", "c", "a", "é"):
        groups.commit(at(0, 5), group=name)
    assert list(groups.listed()) == ["a", "b", "c", "é"]


def test_a_list_says_of_which_partitions_the_groups_are(groups: GroupClient) -> None:
    answer = groups.client.ask(apis.LIST_GROUPS, records.ListGroupsRequest())
    assert answer.partitions == list(range(16))


# -- groups ----------------------------------------------------------------------------------------
#
# Requests about several groups: one result for each, in order, also where a shard refuses.


class FakeShard:
    """Answers later with ``answer``, or refuses at once with ``refusal``."""

    loaded = None

    def __init__(self, answer: object = None, refusal: Exception | None = None) -> None:
        self._answer = answer
        self._refusal = refusal
        self.respond: Callable[[], None] = lambda: None

    def ask(self, _operation: object, done: Any, failed: Any) -> None:
        if self._refusal is not None:
            raise self._refusal
        is_error = isinstance(self._answer, Exception)
        self.respond = lambda: (failed if is_error else done)(self._answer)

    change = ask


def context_of(**shards: FakeShard) -> BrokerContext:
    return cast(BrokerContext, SimpleNamespace(coordinator=SimpleNamespace(shard=shards.get)))


@pytest.mark.parametrize("request_of", [describe_groups, delete_groups])
def test_each_group_has_its_result_or_its_error(request_of: Any) -> None:
    refusal, error = NotCoordinatorError("not me"), UnknownGroupError("none")
    shards = {"a": FakeShard("view"), "b": FakeShard(refusal=refusal), "c": FakeShard(error)}
    sent: list[list[object]] = []
    steps = request_of(context_of(**shards), list(shards), sent.append)
    assert list(steps) == [None] * 3, "other requests may run between two groups"
    shards["c"].respond()
    assert sent == []
    shards["a"].respond()
    assert sent == [["view", refusal, error]]


def test_a_shard_that_refuses_differs_from_an_empty_one() -> None:
    shards = [FakeShard([]), FakeShard(refusal=NotCoordinatorError("loads"))]
    sent: list[list[object]] = []
    list(list_groups(cast(Any, shards), cast(Any, sent.append)))
    shards[0].respond()
    assert sent == [[[], None]]


class Offsets:
    """A shard that decides at once: it notes how many partitions each decision has."""

    def __init__(self, refused_from: int = 1 << 30) -> None:
        self.parts: list[int] = []
        self.loaded = self
        self._refused_from = refused_from

    def fetch(
        self, _group: str, names: Sequence[TopicPartition], *, require_stable: bool = False
    ) -> list[int]:
        assert not require_stable
        return [partition for _, partition in names]

    def committed_topics(self, _group: str) -> list[str]:
        return ["a", "b"]

    def committed_in(self, _group: str, topic: str) -> list[tuple[int, int]]:
        return [(number, 5) for number in range(700 if topic == "a" else 2)]

    def change(self, operation: Any, done: Any, failed: Any) -> None:
        self.ask(lambda _shard: operation(self, 0.0, 0), done, failed)

    def ask(self, operation: Any, done: Any, failed: Any) -> None:
        if len(self.parts) >= self._refused_from:
            raise NotCoordinatorError("not me")
        found = operation(self)
        self.parts.append(len(found))
        done(found)


NAMES = [TopicPartition("t", number) for number in range(1_201)]


@pytest.mark.parametrize(
    ("names", "parts"), [([], [0]), (NAMES[:1], [1]), (NAMES, [500, 500, 201])]
)
def test_offsets_are_asked_and_changed_some_at_a_time(
    names: list[TopicPartition], parts: list[int]
) -> None:
    for is_change in (False, True):
        shard, sent, failures = Offsets(), list[list[Any]](), list[Exception]()
        context = context_of(g=cast(Any, shard))
        if is_change:
            steps = change_offsets(
                context,
                "g",
                names,
                lambda groups, part, _now, _now_ms: cast(Any, groups.fetch("g", part)),
                cast(Any, sent.append),
                failures.append,
            )
        else:
            steps = fetch_offsets(context, "g", names, cast(Any, sent.append), failures.append)
        assert len(list(steps)) == len(parts), "other requests may run between two parts"
        assert shard.parts == parts
        assert (sent, failures) == ([[partition for _, partition in names]], [])


def test_all_offsets_of_a_group_are_in_the_order_of_topics_and_partitions() -> None:
    shard, sent = Offsets(), list[list[Any]]()
    steps = fetch_offsets(
        context_of(g=cast(Any, shard)), "g", None, cast(Any, sent.append), lambda _error: None
    )
    assert len(list(steps)) == 2 + 2
    assert sent == [[*range(700), 0, 1]]


def test_a_later_part_that_fails_fails_the_request_once() -> None:
    shard, sent, failures = Offsets(refused_from=1), list[list[Any]](), list[Exception]()
    context = context_of(g=cast(Any, shard))
    list(fetch_offsets(context, "g", NAMES, cast(Any, sent.append), failures.append))
    assert sent == []
    assert [str(error) for error in failures] == ["not me"]
    refusing = context_of(g=cast(Any, Offsets(refused_from=0)))
    with pytest.raises(NotCoordinatorError):
        list(fetch_offsets(refusing, "g", NAMES, cast(Any, sent.append), failures.append))


class Fenced(Offsets):
    """A shard that rejects the second part after it has begun."""

    def ask(self, operation: Any, done: Any, failed: Any) -> None:
        found = operation(self)
        self.parts.append(len(found))
        if len(self.parts) == 2:
            failed(NotCoordinatorError("not any more"))
        else:
            done([None] * len(found))


@pytest.mark.parametrize("shard", [Fenced(), Offsets(refused_from=1)])
def test_a_part_that_is_refused_has_the_error_and_the_others_have_their_results(
    shard: Offsets,
) -> None:
    sent, failures = list[list[Any]](), list[Exception]()
    list(_changed(shard, cast(Any, sent.append), failures.append))
    assert failures == []
    kinds = [isinstance(outcome, NotCoordinatorError) for outcome in sent[0]]
    refused = [500] if isinstance(shard, Fenced) else [500, 201]
    assert kinds == [False] * 500 + [True] * sum(refused) + [False] * (701 - sum(refused))


def test_changes_of_which_every_part_is_refused_fail_as_a_whole() -> None:
    sent, failures = list[list[Any]](), list[Exception]()
    with pytest.raises(NotCoordinatorError):
        list(_changed(Offsets(refused_from=0), cast(Any, sent.append), failures.append))
    late = FakeShard(NotCoordinatorError("not me"))
    steps = _changed(cast(Any, late), cast(Any, sent.append), failures.append, NAMES[:1])
    list(steps)
    late.respond()
    assert sent == []
    assert [str(error) for error in failures] == ["not me"]


def _changed(
    shard: Offsets, done: Any, failed: Any, names: Sequence[TopicPartition] = NAMES
) -> Any:
    def change(groups: Any, part: Any, _now: float, _now_ms: int) -> Any:
        return groups.fetch("g", part)

    return change_offsets(context_of(g=cast(Any, shard)), "g", names, change, done, failed)
