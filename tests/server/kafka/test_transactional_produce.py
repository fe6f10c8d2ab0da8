"""Batches of transactions on their leader: stored once the coordinator has confirmed them, and read
by isolation.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any, Final

import pytest

from raftlog.errors import (
    ConcurrentTransactionsError,
    CoordinatorLoadingError,
    InvalidTransactionStateError,
    ProducerFencedError,
    RaftlogError,
)
from raftlog.kafka import api as apis
from raftlog.kafka import codec, errors
from raftlog.server.apis import produce
from raftlog.server.apis.produce import COMPLETION_SECONDS
from raftlog.server.partition import Partition
from raftlog.server.scheduling import Acknowledge
from raftlog.storage.transactions import LogTransactions
from raftlog.transactions.values import Marker, TransactionPart
from tests.record.kafka_batches import KafkaRecord, kafka_batch, kafka_header, kafka_resealed
from tests.server.harness import RunningBroker
from tests.server.kafka.kafka_client import KafkaClient, fetch_request, produce_request

TRANSACTIONAL: Final = 1 << 4
Offsets = codec.structs("request", apis.LIST_OFFSETS.key)
COMMITTED: Final = 1


class FakeCoordinator:
    """Answers verifications when a test says so."""

    def __init__(self) -> None:
        self.asked: list[tuple[str, int, int, Sequence[TransactionPart], bool]] = []
        self.waiting: list[Acknowledge] = []

    def verify(
        self,
        transactional_id: str,
        producer_id: int,
        producer_epoch: int,
        parts: Sequence[TransactionPart],
        *,
        add: bool,
        done: Acknowledge,
        patience_s: float,
    ) -> None:
        assert patience_s == COMPLETION_SECONDS, "it asks again until the last one is complete"
        self.asked.append((transactional_id, producer_id, producer_epoch, parts, add))
        self.waiting.append(done)


class Leader:
    """A topic, its leader, and the coordinator of its transactions."""

    def __init__(self, broker: RunningBroker, client: KafkaClient, topic: str) -> None:
        self.broker, self.client, self.topic = broker, client, topic
        self.coordinator = FakeCoordinator()

    @property
    def host(self) -> Partition:
        return self.broker.broker.context.topics.host(self.topic, 0)

    def send(self, *values: bytes, sequence: int = 0, epoch: int = 0, version: int = 11) -> None:
        made = kafka_batch(
            [KafkaRecord(v, key=b"k") for v in values], producer=(9, epoch, sequence)
        )
        batch = kafka_resealed(made, attributes=kafka_header(made).attributes | TRANSACTIONAL)
        message = produce_request(self.topic, batch)
        message.transactional_id = "tx"
        self.client.send(apis.PRODUCE, version, message)

    def outcome(self, version: int = 11) -> Any:
        _, answer = self.client.receive(apis.PRODUCE, version)
        return answer.responses[0].partition_responses[0]

    def answer(self, error: RaftlogError | None = None) -> None:
        self.broker.wait_until(lambda: bool(self.coordinator.waiting))
        self.broker.call(lambda: self.coordinator.waiting.pop(0)(error))

    def write(self, *values: bytes, sequence: int = 0, epoch: int = 0) -> None:
        """Store a batch; only the first of a transaction is verified."""
        is_open = self.host.log.producers.has_open(9, epoch)
        self.send(*values, sequence=sequence, epoch=epoch)
        if not is_open:
            self.answer()
        assert self.outcome().error_code == 0

    def end(
        self, *, commit: bool, epoch: int = 0, is_bumped: bool = False, reserves: bool = False
    ) -> None:
        marker = Marker(9, epoch, commit, 0, is_bumped, reserves)
        self.broker.call(lambda: self.host.append_marker(marker, lambda _error: None))
        host = self.host
        self.broker.wait_until(lambda: host.high_watermark == host.log.log_end_offset)

    def read(self, offset: int = 0, **options: Any) -> Any:
        message = fetch_request(self.topic, offset, **options)
        message.isolation_level = COMMITTED
        return self.client.ask(apis.FETCH, 12, message).responses[0].partitions[0]

    def offset(self, timestamp: int) -> int:
        part = Offsets.ListOffsetsPartition(partition_index=0, timestamp=timestamp)
        topic = Offsets.ListOffsetsTopic(name=self.topic, partitions=[part])
        message = Offsets.root(replica_id=-1, isolation_level=COMMITTED, topics=[topic])
        answer = self.client.ask(apis.LIST_OFFSETS, 5, message)
        return int(answer.topics[0].partitions[0].offset)


@pytest.fixture
def leader(
    kafka_broker: RunningBroker,
    kafka_client: KafkaClient,
    request: pytest.FixtureRequest,
    monkeypatch: pytest.MonkeyPatch,
) -> Leader:
    name: str = request.node.name.replace("[", "-").replace("]", "")
    with kafka_broker.client() as native:
        native.create(name)
    made = Leader(kafka_broker, kafka_client, name)
    context = kafka_broker.broker.context
    monkeypatch.setattr(context, "transactions", made.coordinator, raising=False)
    return made


@pytest.mark.parametrize("version", [11, 12])
def test_the_first_batch_of_a_transaction_waits_for_its_coordinator(
    leader: Leader, version: int
) -> None:
    leader.send(b"a", version=version)
    leader.send(b"b", sequence=1, version=version)
    leader.broker.wait_until(lambda: bool(leader.coordinator.asked))
    (asked,) = leader.coordinator.asked
    part = TransactionPart(leader.topic, leader.host.topic_id, 0)
    assert asked == ("tx", 9, 0, [part], version >= 12)
    assert leader.host.log.log_end_offset == 0
    leader.answer()
    assert [leader.outcome(version).base_offset for _ in range(2)] == [0, 1]
    leader.send(b"c", sequence=2, version=version)
    assert leader.outcome(version).base_offset == 2
    assert len(leader.coordinator.asked) == 1


def test_a_refused_transaction_stores_nothing(leader: Leader) -> None:
    for error, code in (
        (InvalidTransactionStateError("not in it"), errors.INVALID_TXN_STATE),
        (ProducerFencedError("old"), errors.INVALID_PRODUCER_EPOCH),
        (CoordinatorLoadingError("loading"), errors.NOT_ENOUGH_REPLICAS),
    ):
        leader.send(b"a")
        leader.answer(error)
        assert leader.outcome().error_code == code
    assert leader.host.log.log_end_offset == 0


def test_a_marker_refuses_the_batches_that_are_not_verified_yet(leader: Leader) -> None:
    """KIP-890: else a late batch begins a transaction that hangs."""
    leader.send(b"late")
    leader.broker.wait_until(lambda: bool(leader.coordinator.asked))
    leader.end(commit=False)
    assert leader.outcome().error_code == errors.INVALID_TXN_STATE
    leader.answer()  # comes too late
    assert leader.host.log.log_end_offset == 0


def test_the_next_transaction_waits_for_the_marker_of_the_last(leader: Leader) -> None:
    """Its client sends as soon as the decision is written, with the epoch of the marker."""
    leader.write(b"a")
    asked = len(leader.coordinator.asked)
    leader.send(b"b", epoch=1, version=12)
    leader.broker.wait_until(lambda: bool(leader.host.verifications))
    assert len(leader.coordinator.asked) == asked, "which is still completing the last one"
    leader.end(commit=True, epoch=1, is_bumped=True)
    leader.answer()
    assert leader.outcome(12).base_offset == 2


def test_the_leader_asks_if_no_marker_comes(
    leader: Leader, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(produce, "MARKER_SECONDS", 0.0)
    leader.write(b"a")
    leader.send(b"b", epoch=1, version=12)
    leader.answer(ConcurrentTransactionsError("being completed"))
    assert leader.outcome(12).error_code == errors.NOT_ENOUGH_REPLICAS


@pytest.mark.parametrize("is_early", [False, True])
def test_a_reserved_partition_needs_no_question(leader: Leader, is_early: bool) -> None:
    """Its membership was committed with the end of the last transaction."""
    leader.write(b"a")
    asked = len(leader.coordinator.asked)
    if is_early:
        leader.send(b"b", epoch=1, version=12)
        leader.broker.wait_until(lambda: bool(leader.host.verifications))
    leader.end(commit=True, epoch=1, is_bumped=True, reserves=True)
    if not is_early:
        leader.send(b"b", epoch=1, version=12)
    assert leader.outcome(12).base_offset == 2
    assert len(leader.coordinator.asked) == asked


def test_a_reservation_is_of_one_epoch(leader: Leader) -> None:
    """Else a batch of a newer instance begins a transaction that no marker ends."""
    leader.write(b"a")
    leader.send(b"b", epoch=2, version=12)
    leader.broker.wait_until(lambda: bool(leader.host.verifications))
    leader.end(commit=True, epoch=1, is_bumped=True, reserves=True)
    leader.answer(ProducerFencedError("refused"))
    assert leader.outcome(12).error_code == errors.INVALID_PRODUCER_EPOCH
    assert leader.host.log.log_end_offset == 2


def test_a_reservation_ends_with_its_transaction(leader: Leader) -> None:
    leader.write(b"a")
    leader.end(commit=True, epoch=1, is_bumped=True, reserves=True)
    leader.end(commit=False, epoch=2, is_bumped=True)
    leader.send(b"b", epoch=1, version=12)
    assert leader.outcome(12).error_code == errors.INVALID_PRODUCER_EPOCH
    leader.send(b"c", epoch=2, version=12)
    leader.answer()
    assert leader.outcome(12).base_offset == 3


def test_a_new_epoch_refuses_the_batches_of_the_old_one_that_wait(leader: Leader) -> None:
    leader.send(b"old")
    leader.broker.wait_until(lambda: bool(leader.coordinator.asked))
    leader.send(b"new", epoch=1)
    assert leader.outcome().error_code == errors.INVALID_PRODUCER_EPOCH
    leader.broker.wait_until(lambda: len(leader.coordinator.waiting) == 2)
    leader.coordinator.waiting.pop(0)
    leader.answer()
    assert leader.outcome().base_offset == 0


def test_a_retry_of_an_ended_transaction_gets_its_offset_again(leader: Leader) -> None:
    leader.write(b"a")
    leader.end(commit=True)
    leader.send(b"a")
    assert leader.outcome().base_offset == 0


def test_a_batch_without_a_transactional_id_is_refused(leader: Leader) -> None:
    made = kafka_batch([KafkaRecord(b"a", key=b"k")], producer=(9, 0, 0))
    batch = kafka_resealed(made, attributes=TRANSACTIONAL)
    assert leader.client.produce(leader.topic, batch).error_code == errors.INVALID_TXN_STATE


def test_readers_of_committed_records(leader: Leader) -> None:
    """They see the end of a transaction, and which are aborted; others see all records."""
    leader.write(b"a", b"b")
    part = leader.read()
    assert (part.last_stable_offset, part.high_watermark, part.records) == (0, 2, b"")
    assert (leader.offset(-1), leader.offset(1)) == (0, -1)
    assert leader.client.fetch(leader.topic).records
    leader.end(commit=False)
    part = leader.read()
    aborted = [(each.producer_id, each.first_offset) for each in part.aborted_transactions]
    assert (part.last_stable_offset, aborted, leader.offset(-1)) == (3, [(9, 0)], 3)
    assert leader.client.fetch(leader.topic).aborted_transactions is None
    leader.write(b"c", sequence=2)
    assert leader.read().records == part.records  # and not those of the open transaction
    leader.end(commit=True)
    assert leader.read(3).aborted_transactions == []


@pytest.mark.parametrize(("commit", "searches"), [(True, 0), (False, 1)])
def test_a_read_finds_the_stable_offset_and_the_aborted_transactions_once(
    leader: Leader, monkeypatch: pytest.MonkeyPatch, commit: bool, searches: int
) -> None:
    leader.write(b"a")
    leader.end(commit=commit)
    counts: Counter[str] = Counter()

    def counted(name: str) -> Callable[..., Any]:
        method = getattr(LogTransactions, name)

        def call(self: LogTransactions, *arguments: Any) -> Any:
            counts[name] += self is leader.host.log.producers.transactions
            return method(self, *arguments)

        return call

    for name in ("last_stable_offset", "aborted"):
        monkeypatch.setattr(LogTransactions, name, counted(name))
    assert leader.read().records
    assert (counts["last_stable_offset"], counts["aborted"]) == (1, searches)


def test_a_waiting_reader_gets_a_transaction_when_it_ends(leader: Leader) -> None:
    """The marker is small: its bytes alone would not reach the minimum of the fetch."""
    leader.write(b"a" * 1_000)
    message = fetch_request(leader.topic, 0, wait_ms=60_000, bytes_min=800)
    message.isolation_level = COMMITTED
    sent = leader.client.send(apis.FETCH, 12, message)
    leader.broker.wait_until(lambda: len(leader.broker.broker.context.purgatory) == 1)
    leader.end(commit=True)
    answered, answer = leader.client.receive(apis.FETCH, 12)
    assert answered == sent
    assert len(answer.responses[0].partitions[0].records) > 1_000
