"""The cluster's state and its commands: as bytes and back, and the same on all brokers."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import replace
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace as struct_replace

from raftlog import limits
from raftlog.config import TopicConfig
from raftlog.errors import InvalidConfigError, InvalidRequestError, RaftlogError
from raftlog.replication.cluster_commands import (
    KINDS,
    SNAPSHOT_FORMAT,
    AddPartitions,
    AlterGroup,
    AlterQuotas,
    AlterTopic,
    BrokerRecord,
    ClusterCommand,
    ClusterRecords,
    CreateAcls,
    CreateTopic,
    DeleteAcls,
    DeleteTopic,
    FenceBroker,
    InitialState,
    Move,
    PlacementRange,
    QuotaChange,
    Reassign,
    RegisterBroker,
    SetKafkaAddress,
    SetReplicas,
    TopicRecord,
    UnfenceBroker,
    broker_events,
    decode_command,
    decode_records,
    encode_records,
    founding_state,
    joined,
    partition_events,
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
    PartitionState,
)
from raftlog.replication.partition_state import (
    decode_command as decode_partition_command,
)
from raftlog.replication.placement import Assignment
from raftlog.security.acl import Acl
from raftlog.security.credentials import User, of_salted_password
from raftlog.security.quota import QuotaEntity
from tests.replication.samples import cluster, create, done, fence, join, registration, swap

# -- state -----------------------------------------------------------------------------------------

# The cluster's state as bytes and back, and what a partition started from.


CREDENTIAL = of_salted_password("SCRAM-SHA-256", b"k" * 32, salt=b"s" * 16, iterations=4_096)
D1, D2, D3, D4 = ("1" * 32, "2" * 32, "3" * 32, "4" * 32)


def broker(id_: int, directory_id: str) -> BrokerRecord:
    return BrokerRecord(
        id=id_,
        host=f"host-{id_}",
        port=9100,
        rack="",
        directory_id=directory_id,
        boot=2,
        broker_epoch=5,
        fenced=False,
    )


def topic(name: str, **overrides: str) -> TopicRecord:
    settings = {key.replace("_", "."): value for key, value in overrides.items()}
    return TopicRecord(
        name=name,
        id=f"id-of-{name}",
        replication_factor=2,
        partitions=(
            Assignment((1, 2), (3,)),
            Assignment((3, 2), (1,), version=4, first=((2, 3), (1,))),
            Assignment((4, 1), (2,)),
        ),
        overrides=settings,
        config=TopicConfig.from_text(settings),
        eras=(
            PlacementRange(0, 1, {1: D1, 2: D2, 3: D3}),
            PlacementRange(2, 2, {1: D1, 2: D4, 4: D3}, {1: 5, 2: 6, 4: 7}),
        ),
    )


def state() -> ClusterRecords:
    return ClusterRecords(
        cluster_id="c",
        version=9,
        brokers={1: broker(1, D1), 2: broker(2, D4)},
        topics={"a": topic("a"), "b": topic("b", retention_ms="5", segment_ms="7")},
        acls={Acl("User:a", "READ", "TOPIC", "t"), Acl("User:b", "READ", "TOPIC", "t")},
        quotas={QuotaEntity("a"): {"connections": 5.0}, QuotaEntity(None, "c"): {}},
        users={name: User(name, {"SCRAM-SHA-256": CREDENTIAL}) for name in ("u", "v")},
        user_secret=b"s" * 32,
    )


def test_a_state_survives_the_way_through_bytes() -> None:
    assert decode_records(encode_records(state())) == state()


def test_equal_states_give_equal_bytes() -> None:
    other = state()
    other.brokers = dict(reversed(other.brokers.items()))
    other.topics = dict(reversed(other.topics.items()))
    other.quotas = dict(reversed(other.quotas.items()))
    other.users = dict(reversed(other.users.items()))
    assert list(other.topics) != list(state().topics)
    assert encode_records(other) == encode_records(state())


def test_no_bytes_are_the_state_before_the_first_command() -> None:
    assert decode_records(b"") == ClusterRecords()
    assert decode_records(encode_records(ClusterRecords())) == ClusterRecords()


def test_a_directory_id_stands_in_the_bytes_once() -> None:
    data = encode_records(ClusterRecords(topics={name: topic(name) for name in "abcdef"}))
    assert [data.count(d.encode()) for d in (D1, D2, D3, D4)] == [1, 1, 1, 1]


def test_a_partition_starts_from_what_it_was_made_with() -> None:
    record = topic("a", min_insync_replicas="2")
    assert record.birth(0) == InitialState((1, 2), (3,), {1: D1, 2: D2, 3: D3}, 1, {})
    # Its replicas have changed places since.
    assert record.birth(1) == InitialState((2, 3), (1,), {1: D1, 2: D2, 3: D3}, 1, {})
    # Made later: broker 2 has another directory, and min.insync.replicas was raised.
    assert record.birth(2) == InitialState(
        (4, 1), (2,), {4: D3, 1: D1, 2: D4}, 2, {4: 7, 1: 5, 2: 6}
    )


@pytest.mark.parametrize(
    ("era", "eras"),
    [
        (PlacementRange(3, 1, {1: D1}), [PlacementRange(0, 1, {1: D1, 2: D2})]),
        (PlacementRange(3, 1, {3: D3}), [PlacementRange(0, 1, {1: D1, 2: D2, 3: D3})]),
        (
            PlacementRange(3, 2, {1: D1}),
            [PlacementRange(0, 1, {1: D1, 2: D2}), PlacementRange(3, 2, {1: D1})],
        ),
        (
            PlacementRange(3, 1, {1: D4}),
            [PlacementRange(0, 1, {1: D1, 2: D2}), PlacementRange(3, 1, {1: D4})],
        ),
    ],
)
def test_an_era_that_says_nothing_else_is_part_of_the_last(
    era: PlacementRange, eras: list[PlacementRange]
) -> None:
    assert joined((PlacementRange(0, 1, {1: D1, 2: D2}),), era) == tuple(eras)
    assert joined((), era) == (era,)


def test_another_incarnation_begins_an_era() -> None:
    first = PlacementRange(0, 1, {1: D1, 2: D2}, {1: 7, 2: 8})
    same = PlacementRange(3, 1, {1: D1, 3: D3}, {1: 7, 3: 9})
    assert joined((first,), same) == (
        PlacementRange(0, 1, {1: D1, 2: D2, 3: D3}, {1: 7, 2: 8, 3: 9}),
    )
    for other in ({1: 8, 3: 9}, {}):
        era = PlacementRange(3, 1, {1: D1, 3: D3}, other)
        assert joined((first,), era) == (first, era)


def fields() -> list[object]:
    decoded: list[object] = msgspec.msgpack.decode(encode_records(state()))
    return decoded


def test_a_snapshot_of_another_format_is_refused() -> None:
    for other in (1, SNAPSHOT_FORMAT + 1):
        data = msgspec.msgpack.encode([other, *fields()[1:]])
        with pytest.raises(InvalidRequestError, match=f"format {other}, but this release reads"):
            decode_records(data)


def test_the_format_shows_earlier_releases_that_they_would_misread_the_state() -> None:
    """They read format 2 and ignore what they do not know in it."""
    assert fields()[0] == 2
    upgraded = msgspec.msgpack.decode(founding_state("c", peer_protocol=2))
    assert upgraded[0] == 3


def test_a_setting_of_a_later_release_is_named() -> None:
    row = ["t", "i", 1, [], {"of.the.future": "1"}, [[0, 1, []]]]
    data = msgspec.msgpack.encode([*fields()[:5], [row]])
    with pytest.raises(InvalidConfigError, match=r"of\.the\.future"):
        decode_records(data)


@pytest.mark.parametrize(
    "row",
    [
        ["t", "i", 1, [[[1], []]], {}, []],  # no era
        ["t", "i", 1, [[[1], []]], {}, [[1, 1, []]]],  # of nothing
        ["t", "i", 1, [[[1], []]], {}, [[0, 1, [[1, 99]]]]],  # a directory that is not there
        ["t", "i", 1, [[[], []]], {}, [[0, 1, []]]],  # a partition without replicas
        ["t", "i", 1, "x", {}, [[0, 1, []]]],
    ],
)
def test_a_row_that_contradicts_itself_is_refused(row: list[object]) -> None:
    with pytest.raises(InvalidRequestError, match="invalid cluster snapshot"):
        decode_records(msgspec.msgpack.encode([*fields()[:5], [row]]))


@given(st.binary(min_size=1, max_size=100), st.integers(0, 400), st.integers(0, 400))
def test_any_bytes_are_a_state_or_an_error(noise: bytes, start: int, length: int) -> None:
    data = encode_records(state())
    for candidate in (noise, data[:start] + noise + data[start + length :]):
        try:
            decode_records(candidate)
        except RaftlogError:
            continue


# -- events ----------------------------------------------------------------------------------------
#
# Events between two states: elections, the ISR, replicas; brokers that come and go.


STATE = PartitionState(
    replicas=(1, 2, 3),
    witnesses=(4, 5),
    min_isr=2,
    leader=1,
    leader_epoch=7,
    isr={1: "a", 2: "b"},
    elr={},
    former={},
    version=20,
)
BROKER = BrokerRecord(
    id=2, host="h", port=9, rack="", directory_id="d", boot=3, broker_epoch=4, fenced=False
)


@pytest.mark.parametrize(
    ("change", "kinds", "part"),
    [
        ({}, [], ""),
        ({"elr": {3: "c"}}, [], ""),
        (
            {"leader": 2, "leader_epoch": 8},
            ["leader-elected"],
            "broker 2 leads in epoch 8, after broker 1",
        ),
        ({"leader_epoch": 8}, ["leader-elected"], "broker 1 leads in epoch 8, after broker 1"),
        (
            {"leader": 2, "leader_epoch": 8, "unclean_epoch": 8},
            ["unclean-leader-elected"],
            "Acknowledged records may be lost",
        ),
        ({"leader": None, "leader_epoch": 8}, ["leader-lost"], "broker 1 is no longer the leader"),
        ({"isr": {1: "a"}}, ["isr-shrunk"], "broker 2 left the ISR; the ISR is 1"),
        ({"isr": {1: "a", 3: "c"}}, ["isr-shrunk", "isr-expanded"], "broker 3 joined the ISR"),
        ({"replicas": (1, 2, 4)}, ["replicas-changed"], "the replicas are 1,2,4, after 1,2,3"),
        ({"replicas": (2, 1, 3)}, [], ""),
    ],
)
def test_a_change_of_a_partition_is_told(
    change: dict[str, Any], kinds: list[str], part: str
) -> None:
    found = partition_events("t", "id", 5, STATE, replace(STATE, version=21, **change))
    assert [event.kind for event in found] == kinds
    assert part in "".join(event.text for event in found)
    assert {(e.topic, e.topic_id, e.partition, e.version) for e in found} <= {("t", "id", 5, 21)}


def test_the_first_leader_follows_no_broker() -> None:
    (event,) = partition_events("t", "id", 0, replace(STATE, leader=None), STATE)
    assert (event.broker, event.text) == (1, "broker 1 leads in epoch 7, after no broker")


@pytest.mark.parametrize(
    ("before", "after", "kinds"),
    [
        (BROKER, BROKER, []),
        (None, struct_replace(BROKER, fenced=True), ["broker-registered"]),
        (None, BROKER, ["broker-registered", "broker-unfenced"]),
        (BROKER, struct_replace(BROKER, fenced=True), ["broker-fenced"]),
        (struct_replace(BROKER, fenced=True), BROKER, ["broker-unfenced"]),
        (
            BROKER,
            struct_replace(BROKER, broker_epoch=5, boot=4, fenced=True),
            ["broker-registered", "broker-fenced"],
        ),
    ],
)
def test_a_change_of_a_broker_is_told(
    before: BrokerRecord | None, after: BrokerRecord, kinds: list[str]
) -> None:
    found = broker_events({} if before is None else {2: before}, {2: after}, 9)
    assert [event.kind for event in found] == kinds
    assert set(kinds) <= set(KINDS)
    assert all((event.broker, event.version, event.topic) == (2, 9, "") for event in found)


# -- commands --------------------------------------------------------------------------------------

# Commands as bytes and back.


COMMANDS: list[ClusterCommand] = [
    RegisterBroker(id=1, host="h", port=9100, rack="", directory_id="d", boot=3),
    FenceBroker(id=1, broker_epoch=7),
    SetKafkaAddress(id=2, broker_epoch=3, host="outside", port=9092),
    UnfenceBroker(id=(1 << 31) - 1, broker_epoch=(1 << 63) - 1),
    CreateTopic(
        name="t", topic_id="i", partitions=3, replication_factor=2, overrides={"retention.ms": "1"}
    ),
    CreateTopic(name="t", topic_id="i", partitions=3),
    DeleteTopic(name="t"),
    DeleteTopic(name="t", topic_id="i"),
    AlterTopic(name="t", changes={"retention.ms": None, "segment.ms": "5"}),
    AddPartitions(name="t", total=10),
    SetReplicas(topic_id="i", partition=0, replicas=(1, 2), witnesses=(3,), version=4),
    Reassign(topic_id="i", moves=(Move(0, (1, 4), 3, (2,)),), replication_factor=2),
    CreateAcls(acls=(Acl("User:a", "READ", "TOPIC", "t", "PREFIXED", "DENY", "::1"),)),
    DeleteAcls(acls=(Acl("User:a", "READ", "TOPIC", "t"),)),
    AlterGroup("g", {"consumer.session.timeout.ms": 9_000, "consumer.heartbeat.interval.ms": None}),
    AlterQuotas(
        changes=(
            QuotaChange(QuotaEntity("a", "c"), {"producer_byte_rate": 1.5}),
            QuotaChange(QuotaEntity(address="::1"), {"connection_creation_rate": None}),
        )
    ),
]


@pytest.mark.parametrize("command", COMMANDS, ids=lambda command: type(command).__name__)
def test_a_command_survives_the_way_through_bytes(command: ClusterCommand) -> None:
    assert decode_command(command.encode()) == command


def test_the_bytes_do_not_change() -> None:
    """Journals hold them: a command that was written must be read by later releases."""
    assert FenceBroker(id=1, broker_epoch=7).encode() == b"\x93\xacfence_broker\x01\x07"
    create = CreateTopic(name="t", topic_id="i", partitions=3, overrides={"b": "2", "a": "1"})
    assert msgspec.msgpack.decode(create.encode()) == [
        "create_topic",
        "t",
        "i",
        3,
        None,
        {"a": "1", "b": "2"},
    ]


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        (["no_such_command"], "no_such_command"),
        (["fence_broker", 1], "length"),
        (["fence_broker", 1, 2, 3], "length"),
        (["fence_broker", -1, 2], ">= 0"),
        (["fence_broker", "1", 2], "Expected `int`"),
        (["create_topic", "t", "", 1], "regex"),
        (["create_topic", "t", "a/b", 1], "regex"),
        (["create_topic", "t", "a\n", 1], "regex"),
        (["create_topic", "t", "c" * (limits.ID_CHARS_MAX + 1), 1], "regex"),
        (["register_broker", 1, "", 9100, "", "d", 1], "length >= 1"),
        (["register_broker", 1, "h", 0, "", "d", 1], ">= 1"),
        (["register_broker", 1, "h", 65_536, "", "d", 1], "<= 65535"),
        (["create_topic", "t" * 997, "i", 1], "length <="),
        ({"type": "fence_broker"}, "Expected `array`"),
        (None, "Expected `array`"),
    ],
)
def test_what_is_no_command_is_refused_with_the_reason(fields: object, words: str) -> None:
    with pytest.raises(InvalidRequestError, match=words):
        decode_command(msgspec.msgpack.encode(fields))


@given(st.binary(max_size=200))
def test_any_bytes_are_a_command_or_an_error(data: bytes) -> None:
    with suppress(InvalidRequestError):
        assert isinstance(decode_command(data), ClusterCommand)


@pytest.mark.parametrize("data", [b"", b"\xc1", b"\x91" * 5_000, b"\x92\xacdelete_topic\xa1\xff"])
def test_bytes_that_are_hard_to_read_are_refused(data: bytes) -> None:
    with pytest.raises(InvalidRequestError, match="invalid cluster command"):
        decode_command(data)


@pytest.mark.parametrize(
    "command",
    [
        DeleteTopic(name="\ud800"),
        FenceBroker(id=1, broker_epoch=1 << 64),
    ],
)
def test_what_bytes_cannot_carry_is_refused_where_it_is_made(command: ClusterCommand) -> None:
    with pytest.raises(InvalidRequestError, match=type(command).__name__):
        command.encode()


# -- agreement -------------------------------------------------------------------------------------

# All brokers come to the same state, whatever the commands, and tell what has changed.


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
    assert decode_partition_command(command.encode()) == command


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
        decode_partition_command(data)
    except ValueError:
        return
    assert data[0] in {1, 2, 3, 4}


@given(command=the_commands, cut=st.integers(1, 200))
def test_a_command_that_is_cut_short_is_refused(command: Command, cut: int) -> None:
    data = command.encode()
    with pytest.raises(ValueError):
        decode_partition_command(data[: max(0, len(data) - cut)])


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
        decode_partition_command(command.encode())


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
        decode_partition_command(data)
