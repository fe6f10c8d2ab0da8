"""The pages about fault injection: every kind is explained, and the examples run."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from xml.etree.ElementTree import parse

import msgspec
import pytest

from raftlog.testing import cluster
from raftlog.testing.checker.judge import judge_file
from raftlog.testing.checker.verdict import KINDS
from raftlog.testing.cluster import wait_until
from raftlog.testing.history import AnyEntry
from raftlog_jepsen.nemesis import driver

pytestmark = pytest.mark.integration

DOCS = Path(__file__).resolve().parents[2] / "docs"
PAGE = DOCS / "how-to" / "inject-faults.md"
REFERENCE = DOCS / "reference" / "fault-injection.md"
ADDRESS = "127.0.0.1:9100"  # what the example says; the test's own cluster is elsewhere


def example(name: str) -> str:
    """The block behind the mark of this name."""
    mark = re.escape(f"<!-- run by tests/integration/test_chaos_page.py: {name} -->\n")
    found = re.search(mark + r"```\w+\n(.*?)```\n", PAGE.read_text(), re.DOTALL)
    assert found is not None
    return found[1]


def first_cells() -> set[str]:
    """What stands in code marks in the first column of a table."""
    rows = re.findall(r"^\| (`[^|]*) \|", REFERENCE.read_text(), re.MULTILINE)
    return {word for row in rows for word in re.findall(r"`([^`]+)`", row)}


def test_every_kind_of_fault_and_of_anomaly_is_explained() -> None:
    assert set(driver.KINDS) <= first_cells()
    assert set(KINDS) <= first_cells()
    assert all(f"`{group}`" in REFERENCE.read_text() for group in driver.GROUPS)


def test_the_examples_of_events_are_of_the_format() -> None:
    (block,) = re.findall(r"```json\n(.*?)```\n", REFERENCE.read_text(), re.DOTALL)
    decoder = msgspec.json.Decoder(AnyEntry)
    entries = [decoder.decode(line) for line in block.splitlines()]
    shown = {type(entry).__name__.lower() for entry in entries}
    assert shown == {
        "start",
        "append",
        "poll",
        "ends",
        "delete",
        "admin",
        "commit",
        "committed",
        "member",
        "fault",
        "note",
        "phase",
        "read",
    }
    assert [entry.time for entry in entries] == sorted(entry.time for entry in entries)


def test_the_picture_is_a_picture() -> None:
    names = re.findall(r"!\[.*?\]\((.*?)\)", PAGE.read_text())
    assert names == ["../diagrams/chaos-timeline.svg"]
    root = parse(PAGE.parent / names[0]).getroot()
    assert root.tag == "{http://www.w3.org/2000/svg}svg"


def environment() -> dict[str, str]:
    return {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}


def test_the_application_writes_a_history_that_is_valid(tmp_path: Path) -> None:
    with cluster(brokers=3, directory=tmp_path / "data", with_relays=False) as running:
        program = example("application").replace(ADDRESS, running.bootstrap)
        ran = subprocess.run(
            [sys.executable, "-W", "error::SyntaxWarning", "-c", program],
            env=environment(),
            cwd=tmp_path,
            capture_output=True,
            text=True,
            check=False,
        )
        assert ran.returncode == 0, ran.stderr
    verdict = judge_file(tmp_path / "history.jsonl")
    assert verdict.valid == "valid", (verdict.troubles, verdict.anomalies)
    assert verdict.stats["records_acknowledged"] == 200


@pytest.fixture
def script(tmp_path: Path) -> Path:
    """The example's script, and `raftlog` as a command for it."""
    command = tmp_path / "raftlog"
    command.write_text(f'#!/bin/sh\nexec "{sys.executable}" -m raftlog "$@"\n')
    path = tmp_path / "control.sh"
    path.write_text(example("control.sh"))
    for each in (command, path):
        each.chmod(0o755)
    return path


@pytest.fixture
def data(tmp_path: Path, script: Path) -> Iterator[Path]:
    """The directory of a cluster that `raftlog up` runs."""
    directory = tmp_path / "data"
    command = [str(tmp_path / "raftlog"), "up", "--data-dir", str(directory), "--port", "0"]
    with subprocess.Popen(command, env=environment(), stdout=subprocess.PIPE, text=True) as up:
        try:
            wait_until(
                lambda: up.stdout is not None and up.stdout.readline() == "ready\n", timeout_s=60
            )
            yield directory
        finally:
            up.send_signal(signal.SIGINT)
            try:
                up.wait(30)
            finally:
                up.kill()  # without effect if it has ended


def test_the_script_does_what_it_is_told(data: Path, script: Path) -> None:
    def control(*words: str, status: int = 0) -> str:
        ran = subprocess.run(
            [script, *words],
            env=environment()
            | {"RAFTLOG_DATA": str(data), "PATH": f"{script.parent}:{os.environ['PATH']}"},
            capture_output=True,
            text=True,
            check=False,
        )
        assert ran.returncode == status, ran.stderr
        return ran.stdout.strip()

    def pid() -> int | None:
        brokers = json.loads((data / "cluster.json").read_text())["brokers"]
        return next(broker["pid"] for broker in brokers if broker["id"] == 2)

    first = pid()
    assert control("state", "2") == "running"
    control("pause", "2")
    assert control("state", "2") == "stopped"
    control("resume", "2")
    assert control("state", "2") == "running"
    control("kill", "2")
    wait_until(lambda: control("state", "2") == "gone")
    assert (data / "broker-2").exists()
    control("wipe", "2")
    assert not (data / "broker-2").exists()
    control("start", "2")
    wait_until(lambda: pid() not in {None, first})
    assert control("state", "2") == "running"
    control("cut", "1", "2", status=3)  # it has no way to
