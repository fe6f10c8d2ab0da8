"""Who reaches whom in a simulated network, and what becomes of connections when they cannot."""

from __future__ import annotations

import asyncio

import pytest

from raftlog.testing.simulator.network import GIVE_UP_S, RETRANSMIT_S_MAX, Latency
from tests.testing.simulator.peers import Link, Peer

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
