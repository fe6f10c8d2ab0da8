"""Commands as bytes and back."""

from __future__ import annotations

from contextlib import suppress

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from raftlog import limits
from raftlog.errors import InvalidRequestError
from raftlog.replication.cluster_commands import (
    AddPartitions,
    AlterGroup,
    AlterQuotas,
    AlterTopic,
    ClusterCommand,
    CreateAcls,
    CreateTopic,
    DeleteAcls,
    DeleteTopic,
    FenceBroker,
    Move,
    QuotaChange,
    Reassign,
    RegisterBroker,
    SetKafkaAddress,
    SetReplicas,
    UnfenceBroker,
    decode_command,
)
from raftlog.security.acl import Acl
from raftlog.security.quota import QuotaEntity

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
