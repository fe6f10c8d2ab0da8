"""Results on stdout, exact; everything for the person at the terminal on stderr, and only there."""

from __future__ import annotations

import json
import sys

import pytest

from raftlog.cli import output


def test_json_is_one_line_of_readable_text(capsys: pytest.CaptureFixture[str]) -> None:
    output.print_json({"name": "日本", "numbers": [1, None]})
    out = capsys.readouterr().out
    assert out == '{"name": "日本", "numbers": [1, null]}\n'
    assert json.loads(out) == {"name": "日本", "numbers": [1, None]}


def test_tables_are_aligned_columns_off_a_terminal(capsys: pytest.CaptureFixture[str]) -> None:
    output.print_table(("name", "n"), [("a", 1), ("longer", None)])
    assert capsys.readouterr().out == "name    n\na       1\nlonger\n"


def test_a_table_without_rows_has_its_heading(capsys: pytest.CaptureFixture[str]) -> None:
    output.print_table(("name", "n"), [])
    assert capsys.readouterr().out == "name  n\n"


def test_tables_are_drawn_on_a_terminal(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True)
    output.print_table(("name", "n"), [("[bold]", 1)])
    out = capsys.readouterr().out
    assert "─" in out
    assert "[bold]" in out  # data is never taken for markup


def test_bytes_are_written_as_they_are(capfdbinary: pytest.CaptureFixture[bytes]) -> None:
    output.write_bytes(b"\xff\r\n\0")
    assert capfdbinary.readouterr().out == b"\xff\r\n\0"


def test_progress_is_silent_off_a_terminal(capsys: pytest.CaptureFixture[str]) -> None:
    with output.progress("sending", 10) as advance:
        advance(10)
    assert capsys.readouterr() == ("", "")


def test_progress_is_shown_on_a_terminal_and_never_on_stdout(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True)
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setenv("FORCE_COLOR", "1")
    with output.progress("sending", 10) as advance:
        advance(10)
    captured = capsys.readouterr()
    assert captured.out == ""
    assert "sending" in captured.err


def test_a_report_is_text_or_json(capsys: pytest.CaptureFixture[str]) -> None:
    output.report({"a": 1}, "one a", as_json=False)
    output.report({"a": 1}, "one a", as_json=True)
    assert capsys.readouterr().out == 'one a\n{"a": 1}\n'


def test_only_a_terminal_is_cleared(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    output.clear()
    assert capsys.readouterr().out == ""
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True)
    output.clear()
    assert "\x1b[2J" in capsys.readouterr().out
