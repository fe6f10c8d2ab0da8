"""Running the command line: in this process for what it prints, as a process for how it ends."""

from __future__ import annotations

import io
import json
import os
import re
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import pytest

from raftlog.testing import Cluster, cluster
from raftlog_cli.main import run


@dataclass(frozen=True)
class Ran:
    """How a command line ended."""

    status: int
    out: bytes
    err: str

    @property
    def json(self) -> Any:
        assert self.status == 0, self.err
        return json.loads(self.out)

    @property
    def json_lines(self) -> list[Any]:
        return [json.loads(line) for line in self.out.splitlines()]


Raftlog = Callable[..., Ran]


@pytest.fixture
def raftlog(capfdbinary: pytest.CaptureFixture[bytes], monkeypatch: pytest.MonkeyPatch) -> Raftlog:
    """``raftlog("topic", "list", stdin=b"")``, in this process."""

    def call(*arguments: object, stdin: bytes = b"") -> Ran:
        capfdbinary.readouterr()
        with monkeypatch.context() as patch:
            patch.setattr(sys, "stdin", io.TextIOWrapper(io.BufferedReader(io.BytesIO(stdin))))
            status = run([str(argument) for argument in arguments])
        out, err = capfdbinary.readouterr()
        return Ran(status, out, err.decode())

    return call


@pytest.fixture(scope="session")
def broker() -> Iterator[Cluster]:
    """A broker for all tests of the command line: each uses topics of its own name."""
    with cluster(brokers=1) as running:
        yield running


@pytest.fixture
def bootstrap(broker: Cluster, monkeypatch: pytest.MonkeyPatch) -> str:
    """The shared broker's address, which commands find in their environment too."""
    monkeypatch.setenv("RAFTLOG_BOOTSTRAP", broker.bootstrap)
    return broker.bootstrap


@pytest.fixture
def spawn() -> Iterator[Callable[..., subprocess.Popen[bytes]]]:
    """``spawn("up", "--port", "0")``: a process, killed at the end of the test if it still runs."""
    with spawning() as call:
        yield call


@contextmanager
def spawning() -> Iterator[Callable[..., subprocess.Popen[bytes]]]:
    """The fixture ``spawn`` as a block."""
    started: list[subprocess.Popen[bytes]] = []

    def call(*arguments: object, stdin: int = subprocess.DEVNULL) -> subprocess.Popen[bytes]:
        # A new program inherits no handlers, but it would inherit that nohup, or a shell's job in
        # the background, ignores these signals.
        numbers = (signal.SIGHUP, signal.SIGINT)
        before = [signal.signal(number, lambda _number, _frame: None) for number in numbers]
        try:
            process = subprocess.Popen(
                [sys.executable, "-m", "raftlog", *map(str, arguments)],
                stdin=stdin,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                env={**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))},
            )
        finally:
            for number, handler in zip(numbers, before, strict=True):
                signal.signal(number, handler)
        started.append(process)
        return process

    yield call
    for process in started:
        process.kill()
        process.wait()
        for stream in (process.stdin, process.stdout, process.stderr):
            if stream is not None:
                stream.close()


@pytest.fixture
def topic(raftlog: Raftlog, bootstrap: str, request: pytest.FixtureRequest) -> str:
    """A new topic of the test's own, with two partitions."""
    name = re.sub(r"[^a-z0-9]+", "-", request.node.name)[:200]
    assert raftlog("topic", "create", name, "--partitions", 2).status == 0
    return name
