"""What an operator may set about consumer groups, as values. The broker's settings fill it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from raftlog import limits
from raftlog.errors import InvalidRequestError

DEFAULT_ASSIGNOR: Final = "uniform"
_DAY_MS: Final = 86_400_000


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupSettings:
    """Limits and times; all times are in ms, all limits inclusive.

    ``grace_ms``: a coordinator that stood still for longer than this (its timers come so late)
    ends no session before it has given everybody as long to be heard.
    """

    session_timeout_ms_min: int = limits.SESSION_TIMEOUT_MS_MIN
    session_timeout_ms_max: int = limits.SESSION_TIMEOUT_MS_MAX
    offsets_retention_ms: int = 7 * _DAY_MS
    members_per_group_max: int = limits.MEMBERS_PER_GROUP_MAX
    topics_per_member_max: int = limits.TOPICS_PER_MEMBER_MAX
    groups_max: int = limits.GROUPS_PER_COORDINATOR_MAX
    offsets_per_group_max: int = limits.OFFSETS_PER_GROUP_MAX
    default_assignor: str = DEFAULT_ASSIGNOR
    grace_ms: int = 2_000

    def check_session_timeout(self, timeout_ms: int) -> None:
        """Raises ``InvalidRequestError`` that names the settings which hold the bounds."""
        if not self.session_timeout_ms_min <= timeout_ms <= self.session_timeout_ms_max:
            raise InvalidRequestError(
                f"a session timeout of {timeout_ms} ms: the brokers allow "
                f"{self.session_timeout_ms_min} (group.min.session.timeout.ms) to "
                f"{self.session_timeout_ms_max} ms (group.max.session.timeout.ms)"
            )
