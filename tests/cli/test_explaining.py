"""States and events of a cluster as sentences: ``raftlog explain``, ``raftlog cluster events``."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from raftlog.client.administration.describe import topics_in
from raftlog.client.administration.groups import GroupDescription, MemberDescription, PartitionLag
from raftlog.client.descriptions import (
    BrokerDescription,
    ClusterDescription,
    DiskDescription,
    DiskUseDescription,
    EventDescription,
    LogDirDescription,
    PartitionOverview,
    ReplicaDescription,
    TopicDiskUse,
    _partition_description,
)
from raftlog.clock import SystemClock
from raftlog.protocol import records as wire
from raftlog.types import TopicPartition
from raftlog_cli.cluster import event_line, parse_since
from raftlog_cli.explain import (
    explain_broker,
    explain_disk,
    explain_lag,
    explain_partition,
    explain_rebalance,
)
from tests.cli.conftest import Raftlog

# -- sentences -------------------------------------------------------------------------------------

# Sentences for described states: a table, from all is well to all is lost.


NONE_DOWN: frozenset[int] = frozenset()


def replica(broker: int, **fields: Any) -> ReplicaDescription:
    standard: dict[str, Any] = {
        "log_end_offset": 10,
        "durable_end_offset": 10,
        "lag_records": 0,
        "lag_ms": 0,
        "in_isr": True,
        "chain": None,
        "damage": "",
    }
    return ReplicaDescription(broker=broker, **(standard | fields))


PART = PartitionOverview(
    topic="t",
    topic_id="id",
    partition=0,
    leader=1,
    leader_epoch=4,
    replicas=(1, 2, 3),
    isr=(1, 2, 3),
    witnesses=(),
    elr=(),
    min_isr=2,
    is_available=True,
    log_start_offset=0,
    high_watermark=10,
    replica_states=tuple(map(replica, (1, 2, 3))),
    problem="",
)


def cluster_of(
    part: PartitionOverview = PART,
    *,
    down: frozenset[int] = NONE_DOWN,
    fenced: frozenset[int] = NONE_DOWN,
    controller: int | None = 1,
    clock_error_ms: int = 0,
) -> ClusterDescription:
    brokers = tuple(
        BrokerDescription(
            id=broker,
            host="h",
            port=9100 + broker,
            fenced=broker in fenced,
            live=broker not in down,
            problem="connection refused" if broker in down else "",
            clock_error_ms=clock_error_ms if broker == 2 else 0,
        )
        for broker in (1, 2, 3)
    )
    return ClusterDescription("c", brokers, controller, (part,))


@pytest.mark.parametrize(
    ("part", "cluster", "noted"),
    [
        ({}, {}, ["t:0 is led by broker 1, in epoch 4.", "Nothing is wrong."]),
        (
            {"isr": (1, 3), "down": (2,)},
            {"down": frozenset({2})},
            ["is led by broker 1", "broker 2 is missing. Broker 2 does not respond (connection"],
        ),
        (
            {"isr": (1, 3)},
            {"fenced": frozenset({2})},
            ["is led by broker 1", "Broker 2 responds and is fenced"],
        ),
        (
            {
                "isr": (1, 3),
                "replica_states": (replica(1), replica(2, lag_records=7, in_isr=False), replica(3)),
            },
            {},
            ["is led by broker 1", "broker 2 is up and not in sync: it lacks 7 records"],
        ),
        (
            {"isr": (1,), "down": (2, 3)},
            {"down": frozenset({2, 3})},
            [
                "is led by broker 1",
                "acks=all are rejected: replicas that are in sync and respond: 1, and min.insync",
                "broker 2 is missing",
                "broker 3 is missing",
            ],
        ),
        (
            {"leader": None, "is_available": False, "isr": (2,), "elr": (3,)},
            {"down": frozenset({2, 3})},
            [
                "t:0 has no leader",
                "Only brokers 2, 3 have all acknowledged records, and none of them is up.",
                "broker 1 is up and not in sync: it lacks 0 records, and waits for a leader.",
                "broker 2 is missing",
                "broker 3 is missing",
            ],
        ),
        (
            {"is_available": False, "down": (1,)},
            {"down": frozenset({1})},
            [
                "its leader, broker 1, does not respond. Broker 1 does not respond (connection",
                "Broker 2 can be elected; this takes a moment",
            ],
        ),
        (
            {"leader": None, "is_available": False},
            {"controller": None},
            ["t:0 has no leader", "No leader can be elected: no controller was found"],
        ),
        (
            {"unclean_epoch": 3, "unclean_offset": 8, "problem": "disk full"},
            {},
            [
                "is led by broker 1",
                "epoch 3 started without all of them, at offset 8.",
                "A broker reports: disk full.",
            ],
        ),
        (
            {"replica_states": (replica(1), replica(2, damage="bad CRC at 5"), replica(3))},
            {},
            ["is led by broker 1", "The replica on broker 2 is corrupt: bad CRC at 5."],
        ),
    ],
)
def test_a_partition_is_explained(
    part: dict[str, Any], cluster: dict[str, Any], noted: list[str]
) -> None:
    described = replace(PART, **part)
    found = explain_partition(cluster_of(described, **cluster), described, [])
    assert len(found) == len(noted), found
    assert all(text in sentence for text, sentence in zip(noted, found, strict=True)), found


def test_the_last_events_of_the_partition_end_the_explanation() -> None:
    mine = [
        EventDescription(1_700_000_000_000 + n, "isr-shrunk", f"event {n}", "t", 0)
        for n in range(7)
    ]
    other = EventDescription(1_700_000_000_009, "isr-shrunk", "another", "t", 1)
    found = explain_partition(cluster_of(), PART, [*mine, other])
    assert found[2] == "2023-11-14T22:13:20.002Z: event 2."
    assert found[-1] == "2023-11-14T22:13:20.006Z: event 6."


@pytest.mark.parametrize(
    ("broker", "part", "cluster", "noted"),
    [
        (1, {}, {}, ["is up. It leads 1 partition and has 1 replica.", "Nothing is wrong."]),
        (
            2,
            {"isr": (1, 3)},
            {"down": frozenset({2})},
            [
                "Broker 2 at h:9102 is down. It leads 0 partitions",
                "Broker 2 does not respond (connection refused): start it.",
                "1 of its replicas are not in sync: t:0.",
            ],
        ),
        (2, {}, {"clock_error_ms": 90_000}, ["is up", "the wall clock is 90 s ahead of"]),
        (
            3,
            {"leader": None, "is_available": False},
            {},
            ["is up", "1 of its partitions have no leader: t:0."],
        ),
        (
            3,
            {"replica_states": (replica(1), replica(2), replica(3, damage="bad CRC"))},
            {},
            ["is up", "1 of its replicas are corrupt: t:0."],
        ),
    ],
)
def test_a_broker_is_explained(
    broker: int, part: dict[str, Any], cluster: dict[str, Any], noted: list[str]
) -> None:
    described = cluster_of(replace(PART, **part), **cluster)
    event = EventDescription(0, "broker-fenced", "fenced", broker=broker)
    *found, last = explain_broker(described, described.brokers[broker - 1], [event])
    assert last == "1970-01-01T00:00:00.000Z: fenced."
    assert len(found) == len(noted), found
    assert all(text in sentence for text, sentence in zip(noted, found, strict=True)), found


def test_a_summary_that_names_some_problems_gives_lower_bounds() -> None:
    many = [replace(PART, partition=number, isr=(1, 2)) for number in range(9)]
    described = cluster_of(many[0])
    brief = replace(
        described,
        partitions=tuple(many[:2]),
        topics=topics_in(many),
        brokers=(*described.brokers[:2], replace(described.brokers[2], leads=4, replicas=9)),
    )
    first, second = explain_broker(brief, brief.brokers[2], [])
    assert "leads 4 partitions and has 9 replicas" in first
    assert second.startswith("At least 2 of its replicas are not in sync: t:0, t:1")
    _, second = explain_broker(replace(brief, partitions=tuple(many)), brief.brokers[2], [])
    assert second.startswith("9 of its replicas")


def member(name: str, assigned: str, target: str | None = None, **fields: Any) -> MemberDescription:
    """Partitions as digits: ``"01"`` is t:0 and t:1."""
    places = {
        field: tuple(TopicPartition("t", int(digit)) for digit in digits)
        for field, digits in (
            ("assigned", assigned),
            ("target", assigned if target is None else target),
        )
    }
    standard: dict[str, Any] = {
        "instance_id": None,
        "client_id": "",
        "host": "h",
        "member_epoch": 1,
        "topics": ("t",),
        "session_timeout_ms": 45_000,
    }
    return MemberDescription(member_id=name, **(standard | fields), **places)


def part_lag(partition: int, lag: int | None, reader: str | None, **fields: Any) -> PartitionLag:
    offset = None if lag is None else 10
    return PartitionLag("t", partition, offset, lag=lag, member_id=reader, **fields)


def group_of(
    *members: MemberDescription, lags: Any = (), state: str = "stable"
) -> GroupDescription:
    return GroupDescription("g", state, 5, "uniform", 1, members, tuple(lags))


A, B, IDLE = member("a", "0"), member("b", "1"), member("c", "")


@pytest.mark.parametrize(
    ("group", "noted"),
    [
        (group_of(A, lags=[part_lag(0, 0, "a")]), ["lags by 0 offsets", "Nothing lags."]),
        (
            group_of(state="empty", lags=[part_lag(0, 4, None)]),
            ["it is empty with 0 members.", "No member reads. Start the application"],
        ),
        (
            group_of(A, lags=[part_lag(0, 4, "a"), part_lag(1, 4, None)]),
            ["lags by 8 offsets in 2 of 2", "No member reads t:1.", "All members together are"],
        ),
        (
            group_of(A, B, lags=[part_lag(0, 90, "a"), part_lag(1, 4, "b")]),
            ["lags by 94", "t:0 has 96% of the lag"],
        ),
        (
            group_of(A, B, lags=[part_lag(0, 4, "a"), part_lag(1, 4, "a"), part_lag(2, 0, "b")]),
            ["lags by 8", "Only partitions of member a lag: that member is slow."],
        ),
        (
            group_of(A, B, IDLE, lags=[part_lag(0, 4, "a"), part_lag(1, 4, "b")]),
            ["lags by 8", "1 member has none, because there are more members than partitions."],
        ),
        (
            group_of(A, lags=[part_lag(0, 4, "a"), part_lag(1, None, "a")], state="reconciling"),
            [
                "lags by 4",
                "t:1: no offset was ever committed.",
                "A rebalance is in progress",
                "t:0 has 100% of the lag",
            ],
        ),
        (
            group_of(A, lags=[part_lag(0, 4, "a")], state="preparing_rebalance"),
            ["lags by 4", "A rebalance is in progress. The coordinator waits", "All members toget"],
        ),
        (
            group_of(A, lags=[part_lag(0, None, "a", problem="the offset was deleted")]),
            ["lags by 0", "t:0: the offset was deleted.", "Nothing lags."],
        ),
    ],
)
def test_a_lag_is_explained(group: GroupDescription, noted: list[str]) -> None:
    found = explain_lag(group)
    assert len(found) == len(noted), found
    assert all(text in sentence for text, sentence in zip(noted, found, strict=True)), found


@pytest.mark.parametrize(
    ("group", "noted"),
    [
        (group_of(A, B), ["is stable, in epoch 5, with 2 members", "No rebalance is in progress."]),
        (
            group_of(member("a", "01", "0"), member("b", "", "1"), state="reconciling"),
            [
                "is reconciling",
                "Member a on h must release t:1",
                "b on h waits for t:1: held by a",
            ],
        ),
        (
            group_of(member("b", "", "1"), state="reconciling"),
            ["is reconciling", "waits for t:1: being assigned to it."],
        ),
        (
            group_of(A, B, state="preparing_rebalance"),
            ["is preparing_rebalance", "waits until all members have joined again"],
        ),
        (
            group_of(A, B, state="completing_rebalance"),
            ["is completing_rebalance", "waits for the assignment"],
        ),
        (
            group_of(member("a", "0", is_away=True)),
            ["is stable", "temporarily absent. Its partitions stay reserved for up to 45000 ms."],
        ),
    ],
)
def test_a_rebalance_is_explained(group: GroupDescription, noted: list[str]) -> None:
    found = explain_rebalance(group)
    assert len(found) == len(noted), found
    assert all(text in sentence for text, sentence in zip(noted, found, strict=True)), found


def test_long_lists_are_shortened() -> None:
    lags = [part_lag(number, 1, None) for number in range(9)]
    found = explain_lag(group_of(A, lags=lags))
    assert "No member reads t:0, t:1, t:2, t:3, t:4 and 4 more." in found


GIB = 1 << 30
CLICKS = TopicDiskUse("clicks", 4, 30 * GIB, 0, 3 * GIB, 604_800_000, -1)
STATE = TopicDiskUse("state", 1, 10 * GIB, 0, 0, -1, -1)
LOW = DiskDescription(2 * GIB, 100 * GIB, "no-producers", "producers are refused: 2 of 100")
LOG_DIRS = (
    LogDirDescription("/d2", -1, -1, True, "log directory /d2 has failed"),
    LogDirDescription("/d3", GIB, 2 * GIB, False, ""),
    LogDirDescription("/d4", -1, -1, False, ""),
)
USE = DiskUseDescription(1, LOW, GIB // 2, GIB // 2, (CLICKS, STATE))


@pytest.mark.parametrize(
    ("use", "expected", "absent"),
    [
        (
            USE,
            [
                "Broker 1: 2.0 GiB of 100.0 GiB of its disk are free (2%).",
                "producers are refused: 2 of 100.",
                "raftlog uses 41.0 GiB: records of 2 topics 40.0 GiB",
                "Other files and the file system use 57.0 GiB.",
                "clicks 30.0 GiB (75%, retention.ms=604800000); state 10.0 GiB (25%, no retention",
                "Retention deletes 0 B at its next check, and 3.0 GiB within 24 hours.",
                "To free space: move or delete other files on the disk",
                "raftlog topic alter clicks --config retention.bytes=BYTES",
                "delete directories *.quarantine-*",
                "raftlog cluster rebalance",
            ],
            ["enough"],
        ),
        (
            replace(USE, disk=DiskDescription(50 * GIB, 100 * GIB, "normal", "")),
            ["(50%)", "There is enough space."],
            ["To free space"],
        ),
        (
            DiskUseDescription(1, DiskDescription(GIB, 20 * GIB, "normal", "")),
            ["records of 0 topics 0 B", "move or delete other files"],
            ["largest", "topic alter", "quarantine-"],
        ),
        (
            replace(USE, disk=DiskDescription(50 * GIB, 100 * GIB, "normal", "", LOG_DIRS)),
            [
                "Broker 1: log directory /d2 has failed.",
                "Broker 1: 1.0 GiB of 2.0 GiB of the disk of /d3 are free.",
                "the size of the disk of /d4 is unknown",
            ],
            [],
        ),
        (DiskUseDescription(2, None, problem="no answer"), ["does not report its disk: no"], []),
        (DiskUseDescription(2, None), ["the size of its disk is unknown"], ["Other files"]),
    ],
)
def test_a_disk_is_explained(
    use: DiskUseDescription, expected: list[str], absent: list[str]
) -> None:
    text = " ".join(explain_disk(use))
    for part in expected:
        assert part in text
    for part in absent:
        assert part not in text


def test_a_failed_disk_of_a_broker_is_named() -> None:
    disk = DiskDescription(50 * GIB, 100 * GIB, "normal", "", LOG_DIRS)
    described = cluster_of(PART)
    found = explain_broker(described, replace(described.brokers[0], disk=disk), [])
    assert "Log directory /d2 has failed." in found


@pytest.mark.parametrize(("stable", "is_told"), [(7, True), (10, False), (-1, False)])
def test_an_open_transaction_holds_readers_back(stable: int, is_told: bool) -> None:
    offsets = _partition_description(
        wire.PartitionDescription(
            info=wire.PartitionInfo(partition=0, leader=1, leader_epoch=0, replicas=[1], isr=[1]),
            high_watermark=10,
            stable_offset=stable,
        )
    )
    found = explain_partition(cluster_of(), PART, [], offsets)
    noted = [each for each in found if "raftlog txn list" in each]
    assert bool(noted) is is_told
    assert not noted or "stop at offset 7, 3 offsets before the end" in noted[0]


# -- explain ---------------------------------------------------------------------------------------

# ``raftlog explain``: wrong usage. What it says: ``test_explaining``, and ``test_cluster``.


@pytest.mark.parametrize(
    ("arguments", "status"),
    [
        (["partition", "clicks"], 2),
        (["broker", "x"], 2),
        (["disk", "x"], 2),
        (["lag", ""], 1),
        (["lag", "g", "--bootstrap", "127.0.0.1:1"], 1),
    ],
)
def test_wrong_usage_is_told(raftlog: Raftlog, arguments: list[str], status: int) -> None:
    ran = raftlog("explain", *arguments)
    assert (ran.status, ran.out) == (status, b"")
    assert ran.err


# -- events ----------------------------------------------------------------------------------------

# ``raftlog cluster events``: the text of an event, and the time that it starts from.


def test_an_event_is_a_line() -> None:
    elected = EventDescription(1_700_000_000_123, "leader-elected", "broker 2 leads", "t", 3, 2, 8)
    assert event_line(elected) == (
        "2023-11-14T22:13:20.123Z  leader-elected          t:3: broker 2 leads"
    )
    fenced = EventDescription(0, "broker-fenced", "broker 1 was fenced", broker=1)
    assert event_line(fenced).endswith("broker-fenced           broker 1 was fenced")


@pytest.mark.parametrize("text", ["@1700000000123", "1700000000123", "@2023-11-14T22:13:20.123Z"])
def test_a_time_is_written_with_or_without_its_mark(text: str) -> None:
    assert parse_since(text) == 1_700_000_000_123


def test_a_relative_time_is_before_now() -> None:
    now_ms = SystemClock().wall_ms()
    assert 7_199_000 <= now_ms - parse_since("@-2h") <= 7_201_000
    with pytest.raises(ValueError, match="ISO 8601"):
        parse_since("@yesterday")
