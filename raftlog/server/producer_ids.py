"""Producer ids: random, so that nobody can guess another producer's.

A batch under a producer's id and next sequence passes for that producer's own: the real one is then
taken for a retry, acknowledged and not stored. So an id must not follow from others that a client
has seen.

Nothing remembers which ids were given, and no two brokers agree on them. Two producers harm each
other only if they have one id and write to one partition, which remembers at most 100,000 producers
(``limits``): the chance that a new id is among so many is 100,000 / 2^62, or 1 in 46 million
million. For any two of so many, it is 1 in 900 million.

Ids are below 2^62. From there on lie the ids of producers with a name (ADR 17).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

PRODUCER_ID_BITS: Final = 62


def draw(entropy: Callable[[int], bytes]) -> int:
    """A new producer id. ``entropy``: as many unguessable bytes as it is asked for."""
    return int.from_bytes(entropy(8)) >> (64 - PRODUCER_ID_BITS)
