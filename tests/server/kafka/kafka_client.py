"""A Kafka client on a raw socket: what a broker answers, message by message."""

from __future__ import annotations

import socket
import ssl
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from raftlog.config import Address
from raftlog.kafka import api as apis
from raftlog.kafka import codec
from raftlog.kafka.api import Api
from raftlog.testing.kafka_wire import request, response
from tests.server.harness import TIMEOUT_S, RunningBroker

Produce = codec.structs("request", apis.PRODUCE.key)
Fetch = codec.structs("request", apis.FETCH.key)


class KafkaClient:
    """One connection."""

    def __init__(self, address: Address, *, tls: ssl.SSLContext | None = None) -> None:
        self._socket = socket.create_connection((address.host, address.port), TIMEOUT_S)
        if tls is not None:
            self._socket = tls.wrap_socket(self._socket, server_hostname=address.host)
        self._stream = self._socket.makefile("rb")
        self._sent = 0

    def close(self) -> None:
        self._stream.close()
        self._socket.close()

    def send(self, api: Api, version: int, message: Any = None) -> int:
        """Send a request without waiting; its correlation id."""
        self._sent += 1
        self.send_bytes(request(api, version, message, correlation_id=self._sent))
        return self._sent

    def send_bytes(self, data: bytes) -> None:
        self._socket.sendall(data)

    def receive(self, api: Api, version: int) -> tuple[int, Any]:
        """The next answer, whichever request it is for."""
        data = self.receive_bytes()
        return response(api, version, len(data).to_bytes(4, "big") + data)

    def receive_bytes(self) -> bytes:
        """The next answer without its length."""
        head = self._stream.read(4)
        assert len(head) == 4, "the broker closed the connection"
        return self._stream.read(int.from_bytes(head, "big"))

    def ask(self, api: Api, version: int, message: Any = None) -> Any:
        sent = self.send(api, version, message)
        correlation_id, answer = self.receive(api, version)
        assert correlation_id == sent
        return answer

    def produce(self, topic: str, records: bytes, version: int = 9, **options: Any) -> Any:
        """Produce one batch; the partition's part of the answer."""
        message = produce_request(topic, records, **options)
        return self.ask(apis.PRODUCE, version, message).responses[0].partition_responses[0]

    def fetch(self, topic: str, offset: int = 0, version: int = 12, **options: Any) -> Any:
        """Fetch from one partition; its part of the answer."""
        message = fetch_request(topic, offset, **options)
        return self.ask(apis.FETCH, version, message).responses[0].partitions[0]

    def rest(self) -> bytes:
        """All that the broker still sends before it closes the connection."""
        return self._stream.read()

    def is_closed(self) -> bool:
        """Whether the broker closes the connection, with nothing further sent."""
        try:
            return self._stream.read(1) == b""
        except ConnectionResetError:
            return True


def produce_request(
    topic: str,
    records: bytes,
    *,
    partition: int = 0,
    acks: int = -1,
    timeout_ms: int = 9_000,
    topic_id: bytes = bytes(16),
) -> Any:
    """A request with one batch."""
    part = Produce.PartitionProduceData(index=partition, records=[records])
    return Produce.root(
        transactional_id=None,
        acks=acks,
        timeout_ms=timeout_ms,
        topic_data=[Produce.TopicProduceData(name=topic, topic_id=topic_id, partition_data=[part])],
    )


def fetch_request(
    topic: str,
    offset: int = 0,
    *,
    partition: int = 0,
    wait_ms: int = 0,
    bytes_min: int = 1,
    topic_id: bytes = bytes(16),
    **options: int,
) -> Any:
    """A request for one partition."""
    part = Fetch.FetchPartition(
        partition=partition, fetch_offset=offset, partition_max_bytes=1 << 20, **options
    )
    wanted = Fetch.FetchTopic(topic=topic, topic_id=topic_id, partitions=[part])
    return Fetch.root(max_wait_ms=wait_ms, min_bytes=bytes_min, topics=[wanted])


@contextmanager
def connected(broker: RunningBroker) -> Iterator[KafkaClient]:
    client = KafkaClient(broker.address)
    try:
        yield client
    finally:
        client.close()
