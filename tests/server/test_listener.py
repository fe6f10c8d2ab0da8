"""Listening, and the limits on who may stay connected."""

from __future__ import annotations

import contextlib
import socket
from pathlib import Path

import pytest

from raftlog.config import Address
from raftlog.errors import BrokerUnavailableError
from raftlog.server.listener import address_of, bind
from tests.server.harness import TIMEOUT_S, RunningBroker, closed_by_peer, running


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
