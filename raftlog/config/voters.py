"""Voters of the cluster state as text, ``1@host:port,2@host:port``."""

from __future__ import annotations

from itertools import pairwise
from typing import Final, NamedTuple

from raftlog import limits
from raftlog.config.address import Address, parse_address

BROKER_ID_MAX: Final = (1 << 31) - 1


class Voter(NamedTuple):
    """A voter: broker id, and the address at which other brokers connect to it."""

    id: int
    address: Address

    def __str__(self) -> str:
        return f"{self.id}@{self.address}"


def parse_voters(text: str) -> tuple[Voter, ...]:
    """Parse voters, sorted by id; none for an empty text.

    Raises ``ValueError`` with the reason: no ``ID@HOST:PORT``, a duplicate id or address, port 0
    (other brokers cannot know the assigned port), or too many voters.
    """
    voters = sorted(map(_voter, text.split(","))) if text.strip() else []
    if len(voters) > limits.VOTERS_PER_CLUSTER_MAX:
        raise ValueError(f"{len(voters)} voters; the limit is {limits.VOTERS_PER_CLUSTER_MAX}")
    for one, other in pairwise(voters):
        if one.id == other.id:
            raise ValueError(f"broker id {one.id} is listed twice")
    holders: dict[Address, int] = {}
    for voter in voters:
        holder = holders.setdefault(voter.address, voter.id)
        if holder != voter.id:
            raise ValueError(f"{voter.address} is the address of both {holder} and {voter.id}")
    return tuple(voters)


def show_voters(voters: tuple[Voter, ...]) -> str:
    """Return the text for ``parse_voters``."""
    return ",".join(map(str, voters))


def _voter(text: str) -> Voter:
    id_, at, address = text.strip().partition("@")
    if not at:
        raise ValueError(f"{text.strip()!r} is not ID@HOST:PORT, as in 1@10.0.0.1:9100")
    # Bounds the number of digits, which int() limits.
    is_number = id_.isascii() and id_.isdigit() and len(id_) <= len(str(BROKER_ID_MAX))
    if not is_number or int(id_) > BROKER_ID_MAX:
        raise ValueError(f"{id_[:100]!r} is not a broker id (0 to {BROKER_ID_MAX})")
    voter = Voter(int(id_), parse_address(address))
    if voter.address.port == 0:
        raise ValueError(f"{voter}: the port must not be 0, so that other brokers can connect")
    return voter
