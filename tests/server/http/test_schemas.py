"""The schema registry on the HTTP port: requests become calls, and the state is that of the log."""

from __future__ import annotations

import json
import urllib.error
import urllib.request
from pathlib import Path
from typing import Any

from starlette.applications import Starlette
from starlette.testclient import TestClient

from raftlog import limits
from raftlog.config import Address
from raftlog.protocol import api as apis
from raftlog.protocol.cluster import SchemaRegistryRequest, SchemaRegistryResponse
from raftlog.server.http.app import make_registry_app
from raftlog.server.http.schemas import schema_routes
from tests.server.harness import TIMEOUT_S
from tests.server.http.serving import Serving, serving


def send(
    http: Serving, request: str, body: Any = None, **headers: str
) -> tuple[int, dict[str, str], Any]:
    """Send "METHOD /path". Returns the status, the headers and the content of the response."""
    method, _, path = request.partition(" ")
    sent = urllib.request.Request(
        f"http://{http.address}{path}",
        data=None if body is None else json.dumps(body).encode(),
        headers={"content-type": "application/vnd.schemaregistry.v1+json", **headers},
        method=method,
    )
    try:
        with urllib.request.urlopen(sent, timeout=TIMEOUT_S) as response:
            return response.status, dict(response.headers), json.loads(response.read())
    except urllib.error.HTTPError as error:
        with error:
            return error.code, dict(error.headers), json.loads(error.read())


def test_ids_continue_after_a_restart(tmp_path: Path) -> None:
    with serving(tmp_path) as http:
        status, headers, content = send(http, "POST /subjects/a%2Fb/versions", {"schema": '"int"'})
        assert (status, content) == (200, {"id": 1})
        assert headers["content-type"] == "application/vnd.schemaregistry.v1+json"
        assert send(http, "DELETE /subjects/a%2Fb")[2] == [1]
        assert send(http, "DELETE /subjects/a%2Fb?permanent=true")[2] == [1]
    with serving(tmp_path) as http:
        assert send(http, "POST /subjects/c/versions", {"schema": '"long"'})[2] == {"id": 2}
        assert send(http, "GET /subjects")[2] == ["c"]
        status, _, content = send(http, "GET /schemas/ids/1")
        assert (status, content["error_code"]) == (404, 40403)


def test_raftlogs_protocol_has_the_same_calls(http: Serving) -> None:
    request = SchemaRegistryRequest(method="GET", path="/subjects/none/versions", query={"a": "b"})
    with http.broker.client() as client:
        answer = client.ask(apis.SCHEMA_REGISTRY, request)
    assert isinstance(answer, SchemaRegistryResponse)
    assert answer.status == 404


def test_a_page_of_another_site_is_refused(http: Serving) -> None:
    status, _, content = send(http, "GET /subjects", origin="http://example.com")
    assert (status, content["error_code"]) == (403, 40301)
    assert send(http, "GET /subjects", origin=f"http://{http.address}")[0] == 200


def test_a_body_has_a_limit(http: Serving, monkeypatch: Any) -> None:
    monkeypatch.setattr(limits, "SCHEMA_REQUEST_BYTES_MAX", 5)
    assert send(http, "POST /subjects/a/versions", {"schema": '"int"'})[0] == 413


def test_an_address_that_others_reach_is_read_only(http: Serving) -> None:
    context = http.broker.broker.context
    client = TestClient(Starlette(routes=schema_routes(context, Address("0.0.0.0", 1))))
    refused = client.put("/config", json={"compatibility": "NONE"})
    assert refused.status_code == 403
    assert "schema.registry.listen" in refused.json()["message"]


def test_an_address_for_the_registry_serves_nothing_else(http: Serving) -> None:
    client = TestClient(make_registry_app(http.broker.broker, http.address))
    assert client.get("/").json() == {}
    assert client.get("/subjects", headers={"origin": "http://x"}).status_code == 403
    assert client.get("/metrics").status_code == 404
