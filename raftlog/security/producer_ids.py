"""Producer IDs, and the principals that may use them (ADR 44).

    from 2^62           of a named producer (ADR 17): 62 bits of xxh3 of the name; of a member of
                        a family (ADR 83): 42 bits of xxh3 of the family, then its number
    below, without       62 random bits (ADR 24)
    authentication
    below, with          20 bits of xxh3 of the principal, then 42 random bits
    authentication

A broker recognizes the IDs of a principal without a replicated registry. Two principals have the
same 20 bits with a probability of one in a million. Two of 1,000 producers of one principal have
the same ID with a probability of one in nine million.
"""

from __future__ import annotations

from typing import Final

from xxhash import xxh3_64_intdigest

from raftlog.security.acl import Principal

NAMED_ID_BASE: Final = 1 << 62
MEMBER_BITS: Final = 20  # of the number of a member of a family
MEMBERS: Final = 1 << MEMBER_BITS
RANDOM_BITS: Final = 42
_OWNER_BITS: Final = 62 - RANDOM_BITS


def named_id(name: str) -> int:
    """Return the producer ID of a name: from 2^62 to 2^63-1, the same in every process.

    62 bits of xxh3 (seed 0) of the name in UTF-8. The probability that two of a million names have
    the same ID is one in 9 million. Raises ``UnicodeEncodeError``.
    """
    return NAMED_ID_BASE | (xxh3_64_intdigest(name.encode()) & (NAMED_ID_BASE - 1))


def member_id(family: str, member: int) -> int:
    """Return the producer ID of a member of a family of named producers, 0 to MEMBERS - 1.

    All IDs of a family differ in their lowest MEMBER_BITS only, so a broker finds its members
    without a list of their names. The probability that two of a million families have the same IDs
    is one in nine: too many for one partition, which knows 100,000 producers; of 1,000 families, it
    is one in nine million. Raises ``UnicodeEncodeError``.
    """
    assert 0 <= member < MEMBERS, "the caller has checked the number"
    return named_id(family) >> MEMBER_BITS << MEMBER_BITS | member


def owned_id(principal: Principal, random: int) -> int:
    """Return an ID of a principal. ``random``: 62 random bits, of which 42 are used."""
    return _owner(principal) << RANDOM_BITS | random & ((1 << RANDOM_BITS) - 1)


def is_owner(principal: Principal, producer_id: int) -> bool:
    """Return whether an ID below 2^62 belongs to this principal."""
    return producer_id >> RANDOM_BITS == _owner(principal)


def _owner(principal: Principal) -> int:
    return xxh3_64_intdigest(str(principal).encode()) >> (64 - _OWNER_BITS)
