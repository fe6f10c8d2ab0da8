"""Who votes: read, written, refused."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from raftlog import limits
from raftlog.config import Address, Voter, parse_voters
from raftlog.config.broker import show_voters


def test_voters_are_read_in_order_of_their_ids() -> None:
    voters = parse_voters(" 10@c:3, 2@[::1]:2,1@a:1 ")
    assert voters == ((1, Address("a", 1)), (2, Address("::1", 2)), (10, Address("c", 3)))
    assert show_voters(voters) == "1@a:1,2@[::1]:2,10@c:3"


@pytest.mark.parametrize("text", ["", "  "])
def test_no_voters(text: str) -> None:
    assert parse_voters(text) == ()
    assert show_voters(()) == ""


@given(
    st.dictionaries(
        st.integers(0, (1 << 31) - 1),
        st.integers(1, 65_535),
        max_size=limits.VOTERS_PER_CLUSTER_MAX,
    )
)
def test_what_is_written_is_read_alike(ports: dict[int, int]) -> None:
    voters = tuple(Voter(id_, Address(f"host-{id_}", port)) for id_, port in sorted(ports.items()))
    assert parse_voters(show_voters(voters)) == voters


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("a:1", "is not ID@HOST:PORT"),
        ("1@a:1,", "'' is not ID@HOST:PORT"),
        ("@a:1", "not a broker id"),
        ("x@a:1", "not a broker id"),
        ("-1@a:1", "not a broker id"),
        ("٣@a:1", "not a broker id"),
        ("2147483648@a:1", "not a broker id"),
        ("1" * 5_000 + "@a:1", "not a broker id"),
        ("1@a", "HOST:PORT"),
        ("1@a:0", "1@a:0: the port must not be 0"),
        ("1@a:1,2@b:2,1@c:3", "broker id 1 is listed twice"),
        ("1@a:1,2@b:2,3@a:1", "a:1 is the address of both 1 and 3"),
        (",".join(f"{n}@a:{n}" for n in range(1, 17)), "16 voters; the limit is 15"),
    ],
)
def test_what_is_no_list_of_voters_is_refused_with_the_reason(text: str, words: str) -> None:
    with pytest.raises(ValueError, match=words):
        parse_voters(text)
