"""Sessions, sequences and outboxes of one link."""

from __future__ import annotations

import pytest

from raftlog.consensus import transport as envelope
from raftlog.consensus.raft_group import PeerNode
from raftlog.consensus.settings import (
    ENVELOPE_BYTES,
    MESSAGES_PER_ENVELOPE_MAX,
    OUTBOX_BYTES_MAX,
    SEQUENCE_JUMP_MAX,
)
from raftlog.consensus.transport import Envelope, Link, PeerTransport, decode

COMMAND = bytes([envelope.COMMAND])
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
    large = [["t/0", 0, 1, envelope.PROPOSE, number, COMMAND + bytes(size)] for number in range(4)]
    alone = ["t/0", 0, 1, envelope.PROPOSE, 4, COMMAND + bytes(3 * ENVELOPE_BYTES)]
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
