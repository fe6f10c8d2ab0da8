"""API versions: what a client learns first."""

from __future__ import annotations

from raftlog.protocol import api as apis
from raftlog.protocol.security import ApiVersionsRequest, ApiVersionsResponse
from raftlog.server.dispatch import HANDLERS
from tests.server.harness import Client, RunningBroker


def test_every_api_is_named_and_served(broker: RunningBroker, client: Client) -> None:
    answer: ApiVersionsResponse = client.ask(apis.API_VERSIONS, ApiVersionsRequest())
    assert {spoken.api for spoken in answer.apis} == set(apis.APIS) == set(HANDLERS)
    assert answer.broker_id == 1
    assert answer.cluster_id
    assert answer.broker_software.startswith("raftlog")
