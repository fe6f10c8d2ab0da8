"""How Spark comes to know the format: by itself, or by hand next to a package that is broken."""

from __future__ import annotations

import subprocess
import sys
import textwrap
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

import pyspark_raftlog
from pyspark_raftlog import DefaultSource
from pyspark_raftlog.reader import BatchReader
from pyspark_raftlog.schema import read_schema
from pyspark_raftlog.source import RaftlogDataSource
from tests.spark_source.fixtures import LoadFunction, NewTopicFunction

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

ROOT = Path(__file__).resolve().parents[2]
OPTIONS = {"bootstrap.servers": "127.0.0.1:1", "subscribe": "t"}


def python(script: str) -> str:
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(script)],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.mark.integration
def test_registering_by_itself_imports_nothing_heavy() -> None:
    """Every Spark session of whoever has raftlog installed imports it."""
    loaded = python(
        """
        import sys
        import pyspark.sql.datasource
        before = set(sys.modules)
        import pyspark_raftlog
        assert pyspark_raftlog.DefaultSource.name() == "raftlog"
        print(sorted(set(sys.modules) - before))
        """
    )
    assert loaded == "['pyspark_raftlog']\n"


@pytest.mark.integration
def test_the_package_imports_neither_arrow_nor_the_client_before_it_has_to() -> None:
    loaded = python(
        """
        import sys
        import pyspark_raftlog
        pyspark_raftlog.register, dir(pyspark_raftlog)
        heavy = {"pyarrow", "msgpack", "numpy", "raftlog.client", "msgspec"}
        print(sorted(heavy & set(sys.modules)))
        """
    )
    assert loaded == "[]\n"


@pytest.mark.integration
def test_spark_finds_the_format_by_itself() -> None:
    """By the very function that Spark's driver calls to look for formats."""
    found = python(
        """
        from pyspark.sql.worker.lookup_data_sources import _main
        from pyspark.worker_util import pickleSer
        import io
        from pyspark.serializers import read_int, UTF8Deserializer
        written = io.BytesIO()
        _main(io.BytesIO(), written)
        written.seek(0)
        for _ in range(read_int(written)):
            name = UTF8Deserializer().loads(written)
            print(name, pickleSer.load_stream(written).__next__().__module__)
        """
    )
    assert "raftlog pyspark_raftlog\n" in found


def test_what_it_finds_is_the_source() -> None:
    found, source = DefaultSource(OPTIONS), RaftlogDataSource(OPTIONS)
    assert found.name() == source.name()
    assert found.schema() == source.schema()
    reader = found.reader(read_schema())
    assert isinstance(reader, BatchReader)
    ours = {name for name in vars(DefaultSource) if not name.startswith("_")}
    assert ours == {name for name in vars(RaftlogDataSource) if not name.startswith("_")}


def test_public_names_are_found_and_others_are_not() -> None:
    for name in pyspark_raftlog.__all__:
        assert getattr(pyspark_raftlog, name).__name__ == name
    assert dir(pyspark_raftlog) == sorted(pyspark_raftlog.__all__)
    with pytest.raises(AttributeError, match=r"'pyspark_raftlog' has no attribute 'nothing'"):
        _ = pyspark_raftlog.nothing


@pytest.mark.spark
def test_registering_by_hand_works_beside_a_broken_package(
    spark: SparkSession, load: LoadFunction, new_topic: NewTopicFunction
) -> None:
    """The session's own search for formats fails: see ``conftest.py``."""
    with pytest.raises(ImportError, match="broken on purpose"):
        _import_the_neighbour(spark)
    assert load(new_topic()).count() == 0


def _import_the_neighbour(spark: SparkSession) -> None:
    """On a worker, where it is on the path."""

    def attempt(_: object) -> list[str]:
        try:
            __import__("pyspark_broken_neighbour")
        except ImportError as error:
            return [str(error)]
        return []

    problems = spark.sparkContext.parallelize([0], 1).mapPartitions(attempt).collect()
    for problem in problems:
        raise ImportError(problem)
