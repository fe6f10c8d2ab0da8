"""What benchmarks measure: a broker of their own, on the disk that is to be measured."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path

from raftlog.testing.cluster import cluster


@dataclass(frozen=True, slots=True)
class Target:
    """A running broker, its process id, and a directory on the same disk for the floor's file."""

    bootstrap: str
    pid: int
    directory: Path


@contextmanager
def target(directory: Path | None) -> Iterator[Target]:
    """A new broker in a directory below ``directory`` (None: the system's temporary directory).

    Broker and directory are gone afterwards.
    """
    with ExitStack() as stack:
        home = Path(
            stack.enter_context(tempfile.TemporaryDirectory(prefix="raftlog-bench-", dir=directory))
        )
        running = stack.enter_context(cluster(brokers=1, directory=home))
        pid = running.brokers[0].pid
        assert pid is not None
        yield Target(running.bootstrap, pid, home)
