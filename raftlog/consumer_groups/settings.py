"""Settings of consumer groups. The broker fills them from its configuration."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from raftlog import limits
from raftlog.errors import InvalidRequestError

DEFAULT_ASSIGNOR: Final = "uniform"
_DAY_MS: Final = 86_400_000


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupSettings:
    """Limits and times of consumer groups. Times are in ms; limits are inclusive.

    ``grace_ms``: ms, default 2,000. If the timers of a coordinator are late by more than this, it
    was stalled. It then extends expired sessions by ``grace_ms``, to process queued heartbeats.
    ``initial_rebalance_delay_ms``: ms, default 3,000, by which the first rebalance of an empty
    classic group waits for more members.
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
    initial_rebalance_delay_ms: int = limits.INITIAL_REBALANCE_DELAY_MS

    def check_session_timeout(self, timeout_ms: int) -> None:
        """Raises ``InvalidRequestError`` if ``timeout_ms`` is out of range. Names the settings."""
        if not self.session_timeout_ms_min <= timeout_ms <= self.session_timeout_ms_max:
            raise InvalidRequestError(
                f"session timeout of {timeout_ms} ms is out of range. The brokers allow "
                f"{self.session_timeout_ms_min} (group.min.session.timeout.ms) to "
                f"{self.session_timeout_ms_max} ms (group.max.session.timeout.ms)"
            )
