"""Describe producers: what is said of a producer is committed, and stays so."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import cast

import msgspec
import pytest

from raftlog import limits
from raftlog.errors import (
    CommitUnknownError,
    FencedLeaderEpochError,
    InvalidRequestError,
    LeaderNotAvailableError,
    NotEnoughReplicasError,
    NotLeaderError,
    RaftlogError,
    UnknownPartitionError,
    UnknownTopicError,
)
from raftlog.protocol import api as apis
from raftlog.protocol.connection import Request
from raftlog.protocol.records import (
    DescribedProducer,
    DescribedProducers,
    DescribeProducersRequest,
    DescribeProducersResponse,
    ListedPartition,
    ListedProducers,
    ListProducersRequest,
    ListProducersResponse,
    ProducersQuery,
)
from raftlog.record import validate
from raftlog.server.apis import producers
from raftlog.server.apis.producers import list_producers
from raftlog.server.context import BrokerContext
from raftlog.server.partition import Partition
from raftlog.server.scheduling import Acknowledge
from tests.running import runs
from tests.server.cluster.fake import FakeReply, Scene, play, state_of
from tests.server.harness import (
    Client,
    FaultyDisk,
    RunningBroker,
    batch_of,
    error_of,
    only,
    running,
)

ID = (1 << 62) + 7
OTHER = 7


def written(*values: bytes, sequence: int = 0, epoch: int = 0, producer_id: int = ID) -> bytes:
    return batch_of(*values, producer_id=producer_id, producer_epoch=epoch, base_sequence=sequence)


def query(*ids: int, topic: str = "t", partition: int = 0, epoch: int = -1) -> ProducersQuery:
    return ProducersQuery(
        topic=topic, partition=partition, producer_ids=list(ids or (ID,)), leader_epoch=epoch
    )


def send(client: Client, *queries: ProducersQuery) -> int:
    return client.send(apis.DESCRIBE_PRODUCERS, DescribeProducersRequest(partitions=list(queries)))


def described(client: Client, correlation_id: int) -> list[DescribedProducers]:
    message = client.answer(correlation_id).message
    if isinstance(message, RaftlogError):
        raise message
    assert isinstance(message, DescribeProducersResponse)
    return message.partitions


def ask(client: Client, *queries: ProducersQuery) -> list[DescribedProducers]:
    return described(client, send(client, *queries))


def test_what_each_producer_wrote_last_is_told(client: Client) -> None:
    client.create("t", partitions=2)
    assert only(ask(client, query(ID, OTHER))).producers == [
        DescribedProducer(ID),
        DescribedProducer(OTHER),
    ]
    client.produce("t", written(b"a", b"b", b"c"))
    client.produce("t", written(b"d", sequence=3))
    client.produce("t", batch_of(b"of nobody"))
    client.produce("t", written(b"e", b"f", producer_id=OTHER))
    client.produce("t", written(b"a"), partition=1)
    first, second = ask(client, query(OTHER, ID, 8), query(partition=1))
    assert (first.topic, first.partition, second.topic, second.partition) == ("t", 0, "t", 1)
    assert first.producers == [
        DescribedProducer(OTHER, producer_epoch=0, last_sequence=1, last_offset=6, first_offset=5),
        DescribedProducer(ID, producer_epoch=0, last_sequence=3, last_offset=3, first_offset=0),
        DescribedProducer(8),
    ]
    assert only(second.producers).last_offset == 0


def test_the_family_of_a_producer_is_told_and_no_other(client: Client) -> None:
    client.create("t")
    first = 1 << 62
    for producer_id in (first + 1, first + 3, first + 4, first + 8):
        client.produce("t", written(b"a", producer_id=producer_id))
    asked = msgspec.structs.replace(query(first + 3), family_bits=3)
    answer = only(ask(client, asked))
    assert [each.producer_id for each in answer.producers] == [first + 3]
    assert answer.siblings is not None
    assert [(each.producer_id, each.last_offset) for each in answer.siblings] == [
        (first + 1, 0),
        (first + 4, 2),
    ]
    assert only(ask(client, query(first + 3))).siblings is None
    assert only(ask(client, msgspec.structs.replace(query(OTHER), family_bits=3))).siblings == []
    two = msgspec.structs.replace(query(first, OTHER), family_bits=3)
    with pytest.raises(InvalidRequestError, match="a query of one producer"):
        raise only(ask(client, two)).failure.to_error()


def test_a_repeat_changes_nothing_and_a_new_epoch_counts_anew(client: Client) -> None:
    client.create("t")
    for _ in range(2):
        client.produce("t", written(b"a", b"b"))
        assert only(only(ask(client, query())).producers).last_sequence == 1
    client.produce("t", written(b"a", epoch=5))
    assert only(ask(client, query())).producers == [
        DescribedProducer(ID, producer_epoch=5, last_sequence=0, last_offset=2, first_offset=2)
    ]


def test_it_is_known_after_a_restart(tmp_path: Path) -> None:
    with running(tmp_path) as broker, broker.client() as client:
        client.create("t")
        client.produce("t", written(b"a", b"b"))
    with running(tmp_path) as broker, broker.client() as client:
        assert only(only(ask(client, query())).producers).last_sequence == 1
        client.produce("t", written(b"c", sequence=2))
        assert only(only(ask(client, query())).producers).last_sequence == 2


def test_what_is_not_committed_is_waited_for(client: Client, disk: FaultyDisk) -> None:
    client.create("t")
    client.produce("t", written(b"a"))
    disk.faults.sync_gate.clear()
    appended = client.send_batch("t", written(b"b", b"c", sequence=1))
    asked = send(client, query())
    unknown = send(client, query(OTHER))
    # Whatever the broker would say early would be here before the answer to a later request.
    assert only(only(described(client, unknown)).producers).producer_epoch == -1
    is_early = client.answered(asked)
    later = client.send_batch("t", written(b"d", sequence=3))
    client.offset("t", "latest")
    disk.faults.sync_gate.set()
    assert not is_early
    assert only(only(described(client, asked)).producers).last_sequence == 2
    assert client.produced(appended).base_offset == 1
    assert client.produced(later).base_offset == 3


def test_the_last_of_all_that_are_asked_for_is_waited_for(client: Client, disk: FaultyDisk) -> None:
    client.create("t")
    client.produce("t", written(b"a", producer_id=OTHER))
    disk.faults.sync_gate.clear()
    client.send_batch("t", written(b"b"))
    asked = send(client, query(ID, OTHER))
    client.offset("t", "latest")
    is_early = client.answered(asked)
    disk.faults.sync_gate.set()
    assert not is_early
    assert [one.last_offset for one in only(described(client, asked)).producers] == [1, 0]


def test_who_leads_no_more_says_that_it_is_not_known(
    broker: RunningBroker, client: Client, disk: FaultyDisk
) -> None:
    client.create("t")
    host = broker.call(lambda: broker.broker.context.topics.host("t", 0))
    disk.faults.sync_gate.clear()
    appended = client.send_batch("t", written(b"a"))
    asked = send(client, query())
    client.offset("t", "latest")
    broker.call(lambda: host.follow(None, host.leader_epoch + 1))
    assert isinstance(error_of(only(described(client, asked))), CommitUnknownError)
    assert isinstance(error_of(client.produced(appended)), CommitUnknownError)
    disk.faults.sync_gate.set()
    assert isinstance(error_of(only(ask(client, query()))), NotLeaderError)


def test_each_partition_has_its_own_outcome(client: Client) -> None:
    client.create("t")
    client.produce("t", written(b"a"))
    answers = ask(
        client,
        query(partition=1),
        query(topic="nope"),
        query(epoch=-1),
        query(epoch=1),
    )
    assert isinstance(error_of(answers[0]), UnknownPartitionError)
    assert isinstance(error_of(answers[1]), UnknownTopicError)
    assert [only(answer.producers).last_sequence for answer in answers[2:]] == [0, 0]
    assert answers[0].producers == []


def test_a_client_with_an_older_epoch_is_told_so(tmp_path: Path) -> None:
    for _ in range(2):
        with running(tmp_path) as broker, broker.client() as client:
            client.create("t")
            answers = ask(client, query(epoch=0))
            client.produce("t", written(b"a"))
    assert isinstance(error_of(only(answers)), FencedLeaderEpochError)


def test_only_so_many_are_answered_at_a_time(
    client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    client.create("t")
    monkeypatch.setattr(limits, "PRODUCERS_PER_REQUEST_MAX", 4)
    assert len(ask(client, query(1, 2), query(3, 4))) == 2
    with pytest.raises(InvalidRequestError, match=r"matches 5 producers .* limit is 4"):
        ask(client, query(1, 2), query(3, 4, 5))


# -- in a cluster of fakes ------------------------------------------------------------------------


class Asked:
    """A broker of a cluster. Who leads is confirmed when the test says so."""

    def __init__(self, host: Partition) -> None:
        self.host = host
        self.reply = FakeReply()
        self.waiting: list[Acknowledge] = []
        self.topics = SimpleNamespace(host=lambda _topic, _partition: host)
        self.cluster = SimpleNamespace(confirm=lambda _host, done: self.waiting.append(done))
        request = SimpleNamespace(message=DescribeProducersRequest(partitions=[query()]))
        steps = producers.handle(
            cast(BrokerContext, self), cast(Request, request), self.reply.as_reply
        )
        for _ in steps:
            pass

    @property
    def answer(self) -> DescribedProducers:
        ((message, _),) = self.reply.answers
        assert isinstance(message, DescribeProducersResponse)
        return only(message.partitions)


def leader(s: Scene) -> Partition:
    """Broker 1 leads, and broker 2 follows, and has not got this batch."""
    host = s.host()
    host.lead(state_of(1, 2, epoch=5), 1, lag_max_seconds=10.0)
    batch = written(b"a", b"b")
    host.append(batch, validate(batch))
    return host


@runs(play)
async def test_the_followers_have_to_have_it_first(s: Scene) -> None:
    """Else a run leaves out records that the next leader never had."""
    asked = Asked(leader(s))
    await s.come_to_rest()
    assert (asked.reply.answers, asked.waiting) == ([], [])
    asked.host.on_follower(2, "disk-2", fetch_offset=2, durable_offset=2)
    asked.waiting.pop()(None)
    assert only(asked.answer.producers).last_sequence == 1


@runs(play)
async def test_what_was_appended_and_is_cut_was_never_told(s: Scene) -> None:
    asked = Asked(leader(s))
    await s.come_to_rest()
    asked.host.follow(2, 6)
    assert isinstance(error_of(asked.answer), CommitUnknownError)
    assert asked.waiting == []


@runs(play)
async def test_nobody_else_may_lead_by_then(s: Scene) -> None:
    host = leader(s)
    host.on_follower(2, "disk-2", fetch_offset=2, durable_offset=2)
    await s.come_to_rest()
    asked = Asked(host)
    assert asked.reply.answers == []
    asked.waiting.pop()(LeaderNotAvailableError("nobody confirms"))
    assert isinstance(error_of(asked.answer), LeaderNotAvailableError)


@runs(play)
async def test_a_commit_that_needs_more_replicas_is_not_waited_for(s: Scene) -> None:
    host = leader(s)
    host.on_follower(2, "disk-2", fetch_offset=2, durable_offset=2)
    await s.come_to_rest()
    host.on_state(state_of(1, 2, epoch=5, isr=(1,), min_isr=2, version=2))
    Asked(host).waiting.pop()(None)
    batch = written(b"c", sequence=2)
    host.append(batch, validate(batch), to_be_committed=False)
    asked = Asked(host)
    assert isinstance(error_of(asked.answer), NotEnoughReplicasError)


# -- list producers --------------------------------------------------------------------------------
#
# List producers: what the leader knows of them, committed or not.


def listing(partition: int = 0, topic: str = "t", limit: int = 10, **more: int) -> ListedPartition:
    return ListedPartition(topic=topic, partition=partition, limit=limit, **more)


def listed(client: Client, *queries: ListedPartition) -> list[ListedProducers]:
    request = ListProducersRequest(partitions=list(queries))
    message = client.ask(apis.LIST_PRODUCERS, request)
    assert isinstance(message, ListProducersResponse)
    return message.partitions


def write(client: Client, producer_id: int, *values: bytes, partition: int = 0) -> None:
    batch = batch_of(*values, producer_id=producer_id, producer_epoch=3, base_sequence=0)
    assert client.produce("t", batch, partition=partition).failure is None


def test_producers_are_listed_by_their_last_write_in_parts(client: Client) -> None:
    client.create("t", partitions=2)
    assert only(listed(client, listing())).total == 0
    for producer_id in (5, ID, 6):
        write(client, producer_id, b"a", b"b")
    client.produce("t", batch_of(b"of no producer"))
    write(client, 5, b"a", partition=1)
    first, second = listed(client, listing(), listing(1, skip=1))
    assert (first.topic, first.partition, first.total, first.high_watermark) == ("t", 0, 3, 7)
    assert [each.producer_id for each in first.producers] == [6, ID, 5]
    newest = first.producers[0]
    assert (newest.producer_epoch, newest.last_sequence, newest.last_offset) == (3, 1, 5)
    assert newest.last_timestamp_ms > 0
    assert (second.partition, second.total, second.producers) == (1, 1, [])
    part = only(listed(client, listing(skip=1, limit=1)))
    assert (part.total, only(part.producers).producer_id) == (3, ID)
    assert only(listed(client, listing(limit=0))).producers == []


def test_records_that_are_not_committed_are_listed_without_a_wait(
    client: Client, disk: FaultyDisk
) -> None:
    client.create("t")
    write(client, 5, b"a")
    disk.faults.sync_gate.clear()
    batch = batch_of(b"b", producer_id=ID, producer_epoch=0, base_sequence=0)
    appended = client.send_batch("t", batch)
    try:
        found = only(listed(client, listing()))
    finally:
        disk.faults.sync_gate.set()
    assert [(each.producer_id, each.last_offset) for each in found.producers] == [(ID, 1), (5, 0)]
    assert found.high_watermark == 1
    assert client.produced(appended).base_offset == 1


def test_each_partition_has_its_own_outcome_in_list_producers(
    broker: RunningBroker, client: Client
) -> None:
    client.create("t")
    write(client, 5, b"a")
    answers = listed(
        client, listing(9), listing(topic="no-such"), listing(leader_epoch=99), listing()
    )
    assert [type(error_of(answer)) for answer in answers[:2]] == [
        UnknownPartitionError,
        UnknownTopicError,
    ]
    assert answers[2].failure is not None
    assert only(answers[3].producers).producer_id == 5
    host = broker.call(lambda: broker.broker.context.topics.host("t", 0))
    broker.call(lambda: host.follow(None, host.leader_epoch + 1))
    assert isinstance(error_of(only(listed(client, listing()))), NotLeaderError)


def test_an_older_leader_epoch_is_fenced(tmp_path: Path) -> None:
    for _ in range(2):
        with running(tmp_path) as broker, broker.client() as client:
            client.create("t")
            answers = listed(client, listing(leader_epoch=0))
            write(client, 5, b"a")
    assert isinstance(error_of(only(answers)), FencedLeaderEpochError)


def test_the_number_of_producers_of_a_request_is_limited(
    client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    client.create("t", partitions=2)
    monkeypatch.setattr(limits, "LISTED_PRODUCERS_MAX", 4)
    assert len(listed(client, listing(limit=2), listing(1, limit=2))) == 2
    with pytest.raises(InvalidRequestError, match=r"up to 5 producers .* limit is 4"):
        listed(client, listing(limit=2), listing(1, limit=3))


# -- producers -------------------------------------------------------------------------------------
#
# Producers of a partition: pages, on the leader only.


@runs(play)
async def test_a_leader_lists_what_is_not_committed(s: Scene) -> None:
    host = s.host()
    host.lead(state_of(1, 2, epoch=5), 1, lag_max_seconds=10.0)
    for producer_id in (7, 8):
        batch = batch_of(b"a", b"b", producer_id=producer_id, producer_epoch=0, base_sequence=0)
        host.append(batch, validate(batch))
    topics = SimpleNamespace(host=lambda _topic, _partition: host)
    context = cast(BrokerContext, SimpleNamespace(topics=topics))
    listed = list_producers(context, "t", 0, -1, skip=0, limit=1)
    assert (listed.total, listed.high_watermark, len(listed.producers)) == (2, 0, 1)
    assert listed.producers[0].producer_id == 8
    assert list_producers(context, "t", 0, -1, skip=1, limit=9).producers[0].producer_id == 7
    host.follow(2, 6)
    with pytest.raises(NotLeaderError):
        list_producers(context, "t", 0, -1, skip=0, limit=1)
