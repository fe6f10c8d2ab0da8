"""Kafka requests over a socket: every advertised API is served, in order, and errors are told."""

from __future__ import annotations

from pathlib import Path

import pytest

from raftlog import limits
from raftlog.kafka import api as apis
from raftlog.kafka import codec
from raftlog.kafka.api import Api
from raftlog.server.kafka.dispatch import HANDLERS
from raftlog.testing.kafka_wire import request
from tests.server.harness import RunningBroker, running
from tests.server.kafka.kafka_client import KafkaClient, connected


def test_what_is_advertised_is_served() -> None:
    assert HANDLERS.keys() == apis.APIS.keys()


@pytest.mark.parametrize("api", apis.APIS.values(), ids=lambda api: api.name)
def test_every_version_of_an_empty_request_is_answered(
    kafka_client: KafkaClient, kafka_broker: RunningBroker, api: Api
) -> None:
    for version in range(api.version_min, api.version_max + 1):
        message = codec.structs("request", api.key).root()
        if api is apis.PRODUCE:
            message.acks = 1  # with 0, a request has no answer
        kafka_client.ask(api, version, message)
    counters = kafka_broker.broker.context.counters
    assert counters.mistakes == 0


def test_many_requests_at_once_are_answered_in_order(kafka_client: KafkaClient) -> None:
    sent = [kafka_client.send(apis.METADATA, 9) for _ in range(150)]
    assert [kafka_client.receive(apis.METADATA, 9)[0] for _ in sent] == sent


def test_bad_input_closes_the_connection_only(
    kafka_client: KafkaClient, kafka_broker: RunningBroker
) -> None:
    with connected(kafka_broker) as bad:
        bad.send_bytes(request(apis.METADATA, 1, body=b"\x7f\xff\xff\xff"))
        assert bad.is_closed()
    kafka_client.ask(apis.METADATA, 1)


def _long_request() -> bytes:
    """A request that is decoded in steps."""
    topic = codec.structs("request", apis.METADATA.key).MetadataRequestTopic
    wanted = codec.structs("request", apis.METADATA.key).root(
        topics=[topic(name=f"absent-{number}") for number in range(3_000)],
        allow_auto_topic_creation=False,
    )
    data = request(apis.METADATA, 9, wanted, correlation_id=77)
    assert len(data) > limits.FRAME_SMALL_BYTES_MAX
    return data


def test_long_requests_are_answered_in_order(kafka_client: KafkaClient) -> None:
    first = kafka_client.send(apis.METADATA, 9)
    kafka_client.send_bytes(_long_request())
    last = kafka_client.send(apis.METADATA, 9)
    answers = [kafka_client.receive(apis.METADATA, 9) for _ in range(3)]
    assert [correlation_id for correlation_id, _ in answers] == [first, 77, last]
    assert len(answers[1][1].topics) == 3_000


def test_a_long_request_that_is_not_valid_closes_the_connection_only(
    kafka_client: KafkaClient, kafka_broker: RunningBroker
) -> None:
    data = bytearray(_long_request())
    data[-20:] = b"\xff" * 20
    with connected(kafka_broker) as bad:
        bad.send(apis.METADATA, 9)
        bad.send_bytes(bytes(data))
        bad.send(apis.METADATA, 9)
        bad.receive(apis.METADATA, 9)
        assert bad.is_closed()
    kafka_client.ask(apis.METADATA, 9)
    assert kafka_broker.broker.context.counters.mistakes == 0


def test_the_protocol_can_be_switched_off(tmp_path: Path) -> None:
    with (
        running(tmp_path, kafka_protocol_enable="false") as broker,
        connected(broker) as client,
        broker.client(),
    ):
        client.send(apis.API_VERSIONS, 0)
        client.send(apis.API_VERSIONS, 0)
        assert b"raftlog" in client.rest()


def test_a_limit_of_connections_counts_both_kinds(tmp_path: Path) -> None:
    with (
        running(tmp_path, max_connections="2") as broker,
        broker.client(),
        connected(broker) as one,
        connected(broker) as two,
    ):
        one.ask(apis.METADATA, 1)
        assert two.is_closed()
