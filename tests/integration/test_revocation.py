"""A busy user of both protocols is deleted: nothing that it begins a second later succeeds."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any

import confluent_kafka
import pytest

from raftlog import Acl, Admin, Consumer, NewTopic, Producer
from raftlog.errors import AuthenticationError, RaftlogError
from raftlog.testing import Cluster, cluster, wait_until

pytestmark = pytest.mark.integration

TOPIC = "busy"
PARTITIONS = 6
USER, PASSWORD = "busy", "the password of busy"
CUT_S = 1.0  # after the deletion
LOAD_S = 1.0  # before it
AFTER_S = 2.0  # for which clients still try
TIMEOUT_S = 20.0


class Clients:
    """What clients of one kind and protocol have succeeded with."""

    def __init__(self) -> None:
        self.last = 0.0  # seconds since 1970 at which the last success began
        self.count = 0
        self.error: object = None

    def note(self, began: float) -> None:
        self.last = max(self.last, began)
        self.count += 1


def produce(arguments: dict[str, Any], clients: Clients, stop: threading.Event) -> None:
    with Producer(**arguments) as producer:
        while not stop.is_set():
            began = time.time()
            try:
                producer.send(TOPIC, b"by raftlog").result(TIMEOUT_S)
            except RaftlogError as error:
                clients.error = error
                return
            clients.note(began)


def consume(arguments: dict[str, Any], clients: Clients, stop: threading.Event) -> None:
    """A record that was created later than the deletion was read later."""
    with Consumer(**arguments, group="busy") as consumer:
        consumer.subscribe([TOPIC])
        while not stop.is_set():
            try:
                for record in consumer.poll(100):
                    clients.note(record.timestamp_ms / 1_000)
            except RaftlogError as error:
                clients.error = error
                return


def produce_by_kafka(config: dict[str, Any], clients: Clients, stop: threading.Event) -> None:
    producer = confluent_kafka.Producer({**config, "message.timeout.ms": 2_000})
    while not stop.is_set():

        def delivered(error: object, _message: object, began: float = time.time()) -> None:
            if error is None:
                clients.note(began)

        producer.produce(TOPIC, b"by librdkafka", on_delivery=delivered)
        producer.flush(0.5)
    producer.purge()
    producer.flush(0.5)


def consume_by_kafka(config: dict[str, Any], clients: Clients, stop: threading.Event) -> None:
    consumer = confluent_kafka.Consumer(
        {**config, "group.id": "kafka-busy", "enable.auto.commit": False}
    )
    consumer.assign([confluent_kafka.TopicPartition(TOPIC, p) for p in range(PARTITIONS)])
    while not stop.is_set():
        record = consumer.poll(0.1)
        if record is not None and record.error() is None:
            clients.note(record.timestamp()[1] / 1_000)
    consumer.close()


@contextmanager
def working(loops: dict[str, Callable[[Clients, threading.Event], None]]) -> Iterator[Any]:
    """Run each loop in a thread, until the block ends."""
    stop = threading.Event()
    clients = {name: Clients() for name in loops}
    threads = [
        threading.Thread(target=loop, args=(clients[name], stop)) for name, loop in loops.items()
    ]
    for thread in threads:
        thread.start()
    try:
        yield clients
    finally:
        stop.set()
        for thread in threads:
            thread.join()


def admit(running: Cluster, admin: Admin) -> tuple[dict[str, Any], dict[str, Any]]:
    """Create the user. The arguments of its clients, for each protocol."""
    admin.create_topics([NewTopic(TOPIC, partitions=PARTITIONS)])
    admin.create_user(USER, PASSWORD)
    principal = f"User:{USER}"
    admin.create_acls(
        [
            *(Acl(principal, each, "TOPIC", TOPIC) for each in ("READ", "WRITE")),
            Acl(principal, "READ", "GROUP", "*"),
        ]
    )
    ca = running.environment["RAFTLOG_SSL_CAFILE"]
    own = {
        "bootstrap": running.bootstrap,
        "security_protocol": "SASL_SSL",
        "ssl_cafile": ca,
        "sasl_username": USER,
        "sasl_password": PASSWORD,
    }
    kafka = {
        "bootstrap.servers": running.bootstrap,
        "security.protocol": "SASL_SSL",
        "ssl.ca.location": ca,
        "sasl.mechanism": "SCRAM-SHA-512",
        "sasl.username": USER,
        "sasl.password": PASSWORD,
        "logger": logging.getLogger("librdkafka"),
    }
    return own, kafka


def test_a_busy_user_is_cut_off_within_a_second(monkeypatch: pytest.MonkeyPatch) -> None:
    with cluster(brokers=3, secure=True) as running:
        for name, value in running.environment.items():
            monkeypatch.setenv(name, value)
        with Admin(running.bootstrap, bootstrap_timeout_ms=20_000) as admin:
            own, kafka = admit(running, admin)
            loops = {
                "raftlog producer": partial(produce, own),
                "raftlog consumer": partial(consume, own),
                "kafka producer": partial(produce_by_kafka, kafka),
                "kafka consumer": partial(consume_by_kafka, kafka),
            }
            others = partial(produce, {"bootstrap": running.bootstrap})
            with working({"another user": others}) as rest, working(loops) as clients:
                wait_until(
                    lambda: all(each.count > 20 for each in clients.values()),
                    timeout_s=TIMEOUT_S,
                    progress=lambda: [each.count for each in clients.values()],
                    what="all clients work",
                )
                loaded = time.time() + LOAD_S
                wait_until(lambda: time.time() > loaded, timeout_s=TIMEOUT_S, what="load")
                began = time.time()
                admin.delete_user(USER)
                deleted = time.time()
                wait_until(
                    lambda: time.time() > deleted + AFTER_S, timeout_s=TIMEOUT_S, what="attempts"
                )
                for name, each in clients.items():
                    assert began - 0.5 < each.last, f"{name} was busy until the deletion"
                    assert each.last < deleted + CUT_S, f"{name} goes on"
                assert rest["another user"].last > deleted + CUT_S, "the others continue"
    assert "authentication failed" in str(clients["raftlog producer"].error)
    assert isinstance(clients["raftlog consumer"].error, AuthenticationError), "within 2 s"
