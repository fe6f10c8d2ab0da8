"""One Spark session and one cluster of three brokers, which all tests of the data source share.

A test makes topics of its own with ``new_topic``. A test that kills something starts a cluster of
its own. A broken ``pyspark_*`` package lies beside ours all the while: Spark then registers no
source by itself, and what is registered by hand has to work all the same.
"""

from __future__ import annotations

import itertools
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

import pyspark_raftlog
from raftlog import Admin, NewTopic
from raftlog.testing import Cluster, cluster
from raftlog.testing.fork_server import python_path
from tests.spark_source.fixtures import NO_JAVA, LoadFunction, NewTopicFunction, has_java

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture(scope="session")
def spark(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SparkSession]:
    """A local Spark with two slots, in which a task is tried three times. Time zone: UTC."""
    if not has_java():
        pytest.fail(NO_JAVA)
    from pyspark.sql import SparkSession

    directory = tmp_path_factory.mktemp("spark")
    neighbour = directory / "neighbours" / "pyspark_broken_neighbour"
    neighbour.mkdir(parents=True)
    (neighbour / "__init__.py").write_text('raise ImportError("broken on purpose")\n')
    builder = (
        SparkSession.builder.master("local[2,3]")
        .appName("tests of raftlog")
        .config("spark.driver.host", "127.0.0.1")
        .config("spark.driver.memory", "1g")
        .config("spark.local.dir", str(directory / "local"))
        .config("spark.sql.session.timeZone", "UTC")
        .config("spark.sql.shuffle.partitions", "2")
        .config("spark.sql.streaming.stopTimeout", "30s")
        .config("spark.sql.warehouse.dir", str(directory / "warehouse"))
        .config("spark.ui.enabled", "false")
        .config("spark.ui.showConsoleProgress", "false")
    )
    with pytest.MonkeyPatch.context() as environment:
        # Workers are new processes: by default they run any python3, with a sys.path of its own.
        # Java keeps what it is started with, so nobody else has to see it.
        environment.setenv("PYSPARK_PYTHON", sys.executable)
        environment.setenv("PYSPARK_DRIVER_PYTHON", sys.executable)
        environment.setenv("PYTHONPATH", str(neighbour.parent))
        environment.setenv("PYTHONPATH", python_path(ROOT)["PYTHONPATH"])
        environment.setenv("SPARK_LOCAL_IP", "127.0.0.1")
        session = builder.getOrCreate()
    session.sparkContext.setLogLevel("OFF")  # tasks that fail on purpose say much
    pyspark_raftlog.register(session)
    yield session
    session.stop()


@pytest.fixture(scope="session")
def brokers() -> Iterator[Cluster]:
    """Three brokers. For topics of the tests' own; nothing else of it may be changed."""
    with cluster(brokers=3, with_relays=False) as running:
        yield running


@pytest.fixture(scope="session")
def admin(brokers: Cluster) -> Iterator[Admin]:
    """An admin client of ``brokers``."""
    with Admin(brokers.bootstrap) as client:
        yield client


@pytest.fixture(scope="session")
def new_topic(admin: Admin) -> NewTopicFunction:
    """Makes a topic: ``new_topic(partitions=1, name=None, **config)`` -> its name, a new one.

    Underscores in the names of settings stand for dots: ``retention_ms="1000"``. By default
    nothing is ever too old: tests write records of 1970.
    """
    numbers = itertools.count(1)

    def make(partitions: int = 1, *, name: str | None = None, **config: str) -> str:
        name = name or f"topic-{next(numbers)}"
        settings = {key.replace("_", "."): value for key, value in config.items()}
        settings.setdefault("retention.ms", "-1")
        admin.create_topics([NewTopic(name, partitions, config=settings)])
        return name

    return make


@pytest.fixture(scope="session")
def load(spark: SparkSession, brokers: Cluster) -> LoadFunction:
    """Loads topics of ``brokers``: ``load("topic", **options)`` -> a DataFrame.

    The first argument is the option ``subscribe``; None leaves it out. ``schema`` is not an option.
    """

    def loaded(topic: str | None, *, schema: str | None = None, **options: object) -> DataFrame:
        reader = spark.read.format("raftlog").option("bootstrap.servers", brokers.bootstrap)
        if topic is not None:
            reader = reader.option("subscribe", topic)
        if schema is not None:
            reader = reader.schema(schema)
        return reader.options(**{name: str(value) for name, value in options.items()}).load()

    return loaded


@pytest.fixture(autouse=True)
def _no_query_outlives_its_test(request: pytest.FixtureRequest) -> Iterator[None]:
    """A stream that a failed test has left behind would take the slots of those that follow."""
    yield
    if "spark" in request.fixturenames:
        for query in request.getfixturevalue("spark").streams.active:
            query.stop()
