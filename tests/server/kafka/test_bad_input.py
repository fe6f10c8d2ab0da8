"""Tampered Kafka requests to a running broker: refusals, and nothing but refusals."""

from __future__ import annotations

import random
import socket

import pytest

from raftlog import limits
from raftlog.kafka import api as apis
from raftlog.kafka import codec, errors
from raftlog.kafka.api import Api
from raftlog.testing.kafka_wire import request
from tests.record.kafka_batches import KafkaRecord, kafka_batch
from tests.server.harness import RunningBroker
from tests.server.kafka.kafka_client import connected, fetch_request, produce_request

ROUNDS = 40


def _message(api: Api) -> object:
    """A message with something in it."""
    if api is apis.PRODUCE:
        return produce_request("bad-input", kafka_batch([KafkaRecord(b"v")] * 3))
    if api is apis.FETCH:
        return fetch_request("bad-input")
    structs = codec.structs("request", api.key)
    message = structs.root()
    if api is apis.CREATE_TOPICS:
        message.topics = [structs.CreatableTopic(name="x" * 300, num_partitions=1)]
    if api is apis.LIST_OFFSETS:
        part = structs.ListOffsetsPartition(partition_index=0, timestamp=-1)
        message.topics = [structs.ListOffsetsTopic(name="bad-input", partitions=[part])]
    if api is apis.DESCRIBE_CONFIGS:
        message.resources = [structs.DescribeConfigsResource(resource_type=2)]
    return message


@pytest.mark.parametrize("api", apis.APIS.values(), ids=lambda api: api.name)
def test_tampered_requests(kafka_broker: RunningBroker, api: Api) -> None:
    with kafka_broker.client() as native:
        native.create("bad-input")
    chance = random.Random(api.key)
    for _ in range(ROUNDS):
        version = chance.randint(api.version_min, api.version_max)
        data = bytearray(request(api, version, _message(api)))
        for _ in range(chance.randint(1, 4)):
            data[chance.randrange(8, len(data))] = chance.choice((0, 1, 0x7F, 0x80, 0xFF))
        with socket.create_connection(kafka_broker.address, 20) as raw:
            raw.sendall(data)
            raw.shutdown(socket.SHUT_WR)
            while raw.recv(65_536):  # until the broker has closed it
                pass
    assert kafka_broker.broker.context.counters.mistakes == 0
    with connected(kafka_broker) as client:
        client.ask(apis.METADATA, 9)


def test_an_endless_array_takes_no_memory(kafka_broker: RunningBroker) -> None:
    """20 bytes that claim 2^32 - 2 topics."""
    with connected(kafka_broker) as client:
        body = b"\0\xff\xff" + bytes(4) + b"\xff\xff\xff\xff\x0f" + bytes(8)
        client.send_bytes(request(apis.PRODUCE, 9, body=body))
        assert client.is_closed()


@pytest.mark.parametrize("size", [3, 2 * limits.FRAME_SMALL_BYTES_MAX])
def test_the_reason_of_a_close_is_in_a_response_and_in_the_log(
    kafka_broker: RunningBroker, size: int, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO")
    with connected(kafka_broker) as client:
        client.send(apis.METADATA, 9)
        client.send_bytes(request(apis.INIT_PRODUCER_ID, 4, body=b"\xff" * size))
        client.send(apis.METADATA, 9)
        client.receive(apis.METADATA, 9)
        _, refused = client.receive(apis.INIT_PRODUCER_ID, 4)
        assert refused.error_code == errors.INVALID_REQUEST
        assert client.is_closed()
    assert "connection closed: peer=127.0.0.1" in caplog.text
    assert "InitProducerId version 4 is invalid" in caplog.text
