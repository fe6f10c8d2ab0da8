"""Every member has a place, reaches brokers from there unless it is cut off, and leaves nothing."""

from __future__ import annotations

import os
import socket

import pytest

from raftlog.config.address import Address
from raftlog_jepsen.control.namespaces import CONTROL, COUNT_MAX, MemberPlaces, Namespaces
from tests.jepsen_like.places import in_its_own_network

PORT = 9100


def addresses(spaces: Namespaces) -> dict[int, Address]:
    return {broker: Address(spaces.address(broker), PORT) for broker in spaces.ids}


def listening(spaces: Namespaces, broker: int) -> socket.socket:
    ear = spaces.socket(broker)
    ear.bind((spaces.address(broker), PORT))
    ear.listen()
    return ear


@pytest.mark.integration
@in_its_own_network
def test_a_member_reaches_brokers_until_it_is_cut_off() -> None:
    with (
        Namespaces(2) as spaces,
        MemberPlaces(spaces, addresses(spaces), 2) as places,
        listening(spaces, 1),
        listening(spaces, 2),
    ):
        reached = [places.reaches(slot, broker) for slot in (1, 2) for broker in (1, 2)]
        assert reached == [True] * 4
        places.cut(1, [2])
        assert [places.reaches(1, 1), places.reaches(1, 2)] == [True, False]
        assert [places.reaches(2, 1), places.reaches(2, 2)] == [True, True]
        places.cut(1, [1, 2])
        assert [places.reaches(1, 1), places.reaches(1, 2)] == [False, False]
        places.mend(1)
        assert [places.reaches(1, 1), places.reaches(1, 2)] == [True, True]
        places.mend(1)


@pytest.mark.integration
@in_its_own_network
def test_commands_run_in_a_members_place_and_this_thread_stays_where_it_is() -> None:
    with Namespaces(1) as spaces:
        before = os.readlink("/proc/thread-self/ns/net")
        with MemberPlaces(spaces, addresses(spaces), 2) as places:
            assert places.prefix(1) != places.prefix(2)
            places.reaches(2, 1)
            assert os.readlink("/proc/thread-self/ns/net") == before
        assert {name for _, name in socket.if_nameindex()} == {"lo", "br0", "v1"}
        with MemberPlaces(spaces, addresses(spaces), 2) as places:  # nothing is in the way
            assert spaces.address(CONTROL)


@pytest.mark.parametrize("count", [0, COUNT_MAX + 1])
def test_only_so_many_fit(count: int) -> None:
    with pytest.raises(ValueError, match="Use 1 to 100"):
        MemberPlaces(Namespaces(1), {}, count)
