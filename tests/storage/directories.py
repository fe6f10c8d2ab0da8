"""Data directories for tests: stores on a simulated disk, and what lies in them. No assertions."""

from __future__ import annotations

import os
import uuid
from collections.abc import Mapping

from raftlog.disk import Disk
from raftlog.storage import Log, Store
from raftlog.storage.catalog import Topic
from raftlog.testing.disk import SimDisk
from tests.storage.logs import fill

DATA = "var/data"
FIRST, SECOND = "aaaa", "bbbb"  # ids of topics


class SimDiskOfTrees(SimDisk):
    """A simulated disk that renames directories too, with all that is in them."""

    def rename(self, source: str, target: str) -> None:
        node = self._find(source)
        assert node is not None
        self._check("rename", source)
        (parent, name), (_, new_name) = os.path.split(source), os.path.split(target)
        self._directory(parent).change({name: None, new_name: node})


def open_store(disk: Disk, **options: str | None) -> Store:
    return Store.open(disk, DATA, **options)  # type: ignore[arg-type]


def reopened(disk: SimDisk, *, power_cut: bool = False) -> Store:
    if power_cut:
        disk.power_cut()
    else:
        disk.crash()
    return open_store(disk)


def host(
    store: Store,
    partition: int,
    *,
    id_: str = FIRST,
    name: str = "clicks",
    total: int = 4,
    count: int = 0,
    **overrides: str,
) -> Log:
    """Host a partition, and append ``count`` batches."""
    settings = {key.replace("_", "."): value for key, value in overrides.items()}
    (log,) = store.host_partitions(
        name, id_, (partition,), total_partitions=total, overrides=settings
    )
    fill(log, count)
    return log


def create_topic(
    store: Store, name: str, *, partitions: int = 1, config: Mapping[str, str] | None = None
) -> Topic:
    """Host all partitions of a new topic."""
    count = range(partitions)
    id_ = uuid.uuid4().hex
    store.host_partitions(name, id_, count, total_partitions=partitions, overrides=config or {})
    return store.topic(name)


def add_partitions(store: Store, name: str, total: int) -> Topic:
    """Host further partitions of a topic, up to ``total``."""
    topic = store.topic(name)
    new = range(topic.partitions, total)
    store.host_partitions(name, topic.id, new, total_partitions=total, overrides=topic.overrides)
    return store.topic(name)


def delete_topic(store: Store, name: str) -> Topic:
    """Drop all partitions of a topic."""
    topic = store.topic(name)
    store.drop_partitions(topic.id, topic.local)
    return topic


def paths_of(disk: SimDisk) -> list[str]:
    """Every directory below ``topics``: topic names, ids and partitions."""
    found = []
    for name in disk.list_dir(f"{DATA}/topics"):
        for id_ in disk.list_dir(f"{DATA}/topics/{name}"):
            names = disk.list_dir(f"{DATA}/topics/{name}/{id_}")
            found += [f"{name}/{id_}/{partition}" for partition in names] or [f"{name}/{id_}"]
    return found


def hosted(store: Store) -> dict[tuple[str, int], int]:
    """How many records each hosted partition holds."""
    return {(topic.id, partition): log.log_end_offset for topic, partition, log in store.hosted()}
