"""The same requests to Kafka itself and to raftlog: the answers agree, field by field.

``allowed_differences.json`` lists each permitted difference with its reason; the manual has it as a
page. A difference that is not listed fails, and so does a listed one that no answer shows.
"""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest

from raftlog.kafka import errors
from tests.kafka_peers.conversation import Step, steps
from tests.kafka_peers.install import HERE, version_in
from tests.kafka_peers.kafka_broker import kafka_broker
from tests.server.harness import running
from tests.server.kafka.kafka_client import KafkaClient

ATTEMPTS = 200
NOT_READY = {
    errors.COORDINATOR_LOAD_IN_PROGRESS,
    errors.COORDINATOR_NOT_AVAILABLE,
    errors.NOT_COORDINATOR,
    errors.LEADER_NOT_AVAILABLE,
}
# Values that differ between any two brokers: only whether there is one is compared.
OWN = {
    "host", "port", "cluster_id", "member_id", "leader", "client_host", "topic_id", "producer_id",
}  # fmt: skip
VERSION = version_in("java/pom.xml", r"kafka-tools</artifactId>\s*<version>(.*?)<")

pytestmark = [
    pytest.mark.peers,
    pytest.mark.integration,
    pytest.mark.timeout(600),
    pytest.mark.feature("Kafka's broker", VERSION, "the same answers to the same requests"),
]


def values(message: Any, path: str = "") -> dict[str, Any]:
    """The fields of an answer by their paths; those of ``OWN`` as "some" or "none"."""
    if isinstance(message, list):
        found = {f"{path}.count": len(message)}
        for index, each in enumerate(message):
            found |= values(each, f"{path}[{index}]")
        return found
    if hasattr(message, "__struct_fields__"):
        found = {}
        for name in message.__struct_fields__:
            found |= values(getattr(message, name), f"{path}.{name}".lstrip("."))
        return found
    name = path.rpartition(".")[2]
    if isinstance(message, memoryview):
        return {path: without_producers(bytes(message))}
    if name in OWN and not isinstance(message, int):
        message = "some" if message and message != bytes(16) else "none"
    elif name in OWN:
        message = "some" if message >= 0 else "none"
    elif name in ("error_message", "batch_index_error_message"):
        message = "text"
    return {path: message}


def without_producers(records: bytes) -> list[bytes]:
    """The batches of a fetch without the producer's id, which differs, and so without the CRC."""
    found = []
    while records:
        size = 12 + int.from_bytes(records[8:12], "big")
        batch, records = records[:size], records[size:]
        found.append(batch[:17] + batch[21:43] + batch[51:])
    return found


def converse(client: KafkaClient) -> dict[str, tuple[Step, dict[str, Any]]]:
    """Send every request of the conversation; the answers by what they show."""
    found = {}
    conversation = steps()
    step = next(conversation)
    while True:
        label, api, version, message = step
        for _ in range(ATTEMPTS):
            answer = client.ask(api, version, message)
            shown = values(answer)
            codes = {value for path, value in shown.items() if path.endswith("error_code")}
            if not codes & NOT_READY:
                break
        assert label not in found, f"two steps show {label!r}"
        found[label] = (step, shown)
        try:
            step = conversation.send(answer)
        except StopIteration:
            return found


def test_kafka_and_raftlog_give_the_same_answers(tmp_path: Path) -> None:
    (tmp_path / "kafka").mkdir()
    with kafka_broker(tmp_path / "kafka") as address:
        client = KafkaClient(address)
        theirs = converse(client)
        client.close()
    settings = {"group.initial.rebalance.delay.ms": "0", "num.partitions": "2"}
    own = {name.replace(".", "_"): value for name, value in settings.items()}
    with running(tmp_path / "raftlog", **own) as broker:
        client = KafkaClient(broker.address)
        ours = converse(client)
        client.close()
    assert theirs.keys() == ours.keys()
    allowed = json.loads((HERE / "allowed_differences.json").read_text())
    unused = {(each["step"], each["field"]) for each in allowed}
    surprising = []
    for label, (_step, kafka) in theirs.items():
        raftlog = ours[label][1]
        for path in sorted(kafka.keys() | raftlog.keys()):
            pair = kafka.get(path, "absent"), raftlog.get(path, "absent")
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
