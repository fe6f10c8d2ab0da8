"""The choice of a connection's protocol by its first bytes.

Both protocols share a port. The first six bytes of a raftlog frame and of a Kafka request never
look alike; anything else is treated as raftlog's, whose errors are readable text.
"""

from __future__ import annotations

from typing import Protocol, TypeAlias

from raftlog.errors import FrameError
from raftlog.kafka.connection import KafkaConnectionState, KafkaEvent
from raftlog.kafka.frame import CHOICE_BYTES, is_kafka
from raftlog.protocol.connection import ServerConnectionState, ServerEvent

# What a client has sent, of either protocol.
Event: TypeAlias = ServerEvent | KafkaEvent


class Chosen(Protocol):
    """Sets the state of a connection to that of a protocol, and returns it."""

    def __call__(self, *, is_kafka: bool) -> ServerConnectionState | KafkaConnectionState: ...


class ProtocolChoice:
    """The state of a connection before its protocol is known."""

    in_flight = 0
    bytes_held = 0
    paused = False

    def __init__(self, request_bytes_max: int, scratch: memoryview, chosen: Chosen) -> None:
        """``request_bytes_max``: longest request, in bytes. ``scratch``: receive buffer that
        connections share. ``chosen``: called once.
        """
        self._request_bytes_max = request_bytes_max
        self._scratch = scratch
        self._chosen = chosen
        self._first = b""  # while there are too few

    @property
    def in_frame(self) -> bool:
        """Whether some of the first bytes have arrived."""
        return bool(self._first)

    def get_buffer(self, sizehint: int = -1) -> memoryview:  # noqa: ARG002 - asyncio's signature
        """Return the buffer for received bytes."""
        return self._scratch

    def received(self, count: int) -> list[Event]:
        """Process ``count`` new bytes. With the first six, the chosen protocol processes them."""
        self._first += bytes(self._scratch[:count])
        if len(self._first) < CHOICE_BYTES:
            return []
        return self._choose(is_kafka=is_kafka(self._first, self._request_bytes_max))

    def resume(self) -> list[Event]:
        """Return no events: none are held back."""
        return []

    def end_of_stream(self) -> FrameError | None:
        """Process the end of the stream. Return an error if it ended inside the first bytes."""
        if self._first:
            self._choose(is_kafka=False)
            return FrameError("the stream ended inside the first frame")
        return None

    def _choose(self, *, is_kafka: bool) -> list[Event]:
        state = self._chosen(is_kafka=is_kafka)
        data = self._first
        events: list[Event] = []
        while data:
            buffer = state.get_buffer()
            count = min(len(buffer), len(data))
            buffer[:count] = data[:count]
            data = data[count:]
            events += state.received(count)
        return events
