"""A client's and a broker's connection state joined by a fake link, and what goes over it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from hypothesis import strategies as st

from raftlog.errors import RaftlogError, UnknownTopicError
from raftlog.protocol.api import Api
from raftlog.protocol.connection import (
    FRAME,
    MAGIC,
    ClientConnectionState,
    Request,
    ServerConnectionState,
    encode_failure,
    encode_response,
)
from raftlog.protocol.records import (
    MetadataRequest,
    MetadataResponse,
    ProducePartition,
    ProduceRequest,
)
from raftlog.protocol.schema import Message
from raftlog.types import Buffer
from tests.protocol import strategies
from tests.protocol.link import deliver

BROKERS_ONLY = MetadataRequest(topics=[])
NO_BROKERS = MetadataResponse(cluster_id="c", brokers=[], topics=[])
UNACKNOWLEDGED = ProduceRequest(acks=0, partitions=[ProducePartition("a", 0, 3)])


def outstanding(client: ClientConnectionState) -> dict[int, Api]:
    """The requests that await an answer, oldest first, by correlation id."""
    return {correlation_id: sent.api for correlation_id, sent in client._outstanding.items()}


class ConnectionPair:
    """A client's state and a broker's, sharing one scratch that is overwritten after every read."""

    def __init__(self, *, sizes: Sequence[int] = (), scratch_bytes: int = 4096, **server: int):
        self.scratch = memoryview(bytearray(scratch_bytes))
        self.sizes = sizes
        self.client = ClientConnectionState(scratch=self.scratch)
        self.server = ServerConnectionState(scratch=self.scratch, **server)

    def to_server(self, data: Sequence[Buffer]) -> list[Any]:
        return deliver(data, self.server, sizes=self.sizes, scratch=self.scratch)

    def to_client(self, data: Sequence[Buffer]) -> list[Any]:
        return deliver(data, self.client, sizes=self.sizes, scratch=self.scratch)

    def send(self, api: Api, message: Message, attachment: Sequence[Buffer] = ()) -> Request:
        """What the broker gets of the client's request."""
        correlation_id, data = self.client.send(api, message, attachment)
        (request,) = self.to_server(data)
        assert isinstance(request, Request)
        assert request.correlation_id == correlation_id
        return request


# Exchanges: a request and its answer, as the API has them.
attachments = st.lists(st.binary(max_size=50) | st.just(bytes(5000)), max_size=3)
exchanges = strategies.apis().flatmap(
    lambda api: st.tuples(
        st.just(api),
        strategies.messages(api.request),
        attachments,
        strategies.messages(api.response) | st.builds(UnknownTopicError, st.text(max_size=20)),
        attachments,
    )
)


# Frames by hand, right or wrong.


def raw(api: int, header: bytes, *, version: int = 0, correlation_id: int = 5) -> bytes:
    length = 16 + len(header)
    return FRAME.pack(length, MAGIC, api, version, 0, correlation_id, len(header)) + header


def pipelined(count: int) -> bytes:
    return b"".join(raw(1, b"\x80", correlation_id=number) for number in range(count))


def response_frame(correlation_id: int, answer: Message | RaftlogError) -> bytes:
    if isinstance(answer, RaftlogError):
        parts = encode_failure(version=0, correlation_id=correlation_id, error=answer)
    else:
        parts = encode_response(version=0, correlation_id=correlation_id, message=answer)
    return b"".join(parts)
