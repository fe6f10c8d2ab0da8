"""The bounds of a session timeout are an operator's."""

from __future__ import annotations

import pytest

from raftlog.errors import InvalidRequestError
from raftlog.groups import GroupSettings


def test_a_session_timeout_has_bounds() -> None:
    settings = GroupSettings(session_timeout_ms_min=6_000, session_timeout_ms_max=60_000)
    settings.check_session_timeout(6_000)
    settings.check_session_timeout(60_000)
    for timeout_ms in (5_999, 60_001):
        with pytest.raises(InvalidRequestError, match=rf"{timeout_ms} ms: the brokers allow 6000 "):
            settings.check_session_timeout(timeout_ms)
