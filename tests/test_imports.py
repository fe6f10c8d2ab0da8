"""What imports load, and modules by their former names."""

from __future__ import annotations

import ast
import json
import os
import subprocess
import sys
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path
from typing import Final

import pytest

from raftlog.former_names import name_of_today

# -- imports ---------------------------------------------------------------------------------------

# Modules that an import loads, in new interpreters. Counts, not times: these are the same on every
# machine. `raftlog bench imports` measures the times.


ROOT: Final = Path(__file__).parents[1]
HEAVY: Final = {"cramjam", "lz4", "msgpack", "numpy", "pyarrow", "tomllib", "zstandard"}
NOT_OF_CLIENTS: Final = {
    "raftlog.config.broker",
    "raftlog.kafka",
    "raftlog.record.arrow",
    "raftlog.record.compaction",
    "raftlog.record.kafka_batch",
    "raftlog.record.kafka_rows",
    "raftlog.server",
    "raftlog.storage",
}
ASYNCIO: Final = {"asyncio", "concurrent", "dataclasses", "inspect", "logging", "msgspec", "ssl"}
ADMINISTRATION: Final = {"raftlog.client.descriptions", "raftlog.client.administration.admin"}
PLAIN_BROKER: Final = """
from raftlog.config import BrokerConfig
from raftlog.server.main import (preload)
preload(BrokerConfig.from_text({"data.dir": "unused"}))
"""
VERSION: Final = """
import sys
from raftlog.__main__ import main
sys.argv[1:] = ["--version"]
main()
"""


def _loaded(code: str) -> set[str]:
    """Modules of a new interpreter after ``code``."""
    code += "\nimport json, sys; sys.stderr.write(json.dumps(sorted(sys.modules)))"
    ran = subprocess.run(
        [sys.executable, "-c", code],
        env={**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))},
        capture_output=True,
        check=True,
    )
    return set(json.loads(ran.stderr))


@pytest.mark.integration
@pytest.mark.parametrize(
    ("code", "own_max", "absent"),
    [
        pytest.param("import raftlog", 2, ASYNCIO | HEAVY, id="raftlog"),
        pytest.param("import raftlog.aio", 4, ASYNCIO | HEAVY, id="aio"),
        pytest.param(
            "from raftlog import Producer",
            10,
            (ASYNCIO | HEAVY) - {"concurrent", "logging"},  # a thread needs concurrent.futures
            id="Producer",
        ),
        pytest.param(VERSION, 3, ASYNCIO | HEAVY | {"click"}, id="version"),
        pytest.param(
            "import raftlog; raftlog.Producer()",
            80,
            HEAVY | NOT_OF_CLIENTS | ADMINISTRATION,
            id="Producer()",
        ),
        pytest.param(
            "from raftlog.aio import AsyncProducer, AsyncConsumer",
            100,
            HEAVY | NOT_OF_CLIENTS | ADMINISTRATION,
            id="aio.AsyncConsumer",
        ),
        pytest.param(
            "import raftlog.server.main",
            25,
            {
                *(HEAVY - {"tomllib"}),
                *(NOT_OF_CLIENTS - {"raftlog.config.broker", "raftlog.server"}),
                *("pysyncobj", "raftlog.protocol", "raftlog.server.broker", "starlette"),
            },
            id="server.main",
        ),
        pytest.param(
            PLAIN_BROKER, 400, {"jinja2", "pyarrow", "scramp", "starlette", "uvicorn"}, id="broker"
        ),
    ],
)
def test_an_import_loads_only_what_it_needs(code: str, own_max: int, absent: set[str]) -> None:
    found = _loaded(code)
    assert found.isdisjoint(absent)
    assert len([name for name in found if name.split(".")[0] == "raftlog"]) <= own_max


# -- brokers ---------------------------------------------------------------------------------------

# A running broker imports none of these.
NOT_OF_BROKERS: Final = {
    "pyarrow",  # Arrow is for clients
    "raftlog.server.oauth",  # while a broker starts, if it is configured
}


def _imported_by_functions() -> Iterator[str]:
    packages = ("config", "consensus", "consumer_groups", "failpoints", "kafka", "protocol")
    packages += ("record", "replication", "security", "server", "storage")
    files = [file for name in packages for file in (ROOT / "raftlog" / name).rglob("*.py")]
    files += (ROOT / "raftlog" / f"{name}.py" for name in ("clock", "disk", "tls", "types"))
    for file in files:
        for function in ast.walk(ast.parse(file.read_text())):
            if not isinstance(function, ast.FunctionDef | ast.AsyncFunctionDef):
                continue
            for node in ast.walk(function):
                if isinstance(node, ast.Import):
                    yield from (alias.name for alias in node.names)
                elif isinstance(node, ast.ImportFrom):
                    assert node.module is not None
                    yield node.module
                    inner = (f"{node.module}.{alias.name}" for alias in node.names)
                    yield from (name for name in inner if _is_module(name))


def _is_module(name: str) -> bool:
    path = ROOT / name.replace(".", "/")
    return path.is_dir() or path.with_suffix(".py").exists()


@pytest.mark.integration
def test_a_broker_imports_all_that_it_may_use_before_it_serves() -> None:
    found = _loaded("from raftlog.server.main import preload; preload()")
    assert {*_imported_by_functions()} - NOT_OF_BROKERS - found == set()


# -- former names ----------------------------------------------------------------------------------

# Modules by the names that they had before.


@pytest.mark.parametrize(
    ("former", "today"),
    [
        ("raftlog.cli.main", "raftlog_cli.main"),
        ("raftlog.spark_source", "pyspark_raftlog"),
        ("raftlog.spark_source.options", "pyspark_raftlog.options"),
        ("raftlog.spark_source.stream_writer", "pyspark_raftlog.writer"),
        ("raftlog.jepsen_like.run_options", "raftlog_jepsen.runner"),
        ("raftlog.client.aio.producer", "raftlog.client.aio.clients"),
    ],
)
def test_a_former_name_is_the_module_of_today(former: str, today: str) -> None:
    module = import_module(today)
    assert import_module(former) is module
    assert module.__name__ == today


def test_a_package_has_its_former_modules() -> None:
    from raftlog.backup import store, writer  # type: ignore[attr-defined]

    assert store is writer
    from raftlog.spark_source import stream_writer  # type: ignore[import-not-found]

    assert stream_writer is import_module("pyspark_raftlog.writer")


def test_other_names_stay_as_they_are() -> None:
    assert name_of_today("raftlog.client.consumer") == "raftlog.client.consumer"
    assert name_of_today("raftlog.client_of_mine") == "raftlog.client_of_mine"


def test_a_name_that_never_was_is_not_found() -> None:
    with pytest.raises(ModuleNotFoundError, match=r"raftlog\.client\.nothing"):
        import_module("raftlog.client.nothing")
