"""Clients of the brokers of a cluster that send each request where Kafka's clients send it."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from typing import Any, Final

from raftlog.config import Address
from raftlog.kafka import api as apis
from raftlog.kafka import codec, errors
from raftlog.kafka.api import Api
from raftlog.testing.cluster import wait_until
from tests.server.kafka.kafka_client import KafkaClient

SETTLED_S: Final = 60
# APIs for the leader of a partition, and those for the coordinator of a group.
OF_LEADER: Final = {
    apis.PRODUCE, apis.FETCH, apis.LIST_OFFSETS, apis.OFFSET_FOR_LEADER_EPOCH, apis.DELETE_RECORDS,
    apis.DESCRIBE_PRODUCERS,
}  # fmt: skip
OF_COORDINATOR: Final = {
    apis.JOIN_GROUP, apis.SYNC_GROUP, apis.HEARTBEAT, apis.LEAVE_GROUP, apis.OFFSET_COMMIT,
    apis.OFFSET_FETCH, apis.DESCRIBE_GROUPS, apis.LIST_GROUPS, apis.DELETE_GROUPS,
    apis.CONSUMER_GROUP_DESCRIBE, apis.CONSUMER_GROUP_HEARTBEAT, apis.TXN_OFFSET_COMMIT,
    apis.OFFSET_DELETE,
}  # fmt: skip
OF_TRANSACTIONS: Final = {
    apis.INIT_PRODUCER_ID, apis.ADD_PARTITIONS_TO_TXN, apis.ADD_OFFSETS_TO_TXN, apis.END_TXN,
    apis.DESCRIBE_TRANSACTIONS, apis.LIST_TRANSACTIONS,
}  # fmt: skip
GROUP_TYPE: Final = 0
TRANSACTION_TYPE: Final = 1
OF_TOPICS: Final = {apis.CREATE_TOPICS, apis.CREATE_PARTITIONS, apis.DELETE_TOPICS}
METADATA_VERSION: Final = 12
FIND_VERSION: Final = 4

_Metadata = codec.structs("request", apis.METADATA.key)
_Find = codec.structs("request", apis.FIND_COORDINATOR.key)


class Clients:
    """A client of each broker. Requests have one partition or one group."""

    def __init__(self, addresses: Sequence[Address]) -> None:
        clients = {address.port: KafkaClient(address) for address in addresses}
        self._first = next(iter(clients.values()))
        found = self._topics(self._first).brokers
        self._by_id = {broker.node_id: clients[broker.port] for broker in found}
        assert len(self._by_id) == len(addresses)

    def close(self) -> None:
        for client in self._by_id.values():
            client.close()

    def ask(
        self,
        api: Api,
        version: int,
        message: Any,
        *,
        group: str,
        transaction: str,
        elsewhere: bool,
    ) -> Any:
        """Return the answer of the leader or coordinator, or of the first broker for another API.

        ``group``: for a request that names none. ``transaction``: the transactional ID, if there
        is a coordinator of transactions. ``elsewhere``: ask a broker that does not lead,
        or coordinate, in its place.
        """
        number = None
        if api in OF_LEADER:
            number = self._leader(message)
        elif api in OF_COORDINATOR:
            number = self._coordinator(GROUP_TYPE, _group_in(message) or group)
        elif api in OF_TRANSACTIONS and getattr(message, "transactional_id", "") is not None:
            named = getattr(message, "transactional_ids", None) or [transaction]
            number = self._coordinator(TRANSACTION_TYPE, named[0] or transaction)
        client = self._by_id.get(-1 if number is None else number, self._first)
        if elsewhere:
            assert number is not None
            client = next(each for id_, each in self._by_id.items() if id_ != number)
        answer = client.ask(api, version, message)
        if api in OF_TOPICS:
            wait_until(self._is_settled, timeout_s=SETTLED_S, what="brokers agree on all topics")
        return answer

    def _topics(self, client: KafkaClient) -> Any:
        return client.ask(apis.METADATA, METADATA_VERSION, _Metadata.root(topics=None))

    def _leader(self, message: Any) -> int | None:
        topic = (message.topic_data if hasattr(message, "topic_data") else message.topics)[0]
        name = topic.name if hasattr(topic, "name") else topic.topic
        number = _partition_in(topic)
        for known in self._topics(self._first).topics:
            for part in known.partitions:
                if (known.name, part.partition_index) == (name, number):
                    return int(part.leader_id)
        return None

    def _coordinator(self, key_type: int, name: str) -> int:
        message = _Find.root(key_type=key_type, coordinator_keys=[name])
        found: list[int] = []

        def is_found() -> bool:
            (answer,) = self._first.ask(apis.FIND_COORDINATOR, FIND_VERSION, message).coordinators
            found.append(answer.node_id)
            return bool(answer.error_code == errors.NONE)

        wait_until(is_found, timeout_s=SETTLED_S, what=f"{name!r} has a coordinator")
        return found[-1]

    def _is_settled(self) -> bool:
        views = [list(_view(self._topics(client))) for client in self._by_id.values()]
        is_led = all(leader >= 0 and is_synced for *_, leader, is_synced in views[0])
        return is_led and all(view == views[0] for view in views)


def _view(metadata: Any) -> Iterator[tuple[str, int, int, bool]]:
    for topic in sorted(metadata.topics, key=lambda each: each.name):
        for part in sorted(topic.partitions, key=lambda each: each.partition_index):
            is_synced = len(part.isr_nodes) == len(part.replica_nodes)
            yield topic.name, part.partition_index, part.leader_id, is_synced


def _partition_in(topic: Any) -> int:
    if hasattr(topic, "partition_indexes"):
        return int(topic.partition_indexes[0])
    part = (topic.partition_data if hasattr(topic, "partition_data") else topic.partitions)[0]
    names = ("index", "partition_index", "partition")
    return next(int(getattr(part, name)) for name in names if hasattr(part, name))


def _group_in(message: Any) -> str:
    """Return the group that a request names; empty if it names none."""
    for field in ("group_id", "groups", "groups_names", "group_ids"):
        with contextlib.suppress(AttributeError, IndexError):
            found = getattr(message, field)
            found = found if isinstance(found, str) else found[0]
            found = found if isinstance(found, str) else str(found.group_id)
            if found:
                return found
    return ""
