"""Format of a broker's log lines: UTC time, level, logger, message; or JSON.

Every line is formatted here, so untrusted text is escaped here: a control character, such as a
newline in a client id, becomes an escape sequence, and one event is one line. ``RepeatFilter``
limits how many lines one message of the code can write. ``LogWriter`` writes them in a thread:
neither the reader of stderr nor its file system can hold up a broker.
"""

from __future__ import annotations

import json
import logging
import os
import re
import threading
from collections import deque
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


class LogWriter(logging.Handler):
    """Writes lines to a file descriptor in a thread. A call never waits for the reader: lines are
    dropped while ``LOG_WAITING_BYTES_MAX`` wait, or if they cannot be written, such as to a full
    file system. The next line that is written announces how many. ``dropped``: all of them.
    """

    def __init__(self, fd: int) -> None:
        super().__init__()
        self.dropped = 0
        self._fd = fd
        self._lines: deque[bytes] = deque()
        self._bytes = 0  # of the waiting lines
        self._announced = 0  # dropped lines that a written line has announced
        self._changed = threading.Condition()
        self._is_writing = False
        self._thread: threading.Thread | None = None

    def emit(self, record: logging.LogRecord) -> None:
        try:
            line = self.format(record)
        except Exception:  # noqa: BLE001 - a wrong call of the logger must not end its caller
            self.handleError(record)
        else:
            self.write(line)

    def write(self, line: str) -> None:
        """Write a line, without the level filter."""
        data = line.encode(errors="backslashreplace") + b"\n"
        with self._changed:
            if self._bytes + len(data) > limits.LOG_WAITING_BYTES_MAX:
                self.dropped += 1
                return
            self._lines.append(data)
            self._bytes += len(data)
            if self._thread is None:
                self._thread = threading.Thread(target=self._run, name="raftlog-log", daemon=True)
                self._thread.start()
            self._changed.notify_all()

    def flush(self) -> None:
        """Wait until all lines are written, for ``LOG_FLUSH_S`` at most."""
        with self._changed:
            self._changed.wait_for(
                lambda: not (self._lines or self._is_writing), limits.LOG_FLUSH_S
            )

    def _run(self) -> None:
        while True:
            with self._changed:
                self._is_writing = False
                self._changed.notify_all()
                self._changed.wait_for(lambda: self._lines)
                line = self._lines.popleft()
                self._bytes -= len(line)
                self._is_writing = True
                missing = self.dropped - self._announced
            if missing:
                line = b"(%d log lines were dropped: stderr could not take them)\n" % missing + line
            try:
                while line:
                    line = line[os.write(self._fd, line) :]
            except OSError:  # EPIPE, ENOSPC: there is no other place to report it
                with self._changed:
                    self.dropped += 1
            else:
                self._announced += missing


def say(line: str) -> None:
    """Write a line to the log of this process, regardless of the level."""
    for writer in _writers():
        writer.write(line)


def dropped() -> int:
    """Return the number of log lines that this process could not write."""
    return sum(writer.dropped for writer in _writers())


def _writers() -> list[LogWriter]:
    return [handler for handler in logging.getLogger().handlers if isinstance(handler, LogWriter)]


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
