"""The hash of a key, as Kafka's clients compute it: which partition a key, or a name, belongs to.

Below producers, which place records by it, and below groups, which find their coordinator by it.
"""

from __future__ import annotations

from typing import Final

from murmurhash2 import murmurhash2

KAFKA_SEED: Final = 0x9747B28C
POSITIVE: Final = 0x7FFF_FFFF  # Kafka drops the sign bit, it does not take the absolute value


def partition_of_key(key: bytes, partition_count: int) -> int:
    """The partition of ``key``: the same as in Kafka's clients for the same partition count."""
    return int(murmurhash2(key, KAFKA_SEED) & POSITIVE) % partition_count
