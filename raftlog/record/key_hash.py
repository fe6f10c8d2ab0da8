"""The partition of a key or a name, by the hash that Kafka's clients use.

Producers select the partition of a record by it, and consumer groups their coordinator.
"""

from __future__ import annotations

from typing import Final

from murmurhash2 import murmurhash2

KAFKA_SEED: Final = 0x9747B28C
POSITIVE: Final = 0x7FFF_FFFF  # Kafka clears the sign bit, it does not compute the absolute value


def partition_of_key(key: bytes, partition_count: int) -> int:
    """Return the partition of ``key``: the same as Kafka's clients select."""
    return int(murmurhash2(key, KAFKA_SEED) & POSITIVE) % partition_count
