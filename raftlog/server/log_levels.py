"""Levels of the loggers of this process, which operators can change while it runs.

A change ends with the process. Only loggers that exist can be changed, so that requests cannot make
their number grow.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping
from typing import Final, NamedTuple

from raftlog import limits
from raftlog.config.broker_keys import LOGGING_LEVELS
from raftlog.errors import InvalidRequestError

ROOT: Final = "root"

logger = logging.getLogger(__name__)


class LoggerLevel(NamedTuple):
    """``is_own``: the level was set for this logger, and is not that of one above it."""

    name: str
    level: str
    is_own: bool


def describe() -> Iterator[LoggerLevel]:
    """Return the root logger and all others, by name; ``LOGGERS_MAX`` at most."""
    for name in [ROOT, *sorted(logging.root.manager.loggerDict)][: limits.LOGGERS_MAX]:
        found = logging.root if name == ROOT else logging.root.manager.loggerDict[name]
        if isinstance(found, logging.Logger):  # a place holder has no level
            level = logging.getLevelName(found.getEffectiveLevel()).lower()
            yield LoggerLevel(name, level, found.level != logging.NOTSET)


def alter(changes: Mapping[str, str | None], *, default: str) -> None:
    """Set the level of each logger: all of them, or none.

    ``changes``: None for the level of the next logger above. The root logger then has ``default``,
    the setting of the broker. Raises ``InvalidRequestError`` for an unknown logger or level.
    """
    for name, level in changes.items():
        if name != ROOT and name not in logging.root.manager.loggerDict:
            raise InvalidRequestError(
                f"this broker has no logger {name!r}. Request the levels to see their names; the "
                f"one above all is {ROOT!r}"
            )
        if level is not None and level not in LOGGING_LEVELS:
            raise InvalidRequestError(
                f"{level!r} is not a log level: use {', '.join(LOGGING_LEVELS)}"
            )
    for name, level in changes.items():
        is_root = name == ROOT
        chosen = default if level is None and is_root else level
        number = logging.NOTSET if chosen is None else chosen.upper()
        (logging.root if is_root else logging.getLogger(name)).setLevel(number)
        logger.warning("log level changed: logger=%s level=%s", name, chosen or "inherited")
