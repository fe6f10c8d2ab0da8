"""Quotas: clients that use more than theirs have to wait."""

from __future__ import annotations

import socket
import time
from collections.abc import Iterator, Mapping

import pytest

from raftlog import limits
from raftlog.errors import ThrottledError
from raftlog.kafka import api as kafka_apis
from raftlog.protocol import api as apis
from raftlog.protocol.records import ProducePartition, ProduceRequest
from raftlog.replication.cluster_commands import AlterQuotas, QuotaChange
from raftlog.security.quota import DEFAULT, QuotaEntity, QuotaKey, Quotas
from raftlog.server.connection import Meter
from tests.record.kafka_batches import KafkaRecord, kafka_batch
from tests.server.access.acting import access_of, acting, connection_of, kafka_acting
from tests.server.harness import Client, RunningBroker, batch_of, closed_by_peer, running
from tests.server.kafka.kafka_client import fetch_request, produce_request

USER = QuotaEntity("user")


@pytest.fixture(scope="module")
def shared(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningBroker]:
    with running(tmp_path_factory.mktemp("quotas")) as broker, broker.client() as client:
        client.create("t")
        yield broker


@pytest.fixture
def broker(shared: RunningBroker) -> Iterator[RunningBroker]:
    """Without quotas, and nothing was used of any."""
    access, counters = access_of(shared), shared.broker.context.counters
    counters.throttled = counters.quota_refusals = 0
    yield shared
    for entity in tuple(access.authority.machine.quotas):
        limit(shared, dict.fromkeys(entity.keys), entity)
    shared.call(access.quotas._buckets.clear)


@pytest.fixture
def client(broker: RunningBroker) -> Iterator[Client]:
    with acting(broker, "user") as client:
        yield client


def limit(
    broker: RunningBroker, quota: Mapping[QuotaKey, float | None], entity: QuotaEntity = USER
) -> None:
    change = AlterQuotas(changes=(QuotaChange(entity, dict(quota)),))
    broker.await_(access_of(broker).authority.propose(change))


def produce(client: Client, batch: bytes, acks: int = -1) -> int:
    """Send a batch."""
    part = ProducePartition(topic="t", partition=0, length=len(batch))
    request = ProduceRequest(acks=acks, partitions=[part])  # type: ignore[arg-type]
    return client.send(apis.PRODUCE, request, [batch])


def test_a_wait_is_told_once_and_bounded() -> None:
    quotas = Quotas()
    quotas.put(USER, {"producer_byte_rate": 10.0})
    meter = Meter(quotas, lambda: 0.0)
    meter.user = "user"
    meter.use("producer_byte_rate", 15)
    assert meter.take_wait_ms() == 500
    assert meter.take_wait_ms() == 0
    meter.use("producer_byte_rate", 1e9)
    assert meter.take_wait_ms() == limits.THROTTLE_MS_MAX
    quotas.put(USER, {"producer_byte_rate": 1e-306})
    meter.use("producer_byte_rate", 1e9)
    assert meter.take_wait_ms() == limits.THROTTLE_MS_MAX


def test_a_producer_over_its_quota_waits(broker: RunningBroker, client: Client) -> None:
    """Its next request is handled later, and the response says how much later."""
    batch = batch_of(bytes(1_000))
    limit(broker, {"producer_byte_rate": len(batch) / 1.2})
    began = time.monotonic()
    assert client.answer(produce(client, batch)).message.throttle_ms == 200  # a burst lasts 1 s
    assert client.answer(produce(client, batch)).message.throttle_ms == 1_400
    assert time.monotonic() - began >= 0.2
    assert broker.broker.context.counters.throttled == 2
    limit(broker, {"producer_byte_rate": None})
    with acting(broker, "user") as other:
        assert other.answer(produce(other, batch)).message.throttle_ms == 0


def test_a_producer_without_responses_waits_too(broker: RunningBroker, client: Client) -> None:
    batch = batch_of(bytes(1_000))
    limit(broker, {"producer_byte_rate": len(batch) / 1.2})
    began = time.monotonic()
    produce(client, batch, acks=0)
    client.offset("t", "latest")
    assert time.monotonic() - began >= 0.2


def test_a_consumer_over_its_quota_waits(broker: RunningBroker, client: Client) -> None:
    batch = batch_of(bytes(1_000))
    end = client.produce("t", batch).base_offset
    limit(broker, {"consumer_byte_rate": len(batch) / 1.2})
    answer = client.answer(client.send_fetch("t", end, wait_ms_max=0)).message
    assert answer.throttle_ms == 200
    assert answer.partitions[0].length == len(batch)


def test_kafka_clients_wait_too(broker: RunningBroker) -> None:
    batch = kafka_batch([KafkaRecord(bytes(2_000), key=b"k")])
    limit(broker, {"producer_byte_rate": 1_000.0, "consumer_byte_rate": 1_000.0}, QuotaEntity("k"))
    with kafka_acting(broker, "k") as kafka:
        answer = kafka.ask(kafka_apis.PRODUCE, 9, produce_request("t", batch))
        end = answer.responses[0].partition_responses[0].base_offset
        assert 1_000 <= answer.throttle_time_ms < 1_500
    with kafka_acting(broker, "k") as kafka:
        answer = kafka.ask(kafka_apis.FETCH, 12, fetch_request("t", end))
        assert 1_000 <= answer.throttle_time_ms < 1_500


def test_a_response_to_a_kafka_client_does_not_wait(
    broker: RunningBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is encoded in steps, in a turn of the connection. The client waits after it."""
    batch = kafka_batch([KafkaRecord(bytes(5_000), key=b"k")])
    limit(broker, {"producer_byte_rate": 1_000.0}, QuotaEntity("k"))
    with kafka_acting(broker, "k") as kafka:
        # The clock of the test stands still: no share of the loop would end.
        monkeypatch.setattr(broker.broker.connections.turns, "_now", time.monotonic)
        began = time.monotonic()
        answer = kafka.ask(kafka_apis.PRODUCE, 9, produce_request("t", batch))
        assert answer.throttle_time_ms > 4_000
        assert time.monotonic() - began < 2


def test_time_on_the_loop_is_counted(broker: RunningBroker, client: Client) -> None:
    limit(broker, {"request_percentage": 1e-9})
    counters = broker.broker.context.counters
    now = iter(range(1_000_000))
    before, counters.now = counters.now, lambda: float(next(now))
    client.offset("t", "latest")
    answer = client.answer(produce(client, batch_of(b"x"))).message
    counters.now = before
    assert answer.throttle_ms == limits.THROTTLE_MS_MAX


def test_a_user_has_so_many_connections(broker: RunningBroker) -> None:
    limit(broker, {"connections": 2.0}, QuotaEntity(DEFAULT))
    with acting(broker, "alice") as one, acting(broker, "alice") as two:
        for client in (one, two, one):
            client.offset("t", "latest")
        with acting(broker, "alice") as three, acting(broker, "bob") as bob:
            bob.offset("t", "latest")
            with pytest.raises(ThrottledError, match="quota is 2"):
                three.offset("t", "latest")
            assert closed_by_peer(three.socket)
        two.close()
        broker.wait_until(lambda: access_of(broker)._counts["alice"] == 1)
        with acting(broker, "alice") as four:
            four.offset("t", "latest")
    assert broker.broker.context.counters.quota_refusals == 1


def test_a_connection_counts_for_the_user_that_it_has_now(broker: RunningBroker) -> None:
    limit(broker, {"connections": 1.0}, QuotaEntity("alice"))
    with acting(broker, "bob") as client, acting(broker, "bob") as other:
        client.offset("t", "latest")
        other.offset("t", "latest")
        principal = connection_of(broker, client).principal
        connection_of(broker, other).principal = type(principal)("User", "alice")
        other.offset("t", "latest")
        counts = access_of(broker)._counts
        assert (counts["bob"], counts["alice"]) == (1, 1)


def test_an_address_opens_so_many_connections(broker: RunningBroker) -> None:
    limit(broker, {"connection_creation_rate": 1.0}, QuotaEntity(address=DEFAULT))
    with broker.client(), broker.client(), socket.create_connection(broker.address) as refused:
        assert closed_by_peer(refused)
    assert broker.broker.context.counters.quota_refusals == 1


def test_without_quotas_nothing_is_measured(broker: RunningBroker, client: Client) -> None:
    connection = connection_of(broker, client)
    client.offset("t", "latest")
    assert connection.meter is None
    limit(broker, {"connections": 5.0})
    client.offset("t", "latest")
    assert connection.meter is not None
