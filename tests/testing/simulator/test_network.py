"""Who reaches whom in a simulated network, and what becomes of connections when they cannot."""

from __future__ import annotations

import asyncio

import pytest
from hypothesis import given
from hypothesis import strategies as st

from raftlog import limits
from raftlog.testing.simulator.network import GIVE_UP_S, RETRANSMIT_S_MAX, Latency
from tests.testing.simulator.peers import Link, Peer, buffered

SEEDS = range(40)
LONG_S = 2 * max(GIVE_UP_S)


def refused(link: Link, port: int = 9) -> type[BaseException] | None:
    async def program() -> type[BaseException] | None:
        loop = asyncio.get_running_loop()
        try:
            await loop.create_connection(lambda: Peer(link.world), "server", port)
        except OSError as error:
            return type(error)
        return None

    return link.run_in(link.client, program)


# -- connecting ------------------------------------------------------------------------------------


def test_a_connection_takes_a_round_trip() -> None:
    link = Link(latency=Latency(0.1, 1e-6))
    begun = link.world.now
    near, far = link.connect()
    assert near.told_at[0] - begun == pytest.approx(0.2, abs=0.01)
    assert far.told_at[0] - begun == pytest.approx(0.3, abs=0.01)


def test_nobody_listens() -> None:
    link = Link()
    assert refused(link, port=8) is ConnectionRefusedError
    link.kill_server()
    assert refused(link) is ConnectionRefusedError
    link.restart_server()
    assert refused(link) is None


def test_a_listener_that_was_closed_takes_no_more() -> None:
    link = Link()
    server = link.network.listener("server", 9)
    assert server is not None
    assert server.is_serving()
    assert server.get_loop() is link.server
    server.close()
    assert not server.is_serving()
    assert refused(link) is ConnectionRefusedError
    assert link.network.listener("server", 9) is None


def test_an_address_has_one_listener() -> None:
    link = Link()
    with pytest.raises(OSError, match="in use"):
        link.listen()


@pytest.mark.parametrize("one_way", [("client", "server"), ("server", "client")])
def test_nobody_answers_across_a_cut(one_way: tuple[str, str]) -> None:
    link = Link()
    link.network.cut(*one_way, one_way=True)
    begun = link.world.now
    assert refused(link) is TimeoutError
    assert link.world.now - begun > 20
    assert not link.accepted


def test_connecting_goes_on_when_the_link_is_mended_meanwhile() -> None:
    link = Link()
    link.network.cut("client", "server")
    link.client.call_later(2, link.network.mend, "client", "server")
    assert refused(link) is None


def test_a_paused_process_is_connected_to_and_learns_of_it_later() -> None:
    link = Link()
    link.server.pause()
    assert refused(link) is None
    link.wait(1)
    assert not link.accepted
    link.server.resume()
    link.wait(1)
    assert link.accepted[0].told == ["made"]


# -- cutting ---------------------------------------------------------------------------------------


def test_bytes_across_a_cut_come_after_it_or_never() -> None:
    outcomes = set()
    for seed in SEEDS:
        link = Link(seed)
        near, far = link.connect()
        link.network.cut("client", "server")
        near.transport.write(b"late")
        link.wait(5)
        assert not far.received
        lost_before = near.is_lost or far.is_lost
        link.network.mend("client", "server")
        link.wait(RETRANSMIT_S_MAX + 1)
        outcomes.add((far.received, lost_before))
        if not lost_before:
            assert far.received == b"late"
    assert outcomes >= {(b"late", False), (b"", True)}


def test_a_cut_connection_may_stay_open_at_one_end_at_both_or_at_none() -> None:
    outcomes = set()
    for seed in SEEDS:
        link = Link(seed)
        near, far = link.connect()
        link.network.cut("client", "server")
        link.wait(LONG_S)
        outcomes.add((near.told[-1], far.told[-1]))
    assert len(outcomes) == 4
    assert ("made", "made") in outcomes
    assert ("lost OSError", "made") in outcomes or ("lost TimeoutError", "made") in outcomes


def test_one_way_the_bytes_still_come() -> None:
    link = Link()
    near, far = link.connect()
    link.network.cut("client", "server", one_way=True)
    near.transport.write(b"to the server")
    far.transport.write(b"to the client")
    link.wait(0.2)
    assert (near.received, far.received) == (b"to the client", b"")
    assert link.network.reaches("server", "client")
    assert link.network.cuts == [("client", "server")]


def test_who_gave_up_answers_late_bytes_with_a_reset() -> None:
    seen = 0
    for seed in SEEDS:
        link = Link(seed)
        near, far = link.connect()
        link.network.cut("client", "server")
        link.wait(LONG_S)
        if far.is_lost and not near.is_lost:
            near.transport.write(b"hello?")
            link.network.mend("client", "server")
            link.wait(3)
            assert near.told[-1] == "lost ConnectionResetError"
            seen += 1
    assert seen


def test_a_netsplit_cuts_between_groups_and_nowhere_else() -> None:
    network = Link().network
    network.partition(["a", "b"], ["c"], ["d"])
    assert not any(network.reaches(*pair) for pair in ("ac", "ca", "bd", "cd"))
    assert network.reaches("a", "b")
    assert network.reaches("a", "x")
    network.heal(["a", "c"])
    assert network.reaches("a", "c")
    assert not network.reaches("b", "c")
    network.heal()
    assert not network.cuts


def test_a_slow_link_is_slow_one_way() -> None:
    link = Link()
    near, far = link.connect()
    link.network.slow("client", "server", 2.0)
    near.transport.write(b"slow")
    far.transport.write(b"quick")
    link.wait(1)
    assert (near.received, far.received) == (b"quick", b"")
    link.wait(2)
    assert far.received == b"slow"
    link.network.slow("client", "server", 0)
    near.transport.write(b"!")
    link.wait(1)
    assert far.received == b"slow!"


def test_a_reset_in_the_middle_ends_both_ends() -> None:
    link = Link()
    near, far = link.connect()
    assert link.network.connected_to("server") == ["client"]
    assert link.network.reset_connections("client", "server") == 1
    link.wait(1)
    assert near.told[-1] == far.told[-1] == "lost ConnectionResetError"
    assert link.network.reset_connections("client", "server") == 0
    assert not link.network.connected_to("server")


# -- ends of processes -----------------------------------------------------------------------------


def test_the_kernel_of_a_killed_process_ends_its_connections() -> None:
    endings = set()
    for seed in SEEDS:
        link = Link(seed)
        near, far = link.connect()
        far.transport.write(b"written")
        link.kill_server()
        link.wait(1)
        assert far.told == ["made"]
        endings.add((near.told[-1], near.received))
    assert ("lost", b"written") in endings
    assert ("lost ConnectionResetError", b"") in endings


def test_bytes_for_a_process_that_is_gone_are_answered_with_a_reset() -> None:
    link = Link(seed=3)
    near, _ = link.connect()
    near.keeps_open = True
    link.kill_server()
    link.wait(1)
    if not near.is_lost:
        near.transport.write(b"hello?")
        link.wait(1)
    assert near.told[-1] == "lost ConnectionResetError"


def test_a_host_without_power_says_nothing() -> None:
    link = Link()
    near, _ = link.connect()
    link.cut_power()
    near.transport.write(b"hello?")
    link.wait(100)
    assert near.told == ["made"]
    assert refused(link) is TimeoutError


def test_a_host_that_is_back_knows_nothing_of_its_connections() -> None:
    link = Link()
    near, _ = link.connect()
    link.cut_power()
    near.transport.write(b"before")
    link.wait(5)
    link.network.power_on("server")
    link.restart_server()
    link.wait(5)
    assert near.told == ["made", "lost ConnectionResetError"]
    assert refused(link) is None


def test_who_has_sent_it_nothing_learns_when_it_does() -> None:
    link = Link()
    near, _ = link.connect()
    link.cut_power()
    link.wait(5)
    link.network.power_on("server")
    link.wait(50)
    assert near.told == ["made"]
    near.transport.write(b"after")
    link.wait(5)
    assert near.told == ["made", "lost ConnectionResetError"]


def test_connections_that_are_over_are_forgotten() -> None:
    link = Link()
    for how in ("close", "abort"):
        near, far = link.connect()
        getattr(near.transport, how)()
        link.wait(1)
        assert far.is_lost
    link.connect()
    link.kill_server()
    link.wait(1)
    assert not link.network._ends


def test_the_same_seed_gives_the_same_world() -> None:
    digests = set()
    for _ in range(2):
        link = Link(7, slicing=0.5)
        near, _far = link.connect()
        near.transport.write(b"x" * 100)
        link.wait(1)
        digests.add(link.world.digest())
    assert len(digests) == 1
    other = Link(7, slicing=0.5)
    near, _far = other.connect()
    near.transport.write(b"y" * 100)
    other.wait(1)
    assert other.world.digest() not in digests


# -- transport -------------------------------------------------------------------------------------
#
# An end of a simulated connection behaves as a socket transport does, and as its kernel.


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
