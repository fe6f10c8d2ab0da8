"""Values of groups: shares, topics, and what a member is due."""

from __future__ import annotations

import math
from contextlib import suppress
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from raftlog import limits
from raftlog.consumer_groups import (
    GroupSettings,
    Heartbeat,
    HeartbeatResult,
    Share,
    TopicInfo,
    values,
)
from raftlog.consumer_groups.group import FormerMember, Member
from raftlog.consumer_groups.values import (
    ClassicKey,
    ClassicMemberKey,
    ClassicMemberValue,
    ClassicValue,
    FormerKey,
    FormerValue,
    GroupKey,
    GroupValue,
    Interest,
    Key,
    MemberKey,
    MemberValue,
    OffsetKey,
    OffsetValue,
    PendingKey,
    PendingValue,
    Topics,
    Value,
    assigned_partitions,
    decode_key,
    decode_value,
    parts_of,
    record,
    subscribed_topics,
)
from raftlog.errors import InvalidRequestError
from raftlog.testing.kafka_wire import assignment, subscription
from tests.consumer_groups.scene import share

# -- shares and topics -----------------------------------------------------------------------------

# Shares, topics, and whether a heartbeat's answer is news.


@pytest.mark.parametrize(
    ("epoch", "owned", "is_news"),
    [
        (3, (share("t", 0, 1), share("u", 0)), False),
        (3, (share("u", 0), share("t", 1, 0)), False),
        (2, (share("t", 0, 1), share("u", 0)), True),
        (3, (share("t", 0, 1),), True),
        (3, (share("t", 0, 1, 2), share("u", 0)), True),
        (3, (share("t", 0, 1), Share("u", "another", (0,))), True),
    ],
    ids=["the same", "in another order", "another epoch", "to be got", "to be given up", "anew"],
)
def test_an_answer_is_news_if_the_member_has_something_to_do(
    epoch: int, owned: tuple[Share, ...], is_news: bool
) -> None:
    beat = HeartbeatResult(3, (share("t", 0, 1), share("u", 0)))
    heartbeat = Heartbeat(
        group="g", member_id="m", member_epoch=epoch, sequence=1, topics=(), owned=owned
    )
    assert beat.is_news_to(heartbeat) is is_news


def test_parts_become_shares_by_topic_name_and_partition() -> None:
    topics = Topics({"b": TopicInfo("1", 3), "a": TopicInfo("2", 3)})
    parts = [("1", 2), ("2", 1), ("1", 0), ("gone", 0)]
    shares = topics.shares(parts)
    assert shares == (Share("a", "2", (1,)), Share("b", "1", (0, 2)))
    assert parts_of(shares) == set(parts[:3])


def test_a_topic_has_the_partitions_that_it_has() -> None:
    topics = Topics({"b": TopicInfo("1", 3)})
    assert topics.has(("1", 2))
    assert not topics.has(("1", 3))
    assert not topics.has(("2", 0))


def test_a_heartbeat_has_the_documented_timeouts() -> None:
    heartbeat = Heartbeat(group="g", member_id="m", member_epoch=0, sequence=1, topics=())
    assert (heartbeat.session_timeout_ms, heartbeat.rebalance_timeout_ms) == (45_000, 300_000)


# -- consumer protocol -----------------------------------------------------------------------------
#
# The bytes of consumers: what clients send, and what is no subscription or assignment.


# As librdkafka sends it: version 3, topics, user data, owned partitions, generation, rack.
SUBSCRIPTION = bytes.fromhex("0003000000010001740000000000000000ffffffffffff")


def test_topics_are_read_from_any_version() -> None:
    assert subscribed_topics(SUBSCRIPTION) == ("t",)
    assert subscribed_topics(subscription("b", "a", "b")) == ("a", "b")


def test_partitions_are_read_and_no_bytes_are_none() -> None:
    assert assigned_partitions(assignment("t", 2, 0) + b"user data") == {"t": (0, 2)}
    assert assigned_partitions(b"") == {}


@pytest.mark.parametrize(
    "data", [b"\0", b"\0\1\xff\xff\xff\xff", b"\0\1\x7f\xff\xff\xff", b"\0\1\0\0\0\1\0\1\xff"]
)
def test_other_bytes_are_neither(data: bytes) -> None:
    assert subscribed_topics(data) is None
    assert assigned_partitions(data) is None


@given(st.binary(max_size=64))
def test_no_bytes_raise(data: bytes) -> None:
    subscribed_topics(data)
    assigned_partitions(data)


# -- records ---------------------------------------------------------------------------------------
#
# The records' bytes: golden, read back, and refused where they are none.


MEMBER = MemberValue(
    version=1,
    epoch=5,
    known_epoch=4,
    sequence=9,
    instance_id=None,
    client_id="c",
    host="h",
    rack="r",
    topics=("t",),
    assignor="range",
    session_timeout_ms=45_000,
    rebalance_timeout_ms=300_000,
    is_away=False,
    assigned={"id-t": [0, 1]},
    revoking={},
    target={"id-t": [0, 1]},
)

# Later fields, which are not written with their defaults.
OMITTED: dict[type[Value], list[object]] = {MemberValue: [None], OffsetValue: ["", 0]}

# The log of a release is read by the next: these bytes never change.
GOLDEN: list[tuple[Key, Value, str, str]] = [
    (
        GroupKey("g"),
        GroupValue(1, 7, 12, None, "uniform"),
        "9201a167",
        "9501070cc0a7756e69666f726d",
    ),
    (
        MemberKey("g", "m"),
        MEMBER,
        "9302a167a16d",
        (
            "dc001001050409c0a163a168a17291a174a572616e6765cdafc8ce000493e0c281a469642d749200"
            "018081a469642d74920001"
        ),
    ),
    (
        OffsetKey("g", "t", 3),
        OffsetValue(1, "id-t", 300, 2, "note", 1_700_000_000_000, 12),
        "9403a167a17403",
        "9701a469642d74cd012c02a46e6f7465cf0000018bcfe568000c",
    ),
    (
        OffsetKey("g", "t", 3),
        OffsetValue(1, "id-t", 300, 2, "note", 1_700_000_000_000, 12, "m", 9),
        "9403a167a17403",
        "9901a469642d74cd012c02a46e6f7465cf0000018bcfe568000ca16d09",
    ),
    (FormerKey("g", "m"), FormerValue(1, "i", 45_000, 8), "9304a167a16d", "9401a169cdafc808"),
    (
        ClassicKey("g"),
        ClassicValue(1, 7, "stable", "consumer", "range", "m"),
        "9205a167",
        "960107a6737461626c65a8636f6e73756d6572a572616e6765a16d",
    ),
    (
        ClassicMemberKey("g", "m"),
        ClassicMemberValue(1, "i", "c", "h", 45_000, 300_000, (("range", b"\x00\x01"),), b"\x02"),
        "9306a167a16d",
        "9801a169a163a168cdafc8ce000493e09192a572616e6765c4020001c40102",
    ),
    (
        PendingKey(1 << 40, "g", "t", 3),
        PendingValue(3, 5, 2, OffsetValue(1, "id-t", 300, 2, "note", 1_700_000_000_000, 12), 7),
        "9507cf0000010000000000a167a17403",
        "950305029901a469642d74cd012c02a46e6f7465cf0000018bcfe568000ca00007",
    ),
]


@pytest.mark.parametrize(("key", "value", "key_hex", "value_hex"), GOLDEN, ids=lambda x: None)
def test_the_bytes_are_these_for_ever(key: Key, value: Value, key_hex: str, value_hex: str) -> None:
    found = record(key, value)
    assert found.value is not None
    assert (found.key.hex(), found.value.hex()) == (key_hex, value_hex)
    assert decode_key(found.key) == key
    assert decode_value(key, found.value) == value
    assert record(key, None).value is None


def test_a_regular_expression_is_one_more_field_of_a_member() -> None:
    value = msgspec.structs.replace(MEMBER, interest=Interest(("n",), "t.*"))
    found = record(MemberKey("g", "m"), value)
    assert found.value is not None
    before, after = GOLDEN[1][3], found.value.hex()
    assert after == before.replace("dc0010", "dc0011", 1) + "9291a16ea3742e2a"
    assert decode_value(MemberKey("g", "m"), found.value) == value


@pytest.mark.parametrize(("key", "value", "key_hex", "value_hex"), GOLDEN, ids=lambda x: None)
def test_fields_that_a_later_release_adds_are_ignored(
    key: Key, value: Value, key_hex: str, value_hex: str
) -> None:
    fields = msgspec.msgpack.decode(bytes.fromhex(value_hex))
    fields += [*OMITTED.get(type(value), []), "more"]
    assert decode_value(key, msgspec.msgpack.encode(fields)) == value


@pytest.mark.parametrize(("key", "value", "key_hex", "value_hex"), GOLDEN, ids=lambda x: None)
def test_what_a_later_release_writes_anew_is_left_alone(
    key: Key, value: Value, key_hex: str, value_hex: str
) -> None:
    assert decode_value(key, msgspec.msgpack.encode([4, "whatever"])) is None
    assert decode_key(msgspec.msgpack.encode([8, "whatever", {}])) is None


BAD_KEYS = [
    b"",
    b"\xc1",
    *map(msgspec.msgpack.encode, ([], 1, [0, "g"], ["1", "g"], [1], [1, 2], [2, "g"], [True, "g"])),
    msgspec.msgpack.encode([3, "g", "t", "0"]),
]


@pytest.mark.parametrize("data", BAD_KEYS)
def test_bytes_that_are_no_key_are_refused(data: bytes) -> None:
    with pytest.raises(InvalidRequestError):
        decode_key(data)


@pytest.mark.parametrize("fields", [[], [1], [1, "id", -1, 0, "", 0, 0], [1, "id", None], [0], "x"])
def test_bytes_that_are_no_offset_are_refused_and_never_read_as_0(fields: object) -> None:
    with pytest.raises(InvalidRequestError):
        decode_value(OffsetKey("g", "t", 0), msgspec.msgpack.encode(fields))


@given(st.binary(max_size=40))
def test_any_bytes_are_read_or_refused(data: bytes) -> None:
    for read in (decode_key, *(lambda d, k=key: decode_value(k, d) for key, *_ in GOLDEN)):
        with suppress(InvalidRequestError):
            read(data)


def test_versions_are_the_ones_that_are_written() -> None:
    assert (values.VERSION_MIN, values.VERSION) == (1, 3)
    for _, value, *_ in GOLDEN:
        is_pending = isinstance(value, PendingValue)
        assert value.version == (values.PENDING_OFFSET if is_pending else values.VERSION_MIN)
    below = OffsetValue(values.OFFSET_BELOW_0, "id", -2, -1, "", 0, 0)
    assert decode_value(OffsetKey("g", "t", 0), msgspec.msgpack.encode(below)) == below


@pytest.mark.parametrize(("key", "value", "key_hex", "value_hex"), GOLDEN, ids=lambda x: None)
def test_a_value_that_lacks_a_field_is_refused(
    key: Key, value: Value, key_hex: str, value_hex: str
) -> None:
    fields = msgspec.msgpack.decode(bytes.fromhex(value_hex))
    required = len(fields) - (2 if isinstance(value, OffsetValue) and value.sequence else 0)
    for count in range(required):
        with pytest.raises(InvalidRequestError):
            decode_value(key, msgspec.msgpack.encode(fields[:count]))


@pytest.mark.parametrize(("key", "value", "key_hex", "value_hex"), GOLDEN, ids=lambda x: None)
def test_a_value_with_a_field_of_another_type_is_refused(
    key: Key, value: Value, key_hex: str, value_hex: str
) -> None:
    fields = msgspec.msgpack.decode(bytes.fromhex(value_hex))
    for index in range(len(fields)):
        wrong = [*fields[:index], 0.5, *fields[index + 1 :]]
        with pytest.raises(InvalidRequestError):
            decode_value(key, msgspec.msgpack.encode(wrong))


DAMAGED = [
    msgspec.msgpack.encode([True, "uniform"]),  # a bool is no version and no kind
    b"\x92\x01\xa1\xff",  # text that is no UTF-8
    b"\x91" * 100_000,  # deeper than a decoder may go
    b"\xdd\xff\xff\xff\xff",  # four thousand million fields, it says
]


@pytest.mark.parametrize("data", DAMAGED, ids=["bool", "text", "deep", "long"])
def test_damage_is_refused_and_says_of_what(data: bytes) -> None:
    with pytest.raises(InvalidRequestError, match="group record"):
        decode_key(data)
    for key, *_ in GOLDEN:
        with pytest.raises(InvalidRequestError, match=r"group record|invalid value of \w+Key\("):
            decode_value(key, data)


@given(st.text(), st.text(), st.text(), st.integers(0, 2**31), st.integers(0, 2**63 - 1))
def test_whatever_is_written_is_read_again(
    group: str, name: str, metadata: str, partition: int, offset: int
) -> None:
    key = OffsetKey(group, name, partition)
    value = OffsetValue(1, "id", offset, -1, metadata, -1, 0)
    found = record(key, value)
    assert found.value is not None
    assert decode_key(found.key) == key
    assert decode_value(key, found.value) == value
    others: list[Key] = [MemberKey(group, name), FormerKey(group, name), GroupKey(group)]
    for other in others:
        read = decode_key(record(other, None).key)
        assert (type(read), read) == (type(other), other)


# -- settings --------------------------------------------------------------------------------------
#
# The bounds of a session timeout are an operator's.


def test_a_session_timeout_has_bounds() -> None:
    settings = GroupSettings(session_timeout_ms_min=6_000, session_timeout_ms_max=60_000)
    settings.check_session_timeout(6_000)
    settings.check_session_timeout(60_000)
    for timeout_ms in (5_999, 60_001):
        with pytest.raises(
            InvalidRequestError, match=rf"{timeout_ms} ms is out of range. The brokers allow 6000 "
        ):
            settings.check_session_timeout(timeout_ms)


def test_the_defaults_are_the_documented_ones() -> None:
    settings = GroupSettings()
    assert settings.offsets_retention_ms == 10_080 * 60_000
    assert settings.default_assignor == "uniform"
    assert (settings.session_timeout_ms_min, settings.session_timeout_ms_max) == (
        limits.SESSION_TIMEOUT_MS_MIN,
        limits.SESSION_TIMEOUT_MS_MAX,
    )
    assert settings.members_per_group_max == limits.MEMBERS_PER_GROUP_MAX
    assert settings.topics_per_member_max == limits.TOPICS_PER_MEMBER_MAX
    assert settings.groups_max == limits.GROUPS_PER_COORDINATOR_MAX
    assert settings.offsets_per_group_max == limits.OFFSETS_PER_GROUP_MAX


# -- members ---------------------------------------------------------------------------------------

# What a member is due, and what it is answered with while nothing changes.


def member() -> Member:
    return Member(
        id="m",
        instance_id=None,
        client_id="",
        host="",
        rack="",
        topics=("t",),
        assignor=None,
        session_timeout_ms=10_000,
        rebalance_timeout_ms=30_000,
        sequence=1,
        epoch=3,
        assigned=frozenset({("id-t", 1)}),
        target=frozenset({("id-t", 1)}),
    )


def test_a_member_is_due_when_its_session_or_a_release_is() -> None:
    one = member()
    assert one.due == math.inf
    one.renew(100.0)
    assert one.due == 110.0
    one.revoking = {("id-t", 2): 105.0, ("id-t", 3): 120.0}
    assert one.due == 105.0
    one.renew(90.0)
    assert one.due == 100.0


def test_it_is_settled_when_it_has_its_target_and_nothing_else() -> None:
    one = member()
    assert one.is_settled
    one.revoking = {("id-t", 2): 1.0}
    assert not one.is_settled
    one.revoking = {}
    one.target = frozenset()
    assert not one.is_settled


def test_its_answer_is_made_once() -> None:
    one, topics = member(), Topics({"t": TopicInfo("id-t", 4)})
    answer = one.steady_answer(topics)
    assert (answer.result.member_epoch, answer.result.assignment) == (3, (share("t", 1),))
    assert one.steady_answer(topics) is answer


def test_former_members_are_remembered_for_a_session_and_fenced_ones_for_an_hour() -> None:
    assert FormerMember("it left", 1, 10_000).begun_anew(5.0).until == 15.0
    assert FormerMember("fenced", 1, 10_000, "i1").begun_anew(5.0).until == 3_605.0
    assert FormerMember("fenced", 1, 7_200_000, "i1").begun_anew(5.0).until == 7_205.0


SAID = Heartbeat(
    group="g",
    member_id="m",
    member_epoch=3,
    sequence=1,
    topics=("t",),
    owned=(share("t", 1),),
    session_timeout_ms=10_000,
    rebalance_timeout_ms=30_000,
)


@pytest.mark.parametrize(
    ("fields", "same"),
    [
        ({}, True),
        ({"sequence": 2}, True),
        ({"member_epoch": 2}, False),
        ({"owned": ()}, False),
        ({"owned": (share("t", 1, 2),)}, False),
        ({"topics": ("t", "u")}, False),
        ({"session_timeout_ms": 10_001}, False),
        ({"rebalance_timeout_ms": 30_001}, False),
        ({"instance_id": "i"}, False),
        ({"assignor": "range"}, False),
    ],
    ids=str,
)
def test_a_heartbeat_says_the_same_if_only_its_sequence_differs(
    fields: dict[str, Any], same: bool
) -> None:
    one = member()
    one.said = SAID
    heartbeat = msgspec.structs.replace(SAID, **fields)
    assert not one.says_the_same(heartbeat)  # it was not answered yet
    one.steady_answer(Topics({"t": TopicInfo("id-t", 4)}))
    assert one.says_the_same(heartbeat) is same
    one.said = None
    assert not one.says_the_same(heartbeat)
