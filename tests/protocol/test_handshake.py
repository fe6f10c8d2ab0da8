"""``api_versions``: bounds of what a stranger may say first."""

from __future__ import annotations

from typing import Any

import pytest

from raftlog import limits
from raftlog.protocol.security import ApiVersionRange, ApiVersionsRequest, ApiVersionsResponse
from tests.protocol.fields import accepted, refused


def test_a_client_need_not_say_who_it_is() -> None:
    assert accepted(ApiVersionsRequest, {}) == ApiVersionsRequest(client_id="", client_software="")


@pytest.mark.parametrize("name", ["client_id", "client_software"])
def test_names_are_bounded(name: str) -> None:
    accepted(ApiVersionsRequest, {name: "é" * limits.CLIENT_ID_CHARS_MAX})
    too_long = {name: "x" * (limits.CLIENT_ID_CHARS_MAX + 1)}
    refused(ApiVersionsRequest, too_long, path=f"$.{name}")


def answer(**versions: Any) -> dict[str, Any]:
    spoken = {"api": 0, "version_min": 0, "version_max": 0, **versions}
    return {"broker_software": "r", "broker_id": 1, "cluster_id": "c", "apis": [spoken]}


def test_a_broker_may_speak_what_this_client_does_not_know() -> None:
    message = accepted(ApiVersionsResponse, answer(api=65_535, version_max=65_535))
    assert isinstance(message, ApiVersionsResponse)
    assert message.apis == [ApiVersionRange(65_535, 0, 65_535)]


@pytest.mark.parametrize("name", ["api", "version_min", "version_max"])
@pytest.mark.parametrize("value", [-1, 65_536, "0", None, 1.5])
def test_versions_are_numbers_that_fit_a_frame(name: str, value: Any) -> None:
    refused(ApiVersionsResponse, answer(**{name: value}), path=f"$.apis[0].{name}")
