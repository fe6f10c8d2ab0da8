"""An end of a simulated connection behaves as a socket transport does, and as its kernel."""

from __future__ import annotations

import asyncio

import pytest
from hypothesis import given
from hypothesis import strategies as st

from raftlog import limits
from tests.testing.simulator.peers import Link, buffered

SEEDS = range(40)


@given(
    pieces=st.lists(st.binary(max_size=50), max_size=20),
    slicing=st.sampled_from((0.0, 0.7)),
    seed=st.integers(0, 1_000),
)
def test_bytes_come_in_order_whatever_the_pieces(
    pieces: list[bytes], slicing: float, seed: int
) -> None:
    link = Link(seed, slicing=slicing)
    near, far = link.connect()
    for number, piece in enumerate(pieces):
        if number % 2:
            near.transport.write(piece)
        else:
            near.transport.writelines([piece, memoryview(piece)])
    far.transport.write(b"back")
    link.wait(1)
    assert far.received == b"".join(p if n % 2 else p + p for n, p in enumerate(pieces))
    assert near.received == b"back"


def test_bytes_take_their_time() -> None:
    link = Link()
    near, far = link.connect()
    near.transport.write(b"x")
    link.wait(0.0005)
    assert not far.received
    link.wait(0.1)
    assert far.received == b"x"


def test_reads_are_sliced_if_the_network_does_that() -> None:
    sizes = set()
    for seed in SEEDS:
        link = Link(seed, slicing=1.0)
        near, far = link.connect()
        lengths: list[int] = []
        far.buffer_updated = lengths.append  # type: ignore[method-assign]
        near.transport.write(b"0123456789")
        link.wait(1)
        assert sum(lengths) == 10
        sizes |= set(lengths)
    assert sizes >= set(range(1, 10))


def test_a_protocol_without_buffers_is_given_bytes() -> None:
    link = Link()
    near, far = link.connect()
    received: list[bytes] = []

    class Plain(asyncio.Protocol):
        def data_received(self, data: bytes) -> None:
            received.append(data)

    far.transport.set_protocol(Plain())
    near.transport.write(b"ab")
    link.wait(1)
    assert b"".join(received) == b"ab"


def test_closing_delivers_what_was_written_first() -> None:
    link = Link()
    near, far = link.connect()
    near.transport.write(b"last words")
    near.transport.close()
    near.transport.write(b"too late")
    link.wait(1)
    assert far.received == b"last words"
    assert far.told == ["made", "eof", "lost"]
    assert near.told == ["made", "lost"]
    assert near.transport.is_closing()


def test_half_a_connection_may_stay_open() -> None:
    link = Link()
    near, far = link.connect()
    far.keeps_open = True
    near.transport.write_eof()
    link.wait(1)
    far.transport.write(b"answer")
    link.wait(1)
    assert (far.told, near.received) == (["made", "eof"], b"answer")


def test_aborting_may_lose_what_is_on_its_way() -> None:
    arrived = set()
    for seed in SEEDS:
        link = Link(seed)
        near, far = link.connect()
        near.transport.write(b"perhaps")
        near.transport.abort()
        link.wait(1)
        assert far.told == ["made", "lost ConnectionResetError"]
        assert near.told == ["made", "lost"]
        arrived.add(far.received)
    assert arrived == {b"", b"perhaps"}


def test_closing_with_unread_bytes_resets() -> None:
    link = Link()
    near, far = link.connect()
    near.transport.pause_reading()
    far.transport.write(b"unread")
    link.wait(1)
    near.transport.close()
    link.wait(1)
    assert far.told[-1] == "lost ConnectionResetError"


def test_bytes_for_a_closed_socket_are_answered_with_a_reset() -> None:
    link = Link()
    near, far = link.connect()
    far.keeps_open = True
    near.transport.close()
    link.wait(1)
    far.transport.write(b"are you there?")
    link.wait(1)
    assert far.told == ["made", "eof", "lost ConnectionResetError"]


def test_a_reader_that_pauses_makes_its_writer_pause() -> None:
    link = Link(socket_bytes=100)
    near, far = link.connect()
    near.transport.set_write_buffer_limits(high=50, low=10)
    far.transport.pause_reading()
    near.transport.write(b"x" * 140)
    link.wait(1)
    assert (near.told, buffered(near)) == (["made"], 40)
    near.transport.write(b"y" * 20)
    assert near.told == ["made", "pause"]
    assert not far.received
    assert not far.transport.is_reading()
    far.transport.resume_reading()
    link.wait(1)
    assert near.told == ["made", "pause", "resume"]
    assert (len(far.received), buffered(near)) == (160, 0)


def test_closing_waits_until_what_was_written_fits_the_socket() -> None:
    link = Link(socket_bytes=100)
    near, far = link.connect()
    far.transport.pause_reading()
    near.transport.write(b"x" * 200)
    near.transport.close()
    link.wait(1)
    assert near.told == ["made"]
    far.transport.resume_reading()
    link.wait(1)
    assert near.told == ["made", "lost"]
    assert len(far.received) == 200


def test_a_close_that_waits_ends_when_the_peer_dies() -> None:
    link = Link(socket_bytes=100)
    near, far = link.connect()
    far.transport.pause_reading()
    near.transport.write(b"x" * 200)
    near.transport.close()
    link.wait(1)
    link.kill_server()
    link.wait(1)
    assert near.told == ["made", "lost ConnectionResetError"]


def test_it_says_who_is_at_its_ends_and_what_its_limits_are() -> None:
    link = Link()
    near, far = link.connect()
    assert near.transport.get_extra_info("peername") == ("server", 9)
    assert near.transport.get_extra_info("sockname") == far.transport.get_extra_info("peername")
    assert near.transport.get_extra_info("socket") is None
    assert near.transport.get_protocol() is near
    assert near.transport.can_write_eof()
    assert near.transport.get_write_buffer_limits() == (16 * limits.KIB, 64 * limits.KIB)


@pytest.mark.parametrize("how", ["abort", "close"])
def test_ending_twice_is_ending_once(how: str) -> None:
    link = Link()
    near, _ = link.connect()
    getattr(near.transport, how)()
    getattr(near.transport, how)()
    link.wait(1)
    near.transport.abort()
    link.wait(1)
    assert near.told == ["made", "lost"]
