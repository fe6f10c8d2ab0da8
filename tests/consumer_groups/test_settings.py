"""The bounds of a session timeout are an operator's."""

from __future__ import annotations

import pytest

from raftlog import limits
from raftlog.consumer_groups import GroupSettings
from raftlog.errors import InvalidRequestError


def test_a_session_timeout_has_bounds() -> None:
    settings = GroupSettings(session_timeout_ms_min=6_000, session_timeout_ms_max=60_000)
    settings.check_session_timeout(6_000)
    settings.check_session_timeout(60_000)
    for timeout_ms in (5_999, 60_001):
        with pytest.raises(
            InvalidRequestError, match=rf"{timeout_ms} ms is out of range. The brokers allow 6000 "
        ):
            settings.check_session_timeout(timeout_ms)


def test_the_defaults_are_the_documented_ones() -> None:
    settings = GroupSettings()
    assert settings.offsets_retention_ms == 10_080 * 60_000
    assert settings.default_assignor == "uniform"
    assert (settings.session_timeout_ms_min, settings.session_timeout_ms_max) == (
        limits.SESSION_TIMEOUT_MS_MIN,
        limits.SESSION_TIMEOUT_MS_MAX,
    )
    assert settings.members_per_group_max == limits.MEMBERS_PER_GROUP_MAX
    assert settings.topics_per_member_max == limits.TOPICS_PER_MEMBER_MAX
    assert settings.groups_max == limits.GROUPS_PER_COORDINATOR_MAX
    assert settings.offsets_per_group_max == limits.OFFSETS_PER_GROUP_MAX
