"""A Kafka client on a raw socket: what a broker answers, message by message."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from raftlog.config import Address
from raftlog.kafka.api import Api
from tests.kafka.wire import request, response
from tests.server.harness import TIMEOUT_S, RunningBroker


class KafkaClient:
    """One connection."""

    def __init__(self, address: Address) -> None:
        self._socket = socket.create_connection((address.host, address.port), TIMEOUT_S)
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
        head = self._stream.read(4)
        assert len(head) == 4, "the broker closed the connection"
        return response(api, version, head + self._stream.read(int.from_bytes(head, "big")))

    def ask(self, api: Api, version: int, message: Any = None) -> Any:
        sent = self.send(api, version, message)
        correlation_id, answer = self.receive(api, version)
        assert correlation_id == sent
        return answer

    def rest(self) -> bytes:
        """All that the broker still sends before it closes the connection."""
        return self._stream.read()

    def is_closed(self) -> bool:
        """Whether the broker closes the connection, with nothing further sent."""
        try:
            return self._stream.read(1) == b""
        except ConnectionResetError:
            return True


@contextmanager
def connected(broker: RunningBroker) -> Iterator[KafkaClient]:
    client = KafkaClient(broker.address)
    try:
        yield client
    finally:
        client.close()
