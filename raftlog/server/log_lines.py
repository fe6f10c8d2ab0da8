"""Format of a broker's log lines: UTC time, level, logger, message; or JSON.

Every line is formatted here, so untrusted text is escaped here: a control character, such as a
newline in a client id, becomes an escape sequence, and one event is one line. ``RepeatFilter``
limits how many lines one message of the code can write.
"""

from __future__ import annotations

import json
import logging
import re
from datetime import UTC, datetime
from typing import Final

from raftlog import limits

# C0 and C1 controls, line and paragraph separators, and characters that reverse the direction of
# text.
_CONTROLS: Final = re.compile(
    r"[\x00-\x1f\x7f-\x9f\u2028\u2029\u200e\u200f\u202a-\u202e\u2066-\u2069]"
)


def escaped(text: str) -> str:
    """``text`` with control characters as escapes, such as ``\\n``."""
    return _CONTROLS.sub(lambda found: repr(found[0])[1:-1], text)


class RepeatFilter(logging.Filter):
    """Drops lines of a message beyond ``LOG_REPEATS_MAX`` per ``LOG_REPEATS_INTERVAL_S``.

    Lines have the same message if one call in the code wrote them, with any arguments: an
    event that occurs for each of 10,000 partitions or connections does not fill the disk. The last
    line before a gap announces it, and the first one after it has the number of dropped lines.
    Debug lines are not limited.
    """

    def __init__(self) -> None:
        super().__init__()
        self._windows: dict[tuple[str, str], _Window] = {}

    def filter(self, record: logging.LogRecord) -> bool:
        if record.levelno < logging.INFO:
            return True
        key = (record.name, str(record.msg))
        window = self._windows.get(key)
        if window is None or abs(record.created - window.start_s) >= limits.LOG_REPEATS_INTERVAL_S:
            if len(self._windows) >= limits.LOG_MESSAGES_MAX:
                self._windows.clear()
            dropped = 0 if window is None else window.count - limits.LOG_REPEATS_MAX
            window = self._windows[key] = _Window(record.created)
            if dropped > 0:
                record.repeats = f"{dropped} lines of this kind were omitted before"
        window.count += 1
        if window.count == limits.LOG_REPEATS_MAX:
            record.repeats = (
                f"further lines of this kind are omitted for {limits.LOG_REPEATS_INTERVAL_S} s"
            )
        return window.count <= limits.LOG_REPEATS_MAX


class _Window:
    __slots__ = ("count", "start_s")

    def __init__(self, start_s: float) -> None:
        self.start_s = start_s
        self.count = 0


class TextFormatter(logging.Formatter):
    """``2026-11-23T02:45:02.136Z INFO raftlog.server.broker: message``, and a traceback below."""

    def format(self, record: logging.LogRecord) -> str:
        head = f"{_time(record)} {record.levelname} {record.name}: {escaped(record.getMessage())}"
        if repeats := getattr(record, "repeats", ""):
            head += f" ({repeats})"
        if record.exc_info:
            head += "".join(f"\n  {line}" for line in self._traceback(record))
        return head

    def _traceback(self, record: logging.LogRecord) -> list[str]:
        """Return the lines of the traceback. The text of an exception may be untrusted: it is
        escaped.
        """
        assert record.exc_info is not None
        lines = self.formatException(record.exc_info).split("\n")
        return [escaped(line) for line in lines]


class JsonFormatter(TextFormatter):
    """One JSON object per line: time, level, logger, message, and traceback if there is one."""

    def format(self, record: logging.LogRecord) -> str:
        line = {
            "time": _time(record),
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": escaped(record.getMessage()),
        }
        if repeats := getattr(record, "repeats", ""):
            line["repeats"] = repeats
        if record.exc_info:
            line["traceback"] = "\n".join(self._traceback(record))
        return json.dumps(line, ensure_ascii=False)


def formatter(name: str) -> logging.Formatter:
    """The formatter for a value of the setting ``logging.format``."""
    return JsonFormatter() if name == "json" else TextFormatter()


def _time(record: logging.LogRecord) -> str:
    """Return the time in UTC, with milliseconds, in RFC 3339 format."""
    time = datetime.fromtimestamp(record.created, UTC)
    return time.isoformat(timespec="milliseconds").replace("+00:00", "Z")
