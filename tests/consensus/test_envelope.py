"""What is a message and what is not."""

from __future__ import annotations

from contextlib import suppress
from typing import Any

import msgpack
import pytest
from hypothesis import given
from hypothesis import strategies as st

from raftlog.consensus import transport
from raftlog.consensus.settings import (
    APPEND_ENTRIES_MAX,
    BASE_BYTES_MAX,
    BROKER_ID_MAX,
    DIRECTORY_ID_CHARS_MAX,
    ENVELOPE_BYTES_MAX,
    GROUP_ID_CHARS_MAX,
    MESSAGES_PER_ENVELOPE_MAX,
    NUMBER_MAX,
    VOTERS_MAX,
)
from raftlog.consensus.transport import COMMAND, Envelope, EnvelopeError, Message, decode, encode

VOTERS = [[1, "one"], [2, "two"]]
ENTRY = bytes([COMMAND]) + b"set"
SEAL = transport.encode_seal({1: "one", 2: ""})
GOOD: list[Message] = [
    ["t/0", 0, 0, transport.HELLO, True],
    ["t/0", 7, 0, transport.OFFER, VOTERS, b"base"],
    ["t/0", 0, 3, transport.PRE_VOTE, 1, 3, 5],
    ["t/0", 0, 3, transport.PRE_VOTE_ANSWER, 1, False],
    ["t/0", 0, 3, transport.VOTE, 3, 5],
    ["t/0", 0, 3, transport.VOTE_ANSWER, True],
    ["t/0", 0, 3, transport.APPEND, 1, 0, 1, [[1, b"\x01"], [3, ENTRY]]],
    ["t/0", 0, 3, transport.APPEND_ANSWER, True, 1, 3],
    ["t/0", 0, 3, transport.PROPOSE, 12, SEAL],
    ["t/0", 0, 3, transport.PROPOSED, 12, 3],
    ["t/0", 0, 3, transport.REFUSED, 12],
]


def wrap(*messages: Any) -> bytes:
    return encode(Envelope(1, 2, 3, "disk", 4, list(messages)))


def test_what_is_encoded_is_decoded() -> None:
    sent = Envelope(1, 2, 3, "disk", 4, GOOD)
    assert decode(encode(sent)) == sent


@pytest.mark.parametrize(
    "change",
    [
        (0, ""),
        (0, "x" * (GROUP_ID_CHARS_MAX + 1)),
        (0, b"t/0"),
        (1, -1),
        (1, NUMBER_MAX + 1),
        (2, True),
        (2, 1.0),
        (3, 99),
        (3, None),
        (4, NUMBER_MAX + 1),
        (4, "1"),
        (7, None),
        (7, [[1]]),
        (7, [[1, b""]]),
        (7, [[1, "text"]]),
        (7, [[2, ENTRY], [1, ENTRY]]),
        (7, [[1, ENTRY]] * (APPEND_ENTRIES_MAX + 1)),
        (7, [[1, bytes(transport.ENTRY_BYTES_MAX + 1)]]),
    ],
)
def test_a_message_of_other_types_lengths_or_ranges_is_refused(change: tuple[int, Any]) -> None:
    place, value = change
    message = list(GOOD[6])
    decode(wrap(message))
    message[place] = value
    with pytest.raises(EnvelopeError):
        decode(wrap(message))


@pytest.mark.parametrize("message", GOOD, ids=lambda message: str(message[3]))
def test_a_field_too_few_or_too_many_is_refused(message: Message) -> None:
    for wrong in (message[:-1], [*message, 0], {}, None, "x"):
        with pytest.raises(EnvelopeError):
            decode(wrap(wrong))


@pytest.mark.parametrize(
    "voters",
    [
        [],
        [[1, "one"], [1, "two"]],
        [[-1, "one"]],
        [[BROKER_ID_MAX + 1, "one"]],
        [["1", "one"]],
        [[1, "x" * (DIRECTORY_ID_CHARS_MAX + 1)]],
        [[each, ""] for each in range(VOTERS_MAX + 1)],
    ],
)
def test_voters_that_are_none_are_refused(voters: list[Any]) -> None:
    message = ["t/0", 7, 0, transport.OFFER, voters, b""]
    assert not transport.is_message(message)
    assert transport.decode_seal(bytes([transport.SEAL]) + msgpack.packb(voters)) is None


def test_a_base_over_its_limit_is_refused() -> None:
    assert not transport.is_message(
        ["t/0", 7, 0, transport.OFFER, VOTERS, bytes(BASE_BYTES_MAX + 1)]
    )


@pytest.mark.parametrize("entry", [b"", b"\x01", b"\x03x", bytes([transport.SEAL]) + b"\xc1"])
def test_only_commands_and_seals_may_be_proposed(entry: bytes) -> None:
    assert not transport.is_proposable(entry)
    assert transport.is_proposable(ENTRY)
    assert transport.is_proposable(SEAL)


def test_an_envelope_over_its_limits_is_refused() -> None:
    with pytest.raises(EnvelopeError, match="bytes"):
        decode(bytes(ENVELOPE_BYTES_MAX + 1))
    with pytest.raises(EnvelopeError, match="messages"):
        decode(wrap(*[GOOD[0]] * (MESSAGES_PER_ENVELOPE_MAX + 1)))


@pytest.mark.parametrize("place", range(6))
def test_an_envelopes_own_fields_are_checked(place: int) -> None:
    fields: list[Any] = [1, 2, 3, "disk", 4, []]
    decode(msgpack.packb(fields))
    for wrong in (-1, 1.5, None, True, NUMBER_MAX + 1, b"disk", {}):
        with pytest.raises(EnvelopeError):
            decode(msgpack.packb([*fields[:place], wrong, *fields[place + 1 :]]))


def test_seals_say_their_voters() -> None:
    assert transport.decode_seal(SEAL) == {1: "one", 2: ""}


@given(st.binary(max_size=200))
def test_arbitrary_bytes_are_refused_in_one_way(data: bytes) -> None:
    with suppress(EnvelopeError):
        decode(data)


ANYTHING = st.recursive(
    st.none() | st.booleans() | st.integers(-(1 << 63), (1 << 64) - 1) | st.floats() | st.text()
    | st.binary() | st.builds(msgpack.Timestamp, st.integers(0, 1 << 33))
    | st.builds(msgpack.ExtType, st.integers(0, 127), st.binary(max_size=5)),
    lambda inner: st.lists(inner, max_size=5) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=20,
)  # fmt: skip


@given(st.lists(ANYTHING, min_size=6, max_size=6) | ANYTHING)
def test_arbitrary_msgpack_is_refused_in_one_way(value: Any) -> None:
    with suppress(EnvelopeError):
        decode(msgpack.packb(value))


@given(st.sampled_from(GOOD), st.integers(0, 7), ANYTHING)
def test_a_message_with_one_field_of_anything_is_good_or_refused(
    message: Message, place: int, value: Any
) -> None:
    changed = [*message[:place], value, *message[place + 1 :]]
    if transport.is_message(changed):
        assert decode(wrap(changed)).messages == [changed]
        assert transport.size_of(changed) > 0
    else:
        with pytest.raises(EnvelopeError):
            decode(wrap(changed))
