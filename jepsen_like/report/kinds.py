"""The kinds of fault, and which of them this machine can inject. Tested with a cluster that is
created and never started."""

from __future__ import annotations

import tempfile
from collections.abc import Iterable
from contextlib import closing
from pathlib import Path
from typing import Final, NamedTuple

from raftlog.jepsen_like.cluster import ClusterUnderTest, Needs
from raftlog.jepsen_like.nemesis import registry
from raftlog.jepsen_like.plan import Shape, TopicShape

NEED_ROOT: Final = frozenset({"namespaces", "loop_disks", "time_namespaces"})
WITHOUT_ROOT: Final = "it needs root on Linux"
SHAPE: Final = Shape(
    brokers=3, topics=(TopicShape(name="t", partitions=1, replication_factor=3, min_isr=2),)
)


class Kind(NamedTuple):
    """One kind of fault. ``description``: what the fault does. ``why_not``: reason why it cannot be
    injected here, or ""."""

    name: str
    description: str
    why_not: str


def kinds_here(*, without_root: bool) -> list[Kind]:
    """Return all kinds. In a sandbox, or with ``without_root``, this process changes nothing
    outside of itself."""
    wanted = registry.needs_of(registry.KINDS)
    why = dict.fromkeys(NEED_ROOT, WITHOUT_ROOT) if without_root else {}
    with tempfile.TemporaryDirectory("-raftlog-kinds") as directory:
        usable = wanted - why.keys()
        try:
            cluster = _cluster(usable, directory)
        except OSError:  # a resource is missing: find it by testing one at a time
            why |= _unusable(usable, directory)
            cluster = _cluster(usable - why.keys(), directory)
        counts = why.keys() - {"namespaces"}  # without namespaces, relays inject network partitions
        with closing(cluster):
            found = registry.make(registry.KINDS, cluster, None)
            return [
                Kind(
                    name,
                    found[name].kinds[name],
                    found[name].why_not(name)
                    or next((why[need] for need in home.needs if need in counts), ""),
                )
                for name, home in registry.KINDS.items()
            ]


def _cluster(needs: Iterable[str], directory: str) -> ClusterUnderTest:
    return ClusterUnderTest(SHAPE, Needs(**dict.fromkeys(needs, True)), Path(directory))


def _unusable(needs: Iterable[str], directory: str) -> dict[str, str]:
    """Return the needs that this machine cannot provide, each with the reason."""
    why = {}
    for need in needs:
        try:
            _cluster((need,), directory).close()
        except OSError as error:
            why[need] = str(error)
    return why
