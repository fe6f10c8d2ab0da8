"""The cluster's state as bytes and back, and what a partition started from."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace as struct_replace

from raftlog.config import TopicConfig
from raftlog.errors import InvalidConfigError, InvalidRequestError, RaftlogError
from raftlog.replication.cluster_commands import (
    KINDS,
    SNAPSHOT_FORMAT,
    BrokerRecord,
    ClusterRecords,
    InitialState,
    PlacementRange,
    TopicRecord,
    broker_events,
    decode_records,
    encode_records,
    founding_state,
    joined,
    partition_events,
)
from raftlog.replication.partition_state import PartitionState
from raftlog.replication.placement import Assignment
from raftlog.security.acl import Acl
from raftlog.security.credentials import User, of_salted_password
from raftlog.security.quota import QuotaEntity

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
