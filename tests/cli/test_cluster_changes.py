"""Commands that change a running cluster: leaders, recovery, log levels."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from raftlog.testing import Cluster, cluster, wait_until
from tests.cli.conftest import Raftlog

pytestmark = pytest.mark.integration

# -- leaders and recovery --------------------------------------------------------------------------

# ``raftlog cluster transfer-leader`` and ``recover`` on real brokers.


SOON_S = 30.0
IDLE = {"moving": [], "throttle_bytes_per_s": None}


@pytest.fixture(scope="module")
def shared() -> Iterator[Cluster]:
    settings = {"operations.require.secret": "true"}
    with cluster(brokers=3, with_relays=False, settings=settings) as running:
        yield running


@pytest.fixture
def three(shared: Cluster, monkeypatch: pytest.MonkeyPatch) -> Cluster:
    monkeypatch.setenv("RAFTLOG_BOOTSTRAP", shared.bootstrap)
    secret_file = shared.brokers[0].settings["cluster.secret.file"]
    monkeypatch.setenv("RAFTLOG_CLUSTER_SECRET_FILE", secret_file)
    return shared


def make_topic(raftlog: Raftlog, three: Cluster, name: str) -> None:
    made = raftlog("topic", "create", name)
    assert made.status == 0, made.err
    wait_until(lambda: three.is_in_sync(name, 0), timeout_s=SOON_S, what="replicas in sync")


def test_features_are_upgraded_with_the_secret(
    three: Cluster, raftlog: Raftlog, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A new cluster has the newest level already, so it changes nothing."""
    ran = raftlog("cluster", "features", "--upgrade", "--json")
    assert ran.status == 0, ran.err
    levels = {each["name"]: (each["level"], each["version_max"]) for each in ran.json["features"]}
    for name in ("cluster.state", "peer.protocol"):
        assert levels[name][0] == levels[name][1] >= 2
    monkeypatch.delenv("RAFTLOG_CLUSTER_SECRET_FILE")
    ran = raftlog("cluster", "features", "--upgrade")
    assert ran.status != 0
    assert "cluster secret" in ran.err


def test_leadership_goes_where_it_is_sent(three: Cluster, raftlog: Raftlog) -> None:
    make_topic(raftlog, three, "moved")
    before = raftlog("topic", "describe", "moved", "--json").json["partitions"][0]
    to = next(broker for broker in before["isr"] if broker != before["leader"])
    moved = raftlog("cluster", "transfer-leader", "moved:0", "--to", to, "--json").json
    assert moved == {
        "topic": "moved",
        "partition": 0,
        "leader": to,
        "leader_epoch": before["leader_epoch"] + 1,
    }
    wait_until(lambda: three.leader("moved", 0) == to, timeout_s=SOON_S, what="the new leader")
    ran = raftlog("cluster", "transfer-leader", "moved:0")
    assert ran.status == 0
    assert "leads moved:0, in epoch " in ran.out.decode()


@pytest.mark.parametrize(
    ("arguments", "status", "reason"),
    [
        (["clicks"], 2, "TOPIC:P"),
        (["clicks:x"], 2, "TOPIC:P"),
        (["no-such:0"], 1, "no-such"),
        (["refused:7"], 1, "refused"),
        (["refused:0", "--to", "9"], 1, "9"),
    ],
)
def test_what_cannot_be_moved_is_named(
    three: Cluster, raftlog: Raftlog, arguments: list[str], status: int, reason: str
) -> None:
    raftlog("topic", "create", "refused", "--if-not-exists")
    ran = raftlog("cluster", "transfer-leader", *arguments)
    assert ran.status == status
    assert reason in ran.err
    assert ran.out == b""


def test_moves_are_throttled_at_run_time(three: Cluster, raftlog: Raftlog) -> None:
    throttled = raftlog("cluster", "reassign", "--throttle", "2KiB")
    assert "throttle: 2048 bytes per second" in throttled.err
    ran = raftlog("cluster", "reassign", "--verify", "--json")
    assert ran.json == {"moving": [], "throttle_bytes_per_s": 2_048}
    refused = raftlog("cluster", "reassign", "--throttle", "1kB")
    assert (refused.status, "would stop moves" in refused.err) == (1, True)
    assert raftlog("cluster", "reassign", "--throttle", "none", "--json").json == IDLE


def placed(raftlog: Raftlog, name: str) -> list[int]:
    part = raftlog("topic", "describe", name, "--json").json["partitions"][0]
    assert isinstance(part["replicas"], list)
    return part["replicas"]


def test_replicas_move_where_they_are_sent(
    three: Cluster, raftlog: Raftlog, tmp_path: Path
) -> None:
    raftlog("topic", "create", "sent", "--replication-factor", 1)
    (before,) = placed(raftlog, "sent")
    to = before % 3 + 1
    shown = raftlog("cluster", "reassign", "--topic", "sent:0", "--brokers", to, "--dry-run")
    assert f"sent:0     {before}     {to}" in shown.out.decode()
    plan = {"moves": [{"topic": "sent", "partition": 0, "from": [before], "to": [to]}]}
    file = tmp_path / "plan.json"
    file.write_text(json.dumps(plan))
    ran = raftlog("cluster", "reassign", "--plan", file, "--json")
    assert ran.json == plan
    assert placed(raftlog, "sent") == [to]
    again = raftlog("cluster", "reassign", "--plan", file)
    assert (again.status, "the plan was made for" in again.err) == (1, True)
    assert raftlog("cluster", "reassign", "--verify", "--json").json == IDLE
    assert "no moves in progress" in raftlog("cluster", "reassign", "--cancel").err
    others = ",".join(str(broker) for broker in (1, 2, 3) if broker != to)
    raftlog("cluster", "reassign", "--topic", "sent", "--brokers", others, "--no-wait")
    wait_until(lambda: placed(raftlog, "sent") != [to], timeout_s=SOON_S, what="the move")


def test_a_replication_factor_changes(three: Cluster, raftlog: Raftlog) -> None:
    raftlog("topic", "create", "factor", "--replication-factor", 1, "--partitions", 2)
    ran = raftlog("topic", "alter", "factor", "--replication-factor", 2, "--json")
    assert ran.json["replication_factor"] == 2
    assert len(placed(raftlog, "factor")) == 2
    assert raftlog("topic", "alter", "factor", "--replication-factor", 4).status == 1
    ran = raftlog("topic", "alter", "factor", "--replication-factor", 1, "--no-wait")
    assert "altered factor" in ran.out.decode()


@pytest.mark.nightly
def test_a_balanced_cluster_has_nothing_to_move(three: Cluster, raftlog: Raftlog) -> None:
    wait_until(
        lambda: raftlog("cluster", "reassign", "--verify", "--json").json == IDLE,
        timeout_s=SOON_S,
        what="the end of all moves",
    )
    assert raftlog("cluster", "rebalance").status == 0
    assert "no replica has to move" in raftlog("cluster", "rebalance", "--dry-run").err
    assert raftlog("cluster", "reassign", "--generate").json == {"moves": []}


@pytest.mark.parametrize(
    ("topic", "brokers", "reason"),
    [("no-such", "1", "no-such"), ("planned:7", "1", "no partition 7"), ("planned", "9", "9")],
)
def test_a_plan_for_what_is_not_there_fails(
    three: Cluster, raftlog: Raftlog, topic: str, brokers: str, reason: str
) -> None:
    raftlog("topic", "create", "planned", "--if-not-exists")
    ran = raftlog("cluster", "reassign", "--topic", topic, "--brokers", brokers)
    assert (ran.status, reason in ran.err) == (1, True), ran.err


@pytest.mark.parametrize("secret", ["", "another secret, of the right length: 0123456789"])
def test_who_does_not_know_the_secret_changes_nothing(
    three: Cluster,
    raftlog: Raftlog,
    secret: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    make_topic(raftlog, three, f"kept-{len(secret)}")
    monkeypatch.delenv("RAFTLOG_CLUSTER_SECRET_FILE")
    (tmp_path / "secret").write_text(secret)
    given = ("--cluster-secret-file", tmp_path / "secret") if secret else ()
    for command in (["recover", "--yes"], ["transfer-leader", f"kept-{len(secret)}:0"]):
        ran = raftlog("cluster", *command, *given)
        assert ran.status == 1
        assert "secret" in ran.err


def test_a_cluster_with_a_majority_needs_no_recovery(three: Cluster, raftlog: Raftlog) -> None:
    done = raftlog("cluster", "recover", "--yes", "--json").json
    assert done["partitions"] == []
    assert (done["cluster_note"], done["needs_loss"], done["loss_id"]) == ("", False, "")
    text = raftlog("cluster", "recover", "--yes").out.decode()
    assert "a majority responds, nothing to do" in text


@pytest.mark.nightly
def test_the_last_of_three_goes_on_with_every_acknowledged_record(raftlog: Raftlog) -> None:
    with cluster(brokers=3, with_relays=False) as own:
        at = ("--bootstrap", own.bootstrap)
        assert raftlog("topic", "create", "kept", *at).status == 0
        lines = b"".join(b"%d\n" % number for number in range(100))
        assert raftlog("produce", "kept", *at, stdin=lines).status == 0
        one = ("--partitions", 3, "--replication-factor", 1)
        assert raftlog("topic", "create", "lost", *one, *at).status == 0
        for lost in (1, 2):
            own.broker(lost).kill()
            own.wipe(lost)
        survivor = ("--bootstrap", own.broker(3).address)
        word = ("--lost", "1,2", "--accept-loss")
        # Nobody agrees, so nothing is done: not if asked and refused, and not without an answer.
        for answer in (b"n\n", b""):
            ran = raftlog("cluster", "recover", *word, *survivor, stdin=answer)
            assert ran.status == 1
            assert "brokers that respond: 1 of 3" in ran.err
            assert "Brokers 1,2 do not respond" in ran.err
            assert "broker 3 becomes the only voter" in ran.err
            assert "kept:0: MAY LOSE: broker 3 has the records below offset" in ran.err
            assert "The data directories of brokers 1,2 will never be accepted again" in ran.err
            assert "nothing was changed" in ran.err
        for said, why in (
            (word[:2], "to accept this loss, and no other: --lost 1,2"),
            (("--lost", "1", word[2]), "add --lost 1,2"),
        ):
            ran = raftlog("cluster", "recover", *said, "--yes", *survivor)
            assert (ran.status, why in ran.out.decode() + ran.err) == (1, True)
        done = raftlog("cluster", "recover", "--topic", "kept", *word, *survivor, stdin=b"y\n")
        assert done.status == 0, done.err
        assert "broker 3 becomes the only voter" in done.out.decode()
        assert "kept:0" in done.out.decode()
        ran = raftlog("tail", "kept", "-o", "earliest", "-n", 100, *survivor)
        assert (ran.out, ran.err) == (lines, "")
        assert raftlog("produce", "kept", *survivor, stdin=b"after\n").status == 0
        assert raftlog("tail", "kept", "-n", 1, *survivor).out == b"after\n"
        own.broker(1).start()
        recover = ("cluster", "recover", "--topic", "lost", *survivor)
        wait_until(
            lambda: raftlog(*recover, "--dry-run", "--json").json["loss_id"] != "",
            timeout_s=20,
            what="a broker for the partition of the lost disk",
        )
        shown = raftlog(*recover, "--dry-run").out.decode()
        lost, loss_id = word[:2], shown.partition("--accept-loss=")[2][:12]
        for answer in (("--yes",), ()):  # the operator saw another loss
            ran = raftlog(*recover, *lost, "--accept-loss=0123456789ab", *answer, stdin=b"y\n")
            assert (ran.status, "nothing was changed" in ran.err) == (1, True)
            assert loss_id in ran.err

        def nothing_is_left() -> bool:
            left = str(raftlog(*recover, "--dry-run", "--json").json["loss_id"])
            if left:  # more partitions can have a broker by now
                raftlog(*recover, *lost, f"--accept-loss={left}", "--yes")
            return not left

        wait_until(nothing_is_left, timeout_s=20, what="the loss that is shown is accepted")


# -- log level -------------------------------------------------------------------------------------

# ``raftlog cluster log-level``: shown, changed and given back on a real broker.


NAME = "raftlog.server.cluster"


def test_a_level_is_changed_until_it_is_removed(
    broker: Cluster, raftlog: Raftlog, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("RAFTLOG_BOOTSTRAP", broker.bootstrap)

    def shown(*arguments: str) -> dict[str, str]:
        rows = raftlog("cluster", "log-level", *arguments, "--json").json
        return {row["logger"]: row["level"] for row in rows}

    before = shown()
    assert before["root"] == "info"
    changed = shown(NAME, "debug")
    assert changed.keys() >= {NAME, f"{NAME}.node"}
    assert set(changed.values()) == {"debug"}
    assert shown() == {**before, NAME: "debug"}
    assert raftlog("cluster", "log-level").out.decode().split()[:3] == ["broker", "logger", "level"]
    assert shown(NAME, "default", "--broker", "1")[f"{NAME}.node"] == "info"
    assert shown() == before


def test_brokers_that_are_down_are_omitted(
    raftlog: Raftlog, monkeypatch: pytest.MonkeyPatch
) -> None:
    with cluster(brokers=3) as running:
        running.brokers[1].kill()
        monkeypatch.setenv("RAFTLOG_BOOTSTRAP", running.bootstrap)
        ran = raftlog("cluster", "log-level", NAME, "debug", "--json")
        assert {row["broker"] for row in ran.json} == {1, 3}
        assert "raftlog: broker 2 is omitted: " in ran.err


def test_an_unknown_logger_or_level_is_an_error(
    broker: Cluster, raftlog: Raftlog, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("RAFTLOG_BOOTSTRAP", broker.bootstrap)
    ran = raftlog("cluster", "log-level", "no.such", "debug")
    assert (ran.status, "no logger 'no.such'" in ran.err) == (1, True)
    assert raftlog("cluster", "log-level", "no.such").status == 1
    assert raftlog("cluster", "log-level", NAME, "loud").status == 2
