"""``api_versions``: the APIs and versions that a broker supports, and its identity."""

from __future__ import annotations

from typing import Annotated

from msgspec import Meta

from raftlog import limits
from raftlog.protocol.schema import Message, NodeId

_UnsignedShort = Annotated[int, Meta(ge=0, le=(1 << 16) - 1)]  # u16 in the frame


class ApiVersionsRequest(Message):
    client_id: Annotated[str, Meta(max_length=limits.CLIENT_ID_CHARS_MAX)] = ""
    client_software: Annotated[str, Meta(max_length=limits.CLIENT_ID_CHARS_MAX)] = ""


class ApiVersionRange(Message):
    api: _UnsignedShort
    version_min: _UnsignedShort
    version_max: _UnsignedShort


class FeatureRange(Message):
    """One format or protocol: the versions that the broker reads, and ``level``: the version that
    it writes.
    """

    name: Annotated[str, Meta(max_length=limits.FEATURE_NAME_CHARS_MAX)]
    version_min: _UnsignedShort
    version_max: _UnsignedShort
    level: _UnsignedShort


class ApiVersionsResponse(Message):
    """``features``: empty from brokers that do not report them."""

    broker_software: str
    broker_id: NodeId
    cluster_id: str
    apis: list[ApiVersionRange]
    features: Annotated[list[FeatureRange], Meta(max_length=limits.FEATURES_MAX)] = []
