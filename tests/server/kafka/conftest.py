"""A broker and a Kafka client of it."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.server.harness import RunningBroker, running
from tests.server.kafka.kafka_client import KafkaClient, connected


@pytest.fixture(scope="package")
def kafka_broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningBroker]:
    """One for all tests that need no settings: each has topics with names of its own."""
    data_dir: Path = tmp_path_factory.mktemp("kafka")
    with running(data_dir) as broker:
        yield broker


@pytest.fixture
def kafka_client(kafka_broker: RunningBroker) -> Iterator[KafkaClient]:
    with connected(kafka_broker) as client:
        yield client
