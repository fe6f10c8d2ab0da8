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
    """Running brokers, the process id of the first, and a directory on their disk for the floor."""

    bootstrap: str
    pid: int
    directory: Path


@contextmanager
def target(directory: Path | None, *, brokers: int = 1) -> Iterator[Target]:
    """A new broker, or a cluster of them.

    In a directory below ``directory`` (None: the system's temporary directory). Both are gone
    afterwards.
    """
    with ExitStack() as stack:
        home = Path(
            stack.enter_context(tempfile.TemporaryDirectory(prefix="raftlog-bench-", dir=directory))
        )
        running = stack.enter_context(cluster(brokers=brokers, directory=home, with_relays=False))
        pid = running.brokers[0].pid
        assert pid is not None
        yield Target(running.bootstrap, pid, home)
