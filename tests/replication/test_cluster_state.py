"""The state machine of the cluster: what each command does, and what is refused."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from random import Random
from typing import Any

import msgspec
import pytest

from raftlog import limits
from raftlog.config import TopicConfig
from raftlog.errors import (
    BrokerIdInUseError,
    BrokerRemovedError,
    ClusterNotReadyError,
    DeclaredLostError,
    InvalidConfigError,
    InvalidPartitionsError,
    InvalidRequestError,
    InvalidTopicError,
    RaftlogError,
    RefusedError,
    StaleBrokerError,
    TokenExpiredError,
    TopicExistsError,
    UnknownPartitionError,
    UnknownTokenError,
    UnknownTopicError,
    UnknownUserError,
    UnsupportedFeatureError,
    UserExistsError,
    WrongClusterError,
)
from raftlog.replication.cluster_commands import (
    GROUP_SETTINGS,
    PEER_PROTOCOL_LOST,
    PEER_PROTOCOL_TOKENS,
    AddPartitions,
    AlterGroup,
    AlterQuotas,
    AlterTopic,
    BrokerRecord,
    CancelDecommission,
    ClusterCommand,
    CreateAcls,
    CreateToken,
    DeclareLost,
    DecommissionBroker,
    DeleteAcls,
    DeleteTopic,
    DeleteUser,
    FenceBroker,
    Move,
    PutUser,
    QuotaChange,
    RaisePeerProtocol,
    Reassign,
    RemoveBroker,
    ReserveBrokerId,
    SetKafkaAddress,
    SetMoveThrottle,
    SetReplicas,
    SetTokenExpiry,
    UnfenceBroker,
    first_state,
    founding_state,
    recovered,
    snapshot_format,
)
from raftlog.replication.cluster_state import (
    ClusterChange,
    ClusterMachine,
    InitialState,
    TopicRecord,
    next_voters,
    voters_wanted,
)
from raftlog.replication.placement import Target
from raftlog.security.acl import Acl
from raftlog.security.credentials import DelegationToken, ScramCredential, of_salted_password
from raftlog.security.quota import QuotaEntity
from tests.replication.samples import (
    cluster,
    create,
    done,
    fence,
    join,
    refused,
    registration,
    swap,
)

# -- the cluster and its brokers ------------------------------------------------------------------


def test_a_cluster_is_named_once() -> None:
    machine = ClusterMachine()
    assert machine.cluster_id == ""
    machine.restore(founding_state("one"))
    join(machine, 1)
    before = machine.snapshot()
    for other in (founding_state("two"), b""):
        with pytest.raises(WrongClusterError, match="belongs to cluster one"):
            machine.restore(other)
        assert machine.snapshot() == before
    machine.restore(founding_state("one"))
    assert machine.known() == before, "a state that is known never goes back"
    assert machine.snapshot() == founding_state("one"), "that of the group does"


def test_a_broker_is_fenced_until_it_is_let_in() -> None:
    machine = ClusterMachine()
    epoch = done(machine, registration(1, rack="a"))
    record = machine.brokers[1]
    assert (record.host, record.port, record.rack, record.boot) == ("host-1", 9100, "a", 1)
    assert record.broker_epoch == epoch
    assert record.fenced
    assert machine.live() == []
    done(machine, UnfenceBroker(id=1, broker_epoch=epoch))
    assert [broker.id for broker in machine.live()] == [1]
    done(machine, FenceBroker(id=1, broker_epoch=epoch))
    assert machine.live() == []
    assert machine.directory_of(1) == "directory-1"
    assert machine.directory_of(2) is None


def test_the_same_registration_again_gives_the_same_epoch() -> None:
    machine = cluster(1)
    epoch, version = machine.brokers[1].broker_epoch, machine.version
    assert done(machine, registration(1)) == epoch
    assert machine.version == version
    assert not machine.brokers[1].fenced


def test_a_broker_epoch_grows_at_every_registration() -> None:
    """KIP-903: what was said about an earlier start does not count for a later one (S10)."""
    machine = cluster(2)
    first = machine.brokers[1].broker_epoch
    second = done(machine, registration(1, boot=2))
    assert second > max(first, machine.brokers[2].broker_epoch)
    assert machine.brokers[1].fenced
    for command in (FenceBroker, UnfenceBroker):
        refused(machine, command(id=1, broker_epoch=first), RefusedError, "registered again")
        refused(
            machine,
            command(id=3, broker_epoch=first),
            RefusedError,
            "broker 3 has never registered",
        )
    done(machine, UnfenceBroker(id=1, broker_epoch=second))


def test_an_address_for_kafka_clients_outlives_the_registration() -> None:
    machine = cluster(1)
    first = machine.brokers[1].broker_epoch
    done(machine, SetKafkaAddress(id=1, broker_epoch=first, host="outside", port=9092))
    version = machine.version
    done(machine, SetKafkaAddress(id=1, broker_epoch=first, host="outside", port=9092))
    assert machine.version == version
    done(machine, registration(1, boot=2))
    record = machine.brokers[1]
    assert (record.kafka_host, record.kafka_port, record.port) == ("outside", 9092, 9100)
    late = SetKafkaAddress(id=1, broker_epoch=first, host="", port=0)
    refused(machine, late, RefusedError, "registered again")


def test_fencing_twice_is_fencing_once() -> None:
    machine = cluster(1)
    fence(machine, 1)
    version = machine.version
    fence(machine, 1)
    assert machine.version == version


@pytest.mark.parametrize(
    ("changes", "error", "words"),
    [
        ({"directory_id": "other"}, BrokerIdInUseError, "live broker at host-1:9100"),
        ({"host": "elsewhere"}, BrokerIdInUseError, "copy of this data directory"),
        ({"boot": 4}, StaleBrokerError, "boot 5 was seen"),
    ],
)
def test_a_registration_that_cannot_be_the_same_broker_is_refused(
    changes: dict[str, Any], error: type[RaftlogError], words: str
) -> None:
    machine = ClusterMachine()
    join(machine, 1, boot=5)
    refused(machine, registration(1, **({"boot": 5} | changes)), error, words)


def test_a_fenced_broker_may_come_back_with_an_empty_disk() -> None:
    machine = cluster(1)
    epoch = machine.brokers[1].broker_epoch
    fence(machine, 1)
    assert done(machine, registration(1, directory_id="new")) > epoch
    assert machine.directory_of(1) == "new"


def test_an_old_copy_of_a_directory_is_refused_even_if_the_broker_is_gone() -> None:
    machine = ClusterMachine()
    join(machine, 1, boot=5)
    fence(machine, 1)
    refused(machine, registration(1, boot=4), StaleBrokerError, "an old copy of its data directory")


def test_a_restart_at_another_address_is_the_same_broker() -> None:
    machine = cluster(1)
    done(machine, registration(1, boot=2, host="elsewhere", port=9200))
    assert (machine.brokers[1].host, machine.brokers[1].port) == ("elsewhere", 9200)


def test_a_cluster_has_a_largest_size() -> None:
    machine = cluster(limits.BROKERS_PER_CLUSTER_MAX)
    refused(machine, registration(1_000), RefusedError, "which is the limit")
    done(machine, registration(1, boot=2))


# -- topics ---------------------------------------------------------------------------------------


def test_a_topic_is_placed_on_live_brokers() -> None:
    machine = cluster(4)
    fence(machine, 2)
    topic = done(machine, create("t", partitions=6, replication_factor=2))
    assert topic is machine.topic("t") is machine.topic_by_id("id-t") is machine.topics["t"]
    assert (topic.name, topic.id, topic.replication_factor) == ("t", "id-t", 2)
    assert Counter(broker for a in topic.partitions for broker in a.replicas) == {1: 4, 3: 4, 4: 4}
    assert all(len(assignment.witnesses) == 1 for assignment in topic.partitions)
    assert all(1 in assignment.voters for assignment in topic.partitions)
    assert not any(2 in assignment.voters for assignment in topic.partitions)


@pytest.mark.parametrize("unset", [None, 0])
@pytest.mark.parametrize(("brokers", "factor"), [(1, 1), (2, 2), (3, 3), (5, 3)])
def test_the_default_replication_factor(unset: int | None, brokers: int, factor: int) -> None:
    topic = done(cluster(brokers), create("t", replication_factor=unset))
    assert topic.replication_factor == len(topic.partitions[0].replicas) == factor


@pytest.mark.parametrize(
    ("changes", "error", "words"),
    [
        ({"name": "a/b", "topic_id": "i"}, InvalidTopicError, "not a topic name"),
        ({"name": "held", "topic_id": "i"}, TopicExistsError, "exists already"),
        ({"topic_id": "id-held"}, TopicExistsError, "is in use"),
        ({"partitions": 0}, InvalidPartitionsError, "a topic has 1 to 10000"),
        ({"partitions": 10_001}, InvalidPartitionsError, "a topic has 1 to 10000"),
        ({"replication_factor": 4}, InvalidPartitionsError, "3 brokers, of which 2 are live"),
        ({"replication_factor": 3}, ClusterNotReadyError, "3 brokers, of which 2 are live"),
        ({"replication_factor": 16}, InvalidPartitionsError, "the maximum is 15"),
        ({"overrides": {"no.key": "1"}}, InvalidConfigError, "no.key"),
        ({"overrides": {"segment.ms": "x"}}, InvalidConfigError, "segment.ms=x"),
        (
            {"overrides": {"min.insync.replicas": "2"}, "replication_factor": 1},
            InvalidConfigError,
            "more than the replication factor, 1",
        ),
        (
            {"overrides": {"flush.policy": "os"}, "replication_factor": 1},
            InvalidConfigError,
            "a power cut would lose acknowledged records",
        ),
    ],
)
def test_a_topic_that_cannot_be_is_refused(
    changes: dict[str, Any], error: type[RaftlogError], words: str
) -> None:
    machine = cluster(3)
    fence(machine, 3)
    done(machine, create("held"))
    refused(machine, create(**({"name": "t"} | changes)), error, words)


def test_no_topic_without_a_live_broker() -> None:
    """The default replication factor is then 0, which no user has requested."""
    machine = ClusterMachine()
    refused(machine, create("t"), ClusterNotReadyError, "all are fenced")
    done(machine, registration(1))
    for factor in (0, 1):
        topic = create("t", replication_factor=factor)
        refused(machine, topic, ClusterNotReadyError, "all are fenced")


def test_a_creation_may_be_repeated() -> None:
    """Whoever proposed it may not know whether it was applied."""
    machine = cluster(3)
    topic = done(machine, create("t"))
    version = machine.version
    assert done(machine, create("t")) == topic
    assert machine.version == version


def test_a_deletion_may_be_repeated_and_leaves_a_namesake_alone() -> None:
    """S19: the topic of that name may be a later one."""
    machine = cluster(3)
    first = done(machine, create("t"))
    assert done(machine, DeleteTopic(name="t", topic_id="id-t")) == first
    assert machine.topic("t") is machine.topic_by_id("id-t") is None
    refused(machine, DeleteTopic(name="t"), UnknownTopicError, "there is no topic 't'")
    done(machine, create("t", topic_id="later"))
    delete = DeleteTopic(name="t", topic_id="id-t")
    refused(machine, delete, UnknownTopicError, "has the id later")
    assert done(machine, DeleteTopic(name="t")).id == "later"


def test_settings_are_set_and_put_back() -> None:
    machine = cluster(3)
    done(machine, create("t", overrides={"retention.ms": "5", "segment.ms": "6"}))
    changes: dict[str, str | None] = {"retention.ms": None, "min.insync.replicas": "3"}
    topic = done(machine, AlterTopic(name="t", changes=changes))
    assert topic.overrides == {"min.insync.replicas": "3", "segment.ms": "6"}
    assert topic.config == TopicConfig(segment_ms=6, min_insync_replicas=3)
    version = machine.version
    assert done(machine, AlterTopic(name="t", changes=changes)) == topic
    assert machine.version == version


@pytest.mark.parametrize(
    ("name", "changes", "error", "words"),
    [
        ("u", {}, UnknownTopicError, "there is no topic 'u'"),
        ("t", {"no.key": None}, InvalidConfigError, "no.key"),
        ("t", {"segment.ms": "0"}, InvalidConfigError, "segment.ms=0"),
        ("t", {"min.insync.replicas": "4"}, InvalidConfigError, "replication factor, 3"),
    ],
)
def test_settings_that_cannot_be_are_refused(
    name: str, changes: dict[str, str | None], error: type[RaftlogError], words: str
) -> None:
    machine = cluster(3)
    done(machine, create("t"))
    refused(machine, AlterTopic(name=name, changes=changes), error, words)


def test_partitions_are_added_at_the_end() -> None:
    machine = cluster(3)
    first = done(machine, create("t", partitions=2, replication_factor=1))
    join(machine, 4)
    topic = done(machine, AddPartitions(name="t", total=4))
    assert topic.partitions[:2] == first.partitions
    assert Counter(a.replicas[0] for a in topic.partitions) == Counter([1, 2, 3, 4])


@pytest.mark.parametrize(
    ("name", "total", "error", "words"),
    [
        ("u", 9, UnknownTopicError, "there is no topic 'u'"),
        ("t", 2, InvalidPartitionsError, "has 2 partitions"),
        ("t", 10_001, InvalidPartitionsError, "1 to 10000"),
        ("t", 3, ClusterNotReadyError, "factor 3 cannot be met"),
    ],
)
def test_partitions_that_cannot_be_added_are_refused(
    name: str, total: int, error: type[RaftlogError], words: str
) -> None:
    machine = cluster(3)
    done(machine, create("t", partitions=2))
    fence(machine, 3)
    refused(machine, AddPartitions(name=name, total=total), error, words)


def test_a_cluster_has_a_largest_number_of_partitions(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "PARTITIONS_PER_CLUSTER_MAX", 10)
    machine = cluster(1)
    done(machine, create("t", partitions=6))
    refused(machine, create("u", partitions=5), InvalidPartitionsError, "have 11 partitions")
    machine.restore(machine.snapshot())
    refused(machine, create("u", partitions=5), InvalidPartitionsError, "have 11 partitions")
    done(machine, create("u", partitions=4))
    refused(machine, AddPartitions(name="t", total=7), InvalidPartitionsError, "11 partitions")
    done(machine, DeleteTopic(name="u"))
    done(machine, AddPartitions(name="t", total=10))


def test_what_is_gone_is_no_load() -> None:
    """A machine that saw it all places as one that only has the result."""
    machine = cluster(3)
    for number in range(6):
        done(machine, create(f"t{number}", replication_factor=1))
    for number in range(6):
        assignment = machine.topics[f"t{number}"].partitions[0]
        if assignment.replicas == (1,):
            done(machine, DeleteTopic(name=f"t{number}"))
        elif assignment.replicas == (2,):
            moved = SetReplicas(
                topic_id=f"id-t{number}", partition=0, replicas=(3,), witnesses=(), version=1
            )
            done(machine, moved)
    restored = ClusterMachine()
    restored.restore(machine.snapshot())
    for each in (machine, restored):
        for number in range(8):
            done(each, create(f"u{number}", replication_factor=1))
        placed = Counter(each.topics[f"u{number}"].partitions[0].replicas for number in range(8))
        assert placed == {(1,): 4, (2,): 4}  # broker 3 has four of before


def test_a_topic_with_more_partitions_is_balanced_for_itself() -> None:
    machine = cluster(2)
    done(machine, create("t", partitions=10, replication_factor=1))
    for id_ in (1, 2):
        fence(machine, id_)
    join(machine, 3)
    done(machine, create("u", replication_factor=1))
    for id_ in (1, 2):
        join(machine, id_, boot=2)
    topic = done(machine, AddPartitions(name="u", total=3))
    assert Counter(a.replicas[0] for a in topic.partitions) == Counter([1, 2, 3])


# -- replicas that change -------------------------------------------------------------------------


def test_replicas_follow_what_the_partition_has_agreed_on() -> None:
    machine = cluster(3)
    topic = done(machine, create("t", partitions=3, replication_factor=2))
    command = swap(topic, version=4)
    changed = done(machine, command)
    assert changed.partitions[0].replicas == command.replicas
    assert changed.partitions[0].witnesses == command.witnesses
    assert changed.partitions[0].version == 4
    assert changed.partitions[1:] == topic.partitions[1:]
    version = machine.version
    assert done(machine, command) == changed
    assert machine.version == version


def test_replicas_of_an_older_version_are_refused() -> None:
    """Two reports may overtake each other; the newer one stays."""
    machine = cluster(3)
    topic = done(machine, create("t", replication_factor=2))
    there = swap(topic, version=3)
    held = topic.partitions[0]
    back = SetReplicas(
        topic_id=topic.id,
        partition=0,
        replicas=held.replicas,
        witnesses=held.witnesses,
        version=5,
    )
    done(machine, back)
    refused(machine, there, RefusedError, "not newer")
    assert machine.topics["t"].partitions[0].replicas == topic.partitions[0].replicas


@pytest.mark.parametrize(
    ("changes", "error", "words"),
    [
        ({"topic_id": "gone"}, UnknownTopicError, "id gone"),
        ({"partition": 1}, UnknownPartitionError, "there is no 1"),
        ({"replicas": ()}, InvalidPartitionsError, "at least one replica"),
        ({"replicas": (1, 2), "witnesses": (2,)}, InvalidPartitionsError, "listed twice"),
        ({"replicas": (1, 9)}, InvalidPartitionsError, "[9]"),
        ({"replicas": tuple(range(16))}, InvalidPartitionsError, "the maximum is 15"),
        ({"version": 0}, RefusedError, "not newer"),
    ],
)
def test_replicas_that_cannot_be_are_refused(
    changes: dict[str, Any], error: type[RaftlogError], words: str
) -> None:
    machine = cluster(3)
    done(machine, create("t", replication_factor=1))
    fields = {"topic_id": "id-t", "partition": 0, "replicas": (3, 2), "witnesses": (), "version": 1}
    refused(machine, SetReplicas(**(fields | changes)), error, words)


# -- moves of replicas


def moving(machine: ClusterMachine, *replicas: int, **changes: Any) -> TopicRecord:
    topic: TopicRecord = done(machine, reassign(*replicas, **changes))
    return topic


def reassign(*replicas: int, **changes: Any) -> Reassign:
    fields = {"partition": 0, "replicas": replicas, "version": 0}
    factor = changes.pop("replication_factor", 0)
    topic_id = changes.pop("topic_id", "id-t")
    move = Move(**(fields | changes))
    return Reassign(topic_id=topic_id, moves=(move,), replication_factor=factor)


def reached(*replicas: int, version: int, witnesses: tuple[int, ...] = ()) -> SetReplicas:
    return SetReplicas(
        topic_id="id-t", partition=0, replicas=replicas, witnesses=witnesses, version=version
    )


def test_a_move_lasts_until_its_replicas_are_stored() -> None:
    machine = cluster(5)
    before = done(machine, create("t", replication_factor=2)).partitions[0]
    topic = moving(machine, 4, 5)
    assert topic.partitions[0] == msgspec.structs.replace(
        before, target=Target((4, 5), before.replicas)
    )
    restored = ClusterMachine()
    restored.restore(machine.snapshot())
    assert restored.topics["t"] == topic
    topic = done(machine, reached(*before.replicas, 4, version=3))
    assert topic.partitions[0].target == Target((4, 5), before.replicas)
    topic = done(machine, reached(4, 5, version=4))
    assert (topic.partitions[0].replicas, topic.partitions[0].target) == ((4, 5), None)


def test_a_move_to_the_stored_replicas_ends_with_the_same_version() -> None:
    """The partition changed nothing, or the cancellation came before its first step."""
    machine = cluster(5)
    held = done(machine, create("t", replication_factor=2)).partitions[0]
    assert moving(machine, *held.replicas).partitions[0].target is None
    moving(machine, 4, 5)
    topic = moving(machine, *held.replicas, expected=(4, 5))
    assert topic.partitions[0].target == Target(held.replicas, held.replicas)
    end = reached(*held.replicas, version=0, witnesses=held.witnesses)
    ended = done(machine, end).partitions[0]
    assert (ended.replicas, ended.version, ended.target) == (held.replicas, 0, None)
    assert done(machine, end).partitions[0] == ended, "once more: nothing changes"


@pytest.mark.parametrize(
    ("changes", "error", "words"),
    [
        ({"topic_id": "gone"}, UnknownTopicError, "id gone"),
        ({"partition": 1}, UnknownPartitionError, "there is no 1"),
        ({"replicas": ()}, InvalidPartitionsError, "0 replicas were requested"),
        ({"replicas": (4,)}, InvalidPartitionsError, "1 replica was requested"),
        ({"replicas": (4, 4)}, InvalidPartitionsError, "listed twice"),
        ({"replicas": (4, 9)}, InvalidPartitionsError, "[9]"),
        ({"version": 1}, RefusedError, "was made for version 1"),
        ({"expected": (1, 2)}, RefusedError, "Create the plan again"),
        ({"replication_factor": 16}, InvalidPartitionsError, "16"),
    ],
)
def test_moves_that_cannot_be_are_refused(
    changes: dict[str, Any], error: type[RaftlogError], words: str
) -> None:
    machine = cluster(5)
    done(machine, create("t", replication_factor=2))
    replicas = changes.pop("replicas", (4, 5))
    refused(machine, reassign(*replicas, **changes), error, words)


def test_a_move_replaces_only_the_one_that_it_expects() -> None:
    machine = cluster(5)
    done(machine, create("t", replication_factor=2))
    moving(machine, 4, 5)
    refused(machine, reassign(3, 4), RefusedError, "moves to [4, 5]")
    assert moving(machine, 3, 4, expected=(4, 5)).partitions[0].target is not None


def test_a_replication_factor_changes_with_all_partitions() -> None:
    machine = cluster(5)
    done(machine, create("t", partitions=2, replication_factor=1))
    moves = tuple(Move(partition, (4, 5), 0) for partition in (0, 1))
    half = Reassign(topic_id="id-t", moves=moves[:1], replication_factor=2)
    refused(machine, half, InvalidPartitionsError, "partition 1 has none")
    twice = Reassign(topic_id="id-t", moves=(*moves, moves[0]), replication_factor=2)
    refused(machine, twice, InvalidPartitionsError, "listed twice")
    topic = done(machine, Reassign(topic_id="id-t", moves=moves, replication_factor=2))
    assert topic.replication_factor == 2
    done(machine, AlterTopic(name="t", changes={"min.insync.replicas": "2"}))
    back = tuple(Move(partition, (4,), 0, (4, 5)) for partition in (0, 1))
    smaller = Reassign(topic_id="id-t", moves=back, replication_factor=1)
    refused(machine, smaller, InvalidConfigError, "min.insync.replicas=2")


def upgrade(machine: ClusterMachine) -> RaisePeerProtocol:
    return RaisePeerProtocol(version=2, broker_epochs=machine.broker_epochs())


def test_partitions_start_with_a_leader_once_all_brokers_support_it() -> None:
    machine = cluster(3)
    older = done(machine, create("t", replication_factor=2))
    before = older.birth(0)
    assert before.boots == {}
    assert (first_state(before).leader_epoch, first_state(before).leader_boot) == (0, 0)
    done(machine, upgrade(machine))
    fence(machine, 1)
    join(machine, 1, boot=7)
    topic = done(machine, AddPartitions(name="t", total=4))
    assert topic.birth(0) == before, "it was created by what brokers of earlier releases read"
    for partition in (1, 2, 3):
        birth = topic.birth(partition)
        assert birth.boots == {1: 7, 2: 1, 3: 1}
        state = first_state(birth)
        first = birth.replicas[0]
        assert (state.leader, state.leader_epoch, state.version) == (first, 1, 1)
        assert state.leader_boot == birth.boots[first]
    other = ClusterMachine()
    other.restore(machine.snapshot())
    assert [other.topics["t"].birth(p) for p in range(4)] == [topic.birth(p) for p in range(4)]


def test_the_protocol_is_raised_for_the_brokers_that_were_asked() -> None:
    """Another incarnation may be one of an earlier release, and so may a broker that joined."""
    machine = cluster(3)
    command = upgrade(machine)
    version = machine.version
    epochs = command.broker_epochs
    for changed in (epochs[:2], (*epochs, (4, 9)), (epochs[0], (2, 1), epochs[2]), ()):
        stale = RaisePeerProtocol(version=2, broker_epochs=changed)
        refused(machine, stale, RefusedError, "has registered")
    assert (machine.peer_protocol, machine.version) == (1, version)
    changes: list[ClusterChange] = []
    machine.on_change = changes.append
    done(machine, command)
    assert (machine.peer_protocol, machine.version) == (2, version + 1)
    join(machine, 4)
    done(machine, command)
    assert machine.peer_protocol == 2, "it can be repeated"
    assert [change.is_upgrade for change in changes] == [True, *[False] * (len(changes) - 1)]
    other = ClusterMachine(changes.append)
    other.restore(machine.snapshot())
    assert other.peer_protocol == 2
    assert changes[-1].is_upgrade


def test_a_partition_starts_from_the_same_whenever_it_is_opened() -> None:
    """Brokers that open it late must begin where the others did, whatever has changed since."""
    machine = cluster(3)
    topic = done(machine, create("t", replication_factor=2))
    birth = topic.birth(0)
    assert birth == InitialState(
        topic.partitions[0].replicas,
        topic.partitions[0].witnesses,
        {id_: f"directory-{id_}" for id_ in (1, 2, 3)},
        1,
        {},
    )
    done(machine, swap(topic, version=1))
    done(machine, AlterTopic(name="t", changes={"min.insync.replicas": "2"}))
    fence(machine, 2)
    join(machine, 2, directory_id="new")
    topic = done(machine, AddPartitions(name="t", total=2))
    assert topic.birth(0) == birth
    later = topic.birth(1)
    assert (later.min_isr, later.directories[2]) == (2, "new")
    other = ClusterMachine()
    other.restore(machine.snapshot())
    assert [other.topics["t"].birth(partition) for partition in (0, 1)] == [birth, later]


# -- access rules and quotas ----------------------------------------------------------------------


def rule(name: str, **fields: Any) -> Acl:
    return Acl(
        **{"principal": "User:a", "operation": "READ", "resource_type": "TOPIC"} | fields,
        resource_name=name,
    )


def test_rules_are_added_and_deleted() -> None:
    machine = ClusterMachine()
    done(machine, CreateAcls(acls=(rule("t", host="0:0::1"), rule("u"))))
    assert machine.acls == {rule("t", host="::1"), rule("u")}
    assert done(machine, DeleteAcls(acls=(rule("u"), rule("v"), rule("u")))) == (rule("u"),)
    assert machine.acls == {rule("t", host="::1")}


def test_rules_are_added_all_or_none() -> None:
    machine = ClusterMachine()
    bad = CreateAcls(acls=(rule("t"), rule("u", principal="a")))
    refused(machine, bad, InvalidRequestError, "not a principal")


def test_the_number_of_rules_is_bounded() -> None:
    machine = ClusterMachine()
    count, step = limits.ACLS_PER_CLUSTER_MAX, limits.ACLS_PER_REQUEST_MAX
    names = [f"t{number}" for number in range(count)]
    for start in range(0, count, step):
        done(machine, CreateAcls(acls=tuple(map(rule, names[start : start + step]))))
    done(machine, CreateAcls(acls=(rule("t0"),)))  # it exists
    refused(machine, CreateAcls(acls=(rule("t0"), rule("x"))), RefusedError, "the limit is 10000")


def change(user: str, **changes: float | None) -> QuotaChange:
    return QuotaChange(QuotaEntity(user), changes)  # type: ignore[arg-type]


def test_quotas_are_changed_limit_by_limit() -> None:
    machine = ClusterMachine()
    first = change("a", producer_byte_rate=5.0, connections=1.0)
    done(machine, AlterQuotas(changes=(first, change("a", connections=2.0))))
    assert machine.quotas == {QuotaEntity("a"): {"producer_byte_rate": 5.0, "connections": 2.0}}
    done(machine, AlterQuotas(changes=(change("a", producer_byte_rate=None),)))
    assert machine.quotas == {QuotaEntity("a"): {"connections": 2.0}}
    version = machine.version
    done(machine, AlterQuotas(changes=(change("a", connections=2.0), change("b"))))
    assert machine.version == version
    done(machine, AlterQuotas(changes=(change("a", connections=None),)))
    assert not machine.quotas


def test_a_limit_that_cannot_be_enforced_is_refused() -> None:
    bad = AlterQuotas(
        changes=(change("a", connections=1.0), change("b", connection_creation_rate=1))
    )
    refused(ClusterMachine(), bad, InvalidRequestError, "connection_creation_rate")


def test_the_number_of_quotas_is_bounded() -> None:
    machine = ClusterMachine()
    count, step = limits.QUOTAS_PER_CLUSTER_MAX, limits.QUOTAS_PER_REQUEST_MAX
    changes = [change(f"u{number}", connections=1.0) for number in range(count)]
    for start in range(0, count, step):
        done(machine, AlterQuotas(changes=tuple(changes[start : start + step])))
    done(machine, AlterQuotas(changes=(change("u0", connections=2.0),)))
    more = AlterQuotas(changes=(change("x", connections=1.0),))
    refused(machine, more, RefusedError, "the limit is 10000")


# -- users -----------------------------------------------------------------------------------------


def credential(key: bytes) -> ScramCredential:
    return of_salted_password("SCRAM-SHA-256", key * 32, salt=b"s" * 16, iterations=4_096)


def put(name: str, key: bytes = b"k", *, expected: Any = "any", secret: bytes = b"1") -> PutUser:
    credentials = {"SCRAM-SHA-256": credential(key)}
    return PutUser(name, credentials, expected=expected, secret=secret * 32)


def test_a_user_is_created_changed_and_deleted() -> None:
    changes: list[ClusterChange] = []
    machine = ClusterMachine(changes.append)
    done(machine, put("alice", expected="absent"))
    refused(machine, put("alice", b"x", expected="absent"), UserExistsError, "raftlog user rotate")
    done(machine, put("alice", b"x", expected="present"))
    assert machine.users["alice"].credentials["SCRAM-SHA-256"] == credential(b"x")
    both = DeleteUser("alice", ("SCRAM-SHA-256", "SCRAM-SHA-512"))
    done(machine, both)
    assert not machine.users
    refused(machine, both, UnknownUserError, "no user 'alice'")
    refused(machine, put("alice", expected="present"), UnknownUserError, "no user 'alice'")
    assert [change.users for change in changes] == [frozenset(("alice",))] * 3


def test_a_repeated_command_changes_nothing() -> None:
    machine = ClusterMachine()
    done(machine, put("alice", expected="absent"))
    version = machine.version
    done(machine, put("alice", expected="absent"))
    assert machine.version == version


def test_mechanisms_are_changed_one_by_one() -> None:
    machine = ClusterMachine()
    done(machine, put("alice"))
    key = of_salted_password("SCRAM-SHA-512", b"k" * 64, salt=b"s" * 16, iterations=4_096)
    other = PutUser("alice", {"SCRAM-SHA-512": key}, expected="any", secret=bytes(32))
    done(machine, other)
    assert list(machine.users["alice"].credentials) == ["SCRAM-SHA-256", "SCRAM-SHA-512"]
    done(machine, DeleteUser("alice", ("SCRAM-SHA-256",)))
    assert list(machine.users["alice"].credentials) == ["SCRAM-SHA-512"]


def test_a_cluster_has_one_first_user_and_one_secret() -> None:
    machine = ClusterMachine()
    done(machine, put("admin", expected="never"))
    refused(machine, put("mallory", expected="never"), UserExistsError, "has had users")
    done(machine, put("alice", secret=b"2"))
    for name in ("admin", "alice"):
        done(machine, DeleteUser(name, ("SCRAM-SHA-256",)))
    assert machine.user_secret == b"1" * 32
    refused(machine, put("mallory", expected="never"), UserExistsError, "has had users")


def test_users_are_restored_from_a_snapshot() -> None:
    machine, other = ClusterMachine(), ClusterMachine()
    done(machine, put("alice"))
    changes: list[ClusterChange] = []
    other.on_change = changes.append
    other.restore(machine.snapshot())
    assert (other.users, other.user_secret) == (machine.users, machine.user_secret)
    assert changes[0].users == {"alice"}


def test_the_number_of_users_is_limited(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "USERS_PER_CLUSTER_MAX", 1)
    machine = ClusterMachine()
    done(machine, put("alice"))
    refused(machine, put("bob"), RefusedError, "which is the limit")
    refused(machine, put("\ufb01le"), InvalidRequestError, "SASL converts")
    assert "k" * 8 not in repr(put("alice"))


# -- delegation tokens -----------------------------------------------------------------------------


def token(number: int, owner: str = "User:alice", *, at_ms: int = 0) -> DelegationToken:
    return DelegationToken(
        id=f"{number:032x}",
        owner=owner,
        renewers=(),
        issued_ms=at_ms,
        expires_ms=at_ms + 1_000,
        max_ms=at_ms + 5_000,
        digest=bytes(32),
        credentials={"SCRAM-SHA-256": credential(b"t")},
    )


def with_tokens(*tokens: DelegationToken) -> ClusterMachine:
    machine = ClusterMachine()
    machine.restore(founding_state("c", peer_protocol=PEER_PROTOCOL_TOKENS))
    for each in tokens:
        done(machine, CreateToken(each))
    return machine


def test_a_token_is_created_changed_and_removed() -> None:
    machine = with_tokens(token(1))
    changes: list[ClusterChange] = []
    machine.on_change = changes.append
    done(machine, CreateToken(token(1)))
    assert not changes, "it was repeated"
    assert done(machine, SetTokenExpiry(token(1).id, 9_000, at_ms=900)) == 5_000
    assert machine.tokens[token(1).id].expires_ms == 5_000
    copy = ClusterMachine()
    copy.restore(machine.snapshot())
    assert copy.tokens == machine.tokens
    late = SetTokenExpiry(token(1).id, 9_000, at_ms=5_000)
    refused(machine, late, TokenExpiredError, "has expired")
    for _repeated in range(2):
        assert done(machine, SetTokenExpiry(token(1).id, 0, at_ms=900)) == 0
        assert not machine.tokens
    refused(machine, late, UnknownTokenError, "no delegation token")
    assert [change.tokens for change in changes] == [{token(1).id}] * 2
    changes.clear()
    copy.on_change = changes.append
    copy.restore(machine.snapshot())
    assert changes[0].tokens == {token(1).id}


def test_tokens_require_that_all_brokers_support_them() -> None:
    """An earlier release would misread the state: it rejects the format."""
    for level, format_ in ((1, 2), (2, 3)):
        machine = ClusterMachine()
        machine.restore(founding_state("c", peer_protocol=level))
        refused(machine, CreateToken(token(1)), UnsupportedFeatureError, "--upgrade")
        assert snapshot_format(level) == format_
    assert snapshot_format(PEER_PROTOCOL_TOKENS) == 4
    assert [snapshot_format(level) for level in (4, 5, 6)] == [5, 5, 6], "5: transactions"


def test_settings_of_groups_are_changed_and_removed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "GROUPS_WITH_SETTINGS_MAX", 2)
    machine = ClusterMachine()
    session, heartbeat = GROUP_SETTINGS
    for group in "ba":
        done(machine, AlterGroup(group, {session: 9_000, heartbeat: 3_000}))
    refused(machine, AlterGroup("c", {session: 9_000}), RefusedError, "which is the limit")
    done(machine, AlterGroup("b", {session: None, heartbeat: 2_000}))
    done(machine, AlterGroup("a", {session: None, heartbeat: None}))
    version = machine.version
    done(machine, AlterGroup("a", {session: None}))
    assert machine.version == version, "nothing has changed"
    copy = ClusterMachine()
    copy.restore(machine.snapshot())
    assert copy.groups == machine.groups == {"b": {heartbeat: 2_000}}


def test_a_changed_or_deleted_user_loses_its_tokens() -> None:
    for command in (put("alice", b"x"), DeleteUser("alice", ("SCRAM-SHA-256",))):
        machine = with_tokens()
        done(machine, put("alice"))
        for each in (token(1), token(2, "User:bob")):
            done(machine, CreateToken(each))
        changes: list[ClusterChange] = []
        machine.on_change = changes.append
        done(machine, command)
        assert list(machine.tokens) == [token(2).id]
        assert changes == [
            ClusterChange(users=frozenset({"alice"}), tokens=frozenset({token(1).id}))
        ]


def test_the_number_of_tokens_is_limited(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "DELEGATION_TOKENS_PER_OWNER_MAX", 1)
    machine = with_tokens(token(1))
    refused(machine, CreateToken(token(2)), RefusedError, "User:alice has 1 delegation tokens")
    done(machine, CreateToken(token(2, "User:bob")))
    monkeypatch.setattr(limits, "DELEGATION_TOKENS_PER_CLUSTER_MAX", 2)
    refused(machine, CreateToken(token(3, "User:eve")), RefusedError, "has 2 delegation tokens")
    kept_ms = 1_000 + limits.DELEGATION_TOKEN_KEPT_MS
    early = token(3, at_ms=kept_ms - 1)
    refused(machine, CreateToken(early), RefusedError, "has 2 delegation tokens")
    done(machine, CreateToken(token(3, at_ms=kept_ms)))
    assert list(machine.tokens) == [token(3).id], "expired ones were removed"


def test_a_throttle_of_moves_is_part_of_the_state() -> None:
    machine = cluster(1)
    assert machine.move_throttle == limits.MOVE_THROTTLE_DEFAULT == 0
    done(machine, SetMoveThrottle(bytes_per_s=10_000))
    version = machine.version
    done(machine, SetMoveThrottle(bytes_per_s=10_000))
    assert machine.version == version, "it can be repeated"
    copy = ClusterMachine()
    copy.restore(machine.snapshot())
    assert copy.move_throttle == 10_000
    refused(machine, SetMoveThrottle(bytes_per_s=1_023), RefusedError, "would stop moves")
    done(machine, SetMoveThrottle(bytes_per_s=0))
    assert machine.move_throttle == 0


# -- cluster voters --------------------------------------------------------------------------------
#
# Voters of the cluster group: one broker at a time, live ones, and a majority that is there.


Voters = dict[int, str]


def disk(broker: int) -> str:
    return f"disk-{broker}"


def of(*brokers: int) -> Voters:
    return {broker: disk(broker) for broker in brokers}


def step(
    voters: Voters,
    brokers: Iterable[int],
    *,
    draining: Iterable[int] = (),
    down: Iterable[int] = (),
    fenced: Iterable[int] = (),
    removed: Iterable[int] = (),
    configured: Iterable[int] = (),
    elsewhere: Voters | None = None,
) -> Voters | None:
    """``elsewhere``: brokers that are connected with another data directory."""
    records = {
        broker: BrokerRecord(
            broker, "h", 1, "", disk(broker), 1, 1, broker in {*fenced}, broker in {*draining}
        )
        for broker in brokers
    }
    there = {**of(*records), **(elsewhere or {})}
    return next_voters(
        voters,
        brokers=records,
        removed={*removed},
        configured={*configured},
        linked=lambda broker: None if broker in {*down} else there.get(broker),
    )


def test_few_brokers_vote_in_a_large_cluster() -> None:
    assert [voters_wanted(count) for count in range(1, 8)] == [1, 1, 3, 3, 5, 5, 5]


@pytest.mark.parametrize(
    ("voters", "brokers", "after"),
    [
        (of(1), (1, 2), None),  # two voters would tolerate no failure either
        (of(1), (1, 2, 3), of(1, 2)),
        (of(1, 2), (1, 2, 3), of(1, 2, 3)),
        (of(1, 2, 3), (1, 2, 3, 4), None),
        (of(1, 2, 3), (1, 2, 3, 4, 5), of(1, 2, 3, 4)),
        (of(1, 2, 3, 4), (1, 2, 3, 4, 5), of(1, 2, 3, 4, 5)),
        (of(1, 2, 3, 4, 5, 6, 7), range(1, 10), None),  # as configured
    ],
)
def test_brokers_that_joined_become_voters(
    voters: Voters, brokers: Iterable[int], after: Voters | None
) -> None:
    assert step(voters, brokers) == after


@pytest.mark.parametrize("why", ["down", "fenced", "draining"])
def test_a_broker_that_is_not_there_to_stay_gets_no_vote(why: str) -> None:
    assert step(of(1, 2), (1, 2, 3, 4), **{why: [3]}) == of(1, 2, 4)  # type: ignore[arg-type]
    assert step(of(1, 2), (1, 2, 3), **{why: [3]}) is None  # type: ignore[arg-type]


def test_a_broker_that_is_connected_from_another_disk_gets_no_vote_before_it_registers() -> None:
    assert step(of(1, 2), (1, 2, 3), elsewhere={3: "new"}) is None


def test_a_voter_that_leaves_is_replaced_in_one_step() -> None:
    assert step(of(1, 2, 3), (1, 2, 3, 4), draining=[1]) == of(2, 3, 4)
    assert step(of(1), (1, 2), draining=[1]) == of(2)


def test_a_voter_leaves_alone_where_no_other_broker_can_take_its_place() -> None:
    assert step(of(1, 2, 3), (1, 2, 3), draining=[3]) == of(1, 2)
    assert step(of(1, 2, 3), (1, 2, 3, 4), draining=[3], down=[4]) == of(1, 2)
    assert step(of(1, 2, 3, 4, 5), (1, 2, 3, 4, 5), draining=[5]) == of(1, 2, 3, 4)


def test_of_two_that_leave_the_lost_one_is_first() -> None:
    assert step(of(1, 2, 3), (1, 2, 3, 4, 5), draining=[1, 3], down=[3]) == of(1, 2, 4)


def test_the_last_voter_does_not_leave_without_another() -> None:
    assert step(of(1), (1, 2), draining=[1], down=[2]) is None


def test_a_majority_of_the_next_voters_is_there() -> None:
    assert step(of(1, 2, 3), (1, 2, 3), draining=[2], down=[3]) is None
    assert step(of(1, 2, 3), (1, 2, 3, 4), draining=[2], down=[3]) == of(1, 3, 4)
    assert step(of(1, 2), (1, 2, 3), down=[2]) == of(1, 2, 3)


def test_a_voter_that_was_removed_leaves() -> None:
    """The seal that made it one overtook its removal."""
    assert step(of(1, 2, 3, 4), (1, 2, 3), removed=[4]) == of(1, 2, 3)


def test_voters_on_new_disks_vote_with_them_and_configured_ones_get_their_vote() -> None:
    assert step(of(1, 2, 3), (1, 2, 3), elsewhere={3: "new"}) == {**of(1, 2), 3: "new"}
    assert step(of(1, 2), (1, 2), configured=[1, 2, 3], elsewhere=of(3)) == of(1, 2, 3)
    assert step(of(1, 2), (1, 2), configured=[1, 2, 3]) is None, "it is not there"


def test_the_configuration_gives_no_vote_to_a_broker_that_was_removed() -> None:
    facts = {"configured": [1, 2, 3], "elsewhere": of(3)}
    assert step(of(1, 2), (1, 2), removed=[3], **facts) is None  # type: ignore[arg-type]
    assert step(of(1, 2), (1, 2, 3), draining=[3], **facts) is None  # type: ignore[arg-type]


def test_any_cluster_comes_to_its_voters_one_by_one() -> None:
    random = Random(7)
    for _ in range(300):
        brokers = range(1, random.randint(1, 8) + 1)
        draining = {b for b in brokers if random.random() < 0.3}
        draining.discard(random.choice(list(brokers)))
        voters = of(*random.sample(brokers, random.randint(1, len(brokers))))
        for _step in range(20):
            after = step(voters, brokers, draining=draining)
            if after is None:
                break
            assert len(voters.keys() - after.keys()) <= 1
            assert len(after.keys() - voters.keys()) <= 1
            voters = after
        assert draining.isdisjoint(voters)
        assert len(voters) >= voters_wanted(len(brokers) - len(draining))


# -- cluster membership ----------------------------------------------------------------------------
#
# Brokers that join and leave, in the cluster state; and the state on a broker without a vote.


def removal(machine: ClusterMachine, broker: int) -> RemoveBroker:
    return RemoveBroker(id=broker, broker_epoch=machine.brokers[broker].broker_epoch)


def created(machine: ClusterMachine, name: str, **facts: int) -> TopicRecord:
    topic = done(machine, create(name, **facts))
    assert isinstance(topic, TopicRecord)
    return topic


def remove(machine: ClusterMachine, broker: int) -> None:
    done(machine, DecommissionBroker(id=broker))
    done(machine, removal(machine, broker))


# -- IDs -----------------------------------------------------------------------------------------


def test_an_id_is_assigned_once() -> None:
    machine = cluster(3)
    assert machine.next_broker_id == 4
    done(machine, ReserveBrokerId(id=4))
    refused(machine, ReserveBrokerId(id=4), BrokerIdInUseError, "the next one is 5")
    done(machine, registration(9))
    assert machine.next_broker_id == 10
    remove(machine, 9)
    assert machine.next_broker_id == 10, "also after its broker was removed"
    copy = ClusterMachine()
    copy.restore(machine.snapshot())
    assert copy.next_broker_id == 10


# -- decommission --------------------------------------------------------------------------------


def test_a_broker_that_is_decommissioned_gets_nothing_more() -> None:
    machine = cluster(4)
    done(machine, DecommissionBroker(id=4))
    version = machine.version
    done(machine, DecommissionBroker(id=4))
    assert machine.version == version, "it can be repeated"
    assert machine.staying() == [1, 2, 3]
    topic = created(machine, "t", partitions=8, replication_factor=3)
    assert all(4 not in held.voters for held in topic.partitions)
    fence(machine, 3)
    topic = created(machine, "u", partitions=8, replication_factor=2)
    assert all(4 not in held.voters for held in topic.partitions), "not as a witness either"
    move = Move(0, (1, 4), topic.partitions[0].version)
    refused(
        machine,
        Reassign(topic_id=topic.id, moves=(move,)),
        InvalidPartitionsError,
        "is being decommissioned",
    )


def test_it_stays_so_when_it_restarts_even_with_another_disk() -> None:
    machine = cluster(4)
    done(machine, DecommissionBroker(id=4))
    join(machine, 4, boot=2)
    assert machine.brokers[4].draining
    fence(machine, 4)
    join(machine, 4, directory_id="another")
    assert machine.brokers[4].draining


def test_what_the_others_cannot_store_keeps_a_broker() -> None:
    machine = cluster(3)
    created(machine, "t", partitions=1, replication_factor=3)
    refused(machine, DecommissionBroker(id=1), RefusedError, "topic 't' has 3 replicas, and 2")
    create_one = cluster(1)
    refused(create_one, DecommissionBroker(id=1), RefusedError, "only broker")
    refused(machine, DecommissionBroker(id=7), RefusedError, "no broker 7, but [1, 2, 3]")


def test_brokers_that_leave_already_do_not_count() -> None:
    machine = cluster(4)
    created(machine, "t", partitions=1, replication_factor=3)
    done(machine, DecommissionBroker(id=4))
    refused(machine, DecommissionBroker(id=3), RefusedError, "2 brokers would remain")


def test_a_decommission_that_is_cancelled_restores_the_replicas_of_moves_in_progress() -> None:
    machine = cluster(5)
    topic = created(machine, "t", partitions=1, replication_factor=2)
    leaving, other = topic.partitions[0].replicas
    (third, *_) = sorted({1, 2, 3, 4, 5} - {leaving, other})
    done(machine, DecommissionBroker(id=leaving))
    done(machine, Reassign(topic_id=topic.id, moves=(Move(0, (third, other), 0),)))
    done(machine, CancelDecommission(id=leaving))
    assert not machine.brokers[leaving].draining
    assert machine.topics["t"].partitions[0].target == Target((leaving, other), (leaving, other))
    version = machine.version
    done(machine, CancelDecommission(id=leaving))
    assert machine.version == version, "it can be repeated"
    old = RemoveBroker(id=leaving, broker_epoch=machine.brokers[leaving].broker_epoch)
    refused(machine, old, RefusedError, "is not being decommissioned")
    refused(machine, CancelDecommission(id=9), RefusedError, "no broker 9")


def test_moves_whose_former_replicas_cannot_stay_go_on() -> None:
    machine = cluster(5)
    topic = created(machine, "t", partitions=1, replication_factor=2)
    leaving, other = topic.partitions[0].replicas
    to = tuple(sorted({1, 2, 3, 4, 5} - {leaving, other})[:2])
    for broker in (leaving, other):
        done(machine, DecommissionBroker(id=broker))
    done(machine, Reassign(topic_id=topic.id, moves=(Move(0, to, 0),)))
    done(machine, CancelDecommission(id=leaving))
    assert machine.topics["t"].partitions[0].target == Target(to, (leaving, other))


def test_a_broker_is_removed_once_it_has_no_part_in_anything() -> None:
    machine = cluster(4)
    topic = created(machine, "t", partitions=1, replication_factor=2)
    held = topic.partitions[0]
    leaving = held.replicas[0]
    refused(machine, removal(machine, leaving), RefusedError, "is not being decommissioned")
    done(machine, DecommissionBroker(id=leaving))
    refused(machine, removal(machine, leaving), RefusedError, "voter of 1 partition")
    others = [broker for broker in (1, 2, 3, 4) if broker not in held.replicas]
    change = SetReplicas(
        topic_id=topic.id,
        partition=0,
        replicas=(held.replicas[1], others[0]),
        witnesses=(others[1],),
        version=1,
    )
    done(machine, change)
    old = removal(machine, leaving)
    join(machine, leaving, boot=2)
    refused(machine, old, RefusedError, "registered again")
    done(machine, removal(machine, leaving))
    assert leaving not in machine.brokers


def test_a_target_is_a_part_too() -> None:
    machine = cluster(3)
    topic = created(machine, "t", partitions=1, replication_factor=1)
    held = topic.partitions[0]
    to = next(b for b in (1, 2, 3) if b not in held.replicas)
    done(machine, Reassign(topic_id=topic.id, moves=(Move(0, (to,), held.version),)))
    assert machine.uses_of(to) == 1


def test_a_removed_directory_never_registers_again_and_a_new_one_may() -> None:
    machine = cluster(3)
    remove(machine, 3)
    copy = ClusterMachine()
    copy.restore(machine.snapshot())
    for each in (machine, copy):
        refused(each, registration(3, boot=9), BrokerRemovedError, "was decommissioned")
        version = each.version
        done(each, DecommissionBroker(id=3))
        assert each.version == version, "it was repeated"
        join(each, 3, directory_id="another")


def test_a_lost_directory_never_registers_again_and_a_new_one_may() -> None:
    machine = cluster(3)
    (gone, version) = (machine.brokers[3].directory_id, machine.version)
    done(machine, DeclareLost(directories=((gone, 3),)))
    assert (machine.version, machine.peer_protocol) == (version + 1, PEER_PROTOCOL_LOST)
    done(machine, DeclareLost(directories=((gone, 3),)))
    assert machine.version == version + 1, "it is known"
    copy = ClusterMachine()
    changes: list[ClusterChange] = []
    copy.on_change = changes.append
    copy.restore(machine.snapshot())
    assert 3 in changes[0].brokers
    for each in (machine, copy):
        refused(each, registration(3, directory_id=gone, boot=9), DeclaredLostError, "lost")
        fence(each, 3)
        join(each, 3, directory_id="another")


def test_the_state_after_a_recovery_has_its_id_and_what_it_gave_up() -> None:
    before = cluster(3).snapshot()
    machine = ClusterMachine()
    machine.restore(recovered(before, recovery="r1", lost=[("d", 9)], unseen=5))
    machine.restore(recovered(machine.snapshot(), recovery="r2", lost=[("e", 9)], unseen=5))
    assert machine.history == ("r1", "r2")
    assert machine.lost == {"d": 9, "e": 9}
    assert machine.version == cluster(3).version + 10


def test_a_limited_number_of_lost_directories_is_remembered(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(limits, "LOST_DIRECTORIES_MAX", 2)
    machine = cluster(1)
    for name in ("a", "b", "c"):
        done(machine, DeclareLost(directories=((name, 2),)))
    assert list(machine.lost) == ["b", "c"]


def test_a_limited_number_of_removals_is_remembered(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "REMOVED_BROKERS_MAX", 2)
    machine = cluster(4)
    for broker in (4, 3, 2):
        remove(machine, broker)
    assert list(machine.removed.values()) == [3, 2]


# -- a broker without a vote ---------------------------------------------------------------------


def changed(machine: ClusterMachine, *commands: ClusterCommand) -> list[bytes]:
    version = machine.version
    for command in commands:
        done(machine, command)
    changes = machine.changes.since(version)
    assert changes is not None
    return changes


def test_it_follows_by_a_state_and_then_by_commands() -> None:
    voter, follower = cluster(3), ClusterMachine()
    follower.follow(voter.known(), ())
    for broker in (4, 5):
        follower.follow(b"", changed(voter, registration(broker)))
        assert follower.known() == voter.known()
        assert follower.version == voter.version


def test_an_older_state_and_that_of_another_cluster_change_nothing() -> None:
    voter, follower = cluster(3), ClusterMachine()
    older = voter.known()
    done(voter, registration(4))
    follower.follow(voter.known(), ())
    follower.follow(older, ())
    assert 4 in follower.brokers
    with pytest.raises(WrongClusterError):
        follower.follow(recovered(founding_state("other"), recovery="r", lost=[], unseen=99), ())
    assert follower.known() == voter.known()


def test_changes_that_are_not_kept_need_a_state(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "CLUSTER_CHANGES_KEPT_MAX", 2)
    voter = cluster(1)
    version = voter.version
    for broker in (2, 3, 4):
        done(voter, registration(broker))
    assert voter.changes.since(version) is None
    assert len(voter.changes.since(version + 1) or ()) == 2
    assert voter.changes.since(voter.version) == []
    assert voter.changes.since(voter.version + 1) is None
    monkeypatch.setattr(limits, "CLUSTER_CHANGES_KEPT_BYTES_MAX", 10)
    done(voter, registration(5))
    assert voter.changes.since(voter.version - 1) is None


def test_a_broker_that_gets_a_vote_never_goes_back_behind_what_it_knows() -> None:
    """The base of the generation in which it gets one is older than what it has followed: topics
    that it stores must not disappear in between.
    """
    voter = cluster(3)
    base = voter.snapshot()
    later = changed(voter, registration(4), registration(5))
    follower = ClusterMachine()
    follower.follow(voter.known(), ())
    noted: list[object] = []
    follower.on_change = noted.append
    follower.restore(base)
    assert {4, 5} <= follower.brokers.keys()
    assert follower.snapshot() == base, "the base of the next generation is the group's state"
    follower.apply(later[0])
    assert 5 in follower.brokers
    assert not noted
    follower.apply(later[1])
    assert follower.snapshot() == follower.known() == voter.known()
    more = changed(voter, registration(6))
    follower.apply(more[0])
    assert follower.known() == voter.known()


def test_a_broker_that_follows_again_forgets_the_groups_state() -> None:
    voter, follower = cluster(3), ClusterMachine()
    base = voter.snapshot()
    done(voter, registration(4))
    follower.follow(voter.known(), ())
    follower.restore(base)
    follower.follow(b"", changed(voter, registration(5)))
    assert follower.known() == voter.known()


def test_who_knows_nothing_needs_a_state_also_after_a_restored_one() -> None:
    """Found by the simulator: a broker with an empty disk was told that there is nothing new."""
    voter = cluster(1)
    restored = ClusterMachine()
    restored.restore(voter.snapshot())
    assert restored.changes.since(0) is None
    assert restored.changes.since(restored.version) == []
