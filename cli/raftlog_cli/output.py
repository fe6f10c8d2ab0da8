"""Output of commands: JSON, tables, raw bytes, progress."""

from __future__ import annotations

import base64
import json
import os
import re
import shutil
import sys
import textwrap
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, Final, NamedTuple, Protocol, TypeAlias

import click

from raftlog import limits
from raftlog.errors import RaftlogError
from raftlog.types import ConsumerRecord, Header, Headers
from raftlog_cli.main import in_options


def to_json(value: Any) -> str:
    """Return one JSON value on one line."""
    return json.dumps(value, ensure_ascii=False)


def print_json(value: Any) -> None:
    click.echo(to_json(value))


def report(value: Any, text: str, *, as_json: bool) -> None:
    """Print the result of a command in one line: ``value`` as JSON, or ``text``."""
    click.echo(to_json(value) if as_json else text)


WIDE: Final = "raftlog.wide"  # key of the value of --wide in the context of a command
GAP: Final = "  "
CELL_WIDTH_MIN: Final = 20  # values are not shortened below this
_ELLIPSIS: Final = "…"


def print_table(
    columns: Sequence[str],
    rows: Iterable[Sequence[Any]],
    *,
    if_set: Collection[str] = (),
    drop: Sequence[str] = (),
    prose: str | None = None,
) -> None:
    """Print a table with aligned columns, none of which is folded.

    On a terminal, columns that do not fit are left out, and a line on stderr names them: first
    those in ``drop``, then the others from the last one on, never the first one. With --wide and
    elsewhere, all columns are printed.

    ``if_set``: columns that are printed only if a row has a value. ``prose``: a column of
    sentences, whose words continue on the next line on a terminal.
    """
    cells = [["" if cell is None else printable(str(cell)) for cell in row] for row in rows]
    wide = is_wide()
    shown = [
        number
        for number, name in enumerate(columns)
        if name not in if_set or wide or any(row[number] not in {"", "-"} for row in cells)
    ]
    table = [list(columns), *cells]
    omitted: list[str] = []
    short: set[int] = set()
    if sys.stdout.isatty() and not wide:
        width = shutil.get_terminal_size().columns
        short = _shorten(cells, shown, width, columns.index(prose) if prose else None)
        fitting = fit(table, shown, width, [columns.index(name) for name in (*drop,)], prose)
        omitted = [columns[number] for number in shown if number not in fitting]
        shown, short = fitting, short & {*fitting}
    for line in _lines(table, shown, prose):
        click.echo(line)
    if omitted or short:
        _note_omitted(omitted, has_short=bool(short))


def fit(
    table: Sequence[Sequence[str]],
    shown: Sequence[int],
    width: int,
    drop: Sequence[int] = (),
    prose: str | None = None,
    gap: int = len(GAP),
) -> list[int]:
    """Return the columns of ``table`` that fit into ``width``. The first row has their names."""
    left = list(shown)
    order = [number for number in drop if number in left]
    order += [number for number in reversed(left[1:]) if number not in order]
    widths = {number: _width(table, number) for number in left}
    for number in left:
        if table[0][number] == prose:
            widths[number] = min(widths[number], CELL_WIDTH_MIN)
            order = [each for each in order if each != number]
    for number in order:
        if sum(widths[each] for each in left) + gap * (len(left) - 1) <= width:
            break
        left.remove(number)
    return left


def _shorten(
    cells: Sequence[list[str]], shown: Sequence[int], width: int, prose: int | None
) -> set[int]:
    """Shorten values that are longer than half of the terminal. Returns their columns."""
    limit = max(CELL_WIDTH_MIN, width // 2)
    found = set()
    for row in cells:
        for number in shown:
            if number != prose and cell_len(row[number]) > limit:
                row[number] = shortened(row[number], limit)
                found.add(number)
    return found


def shortened(text: str, width: int | None) -> str:
    """Return ``text`` in at most ``width`` characters: its beginning and its end."""
    if width is None or len(text) <= width:
        return text
    end = (width - 1) // 3
    return f"{text[: width - 1 - end]}{_ELLIPSIS}{text[-end:] if end else ''}"


def _lines(
    table: Sequence[Sequence[str]], shown: Sequence[int], prose: str | None
) -> Iterator[str]:
    widths = {number: _width(table, number) for number in shown}
    is_terminal = sys.stdout.isatty()
    wrapped = next((number for number in shown if table[0][number] == prose), None)
    if is_terminal and wrapped is not None and not is_wide():
        others = sum(width + len(GAP) for number, width in widths.items() if number != wrapped)
        room = shutil.get_terminal_size().columns - others
        widths[wrapped] = min(widths[wrapped], max(room, CELL_WIDTH_MIN))
    for at, row in enumerate(table):
        parts = {number: [row[number]] for number in shown}
        if is_terminal and wrapped is not None:
            parts[wrapped] = textwrap.wrap(
                row[wrapped], widths[wrapped], break_long_words=False, break_on_hyphens=False
            ) or [""]
        for line in range(max(map(len, parts.values()))):
            texts = [
                (parts[number][line] if line < len(parts[number]) else "", widths[number])
                for number in shown
            ]
            yield GAP.join(text + " " * (width - cell_len(text)) for text, width in texts).rstrip()
        if at == 0 and is_terminal:
            yield GAP.join("─" * widths[number] for number in shown)


def _width(table: Sequence[Sequence[str]], number: int) -> int:
    return max(cell_len(row[number]) for row in table)


def cell_len(text: str) -> int:
    """Return the number of terminal columns of ``text``."""
    if text.isascii() or text == _ELLIPSIS:
        return len(text)
    from rich.cells import cell_len as measured

    return measured(text)


def is_wide() -> bool:
    """Return whether the command has --wide."""
    context = click.get_current_context(silent=True)
    return bool(context and context.meta.get(WIDE))


def _note_omitted(omitted: Sequence[str], *, has_short: bool) -> None:
    parts = []
    if omitted:
        parts.append(f"not shown: {', '.join(omitted)}")
    if has_short:
        parts.append("long values are shortened")
    context = click.get_current_context(silent=True)
    hint = " (--wide shows all)" if context and WIDE in context.meta else ""
    note(f"{'; '.join(parts)}{hint}")


def printable(text: str) -> str:
    """Return ``text`` without control characters, such as escape sequences."""
    if text.isprintable():
        return text
    return "".join(char if char.isprintable() else "\N{REPLACEMENT CHARACTER}" for char in text)


def clear() -> None:
    """Clear the terminal before a repeated display. No effect if stdout is no terminal."""
    if sys.stdout.isatty():
        click.clear()


def write_bytes(data: bytes) -> None:
    """Write exactly these bytes to standard output, and flush it."""
    stdout = sys.stdout.buffer
    stdout.write(data)
    stdout.flush()


def note(text: str) -> None:
    """Print a line for the user on stderr, apart from the results on stdout."""
    click.echo(text, err=True)


def note_error(error: RaftlogError) -> None:
    """Print an error after which the command continues."""
    note(f"raftlog: {in_options(str(error))}")


Advance = Callable[[int], None]


@contextmanager
def progress(
    description: str, total: int | None = None, *, hidden: bool = False
) -> Iterator[Advance]:
    """Show a progress bar on stderr while the block runs.

    No bar is shown if stderr is no terminal, or with ``hidden``, for example because it would
    overwrite typed input.
    """
    if hidden or not sys.stderr.isatty():
        yield lambda _count: None
        return
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn())
    with Progress(
        *columns, TimeElapsedColumn(), console=Console(stderr=True), transient=True
    ) as bar:
        task = bar.add_task(description, total=total)
        yield lambda count: bar.update(task, advance=count)


# -- formats ---------------------------------------------------------------------------------------
#
# Text formats of records, written and parsed in bounded memory. Pure.


Formatter: TypeAlias = Callable[[ConsumerRecord], bytes]

DEFAULT_FORMAT: Final = "%v"

_TOKEN: Final = re.compile(r"%.|\\x[0-9a-fA-F]{2}|\\.|[%\\]$|[^%\\]+", re.DOTALL)
_ESCAPES: Final = {"n": b"\n", "t": b"\t", "r": b"\r", "0": b"\0", "\\": b"\\"}


def _headers(headers: Headers) -> bytes:
    return b",".join(key.encode() + b"=" + (value or b"") for key, value in headers)


_FIELDS: Final[dict[str, Formatter]] = {
    "t": lambda record: record.topic.encode(),
    "p": lambda record: b"%d" % record.partition,
    "o": lambda record: b"%d" % record.offset,
    "k": lambda record: record.key or b"",
    "v": lambda record: record.value or b"",
    "T": lambda record: b"%d" % record.timestamp_ms,
    "h": lambda record: _headers(record.headers),
    "e": lambda record: b"%d" % record.leader_epoch,
}


def _literal(data: bytes) -> Formatter:
    return lambda _record: data


def compile_format(text: str) -> Formatter:
    """Return a function that formats one record. Raises ``ValueError`` for an unknown field."""
    ends_bare = text.endswith("\\c") and not text.endswith("\\\\c")
    tokens = _TOKEN.findall(text.removesuffix("\\c") if ends_bare else text)
    parts = [_part(token) for token in tokens]
    if not ends_bare and (not tokens or tokens[-1] != "\\n") and not text.endswith("\n"):
        parts.append(_literal(b"\n"))
    return lambda record: b"".join([part(record) for part in parts])


def _part(token: str) -> Formatter:
    if token[0] not in "%\\":
        return _literal(os.fsencode(token))
    if token == "%%":  # noqa: S105 - not a secret
        return _literal(b"%")
    if token[0] == "%" and token[1:] in _FIELDS:
        return _FIELDS[token[1:]]
    if token.startswith("\\x"):
        return _literal(bytes.fromhex(token[2:])) if len(token) == 4 else _refuse(token)
    if token[0] == "\\" and token[1:] in _ESCAPES:
        return _literal(_ESCAPES[token[1:]])
    return _refuse(token)


def _refuse(token: str) -> Formatter:
    raise ValueError(
        f"{token!r} is not in the format's grammar: "
        r"%t %p %o %k %v %T %h %e %% \n \t \r \0 \\ \xHH"
    )


def format_values(record: ConsumerRecord) -> bytes:
    """Format a record as ``compile_format("%v")`` does, but faster. Default of `raftlog tail`."""
    return (record.value or b"") + b"\n"


# -- JSON ------------------------------------------------------------------------------------------


def bytes_to_json(data: bytes | None) -> Any:
    """Return UTF-8 text as a string, other bytes as ``{"base64": ...}``, null as null."""
    if data is None:
        return None
    try:
        return data.decode()
    except UnicodeDecodeError:
        return {"base64": base64.b64encode(data).decode()}


def bytes_from_json(value: Any) -> bytes | None:
    """Return the bytes of a result of ``bytes_to_json``. Raises ``ValueError`` with the reason."""
    if value is None:
        return None
    if isinstance(value, str):
        try:
            return value.encode()
        except UnicodeEncodeError:
            raise ValueError("a string has half of a surrogate pair") from None
    if isinstance(value, dict) and value.keys() == {"base64"} and isinstance(value["base64"], str):
        try:
            return base64.b64decode(value["base64"], validate=True)
        except ValueError:
            raise ValueError(f"{value['base64'][:40]!r} is not base64") from None
    raise ValueError('write text as a string, other bytes as {"base64": "..."}, nothing as null')


def parse_json(text: str | bytes) -> Any:
    """Parse a JSON value. Raises ``ValueError`` with the reason."""
    try:
        return json.loads(text)
    except (ValueError, RecursionError) as error:
        raise ValueError(f"not JSON: {json_problem(error)}") from None


def json_problem(error: ValueError | RecursionError) -> str:
    """Return why a text is not JSON, in words of raftlog."""
    if isinstance(error, UnicodeDecodeError):
        return f"byte {error.start + 1} is not UTF-8"
    if isinstance(error, json.JSONDecodeError):
        return f"invalid from line {error.lineno}, column {error.colno} on"
    return "a number is too long" if isinstance(error, ValueError) else "nested too deeply"


def format_json(record: ConsumerRecord) -> bytes:
    """Return one JSON object and a newline."""
    fields = {
        "topic": record.topic,
        "partition": record.partition,
        "offset": record.offset,
        "key": bytes_to_json(record.key),
        "value": bytes_to_json(record.value),
        "headers": [[key, bytes_to_json(value)] for key, value in record.headers],
        "timestamp_ms": record.timestamp_ms,
        "leader_epoch": record.leader_epoch,
    }
    return json.dumps(fields, ensure_ascii=False).encode() + b"\n"


# -- lines to records ------------------------------------------------------------------------------


CHUNK_BYTES: Final = limits.MIB
# Output of `tail --json` that a producer cannot set: ignored, so that the output can be sent.
_IGNORED: Final = {"topic", "offset", "leader_epoch"}
_INPUT_FIELDS: Final = {"key", "value", "headers", "partition", "timestamp_ms"}


class ReadableStream(Protocol):
    """Binary stream whose ``read1`` returns available bytes, such as a line typed at a terminal."""

    def read1(self, size: int, /) -> bytes: ...


class InputRecord(NamedTuple):
    """One record to send. The producer selects fields that are None."""

    value: bytes | None
    key: bytes | None = None
    headers: Headers = ()
    partition: int | None = None
    timestamp_ms: int | None = None


def read_lines(
    stream: ReadableStream, *, line_bytes_max: int = limits.BATCH_BYTES_MAX
) -> Iterator[list[bytes]]:
    """Yield the lines of each chunk. Raises ``ValueError`` if one exceeds ``line_bytes_max``.

    The bytes of a line are unchanged, without the newline. The last line may lack a newline.
    """
    pending: list[bytes] = []  # chunks of an incomplete line
    pending_bytes = 0
    while chunk := stream.read1(CHUNK_BYTES):
        head, *lines = chunk.split(b"\n")
        pending_bytes += len(head)
        if pending_bytes > line_bytes_max:
            raise ValueError(f"a line is longer than {line_bytes_max} bytes")
        pending.append(head)
        if lines:
            tail = lines.pop()
            yield [b"".join(pending), *lines]
            pending, pending_bytes = [tail], len(tail)
    if pending_bytes:
        yield [b"".join(pending)]


def split_keys(lines: list[bytes], separator: bytes) -> tuple[list[bytes], list[bytes | None]]:
    """Return values and keys. A line without the separator is a value without a key."""
    values: list[bytes] = []
    keys: list[bytes | None] = []
    for line in lines:
        key, found, value = line.partition(separator)
        values.append(value if found else line)
        keys.append(key if found else None)
    return values, keys


def parse_json_line(line: bytes) -> InputRecord:
    """Parse one line of ``--jsonl``. Raises ``ValueError`` with the reason."""
    fields = parse_json(line)
    if not isinstance(fields, dict):
        raise ValueError('not an object such as {"key": "k", "value": "v"}')
    unknown = fields.keys() - _INPUT_FIELDS - _IGNORED
    if unknown:
        known = ", ".join(sorted(_INPUT_FIELDS))
        raise ValueError(f"unknown field {min(unknown)!r}. The fields are {known}")
    return InputRecord(
        value=bytes_from_json(fields.get("value")),
        key=bytes_from_json(fields.get("key")),
        headers=_input_headers(fields.get("headers")),
        partition=_whole_number(fields, "partition"),
        timestamp_ms=_whole_number(fields, "timestamp_ms"),
    )


def _whole_number(fields: dict[str, Any], name: str) -> int | None:
    value = fields.get(name)
    if value is None or (type(value) is int and value >= 0):
        return value
    raise ValueError(f"{name} is {value!r}, not a whole number from 0")


def _input_headers(value: Any) -> Headers:
    """Return the headers of an object or of pairs, which can repeat names and keep their order."""
    pairs = list(value.items()) if isinstance(value, dict) else value or []
    if not isinstance(pairs, list):
        raise ValueError("headers are an object, or a list of [name, value] pairs")
    return tuple(_header(pair) for pair in pairs)


def _header(pair: Any) -> Header:
    if not (isinstance(pair, list | tuple) and len(pair) == 2 and isinstance(pair[0], str)):
        raise ValueError(f"{pair!r} is not a [name, value] pair")
    bytes_from_json(pair[0])  # raises for a name that has no bytes
    return pair[0], bytes_from_json(pair[1])
