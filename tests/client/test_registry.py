"""Calls of the schema registry by a client: answers, and errors with the registry's code."""

from __future__ import annotations

from pathlib import Path

import pytest

from raftlog import Admin
from raftlog.client.registry import path_of
from raftlog.clock import SystemClock
from raftlog.errors import BrokerUnavailableError, SchemaError
from tests.server.harness import running


def test_answers_and_errors(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = path_of("subjects", "a/b c", "versions")
    assert path == "/subjects/a%2Fb%20c/versions"
    with running(tmp_path, clock=SystemClock()) as broker, Admin(str(broker.address)) as admin:
        assert admin.call_schema_registry("POST", path, {"schema": '"int"'}) == {"id": 1}
        assert admin.call_schema_registry("GET", path + "/1/schema") == '"int"'
        query = {"deleted": "true", "subjectPrefix": "a/"}
        assert admin.call_schema_registry("GET", "/subjects", query=query) == ["a/b c"]
        for call, code in ((("POST", path, {"schema": "{"}), 42201), (("GET", "/none"), 404)):
            with pytest.raises(SchemaError) as caught:
                admin.call_schema_registry(*call)
            assert caught.value.registry_code == code
        monkeypatch.setattr("raftlog.limits.SCHEMA_CALLS_WAITING_MAX", 0)
        with pytest.raises(BrokerUnavailableError, match="SCHEMA_CALLS_WAITING_MAX"):
            admin.call_schema_registry("GET", "/subjects")
