"""All brokers come to the same state, whatever the commands, and tell what has changed."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from raftlog.config import TopicConfig
from raftlog.errors import InvalidRequestError
from raftlog.replication.cluster_commands import (
    AddPartitions,
    AlterQuotas,
    AlterTopic,
    ClusterCommand,
    CreateAcls,
    CreateTopic,
    DeleteAcls,
    DeleteTopic,
    FenceBroker,
    QuotaChange,
    RegisterBroker,
    SetKafkaAddress,
    SetReplicas,
    UnfenceBroker,
)
from raftlog.replication.cluster_state import ClusterChange, ClusterMachine, Done, Refused
from raftlog.replication.partition_state import (
    DIRECTORY_ID_CHARS_MAX,
    VOTERS_MAX,
    ChangeIsr,
    ChangeReplicas,
    Command,
    Elect,
    ElectUnclean,
    decode_command,
)
from raftlog.security.acl import Acl
from raftlog.security.quota import QuotaEntity
from tests.replication.clusters import cluster, create, done, fence, join, registration, swap

# -- who is told ----------------------------------------------------------------------------------


def test_changes_are_told_with_what_they_touch() -> None:
    noted: list[ClusterChange] = []
    machine = ClusterMachine(noted.append)
    join(machine, 1)
    done(machine, registration(1))  # nothing new
    done(machine, create("t"))
    machine.apply(create("t", topic_id="other").encode())  # refused
    done(machine, DeleteTopic(name="t"))
    broker = ClusterChange(brokers=frozenset({1}))
    topic = ClusterChange(topics=frozenset({"t"}))
    assert noted == [broker, broker, topic, topic]


def test_changed_rules_and_quotas_are_told() -> None:
    noted: list[ClusterChange] = []
    one, other = ClusterMachine(noted.append), ClusterMachine()
    first, second = (Acl("User:a", "READ", "TOPIC", name) for name in "tu")
    quota = QuotaChange(QuotaEntity("a"), {"connections": 1.0})
    for machine in (one, other):
        done(machine, CreateAcls(acls=(first,)))
    done(one, CreateAcls(acls=(first,)))  # nothing new
    done(one, DeleteAcls(acls=(second,)))
    done(other, CreateAcls(acls=(first, second)))
    done(other, AlterQuotas(changes=(quota,)))
    done(other, DeleteAcls(acls=(first,)))
    one.restore(other.snapshot())
    assert noted == [
        ClusterChange(acls=frozenset((first,))),
        ClusterChange(acls=frozenset((first, second)), quotas=frozenset((quota.entity,))),
    ]


def test_a_restore_tells_all_that_differs() -> None:
    before, after = cluster(2), cluster(2)
    for name in ("same", "altered", "gone"):
        done(before, create(name))
    for name in ("same", "altered", "new"):
        done(after, create(name))
    done(after, AlterTopic(name="altered", changes={"segment.ms": "5"}))
    fence(after, 2)
    noted: list[ClusterChange] = []
    before.on_change = noted.append
    before.restore(after.snapshot())
    assert noted == [
        ClusterChange(topics=frozenset({"altered", "gone", "new"}), brokers=frozenset({2}))
    ]


def test_a_bad_snapshot_changes_nothing() -> None:
    machine = cluster(1)
    before = machine.snapshot()
    with pytest.raises(InvalidRequestError):
        machine.restore(b"\x01")
    assert machine.snapshot() == before


# -- whatever comes -------------------------------------------------------------------------------

ids = st.integers(1, 6)
names = st.sampled_from(["a", "b", "c", "no/name"])
topic_ids = st.sampled_from(["1", "2", "3", "4"])
settings = st.sampled_from(["retention.ms", "min.insync.replicas", "segment.ms", "no.key"])
numbers = st.sampled_from(["1", "2", "3", "x"])
epochs = st.integers(0, 30)
members = st.lists(ids, max_size=4).map(tuple)
acls = st.builds(
    Acl,
    principal=st.sampled_from(["User:a", "User:*", "nobody"]),
    operation=st.sampled_from(["READ", "WRITE"]),
    resource_type=st.just("TOPIC"),
    resource_name=st.sampled_from(["a", "b"]),
)

commands = st.one_of(
    st.builds(
        RegisterBroker,
        id=ids,
        host=st.sampled_from(["h", "g"]),
        port=st.just(9100),
        rack=st.sampled_from(["", "a", "b"]),
        directory_id=st.sampled_from(["d", "e"]),
        boot=st.integers(1, 3),
    ),
    st.builds(FenceBroker, id=ids, broker_epoch=epochs),
    st.builds(
        SetKafkaAddress,
        id=ids,
        broker_epoch=epochs,
        host=st.sampled_from(("", "k")),
        port=st.just(1),
    ),
    st.builds(UnfenceBroker, id=ids, broker_epoch=epochs),
    st.builds(
        CreateTopic,
        name=names,
        topic_id=topic_ids,
        partitions=st.integers(0, 7),
        replication_factor=st.none() | st.integers(0, 4),
        overrides=st.dictionaries(settings, numbers, max_size=2),
    ),
    st.builds(DeleteTopic, name=names, topic_id=st.none() | topic_ids),
    st.builds(
        AlterTopic,
        name=names,
        changes=st.dictionaries(settings, st.none() | numbers, max_size=2),
    ),
    st.builds(AddPartitions, name=names, total=st.integers(0, 12)),
    st.builds(
        SetReplicas,
        topic_id=topic_ids,
        partition=st.integers(0, 8),
        replicas=members,
        witnesses=members,
        version=st.integers(0, 5),
    ),
    st.builds(CreateAcls, acls=st.lists(acls, max_size=3).map(tuple)),
    st.builds(DeleteAcls, acls=st.lists(acls, max_size=3).map(tuple)),
    st.builds(
        AlterQuotas,
        changes=st.lists(
            st.builds(
                QuotaChange,
                entity=st.sampled_from([QuotaEntity("u"), QuotaEntity(address="h")]),
                changes=st.dictionaries(
                    st.just("producer_byte_rate"), st.none() | st.integers(1, 3).map(float)
                ),
            ),
            max_size=3,
        ).map(tuple),
    ),
)


def grown(machine: ClusterMachine) -> ClusterMachine:
    """With brokers that are let in, else no command about topics would ever pass."""
    for id_ in range(1, 5):
        join(machine, id_, rack="ab"[id_ % 2], host="h", directory_id="d")
    return machine


@given(st.lists(st.tuples(commands, st.booleans()), max_size=40))
def test_all_brokers_come_to_the_same_state(steps: list[tuple[ClusterCommand, bool]]) -> None:
    """One of them from snapshots, with its records in another order."""
    noted: list[ClusterChange] = []
    one, other = grown(ClusterMachine()), grown(ClusterMachine())
    one.on_change = noted.append
    for command, is_sealed in steps:
        version, before, heard = one.version, one.snapshot(), len(noted)
        if is_sealed:
            later = ClusterMachine()
            later.restore(other.snapshot())
            other = later
        result = one.apply(command.encode())
        assert other.apply(command.encode()) == result
        assert one.snapshot() == other.snapshot()
        changed = one.snapshot() != before
        assert one.version == version + changed
        assert len(noted) == heard + changed
        assert not (changed and isinstance(result, Refused))
        check(one)


def check(machine: ClusterMachine) -> None:
    """What holds in every state."""
    ids = [topic.id for topic in machine.topics.values()]
    assert len(set(ids)) == len(ids)
    for name, topic in machine.topics.items():
        assert topic.name == name
        assert machine.topic_by_id(topic.id) is topic
        assert topic.config == TopicConfig.from_text(topic.overrides)
        assert topic.config.min_insync_replicas <= topic.replication_factor
        assert topic.partitions
        for partition, assignment in enumerate(topic.partitions):
            assert assignment.replicas
            assert len(set(assignment.voters)) == len(assignment.voters)
            assert set(assignment.voters) <= set(machine.brokers)
            birth = topic.birth(partition)
            assert set(birth.directories) == {*birth.replicas, *birth.witnesses}
            assert len(birth.replicas) == topic.replication_factor
    epochs = [record.broker_epoch for record in machine.brokers.values()]
    assert len(set(epochs)) == len(epochs)
    assert max(epochs, default=0) <= machine.version


@given(st.lists(st.binary(max_size=60), max_size=10))
def test_any_bytes_are_refused_or_applied(blobs: list[bytes]) -> None:
    machine = grown(ClusterMachine())
    for blob in blobs:
        assert isinstance(machine.apply(blob), Done | Refused)


@given(commands, st.data())
def test_bytes_that_are_nearly_a_command(command: ClusterCommand, data: st.DataObject) -> None:
    machine = grown(ClusterMachine())
    done(machine, create("a", topic_id="1", partitions=3))
    blob = bytearray(command.encode())
    at = data.draw(st.integers(0, len(blob) - 1))
    blob[at] = data.draw(st.integers(0, 255))
    before = machine.snapshot()
    result = machine.apply(bytes(blob))
    assert isinstance(result, Done) or machine.snapshot() == before
    check(machine)


def test_work_is_in_proportion_to_the_change() -> None:
    """Topics that a command does not name are not copied, nor looked at."""
    machine = cluster(5)
    for number in range(10):
        done(machine, create(f"t{number}", partitions=1_000))
    others = [machine.topics[f"t{number}"] for number in range(1, 10)]
    records = dict(machine.topics)
    done(machine, swap(machine.topics["t0"], version=1))
    done(machine, AlterTopic(name="t0", changes={"segment.ms": "5"}))
    done(machine, AddPartitions(name="t0", total=1_001))
    assert all(machine.topics[topic.name] is topic for topic in others)
    kept = machine.topics["t0"].partitions[1:1_000]
    assert all(a is b for a, b in zip(kept, records["t0"].partitions[1:], strict=True))


# -- commands --------------------------------------------------------------------------------------
#
# Commands: what is encoded is decoded, and other bytes are refused and never believed.


counters = st.integers(0, (1 << 63) - 1)
brokers = st.integers(0, (1 << 31) - 1)
directories = st.text(st.characters(codec="utf-8"), min_size=1, max_size=40)
several = st.lists(brokers, max_size=5).map(tuple)
the_commands = st.one_of(
    st.builds(Elect, counters, brokers, directories, counters),
    st.builds(ElectUnclean, counters, brokers, directories, counters),
    st.builds(ChangeReplicas, counters, several, several),
    st.builds(
        ChangeIsr,
        counters,
        counters,
        st.dictionaries(brokers, directories, max_size=5),
        st.integers(1, (1 << 31) - 1),
        several,
    ),
)


@given(command=the_commands)
def test_a_command_survives_its_encoding(command: Command) -> None:
    assert decode_command(command.encode()) == command


def test_equal_commands_have_equal_bytes() -> None:
    one = ChangeIsr(1, 2, {3: "c", 1: "a"}, 1)
    other = ChangeIsr(1, 2, {1: "a", 3: "c"}, 1)
    assert one.encode() == other.encode()


def test_the_bytes_are_these() -> None:
    """They are in journals: a change here is a change of format."""
    assert Elect(7, 2, "disk", 3).encode() == b"\x01\x94\x07\x02\xa4disk\x03"
    assert ChangeIsr(7, 5, {1: "a", 2: "b"}, 2, (3,)).encode() == (
        b"\x02\x95\x07\x05\x82\x01\xa1a\x02\xa1b\x02\x91\x03"
    )
    assert ChangeReplicas(7, (1, 2), (3,)).encode() == b"\x03\x93\x07\x92\x01\x02\x91\x03"
    assert ElectUnclean(7, 2, "disk").encode() == b"\x04\x94\x07\x02\xa4disk\x00"


@given(data=st.binary(max_size=60))
def test_any_bytes_are_a_command_or_a_value_error(data: bytes) -> None:
    try:
        decode_command(data)
    except ValueError:
        return
    assert data[0] in {1, 2, 3, 4}


@given(command=the_commands, cut=st.integers(1, 200))
def test_a_command_that_is_cut_short_is_refused(command: Command, cut: int) -> None:
    data = command.encode()
    with pytest.raises(ValueError):
        decode_command(data[: max(0, len(data) - cut)])


@pytest.mark.parametrize(
    "command",
    [
        Elect(-1, 2, "disk"),
        Elect(1, -2, "disk"),
        Elect(1, 1 << 31, "disk"),
        Elect(1, 2, ""),
        Elect(1, 2, "x" * (DIRECTORY_ID_CHARS_MAX + 1)),
        ChangeIsr(1, 2, {1: "d"}, 0),
        ChangeIsr(1, 2, {1: "d"}, 1 << 31),
        ChangeReplicas(1, tuple(range(VOTERS_MAX + 1)), ()),
        ChangeIsr(1, 2, dict.fromkeys(range(VOTERS_MAX + 1), "d"), 1),
    ],
)
def test_values_out_of_bounds_are_refused(command: Command) -> None:
    with pytest.raises(ValueError):
        decode_command(command.encode())


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"\x00\x90",
        b"\x05\x90",
        b"\x01" + Elect(7, 2, "disk").encode()[1:] + b"\x00",  # something behind it
        b"\x01\x93\x07\x02\xa4disk",  # a field too few
        b"\x01\x95\x07\x02\xa4disk\x03\x00",  # a field too many
        b"\x01\x94\x07\x02\xa2\xff\xff\x03",  # no UTF-8
        b"\x01" + b"\x91" * 10_000,  # arrays in arrays
    ],
)
def test_malformed_bytes_are_refused(data: bytes) -> None:
    with pytest.raises(ValueError):
        decode_command(data)
