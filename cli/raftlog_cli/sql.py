"""``raftlog sql``: a query of DuckDB, whose tables are topics."""

from __future__ import annotations

import csv
import json
import math
import os
import re
import stat
import sys
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor, wait
from contextlib import contextmanager, suppress
from decimal import Decimal
from importlib.util import find_spec
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, NamedTuple, TextIO

import click

from raftlog import limits
from raftlog.client.scan import ON_ERROR, VALUES, ClusterSource, Scan
from raftlog.client.threads import wait_once
from raftlog.errors import InvalidTopicError, RaftlogError, UnknownTopicError
from raftlog.install import install_command
from raftlog_cli import options, output
from raftlog_cli.main import Failed
from raftlog_cli.output import bytes_to_json

if TYPE_CHECKING:
    import duckdb
    import pyarrow as pa

    from raftlog.client.scan_dataset import ScanDataset

FORMATS: Final = ("table", "json", "csv", "parquet")
ROWS_PER_BATCH: Final = 10_000  # of a result
INTERRUPT_INTERVAL: Final = 0.05  # seconds between requests to DuckDB to end a query


@click.command()
@click.argument("query")
@click.option(
    "--value",
    type=click.Choice(VALUES),
    default="raw",
    show_default=True,
    help="Type of the values: bytes, text (UTF-8), or JSON objects or values with the ID of a "
    "schema, whose fields become columns.",
)
@click.option(
    "--on-error",
    type=click.Choice(ON_ERROR),
    default="raise",
    show_default=True,
    help="For a value that is not of this type: fail, or return null.",
)
@click.option(
    "--directory",
    metavar="DIR",
    help="Read a data directory or a backup instead of a cluster; no broker is needed.",
)
@click.option("--format", "form", type=click.Choice(FORMATS), help="Format.  [default: table]")
@click.option(
    "-O",
    "--output",
    "file",
    type=click.Path(dir_okay=False, path_type=Path),
    metavar="FILE",
    help="Write the result to this file, which is replaced when the query has succeeded, or to "
    "this pipe or device.",
)
@click.option("--follow", is_flag=True, help="Not available: use Spark for standing queries.")
@options.as_json
@options.wide
@options.bootstrap
def sql(
    query: str,
    value: str,
    on_error: str,
    directory: str | None,
    form: str | None,
    file: Path | None,
    follow: bool,
    as_json: bool,
    bootstrap: str,
) -> None:
    """Query topics with SQL, as tables.

    The query is one statement of DuckDB. A topic is a table with the columns partition, offset,
    timestamp, key, value and headers; write names such as "my-topic" and "offset" in double quotes.
    It contains the records that are committed when the query starts. Conditions on partition,
    offset and timestamp limit what is read. DuckDB can also read files, as in FROM 'users.parquet'.

    With --value json the fields of the value become columns. Their types are those of the first
    records; --on-error null accepts others. With --value typed they are those of the latest
    schema of TOPIC-value in the registry.

    \b
    --format:  table    aligned columns, the first 10,000 rows
               json     one object per line; bytes that are not UTF-8 are {"base64": ...}
               csv      with a line of names
               parquet  requires --output

    \b
    Example:
      raftlog sql 'SELECT status, count(*) AS n FROM clicks GROUP BY ALL' --value json
      raftlog sql 'SELECT * FROM clicks' --format parquet --output clicks.parquet
    """
    if follow:
        raise click.UsageError(
            "--follow is not available: DuckDB has no standing queries. Use Spark Structured "
            "Streaming for them, for example with windows: "
            'spark.readStream.format("raftlog"), see docs/how-to/use-spark.md'
        )
    if as_json and form not in {None, "json"}:
        raise click.UsageError(f"--json cannot be combined with --format {form}")
    form = "json" if as_json else form or "table"
    if form == "parquet" and file is None:
        raise click.UsageError("--format parquet requires --output FILE")
    connection = _connect()
    tables = Tables(connection, bootstrap, directory, {"value": value, "on_error": on_error})
    with tables.errors():
        result = tables.run(query)
        if result is None:
            return
        if form == "parquet":
            assert file is not None, "checked above"
            with _replaced(file) as path:
                write_parquet(result, path)
            return
        write = {"table": write_table, "json": write_json, "csv": write_csv}[form]
        if file is None:
            write(result, sys.stdout)
            return
        with _replaced(file) as path, path.open("w", encoding="utf-8", newline="") as stream:
            write(result, stream)


def _connect() -> duckdb.DuckDBPyConnection:
    for module in ("duckdb", "pyarrow"):
        if find_spec(module) is None:
            raise Failed(f"raftlog sql needs {module}. Run: {install_command('sql')}")
    import duckdb

    # Without variables of this program as tables.
    connection = duckdb.connect(config={"python_enable_replacements": False})
    connection.execute("SET enable_progress_bar = false")  # it is printed to standard output
    with suppress(duckdb.Error):  # an extension of DuckDB, which its wheels contain
        connection.execute("SET TimeZone='UTC'")
    return connection


_SHOW_TABLES: Final = re.compile(r"\s*SHOW\s+(?:ALL\s+)?TABLES\s*;?\s*", re.IGNORECASE)
_WORDS: Final = re.compile(r'"((?:[^"]|"")+)"|(\w+)')  # a name in quotes, or without
_WRITING: Final = frozenset(("ALTER", "DELETE", "DROP", "INSERT", "MERGE_INTO", "UPDATE"))


class Result(NamedTuple):
    """Rows of a query."""

    schema: pa.Schema
    batches: Iterator[pa.RecordBatch]


class Tables:
    """Topics as tables of a connection of DuckDB."""

    def __init__(
        self,
        connection: duckdb.DuckDBPyConnection,
        bootstrap: str,
        directory: str | None,
        settings: dict[str, Any],
    ) -> None:
        """``settings``: arguments of each ``Scan``."""
        self._connection = connection
        self._settings = settings
        self._thread = ThreadPoolExecutor(1)
        self._missing: list[UnknownTopicError] = []
        self._read: list[ScanDataset] = []
        self._tables: dict[str, str] = {}  # topics by the names that DuckDB compares
        if directory is None:
            self._source: Any = ClusterSource(bootstrap)
        else:
            from raftlog.scanning import source_in

            self._source = source_in(directory)

    def run(self, query: str) -> Result | None:
        """Return the rows of the query; None for a statement without rows."""
        statements = self._connection.extract_statements(query)
        if len(statements) != 1:
            raise click.UsageError(f"the query has {len(statements)} statements: write one")
        if _SHOW_TABLES.fullmatch(query):
            import pyarrow as pa

            schema = pa.schema([("name", pa.string())])
            return Result(schema, iter([pa.record_batch([self._source.topics()], schema=schema)]))
        if statements[0].type.name in _WRITING and (topics := self._mentioned(query)):
            raise click.UsageError(
                f"queries only read topics, such as {topics[0]!r}. Write records with `raftlog "
                "produce`, and delete with `raftlog topic delete`"
            )
        for name in self._names(query):
            self._add(name)
        relation: Any = self._interruptible(lambda: self._connection.sql(query))
        if relation is None:
            return None
        # The second name is that of DuckDB 1.
        read = getattr(relation, "to_arrow_reader", None) or relation.fetch_record_batch
        rows = self._interruptible(lambda: read(ROWS_PER_BATCH))
        return Result(rows.schema, self._batches(rows))

    def _names(self, query: str) -> list[str]:
        """Return the names of the tables in the query."""
        import duckdb

        try:
            return sorted(self._connection.get_table_names(query))
        except (duckdb.BinderException, duckdb.InvalidInputException):
            # It binds the query to tables without columns: ASOF and NATURAL joins, USING and PIVOT
            # need some. Other errors are raised again by the query itself.
            return self._mentioned(query)

    def _mentioned(self, query: str) -> list[str]:
        """Return the topics whose names are words of the query."""
        words = {(quoted or word).replace('""', '"') for quoted, word in _WORDS.findall(query)}
        topics = self._source.topics()
        found = [topic for topic in topics if topic in words]
        # DuckDB ignores case.
        others = {word.lower() for word in words} - {topic.lower() for topic in found}
        return found + [topic for topic in topics if topic.lower() in others]

    def _batches(self, rows: pa.RecordBatchReader) -> Iterator[pa.RecordBatch]:
        while (batch := self._interruptible(lambda: next(rows, None))) is not None:
            yield batch

    def _interruptible(self, work: Callable[[], Any]) -> Any:
        """Call ``work`` in a thread: in the main thread, DuckDB would not see Ctrl-C."""
        try:
            running = self._thread.submit(work)
            # ``result`` alone would not see a signal that comes just before it waits.
            wait_once(lambda release: running.add_done_callback(lambda _: release()), None)
            return running.result()
        except KeyboardInterrupt:
            # DuckDB ignores it between the steps of a query: until the thread has nothing to do.
            idle = self._thread.submit(lambda: None)
            while not wait([idle], INTERRUPT_INTERVAL).done:
                self._connection.interrupt()
            raise

    def _add(self, name: str) -> None:
        """Add the topic as a table. The name can also be that of a file, or of a view of DuckDB."""
        try:
            scan = Scan(self._source, name, **self._settings)
            scan.schema  # noqa: B018 - errors of the topic are raised here, and not by DuckDB
        except UnknownTopicError as error:
            self._missing.append(error)
            return
        except InvalidTopicError:  # the path of a file
            return
        other = self._tables.setdefault(name.lower(), name)
        if other != name:
            raise click.UsageError(
                f"the topics {other!r} and {name!r} differ only in case: DuckDB ignores it. Query "
                "one of them, or copy the other one to a file"
            )
        table = scan.dataset()
        self._read.append(table)
        self._connection.register(name, table)

    @contextmanager
    def errors(self) -> Iterator[None]:
        """Raise errors of DuckDB as those of the command."""
        import duckdb

        try:
            yield
        except duckdb.Error as error:
            for table in self._read:
                if isinstance(table.failure, RaftlogError):
                    raise table.failure from error
            if isinstance(error, duckdb.CatalogException) and self._missing:
                raise Failed(str(self._missing[0])) from error  # it has similar names
            raise Failed(str(error)) from error


# -- output ----------------------------------------------------------------------------------------

Rows = Iterator[tuple[Any, ...]]


def rows_of(result: Result, convert: Callable[[Any], Any]) -> Rows:
    for batch in result.batches:
        columns = [
            map(convert, _values_of(name, column))
            for name, column in zip(batch.schema.names, batch.columns, strict=True)
        ]
        yield from zip(*columns, strict=True)


def _values_of(name: str, column: pa.Array) -> list[Any]:
    try:
        return column.to_pylist()  # type: ignore[no-any-return]
    except (OverflowError, ValueError) as error:  # such as of DATE 'infinity'
        quoted = '"' + name.replace('"', '""') + '"'
        raise Failed(
            f"column {name}: {error}. Dates and times outside of the years 1 to 9999 can be "
            f"written as text: CAST({quoted} AS VARCHAR)"
        ) from error


def write_table(result: Result, stream: TextIO) -> None:
    rows = rows_of(result, to_text)
    shown = list(islice(rows, limits.SQL_TABLE_ROWS_MAX))
    names = result.schema.names
    if stream is sys.stdout:
        output.print_table(names, shown)
    else:
        widths = [max(map(len, column)) for column in zip(names, *shown, strict=True)]
        for row in (names, *shown):
            cells = (cell.ljust(width) for cell, width in zip(row, widths, strict=True))
            print(output.GAP.join(cells).rstrip(), file=stream)
    if next(rows, None) is not None:
        output.note(
            f"only the first {limits.SQL_TABLE_ROWS_MAX:,} rows are shown. --format csv, json or "
            "parquet writes all"
        )


def write_json(result: Result, stream: TextIO) -> None:
    names = unique(result.schema.names)
    for row in rows_of(result, to_plain):
        print(to_json(dict(zip(names, row, strict=True))), file=stream)


def write_csv(result: Result, stream: TextIO) -> None:
    writer = csv.writer(stream, lineterminator="\n")
    writer.writerow(result.schema.names)
    writer.writerows(rows_of(result, to_text))


def write_parquet(result: Result, path: Path) -> None:
    import pyarrow.parquet as pq

    with pq.ParquetWriter(path, result.schema) as writer:
        for batch in result.batches:
            writer.write_batch(batch)


@contextmanager
def _replaced(path: Path) -> Iterator[Path]:
    """Return a path to write, which then replaces the file; removed after an error.

    The file is that of a link, and keeps its permissions. Devices and pipes, such as /dev/stdout,
    are written themselves.
    """
    mode = path.stat().st_mode if path.exists() else None
    is_special = any(path.is_relative_to(each) for each in ("/dev", "/proc"))
    if is_special or not (mode is None or stat.S_ISREG(mode)):
        yield path
        return
    path = path.resolve()
    made = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        made.touch()
        if mode is not None:
            made.chmod(stat.S_IMODE(mode))
        yield made
        made.replace(path)
    finally:
        made.unlink(missing_ok=True)


def unique(names: Sequence[str]) -> list[str]:
    """Return different names: a second "n" is "n_1"."""
    found: dict[str, None] = {}
    for name in names:
        number, free = 0, name
        while free in found:
            number += 1
            free = f"{name}_{number}"
        found[free] = None
    return list(found)


def to_plain(value: Any) -> Any:
    """Return a value of a result for ``to_json``. Numbers that JSON has not become texts."""
    if isinstance(value, bytes):
        return bytes_to_json(value)
    if isinstance(value, float) and not math.isfinite(value):
        return str(value)
    if isinstance(value, dict):
        return {str(key): to_plain(each) for key, each in value.items()}
    if isinstance(value, list | tuple):
        return [to_plain(each) for each in value]
    if value is None or isinstance(value, str | bool | int | float | Decimal):
        return value
    return value.isoformat() if hasattr(value, "isoformat") else str(value)


def to_text(value: Any) -> str:
    """Return a value of a result as a cell: null is empty, nested values are JSON."""
    if value is None:
        return ""
    if isinstance(value, bytes):
        return value.decode("utf-8", "backslashreplace")
    plain = to_plain(value)
    return to_json(plain) if isinstance(plain, dict | list | Decimal) else str(plain)


def to_json(plain: Any) -> str:
    """Return a result of ``to_plain`` as JSON: a decimal is a number with all of its digits."""
    try:
        return json.dumps(plain, ensure_ascii=False)
    except TypeError:  # it has decimals
        pass
    if isinstance(plain, Decimal):
        return f"{plain:f}"
    if isinstance(plain, dict):
        return f"{{{', '.join(f'{to_json(key)}: {to_json(each)}' for key, each in plain.items())}}}"
    return f"[{', '.join(map(to_json, plain))}]"
