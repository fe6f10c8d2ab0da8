"""What is a message and what is not."""

from __future__ import annotations

from contextlib import suppress
from typing import Any

import msgpack
import pytest
from hypothesis import given
from hypothesis import strategies as st

from raftlog.consensus import Applied, CommandFailed, StateMachine, transport
from raftlog.consensus import transport as envelope
from raftlog.consensus.raft_group import PeerNode
from raftlog.consensus.settings import (
    APPEND_ENTRIES_MAX,
    BASE_BYTES_MAX,
    BROKER_ID_MAX,
    DIRECTORY_ID_CHARS_MAX,
    ENVELOPE_BYTES,
    ENVELOPE_BYTES_MAX,
    MESSAGES_PER_ENVELOPE_MAX,
    NUMBER_MAX,
    OUTBOX_BYTES_MAX,
    RAFT_ID_CHARS_MAX,
    SEQUENCE_JUMP_MAX,
    VOTERS_MAX,
    ConsensusSettings,
)
from raftlog.consensus.transport import (
    COMMAND,
    Envelope,
    EnvelopeError,
    Link,
    Message,
    PeerTransport,
    decode,
    encode,
)
from tests.consensus.harness import GROUP, ListMachine, Network

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
        (0, "x" * (RAFT_ID_CHARS_MAX + 1)),
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


# -- peer transport --------------------------------------------------------------------------------
#
# Sessions, sequences and outboxes of one link.


PEER_TRANSPORT_COMMAND = bytes([envelope.COMMAND])
HELLO = ["t/0", 0, 0, envelope.HELLO, True]


def link_up(directory_id: str = "peer's", boot: int = 5) -> Link:
    link = Link()
    link.up(directory_id, boot)
    return link


def arriving(
    link: int, sequence: int, *, boot: int = 5, directory_id: str = "peer's", journal: int = 0
) -> Envelope:
    return Envelope(boot, link, sequence, directory_id, journal, [])


def test_envelopes_carry_session_and_sequence() -> None:
    link = link_up()
    for _ in range(2):
        link.post(HELLO)
    (first,) = link.collect(9, "ours", 70)
    link.post(HELLO)
    (second,) = link.collect(9, "ours", 70)
    link.up("peer's", 5)
    link.post(HELLO)
    (third,) = link.collect(9, "ours", 70)
    assert decode(first) == Envelope(9, 1, 1, "ours", 70, [HELLO, HELLO])
    assert decode(second)[1:3] == (1, 2)
    assert decode(third)[1:3] == (2, 1), "a new connection is a new session"


def test_what_was_posted_to_a_link_dies_with_it() -> None:
    link = link_up()
    assert link.post(HELLO)
    link.down()
    assert not link.post(HELLO)
    link.up("peer's", 5)
    assert not link.has_mail
    link.post(HELLO)
    link.up("peer's", 5)
    assert not link.has_mail, "also when its end was not noticed"


def test_an_outbox_is_bounded() -> None:
    link = link_up()
    large = ["t/0", 0, 1, envelope.PROPOSE, 1, bytes(OUTBOX_BYTES_MAX)]
    assert link.post(large)
    assert not link.post(HELLO)
    link.collect(9, "ours", 70)
    assert link.post(HELLO)


def test_a_large_outbox_is_sent_in_several_envelopes_in_order() -> None:
    link = link_up()
    size = ENVELOPE_BYTES // 3
    large = [
        ["t/0", 0, 1, envelope.PROPOSE, number, PEER_TRANSPORT_COMMAND + bytes(size)]
        for number in range(4)
    ]
    alone = ["t/0", 0, 1, envelope.PROPOSE, 4, PEER_TRANSPORT_COMMAND + bytes(3 * ENVELOPE_BYTES)]
    messages = [HELLO, *large, alone, HELLO]
    for message in messages:
        link.post(message)
    parts = [decode(data) for data in link.collect(9, "ours", 70)]
    assert [message for part in parts for message in part.messages] == messages
    assert [len(part.messages) for part in parts] == [3, 2, 1, 1]
    assert [part.sequence for part in parts] == [1, 2, 3, 4]
    link.post(HELLO)
    assert len(link.collect(9, "ours", 70)) == 1


def test_very_many_messages_are_sent_in_several_envelopes() -> None:
    link = link_up()
    for _ in range(2 * MESSAGES_PER_ENVELOPE_MAX):
        link.post(HELLO)
    sizes = [len(decode(data).messages) for data in link.collect(9, "ours", 70)]
    assert sum(sizes) == 2 * MESSAGES_PER_ENVELOPE_MAX
    assert max(sizes) <= MESSAGES_PER_ENVELOPE_MAX


def test_a_duplicate_and_one_that_was_overtaken_are_not_admitted() -> None:
    link = link_up()
    assert link.admits(arriving(3, 1))
    assert not link.admits(arriving(3, 1))
    assert link.admits(arriving(3, 4)), "what was lost leaves a gap"
    assert not link.admits(arriving(3, 2))


def test_late_bytes_of_a_session_that_ended_are_not_admitted() -> None:
    link = link_up()  # hazard 5
    assert link.admits(arriving(1, 7))
    assert link.admits(arriving(2, 1))
    assert not link.admits(arriving(1, 8))
    link.up("peer's", 5)
    assert not link.admits(arriving(1, 9)), "nor after another connection"
    assert link.admits(arriving(3, 1))


def test_a_peer_that_started_again_begins_anew() -> None:
    link = link_up(boot=5)
    assert link.admits(arriving(40, 7))
    link.up("peer's", 6)
    assert not link.admits(arriving(41, 1, boot=5)), "of the boot before"
    assert link.admits(arriving(1, 1, boot=6))


@pytest.mark.parametrize(
    "wrong",
    [
        arriving(1, 1, directory_id="another"),
        arriving(1, 1, boot=4),
        arriving(1, 1, boot=6),
        arriving(SEQUENCE_JUMP_MAX + 1, 1),
        arriving(0, SEQUENCE_JUMP_MAX + 1),
        arriving(0, 0),
    ],
)
def test_what_the_peer_did_not_prove_to_be_is_not_admitted(wrong: Envelope) -> None:
    link = link_up()
    assert not link.admits(wrong)
    assert link.admits(arriving(1, 1)), "and leaves no trace"


def test_nothing_is_admitted_while_the_link_is_down() -> None:
    link = link_up()
    link.down()
    assert not link.admits(arriving(1, 1))
    assert not Link().admits(arriving(1, 1))


def test_what_was_told_of_a_journal_is_kept_for_as_long_as_the_directory_is_the_same() -> None:
    link = link_up()
    assert link.admits(arriving(1, 1, journal=7))
    assert link.admits(arriving(1, 2, journal=6))
    assert not link.admits(arriving(1, 2, journal=9))
    assert not link.admits(arriving(1, 3, journal=9, boot=6))
    assert link.journal_sequence == 7, "of envelopes that count, the highest"
    link.down()
    link.up("peer's", 6)
    assert link.journal_sequence == 7, "a later boot has to find all of it"
    link.up("another", 1)
    assert link.journal_sequence == 0


def test_a_groups_messages_get_its_name_and_generation() -> None:
    links = {2: link_up()}
    transport = PeerTransport(links, "t/0", 7)
    assert transport.send(PeerNode(2), (3, envelope.REFUSED, 12))
    assert not transport.send(PeerNode(4), (3, envelope.REFUSED, 12)), "there is no such link"
    (data,) = links[2].collect(1, "ours", 1)
    assert decode(data).messages == [["t/0", 7, 3, envelope.REFUSED, 12]]


def test_callbacks_of_the_library_are_not_kept() -> None:
    transport = PeerTransport({}, "t/0", 0)
    transport.setOnMessageReceivedCallback(print)
    transport.setOnNodeConnectedCallback(print)
    transport.setOnNodeDisconnectedCallback(print)
    transport.setOnReadonlyNodeConnectedCallback(print)
    transport.setOnReadonlyNodeDisconnectedCallback(print)
    transport.setOnUtilityMessageCallback("add", print)
    assert not hasattr(transport, "_onMessageReceivedCallback")
    assert transport.ready


# -- settings --------------------------------------------------------------------------------------
#
# Which settings go together.


def test_the_defaults_go_together() -> None:
    assert ConsensusSettings().election_timeout_ms == 3_000


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("tick_ms", 0),
        ("propose_timeout_ms", -1),
        ("heartbeat_ms", 1_001),  # a third of the election timeout at most
        ("heartbeat_ms", 49),  # at least a tick
        ("suspect_timeout_ms", 3_001),
        ("seal_after_entries", 9),
        ("command_bytes_max", 2_000_000),
    ],
)
def test_values_that_do_not_go_together_are_refused(name: str, value: int) -> None:
    with pytest.raises(ValueError, match=name):
        ConsensusSettings(**{name: value})


# -- machine ---------------------------------------------------------------------------------------
#
# What a group makes of machines that keep their contract, and of one that does not.


class Fragile(ListMachine):
    def apply(self, command: bytes) -> object:
        if command == b"boom":
            raise ZeroDivisionError("a defect")
        return super().apply(command)


def test_a_machine_that_raises_does_not_stop_its_group() -> None:
    network = Network()  # hazard 16
    for broker in network.brokers.values():
        broker.open(GROUP, machine=Fragile())
    assert network.agree(b"before") == Applied(1)
    assert network.agree(b"boom") == Applied(CommandFailed("ZeroDivisionError('a defect')"))
    assert network.agree(b"after") == Applied(2)
    network.run(2)
    assert all(broker.commands() == [b"before", b"after"] for broker in network.brokers.values())


def test_a_snapshot_of_one_is_the_state_of_another() -> None:
    one: StateMachine = ListMachine()
    other: StateMachine = ListMachine()
    one.apply(b"a")
    other.restore(one.snapshot())
    assert one.apply(b"b") == other.apply(b"b") == 2
    assert one.snapshot() == other.snapshot()
