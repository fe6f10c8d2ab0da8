"""Producer ids: which principal may write under an id (ADR 44).

    from 2^62           of a name (ADR 17): 62 bits of xxh3 of the name
    below, without       62 random bits (ADR 24)
    authentication
    below, with          20 bits of xxh3 of the principal, then 42 random bits
    authentication

A broker recognizes the ids of a principal without a registry that all brokers would have to agree
on. Two principals have the same 20 bits with a probability of one in a million. Two of 1,000
producers of one principal have the same id with a probability of one in nine million.
"""

from __future__ import annotations

from typing import Final

from xxhash import xxh3_64_intdigest

from raftlog.security.principal import Principal

NAMED_ID_BASE: Final = 1 << 62
RANDOM_BITS: Final = 42
_OWNER_BITS: Final = 62 - RANDOM_BITS


def named_id(name: str) -> int:
    """Return the producer id of a name: from 2^62 to 2^63-1, the same in every process.

    62 bits of xxh3 (seed 0) of the name in UTF-8. The probability that two of a million names have
    the same id is one in 9 million. Raises ``UnicodeEncodeError``.
    """
    return NAMED_ID_BASE | (xxh3_64_intdigest(name.encode()) & (NAMED_ID_BASE - 1))


def owned_id(principal: Principal, random: int) -> int:
    """Return an id of a principal. ``random``: 62 random bits, of which 42 are used."""
    return _owner(principal) << RANDOM_BITS | random & ((1 << RANDOM_BITS) - 1)


def is_owner(principal: Principal, producer_id: int) -> bool:
    """Whether an id below 2^62 is one of this principal."""
    return producer_id >> RANDOM_BITS == _owner(principal)


def _owner(principal: Principal) -> int:
    return xxh3_64_intdigest(str(principal).encode()) >> (64 - _OWNER_BITS)
