"""`raftlog sql`, mostly on the directory of a log: what it prints, and what it refuses."""

from __future__ import annotations

import csv
import io
import os
import signal
import stat
import threading
from collections.abc import Callable
from datetime import UTC, datetime
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest

from raftlog import Producer, limits
from raftlog import open as open_log
from raftlog.testing import Cluster
from raftlog_cli import sql
from tests.cli.conftest import Raftlog, Ran

pytest.importorskip("duckdb")
pa = pytest.importorskip("pyarrow")

Query = Callable[..., Ran]


@pytest.fixture(scope="module")
def directory(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("log") / "data"
    with open_log(path) as log:
        log.create_topic("clicks", 2)
        log.create_topic("my-topic")
        log.create_topic("My-Topic")
        with log.producer() as producer:
            for number in range(20):
                value = b'{"id": %d, "who": "u%d"}' % (number, number % 3)
                producer.send("clicks", value, partition=number % 2, timestamp_ms=0)
            producer.send("my-topic", b"\xff,x", "é".encode(), [("h", b"1")], timestamp_ms=1_500)
            producer.send("my-topic", None, b"k", timestamp_ms=2_000)
    return path


@pytest.fixture
def query(raftlog: Raftlog, directory: Path) -> Query:
    return lambda *arguments: raftlog("sql", *arguments, "--directory", directory)


def test_topics_are_tables(query: Query) -> None:
    ran = query("SELECT who, count(*) AS n FROM clicks GROUP BY ALL ORDER BY 1", "--value", "json")
    assert ran.out.decode().splitlines() == ["who  n", "u0   7", "u1   7", "u2   6"]
    text = 'SELECT count(*) AS n FROM clicks a, clicks b, "my-topic" WHERE a."offset" < 2;'
    assert query(text, "--json").json == {"n": 4 * 20 * 2}


def test_joins_that_need_columns_find_their_topics(query: Query) -> None:
    """DuckDB cannot say which tables such a query has without their columns."""
    text = """WITH later AS (SELECT key, timestamp AS since FROM "my-topic") SELECT later.key
        FROM later ASOF JOIN clicks ON since >= clicks.timestamp ORDER BY since"""
    assert query(text, "--format", "csv").out.decode().splitlines() == ["key", "é", "k"]
    text = 'SELECT count(*) AS n FROM clicks JOIN "my-topic" USING (partition)'
    assert query(text, "--json").json == {"n": 20}
    text = "PIVOT clicks ON partition USING count(*) GROUP BY timestamp"
    assert query(text, "--format", "csv").out.decode().splitlines()[1].endswith(",10,10")


def test_the_topics_are_listed(query: Query) -> None:
    found = query("show tables", "--format", "json").json_lines
    assert found == [{"name": "My-Topic"}, {"name": "clicks"}, {"name": "my-topic"}]


def test_json_and_csv_have_all_values(query: Query) -> None:
    first, second = query('SELECT * FROM "my-topic"', "--format", "json").json_lines
    assert first == {
        "partition": 0,
        "offset": 0,
        "timestamp": "1970-01-01T00:00:01.500000+00:00",
        "key": "é",
        "value": {"base64": "/yx4"},
        "headers": [{"key": "h", "value": "1"}],
    }
    assert (second["value"], second["headers"]) == (None, None)
    ran = query('SELECT key, value FROM "my-topic"', "--format", "csv")
    rows = [*csv.reader(io.StringIO(ran.out.decode()))]
    assert rows == [["key", "value"], ["é", "\\xff,x"], ["k", ""]]
    assert query("SELECT 1 AS n, 2 AS n", "--json").json == {"n": 1, "n_1": 2}


def test_a_file_is_replaced_only_by_a_whole_result(query: Query, tmp_path: Path) -> None:
    import pyarrow.parquet as pq

    file = tmp_path / "out.parquet"
    text = 'SELECT "offset" FROM clicks ORDER BY ALL'
    assert query(text, "--format", "parquet", "--output", file).status == 0
    assert pq.read_table(file).column("offset").to_pylist() == sorted([*range(10)] * 2)
    assert query(f"SELECT count(*) AS n FROM '{file}'", "--json").json == {"n": 20}
    bad = 'SELECT * FROM "my-topic"'
    failed = query(bad, "--value", "text", "--format", "parquet", "--output", file)
    assert (failed.status, pq.read_table(file).num_rows) == (1, 20)
    assert [*tmp_path.iterdir()] == [file]
    assert query(text, "--output", tmp_path / "t").status == 0
    assert (tmp_path / "t").read_text().splitlines()[:2] == ["offset", "0"]


def test_a_link_a_pipe_and_permissions_are_kept(query: Query, tmp_path: Path) -> None:
    target, link, pipe = tmp_path / "secret", tmp_path / "link", tmp_path / "pipe"
    target.touch(0o600)
    link.symlink_to(target)
    text = "SELECT 1 AS n"
    assert query(text, "--output", link).status == 0
    assert (link.is_symlink(), target.read_text()) == (True, "n\n1\n")
    assert stat.S_IMODE(target.stat().st_mode) == 0o600
    dangling = tmp_path / "dangling"
    dangling.symlink_to(tmp_path / "new")
    assert query(text, "--output", dangling).status == 0
    assert (tmp_path / "new").read_text() == "n\n1\n"
    os.mkfifo(pipe)
    reader = os.open(pipe, os.O_RDONLY | os.O_NONBLOCK)
    try:
        for path in (pipe, f"/dev/fd/{reader}"):
            assert query(text, "--output", path).status == 0
            assert os.read(reader, 100) == b"n\n1\n"
    finally:
        os.close(reader)
    assert pipe.is_fifo()


@pytest.mark.parametrize(
    ("arguments", "status", "noted"),
    [
        (["SELECT * FROM click"], 1, "topic 'click' does not exist. Did you mean 'clicks'?"),
        (["SELECT * FROM query"], 1, "topic 'query' does not exist"),  # not a name of Python
        (["SELEC 1"], 1, 'Parser Error: syntax error at or near "SELEC"'),
        (["SELECT nope FROM clicks"], 1, '"nope" not found'),
        (["INSERT INTO clicks VALUES (1)"], 2, "queries only read topics, such as 'clicks'"),
        (["SELECT 1; SELECT 2"], 2, "the query has 2 statements: write one"),
        (['FROM "my-topic", "My-Topic"'], 2, "differ only in case"),
        (["SELECT 1", "--follow"], 2, "Use Spark Structured Streaming"),
        (["SELECT 1", "--format", "parquet"], 2, "requires --output"),
        (["SELECT 1", "--format", "csv", "--json"], 2, "cannot be combined"),
        (["SELECT DATE 'infinity' AS \"d\""], 1, 'as text: CAST("d" AS VARCHAR)'),
        (["SELECT [TIMESTAMP '20000-01-01'] AS t", "--json"], 1, "column t: date value out of ran"),
        (["SELECT * FROM '/x/y.parquet'"], 1, "No files found"),
        (
            ['SELECT * FROM "my-topic"', "--value", "text"],
            1,
            "my-topic:0: the value at offset 0 is not text",
        ),
        (
            ['SELECT count(*) FROM "my-topic"', "--value", "json"],
            1,
            "raftlog: my-topic:0: the value at offset 0 is not a JSON object",
        ),
    ],
)
def test_errors_are_one_line_without_a_traceback(
    query: Query, arguments: list[str], status: int, noted: str
) -> None:
    ran = query(*arguments)
    assert ran.status == status
    assert noted in ran.err
    assert "Traceback" not in ran.err
    assert status == 2 or ran.err.count("\n") == 1


def test_without_duckdb_it_says_what_to_install(
    query: Query, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sql, "find_spec", lambda _name: None)
    ran = query("SELECT 1")
    assert (ran.status, "pip install -e '.[sql]'" in ran.err) == (1, True)


class Deaf:
    """A connection that ignores the first interruption, as DuckDB does between two steps."""

    def __init__(self, connection: Any) -> None:
        self._connection = connection
        self._calls = 0

    def __getattr__(self, name: str) -> Any:
        return getattr(self._connection, name)

    def interrupt(self) -> None:
        self._calls += 1
        if self._calls > 1:
            self._connection.interrupt()


def test_ctrl_c_ends_a_long_query() -> None:
    connection: Any = Deaf(sql._connect())
    tables = sql.Tables(connection, "127.0.0.1:1", None, {})
    # A shell lets its background jobs ignore the signal.
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    interrupt = threading.Timer(0.1, os.kill, (os.getpid(), signal.SIGINT))
    interrupt.start()
    try:
        with pytest.raises(KeyboardInterrupt):
            tables.run("SELECT sum(hash(range)) FROM range(100_000_000_000)")
    finally:
        signal.signal(signal.SIGINT, before)
    interrupt.join()
    assert tables._thread.submit(lambda: "free").result() == "free"


def test_duckdb_prints_no_progress_into_the_result() -> None:
    query = "SELECT current_setting('enable_progress_bar')"
    assert sql._connect().sql(query).fetchall() == [(False,)]


def test_a_table_has_a_limit_of_rows_and_says_so(
    query: Query, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(limits, "SQL_TABLE_ROWS_MAX", 3)
    ran = query("FROM clicks")
    assert ran.out.count(b"\n") == 4
    assert "only the first 3 rows are shown" in ran.err


@pytest.mark.parametrize(
    ("value", "shown", "text"),
    [
        (float("nan"), '"nan"', "nan"),
        ({"a": [b"\xff"]}, '{"a": [{"base64": "/w=="}]}', '{"a": [{"base64": "/w=="}]}'),
        (Decimal("1.50"), "1.50", "1.50"),
        (Decimal("2.00"), "2.00", "2.00"),  # as numbers: all values of a column have one type
        (
            [Decimal("0.00000001"), {"é": Decimal(-3)}],
            '[0.00000001, {"é": -3}]',
            '[0.00000001, {"é": -3}]',
        ),
        (Decimal(1 << 70), str(1 << 70), str(1 << 70)),
        (
            datetime(2026, 1, 1, tzinfo=UTC),
            '"2026-01-01T00:00:00+00:00"',
            "2026-01-01T00:00:00+00:00",
        ),
        (None, "null", ""),
        (True, "true", "True"),
    ],
)
def test_every_value_has_a_form_in_json_and_as_text(value: Any, shown: str, text: str) -> None:
    assert (sql.to_json(sql.to_plain(value)), sql.to_text(value)) == (shown, text)


@pytest.mark.integration
def test_topics_of_a_cluster_are_tables(raftlog: Raftlog, broker: Cluster) -> None:
    assert raftlog("topic", "create", "queried", "--bootstrap", broker.bootstrap).status == 0
    with Producer(broker.bootstrap) as producer:
        producer.send_many("queried", [b"%d" % number for number in range(100)])
    text = "SELECT sum(value::INT) AS s FROM queried"
    arguments = ("--value", "text", "--json", "--bootstrap", broker.bootstrap)
    assert raftlog("sql", text, *arguments).json == {"s": 4950}
    ran = raftlog("sql", "FROM querie", "--bootstrap", broker.bootstrap)
    assert (ran.status, "Did you mean 'queried'?" in ran.err) == (1, True)
