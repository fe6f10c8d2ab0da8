"""``describe_log_levels`` and ``alter_log_levels``: what the responding broker logs."""

from __future__ import annotations

from typing import Annotated

from msgspec import Meta

from raftlog import limits
from raftlog.protocol.schema import Message

_Name = Annotated[str, Meta(max_length=limits.LOGGER_NAME_CHARS_MAX)]
_Level = Annotated[str, Meta(max_length=limits.LOGGER_NAME_CHARS_MAX)]


class DescribeLogLevelsRequest(Message):
    """Request the level of every logger of the responding broker."""


class LogLevel(Message):
    """One logger. ``level``: the least level that it logs. ``is_own``: the level was set for this
    logger; otherwise, it has that of the next logger above it.
    """

    logger: _Name
    level: _Level
    is_own: bool = False


class DescribeLogLevelsResponse(Message):
    levels: Annotated[list[LogLevel], Meta(max_length=limits.LOGGERS_MAX)]


class LogLevelChange(Message):
    """``level``: debug, info, warning or error; None for that of the next logger above, and for the
    root logger, ``logging.level`` of the broker.
    """

    logger: _Name
    level: _Level | None


class AlterLogLevelsRequest(Message):
    """Change levels until the broker stops: all of them, or none."""

    changes: Annotated[list[LogLevelChange], Meta(max_length=limits.LOGGERS_MAX)]


class AlterLogLevelsResponse(Message):
    pass
