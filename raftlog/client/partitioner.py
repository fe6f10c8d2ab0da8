"""Which partition a record goes to. Keys are hashed exactly as Kafka's clients do it. Pure.

Keyless records go to one partition until its batch is full or sent, then to the next: full batches
cost less than fair ones. That is decided where batches are (``accumulator``); here are keys and
grouping.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import repeat
from operator import index
from typing import TYPE_CHECKING, SupportsIndex, TypeAlias

from murmurhash2 import murmurhash2

from raftlog.errors import InvalidRequestError
from raftlog.record.key_hash import KAFKA_SEED, POSITIVE, partition_of_key

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt

# (topic, key, value, partition count) -> partition; key and value as serialized.
Partitioner: TypeAlias = Callable[[str, bytes | None, bytes | None, int], int]

__all__ = [
    "KAFKA_SEED",
    "POSITIVE",
    "Partitioner",
    "checked",
    "groups",
    "partition_of_key",
    "partitions_of_keys",
]


def partitions_of_keys(keys: Sequence[bytes], partition_count: int) -> npt.NDArray[np.int64]:
    """``partition_of_key`` of many keys at once."""
    import numpy as np

    hashes = np.fromiter(map(murmurhash2, keys, repeat(KAFKA_SEED)), np.uint32, len(keys))
    return ((hashes & POSITIVE) % partition_count).astype(np.int64)


def checked(partition: object, partition_count: int, topic: str) -> int:
    """What a user's partitioner returned, if it is a partition of ``topic``."""
    if isinstance(partition, SupportsIndex) and 0 <= index(partition) < partition_count:
        return index(partition)
    raise InvalidRequestError(
        f"the partitioner returned {partition!r} for topic {topic!r}, which has {partition_count} "
        f"partitions: it must return an int from 0 to {partition_count - 1}"
    )


def groups(
    partitions: npt.NDArray[np.int64],
) -> list[tuple[int, npt.NDArray[np.int64]]]:
    """(partition, indexes of its records in input order) for each partition that occurs.

    In the order in which the partitions first occur.
    """
    import numpy as np

    assert len(partitions), "no records, no groups"
    order = np.argsort(partitions, kind="stable")  # stable: a key's records stay in input order
    grouped = partitions[order]
    starts = np.flatnonzero(np.r_[True, grouped[1:] != grouped[:-1]])
    found = [
        (int(grouped[start]), indexes)
        for start, indexes in zip(starts, np.split(order, starts[1:]), strict=True)
    ]
    found.sort(key=lambda group: int(group[1][0]))
    return found
