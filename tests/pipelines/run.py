"""Run the examples of docs/how-to/coming-from.md, with separate brokers and servers.

    python -m tests.pipelines.run [NAME ...]     (default: all examples)

Compares the output of each example with the file NAME.out beside it; with --update, writes it. The
input is ``make_access_log.py``, or the access log in RAFTLOG_ACCESS_LOG: then the output is printed
and not compared. An example whose server is not installed is skipped, with the way to install it.
"""

from __future__ import annotations

import argparse
import difflib
import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Final

from docs.examples.pipelines import make_access_log
from raftlog import Admin, NewTopic
from raftlog.testing import Cluster, cluster, wait_until
from raftlog.testing.cluster import free_port, free_ports
from raftlog.testing.fork_server import python_path

ROOT: Final = Path(__file__).resolve().parents[2]
EXAMPLES: Final = ROOT / "docs" / "examples" / "pipelines"
TIMEOUT_S: Final = 300
SPARK: Final = {
    "spark.driver.host": "127.0.0.1",
    "spark.driver.memory": "1g",
    "spark.sql.session.timeZone": "UTC",
    "spark.sql.shuffle.partitions": "2",
    "spark.ui.enabled": "false",
    "spark.ui.showConsoleProgress": "false",
}


@dataclass(frozen=True)
class Example:
    """A file of ``EXAMPLES`` to run.

    ``topics``: created first; a name with a + is compacted. ``needs``: packages and programs.
    ``runs``: arguments of each run; with ``--crash``, it has to end by SIGKILL.
    """

    file: str
    title: str
    topics: tuple[str, ...] = ()
    needs: tuple[str, ...] = ()
    runs: tuple[tuple[str, ...], ...] = ((),)

    @property
    def name(self) -> str:
        return self.file.partition(".")[0]


CRASHING: Final = (("--crash",), ())
SPARK_NEEDS: Final = ("pyspark", "java")
MAVEN: Final = ("java", "mvn")
CONNECT_NEEDS: Final = (*MAVEN, "psycopg", "postgres", "psql")
ALL: Final = [
    Example("storm_word_count.py", "Storm", ("word-counts+",), SPARK_NEEDS),
    Example("declarative.sh", "Storm: topology", ("alerts",), (*SPARK_NEEDS, "grpc", "yaml")),
    Example("s4_elements.py", "S4", ("requests", "visitors+")),
    Example("samza_reprocess.py", "Samza", ("views-1", "views-2")),
    Example("hive_sql.py", "Hive", (), SPARK_NEEDS),
    Example("pig_dataframe.py", "Pig", (), ("polars",)),
    Example("hcatalog_schema.py", "HCatalog", ("readings",), ("pyarrow",)),
    Example("sqlstream_window.py", "SQLstream", (), SPARK_NEEDS),
    Example(
        "datatorrent_dedupe.py",
        "DataTorrent",
        ("requests-twice", "requests-once"),
        SPARK_NEEDS,
        CRASHING,
    ),
    Example("logstash_follow.sh", "Logstash"),
    Example("rsyslog_agent.sh", "rsyslog", (), ("omkafka",)),
    Example("camus_parquet.py", "Camus", ("from-parquet",), SPARK_NEEDS),
    Example("mirror.sh", "MirrorMaker"),
    Example(
        "postgres_upsert.py",
        "PostgreSQL",
        (),
        (*SPARK_NEEDS, "psycopg", "postgres"),
        CRASHING,
    ),
    Example("debezium.sh", "Change data", (), CONNECT_NEEDS),
    Example("connect_sink.sh", "Kafka Connect", (), CONNECT_NEEDS),
    Example("cassandra_rows.py", "Cassandra", ("visits",), (*MAVEN, "cassandra"), CRASHING),
    Example("opensearch_documents.py", "Elasticsearch", (), (*MAVEN, "opensearchpy"), CRASHING),
    Example("redis_counts.py", "Redis", (), ("redis", "redis-server"), ((), ())),
    Example("iceberg_append.py", "Iceberg", (), ("pyiceberg",)),
]
# With the log; the key is the host.
LOADED: Final = {
    "requests": ("--key-separator", " "),
    "requests-twice": (),
    "visits": ("--key-separator", " "),
}
# What is needed: how it is installed.
INSTALL: Final = {
    "java": "apt install openjdk-17-jre-headless",
    "mvn": "apt install maven",
    "omkafka": "apt install rsyslog-kafka",
    "postgres": "apt install postgresql",
    "psql": "apt install postgresql-client",
    "redis-server": "apt install redis",
}
PACKAGES: Final = "pip install -e '.[pipelines]'"


def missing(needs: Sequence[str]) -> str:
    """Return what is not installed, and how to install it; empty if nothing is missing."""
    for need in needs:
        if need == "postgres":
            if postgres_directory() is None:
                return f"no postgres ({INSTALL[need]})"
        elif need == "omkafka":  # a module of rsyslog
            modules = "lib*/rsyslog/omkafka.so", "lib*/*/rsyslog/omkafka.so"
            if not any(any(Path("/usr").glob(each)) for each in modules):
                return f"no omkafka ({INSTALL[need]})"
        elif need in INSTALL:
            if shutil.which(need) is None:
                return f"no {need} ({INSTALL[need]})"
        elif find_spec(need) is None:
            return f"no Python package {need} ({PACKAGES})"
    return ""


# -- servers ---------------------------------------------------------------------------------------


def postgres_directory() -> Path | None:
    """Return the directory of initdb and postgres, which Debian leaves out of the PATH."""
    found = sorted(Path("/usr/lib/postgresql").glob("*/bin/initdb"), reverse=True)
    on_path = shutil.which("initdb")
    return found[0].parent if found else Path(on_path).parent if on_path else None


@contextmanager
def process(command: Sequence[object], log: Path, **options: object) -> Iterator[None]:
    """Run a server for the duration of the block."""
    with log.open("wb") as output:
        started = subprocess.Popen(
            list(map(str, command)),
            stdout=output,
            stderr=output,
            **options,  # type: ignore[call-overload]
        )
    try:
        yield
    finally:
        started.send_signal(signal.SIGINT)
        try:
            started.wait(timeout=20)
        except subprocess.TimeoutExpired:
            started.kill()
            started.wait()


class Postgres:
    """A PostgreSQL server, as another user if this one is root, whom it refuses."""

    def __init__(self, directory: Path) -> None:
        programs = postgres_directory()
        assert programs is not None, "checked by missing()"
        data, self.port = Path(tempfile.mkdtemp(prefix="postgres-", dir=directory)), free_port()
        self.address = f"postgresql://postgres@127.0.0.1:{self.port}/postgres"
        self._log = directory / "postgres.log"
        self._options: dict[str, object] = {}
        if os.geteuid() == 0:
            shutil.chown(data, "postgres", "postgres")
            self._options = {"user": "postgres", "group": "postgres", "cwd": "/"}
        initialize = [programs / "initdb", "-D", data, "-U", "postgres", "-A", "trust", "--no-sync"]
        subprocess.run(  # type: ignore[call-overload]
            list(map(str, initialize)), check=True, stdout=subprocess.DEVNULL, **self._options
        )
        self._command = [programs / "postgres", "-D", data, "-p", self.port, "-h", "127.0.0.1"]
        self._command += ["-k", "", "-c", "wal_level=logical"]

    @contextmanager
    def running(self) -> Iterator[dict[str, str]]:
        """Run it for the duration of the block, with the data of the last time."""
        with process(self._command, self._log, **self._options):
            wait_until(self._responds, timeout_s=30)
            yield {"DATABASE": self.address, "PGPORT": str(self.port)}

    def _responds(self) -> bool:
        import psycopg

        with suppress(psycopg.OperationalError), psycopg.connect(self.address):
            return True
        return False


@contextmanager
def postgres(directory: Path) -> Iterator[dict[str, str]]:
    with Postgres(directory).running() as environ:
        yield environ


def jars_of(server: str) -> Path:
    """Return the directory with the JARs of a pom.xml, which Maven downloads once."""
    jars = Path(sys.prefix) / "pipelines" / server
    pom = EXAMPLES / server / "pom.xml"
    if not jars.is_dir() or jars.stat().st_mtime < pom.stat().st_mtime:
        words = ["dependency:copy-dependencies", f"-DoutputDirectory={jars}"]
        subprocess.run(["mvn", "-q", "-B", "-f", str(pom), *words], check=True)
        os.utime(jars)
    return jars


@contextmanager
def debezium(directory: Path) -> Iterator[dict[str, str]]:
    shutil.copytree(EXAMPLES / "debezium", directory / "debezium", dirs_exist_ok=True)
    shutil.copy(EXAMPLES / "debezium_rows.py", directory)
    with postgres(directory) as environ:
        yield {**environ, "CONNECT": str(jars_of("debezium"))}


@contextmanager
def cassandra(directory: Path) -> Iterator[dict[str, str]]:
    port, storage_port = free_ports(2)
    seeds = f'[{{seeds: "127.0.0.1:{storage_port}"}}]'
    settings = {
        "cluster_name": "raftlog",
        "commitlog_sync": "periodic",
        "commitlog_sync_period": "10s",
        "endpoint_snitch": "SimpleSnitch",
        "listen_address": "127.0.0.1",
        "native_transport_port": port,
        "partitioner": "org.apache.cassandra.dht.Murmur3Partitioner",
        "rpc_address": "127.0.0.1",
        "seed_provider": (
            "[{class_name: org.apache.cassandra.locator.SimpleSeedProvider, "
            f"parameters: {seeds}}}]"
        ),
        "storage_port": storage_port,
    }
    file = directory / "cassandra.yaml"
    file.write_text("".join(f"{name}: {value}\n" for name, value in settings.items()))
    properties = {
        "cassandra.config": file.as_uri(),
        "cassandra.storagedir": directory / "cassandra",
        "cassandra-foreground": "yes",
        "cassandra.ring_delay_ms": 100,
        "cassandra.skip_wait_for_gossip_to_settle": 0,
    }
    opened = ["java.io", "java.nio", "jdk.internal.misc", "jdk.internal.ref", "sun.nio.ch"]
    command = [
        "java",
        "-Xmx512m",
        *(f"-D{name}={value}" for name, value in properties.items()),
        *(f"--add-opens=java.base/{each}=ALL-UNNAMED" for each in opened),
        "-cp",
        f"{jars_of('cassandra')}/*",
        "org.apache.cassandra.service.CassandraDaemon",
    ]
    with process(command, directory / "cassandra.log"):
        wait_until(lambda: is_open(port), timeout_s=120)
        yield {"CASSANDRA_PORT": str(port)}


@contextmanager
def opensearch(directory: Path) -> Iterator[dict[str, str]]:
    home, port = directory / "opensearch", free_port()
    home.mkdir()
    program = EXAMPLES / "opensearch" / "Server.java"
    command = ["java", "-Xmx512m", "-cp", f"{jars_of('opensearch')}/*", program, home, port]
    with process(command, directory / "opensearch.log"):
        wait_until(lambda: is_open(port), timeout_s=120)
        yield {"OPENSEARCH": f"http://127.0.0.1:{port}"}


def is_open(port: int) -> bool:
    with suppress(OSError), socket.create_connection(("127.0.0.1", port)):
        return True
    return False


@contextmanager
def redis_server(directory: Path) -> Iterator[dict[str, str]]:
    import redis

    port = free_port()
    command = ["redis-server", "--bind", "127.0.0.1", "--port", port, "--save", ""]
    store = redis.Redis(port=port)

    def responds() -> bool:
        with suppress(redis.ConnectionError):
            return bool(store.ping())
        return False

    with process([*command, "--dir", directory], directory / "redis.log"):
        wait_until(responds, timeout_s=30)
        store.close()
        yield {"REDIS": f"redis://127.0.0.1:{port}"}


@contextmanager
def second_cluster(_directory: Path) -> Iterator[dict[str, str]]:
    with cluster(brokers=1, with_relays=False) as target:
        yield {"RAFTLOG_TARGET": target.bootstrap}


SERVERS: Final = {
    "cassandra_rows": cassandra,
    "connect_sink": debezium,
    "debezium": debezium,
    "opensearch_documents": opensearch,
    "postgres_upsert": postgres,
    "redis_counts": redis_server,
    "mirror": second_cluster,
}


# -- running ---------------------------------------------------------------------------------------


def environment(running: Cluster, directory: Path) -> dict[str, str]:
    """Return the environment of the examples: `raftlog` is a command, and Spark is quiet."""
    commands = directory / "commands"
    commands.mkdir()
    script = commands / "raftlog"
    script.write_text(f'#!/bin/sh\nexec "{sys.executable}" -m raftlog "$@"\n')
    script.chmod(0o755)
    settings = " ".join(f"--conf {name}={value}" for name, value in SPARK.items())
    return {
        **os.environ,
        **python_path(ROOT),
        "PATH": f"{commands}:{Path(sys.executable).parent}:{os.environ['PATH']}:/usr/sbin",
        "RAFTLOG_BOOTSTRAP": running.bootstrap,
        "PYSPARK_PYTHON": sys.executable,
        "PYSPARK_DRIVER_PYTHON": sys.executable,
        "PYSPARK_SUBMIT_ARGS": f"--master local[2] {settings} pyspark-shell",
        "SPARK_LOCAL_IP": "127.0.0.1",
        "XDG_STATE_HOME": str(directory / "state"),
    }


def prepare(running: Cluster, environ: Mapping[str, str], directory: Path) -> None:
    """Create the access log and its topic."""
    project = shutil.copytree(EXAMPLES / "declarative", directory / "alerts")
    specification = project / "spark-pipeline.yml"
    storage = (directory / "alerts-storage").as_uri()
    specification.write_text(
        specification.read_text().replace("file:///tmp/raftlog-alerts", storage)
    )
    log = directory / "access.log"
    if own := os.environ.get("RAFTLOG_ACCESS_LOG"):
        shutil.copy(own, log)
    else:
        log.write_text("".join(f"{line}\n" for line in make_access_log.lines()))
    with Admin(running.bootstrap) as admin:
        admin.create_topics([NewTopic("access-log", 3)])
    produce(environ, log, "access-log")


def produce(environ: Mapping[str, str], log: Path, topic: str, *arguments: str) -> None:
    command = ["raftlog", "produce", topic, "--file", str(log), *arguments]
    subprocess.run(command, env=environ, check=True, stdout=subprocess.DEVNULL)


def create_topics(
    running: Cluster, environ: Mapping[str, str], log: Path, example: Example
) -> None:
    with Admin(running.bootstrap) as admin:
        admin.create_topics(
            [
                NewTopic(
                    name.removesuffix("+"),
                    2,
                    config={"cleanup.policy": "compact"} if name.endswith("+") else {},
                )
                for name in example.topics
            ]
        )
    for name in example.topics:
        if name in LOADED:
            produce(environ, log, name, *LOADED[name])
        if name.endswith("-twice"):
            produce(environ, log, name)


class FailedError(Exception):
    """An example ended wrongly, or its output is not the expected one."""


def run(example: Example, environ: Mapping[str, str], directory: Path) -> str:
    """Run an example. Returns the output of its last run. Raises ``FailedError``."""
    path = str(EXAMPLES / example.file)
    command = ["bash", "-e", path] if example.file.endswith(".sh") else [sys.executable, path]
    output = ""
    for arguments in example.runs:
        ended = subprocess.run(
            [*command, *arguments],
            env=environ,
            cwd=directory,
            capture_output=True,
            text=True,
            timeout=TIMEOUT_S,
            check=False,
        )
        expected = -signal.SIGKILL if arguments == ("--crash",) else 0
        if ended.returncode != expected:
            raise FailedError(
                f"exit status {ended.returncode}:\n{ended.stdout}\n{ended.stderr[-4_000:]}"
            )
        output = ended.stdout
    return output


def compare(example: Example, output: str, *, update: bool) -> None:
    """Raise ``FailedError`` if the output is not that of the page."""
    path = EXAMPLES / f"{example.name}.out"
    if update:
        path.write_text(output)
    expected = path.read_text()
    if output != expected:
        lines = difflib.unified_diff(
            expected.splitlines(), output.splitlines(), "expected", "printed", lineterm=""
        )
        raise FailedError("\n".join(lines))


def attempt(
    example: Example,
    running: Cluster,
    environ: Mapping[str, str],
    directory: Path,
    *,
    update: bool,
) -> None:
    create_topics(running, environ, directory / "access.log", example)
    with ExitStack() as stack:
        if example.name in SERVERS:
            server = SERVERS[example.name](directory)
            environ = {**environ, **stack.enter_context(server)}
        output = run(example, environ, directory)
    if "RAFTLOG_ACCESS_LOG" in os.environ:
        print(output, end="")
    else:
        compare(example, output, update=update)


def main() -> int:
    parser = argparse.ArgumentParser(description="Run the examples of the page 'Coming from'.")
    known = [each.name for each in ALL]
    parser.add_argument("names", nargs="*", metavar="NAME", help=f"of {', '.join(known)}")
    parser.add_argument("--update", action="store_true", help="write the expected outputs")
    arguments = parser.parse_args()
    if unknown := set(arguments.names) - set(known):
        parser.error(f"no example {', '.join(sorted(unknown))}; examples are {', '.join(known)}")
    chosen = [each for each in ALL if not arguments.names or each.name in arguments.names]
    failed = skipped = 0
    with (
        tempfile.TemporaryDirectory(prefix="raftlog-pipelines-") as home,
        cluster(brokers=1, with_relays=False) as running,
    ):
        directory = Path(home)
        directory.chmod(0o755)  # PostgreSQL runs as another user
        environ = environment(running, directory)
        prepare(running, environ, directory)
        for number, example in enumerate(chosen, start=1):
            print(f"[{number}/{len(chosen)}] {example.title} ({example.file}) ", end="", flush=True)
            started = time.monotonic()
            if reason := missing(example.needs):
                skipped += 1
                print(f"skipped: {reason}", flush=True)
                continue
            try:
                attempt(example, running, environ, directory, update=arguments.update)
            except (FailedError, subprocess.SubprocessError, OSError) as error:
                failed += 1
                print(f"FAILED\n{error}", flush=True)
            else:
                print(f"ok ({time.monotonic() - started:.1f} s)", flush=True)
    passed = len(chosen) - failed - skipped
    print(f"{passed} passed, {failed} failed, {skipped} skipped")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
