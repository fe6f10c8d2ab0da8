"""Settings of single groups, which the cluster state contains: the timeouts of their members with
``group.protocol=consumer`` (KIP-848). The broker's settings apply to all other groups.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import Final

from raftlog import limits
from raftlog.config.broker import BROKER_KEYS, BrokerConfig
from raftlog.config.keys import ConfigKey, parse
from raftlog.errors import InvalidConfigError, InvalidRequestError, UnsupportedFeatureError
from raftlog.replication.cluster_commands import (
    GROUP_SETTINGS,
    PEER_PROTOCOL_GROUPS,
    AlterGroup,
    GroupSetting,
)
from raftlog.server.context import BrokerContext

SESSION: Final[GroupSetting] = "consumer.session.timeout.ms"
HEARTBEAT: Final[GroupSetting] = "consumer.heartbeat.interval.ms"
# As those of brokers, whose names begin with "group.".
_OF_BROKER: Final[Mapping[str, ConfigKey[int]]] = {key.name: key for key in BROKER_KEYS}
GROUP_KEYS: Final[Mapping[GroupSetting, ConfigKey[int]]] = {
    name: replace(_OF_BROKER[f"group.{name}"], name=name) for name in GROUP_SETTINGS
}


def of_broker(config: BrokerConfig) -> dict[GroupSetting, int]:
    """Return the values of groups without settings, in ms."""
    return {
        SESSION: _within_limits(config, config.group_consumer_session_timeout_ms),
        HEARTBEAT: config.group_consumer_heartbeat_interval_ms,
    }


def in_force(context: BrokerContext, group: str) -> dict[GroupSetting, int]:
    """Return the values that apply to the members of a group, in ms.

    A session timeout beyond the limits of this broker is its limit.
    """
    config = context.config
    held = context.access.authority.machine.groups.get(group)
    values = of_broker(config)
    if held:
        values |= held
        values[SESSION] = _within_limits(config, values[SESSION])
    values[HEARTBEAT] = min(values[HEARTBEAT], values[SESSION] // 3)
    return values


def _within_limits(config: BrokerConfig, session_ms: int) -> int:
    """Return the session timeout, or the limit of this broker that it exceeds."""
    at_least = max(session_ms, config.group_min_session_timeout_ms)
    return min(at_least, config.group_max_session_timeout_ms)


def check_group(name: str) -> None:
    """Raise ``InvalidRequestError`` for a name that no group can have."""
    if not name:
        raise InvalidRequestError("Group name must not be empty.")
    if len(name) > limits.GROUP_ID_CHARS_MAX:
        raise InvalidRequestError(
            f"group name of {len(name)} characters: the maximum is {limits.GROUP_ID_CHARS_MAX}"
        )


async def alter_group(
    context: BrokerContext, group: str, changes: Mapping[str, str | None], *, validate_only: bool
) -> None:
    """Change settings of a group; None resets one to that of the broker.

    Raises ``InvalidConfigError`` for a setting that groups do not have here, and for a value out of
    bounds, and ``UnsupportedFeatureError`` until the cluster is upgraded.
    """
    check_group(group)
    _check_names(changes)
    config = context.config
    given = {name: value for name, value in changes.items() if value is not None}
    numbers = parse(tuple(GROUP_KEYS.values()), given, what="group")
    wanted = {name: numbers.get(key.field) for name, key in GROUP_KEYS.items() if name in changes}
    merged = {**context.access.authority.machine.groups.get(group, {}), **wanted}
    after = of_broker(config) | {name: value for name, value in merged.items() if value is not None}
    least, most = config.group_min_session_timeout_ms, config.group_max_session_timeout_ms
    if wanted.get(SESSION) is not None and not least <= after[SESSION] <= most:
        raise InvalidConfigError(
            f"{SESSION}={after[SESSION]} is not between {least} (group.min.session.timeout.ms) and "
            f"{most} (group.max.session.timeout.ms)"
        )
    if after[HEARTBEAT] >= after[SESSION]:
        raise InvalidConfigError(
            f"{HEARTBEAT}={after[HEARTBEAT]} must be less than {SESSION}={after[SESSION]}"
        )
    if context.operations.peer_protocol < PEER_PROTOCOL_GROUPS:
        raise UnsupportedFeatureError(
            "settings of groups require that all brokers support them. Upgrade them, then run "
            "`raftlog cluster features --upgrade`"
        )
    if wanted and not validate_only:
        await context.access.authority.propose(AlterGroup(group=group, changes=wanted))


def _check_names(names: Iterable[str]) -> None:
    for name in names:
        if name not in GROUP_SETTINGS:
            raise InvalidConfigError(
                f"Unknown group config name: {name[:100]}. Groups have {', '.join(GROUP_SETTINGS)}"
            )
