"""Filters of the console's templates. Pure."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from typing import Any, Final

from raftlog import limits
from raftlog.config.keys import DAY_MS, INT64_MAX
from raftlog.errors import counted
from raftlog_cli import health
from raftlog_cli.console import decoding
from raftlog_cli.group import seconds

NOTHING: Final = "\N{EN DASH}"
SPARK_WIDTH: Final = 96
TIME_LAST_MS: Final = 253_402_300_799_999  # the end of the year 9999


def number(value: float | None) -> str:
    """Format a whole number with separators; a dash if it is unknown (None or negative)."""
    return NOTHING if value is None or value < 0 else f"{value:,.0f}"


def rate(value: float | None) -> str:
    """Format a rate with one decimal below 10, without decimals from 10 on."""
    if value is None:
        return NOTHING
    return f"{value:,.1f}" if 0 < value < 10 else f"{value:,.0f}"


def size(value: float | None) -> str:
    """Format bytes with a unit; a dash for an unknown value."""
    if value is None or value < 0:
        return NOTHING
    return health.shown_bytes(value)


def time(at_ms: int) -> str:
    """Format a time in UTC with milliseconds; the number itself if it is outside the calendar."""
    if not 0 <= at_ms <= TIME_LAST_MS:
        return str(at_ms)
    moment = datetime.fromtimestamp(at_ms / 1_000, UTC)
    return moment.isoformat(sep=" ", timespec="milliseconds").removesuffix("+00:00")


def clock(at_ms: int) -> str:
    """Format the time of day in UTC."""
    return f"{time(at_ms)[11:19]} UTC"


def duration(value: float | None) -> str:
    """Format seconds as seconds, minutes, hours or days."""
    if value is None:
        return NOTHING
    if value < 60:
        return f"{seconds(value)} s"
    if value < 3_600:
        return f"{value / 60:.0f} min"
    if value < 172_800:
        return f"{value / 3_600:.1f} h"
    return f"{value / 86_400:.1f} days"


def readable(value: str, setting: str) -> str:
    """Return the value of a setting in ms or bytes with a larger unit, such as ``7 days``; "" for
    other settings and small values.
    """
    is_time, is_size = setting.endswith(".ms"), setting.endswith(".bytes")
    if not (is_time or is_size) or not value.removeprefix("-").isdecimal():
        return ""
    amount = int(value)
    if amount < 0 or amount == INT64_MAX:
        return "no limit"
    if amount < (1_000 if is_time else limits.KIB):
        return ""
    if is_time and amount % DAY_MS == 0:
        return counted(amount // DAY_MS, "day")
    return (duration(amount / 1_000) if is_time else size(amount)).replace(".0 ", " ")


def bar(value: float | None, largest: float) -> int:
    """Return the width of a bar, 0 to ``SPARK_WIDTH``; at least 1 for a value above 0."""
    if not value or largest <= 0:
        return 0
    return max(1, min(SPARK_WIDTH, round(SPARK_WIDTH * value / largest)))


FILTERS: Final[Mapping[str, Callable[..., Any]]] = {
    "number": number,
    "rate": rate,
    "size": size,
    "time": time,
    "clock": clock,
    "duration": duration,
    "readable": readable,
    "bar": bar,
    "ids": health.ids,
    "state": health.partition_state,
    "broker_state": health.broker_state,
    "preview": decoding.preview,
}
