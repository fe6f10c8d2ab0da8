"""Loss or rollback of stored files on a simulated broker's disk.

As after a missing mount, fsck or a partial restore: identity, catalog and consensus journal remain.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from random import Random
from typing import Final

from raftlog.storage.segment import LOG_SUFFIX
from raftlog.testing.disk import SimDisk
from raftlog.testing.simulator.process import DATA_DIRECTORY, LOG_DIRECTORY

TOPICS: Final = f"{DATA_DIRECTORY}/topics"
MORE_TOPICS: Final = f"{LOG_DIRECTORY}/topics"


def partitions(disk: SimDisk) -> list[str]:
    """Return the directories of all partitions, also of quarantined ones."""
    found = [TOPICS, MORE_TOPICS]
    for _level in ("topic name", "topic id", "partition"):
        found = [f"{path}/{name}" for path in found for name in disk.list_dir(path)]
    return found


def _all_topics(disk: SimDisk, _random: Random) -> bool:
    for path in (TOPICS, MORE_TOPICS):
        if disk.exists(path):
            disk.lose(path)
    return True


def _all_topics_and_their_record(disk: SimDisk, random: Random) -> bool:
    """Also remove the catalog in some cases. Identity and consensus journal remain."""
    disk.lose(f"{DATA_DIRECTORY}/copies")
    if random.random() < 0.5:
        disk.lose(f"{DATA_DIRECTORY}/catalog")
    return _all_topics(disk, random)


def _directories(disk: SimDisk, random: Random) -> bool:
    for directory in _some(disk, random):
        disk.lose(directory)
    return True


def _contents(disk: SimDisk, random: Random) -> bool:
    for directory in _some(disk, random):
        for name in disk.list_dir(directory):
            disk.lose(f"{directory}/{name}")
    return True


def _one_file(disk: SimDisk, random: Random) -> bool:
    directories = [path for path in partitions(disk) if disk.list_dir(path)]
    if not directories:
        return False
    directory = random.choice(directories)
    names = disk.list_dir(directory)
    disk.lose(f"{directory}/{random.choice(names)}")
    return True


def _checkpoints_and_tails(disk: SimDisk, random: Random) -> bool:
    for directory in _some(disk, random):
        for name in disk.list_dir(directory):
            path = f"{directory}/{name}"
            if not name.endswith(LOG_SUFFIX):
                disk.lose(path)
            elif random.random() < 0.5:
                disk.cut_off(path, random.randrange(4_096))
    return True


def _some(disk: SimDisk, random: Random) -> list[str]:
    """Return the directory of one partition, or of all."""
    found = partitions(disk)
    return found if random.random() < 0.5 else [random.choice(found)]


WAYS: Final[Mapping[str, Callable[[SimDisk, Random], bool]]] = {
    "all topics": _all_topics,
    "all topics and their record": _all_topics_and_their_record,
    "directories": _directories,
    "contents": _contents,
    "one file": _one_file,
    "checkpoints and tails": _checkpoints_and_tails,
}


# Ways that a running broker detects. It may detect the others only at its next start.
WAYS_AT_WORK: Final = ("all topics", "directories", "contents")


def lose_files(disk: SimDisk, random: Random, ways: Sequence[str] = tuple(WAYS)) -> str:
    """Remove files of partitions in one of ``ways``. Returns that way; "" without a removal."""
    if not partitions(disk):
        return ""
    way = random.choice(ways)
    return way if WAYS[way](disk, random) else ""
