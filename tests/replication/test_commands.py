"""Commands: what is encoded is decoded, and other bytes are refused and never believed."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from raftlog.replication.partition_state import (
    DIRECTORY_ID_CHARS_MAX,
    VOTERS_MAX,
    ChangeIsr,
    ChangeReplicas,
    Command,
    Elect,
    ElectUnclean,
    decode_command,
)

counters = st.integers(0, (1 << 63) - 1)
brokers = st.integers(0, (1 << 31) - 1)
directories = st.text(st.characters(codec="utf-8"), min_size=1, max_size=40)
several = st.lists(brokers, max_size=5).map(tuple)
commands = st.one_of(
    st.builds(Elect, counters, brokers, directories, counters),
    st.builds(ElectUnclean, counters, brokers, directories, counters),
    st.builds(ChangeReplicas, counters, several, several),
    st.builds(
        ChangeIsr,
        counters,
        counters,
        st.dictionaries(brokers, directories, max_size=5),
        st.integers(1, (1 << 31) - 1),
        several,
    ),
)


@given(command=commands)
def test_a_command_survives_its_encoding(command: Command) -> None:
    assert decode_command(command.encode()) == command


def test_equal_commands_have_equal_bytes() -> None:
    one = ChangeIsr(1, 2, {3: "c", 1: "a"}, 1)
    other = ChangeIsr(1, 2, {1: "a", 3: "c"}, 1)
    assert one.encode() == other.encode()


def test_the_bytes_are_these() -> None:
    """They are in journals: a change here is a change of format."""
    assert Elect(7, 2, "disk", 3).encode() == b"\x01\x94\x07\x02\xa4disk\x03"
    assert ChangeIsr(7, 5, {1: "a", 2: "b"}, 2, (3,)).encode() == (
        b"\x02\x95\x07\x05\x82\x01\xa1a\x02\xa1b\x02\x91\x03"
    )
    assert ChangeReplicas(7, (1, 2), (3,)).encode() == b"\x03\x93\x07\x92\x01\x02\x91\x03"
    assert ElectUnclean(7, 2, "disk").encode() == b"\x04\x94\x07\x02\xa4disk\x00"


@given(data=st.binary(max_size=60))
def test_any_bytes_are_a_command_or_a_value_error(data: bytes) -> None:
    try:
        decode_command(data)
    except ValueError:
        return
    assert data[0] in {1, 2, 3, 4}


@given(command=commands, cut=st.integers(1, 200))
def test_a_command_that_is_cut_short_is_refused(command: Command, cut: int) -> None:
    data = command.encode()
    with pytest.raises(ValueError):
        decode_command(data[: max(0, len(data) - cut)])


@pytest.mark.parametrize(
    "command",
    [
        Elect(-1, 2, "disk"),
        Elect(1, -2, "disk"),
        Elect(1, 1 << 31, "disk"),
        Elect(1, 2, ""),
        Elect(1, 2, "x" * (DIRECTORY_ID_CHARS_MAX + 1)),
        ChangeIsr(1, 2, {1: "d"}, 0),
        ChangeIsr(1, 2, {1: "d"}, 1 << 31),
        ChangeReplicas(1, tuple(range(VOTERS_MAX + 1)), ()),
        ChangeIsr(1, 2, dict.fromkeys(range(VOTERS_MAX + 1), "d"), 1),
    ],
)
def test_values_out_of_bounds_are_refused(command: Command) -> None:
    with pytest.raises(ValueError):
        decode_command(command.encode())


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"\x00\x90",
        b"\x05\x90",
        b"\x01" + Elect(7, 2, "disk").encode()[1:] + b"\x00",  # something behind it
        b"\x01\x93\x07\x02\xa4disk",  # a field too few
        b"\x01\x95\x07\x02\xa4disk\x03\x00",  # a field too many
        b"\x01\x94\x07\x02\xa2\xff\xff\x03",  # no UTF-8
        b"\x01" + b"\x91" * 10_000,  # arrays in arrays
    ],
)
def test_malformed_bytes_are_refused(data: bytes) -> None:
    with pytest.raises(ValueError):
        decode_command(data)
