"""Committed offsets: every version, by name and by topic ID, and one set for all clients."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import pytest

from raftlog import limits
from raftlog.errors import (
    ConcurrentTransactionsError,
    InvalidProducerMappingError,
    NotCoordinatorError,
    ProducerFencedError,
    RaftlogError,
    RequestTimedOutError,
    TransactionAbortedError,
)
from raftlog.kafka import api as apis
from raftlog.kafka import codec, errors
from raftlog.protocol import api as native
from raftlog.protocol.records import OffsetFetchRequest
from raftlog.server.scheduling import Acknowledge
from raftlog.transactions import Marker, TransactionPart
from tests.server.harness import RunningBroker
from tests.server.kafka.group_client import GroupClient, message

Commit = codec.structs("request", apis.OFFSET_COMMIT.key)
Fetch = codec.structs("request", apis.OFFSET_FETCH.key)
Txn = codec.structs("request", apis.TXN_OFFSET_COMMIT.key)
Delete = codec.structs("request", apis.OFFSET_DELETE.key)


def topic_id(broker: RunningBroker) -> bytes:
    return bytes.fromhex(broker.broker.context.topics.topic("t").id)


def asked_topic(version: int, ident: bytes, wanted: list[int]) -> Any:
    if version < 8:
        return Fetch.OffsetFetchRequestTopic(name="t", partition_indexes=wanted)
    new = Fetch.OffsetFetchRequestTopics
    return new(name="t", topic_id=ident, partition_indexes=wanted)


def commit(client: GroupClient, group: str, version: int, **fields: Any) -> list[int]:
    """Commits offset 5 of partition 1, with a note, and what ``fields`` say. The codes."""
    partition = Commit.OffsetCommitRequestPartition(
        partition_index=1, committed_offset=5, committed_leader_epoch=2, committed_metadata="note"
    )
    topic = {"name": "t", "topic_id": bytes(16), "partitions": [partition]}
    names = "committed_metadata", "partition_index", "committed_offset", "committed_leader_epoch"
    for name in (*topic, *names):
        if name in fields and name in topic:
            topic[name] = fields.pop(name)
        elif name in fields:
            setattr(partition, name, fields.pop(name))
    asked = message(
        apis.OFFSET_COMMIT,
        group_id=group,
        topics=[Commit.OffsetCommitRequestTopic(**topic)],
        **fields,
    )
    answer = client.ask(apis.OFFSET_COMMIT, version, asked)
    return [one.error_code for topic in answer.topics for one in topic.partitions]


@pytest.mark.parametrize("version", range(2, 11))
def test_every_version_of_a_commit_and_of_a_fetch(
    group_client: GroupClient, group_broker: RunningBroker, version: int
) -> None:
    group, ident = f"offsets{version}", topic_id(group_broker)
    group_client.find(group)
    assert commit(group_client, group, version, topic_id=ident) == [errors.NONE]
    for each in range(1, 11):
        for wanted in ([1, 2], None):
            topics = None if wanted is None else [asked_topic(each, ident, wanted)]
            if topics is None and each < 2:
                continue
            asked = message(
                apis.OFFSET_FETCH,
                group_id=group,
                topics=topics,
                groups=[Fetch.OffsetFetchRequestGroup(group_id=group, topics=topics)],
            )
            answer = group_client.ask(apis.OFFSET_FETCH, each, asked)
            found = answer if each < 8 else answer.groups[0]
            assert found.error_code == errors.NONE
            (topic,) = found.topics
            assert topic.topic_id == ident if each >= 10 else topic.name == "t"
            first = topic.partitions[0]
            assert (first.partition_index, first.committed_offset, first.metadata) == (1, 5, "note")
            if wanted is not None:
                assert topic.partitions[1].committed_offset == -1


@pytest.mark.parametrize(
    ("offset", "epoch"), [(-1, 2), (-2, -1), (-(1 << 63), -2), (3, -(1 << 31))]
)
def test_numbers_below_0_are_kept_and_none_for_raftlogs_clients(
    group_client: GroupClient, group_broker: RunningBroker, offset: int, epoch: int
) -> None:
    """kafkajs resets to -1 and -2."""
    group = f"below{offset}"
    group_client.find(group)
    numbers = {"committed_offset": offset, "committed_leader_epoch": epoch}
    assert commit(group_client, group, 9, **numbers) == [errors.NONE]
    asked = Fetch.OffsetFetchRequestGroup(group_id=group, topics=[asked_topic(9, b"", [1])])
    answer = group_client.ask(apis.OFFSET_FETCH, 9, message(apis.OFFSET_FETCH, groups=[asked]))
    found = answer.groups[0].topics[0].partitions[0]
    assert (found.committed_offset, found.committed_leader_epoch) == (offset, max(epoch, -1))
    with group_broker.client() as client:
        (own,) = client.ask(native.OFFSET_FETCH, OffsetFetchRequest(group=group)).offsets
    assert (own.offset, own.leader_epoch) == (max(offset, -1), -1)


def test_raftlogs_own_clients_see_the_same_offsets(
    group_client: GroupClient, group_broker: RunningBroker
) -> None:
    group_client.find("shared")
    commit(group_client, "shared", 9)
    with group_broker.client() as client:
        found = client.ask(native.OFFSET_FETCH, OffsetFetchRequest(group="shared"))
    assert [(one.topic, one.partition, one.offset) for one in found.offsets] == [("t", 1, 5)]


def test_a_client_that_made_an_id_and_never_joined_commits(group_client: GroupClient) -> None:
    """As a consumer of librdkafka with group.protocol=consumer and assigned partitions."""
    group_client.find("assigned")
    assert commit(group_client, "assigned", 9, member_id="made") == [errors.NONE]
    lacking = commit(group_client, "assigned", 8, generation_id_or_member_epoch=0)
    assert lacking == [errors.UNKNOWN_MEMBER_ID], "a generation is one of members"
    assert commit(group_client, "assigned", 9, member_id="made") == [errors.NONE]


def test_commits_that_are_refused(
    group_client: GroupClient, group_broker: RunningBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    group = "refused"
    joined = group_client.alone(group)
    me = {
        "member_id": joined.member_id,
        "generation_id_or_member_epoch": joined.generation_id,
    }
    assert commit(group_client, group, 9, **me) == [errors.NONE]
    long = "x" * (limits.OFFSET_METADATA_CHARS_MAX + 1)
    for fields, code in [
        ({}, errors.UNKNOWN_MEMBER_ID),
        ({**me, "generation_id_or_member_epoch": 7}, errors.ILLEGAL_GENERATION),
        ({**me, "member_id": "x"}, errors.UNKNOWN_MEMBER_ID),
        ({**me, "name": "unknown"}, errors.UNKNOWN_TOPIC_OR_PARTITION),
        ({**me, "partition_index": 4}, errors.UNKNOWN_TOPIC_OR_PARTITION),
        ({**me, "committed_metadata": long}, errors.OFFSET_METADATA_TOO_LARGE),
    ]:
        assert commit(group_client, group, 9, **fields) == [code]
    assert commit(group_client, group, 10, **me) == [errors.UNKNOWN_TOPIC_ID]
    assert commit(group_client, "", 9) == [errors.INVALID_GROUP_ID]
    monkeypatch.setattr(limits, "KAFKA_ITEMS_MAX", 9)
    many = [Fetch.OffsetFetchRequestTopic(name="t", partition_indexes=[0] * 10)]
    asked = message(apis.OFFSET_FETCH, group_id=group, topics=many)
    for version in (1, 7):
        assert (
            group_client.ask(apis.OFFSET_FETCH, version, asked).topics[0].partitions[0].error_code
        )
    assert group_broker.broker.context.counters.mistakes == 0


def test_a_request_for_offsets_has_a_group_once_and_a_limit_of_partitions(
    group_client: GroupClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A group can have many offsets: 20 KB would ask for it a thousand times."""
    group_client.find("once")
    new, topic = Fetch.OffsetFetchRequestGroup, Fetch.OffsetFetchRequestTopics
    half = [topic(name="t", partition_indexes=[0] * 5)]
    monkeypatch.setattr(limits, "KAFKA_ITEMS_MAX", 9)
    for groups in (
        [new(group_id="once", topics=None)] * 2,
        [new(group_id=name, topics=half) for name in ("once", "more")],
    ):
        answer = group_client.ask(apis.OFFSET_FETCH, 8, message(apis.OFFSET_FETCH, groups=groups))
        assert [each.error_code for each in answer.groups] == [errors.INVALID_REQUEST] * 2


def test_offsets_of_many_groups_come_in_parts(
    group_client: GroupClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The client repeats the request for the groups that are not in the response."""
    for name in ("part1", "part2"):
        group_client.find(name)
        commit(group_client, name, 9)
    new = Fetch.OffsetFetchRequestGroup

    def codes(names: list[str]) -> list[int]:
        asked = [new(group_id=name, topics=None) for name in names]
        answer = group_client.ask(apis.OFFSET_FETCH, 8, message(apis.OFFSET_FETCH, groups=asked))
        return [each.error_code for each in answer.groups]

    assert set(codes([f"many{number}" for number in range(1_001)])) == {errors.NONE}
    monkeypatch.setattr(limits, "KAFKA_RESPONSE_BYTES_MAX", 1)
    assert codes(["part1", "part2"]) == [errors.NONE, errors.COORDINATOR_LOAD_IN_PROGRESS]


def test_offsets_are_deleted_of_topics_without_subscribers(group_client: GroupClient) -> None:
    group = "deleted"
    group_client.find(group)
    commit(group_client, group, 9)
    asked = message(
        apis.OFFSET_DELETE,
        group_id=group,
        topics=[
            Delete.OffsetDeleteRequestTopic(
                name=name,
                partitions=[Delete.OffsetDeleteRequestPartition(partition_index=number)],
            )
            for name, number in (("none", 1), ("t", 9), ("t", 1), ("t", -1))
        ],
    )
    unknown = errors.UNKNOWN_TOPIC_OR_PARTITION
    joined = group_client.alone(group)
    for code in (errors.GROUP_SUBSCRIBED_TO_TOPIC, errors.NONE):
        found = group_client.ask(apis.OFFSET_DELETE, 0, asked).topics
        codes = [topic.partitions[0].error_code for topic in found]
        assert codes == [unknown, unknown, code, unknown]
        group_client.leave(group, joined.member_id)
    group_client.find("missing")
    missing = message(apis.OFFSET_DELETE, group_id="missing")
    assert group_client.ask(apis.OFFSET_DELETE, 0, missing).error_code == errors.GROUP_ID_NOT_FOUND


# -- transactions ----------------------------------------------------------------------------------


class FakeVerifier:
    """The coordinator of transactional ids: what it was asked, and what it answers at once."""

    def __init__(self) -> None:
        self.asked: list[tuple[str, int, int, bool]] = []
        self.parts: list[TransactionPart] = []
        self.outcome: RaftlogError | None = None
        self.on_asked: Callable[[Acknowledge], None] = lambda done: done(self.outcome)

    def coordinator_epoch(self, _transactional_id: str) -> int:
        return 1

    def verify(
        self,
        transactional_id: str,
        producer_id: int,
        producer_epoch: int,
        parts: Sequence[TransactionPart],
        *,
        add: bool,
        done: Acknowledge,
    ) -> None:
        self.asked.append((transactional_id, producer_id, producer_epoch, add))
        self.parts += parts
        self.on_asked(done)


@pytest.fixture
def verifier(group_broker: RunningBroker, monkeypatch: pytest.MonkeyPatch) -> FakeVerifier:
    made = FakeVerifier()
    monkeypatch.setattr(group_broker.broker.context, "transactions", made)
    return made


def commit_in_transaction(client: GroupClient, group: str, version: int, **fields: Any) -> int:
    """Commits offset 8 of partition 1 in a transaction of producer 5 at epoch 0. The code."""
    name, ident = fields.pop("name", "t"), fields.pop("topic_id", bytes(16))
    partition = Txn.TxnOffsetCommitRequestPartition(
        partition_index=1, committed_offset=8, committed_metadata=fields.pop("metadata", "")
    )
    topic = Txn.TxnOffsetCommitRequestTopic(name=name, topic_id=ident, partitions=[partition])
    asked = {"transactional_id": "x", "producer_id": 5, "group_id": group, **fields}
    answer = client.ask(
        apis.TXN_OFFSET_COMMIT, version, message(apis.TXN_OFFSET_COMMIT, **asked, topics=[topic])
    )
    ((code,),) = ([one.error_code for one in each.partitions] for each in answer.topics)
    assert isinstance(code, int)
    return code


def fetched(client: GroupClient, group: str, *, is_stable: bool = True) -> tuple[int, int]:
    """The offset of partition 1, and the code."""
    wanted = Fetch.OffsetFetchRequestGroup(group_id=group, topics=[asked_topic(9, b"", [1])])
    asked = message(apis.OFFSET_FETCH, groups=[wanted], require_stable=is_stable)
    one = client.ask(apis.OFFSET_FETCH, 9, asked).groups[0].topics[0].partitions[0]
    return one.committed_offset, one.error_code


def end(broker: RunningBroker, group: str, producer: int, *, commit: bool = True) -> None:
    context, outcomes = broker.broker.context, list[RaftlogError | None]()

    def mark() -> None:
        marker = Marker(producer, 0, commit, coordinator_epoch=1, is_bumped=False)
        context.coordinator.shard(group).end_transaction(marker, outcomes.append, outcomes.append)

    context.loop.call_soon_threadsafe(mark)
    broker.wait_until(lambda: bool(outcomes))
    assert outcomes == [None]


@pytest.mark.parametrize("version", range(7))
def test_every_version_of_a_commit_in_a_transaction(
    group_client: GroupClient, group_broker: RunningBroker, verifier: FakeVerifier, version: int
) -> None:
    group, producer = f"transaction{version}", 100 + version
    group_client.find(group)
    asked = {"topic_id": topic_id(group_broker), "producer_id": producer}
    assert commit_in_transaction(group_client, group, version, **asked) == errors.NONE
    assert commit_in_transaction(group_client, group, version, **asked) == errors.NONE
    assert verifier.asked == [("x", producer, 0, version >= 5)], "only the first is verified"
    shard = group_broker.broker.context.coordinator.shard(group)
    assert verifier.parts == [
        TransactionPart(
            shard.host.topic_partition.topic,
            shard.host.topic_id,
            shard.host.topic_partition.partition,
        )
    ]
    assert fetched(group_client, group, is_stable=False) == (-1, errors.NONE)
    assert fetched(group_client, group) == (-1, errors.UNSTABLE_OFFSET_COMMIT)
    end(group_broker, group, producer)
    assert fetched(group_client, group) == (8, errors.NONE)


@pytest.mark.parametrize(
    ("error", "codes"),
    [
        (ProducerFencedError("newer"), {0: 47, 6: 47}),
        (InvalidProducerMappingError("other"), {0: 49, 6: 49}),
        (TransactionAbortedError("timed out"), {3: 48, 4: 120, 6: 120}),
        (ConcurrentTransactionsError("completing"), {4: 15, 5: 51}),
        (NotCoordinatorError("of the id"), {2: 15, 3: 14, 6: 14}),
        (RequestTimedOutError("no answer"), {2: 15, 3: 14}),
    ],
    ids=lambda value: type(value).__name__,
)
def test_a_commit_that_its_coordinator_does_not_confirm(
    group_client: GroupClient,
    group_broker: RunningBroker,
    verifier: FakeVerifier,
    error: RaftlogError,
    codes: dict[int, int],
) -> None:
    group_client.find("unconfirmed")
    verifier.outcome = error
    for version, code in codes.items():
        asked = {"topic_id": topic_id(group_broker)} if version >= 6 else {}
        assert commit_in_transaction(group_client, "unconfirmed", version, **asked) == code


def test_commits_in_a_transaction_that_the_group_refuses(
    group_client: GroupClient, verifier: FakeVerifier
) -> None:
    joined = group_client.alone("inside")
    me = {"member_id": joined.member_id, "generation_id_or_member_epoch": joined.generation_id}
    long = "x" * (limits.OFFSET_METADATA_CHARS_MAX + 1)
    for fields, code in [
        (me, errors.NONE),
        ({**me, "generation_id_or_member_epoch": 7}, errors.ILLEGAL_GENERATION),
        ({**me, "member_id": "x"}, errors.UNKNOWN_MEMBER_ID),
        ({**me, "name": "unknown"}, errors.UNKNOWN_TOPIC_OR_PARTITION),
        ({**me, "metadata": long}, errors.OFFSET_METADATA_TOO_LARGE),
    ]:
        assert commit_in_transaction(group_client, "inside", 5, **fields) == code
    assert commit_in_transaction(group_client, "inside", 6, topic_id=b"?" * 16) == (
        errors.UNKNOWN_TOPIC_ID
    )


def test_a_commit_that_is_confirmed_after_the_marker_is_too_late(
    group_client: GroupClient, group_broker: RunningBroker, verifier: FakeVerifier
) -> None:
    """It would stay pending: no other marker comes."""
    group_client.find("late")
    done: list[Acknowledge] = []
    verifier.on_asked = done.append
    partition = Txn.TxnOffsetCommitRequestPartition(partition_index=1, committed_offset=8)
    topic = Txn.TxnOffsetCommitRequestTopic(name="t", partitions=[partition])
    asked = message(
        apis.TXN_OFFSET_COMMIT, transactional_id="x", producer_id=9, group_id="late", topics=[topic]
    )
    group_client.send(apis.TXN_OFFSET_COMMIT, 5, asked)
    group_broker.wait_until(lambda: bool(done))
    end(group_broker, "late", 9, commit=False)
    group_broker.broker.context.loop.call_soon_threadsafe(done[0], None)
    answer = group_client.receive(apis.TXN_OFFSET_COMMIT, 5)[1]
    assert answer.topics[0].partitions[0].error_code == errors.TRANSACTION_ABORTABLE
    assert fetched(group_client, "late") == (-1, errors.NONE)
