"""Everybody has a place, reaches the others from there, and leaves nothing behind."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest

from raftlog.config.address import Address
from raftlog.testing import wait_until
from raftlog_jepsen.control import namespaces
from raftlog_jepsen.control.disks import LoopDisk, why_not
from raftlog_jepsen.control.namespaces import (
    BRIDGE,
    CONTROL,
    COUNT_MAX,
    FOLDER,
    MemberPlaces,
    Namespaces,
    run,
    run_all,
)
from tests.jepsen_like.places import in_its_own_network

PLACES = (CONTROL, 1, 2, 3)


class NoNeighbours(Namespaces):
    """Fails at the last step."""

    def neighbour(self, place: int, other: int, mac: str = "") -> str:
        raise OSError(f"no neighbours for {place}, not {other}, at {mac}")


def own_namespace() -> str:
    return os.readlink("/proc/thread-self/ns/net")


def mounts() -> list[str]:
    """Return the mounts of this thread, but no disk images: other tests mount them."""
    lines = Path("/proc/thread-self/mounts").read_text().splitlines()
    return [line for line in lines if not line.startswith("/dev/loop")]


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
    mounted, links = mounts(), socket.if_nameindex()
    with Namespaces(3):
        assert sorted(path.name for path in FOLDER.iterdir()) == ["b1", "b2", "b3"]
        assert len(socket.if_nameindex()) == len(links) + 4
    assert mounts() == mounted
    assert socket.if_nameindex() == links


@pytest.mark.integration
@in_its_own_network
def test_nothing_is_left_of_what_could_not_be_made() -> None:
    mounted = mounts()
    run("ip", "link", "add", BRIDGE, "type", "bridge")
    with pytest.raises(OSError, match="already has br0"), Namespaces(1):
        pass
    run("ip", "link", "del", BRIDGE)
    before = socket.if_nameindex()
    with pytest.raises(OSError, match="neighbours"), NoNeighbours(2):
        pass
    assert socket.if_nameindex() == before
    assert mounts() == mounted


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


# -- member places ---------------------------------------------------------------------------------
#
# Every member has a place, reaches brokers from there unless it is cut off, and leaves nothing.


PORT = 9100


def addresses(spaces: Namespaces) -> dict[int, Address]:
    return {broker: Address(spaces.address(broker), PORT) for broker in spaces.ids}


def listening(spaces: Namespaces, broker: int) -> socket.socket:
    ear = spaces.socket(broker)
    ear.bind((spaces.address(broker), PORT))
    ear.listen()
    return ear


@pytest.mark.integration
@in_its_own_network
def test_a_member_reaches_brokers_until_it_is_cut_off() -> None:
    with (
        Namespaces(2) as spaces,
        MemberPlaces(spaces, addresses(spaces), 2) as places,
        listening(spaces, 1),
        listening(spaces, 2),
    ):
        reached = [places.reaches(slot, broker) for slot in (1, 2) for broker in (1, 2)]
        assert reached == [True] * 4
        places.cut(1, [2])
        assert [places.reaches(1, 1), places.reaches(1, 2)] == [True, False]
        assert [places.reaches(2, 1), places.reaches(2, 2)] == [True, True]
        places.cut(1, [1, 2])
        assert [places.reaches(1, 1), places.reaches(1, 2)] == [False, False]
        places.mend(1)
        assert [places.reaches(1, 1), places.reaches(1, 2)] == [True, True]
        places.mend(1)


@pytest.mark.integration
@in_its_own_network
def test_commands_run_in_a_members_place_and_this_thread_stays_where_it_is() -> None:
    with Namespaces(1) as spaces:
        before = os.readlink("/proc/thread-self/ns/net")
        with MemberPlaces(spaces, addresses(spaces), 2) as places:
            assert places.prefix(1) != places.prefix(2)
            places.reaches(2, 1)
            assert os.readlink("/proc/thread-self/ns/net") == before
        assert {name for _, name in socket.if_nameindex()} == {"lo", "br0", "v1"}
        with MemberPlaces(spaces, addresses(spaces), 2) as places:  # nothing is in the way
            assert spaces.address(CONTROL)


@pytest.mark.parametrize("count", [0, COUNT_MAX + 1])
def test_only_so_many_fit(count: int) -> None:
    with pytest.raises(ValueError, match="Use 1 to 100"):
        MemberPlaces(Namespaces(1), {}, count)


# -- sandbox ---------------------------------------------------------------------------------------
#
# What a run makes in its sandbox is nobody else's, and is gone with the run, however it ends.


ENTER = "import sys; from raftlog_jepsen.control import namespaces; namespaces.enter(sys.argv[1:])"
# A run at work: a network, a disk, and a process in that network that is stopped.
RUN = """
import os, signal, subprocess, sys
from pathlib import Path
from raftlog_jepsen.control.disks import LoopDisk
from raftlog_jepsen.control.namespaces import Namespaces
with Namespaces(2) as spaces, LoopDisk(Path(sys.argv[1]), "disk", 16 << 20) as disk:
    command = ["cat", str(disk.mount_point / "a"), "-"]
    (disk.mount_point / "a").touch()
    reader = subprocess.Popen([*spaces.prefix(1), *command], stdin=subprocess.PIPE, process_group=0)
    reader.send_signal(signal.SIGSTOP)
    os.waitid(os.P_PID, reader.pid, os.WSTOPPED)  # the kernel continues what has stopped by then
    print(subprocess.check_output(["ip", "netns", "list"], text=True).split(), reader.pid)
    sys.stdout.flush()
    sys.stdin.read()
"""


def popen(*command: str) -> subprocess.Popen[str]:
    if namespaces.why_no_sandbox():
        pytest.skip(f"no sandbox can be made here: {namespaces.why_no_sandbox()}")
    return subprocess.Popen(
        [sys.executable, "-c", ENTER, *command],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        process_group=0,
    )


def end(process: subprocess.Popen[str]) -> None:
    with process:  # closes its pipes, which its children may hold open
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGKILL)


@pytest.fixture
def at_work(tmp_path: Path) -> Iterator[subprocess.Popen[str]]:
    process = popen(sys.executable, "-c", RUN, str(tmp_path))
    yield process
    end(process)


def loop_devices(image: Path) -> list[str]:
    """The machine's loop devices that are made of a file."""
    found = []
    for backing in Path("/sys/block").glob("loop*/loop/backing_file"):
        try:
            if backing.read_text().strip() == str(image):
                found.append(backing.parts[3])
        except OSError:  # it is just being taken apart
            found.append(backing.parts[3])
    return found


@pytest.mark.integration
def test_a_command_in_it_is_the_same_process_with_the_same_streams() -> None:
    process = popen("sh", "-c", 'read line; echo "$$ $line"; echo oops >&2; exit 7')
    said, complaint = process.communicate("hello\n")
    assert said == f"{process.pid} hello\n"
    assert complaint == "oops\n"
    assert process.returncode == 7


@pytest.mark.integration
def test_an_interrupt_reaches_the_command() -> None:
    process = popen(sys.executable, "-c", "import time; print('here', flush=True); time.sleep(60)")
    try:
        assert process.stdout is not None
        assert process.stdout.readline() == "here\n"
        process.send_signal(signal.SIGINT)
        _, complaint = process.communicate()
        assert complaint.endswith("KeyboardInterrupt\n")
        assert process.returncode == -signal.SIGINT
    finally:
        end(process)


@pytest.mark.integration
def test_the_inside_knows_that_it_is_inside() -> None:
    look = "from raftlog_jepsen.control import namespaces; print(namespaces.is_inside())"
    assert popen(sys.executable, "-c", look).communicate()[0] == "True\n"
    # A mark that came from elsewhere is none.
    outside = subprocess.run(
        [sys.executable, "-c", look],
        env={**os.environ, namespaces.MARK: "net:[1]"},
        capture_output=True,
        check=True,
        text=True,
    )
    assert outside.stdout == "False\n"
    assert not namespaces.is_inside()


@pytest.mark.integration
def test_it_has_a_network_of_its_own_with_a_loopback_device() -> None:
    said, _ = popen("ip", "-brief", "address").communicate()
    (line,) = said.splitlines()
    assert line.startswith("lo ")
    assert "127.0.0.1" in line


@pytest.mark.integration
def test_nothing_is_left_when_the_run_is_killed(
    at_work: subprocess.Popen[str], tmp_path: Path
) -> None:
    assert at_work.stdout is not None
    names, _, reader = at_work.stdout.readline().rpartition(" ")
    assert "b1" in names, at_work.communicate()
    assert "b2" in names
    image = tmp_path / "disk.img"
    child = os.pidfd_open(int(reader))
    try:
        assert loop_devices(image)  # the one thing that all the machine shares
        assert str(tmp_path) not in Path("/proc/mounts").read_text()
        at_work.kill()
        at_work.wait()
        gone = Path(f"/proc/{int(reader)}")
        wait_until(lambda: not gone.exists(), what="the stopped child's end")
    finally:
        with suppress(ProcessLookupError):
            signal.pidfd_send_signal(child, signal.SIGKILL)
        os.close(child)
    wait_until(lambda: not loop_devices(image), what="the loop device's end")
    assert list((tmp_path / "disk").iterdir()) == []
    listed = subprocess.run(["ip", "netns", "list"], capture_output=True, check=True, text=True)
    assert not {"b1", "b2"} & set(listed.stdout.split())


@pytest.mark.integration
def test_a_machine_without_the_means_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    why_not = namespaces.why_no_sandbox.__wrapped__
    monkeypatch.setattr(namespaces, "_UNSHARE", ("sh", "-c", "echo not permitted >&2; exit 1"))
    monkeypatch.setattr(os, "geteuid", lambda: 0)
    monkeypatch.setattr(namespaces, "SANDBOX_COMMANDS", ("sh",))
    assert why_not() == "cannot create namespaces: not permitted"
    monkeypatch.setattr(namespaces, "SANDBOX_COMMANDS", ("sh", "no-such-command"))
    assert why_not() == "no no-such-command"
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    assert why_not() == "requires root, to create namespaces"
    monkeypatch.setattr(sys, "platform", "plan9")
    assert why_not() == "requires Linux"


@pytest.mark.integration
def test_a_sandbox_does_not_keep_the_disks_of_others_mounted(tmp_path: Path) -> None:
    """Its table of mounts began as a copy: a power cut outside would wait for it to end."""
    if why_not():
        pytest.skip(f"not injected: {why_not()}")
    with LoopDisk(tmp_path, "disk", 16 << 20) as disk:
        inside = popen("sh", "-c", "echo here; read -r wait")
        try:
            assert inside.stdout is not None
            assert inside.stdout.readline() == "here\n"
            disk.mark()
            disk.cut_power()
            assert not disk.marked()
        finally:
            end(inside)
