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
    """Running brokers, their process ids, and a directory on their disk for the floor."""

    bootstrap: str
    pids: tuple[int, ...]
    directory: Path

    @property
    def pid(self) -> int:
        """The first broker's."""
        return self.pids[0]


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
        pids = tuple(broker.pid for broker in running.brokers if broker.pid is not None)
        assert len(pids) == brokers
        yield Target(running.bootstrap, pids, home)
