"""Results on stdout, exact; everything for the person at the terminal on stderr, and only there."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable

import click
import pytest
from click.testing import CliRunner

from raftlog_cli import options, output


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


@pytest.fixture
def terminal(monkeypatch: pytest.MonkeyPatch) -> Callable[[int], None]:
    """Make stdout a terminal of this width."""

    def make(width: int) -> None:
        monkeypatch.setattr(sys.stdout, "isatty", lambda: True)
        monkeypatch.setenv("COLUMNS", str(width))

    return make


COLUMNS = ("broker", "address", "state", "leads", "damage")
ROWS = [(1, "10.0.0.1:9100", "up", 7, None), (2, "10.0.0.2:9100", "down", 0, None)]


@pytest.mark.parametrize(
    ("width", "heading", "note"),
    [
        (80, "broker  address        state  leads", ""),
        (32, "broker  address        state", "not shown: leads\n"),
        (20, "broker  state", "not shown: address, leads\n"),
        (4, "broker", "not shown: address, state, leads\n"),
    ],
)
def test_columns_that_do_not_fit_a_terminal_are_named(
    capsys: pytest.CaptureFixture[str],
    terminal: Callable[[int], None],
    width: int,
    heading: str,
    note: str,
) -> None:
    terminal(width)
    output.print_table(COLUMNS, ROWS, if_set=("damage",), drop=("leads", "address"))
    out, err = capsys.readouterr()
    assert (out.splitlines()[0], err) == (heading, note)
    assert len(out.splitlines()) == 4, "nothing is folded"


@pytest.mark.parametrize(
    ("wide", "columns"), [(False, ["broker", "address"]), (True, ["broker", "address", "damage"])]
)
def test_off_a_terminal_all_columns_that_say_something_are_printed(
    wide: bool, columns: list[str]
) -> None:
    @click.command()
    @options.wide
    def show() -> None:
        output.print_table(("broker", "address", "damage"), [(1, "a" * 300, "")], if_set="damage")

    out = CliRunner().invoke(show, ["--wide"] * wide, env={"COLUMNS": "20"}).output
    assert out.splitlines()[0].split() == columns
    assert "a" * 300 in out


def test_long_values_are_shortened_on_a_terminal(
    capsys: pytest.CaptureFixture[str], terminal: Callable[[int], None]
) -> None:
    terminal(60)
    output.print_table(("partition", "state"), [("t" * 200 + ":12", "ok")])
    out, err = capsys.readouterr()
    assert max(map(len, out.splitlines())) <= 60
    assert out.splitlines()[2].split() == ["t" * 20 + "…" + "t" * 6 + ":12", "ok"]
    assert err == "long values are shortened\n"


@pytest.mark.parametrize(
    ("width", "lines"),
    [(40, ["a  the offset was deleted"]), (20, ["a  the offset was", "   deleted"])],
)
def test_sentences_continue_between_words(
    capsys: pytest.CaptureFixture[str],
    terminal: Callable[[int], None],
    width: int,
    lines: list[str],
) -> None:
    terminal(width)
    rows = [("a", "the offset was deleted")]
    output.print_table(("t", "problem"), rows, prose="problem")
    assert capsys.readouterr().out.splitlines()[2:] == lines


def test_data_are_neither_markup_nor_control_characters(
    capsys: pytest.CaptureFixture[str],
) -> None:
    output.print_table(("name", "n"), [("[bold]a\x1b[2J\nb", 1)])
    unknown = "\N{REPLACEMENT CHARACTER}"
    assert f"[bold]a{unknown}[2J{unknown}b" in capsys.readouterr().out


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
