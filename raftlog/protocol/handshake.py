"""``api_versions``: which APIs a broker speaks, in which versions, and who it is."""

from __future__ import annotations

from typing import Annotated

from msgspec import Meta

from raftlog import limits
from raftlog.protocol.schema import Message, NodeId

_UnsignedShort = Annotated[int, Meta(ge=0, le=(1 << 16) - 1)]  # as the frame has room for


class ApiVersionsRequest(Message):
    client_id: Annotated[str, Meta(max_length=limits.CLIENT_ID_CHARS_MAX)] = ""
    client_software: Annotated[str, Meta(max_length=limits.CLIENT_ID_CHARS_MAX)] = ""


class ApiVersionRange(Message):
    api: _UnsignedShort
    version_min: _UnsignedShort
    version_max: _UnsignedShort


class ApiVersionsResponse(Message):
    broker_software: str
    broker_id: NodeId
    cluster_id: str
    apis: list[ApiVersionRange]
