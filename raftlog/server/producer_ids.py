"""Producer ids: random, so that no client can guess the id of another producer.

A batch with a producer's id and next sequence number counts as that producer's own: the broker
would then treat the real batch as a retry, and acknowledge it without storing it. So an id must not
follow from others that a client has seen.

No broker remembers assigned ids, and brokers do not coordinate them. Two producers affect each
other only if they have the same id and write to the same partition, which remembers at most 100,000
producers (``limits``): the probability that a new id is among them is 100,000 / 2^62, or 1 in 46
million million. For any two of 100,000 producers, it is 1 in 900 million.

Ids are below 2^62. Ids of named producers start there (ADR 17). If clients authenticate, an id is
bound to the principal of its client (``raftlog.security.producer_ids``).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from raftlog.security.principal import Principal
from raftlog.security.producer_ids import owned_id

PRODUCER_ID_BITS: Final = 62


def draw(entropy: Callable[[int], bytes], principal: Principal | None = None) -> int:
    """Return a new producer id. ``entropy``: returns the requested number of unpredictable
    bytes. ``principal``: the owner, if clients authenticate.
    """
    random = int.from_bytes(entropy(8)) >> (64 - PRODUCER_ID_BITS)
    return random if principal is None else owned_id(principal, random)
