"""A broker and a Kafka client of it."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.server.harness import RunningBroker, running
from tests.server.kafka.group_client import GroupClient, grouped
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


@pytest.fixture(scope="package")
def group_broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningBroker]:
    """One whose groups rebalance without a delay, with topic t of four partitions. Each test has
    groups with names of its own.
    """
    with running(tmp_path_factory.mktemp("groups"), group_initial_rebalance_delay_ms="0") as broker:
        with broker.client() as client:
            assert client.create("t", 4).failure is None
        yield broker


@pytest.fixture
def group_client(group_broker: RunningBroker) -> Iterator[GroupClient]:
    with grouped(group_broker) as client:
        yield client
