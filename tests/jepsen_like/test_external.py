"""A cluster that is not ours: the user's script does the harm, and its word is only a word."""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from raftlog import Admin, NewTopic
from raftlog.config import Address
from raftlog.errors import BrokerUnavailableError
from raftlog.testing import Cluster, cluster, wait_until
from raftlog.testing.cluster import free_port
from raftlog.testing.fork_server import SOURCE, python_path
from raftlog_jepsen import external
from raftlog_jepsen.external import (
    CannotError,
    ExternalCluster,
    Script,
    ScriptError,
    ScriptNet,
)
from raftlog_jepsen.nemesis.base import FaultPlan
from raftlog_jepsen.nemesis.process import ProcessNemesis
from raftlog_jepsen.plan import Shape, TopicShape

PATIENCE_S = 40.0
# What a user would write. Brokers' ids of processes are in files beside it.
CONTROL = """#!/bin/sh
cd "$(dirname "$0")"
case $1 in
kill) kill -KILL "$(cat "pid-$2")" ;;
start)
    PYTHONPATH=@SOURCE@ @PYTHON@ -P -m raftlog broker --config "broker-$2.toml" \\
        </dev/null >/dev/null 2>&1 &
    echo $! >"pid-$2" ;;
pause) kill -STOP "$(cat "pid-$2")" ;;
resume) kill -CONT "$(cat "pid-$2")" ;;
state)
    case $(cut -d ' ' -f 3 "/proc/$(cat "pid-$2")/stat" 2>/dev/null) in
    T) echo stopped ;;
    "" | Z) echo gone ;;
    *) echo running ;;
    esac ;;
wipe) rm -r "broker-$2" ;;
*) echo "$1 is nothing I can do" >&2; exit 3 ;;
esac
"""
RECORD = '#!/bin/sh\necho "$@" >>"$0.calls"\n'


def script_of(directory: Path, text: str) -> Path:
    path = directory / "control.sh"
    path.write_text(text)
    path.chmod(0o700)
    return path


def calls(path: Path) -> list[str]:
    """What a script that only records was called with, since the last look."""
    record = path.with_name(path.name + ".calls")
    found = record.read_text().splitlines() if record.exists() else []
    record.unlink(missing_ok=True)
    return sorted(found)


# -- the script


@pytest.mark.integration
@pytest.mark.parametrize(
    ("text", "error", "says"),
    [
        ("echo no luck >&2; exit 1", ScriptError, "kill 2: status 1: no luck"),
        ("echo not here >&2; exit 3", CannotError, "kill 2: not here"),
        ("exit 3", CannotError, "the script does not support it"),
        ("exec sleep 60", ScriptError, "kill 2: not done after 0.2 s"),
    ],
)
def test_a_script_that_does_not_do_it_says_why(
    tmp_path: Path, text: str, error: type[ScriptError], says: str
) -> None:
    script = Script(script_of(tmp_path, f"#!/bin/sh\n{text}\n"), timeout_s=0.2)
    with pytest.raises(error, match=says):
        script.do("kill", 2)
    assert (script.cannot("kill") != "") == (error is CannotError)
    assert script.cannot("pause") == ""


@pytest.mark.integration
def test_what_a_script_cannot_do_is_not_asked_again(tmp_path: Path) -> None:
    path = script_of(tmp_path, RECORD + "exit 3\n")
    script = Script(path)
    for _ in range(2):
        with pytest.raises(CannotError):
            script.do("pause", 1)
    assert calls(path) == ["pause 1"]


@pytest.mark.integration
def test_without_a_script_nothing_can_be_done(tmp_path: Path) -> None:
    script = Script(None)
    assert script.cannot("kill") == "no control script. Set --control"
    with pytest.raises(CannotError, match="kill: no control script"):
        script.do("kill", 1)
    with pytest.raises(ScriptError, match="cannot be run"):
        Script(tmp_path / "nowhere").do("kill", 1)


@pytest.mark.integration
def test_a_script_says_what_it_says(tmp_path: Path) -> None:
    script = Script(script_of(tmp_path, '#!/bin/sh\necho "  $1 of $2 "\n'))
    assert script.do("state", 2) == "state of 2"
    assert script.do_all("state", [(1,), (3,)]) == ["state of 1", "state of 3"]
    assert script.do_all("state", []) == []


@pytest.mark.integration
def test_what_is_cut_is_what_the_script_was_told(tmp_path: Path) -> None:
    path = script_of(tmp_path, RECORD)
    net = ScriptNet(Script(path), {1: Address("127.0.0.1", free_port())})
    net.heal()
    assert calls(path) == []
    net.cut({(1, 2), (2, 1), (1, 3)})
    assert calls(path) == ["cut 1 2", "cut 1 3", "cut 2 1"]
    assert not net.passes(1, 3)
    assert net.passes(3, 1)
    assert not net.reaches(3, 1)
    assert net.reaches(2, 3)
    assert not net.reaches(0, 1)  # nobody is there
    net.mend({(1, 2), (2, 1)})
    assert calls(path) == ["cut 1 3", "heal"]
    assert net.passes(1, 2)
    net.heal()
    assert calls(path) == ["heal"]
    with pytest.raises(CannotError):
        net.slow(1, 64_000)
    net.unslow(1)


# -- with a cluster


@dataclass
class Theirs:
    """A cluster that somebody else started, and their script."""

    running: Cluster
    script: Path

    def broker_pid(self, broker_id: int) -> int:
        return int(self.script.with_name(f"pid-{broker_id}").read_text())


@pytest.fixture(scope="module")
def theirs(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Theirs]:
    directory = tmp_path_factory.mktemp("theirs")
    text = CONTROL.replace("@PYTHON@", sys.executable)
    script = script_of(directory, text.replace("@SOURCE@", python_path(SOURCE)["PYTHONPATH"]))
    with cluster(3, directory=directory, with_relays=False) as running:
        for broker in running.brokers:
            (directory / f"pid-{broker.id}").write_text(str(broker.pid))
        with Admin(running.bootstrap) as admin:
            admin.create_topics([NewTopic("events", 1, 3)])
        made = Theirs(running, script)
        try:
            yield made
        finally:
            for broker in running.brokers:
                pid = made.broker_pid(broker.id)
                if pid != broker.pid:  # the script started it
                    os.kill(pid, signal.SIGKILL)


@pytest.fixture
def reached(theirs: Theirs) -> Iterator[ExternalCluster]:
    made = ExternalCluster(theirs.running.bootstrap, theirs.script)
    try:
        yield made
        made.ensure_all_up()
        assert made.wait_quiet(PATIENCE_S) == []
    finally:
        made.close()


@pytest.mark.integration
def test_it_is_found_as_it_is(reached: ExternalCluster, theirs: Theirs) -> None:
    reached.start()
    where = {broker.id: str(broker.address) for broker in theirs.running.brokers}
    assert reached.addresses() == where
    assert reached.shape.broker_ids == (1, 2, 3)
    assert reached.up() == {1, 2, 3}
    assert reached.data_directories() == {}
    assert reached.net.backend == "script"
    assert reached.net.reaches(0, 1)
    assert all(part.is_whole for part in reached.status().values())
    assert [reached.state(broker_id) for broker_id in (1, 2, 3)] == ["running"] * 3
    assert all(host.disk is None for host in reached.hosts.values())
    assert reached.exits() == reached.unexpected_exits() == []
    reached.expect_exit([1])
    reached.stop()
    assert reached.wait_quiet(PATIENCE_S) == []


@pytest.mark.integration
def test_its_brokers_are_killed_and_paused_by_the_script(
    reached: ExternalCluster, theirs: Theirs
) -> None:
    nemesis = ProcessNemesis(reached)
    pid = theirs.broker_pid(2)
    kill = FaultPlan(kind="kill", targets=(2,), args={"who": "one"})
    effect = nemesis.begin(kill)
    assert effect.injected, effect
    assert effect.seen["state"] == {"2": "gone"}
    assert effect.seen["ended"] == {"2": "killed, as the script reports"}
    wait_until(lambda: not theirs.running.broker(2).running, what="its end")
    assert reached.up() == {1, 3}
    assert reached.wait_quiet(0) != []
    effect = nemesis.end(kill)
    assert effect.injected, effect
    assert theirs.broker_pid(2) != pid
    assert reached.kills() == {1: 0, 2: 1, 3: 0}
    assert reached.wait_quiet(PATIENCE_S) == []

    pause = FaultPlan(kind="pause", targets=(1,), args={"who": "one"})
    effect = nemesis.begin(pause)
    assert effect.injected, effect
    assert effect.seen["state"] == {"1": "stopped"}
    assert Path(f"/proc/{theirs.broker_pid(1)}/stat").read_text().split(")")[1].split()[0] == "T"
    assert nemesis.end(pause).seen["after"] == {"1": "running"}


@pytest.mark.integration
def test_what_was_left_undone_is_undone(reached: ExternalCluster) -> None:
    reached.pause([1])
    reached.kill([3])
    with pytest.raises(ValueError, match="broker 1 is running"):
        reached.wipe(1)
    reached.wipe(3)
    assert reached.ensure_all_up() == [
        "broker 1 still needed resume",
        "broker 3 still needed start",
    ]
    assert reached.ensure_all_up() == []


@pytest.mark.integration
def test_a_script_that_only_claims_is_found_out(theirs: Theirs, tmp_path: Path) -> None:
    path = script_of(tmp_path, RECORD)
    made = ExternalCluster(theirs.running.bootstrap, path)
    try:
        nemesis = ProcessNemesis(made, sleep=lambda _: None)
        for kind, why in (("kill", "still running: [2]"), ("pause", "not stopped: [2]")):
            effect = nemesis.begin(FaultPlan(kind=kind, targets=(2,), args={"who": "one"}))
            assert not effect.injected
            assert effect.seen["why"] == why
            nemesis.heal()
        assert {"kill 2", "start 2", "pause 2", "resume 2"} <= set(calls(path))
    finally:
        made.close()


@pytest.mark.integration
def test_a_plan_for_another_cluster_is_refused(theirs: Theirs) -> None:
    topic = TopicShape(name="t", partitions=1, replication_factor=3, min_isr=2)
    with pytest.raises(ValueError, match=r"brokers \[1, 2, 3\], the plan has \[1, 2, 3, 4, 5\]"):
        ExternalCluster(theirs.running.bootstrap, None, shape=Shape(brokers=5, topics=(topic,)))


@pytest.mark.integration
def test_a_broker_that_does_not_come_back_is_named(
    reached: ExternalCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    reached.kill([2])
    wait_until(lambda: reached.state(2) == "gone", what="its end")
    reached._down.clear()  # as if the script's start had done nothing
    with monkeypatch.context() as patch:
        patch.setattr(external, "READY_TIMEOUT_S", 0.0)
        with pytest.raises(BrokerUnavailableError, match=r"broker 2 does not respond at .* 0 s"):
            reached.start_broker(2)
        with pytest.raises(BrokerUnavailableError, match="broker 2 not responding"):
            reached.start()
    reached._down.add(2)
