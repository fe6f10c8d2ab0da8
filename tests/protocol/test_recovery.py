"""``survey`` and ``revive``: the bounds in their fields."""

from __future__ import annotations

from typing import Any

import pytest

from raftlog import limits
from raftlog.protocol.cluster import GROUP_ID_CHARS_MAX, GroupReport, ReviveRequest, SurveyRequest
from raftlog.protocol.peer import PARTITION_STATE_BYTES_MAX
from tests.protocol.fields import accepted, refused


@pytest.mark.parametrize("groups", [[], ["g" * GROUP_ID_CHARS_MAX]])
def test_what_a_survey_may_ask(groups: list[str]) -> None:
    assert accepted(SurveyRequest, {"groups": groups}) == SurveyRequest(groups=groups)


@pytest.mark.parametrize(
    "groups",
    [[""], ["g" * (GROUP_ID_CHARS_MAX + 1)], ["g"] * (limits.PARTITIONS_PER_REQUEST_MAX + 1)],
)
def test_what_a_survey_may_not_ask(groups: list[str]) -> None:
    refused(SurveyRequest, {"groups": groups}, path="groups")


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("generation", -1),
        ("voters", [{"broker": 1, "directory_id": ""}]),
        ("end", -2),
        ("state", bytes(PARTITION_STATE_BYTES_MAX + 1)),
    ],
)
def test_what_a_broker_may_not_report(field: str, value: Any) -> None:
    accepted(GroupReport, {"group": "g"})
    refused(GroupReport, {"group": "g", field: value}, path=field)


@pytest.mark.parametrize("field", ["base", "command"])
def test_what_a_broker_may_be_asked_to_go_on_from(field: str) -> None:
    request = {"group": "g", "generation": 1}
    accepted(ReviveRequest, {**request, field: bytes(PARTITION_STATE_BYTES_MAX)})
    refused(ReviveRequest, {**request, field: bytes(PARTITION_STATE_BYTES_MAX + 1)}, path=field)
