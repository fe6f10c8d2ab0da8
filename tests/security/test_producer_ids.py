"""Whose a producer id is."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from raftlog.security.acl import Principal
from raftlog.security.producer_ids import (
    MEMBER_BITS,
    NAMED_ID_BASE,
    is_owner,
    member_id,
    named_id,
    owned_id,
)

PRINCIPALS = st.text(min_size=1).map(lambda name: Principal("User", name))
RANDOM = st.integers(0, (1 << 62) - 1)


@given(principal=PRINCIPALS, random=RANDOM)
def test_an_id_is_its_owners(principal: Principal, random: int) -> None:
    id_ = owned_id(principal, random)
    assert 0 <= id_ < NAMED_ID_BASE
    assert is_owner(principal, id_)


@given(principal=PRINCIPALS, random=RANDOM, other=RANDOM)
def test_ids_of_a_principal_differ_in_42_bits(
    principal: Principal, random: int, other: int
) -> None:
    is_same = owned_id(principal, random) == owned_id(principal, other)
    assert is_same == ((random ^ other) & ((1 << 42) - 1) == 0)


def test_an_id_is_no_one_elses() -> None:
    owners = [Principal("User", f"u{number}") for number in range(300)]
    id_ = owned_id(owners[0], 5)
    assert [owner for owner in owners if is_owner(owner, id_)] == owners[:1]


def test_the_mapping_does_not_change() -> None:
    """Producers hold their ids while brokers are upgraded."""
    assert owned_id(Principal("User", "alice"), 5) >> 42 == 418961
    assert named_id("copy-2024-05-01") == 7044026938543915573
    assert member_id("copy-2024-05-01", 7) == 7044026938543833095


def test_members_of_a_family_differ_in_their_number_only() -> None:
    ids = [member_id("job", member) for member in (0, 1, (1 << MEMBER_BITS) - 1)]
    assert len({one >> MEMBER_BITS for one in ids}) == 1
    assert [one % (1 << MEMBER_BITS) for one in ids] == [0, 1, (1 << MEMBER_BITS) - 1]
    assert all(NAMED_ID_BASE <= one < 1 << 63 for one in ids)
    assert member_id("other job", 0) >> MEMBER_BITS != ids[0] >> MEMBER_BITS
