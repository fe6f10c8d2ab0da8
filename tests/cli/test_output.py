"""What commands print: streams, tables, JSON and progress."""

from __future__ import annotations

import contextlib
import io
import json
import sys
from collections.abc import Callable

import click
import pytest
from click.testing import CliRunner
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from raftlog.types import ConsumerRecord
from raftlog_cli import options, output
from raftlog_cli.output import (
    InputRecord,
    bytes_from_json,
    bytes_to_json,
    compile_format,
    format_json,
    format_values,
    parse_json_line,
    read_lines,
    split_keys,
)

# -- streams ---------------------------------------------------------------------------------------

# Results on stdout, exact; everything for the person at the terminal on stderr, and only there.


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


# -- formats ---------------------------------------------------------------------------------------


RECORD = ConsumerRecord(
    topic="clicks",
    partition=3,
    offset=47,
    key=b"user-1",
    value=b"caf\xc3\xa9 \xff",
    headers=(("trace", b"1"), ("empty", None)),
    timestamp_ms=1_700_000_000_000,
    leader_epoch=2,
)
NOTHING = replace(RECORD, key=None, value=None, headers=())


@pytest.mark.parametrize(
    ("text", "written"),
    [
        ("%v", b"caf\xc3\xa9 \xff\n"),
        (r"%v\n", b"caf\xc3\xa9 \xff\n"),
        ("%v\n", b"caf\xc3\xa9 \xff\n"),
        (r"%v\c", b"caf\xc3\xa9 \xff"),
        (r"%v\0\c", b"caf\xc3\xa9 \xff\0"),
        ("%t/%p@%o", b"clicks/3@47\n"),
        (r"%k\t%T\t%e", b"user-1\t1700000000000\t2\n"),
        ("%h", b"trace=1,empty=\n"),
        ("100%%", b"100%\n"),
        (r"a\\n", b"a\\n\n"),
        (r"\x41\x0a", b"A\n\n"),
        ("é", "é\n".encode()),
        ("", b"\n"),
        (r"\c", b""),
        (r"\\c", b"\\c\n"),
    ],
)
def test_formats_write_what_the_grammar_says(text: str, written: bytes) -> None:
    assert compile_format(text)(RECORD) == written


def test_null_is_written_as_nothing() -> None:
    assert compile_format("[%k][%v][%h]")(NOTHING) == b"[][][]\n"
    assert format_values(NOTHING) == b"\n"


def test_the_short_cut_is_the_default_format() -> None:
    assert format_values(RECORD) == compile_format("%v")(RECORD)


@pytest.mark.parametrize("text", ["%x", "%", "50%", "\\", r"\q", r"\xZZ", r"\x4"])
def test_what_is_not_in_the_grammar_is_named(text: str) -> None:
    with pytest.raises(ValueError, match="grammar"):
        compile_format(text)


@given(st.text(max_size=20))
def test_any_format_is_compiled_or_refused(text: str) -> None:
    with contextlib.suppress(ValueError):
        compile_format(text)(RECORD)


@given(st.none() | st.binary(max_size=50))
def test_bytes_survive_json(data: bytes | None) -> None:
    assert bytes_from_json(bytes_to_json(data)) == data


@pytest.mark.parametrize(
    "value", [1, True, [], {}, {"base64": 1}, {"base64": "!"}, {"base64": "", "x": 1}, "\ud800"]
)
def test_json_that_is_no_bytes_is_refused(value: object) -> None:
    with pytest.raises(ValueError):
        bytes_from_json(value)


@pytest.mark.parametrize("record", [RECORD, NOTHING])
def test_a_printed_json_line_can_be_produced_again(record: ConsumerRecord) -> None:
    again = parse_json_line(format_json(record))
    assert again == (
        record.value,
        record.key,
        record.headers,
        record.partition,
        record.timestamp_ms,
    )


# -- lines -----------------------------------------------------------------------------------------


class Dribble:
    """A stream that gives its bytes in the pieces that it was told to."""

    def __init__(self, pieces: list[bytes]) -> None:
        self._pieces = [piece for piece in pieces if piece]

    def read1(self, _size: int, /) -> bytes:
        return self._pieces.pop(0) if self._pieces else b""


def all_lines(pieces: list[bytes]) -> list[bytes]:
    return [line for lines in read_lines(Dribble(pieces)) for line in lines]


@pytest.mark.parametrize(
    ("data", "lines"),
    [
        (b"", []),
        (b"a", [b"a"]),
        (b"a\n", [b"a"]),
        (b"a\nb", [b"a", b"b"]),
        (b"\n", [b""]),
        (b"\n\na\n\n", [b"", b"", b"a", b""]),
        (b"a\r\n\0\xff\n", [b"a\r", b"\0\xff"]),
    ],
)
def test_lines_are_exact(data: bytes, lines: list[bytes]) -> None:
    assert all_lines([data]) == lines


@given(st.lists(st.binary(max_size=12).map(lambda piece: piece.replace(b"x", b"\n"))))
def test_chunks_do_not_matter(pieces: list[bytes]) -> None:
    whole = b"".join(pieces)
    expected = whole.removesuffix(b"\n").split(b"\n") if whole else []
    assert all_lines(pieces) == expected


def test_a_line_without_end_is_refused_before_it_fills_memory() -> None:
    with pytest.raises(ValueError, match="longer than 10 bytes"):
        list(read_lines(io.BufferedReader(io.BytesIO(b"a" * 11)), line_bytes_max=10))


def test_a_line_has_a_key_if_it_has_the_separator() -> None:
    values, keys = split_keys([b"k\tv\tw", b"v", b"\tv", b"k\t"], b"\t")
    assert values == [b"v\tw", b"v", b"v", b""]
    assert keys == [b"k", None, b"", b"k"]


@pytest.mark.parametrize(
    ("line", "record"),
    [
        (b'{"value": "v"}', InputRecord(b"v")),
        (b"{}", InputRecord(None)),
        (b'{"key": "k", "value": null}', InputRecord(None, b"k")),
        (b'{"value": {"base64": "/w=="}}', InputRecord(b"\xff")),
        (b'{"value": "v", "headers": {"a": "1"}}', InputRecord(b"v", headers=(("a", b"1"),))),
        (
            b'{"value": "v", "headers": [["a", "1"], ["a", null]]}',
            InputRecord(b"v", headers=(("a", b"1"), ("a", None))),
        ),
        (
            b'{"value": "v", "partition": 2, "timestamp_ms": 5}',
            InputRecord(b"v", partition=2, timestamp_ms=5),
        ),
        (b'{"value": "v", "topic": "t", "offset": 9, "leader_epoch": 0}', InputRecord(b"v")),
    ],
)
def test_json_lines_are_records(line: bytes, record: InputRecord) -> None:
    assert parse_json_line(line) == record


@pytest.mark.parametrize(
    ("line", "reason"),
    [
        (b"", "not JSON: invalid from line 1, column 1 on"),
        (b"v", "not JSON: invalid from line 1, column 1 on"),
        (b"[" * 100_000, "not JSON: nested too deeply"),
        (b'{"partition": ' + b"9" * 5_000 + b"}", "not JSON: a number is too long"),
        (b'{"value": "\xff"}', "not JSON: byte 12 is not UTF-8"),
        (b"[1]", "not an object such as"),
        (b'{"valeu": "v"}', "unknown field 'valeu'"),
        (b'{"value": 1}', "write text as a string"),
        (b'{"value": {"base64": "!"}}', "'!' is not base64"),
        (b'{"value": "\\ud800"}', "a string has half of a surrogate pair"),
        (b'{"partition": -1}', "partition is -1"),
        (b'{"partition": true}', "partition is True"),
        (b'{"timestamp_ms": "now"}', "timestamp_ms is 'now'"),
        (b'{"headers": "a"}', "headers are an object"),
        (b'{"headers": [["a"]]}', "is not a .name, value. pair"),
        (b'{"headers": {"\\ud800": "v"}}', "a string has half of a surrogate pair"),
    ],
    ids=lambda value: str(value)[:40],
)
def test_json_lines_that_are_no_records_are_refused(line: bytes, reason: str) -> None:
    with pytest.raises(ValueError, match=reason):
        parse_json_line(line)
