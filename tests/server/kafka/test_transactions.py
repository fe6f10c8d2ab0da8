"""Transactions of Kafka clients, message by message: the coordinator, and leaders."""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from typing import Any, Final

import pytest

from raftlog.errors import (
    ConcurrentTransactionsError,
    CoordinatorLoadingError,
    InvalidTransactionStateError,
    ProducerFencedError,
    RaftlogError,
    TransactionAbortedError,
)
from raftlog.kafka import api as apis
from raftlog.kafka import codec, errors
from raftlog.kafka.api import Api
from raftlog.kafka.connection import KafkaRequest
from raftlog.replication.cluster_commands import PEER_PROTOCOL_TRANSACTIONS
from raftlog.server.apis import produce
from raftlog.server.apis.produce import COMPLETION_SECONDS
from raftlog.server.kafka import transactions
from raftlog.server.partition import Partition
from raftlog.server.scheduling import Acknowledge
from raftlog.storage.producer_state import LogTransactions
from raftlog.transactions import BUMPING_VERSION, FIRST_VERSION, Marker, TransactionPart
from raftlog.types import OFFSETS_TOPIC, TRANSACTIONS_TOPIC
from tests.record.kafka_batches import KafkaRecord, kafka_batch, kafka_header, kafka_resealed
from tests.server.harness import TIMEOUT_S, RunningBroker
from tests.server.kafka.group_client import GroupClient, message
from tests.server.kafka.kafka_client import KafkaClient, fetch_request, produce_request

# -- coordinators ----------------------------------------------------------------------------------

# Transactions of Kafka clients, message by message: both versions, from the first request to what
# readers of committed records see.


TRANSACTIONAL: Final = 1 << 4
COMMITTED: Final = 1
VERSIONS: Final = (FIRST_VERSION, BUMPING_VERSION)
TIMEOUT_MS: Final = 60_000
Who = tuple[int, int]


class TransactionalClient(GroupClient):
    """One connection, with the requests of one version of transactions."""

    version = BUMPING_VERSION

    def coordinator(self, name: str) -> Any:
        asked = message(apis.FIND_COORDINATOR, key_type=1, coordinator_keys=[name])
        while True:
            (found,) = self.ask(apis.FIND_COORDINATOR, 6, asked).coordinators
            if found.error_code != errors.COORDINATOR_NOT_AVAILABLE:
                return found

    def init(
        self, name: str, who: Who = (-1, -1), *, timeout_ms: int = TIMEOUT_MS, version: int = 5
    ) -> Any:
        found = self.coordinator(name)
        assert found.error_code == 0, found
        asked = message(
            apis.INIT_PRODUCER_ID,
            transactional_id=name,
            transaction_timeout_ms=timeout_ms,
            producer_id=who[0],
            producer_epoch=who[1],
        )
        answer = self.ask(apis.INIT_PRODUCER_ID, version, asked)
        return answer.error_code or (answer.producer_id, answer.producer_epoch)

    def add(self, name: str, who: Who, *parts: tuple[str, int], version: int = 3) -> list[int]:
        topic = codec.structs("request", apis.ADD_PARTITIONS_TO_TXN.key).AddPartitionsToTxnTopic
        asked = message(
            apis.ADD_PARTITIONS_TO_TXN,
            v3_and_below_transactional_id=name,
            v3_and_below_producer_id=who[0],
            v3_and_below_producer_epoch=who[1],
            v3_and_below_topics=[topic(name=each, partitions=[n]) for each, n in parts],
        )
        answer = self.ask(apis.ADD_PARTITIONS_TO_TXN, version, asked)
        return [
            each.partition_error_code
            for topic in answer.results_by_topic_v3_and_below
            for each in topic.results_by_partition
        ]

    def write(
        self,
        name: str,
        who: Who,
        topic: str,
        value: bytes,
        *,
        sequence: int = 0,
        partition: int = 0,
    ) -> int:
        made = kafka_batch([KafkaRecord(value, key=b"k")], producer=(*who, sequence))
        batch = kafka_resealed(made, attributes=kafka_header(made).attributes | TRANSACTIONAL)
        asked = produce_request(topic, batch, partition=partition)
        asked.transactional_id = name
        version = 12 if self.version == BUMPING_VERSION else 11
        if version == 11:
            assert self.add(name, who, (topic, partition)) == [0]
        answer = self.ask(apis.PRODUCE, version, asked)
        code: int = answer.responses[0].partition_responses[0].error_code
        return code

    def end(self, name: str, who: Who, *, commit: bool = True, version: int = 0) -> Any:
        asked = message(
            apis.END_TXN,
            transactional_id=name,
            producer_id=who[0],
            producer_epoch=who[1],
            committed=commit,
        )
        version = version or (5 if self.version == BUMPING_VERSION else 3)
        answer = self.ask(apis.END_TXN, version, asked)
        if answer.error_code or version < 5:
            return answer.error_code or who
        return answer.producer_id, answer.producer_epoch

    def describe(self, name: str) -> Any:
        asked = message(apis.DESCRIBE_TRANSACTIONS, transactional_ids=[name])
        (found,) = self.ask(apis.DESCRIBE_TRANSACTIONS, 0, asked).transaction_states
        return found

    def list(self, **filters: Any) -> Any:
        return self.ask(apis.LIST_TRANSACTIONS, 2, message(apis.LIST_TRANSACTIONS, **filters))

    def read(self, topic: str, partition: int = 0) -> Any:
        asked = fetch_request(topic, 0, partition=partition)
        asked.isolation_level = COMMITTED
        return self.ask(apis.FETCH, 12, asked).responses[0].partitions[0]


@pytest.fixture(params=VERSIONS)
def client(
    kafka_broker: RunningBroker, request: pytest.FixtureRequest
) -> Iterator[TransactionalClient]:
    found = TransactionalClient(kafka_broker.address)
    found.version = request.param
    yield found
    found.close()


@pytest.fixture
def topic(kafka_broker: RunningBroker, request: pytest.FixtureRequest) -> str:
    name: str = request.node.name.replace("[", "-").replace("]", "")
    with kafka_broker.client() as native:
        native.create(name, 2)
    return name


def until(condition: Callable[[], bool]) -> None:
    """Ask until it is so."""
    give_up = time.monotonic() + TIMEOUT_S
    while not condition():
        assert time.monotonic() < give_up


@pytest.mark.parametrize("commit", [True, False])
def test_a_transaction_from_its_begin_to_its_readers(
    client: TransactionalClient, topic: str, commit: bool
) -> None:
    who = client.init(topic)
    assert client.write(topic, who, topic, b"a") == 0
    assert client.write(topic, who, topic, b"b", partition=1) == 0
    assert [client.read(topic, n).last_stable_offset for n in (0, 1)] == [0, 0]
    state = client.describe(topic)
    assert (state.transaction_state, state.producer_id) == ("Ongoing", who[0])
    assert [(each.topic, each.partitions) for each in state.topics] == [(topic, [0, 1])]
    following = client.end(topic, who, commit=commit)
    assert following == (who[0], who[1] + (client.version == BUMPING_VERSION))
    ended = "CompleteCommit" if commit else "CompleteAbort"
    until(lambda: client.describe(topic).transaction_state == ended)
    for partition in (0, 1):
        part = client.read(topic, partition)
        assert (part.last_stable_offset, part.high_watermark) == (2, 2)
        assert bool(part.aborted_transactions) != commit
    sequence = 0 if client.version == BUMPING_VERSION else 1
    assert client.write(topic, following, topic, b"c", sequence=sequence) == 0


def test_the_next_transaction_waits_for_the_markers_of_the_last_one(
    client: TransactionalClient, topic: str
) -> None:
    """Without the wait, its client would be told to wait, and would for much longer."""
    who, sequence = client.init(topic), 0
    for _ in range(3):
        assert client.write(topic, who, topic, b"a", sequence=sequence) == 0
        who = client.end(topic, who)
        sequence += client.version == FIRST_VERSION
    assert isinstance(client.init(topic), tuple)


def test_another_instance_fences_the_first(client: TransactionalClient, topic: str) -> None:
    who = client.init(topic)
    assert client.write(topic, who, topic, b"a") == 0
    assert client.init(topic) == (who[0], who[1] + 2), "one abort, one new instance"
    assert client.read(topic).aborted_transactions
    assert client.end(topic, who) == errors.PRODUCER_FENCED
    assert client.end(topic, who, version=1) == errors.INVALID_PRODUCER_EPOCH
    assert client.add(topic, who, (topic, 0)) == [errors.PRODUCER_FENCED]
    assert client.add(topic, who, (topic, 0), version=1) == [errors.INVALID_PRODUCER_EPOCH]
    assert client.init(topic, who) == errors.PRODUCER_FENCED
    assert client.init(topic, who, version=3) == errors.INVALID_PRODUCER_EPOCH


def test_partitions_are_added_all_or_none(client: TransactionalClient, topic: str) -> None:
    who = client.init(topic)
    codes = client.add(topic, who, (topic, 0), (topic, 2), ("absent", 0))
    unknown = errors.UNKNOWN_TOPIC_OR_PARTITION
    assert codes == [errors.OPERATION_NOT_ATTEMPTED, unknown, unknown]
    assert client.describe(topic).transaction_state == "Empty"


def test_no_partition_of_an_internal_topic_is_added(
    client: TransactionalClient, topic: str
) -> None:
    """Its end would be a marker among the records of a coordinator, which cannot read that."""
    client.find(topic)
    who = client.init(topic)
    for internal in (TRANSACTIONS_TOPIC, OFFSETS_TOPIC):
        codes = client.add(topic, who, (internal, 0), (topic, 0))
        assert codes == [errors.TOPIC_AUTHORIZATION_FAILED, errors.OPERATION_NOT_ATTEMPTED]
    assert client.describe(topic).transaction_state == "Empty"


def test_offsets_of_a_group_are_committed_with_the_transaction(
    client: TransactionalClient, topic: str
) -> None:
    client.find(topic)
    who = client.init(topic)
    assert client.write(topic, who, topic, b"out") == 0
    if client.version == FIRST_VERSION:
        asked = message(
            apis.ADD_OFFSETS_TO_TXN,
            transactional_id=topic,
            producer_id=who[0],
            producer_epoch=who[1],
            group_id=topic,
        )
        assert client.ask(apis.ADD_OFFSETS_TO_TXN, 3, asked).error_code == 0
    structs = codec.structs("request", apis.TXN_OFFSET_COMMIT.key)
    offset = structs.TxnOffsetCommitRequestPartition(partition_index=0, committed_offset=7)
    asked = message(
        apis.TXN_OFFSET_COMMIT,
        transactional_id=topic,
        group_id=topic,
        producer_id=who[0],
        producer_epoch=who[1],
        topics=[structs.TxnOffsetCommitRequestTopic(name=topic, partitions=[offset])],
    )
    version = 5 if client.version == BUMPING_VERSION else 3
    answer = client.ask(apis.TXN_OFFSET_COMMIT, version, asked)
    assert answer.topics[0].partitions[0].error_code == 0
    names = [each.topic for each in client.describe(topic).topics]
    assert names == sorted((OFFSETS_TOPIC, topic))

    def committed() -> int:
        part = codec.structs("request", apis.OFFSET_FETCH.key).OffsetFetchRequestTopic(
            name=topic, partition_indexes=[0]
        )
        asked = message(apis.OFFSET_FETCH, group_id=topic, topics=[part])
        found: int = (
            client.ask(apis.OFFSET_FETCH, 7, asked).topics[0].partitions[0].committed_offset
        )
        return found

    assert committed() == -1
    client.end(topic, who)
    until(lambda: committed() == 7)


def test_transactions_are_listed_by_state_producer_duration_and_name(
    client: TransactionalClient, topic: str
) -> None:
    who = client.init(topic)
    listed = client.list(transactional_id_pattern=f".*{topic[4:]}").transaction_states
    assert [each.transactional_id for each in listed] == [topic]
    assert client.write(topic, who, topic, b"a") == 0
    for filters, count in (
        ({"producer_id_filters": [who[0]]}, 1),
        ({"producer_id_filters": [who[0]], "state_filters": ["Ongoing"]}, 1),
        ({"producer_id_filters": [who[0]], "state_filters": ["Empty"]}, 0),
        ({"producer_id_filters": [who[0]], "duration_filter": 3_600_000}, 0),
        ({"producer_id_filters": [who[0]], "state_filters": ["Dancing"]}, 0),
    ):
        assert len(client.list(**filters).transaction_states) == count, filters
    assert client.list(state_filters=["Dancing"]).unknown_state_filters == ["Dancing"]
    pattern = client.list(transactional_id_pattern="(")
    assert pattern.error_code == errors.INVALID_REGULAR_EXPRESSION
    assert client.describe("absent").error_code == errors.TRANSACTIONAL_ID_NOT_FOUND
    client.end(topic, who)


def test_an_operator_writes_a_marker(client: TransactionalClient, topic: str) -> None:
    """``kafka-transactions abort``."""
    who = client.init(topic)
    assert client.write(topic, who, topic, b"a") == 0
    structs = codec.structs("request", apis.WRITE_TXN_MARKERS.key)
    marker = structs.WritableTxnMarker(
        producer_id=who[0],
        producer_epoch=who[1],
        transaction_result=False,
        topics=[structs.WritableTxnMarkerTopic(name=topic, partition_indexes=[0, 9])],
    )
    asked = message(apis.WRITE_TXN_MARKERS, markers=[marker])
    (answer,) = client.ask(apis.WRITE_TXN_MARKERS, 1, asked).markers
    codes = [each.error_code for each in answer.topics[0].partitions]
    assert codes == [0, errors.UNKNOWN_TOPIC_OR_PARTITION]
    assert client.read(topic).last_stable_offset == 2


@pytest.mark.parametrize(
    ("fields", "code"),
    [
        ({"coordinator_epoch": -1}, errors.NONE),  # as DescribeProducers shows it
        ({"coordinator_epoch": -2}, errors.INVALID_REQUEST),
        ({"producer_epoch": -1}, errors.INVALID_REQUEST),
        ({"producer_id": -1, "producer_epoch": -1}, errors.INVALID_REQUEST),
    ],
    ids=str,
)
def test_an_operator_writes_no_marker_that_cannot_be(
    kafka_broker: RunningBroker, fields: dict[str, int], code: int
) -> None:
    """What is right in the request has its own outcome."""
    client = TransactionalClient(kafka_broker.address)
    with kafka_broker.client() as native:
        native.create(topic := "-".join(f"{name}{value}" for name, value in fields.items()), 2)
    structs = codec.structs("request", apis.WRITE_TXN_MARKERS.key)
    marker: dict[str, Any] = {
        "producer_id": 5,
        "producer_epoch": 1,
        "transaction_version": BUMPING_VERSION,
    }
    wanted = [
        structs.WritableTxnMarker(
            **{**marker, **more},
            topics=[structs.WritableTxnMarkerTopic(name=topic, partition_indexes=[number])],
        )
        for number, more in enumerate(({}, fields))
    ]
    answer = client.ask(apis.WRITE_TXN_MARKERS, 2, message(apis.WRITE_TXN_MARKERS, markers=wanted))
    codes = [each.topics[0].partitions[0].error_code for each in answer.markers]
    assert codes == [errors.NONE, code]
    ends = [client.read(topic, number).high_watermark for number in (0, 1)]
    assert ends == [1, int(code == errors.NONE)]
    client.close()


def test_an_operator_writes_no_marker_into_an_internal_topic(
    client: TransactionalClient, topic: str
) -> None:
    client.find(topic)
    client.init(topic)
    before = [client.read(name).high_watermark for name in (TRANSACTIONS_TOPIC, OFFSETS_TOPIC)]
    structs = codec.structs("request", apis.WRITE_TXN_MARKERS.key)
    marker = structs.WritableTxnMarker(
        producer_id=5,
        producer_epoch=1,
        transaction_version=BUMPING_VERSION,
        topics=[
            structs.WritableTxnMarkerTopic(name=name, partition_indexes=[0])
            for name in (TRANSACTIONS_TOPIC, OFFSETS_TOPIC)
        ],
    )
    asked = message(apis.WRITE_TXN_MARKERS, markers=[marker])
    (answer,) = client.ask(apis.WRITE_TXN_MARKERS, 2, asked).markers
    codes = [each.error_code for topic in answer.topics for each in topic.partitions]
    assert codes == [errors.INVALID_TOPIC, 0], "no offsets are pending"
    after = [client.read(name).high_watermark for name in (TRANSACTIONS_TOPIC, OFFSETS_TOPIC)]
    assert after == before


def test_a_broker_asks_for_several_transactions_at_once(
    client: TransactionalClient, topic: str
) -> None:
    who = client.init(topic)
    structs = codec.structs("request", apis.ADD_PARTITIONS_TO_TXN.key)

    def ask(*, verify_only: bool) -> list[int]:
        each = structs.AddPartitionsToTxnTransaction(
            transactional_id=topic,
            producer_id=who[0],
            producer_epoch=who[1],
            verify_only=verify_only,
            topics=[structs.AddPartitionsToTxnTopic(name=topic, partitions=[0])],
        )
        asked = message(apis.ADD_PARTITIONS_TO_TXN, transactions=[each])
        answer = client.ask(apis.ADD_PARTITIONS_TO_TXN, 5, asked)
        return [
            part.partition_error_code
            for found in answer.results_by_transaction
            for one in found.topic_results
            for part in one.results_by_partition
        ]

    assert ask(verify_only=True) == [errors.TRANSACTION_ABORTABLE]
    assert ask(verify_only=False) == [0]
    assert ask(verify_only=True) == [0]


def test_clients_choose_the_version_that_the_broker_names(kafka_client: KafkaClient) -> None:
    for version, lowest in ((3, 1), (4, 0)):
        answer = kafka_client.ask(apis.API_VERSIONS, version)
        (supported,) = answer.supported_features
        assert (supported.name, supported.min_version) == ("transaction.version", lowest)
        (feature,) = answer.finalized_features
        assert (feature.name, feature.max_version_level) == ("transaction.version", 2)


def test_there_are_none_before_all_brokers_have_them(
    kafka_client: KafkaClient, kafka_broker: RunningBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = property(lambda _self: PEER_PROTOCOL_TRANSACTIONS - 1)
    monkeypatch.setattr(type(kafka_broker.broker.context.operations), "peer_protocol", before)
    assert kafka_client.ask(apis.API_VERSIONS, 4).finalized_features == []
    asked = message(apis.INIT_PRODUCER_ID, transactional_id="x", transaction_timeout_ms=1)
    answer = kafka_client.ask(apis.INIT_PRODUCER_ID, 5, asked)
    assert answer.error_code == errors.UNSUPPORTED_VERSION
    for version, code in (
        (2, errors.TRANSACTIONAL_ID_AUTHORIZATION_FAILED),  # librdkafka: repeats all others
        (6, errors.INVALID_REQUEST),  # the Java client: shows the text
    ):
        asked = message(apis.FIND_COORDINATOR, key_type=1, key="x", coordinator_keys=["x"])
        answer = kafka_client.ask(apis.FIND_COORDINATOR, version, asked)
        found = answer if version < 4 else answer.coordinators[0]
        assert found.error_code == code
        assert "raftlog cluster features --upgrade" in found.error_message


@pytest.mark.parametrize("timeout_ms", [0, 900_001])
def test_a_time_limit_that_the_broker_does_not_allow(
    kafka_broker: RunningBroker, timeout_ms: int
) -> None:
    client = TransactionalClient(kafka_broker.address)
    code = client.init("long", timeout_ms=timeout_ms)
    assert code == errors.INVALID_TRANSACTION_TIMEOUT
    client.close()


@pytest.mark.parametrize(
    ("error", "api", "version", "code"),
    [
        (ProducerFencedError("old"), apis.END_TXN, 1, errors.INVALID_PRODUCER_EPOCH),
        (ProducerFencedError("old"), apis.END_TXN, 2, errors.PRODUCER_FENCED),
        (ProducerFencedError("old"), apis.INIT_PRODUCER_ID, 3, errors.INVALID_PRODUCER_EPOCH),
        (TransactionAbortedError("late"), apis.ADD_OFFSETS_TO_TXN, 3, errors.INVALID_TXN_STATE),
        (TransactionAbortedError("late"), apis.END_TXN, 5, errors.TRANSACTION_ABORTABLE),
    ],
)
def test_clients_hear_the_codes_of_their_version(
    error: RaftlogError, api: Api, version: int, code: int
) -> None:
    sent = codec.structs("request", api.key).root()
    request = KafkaRequest(api, version, 0, "", sent, memoryview(b""), 0, version, 0)
    assert transactions.code_for(error, request) == code


# -- leaders ---------------------------------------------------------------------------------------

# Batches of transactions on their leader: stored once the coordinator has confirmed them, and read
# by isolation.


Offsets = codec.structs("request", apis.LIST_OFFSETS.key)


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
    for error, version, code in (
        (InvalidTransactionStateError("not in it"), 11, errors.INVALID_TXN_STATE),
        (TransactionAbortedError("late"), 10, errors.INVALID_TXN_STATE),
        (TransactionAbortedError("late"), 11, errors.TRANSACTION_ABORTABLE),
        (ProducerFencedError("old"), 11, errors.INVALID_PRODUCER_EPOCH),
        (CoordinatorLoadingError("loading"), 11, errors.NOT_ENOUGH_REPLICAS),
    ):
        leader.send(b"a", version=version)
        leader.answer(error)
        assert leader.outcome(version).error_code == code
    assert leader.host.log.log_end_offset == 0


@pytest.mark.parametrize("is_at_once", [False, True])
def test_batches_behind_one_that_the_coordinator_refuses_are_out_of_order(
    leader: Leader, monkeypatch: pytest.MonkeyPatch, is_at_once: bool
) -> None:
    """They were sent before the client knew. Stored, they would leave a gap."""
    answers = [CoordinatorLoadingError("moving"), None]

    def verify(*_asked: object, done: Acknowledge, **_options: object) -> None:
        if is_at_once:
            done(answers.pop(0))
        else:
            asyncio.get_running_loop().call_soon(done, answers.pop(0))

    monkeypatch.setattr(leader.coordinator, "verify", verify)
    leader.send(b"a", sequence=4)
    assert leader.outcome().error_code == errors.NOT_ENOUGH_REPLICAS
    leader.send(b"b", sequence=5)
    assert leader.outcome().error_code == errors.OUT_OF_ORDER_SEQUENCE_NUMBER
    leader.send(b"a", sequence=4)
    leader.send(b"b", sequence=5)
    assert [leader.outcome().base_offset for _ in range(2)] == [0, 1]


def test_a_producer_that_is_fenced_learns_that_and_not_of_a_gap(leader: Leader) -> None:
    leader.write(b"a")
    leader.end(commit=True)
    for error, code in (
        (ProducerFencedError("old"), errors.INVALID_PRODUCER_EPOCH),
        (None, errors.OUT_OF_ORDER_SEQUENCE_NUMBER),
    ):
        leader.send(b"c", sequence=2)
        leader.answer(error)
        assert leader.outcome().error_code == code
    assert leader.host.log.log_end_offset == 2


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
