"""Log lines: their format, and that nothing from outside can make two of one."""

from __future__ import annotations

import fcntl
import json
import logging
import os
import sys
from contextlib import suppress
from datetime import datetime, timedelta

import pytest

from raftlog import limits
from raftlog.server.main import LogWriter, RepeatFilter, formatter

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


def test_lines_of_one_message_are_limited_and_the_omitted_ones_are_counted() -> None:
    limit, dropped = RepeatFilter(), 7
    lines = []

    def log(message: str, number: int, at_s: float) -> None:
        made = record(message, number)
        made.created += at_s
        if limit.filter(made):
            lines.append(json.loads(formatter("json").format(made)))

    for number in range(limits.LOG_REPEATS_MAX + dropped):
        log("broker joined: broker=%d", number, 1)
    log("broker left: broker=%d", 3, 2)
    assert len(lines) == limits.LOG_REPEATS_MAX + 1
    assert [line["message"] for line in lines if "repeats" in line] == ["broker joined: broker=99"]
    assert lines[-1] == {**lines[-1], "message": "broker left: broker=3"}
    log("broker joined: broker=%d", 5, 1 + limits.LOG_REPEATS_INTERVAL_S)
    assert lines[-1]["message"] == "broker joined: broker=5"
    assert lines[-1]["repeats"] == f"{dropped} lines of this kind were omitted before"


def test_debug_lines_are_not_limited_and_different_messages_stay_bounded() -> None:
    limit = RepeatFilter()
    made = record("x")
    made.levelno = logging.DEBUG
    assert all(limit.filter(made) for _ in range(2 * limits.LOG_REPEATS_MAX))
    for number in range(2 * limits.LOG_MESSAGES_MAX):
        assert limit.filter(record(f"text {number}"))
    assert len(limit._windows) <= limits.LOG_MESSAGES_MAX


def read_all(fd: int) -> list[str]:
    os.set_blocking(fd, False)
    parts: list[bytes] = []
    with suppress(BlockingIOError):
        while part := os.read(fd, 1 << 20):
            parts.append(part)
    return b"".join(parts).decode().splitlines()


def test_a_reader_that_stops_holds_nobody_up_and_learns_what_it_missed() -> None:
    read, write = os.pipe()
    try:
        fcntl.fcntl(write, fcntl.F_SETPIPE_SZ, 4_096)
        writer = LogWriter(write)
        line = "x" * 10_000
        for _ in range(limits.LOG_WAITING_BYTES_MAX // len(line) + 10):
            writer.write(line)
        dropped = writer.dropped
        assert 5 <= dropped <= 12
        got: list[str] = []
        while not any("log lines were dropped" in each for each in got):
            got += read_all(read)
        assert f"({dropped} log lines were dropped: stderr could not take them)" in got
    finally:
        os.close(read)
        os.close(write)


def test_lines_for_a_full_file_system_are_dropped() -> None:
    with open("/dev/full", "wb", buffering=0) as full:
        writer = LogWriter(full.fileno())
        writer.write("lost")
        writer.flush()
        assert writer.dropped == 1


def test_a_line_is_written_before_the_process_ends() -> None:
    read, write = os.pipe()
    try:
        writer = LogWriter(write)
        writer.setFormatter(formatter("text"))
        writer.handle(record("the last %s", "word\udc80"))
        writer.flush()
        (line,) = read_all(read)
        assert line.endswith(r"raftlog.x: the last word\udc80")
    finally:
        os.close(read)
        os.close(write)
