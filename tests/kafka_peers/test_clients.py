"""Each Kafka client beside raftlog's own: the same records, offsets, groups and topics."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable
from typing import Any

import pytest

import raftlog
from raftlog.testing.cluster import Cluster, wait_until
from tests.kafka_peers.drivers import CLIENTS, Client, as_line, finish
from tests.kafka_peers.records import (
    in_order,
    native_read,
    native_write,
    some_records,
    stored,
)

pytestmark = [pytest.mark.peers, pytest.mark.integration]


def cases(feature: str, of: Callable[[Client], Iterable[str]]) -> Any:
    """Each client with each of its variants, as marked parameters."""
    return pytest.mark.parametrize(
        ("client", "variant"),
        [
            pytest.param(
                client,
                variant,
                id=f"{client}-{variant}",
                marks=pytest.mark.feature(client.name, client.version, feature.format(variant)),
            )
            for client in CLIENTS
            for variant in of(client)
        ],
    )


@cases("produce {}", lambda client: client.codecs)
def test_raftlog_reads_what_a_client_writes(
    bootstrap: str, topic: str, client: Client, variant: str
) -> None:
    records = some_records(300)
    answers = client.run("produce", bootstrap, topic, variant, records=records)
    assert native_read(bootstrap, topic, len(records)) == stored(records, answers)


@pytest.fixture(scope="module")
def mixed(brokers: Cluster) -> Callable[[Client], tuple[str, list[dict[str, Any]]]]:
    """A topic with batches of all codecs that a client has, of Kafka's clients and of raftlog's."""

    @functools.cache
    def of_codecs(codecs: tuple[str, ...]) -> tuple[str, list[dict[str, Any]]]:
        brokers.start()
        topic = "-".join(("mixed", *codecs))
        written: list[dict[str, Any]] = []
        for client in CLIENTS:
            for codec in filter(codecs.__contains__, client.codecs):
                records = some_records(20, len(written))
                answers = client.run("produce", brokers.bootstrap, topic, codec, records=records)
                written += stored(records, answers)
                records = some_records(4, len(written))
                native_codec = "none" if codec == "snappy" else codec
                written += native_write(brokers.bootstrap, topic, records, native_codec)
        return topic, in_order(written)

    return lambda client: of_codecs(client.codecs)


@cases("group.protocol={}", lambda client: client.protocols)
def test_a_client_and_raftlog_share_a_group(
    bootstrap: str,
    mixed: Callable[[Client], tuple[str, list[dict[str, Any]]]],
    client: Client,
    variant: str,
) -> None:
    topic, written = mixed(client)
    group = f"{client}-{variant}".replace(" ", "-")
    first = client.run("consume", bootstrap, topic, group, variant, len(written) // 2)
    rest = native_read(bootstrap, topic, len(written) - len(first), group)
    assert in_order(first + rest) == written
    new = native_write(bootstrap, topic, some_records(10))
    last = client.run("consume", bootstrap, topic, group, variant, len(new))
    written[:] = in_order(written + new)
    assert in_order(last) == in_order(new)


@cases("administration", lambda client: [""] if client.has_admin else [])
def test_a_client_manages_topics(bootstrap: str, client: Client, variant: str) -> None:
    topic = f"admin-{client}".replace(" ", "-")
    (shown,) = client.run("admin", bootstrap, topic)
    shown["policy"] = set(shown["policy"].split(","))
    assert shown == {
        "partitions": 5,
        "replicas": 3,
        "retention": "86400000",
        "policy": {"delete", "compact"},
        "listed": True,
        "end": 0,
    }
    with raftlog.Admin(bootstrap) as admin:
        wait_until(lambda: topic not in admin.list_topics(), timeout_s=10, what="it is deleted")


@cases("failover", lambda client: [""])
def test_a_client_loses_and_repeats_nothing_when_a_leader_dies(
    brokers: Cluster, bootstrap: str, topic: str, client: Client, variant: str
) -> None:
    records = some_records(2_000)
    with client.start("produce", bootstrap, topic, "none") as process:
        assert process.stdin is not None
        process.stdin.write("".join(map(as_line, records[:1_000])))
        process.stdin.flush()
        native_read(bootstrap, topic, 1)
        leader = brokers.leader(topic, 0)
        assert leader is not None
        brokers.broker(leader).kill()
        answers = finish(process, records[1_000:])
    assert native_read(bootstrap, topic, len(records)) == stored(records, answers)
