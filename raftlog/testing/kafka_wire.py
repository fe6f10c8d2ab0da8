"""A Kafka client's side of the wire, for tests: requests as bytes, and responses read."""

from __future__ import annotations

import struct
from typing import Any

from raftlog.kafka import api as apis
from raftlog.kafka import codec, schema
from raftlog.kafka.api import Api


def encoded(kind: schema.Kind, api: Api, version: int, message: Any) -> bytes:
    """The bytes of a message without its header."""
    pieces: list[Any] = []
    codec.finish(codec.writer(kind, api.key, version)(message, pieces.append))
    return b"".join(pieces)


def request(
    api: Api,
    version: int,
    message: Any = None,
    *,
    correlation_id: int = 7,
    client_id: bytes = b"test",
    body: bytes | None = None,
) -> bytes:
    """A request with its length; ``body`` in place of an encoded ``message``."""
    if body is None:
        if message is None:
            message = codec.structs("request", api.key).root()
        body = encoded("request", api, version, message)
    head = struct.pack(">hhi", api.key, version, correlation_id)
    head += struct.pack(">h", len(client_id)) + client_id
    if schema.is_flexible(api.key, version):
        head += b"\0"
    return struct.pack(">i", len(head) + len(body)) + head + body


def response(api: Api, version: int, data: bytes) -> tuple[int, Any]:
    """The correlation id and the message of a response, given with its length."""
    view = memoryview(data)
    assert int.from_bytes(view[:4], "big") == len(view) - 4
    correlation_id = int.from_bytes(view[4:8], "big")
    at = 8
    if api is not apis.API_VERSIONS and schema.is_flexible(api.key, version):
        assert view[at] == 0
        at += 1
    message, end = codec.finish(codec.reader("response", api.key, version)(view, at))
    assert end == len(view)
    return correlation_id, message
