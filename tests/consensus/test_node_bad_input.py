"""Envelopes that are late, double, of another session, or of no sense at all."""

from __future__ import annotations

from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from raftlog.consensus import transport
from raftlog.consensus.transport import COMMAND, Envelope
from tests.consensus.harness import GROUP, Broker, ListMachine, Network


def opened(count: int = 3, **options: Any) -> Network:
    network = Network(count, **options)
    network.open()
    return network


def followers(network: Network) -> list[Broker]:
    leader = network.leader()
    return [broker for broker in network.brokers.values() if broker is not leader]


# -- links -----------------------------------------------------------------------------------------


def test_envelopes_of_a_session_that_ended_are_dropped() -> None:
    network = opened()
    leader = network.leader()
    follower = followers(network)[0]
    network.run(1)
    leader.propose(b"x")
    (late,) = network.queues[leader.id, follower.id]
    network.connect(leader.id, follower.id)
    network.run(1)
    before = follower.node.refused_messages
    follower.node.receive(leader.id, late, network.now)
    assert follower.node.refused_messages > before


def test_a_duplicate_envelope_counts_once() -> None:
    network = opened()
    follower = followers(network)[0]
    leader = network.leader()
    follower.propose(b"once")
    (ask,) = network.queues[follower.id, leader.id]
    network.queues[follower.id, leader.id].append(ask)
    network.run(1)
    assert leader.commands() == [b"once"]


def test_a_peer_whose_disk_was_set_back_is_not_listened_to() -> None:
    network = opened()
    network.run(1)
    peer = network[2]
    network.cut(1, 2)
    network[1].node.peer_up(2, peer.directory_id, peer.journal.boot - 1, network.now)
    data = transport.encode(Envelope(peer.journal.boot - 1, 9, 1, peer.directory_id, 0, []))
    network[1].node.receive(2, data, network.now)
    assert not network[1].node._links[2].is_up
    assert network[1].node.refused_messages == 1


def test_a_broker_that_claims_our_own_id_is_no_peer() -> None:
    network = opened(1)
    network[1].node.peer_up(1, "other", 1, network.now)
    assert network[1].node._links == {}


def test_messages_of_groups_that_are_not_open_are_ignored() -> None:
    network = Network()
    network[1].open(GROUP)
    network[2].open(GROUP)
    network.leader()
    network.agree(b"x")
    assert network[3].node.refused_messages == 0
    network[3].open(GROUP)
    network.run(3)
    assert network[3].commands() == [b"x"]


# -- bad input -------------------------------------------------------------------------------------


def still_works(network: Network) -> None:
    """A majority agrees, and after a new link so does the broker that was hurt."""
    for a, b in network.pairs():
        network.cut(a, b)
    network.connect_all()
    network.agree(b"after")
    network.run(3)
    assert network[1].commands()[0] == b"before"
    assert len({tuple(broker.commands()) for broker in network.brokers.values()}) == 1


@given(st.lists(st.binary(max_size=60), max_size=10))
def test_arbitrary_bytes_harm_nothing(parts: list[bytes]) -> None:
    network = opened()
    network.agree(b"before")
    for data in parts:
        for peer in (2, 77, -1):
            network[1].node.receive(peer, data, network.now)
        network[1].sync()
    assert network[1].node.refused_messages == 3 * len(parts)
    still_works(network)


NUMBERS = st.integers(0, 6) | st.sampled_from([1 << 20, 1 << 40, (1 << 62) - 1])
VOTERS = st.dictionaries(st.integers(0, 3), st.sampled_from(["disk-1", "disk-2", ""]), min_size=1)
ENTRIES = st.lists(
    st.tuples(st.integers(0, 3), st.sampled_from([b"\x01", bytes([COMMAND]), b"\x11x"])).map(list),
    max_size=4,
).map(sorted)
FIELDS: dict[int, st.SearchStrategy[list[Any]]] = {
    transport.HELLO: st.tuples(st.booleans()).map(list),
    transport.OFFER: st.tuples(
        VOTERS.map(lambda voters: [[*pair] for pair in voters.items()]),
        st.binary(max_size=5) | st.just(ListMachine().snapshot()),
    ).map(list),
    transport.PRE_VOTE: st.lists(NUMBERS, min_size=3, max_size=3),
    transport.PRE_VOTE_ANSWER: st.tuples(NUMBERS, st.booleans()).map(list),
    transport.VOTE: st.lists(NUMBERS, min_size=2, max_size=2),
    transport.VOTE_ANSWER: st.tuples(st.booleans()).map(list),
    transport.APPEND: st.tuples(NUMBERS, NUMBERS, NUMBERS, ENTRIES).map(list),
    transport.APPEND_ANSWER: st.tuples(st.booleans(), NUMBERS, NUMBERS).map(list),
    transport.PROPOSE: st.tuples(NUMBERS, st.just(bytes([COMMAND]) + b"asked")).map(list),
    transport.PROPOSED: st.lists(NUMBERS, min_size=2, max_size=2),
    transport.REFUSED: st.lists(NUMBERS, min_size=1, max_size=1),
}
MESSAGES = st.sampled_from(sorted(FIELDS)).flatmap(
    lambda kind: st.builds(
        lambda group, generation, term, fields: [group, generation, term, kind, *fields],
        st.sampled_from([GROUP, GROUP, "other"]),
        st.sampled_from([0, 0, 0, 1, 1 << 61]),
        NUMBERS,
        FIELDS[kind],
    )
)


@given(st.lists(st.tuples(st.integers(0, 20), st.lists(MESSAGES, max_size=8)), max_size=10))
def test_whatever_a_peer_says_nothing_is_raised_and_nothing_committed_is_lost(
    parts: list[tuple[int, list[Any]]],
) -> None:
    network = opened()
    network.agree(b"before")
    network.run(2)
    for sequence, messages in parts:
        assert all(transport.is_message(message) for message in messages)
        data = transport.encode(Envelope(1, 1, sequence + 100, "disk-2", 0, messages))
        network[1].node.receive(2, data, network.now)
        network[1].sync()
    if network[1].status().generation == 0:  # an offer of another is adopted, as it should be
        still_works(network)
