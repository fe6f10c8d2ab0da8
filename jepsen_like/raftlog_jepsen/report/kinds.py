"""The kinds of fault, and which of them this machine can inject.

Tested with a cluster that is created but never started.
"""

from __future__ import annotations

import tempfile
from collections.abc import Iterable
from contextlib import closing
from pathlib import Path
from typing import Final, NamedTuple

from raftlog_jepsen.cluster import ClusterUnderTest, Needs
from raftlog_jepsen.nemesis import driver
from raftlog_jepsen.plan import Shape, TopicShape

NEED_ROOT: Final = frozenset({"namespaces", "loop_disks", "time_namespaces"})
WITHOUT_ROOT: Final = "requires root on Linux"
SHAPE: Final = Shape(
    brokers=3, topics=(TopicShape(name="t", partitions=1, replication_factor=3, min_isr=2),)
)


class Kind(NamedTuple):
    """One kind of fault. ``description``: effect of the fault. ``why_not``: why it cannot be
    injected on this machine; empty if it can."""

    name: str
    description: str
    why_not: str


def kinds_here(*, without_root: bool) -> list[Kind]:
    """Return all kinds. Call it in a sandbox or with ``without_root``, so that the test does not
    change networks and mounts of the machine."""
    wanted = driver.needs_of(driver.KINDS)
    why = dict.fromkeys(NEED_ROOT, WITHOUT_ROOT) if without_root else {}
    with tempfile.TemporaryDirectory("-raftlog-kinds") as directory:
        usable = wanted - why.keys()
        try:
            cluster = _cluster(usable, directory)
        except OSError:  # a requirement is not available: test each separately
            why |= _unusable(usable, directory)
            cluster = _cluster(usable - why.keys(), directory)
        counts = why.keys() - {"namespaces"}  # without namespaces, relays inject network partitions
        with closing(cluster):
            found = driver.make(driver.KINDS, cluster, None)
            whys = {name: found[name].why_not(name) for name in driver.KINDS}
        kinds = []
        for name, home in driver.KINDS.items():
            reason = next((why[need] for need in home.needs if need in counts), "")
            if whys[name] and not reason:
                # The requirements of another kind may exclude it: test it with its own alone.
                with closing(_cluster(set(home.needs) - why.keys(), directory)) as own:
                    reason = driver.make((name,), own, None)[name].why_not(name)
            kinds.append(Kind(name, found[name].kinds[name], reason))
        return kinds


def _cluster(needs: Iterable[str], directory: str) -> ClusterUnderTest:
    own = tempfile.mkdtemp(dir=directory)  # a cluster that failed may leave files in its own
    return ClusterUnderTest(SHAPE, Needs(**dict.fromkeys(needs, True)), Path(own))


def _unusable(needs: Iterable[str], directory: str) -> dict[str, str]:
    """Return the requirements that this machine does not provide, each with the reason."""
    why = {}
    for need in needs:
        try:
            _cluster((need,), directory).close()
        except OSError as error:
            why[need] = str(error)
    return why
