"""Log lines: their format, and that nothing from outside can make two of one."""

from __future__ import annotations

import json
import logging
import sys
from datetime import datetime, timedelta

import pytest

from raftlog.server.log_lines import formatter

MS = 1_700_000_000_123


def record(message: str, *arguments: object, error: Exception | None = None) -> logging.LogRecord:
    trace = None
    if error is not None:
        try:
            raise error
        except type(error):
            trace = sys.exc_info()
    made = logging.LogRecord("raftlog.x", logging.WARNING, "x.py", 1, message, arguments, trace)
    made.created = MS / 1_000
    return made


def test_text_has_the_time_in_utc_the_level_and_the_logger() -> None:
    line = formatter("text").format(record("broker joined: broker=%d", 7))
    assert line == "2023-11-14T22:13:20.123Z WARNING raftlog.x: broker joined: broker=7"
    assert datetime.fromisoformat(line.partition(" ")[0]).utcoffset() == timedelta(0)


@pytest.mark.parametrize("text", ["a\nb", "a\rb", "a\x1b[2Jb", "a\u2028b", "a\x85b", "a\u202eb"])
@pytest.mark.parametrize("form", ["text", "json"])
def test_one_event_is_one_line(text: str, form: str) -> None:
    line = formatter(form).format(record("client %s connected", text))
    assert len(line.splitlines()) == 1
    assert line.isprintable()


def test_other_text_stays_as_it_is() -> None:
    line = formatter("text").format(record("client %s", "zażółć 日本 \\n"))
    assert line.endswith("client zażółć 日本 \\n")


def test_a_traceback_cannot_pass_for_a_line() -> None:
    error = ValueError("bad\n2023-11-14T22:13:20.123Z INFO raftlog.x: all is well")
    first, *others = formatter("text").format(record("failed", error=error)).split("\n")
    assert first.endswith("WARNING raftlog.x: failed")
    assert others[0] == "  Traceback (most recent call last):"
    assert all(line.startswith("  ") for line in others)


def test_json() -> None:
    line = formatter("json").format(record("broker %d joined", 7, error=ValueError("because")))
    found = json.loads(line)
    assert found.pop("traceback").endswith("ValueError: because")
    assert found == {
        "time": "2023-11-14T22:13:20.123Z",
        "level": "warning",
        "logger": "raftlog.x",
        "message": "broker 7 joined",
    }
