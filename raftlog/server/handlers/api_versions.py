"""``api_versions``: the APIs and versions that this broker supports."""

from __future__ import annotations

from importlib import metadata
from typing import Final, cast

from raftlog.protocol.api import APIS
from raftlog.protocol.connection import Request
from raftlog.protocol.handshake import ApiVersionRange, ApiVersionsRequest, ApiVersionsResponse
from raftlog.server.context import BrokerContext
from raftlog.server.features import features
from raftlog.server.reply import Reply

_RANGES: Final = [
    ApiVersionRange(api=api.number, version_min=api.version_min, version_max=api.version_max)
    for api in APIS.values()
]


def _software() -> str:
    try:
        return f"raftlog {metadata.version('raftlog')}"
    except metadata.PackageNotFoundError:  # runs from a source tree that was never installed
        return "raftlog"


_SOFTWARE: Final = _software()


def handle_api_versions(context: BrokerContext, request: Request, reply: Reply) -> None:
    reply.connection.client_id = cast(ApiVersionsRequest, request.message).client_id
    reply.send(
        ApiVersionsResponse(
            broker_software=_SOFTWARE,
            broker_id=context.broker_id,
            cluster_id=context.operations.cluster_id,
            apis=_RANGES,
            features=features(context.operations.peer_protocol),
        )
    )
