"""Kafka requests over a socket: every advertised API is served, in order, and errors are told."""

from __future__ import annotations

from pathlib import Path

import pytest

from raftlog.kafka import api as apis
from raftlog.kafka import codec
from raftlog.kafka.api import Api
from raftlog.server.kafka.dispatch import HANDLERS
from tests.kafka.wire import request
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
