"""A broker that enforces access rules, and clients that act as a user."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from raftlog.security.acl import Acl, Principal
from raftlog.server.access.control import AccessControl
from raftlog.server.connection import Connection
from tests.server.harness import Client, RunningBroker, running
from tests.server.kafka.kafka_client import KafkaClient


@contextmanager
def guarded(data_dir: Path, **settings: str) -> Iterator[RunningBroker]:
    """A broker that enforces access rules: ``User:admin`` is its super user."""
    with running(data_dir, group_initial_rebalance_delay_ms="0", **settings) as broker:
        access_of(broker).is_enforced = True
        yield broker


def access_of(broker: RunningBroker) -> AccessControl:
    return broker.broker.context.access


def connection_of(broker: RunningBroker, client: Client | KafkaClient) -> Connection:
    """The broker's end of a client's connection."""
    raw = client.socket if isinstance(client, Client) else client._socket
    port = raw.getsockname()[1]

    def find() -> Connection | None:
        opened = broker.broker.connections._open
        return next((each for each in opened if each.peer.endswith(f":{port}")), None)

    broker.wait_until(lambda: find() is not None)
    found = broker.call(find)
    assert found is not None
    return found


@contextmanager
def acting(broker: RunningBroker, user: str) -> Iterator[Client]:
    """A client that the broker knows as ``user``."""
    with broker.client() as client:
        connection_of(broker, client).principal = Principal("User", user)
        yield client


@contextmanager
def kafka_acting(broker: RunningBroker, user: str) -> Iterator[KafkaClient]:
    """A Kafka client that the broker knows as ``user``."""
    client = KafkaClient(broker.address)
    try:
        connection_of(broker, client).principal = Principal("User", user)
        yield client
    finally:
        client.close()


@contextmanager
def allowing(broker: RunningBroker, *acls: Acl) -> Iterator[None]:
    """These rules, and no others, until the block ends."""
    authorizer = access_of(broker).authorizer
    for acl in acls:
        broker.call(lambda acl=acl: authorizer.add(acl))
    try:
        yield
    finally:
        for acl in acls:
            broker.call(lambda acl=acl: authorizer.remove(acl))
