"""Partition selection for records with keys. Pure. Hashes keys exactly as Kafka's clients do.

Records without keys go to one partition until its batch is full or sent, and then to the next: full
batches cost less than an even distribution of records. ``accumulator`` implements that, because it
owns the batches. This module hashes keys and groups records.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from itertools import repeat
from operator import index
from typing import SupportsIndex, TypeAlias

from murmurhash2 import murmurhash2

from raftlog.errors import InvalidRequestError
from raftlog.record.key_hash import KAFKA_SEED, POSITIVE, partition_of_key

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


def partitions_of_keys(keys: Sequence[bytes], partition_count: int) -> list[int]:
    """``partition_of_key`` of many keys at once."""
    hashes = map(murmurhash2, keys, repeat(KAFKA_SEED))
    return [(digest & POSITIVE) % partition_count for digest in hashes]


def checked(partition: object, partition_count: int, topic: str) -> int:
    """Return the result of a custom partitioner, if it is a partition of ``topic``.

    Raises ``InvalidRequestError`` if it is not.
    """
    if isinstance(partition, SupportsIndex) and 0 <= index(partition) < partition_count:
        return index(partition)
    raise InvalidRequestError(
        f"the partitioner returned {partition!r} for topic {topic!r}, which has {partition_count} "
        f"partitions. It must return an int from 0 to {partition_count - 1}"
    )


def groups(partitions: Iterable[int]) -> Iterable[tuple[int, list[int]]]:
    """Return (partition, indexes of its records in input order) for each partition that occurs.

    Partitions are in the order of their first record.
    """
    found: dict[int, list[int]] = {}
    for row, partition in enumerate(partitions):
        indexes = found.get(partition)
        if indexes is None:
            found[partition] = [row]
        else:
            indexes.append(row)
    return found.items()
