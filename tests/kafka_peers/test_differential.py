"""The same requests to three brokers of Kafka and of raftlog: the answers agree, field by field.

Topics have three replicas. Requests go to the broker where a client sends them, and some of them
also to another one.

``allowed_differences.json`` lists each permitted difference with its reason; the manual has it as a
page. A difference that is not listed fails, and so does a listed one that no answer shows.
"""

from __future__ import annotations

import json
import re
from pathlib import Path
from time import monotonic
from typing import Any

import pytest

from raftlog.config import Address
from raftlog.kafka import errors
from raftlog.testing.cluster import cluster
from tests.kafka_peers.conversation import ELSEWHERE, GROUP, REPLICAS, TXN_ID, Step, steps
from tests.kafka_peers.install import HERE, version_in
from tests.kafka_peers.kafka_broker import JAVA, kafka_cluster
from tests.kafka_peers.routing import SETTLED_S, Clients

MARKER = 0x20  # attribute of a batch with the end of a transaction
NOT_READY = {
    errors.CONCURRENT_TRANSACTIONS,
    errors.COORDINATOR_LOAD_IN_PROGRESS,
    errors.COORDINATOR_NOT_AVAILABLE,
    errors.LEADER_NOT_AVAILABLE,
    errors.OFFSET_NOT_AVAILABLE,
}
NOT_HERE = {errors.NOT_COORDINATOR, errors.NOT_LEADER_OR_FOLLOWER}
# Values that differ between any two clusters: only whether there is one is compared.
OWN = {
    "host", "port", "cluster_id", "member_id", "leader", "client_host", "topic_id", "producer_id",
    "leader_id", "controller_id", "node_id", "last_timestamp", "transaction_start_time_ms",
}  # fmt: skip
IN_ANY_ORDER = {"replica_nodes", "isr_nodes"}
VERSION = version_in("java/pom.xml", r"kafka-tools</artifactId>\s*<version>(.*?)<")

pytestmark = [
    pytest.mark.peers,
    pytest.mark.integration,
    pytest.mark.timeout(600),
    pytest.mark.feature("Kafka's broker", VERSION, "the same answers to the same requests"),
]


def values(message: Any, path: str = "") -> dict[str, Any]:
    """The fields of an answer by their paths; those of ``OWN`` as "some" or "none"."""
    name = path.rpartition(".")[2]
    if isinstance(message, list):
        message = sorted(message) if name in IN_ANY_ORDER else message
        found = {f"{path}.count": len(message)}
        for index, each in enumerate(message):
            found |= values(each, f"{path}[{index}]")
        return found
    if hasattr(message, "__struct_fields__"):
        found = {}
        for name in message.__struct_fields__:
            found |= values(getattr(message, name), f"{path}.{name}".lstrip("."))
        return found
    if isinstance(message, memoryview):
        return {path: without_own_fields(bytes(message))}
    if name in OWN and not isinstance(message, int):
        message = "some" if message and message != bytes(16) else "none"
    elif name in OWN:
        message = "some" if message >= 0 else "none"
    elif name in ("error_message", "batch_index_error_message"):
        message = "text"
    return {path: message}


def without_own_fields(records: bytes) -> list[bytes]:
    """The batches of a fetch without the leader epoch, which begins with another number, the
    producer's id, which differs, and so the CRC; a marker also without its time, and the
    coordinator's epoch at its end.
    """
    found = []
    while records:
        size = 12 + int.from_bytes(records[8:12], "big")
        batch, records = records[:size], records[size:]
        is_marker = int.from_bytes(batch[21:23], "big") & MARKER
        own = batch[21:27] + batch[51:-5] if is_marker else batch[21:43] + batch[51:]
        found.append(batch[:12] + batch[16:17] + own)
    return found


def converse(clients: Clients) -> dict[str, tuple[Step, dict[str, Any]]]:
    """Send every request of the conversation; the answers by what they show."""
    found = {}
    conversation = steps()
    step = next(conversation)
    while True:
        label, api, version, message = step
        is_elsewhere = label.startswith(ELSEWHERE)
        transient = NOT_READY if is_elsewhere else NOT_READY | NOT_HERE
        until = monotonic() + SETTLED_S
        while True:
            answer = clients.ask(
                api, version, message, group=GROUP, transaction=TXN_ID, elsewhere=is_elsewhere
            )
            shown = values(answer)
            codes = {value for path, value in shown.items() if path.endswith("error_code")}
            if not codes & transient or monotonic() > until:
                break
        assert label not in found, f"two steps show {label!r}"
        found[label] = (step, shown)
        try:
            step = conversation.send(answer)
        except StopIteration:
            return found


def answers_of(addresses: list[Address]) -> dict[str, tuple[Step, dict[str, Any]]]:
    clients = Clients(addresses)
    try:
        return converse(clients)
    finally:
        clients.close()


def test_kafka_and_raftlog_give_the_same_answers(tmp_path: Path) -> None:
    (tmp_path / "kafka").mkdir()
    with kafka_cluster(tmp_path / "kafka", REPLICAS, java=JAVA) as kafka:
        theirs = answers_of(kafka.addresses)
    settings = {"group.initial.rebalance.delay.ms": "0", "num.partitions": "2"}
    home = tmp_path / "raftlog"
    home.mkdir()
    with cluster(REPLICAS, directory=home, with_relays=False, settings=settings) as brokers:
        ours = answers_of([broker.address for broker in brokers.brokers])
    assert theirs.keys() == ours.keys()
    allowed = json.loads((HERE / "allowed_differences.json").read_text())
    unused = {(each["step"], each["field"]) for each in allowed}
    surprising = []
    for label, (_step, their) in theirs.items():
        our = ours[label][1]
        for path in sorted(their.keys() | our.keys()):
            pair = their.get(path, "absent"), our.get(path, "absent")
            if pair[0] == pair[1]:
                continue
            rules = [
                (each["step"], each["field"])
                for each in allowed
                if re.fullmatch(each["step"], label) and re.fullmatch(each["field"], path)
            ]
            unused.difference_update(rules)
            if not rules:
                surprising.append(f"{label}: {path}: Kafka {pair[0]!r}, raftlog {pair[1]!r}")
    assert not surprising, "\n".join(surprising)
    assert not unused, f"no answer shows these differences: {sorted(unused)}"
