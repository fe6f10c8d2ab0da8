"""Transactions in a cluster of three simulated brokers: leaders ask coordinators, coordinators send
markers, and both fail.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from contextlib import suppress
from functools import partial
from typing import Any, TypeVar

import msgspec
import pytest

from raftlog import limits
from raftlog.consumer_groups import NO_MEMBER_EPOCH, Commit
from raftlog.errors import (
    BrokerUnavailableError,
    ConcurrentTransactionsError,
    LeaderNotAvailableError,
    NotLeaderError,
    RaftlogError,
    ThrottledError,
    UnknownPartitionError,
)
from raftlog.protocol.peer import MarkerPart, TransactionOwnersResponse
from raftlog.record import Codec, encode, parse_header, seal
from raftlog.server.broker import Broker
from raftlog.server.context import BrokerContext
from raftlog.server.groups.shard import ActiveShard
from raftlog.server.partition import Partition
from raftlog.server.transactions.coordinator import (
    COMMIT_SECONDS,
    MarkedTransactions,
    ToBrokers,
)
from raftlog.server.transactions.hanging import CHECK_SECONDS
from raftlog.testing.simulator.world import World
from raftlog.transactions import BUMPING_VERSION, Marker, ProducerIdentity, TransactionPart
from raftlog.types import OFFSETS_TOPIC, TRANSACTIONS_TOPIC
from tests.server.cluster.simulated import Cluster, on

T = TypeVar("T")
NAME = "tx"


def _either(
    done: Callable[[None], None],
    failed: Callable[[RaftlogError], None],
    error: RaftlogError | None,
) -> None:
    if error is None:
        done(None)
    else:
        failed(error)


class Transactions(Cluster):
    """With topic t of three partitions, on different leaders."""

    def __init__(self, world: World) -> None:
        super().__init__(world)
        self.create(partitions=3)
        maker = self.context(1).transactions.lookup.maker
        self.call(1, lambda done, failed: maker.when_made(partial(_either, done, failed)))
        self.until(
            lambda: all(TRANSACTIONS_TOPIC in self.node(n).machine.topics for n in (1, 2, 3))
        )

    def context(self, broker: int) -> BrokerContext:
        found = self.world.brokers[broker - 1].broker
        assert isinstance(found, Broker)
        return found.context

    def call(
        self,
        broker: int,
        work: Callable[[Callable[[T], None], Callable[[RaftlogError], None]], None],
    ) -> T:
        """What ``work`` gives on the loop of a broker; an error is raised."""
        outcome: asyncio.Future[T] = self.world.brokers[broker - 1].loop.create_future()
        work(outcome.set_result, outcome.set_exception)
        self.until(outcome.done)
        return outcome.result()

    def coordinator(self) -> int:
        """Who coordinates the id, once somebody does."""
        found: list[int] = []

        def is_there() -> bool:
            for machine in self.world.brokers:
                broker = machine.broker
                if not isinstance(broker, Broker):
                    continue
                try:
                    shard = broker.context.transactions.shard(NAME)
                except RaftlogError:
                    continue
                if not shard.is_loading and not shard.is_over:
                    found[:] = [machine.broker_id]
                    return True
            return False

        self.until(is_there)
        return found[0]

    def init(self, *, timeout_ms: int = 5_000) -> ProducerIdentity:
        at = self.coordinator()
        return self.call(
            at,
            lambda done, failed: (
                self.context(at)
                .transactions.shard(NAME)
                .init(
                    NAME,
                    done,
                    failed,
                    timeout_ms=timeout_ms,
                    new_id=77,
                    expected=None,
                    may_use=lambda _producer_id: True,
                )
            ),
        )

    def parts(self) -> list[TransactionPart]:
        topic = self.node(1).machine.topics["t"]
        return [TransactionPart("t", topic.id, n) for n in range(3)]

    def verify(
        self, broker: int, who: ProducerIdentity, part: TransactionPart, *, add: bool
    ) -> None:
        """As the leader of the partition does."""
        transactions = self.context(broker).transactions

        def ask(done: Callable[[None], None], failed: Callable[[RaftlogError], None]) -> None:
            transactions.verify(NAME, *who, [part], add=add, done=partial(_either, done, failed))

        self.call(broker, ask)

    def end(self, who: ProducerIdentity, *, commit: bool = True) -> ProducerIdentity:
        at = self.coordinator()
        return self.call(
            at,
            lambda done, failed: (
                self.context(at)
                .transactions.shard(NAME)
                .end(
                    NAME,
                    who,
                    done,
                    failed,
                    is_commit=commit,
                    version=BUMPING_VERSION,
                    new_id=78,
                )
            ),
        )

    def status(self) -> str:
        at = self.coordinator()
        return self.call(
            at,
            lambda done, failed: (
                self.context(at)
                .transactions.shard(NAME)
                .ask(lambda state: state.view(NAME).status, done, failed)
            ),
        )

    def host(self, partition: int) -> Partition:
        self.until(lambda: self.state(self.running(), partition).leader is not None)
        leader = self.state(self.running(), partition).leader
        assert leader is not None
        return self.context(leader).topics.host("t", partition)

    def running(self) -> int:
        return next(m.broker_id for m in self.world.brokers if m.is_running)

    def ends(self) -> list[int]:
        return [self.host(n).high_watermark for n in range(3)]


@pytest.fixture
def cluster() -> Iterator[Transactions]:
    with World(1, brokers=3) as world:
        yield Transactions(world)


def test_leaders_on_all_brokers_ask_and_are_told_the_end(cluster: Transactions) -> None:
    who = cluster.init()
    for part in cluster.parts():
        cluster.verify(cluster.leader(1, part.partition), who, part, add=True)
        cluster.verify(cluster.leader(1, part.partition), who, part, add=False)
    leaders = {cluster.leader(1, n) for n in range(3)}
    assert len(leaders) > 1, "so some markers go to other brokers"
    assert cluster.end(who) == (77, 1)
    cluster.until(lambda: cluster.status() == "complete_commit")
    assert cluster.ends() == [1, 1, 1]


def test_a_leader_that_asks_too_early_waits_for_the_last_transaction(
    cluster: Transactions,
) -> None:
    """On every broker: the next batch comes as soon as its client knows the decision."""
    who = cluster.init()
    part = cluster.parts()[0]
    for broker in (1, 2, 3):
        cluster.verify(broker, who, part, add=True)
        who = cluster.end(who)
    assert who == (77, 3)


@pytest.mark.parametrize("patience_s", [0.3, 3.0])
def test_a_leader_waits_as_long_as_it_is_told(cluster: Transactions, patience_s: float) -> None:
    who = cluster.init()
    coordinator, part = cluster.coordinator(), cluster.parts()[0]
    cluster.verify(coordinator, who, part, add=True)
    transactions = cluster.context(coordinator).transactions
    transactions._markers._ask = _lost  # type: ignore[method-assign]
    transactions.take_marker = lambda _item, _done: None  # type: ignore[method-assign]
    who, noted = cluster.end(who), list[RaftlogError | None]()
    began = cluster.world.time.now
    transactions.verify(NAME, *who, [part], add=True, done=noted.append, patience_s=patience_s)
    cluster.until(lambda: bool(noted))
    assert isinstance(noted[0], ConcurrentTransactionsError)
    assert patience_s <= cluster.world.time.now - began <= patience_s + 0.5


def test_another_coordinator_sends_the_markers_that_are_missing(cluster: Transactions) -> None:
    who = cluster.init()
    coordinator = cluster.coordinator()
    other = next(n for n in (1, 2, 3) if n != coordinator)
    for part in cluster.parts():
        cluster.verify(other, who, part, add=True)
    context = cluster.context(coordinator)
    context.transactions._markers._ask = _lost  # type: ignore[method-assign]
    context.transactions.take_marker = lambda _item, done: done(  # type: ignore[method-assign]
        BrokerUnavailableError("lost")
    )
    cluster.end(who, commit=False)
    assert cluster.status() == "prepare_abort"
    cluster.world.brokers[coordinator - 1].is_kept_down = True
    cluster.world.brokers[coordinator - 1].kill()
    cluster.until(lambda: cluster.status() == "complete_abort")
    assert cluster.ends() == [1, 1, 1]
    assert cluster.init() == (77, 2)


async def _lost(_broker: int, items: list[Any]) -> list[RaftlogError | None]:
    return [BrokerUnavailableError("lost")] * len(items)


def test_a_transaction_that_takes_too_long_ends_on_its_own(cluster: Transactions) -> None:
    who = cluster.init()
    part = cluster.parts()[0]
    cluster.verify(cluster.leader(1, 0), who, part, add=True)
    cluster.world.run_for(4.0)
    assert cluster.status() == "ongoing"
    cluster.world.run_for(2.0)
    assert cluster.status() == "complete_abort"
    assert cluster.host(0).high_watermark == 1


def test_a_deleted_topic_holds_up_no_transaction(cluster: Transactions) -> None:
    who = cluster.init()
    for part in cluster.parts():
        cluster.verify(cluster.leader(1, part.partition), who, part, add=True)
    cluster.admin(lambda admin: admin.delete_topics(["t"]))
    cluster.until(lambda: "t" not in cluster.node(cluster.coordinator()).machine.topics)
    cluster.end(who)
    cluster.until(lambda: cluster.status() == "complete_commit")


def test_a_topic_that_is_not_known_yet_is_not_gone(cluster: Transactions) -> None:
    """A coordinator may have older metadata than the leader that has added a partition."""
    find = cluster.context(1).transactions._find
    version = cluster.context(1).transactions.topics_version
    assert find(("no-topic", 0), version) is None
    with pytest.raises(LeaderNotAvailableError):
        find(("no-topic", 0), version + 1)


def test_a_partition_without_a_leader_gets_its_marker_later(cluster: Transactions) -> None:
    who = cluster.init()
    coordinator = cluster.coordinator()
    part = next(p for p in cluster.parts() if cluster.leader(1, p.partition) != coordinator)
    cluster.verify(coordinator, who, part, add=True)
    leader = cluster.leader(1, part.partition)
    cluster.world.brokers[leader - 1].is_kept_down = True
    cluster.world.brokers[leader - 1].kill()
    cluster.end(who)
    cluster.until(lambda: cluster.status() == "complete_commit")
    assert cluster.host(part.partition).high_watermark == 1


# -- markers that arrive again ---------------------------------------------------------------------


class FakeHost:
    """A partition that this broker leads."""

    topic_id = "id"

    def __init__(self) -> None:
        self.leader_epoch = 3

    topic_partition = type("At", (), {"partition": 0})


def test_a_marker_that_arrives_again_ends_no_later_transaction_of_its_epoch(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(limits, "MARKERS_NOTED_MAX", 2)
    marked, host = MarkedTransactions(), FakeHost()
    marker = Marker(77, 0, is_commit=True, coordinator_epoch=1, is_bumped=False)
    assert not marked.has(host, marker, 1)  # type: ignore[arg-type]
    marked.note(host, marker, 1)  # type: ignore[arg-type]
    assert marked.has(host, marker, 1)  # type: ignore[arg-type]
    assert not marked.has(host, marker, 2), "the next transaction"  # type: ignore[arg-type]
    bumped = marker._replace(is_bumped=True)
    assert not marked.has(host, bumped, 1), "its epoch tells it apart"  # type: ignore[arg-type]
    host.leader_epoch = 4
    assert not marked.has(host, marker, 1), "the log may lack it"  # type: ignore[arg-type]
    for producer_id in (78, 79):
        marked.note(host, marker._replace(producer_id=producer_id), 1)  # type: ignore[arg-type]
    assert len(marked._numbers) == 2


def _marker(cluster: Transactions, who: ProducerIdentity, partition: int) -> MarkerPart:
    """That of a commit, which reserves the partition for the next transaction."""
    part = cluster.parts()[partition]
    return MarkerPart(
        topic=part.topic,
        topic_id=part.topic_id,
        partition=part.partition,
        producer_id=who.producer_id,
        producer_epoch=who.epoch + 1,
        is_commit=True,
        coordinator_epoch=1,
        is_bumped=True,
        number=1,
        reserves=True,
    )


def test_a_marker_of_a_reserved_partition_waits_shortly_for_the_next_batch(
    cluster: Transactions,
) -> None:
    host = write(cluster, 0, 77)
    noted: list[RaftlogError | None] = []
    item = _marker(cluster, ProducerIdentity(77, 0), 0)
    for _ in range(2):  # it may arrive again
        cluster.context(cluster.leader(1, 0)).transactions.take_marker(item, noted.append)
    assert host.log.log_end_offset == 1
    cluster.until(lambda: len(noted) == 2)
    assert (noted, host.log.log_end_offset) == ([None, None], 2)
    assert host.reserved == {77: 1}
    assert not host.held_markers


def test_who_does_not_lead_refuses_a_marker_once(cluster: Transactions) -> None:
    other = next(n for n in (1, 2, 3) if n != cluster.leader(1, 0))
    noted: list[RaftlogError | None] = []
    context = cluster.context(other)
    item = _marker(cluster, ProducerIdentity(77, 0), 0)
    context.transactions.take_marker(item, noted.append)
    context.transactions.take_marker(msgspec.structs.replace(item, partition=9), noted.append)
    cluster.world.run_for(2 * COMMIT_SECONDS)
    assert {type(error) for error in noted} == {NotLeaderError, UnknownPartitionError}
    assert len(noted) == 2


# -- to brokers ------------------------------------------------------------------------------------


def test_items_for_a_broker_are_sent_together_and_few_requests_at_a_time(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(limits, "TRANSACTION_ITEMS_PER_REQUEST_MAX", 2)
    monkeypatch.setattr(limits, "TRANSACTION_ITEMS_QUEUED_MAX", 12)
    sent: list[list[int]] = []
    noted: list[tuple[int, RaftlogError | None]] = []

    async def run() -> None:
        gate, all_told = asyncio.Event(), asyncio.Event()

        def done(item: int, error: RaftlogError | None) -> None:
            noted.append((item, error))
            if len(noted) == 13:
                all_told.set()

        async def ask(_broker: int, items: list[int]) -> list[RaftlogError | None]:
            sent.append(items)
            await gate.wait()
            if 5 in items:
                raise BrokerUnavailableError("gone")
            return [None] * len(items)

        to: ToBrokers[int] = ToBrokers(asyncio.get_running_loop(), ask)
        for item in range(13):
            to.add(1, item, partial(done, item))
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        assert sent == [[0, 1], [2, 3], [4, 5], [6, 7]]
        gate.set()
        async with asyncio.timeout(20):
            await all_told.wait()
        await to.stop()

    asyncio.run(run())
    assert isinstance(dict(noted)[12], ThrottledError)
    assert {item for item, error in noted if error is not None} == {4, 5, 12}


# -- transactions that no coordinator knows --------------------------------------------------------


def write(
    cluster: Transactions, partition: int, producer_id: int, *, sequence: int = 0
) -> Partition:
    """A batch of a transaction, as a leader has it whose coordinator has lost its state."""
    host = cluster.host(partition)
    body = encode([b"v"], keys=[b"k"], timestamps_ms=1, codec=Codec.NONE)
    head = seal(
        body,
        producer_id=producer_id,
        producer_epoch=0,
        base_sequence=sequence,
        is_transactional=True,
    )
    batch = head + body.payload
    host.append(batch, parse_header(batch))
    return host


def test_a_leader_aborts_what_no_coordinator_knows_and_nothing_else(
    cluster: Transactions,
) -> None:
    who = cluster.init(timeout_ms=600_000)
    cluster.verify(cluster.leader(1, 0), who, cluster.parts()[0], add=True)
    known, unknown = write(cluster, 0, who.producer_id), write(cluster, 1, 5)
    for number in (1, 2, 3):
        cluster.context(number).transactions.hanging._patience = 2.0
    cluster.until(lambda: not len(unknown.log.producers.transactions))
    assert unknown.log.producers.transactions.aborted_count == 1
    cluster.world.run_for(2 * CHECK_SECONDS)
    assert cluster.status() == "ongoing"
    assert len(known.log.producers.transactions) == 1


def pend(cluster: Transactions, who: ProducerIdentity) -> ActiveShard:
    """Pending offsets, as the coordinator of group g has them."""
    maker = cluster.context(1).lookup.maker
    cluster.call(1, lambda done, failed: maker.when_made(partial(_either, done, failed)))

    def find() -> ActiveShard | None:
        for number in (1, 2, 3):
            with suppress(RaftlogError):
                shard = cluster.context(number).coordinator.shard("g")
                if not shard.is_loading:
                    return shard
        return None

    cluster.until(lambda: find() is not None)
    shard = find()
    assert shard is not None
    leader = next(
        n
        for n in (1, 2, 3)
        if shard.host
        is cluster.context(n).topics.host(OFFSETS_TOPIC, shard.host.topic_partition.partition)
    )
    part = TransactionPart(OFFSETS_TOPIC, shard.host.topic_id, shard.host.topic_partition.partition)
    if who.producer_id == 77:
        cluster.verify(leader, who, part, add=True)
    cluster.call(
        leader,
        lambda done, failed: shard.change(
            lambda groups, now, now_ms: groups.commit_pending(
                groups.guard(*who),
                "g",
                "",
                NO_MEMBER_EPOCH,
                [Commit("t", who.producer_id % 2, 9)],
                {},
                now=now,
                now_ms=now_ms,
            ),
            done,
            failed,
        ),
    )
    return shard


def test_pending_offsets_that_no_coordinator_knows_are_dropped(cluster: Transactions) -> None:
    known = cluster.init(timeout_ms=600_000)
    shard = pend(cluster, known)
    pend(cluster, ProducerIdentity(4, 0))
    groups = shard.loaded
    assert groups is not None
    assert groups.producers_pending() == [(77, 0), (4, 0)]
    for number in (1, 2, 3):
        cluster.context(number).transactions.hanging._patience = 2.0
    cluster.until(lambda: len(groups.producers_pending()) == 1)
    cluster.world.run_for(2 * CHECK_SECONDS)
    assert groups.producers_pending() == [(77, 0)]
    assert cluster.status() == "ongoing"


def test_a_leader_waits_until_every_coordinator_has_answered(cluster: Transactions) -> None:
    cluster.init()
    host = write(cluster, 1, 5)
    leader = cluster.leader(1, 1)
    hanging = cluster.context(leader).transactions.hanging
    owned = on(cluster, leader, hanging._owned([(5, (host.topic_id, 1))]))
    assert owned == [False]
    other = next(n for n in (1, 2, 3) if n != leader)
    cluster.context(other).transactions.hanging.answer = (  # type: ignore[method-assign]
        lambda _parts, done: done(TransactionOwnersResponse(shards=[], owned=[False]))
    )
    assert on(cluster, leader, hanging._owned([(5, (host.topic_id, 1))])) is None


def test_a_producer_that_has_written_in_between_is_left_alone(cluster: Transactions) -> None:
    host = write(cluster, 1, 5)
    hanging = cluster.context(cluster.leader(1, 1)).transactions.hanging
    (opened,) = hanging._opened()

    async def owned(_parts: object) -> list[bool]:
        write(cluster, 1, 5, sequence=1)
        return [False]

    hanging._owned = owned  # type: ignore[method-assign]
    on(cluster, cluster.leader(1, 1), hanging._resolve([opened]))
    assert len(host.log.producers.transactions) == 1
