"""What Kafka's clients have sent to a broker, sent again: each request is understood."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from raftlog.kafka import api as apis
from raftlog.kafka import errors
from tests.kafka.fuzz import codes_of
from tests.kafka.requests import api_and_version, recorded
from tests.server.harness import RunningBroker, running
from tests.server.kafka.group_client import grouped

# Other codes are right: members, generations and sequences are those of another broker.
NEVER = {
    errors.UNKNOWN_SERVER_ERROR,
    errors.UNKNOWN_TOPIC_OR_PARTITION,
    errors.INVALID_TOPIC,
    errors.UNSUPPORTED_VERSION,
    errors.INVALID_REQUEST,
    errors.UNKNOWN_TOPIC_ID,
}


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningBroker]:
    with running(
        tmp_path_factory.mktemp("requests"), group_initial_rebalance_delay_ms="0"
    ) as broker:
        with broker.client() as native:
            native.create("orders")
        with grouped(broker) as client:
            client.find("readers")
        yield broker


@pytest.mark.parametrize("name", recorded())
def test_each_request_of_a_client_is_understood(broker: RunningBroker, name: str) -> None:
    topic_id, requests = recorded()[name]
    now = broker.broker.context.topics.topic("orders").id
    assert len(requests) >= 10
    with grouped(broker) as client:
        for request in requests:
            sent = bytes.fromhex(request.replace(topic_id, now))
            key, version = api_and_version(sent)
            client.send_bytes(sent)
            _, answer = client.receive(apis.APIS[key], version)
            codes = set(codes_of(answer))
            assert not codes & NEVER, f"{apis.APIS[key].name} {version}: {codes}"
