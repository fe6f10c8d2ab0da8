"""Listening, and the limits on who may stay connected."""

from __future__ import annotations

import contextlib
import socket
from pathlib import Path

import pytest

from raftlog import limits
from raftlog.config import Address
from raftlog.errors import BrokerUnavailableError
from raftlog.protocol import api as apis
from raftlog.protocol.connection import FRAME, MAGIC
from raftlog.protocol.peer import PeerIdentity
from raftlog.protocol.records import MetadataRequest
from raftlog.protocol.security import Dialling
from raftlog.server import connection
from raftlog.server.connection import address_of, bind
from tests.server.harness import TIMEOUT_S, RunningBroker, batch_of, closed_by_peer, running


def test_port_0_picks_a_free_one() -> None:
    with contextlib.closing(bind(Address("127.0.0.1", 0))) as listening:
        host, port = address_of(listening)
        assert host == "127.0.0.1"
        assert port > 0


def test_a_port_in_use_is_named_with_a_way_out() -> None:
    with contextlib.closing(bind(Address("127.0.0.1", 0))) as listening:
        address = address_of(listening)
        with pytest.raises(BrokerUnavailableError, match=rf"port {address.port} .*--listen") as e:
            bind(address)
        assert "in use" in str(e.value)


@pytest.mark.parametrize("host", ["192.0.2.1", "no-such-host.invalid"])
def test_an_address_that_is_not_this_machines(host: str) -> None:
    with pytest.raises(BrokerUnavailableError, match=f"{host}.*--listen"):
        bind(Address(host, 9100))


def test_connections_over_the_limit_are_refused_and_the_others_stay(tmp_path: Path) -> None:
    with running(tmp_path, max_connections="2") as broker:
        with broker.client() as first, broker.client() as second:
            with socket.create_connection(broker.address, timeout=TIMEOUT_S) as third:
                assert closed_by_peer(third)
            assert first.create("t").failure is None
            assert second.offset("t", "latest").offset == 0
            assert broker.broker.context.counters.connections_refused == 1
        connections = broker.broker.connections
        broker.wait_until(lambda: len(connections) == 0)
        with broker.client() as client:
            assert client.offset("t", "latest").offset == 0


STRANGER = PeerIdentity(
    broker_id=2,
    directory_id="d2",
    boot=1,
    host="127.0.0.1",
    port=10,
    protocol_version=1,
    voters="1,2",
)
MEMBER = {"id": "1", "voters": "1@127.0.0.1:9,2@127.0.0.1:10", "cluster_secret": "s" * 32}


def test_in_a_cluster_a_connection_beyond_the_limit_may_be_a_brokers(tmp_path: Path) -> None:
    with running(tmp_path, max_connections="1", **MEMBER) as broker, broker.client() as first:
        connections = broker.broker.connections
        with (
            broker.client() as second,  # it was told the versions
            pytest.raises(AssertionError, match=r"max\.connections=1"),
        ):
            second.ask(apis.METADATA, MetadataRequest())
        with broker.client() as third:
            hello = Dialling(b"s" * 32, STRANGER, bytes(32), expected=1)
            answer = third.ask(apis.PEER_HELLO, hello.hello())
            third.ask(apis.PEER_PROVE, hello.check(answer))
            assert broker.call(lambda: len(connections._peers)) == 1
            third.ask(apis.METADATA, MetadataRequest(topics=[]))
        first.ask(apis.METADATA, MetadataRequest(topics=[]))


def test_who_does_not_begin_a_handshake_makes_room_for_who_may(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(limits, "LOBBY_CONNECTIONS_MAX", 2)
    with running(tmp_path, max_connections="1", **MEMBER) as broker, broker.client():
        shaking = broker.client()
        shaking.ask(apis.PEER_HELLO, Dialling(b"s" * 32, STRANGER, bytes(32), expected=1).hello())
        with broker.client() as idle, broker.client() as another:
            assert idle.is_closed_by_broker()
            assert not another.socket._closed  # type: ignore[attr-defined]
            connections = broker.broker.connections
            assert broker.call(lambda: len(connections._lobby)) == 2
        shaking.close()


def test_those_who_send_too_little_are_closed_while_others_wait_for_memory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(connection, "RELIEF_SECONDS", 0.05)
    with (
        running(tmp_path, queued_max_request_bytes=str(limits.MIB)) as broker,
        broker.client() as client,
        contextlib.ExitStack() as stack,
    ):
        client.create("t", max_message_bytes=str(2 * limits.MIB))
        slow = [stack.enter_context(broker.client()) for _ in range(8)]
        for one in slow:
            one.socket.sendall(FRAME.pack(900_000, MAGIC, 2, 0, 0, 1, 10) + bytes(300_000))
        budget = broker.broker.connections.requests
        broker.wait_until(lambda: budget.is_waited_for)
        assert client.produce("t", batch_of(bytes(1_500_000))).base_offset == 0
        assert all(one.is_closed_by_broker() for one in slow)
        broker.wait_until(lambda: budget.bytes == 0)


def test_a_silent_connection_is_closed_and_a_waiting_one_is_not(tmp_path: Path) -> None:
    with running(tmp_path, connections_max_idle_ms="1000") as broker:
        with broker.client() as admin:
            admin.create("t")
        with broker.client() as waiting:
            fetch = waiting.send_fetch("t", 0, wait_ms_max=2_500)
            with broker.client() as silent:
                assert silent.is_closed_by_broker()
            assert waiting.fetched(fetch) == ([], [])
            # The answer was a sign of life: it is not hung up on at the next look around.
            assert waiting.offset("t", "latest").offset == 0


def test_connections_are_counted(broker: RunningBroker) -> None:
    before = broker.broker.context.counters.connections_accepted
    for _ in range(3):
        broker.client().close()
    assert broker.broker.context.counters.connections_accepted == before + 3
    broker.wait_until(lambda: len(broker.broker.connections) == 0)
