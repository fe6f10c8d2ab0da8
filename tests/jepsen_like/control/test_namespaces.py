"""Everybody has a place, reaches the others from there, and leaves nothing behind."""

from __future__ import annotations

import os
import socket
from pathlib import Path

import pytest

from raftlog_jepsen.control import namespaces
from raftlog_jepsen.control.namespaces import BRIDGE, CONTROL, FOLDER, Namespaces, run, run_all
from tests.jepsen_like.places import in_its_own_network

PLACES = (CONTROL, 1, 2, 3)


class NoNeighbours(Namespaces):
    """Fails at the last step."""

    def neighbour(self, place: int, other: int, mac: str = "") -> str:
        raise OSError(f"no neighbours for {place}, not {other}, at {mac}")


def own_namespace() -> str:
    return os.readlink("/proc/thread-self/ns/net")


@pytest.mark.integration
@in_its_own_network
def test_everybody_reaches_everybody() -> None:
    with Namespaces(3) as spaces:
        for place in PLACES:
            with spaces.socket(place) as ear:
                ear.bind((spaces.address(place), 0))
                ear.listen()
                for other in PLACES:
                    with spaces.socket(other) as mouth:
                        mouth.settimeout(5)
                        mouth.connect(ear.getsockname())
                        with ear.accept()[0] as there:
                            assert there.getpeername()[0] == spaces.address(other)


@pytest.mark.integration
@in_its_own_network
def test_nobody_has_to_ask_where_others_are() -> None:
    with Namespaces(2) as spaces:
        for place in (CONTROL, 1, 2):
            found = spaces.run(place, "ip", "neigh", "show", "nud", "permanent")
            for other in {CONTROL, 1, 2} - {place}:
                assert f"{spaces.address(other)} dev {spaces.device(place)} lladdr " in found
                assert spaces.mac(other) in found
            link = spaces.run(place, "ip", "link", "show", spaces.device(place))
            assert spaces.mac(place) in link


@pytest.mark.integration
@in_its_own_network
def test_commands_run_where_they_should() -> None:
    with Namespaces(2) as spaces:
        assert spaces.prefix(CONTROL) == ()
        for broker in (1, 2):
            said = run(*spaces.prefix(broker), "ip", "-brief", "addr", "show", "e0")
            assert f"{spaces.address(broker)}/24" in said
            assert "127.0.0.1/8" in spaces.run(broker, "ip", "-brief", "addr", "show", "lo")


@pytest.mark.integration
@in_its_own_network
def test_work_in_another_place_leaves_this_thread_where_it_is() -> None:
    with Namespaces(2) as spaces:
        here = own_namespace()
        there = spaces.within(1, own_namespace)
        assert there != here
        assert spaces.within(2, own_namespace) not in (here, there)
        assert spaces.within(CONTROL, own_namespace) == here
        spaces.socket(1).close()
        assert own_namespace() == here


@pytest.mark.integration
@in_its_own_network
def test_an_error_in_another_place_is_raised_here() -> None:
    def fail() -> None:
        raise ConnectionError("over there")

    with Namespaces(1) as spaces, pytest.raises(ConnectionError, match="over there"):
        spaces.within(1, fail)


@pytest.mark.integration
@in_its_own_network
def test_nothing_is_left() -> None:
    mounts, links = Path("/proc/thread-self/mounts").read_text(), socket.if_nameindex()
    with Namespaces(3):
        assert sorted(path.name for path in FOLDER.iterdir()) == ["b1", "b2", "b3"]
        assert len(socket.if_nameindex()) == len(links) + 4
    assert Path("/proc/thread-self/mounts").read_text() == mounts
    assert socket.if_nameindex() == links


@pytest.mark.integration
@in_its_own_network
def test_nothing_is_left_of_what_could_not_be_made() -> None:
    mounts = Path("/proc/thread-self/mounts").read_text()
    run("ip", "link", "add", BRIDGE, "type", "bridge")
    with pytest.raises(OSError, match="already has br0"), Namespaces(1):
        pass
    run("ip", "link", "del", BRIDGE)
    before = socket.if_nameindex()
    with pytest.raises(OSError, match="neighbours"), NoNeighbours(2):
        pass
    assert socket.if_nameindex() == before
    assert Path("/proc/thread-self/mounts").read_text() == mounts


@pytest.mark.integration
@in_its_own_network
def test_other_tests_see_nothing_of_it() -> None:
    with Namespaces(1):
        assert f"{BRIDGE}:" in Path("/proc/thread-self/net/dev").read_text()
        assert f"{BRIDGE}:" not in Path("/proc/self/net/dev").read_text()  # of the main thread


@pytest.mark.parametrize("count", [0, -1, namespaces.BROKERS_MAX + 1])
def test_a_count_that_makes_no_sense_is_refused(count: int) -> None:
    with pytest.raises(ValueError, match="cannot create namespaces for"):
        Namespaces(count)


@pytest.mark.parametrize("place", [-1, 3])
def test_a_broker_that_there_is_not_is_refused(place: int) -> None:
    spaces = Namespaces(2)
    for ask in (spaces.address, spaces.mac, spaces.device, spaces.prefix, spaces.enter):
        with pytest.raises(ValueError, match=f"unknown id {place}"):
            ask(place)


def test_addresses_are_those_of_the_manual() -> None:
    spaces = Namespaces(2)
    assert [spaces.address(place) for place in (0, 1, 2)] == [
        "10.77.0.254",
        "10.77.0.1",
        "10.77.0.2",
    ]
    assert spaces.prefix(2) == ("nsenter", "--net=/run/netns/b2")
    assert len({spaces.mac(place) for place in (0, 1, 2)}) == 3


@pytest.mark.integration
def test_a_command_that_fails_says_why() -> None:
    with pytest.raises(OSError, match=r"sh -c echo so it is >&2; exit 3: so it is"):
        run("sh", "-c", "echo so it is >&2; exit 3")
    with pytest.raises(OSError, match="sh -c exit 3: 3"):
        run("sh", "-c", "exit 3")


@pytest.mark.integration
def test_commands_side_by_side_all_end_before_the_first_complaint(tmp_path: Path) -> None:
    done = tmp_path / "done"
    commands = [(("sh", "-c", "exit 1"), ""), (("sh", "-c", f"cat > {done}"), "read")]
    with pytest.raises(OSError, match="exit 1"):
        run_all(commands)
    assert done.read_text() == "read"
    assert run_all([(("cat",), "a"), (("cat",), "b")]) == ["a", "b"]


def test_a_machine_without_the_commands_says_so(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: 0)
    monkeypatch.setattr("sys.platform", "linux")
    monkeypatch.setenv("PATH", str(tmp_path))
    assert namespaces.why_not.__wrapped__() == "no ip, bridge, tc, nsenter, unshare, mount, umount"
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    assert "root" in namespaces.why_not.__wrapped__()
    monkeypatch.setattr("sys.platform", "darwin")
    assert "Linux" in namespaces.why_not.__wrapped__()


@pytest.mark.integration
def test_a_machine_that_refuses_says_why(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    for command in namespaces.COMMANDS:
        script = tmp_path / command
        script.write_text("#!/bin/sh\necho not permitted >&2; exit 1\n")
        script.chmod(0o755)
    monkeypatch.setattr(os, "geteuid", lambda: 0)
    monkeypatch.setattr("sys.platform", "linux")
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    assert "not permitted" in namespaces.why_not.__wrapped__()
