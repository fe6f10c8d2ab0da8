"""The examples of the README and of pages run as they stand; the manual builds."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from raftlog import Consumer, TopicPartition
from raftlog.testing import Cluster, cluster

# -- examples --------------------------------------------------------------------------------------

# The examples of the README and of the pages on embedding, SQL and schemas, run as they stand.


ROOT = Path(__file__).resolve().parents[2]
README = ROOT / "README.md"
EMBED = ROOT / "docs" / "how-to" / "embed.md"
SQL = ROOT / "docs" / "how-to" / "query-with-sql.md"
SCHEMAS = ROOT / "docs" / "how-to" / "use-schemas.md"
MARK = "<!-- run by tests/integration/test_readme.py -->\n"
ADDRESS = "127.0.0.1:9100"  # what the examples say; the test's own broker is elsewhere
LINES_MAX = 11


def examples(language: str, page: Path = README) -> list[str]:
    """The marked blocks of one language."""
    pattern = re.escape(MARK) + rf"```{language}\n(.*?)```\n"
    return re.findall(pattern, page.read_text(encoding="utf-8"), re.DOTALL)


@pytest.fixture
def environment(tmp_path: Path, running: Cluster) -> dict[str, str]:
    """Where `raftlog` is a command, and where it finds the test's broker."""
    commands = tmp_path / "commands"
    commands.mkdir()
    script = commands / "raftlog"
    script.write_text(f'#!/bin/sh\nexec "{sys.executable}" -m raftlog "$@"\n')
    script.chmod(0o755)
    return {
        **os.environ,
        "PATH": f"{commands}:{os.environ['PATH']}",
        "PYTHONPATH": os.pathsep.join(filter(None, sys.path)),
        "RAFTLOG_BOOTSTRAP": running.bootstrap,
    }


@pytest.fixture
def running(tmp_path: Path) -> Iterator[Cluster]:
    directory = tmp_path / "raftlog-data"
    with cluster(brokers=3, directory=directory, with_relays=False) as started:
        yield started


def run(command: list[str], environment: dict[str, str], directory: Path) -> str:
    ran = subprocess.run(
        command, env=environment, cwd=directory, capture_output=True, text=True, check=False
    )
    assert ran.returncode == 0, ran.stderr
    assert "Traceback" not in ran.stderr
    return ran.stdout


@pytest.mark.integration
def test_there_is_one_short_example_of_each_kind() -> None:
    assert [len(examples(language)) for language in ("bash", "python")] == [1, 2]
    for example in (*examples("bash"), *examples("python")):
        assert example.count("\n") <= LINES_MAX


@pytest.mark.integration
def test_the_shell_example_works(environment: dict[str, str], tmp_path: Path) -> None:
    (example,) = examples("bash")
    out = run(["bash", "-euo", "pipefail", "-c", example], environment, tmp_path)
    assert "1000 records to clicks" in out
    assert '"user-1"' in out
    assert "sound" in out


@pytest.mark.integration
def test_the_python_examples_work_one_after_the_other(
    environment: dict[str, str], running: Cluster, tmp_path: Path
) -> None:
    outputs = []
    for example in examples("python"):
        assert ADDRESS in example
        program = example.replace(ADDRESS, running.bootstrap)
        outputs.append(run([sys.executable, "-c", program], environment, tmp_path))
    out, of_kafka_client = outputs
    assert "RecordMetadata(topic='views', partition=0, offset=0" in out
    assert out.splitlines()[-1] == "1001"
    assert of_kafka_client == ""
    with Consumer(running.bootstrap, auto_offset_reset="earliest") as consumer:
        assert consumer.end_offsets([TopicPartition("views", 0)]) == {
            TopicPartition("views", 0): 1_002
        }


@pytest.mark.integration
def test_the_embedded_example_works(environment: dict[str, str], tmp_path: Path) -> None:
    (example,) = examples("python", EMBED)
    out = run([sys.executable, "-W", "error", "-c", example], environment, tmp_path)
    assert "offset=0" in out
    assert "value=b'hello'" in out


@pytest.mark.integration
def test_the_examples_of_sql_work(environment: dict[str, str], tmp_path: Path) -> None:
    pytest.importorskip("duckdb")
    (example,) = examples("bash", SQL)
    out = run(["bash", "-euo", "pipefail", "-c", example], environment, tmp_path)
    assert "/cart  1  45.0" in out
    assert out.splitlines()[-1] == '{"slowest": 45}'


@pytest.mark.integration
def test_the_example_of_a_scan_works(environment: dict[str, str], tmp_path: Path) -> None:
    pytest.importorskip("duckdb")
    example, _ = examples("python", SQL)
    out = run([sys.executable, "-W", "error", "-c", example], environment, tmp_path)
    assert "[('s0', 39), ('s1', 39), ('s2', 39)]" in out
    assert out.splitlines()[-1] == "900"


@pytest.mark.integration
def test_the_example_of_a_table_works(environment: dict[str, str], tmp_path: Path) -> None:
    pytest.importorskip("pyarrow")
    _, example = examples("python", SQL)
    for end in (3, 6):  # the second run starts from the snapshot
        out = run([sys.executable, "-W", "error", "-c", example], environment, tmp_path)
        assert "b'user-1' b'Ada' None" in out
        assert out.splitlines()[-1] == f"None b'Grace' 1 {{0: {end}}}"


@pytest.mark.integration
def test_the_examples_of_schemas_work(
    environment: dict[str, str], running: Cluster, tmp_path: Path
) -> None:
    pytest.importorskip("duckdb")
    (shell, query), (program,) = examples("bash", SCHEMAS), examples("python", SCHEMAS)
    out = run(["bash", "-euo", "pipefail", "-c", shell], environment, tmp_path)
    assert "READER_FIELD_MISSING_DEFAULT_VALUE" in out
    assert "exit status 3\ncompatible\n" in out
    assert "orders-value has version 2 with the ID 2" in out
    program = program.replace(ADDRESS, running.bootstrap)
    out = run([sys.executable, "-c", program], environment, tmp_path)
    assert out.splitlines() == ["[{'item': 'tea', 'count': 2}]", "RecordSchemaError"]
    out = run(["bash", "-euo", "pipefail", "-c", query], environment, tmp_path)
    assert out == '{"item": "tea", "pieces": 2, "note": ""}\n'


# -- the manual ------------------------------------------------------------------------------------

# The manual builds without a warning: no dead link, no page outside of the contents.


DOCS = Path(__file__).resolve().parents[2] / "docs"


@pytest.mark.integration
@pytest.mark.nightly
def test_the_manual_builds(tmp_path: Path) -> None:
    pytest.importorskip("sphinx")
    command = [sys.executable, "-m", "sphinx", "-q", "-W", "--keep-going", "-b", "html"]
    ran = subprocess.run(
        [*command, "-d", str(tmp_path / "trees"), str(DOCS), str(tmp_path / "html")],
        capture_output=True,
        text=True,
        check=False,
    )
    assert ran.returncode == 0, ran.stderr
    assert (tmp_path / "html" / "index.html").exists()
