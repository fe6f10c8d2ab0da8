"""What the ``cluster`` group agrees on: its commands, as bytes and back. What they do is elsewhere.

A command is a msgpack array, its name first. Bounds stand in the field types: a command that
decodes is inside all of them.
"""

from __future__ import annotations

from typing import Annotated, Final, TypeAlias

import msgspec
from msgspec import Meta

from raftlog import limits
from raftlog.errors import InvalidRequestError

INT63_MAX: Final = (1 << 63) - 1

BrokerNumber = Annotated[int, Meta(ge=0, le=(1 << 31) - 1)]
# Ids become parts of file names and of group names.
Id = Annotated[str, Meta(pattern=rf"\A[0-9A-Za-z_-]{{1,{limits.ID_CHARS_MAX}}}\Z")]
# Wider than a name may be, so that a bad one gets the error that says what is wrong with it.
TopicName = Annotated[str, Meta(max_length=4 * limits.TOPIC_NAME_CHARS_MAX)]
Host = Annotated[str, Meta(min_length=1, max_length=limits.HOST_CHARS_MAX)]
Rack = Annotated[str, Meta(max_length=limits.RACK_CHARS_MAX)]
Port = Annotated[int, Meta(ge=1, le=65_535)]
Count = Annotated[int, Meta(ge=0, le=(1 << 31) - 1)]
Version = Annotated[int, Meta(ge=0, le=INT63_MAX)]
ConfigName = Annotated[str, Meta(max_length=256)]
ConfigText = Annotated[str, Meta(max_length=limits.CONFIG_VALUE_CHARS_MAX)]
Overrides = Annotated[
    dict[ConfigName, ConfigText], Meta(max_length=limits.CONFIG_KEYS_PER_TOPIC_MAX)
]
Changes = Annotated[
    dict[ConfigName, ConfigText | None], Meta(max_length=limits.CONFIG_KEYS_PER_TOPIC_MAX)
]
Brokers = Annotated[tuple[BrokerNumber, ...], Meta(max_length=limits.BROKERS_PER_CLUSTER_MAX)]


class ClusterCommand(msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    """Base of every command."""

    def encode(self) -> bytes:
        """Raises ``InvalidRequestError`` for a text or number that bytes cannot carry."""
        try:
            return _encoder.encode(self)
        except (UnicodeEncodeError, OverflowError) as error:
            raise InvalidRequestError(f"{type(self).__name__}: {error}") from error


class RegisterBroker(ClusterCommand, frozen=True, tag="register_broker"):
    """A broker has started. Gives its broker epoch; it is fenced until ``UnfenceBroker``.

    ``boot`` counts the starts of the data directory. The same registration again gives the same
    epoch and changes nothing.
    """

    id: BrokerNumber
    host: Host
    port: Port
    rack: Rack
    directory_id: Id
    boot: Version


class FenceBroker(ClusterCommand, frozen=True, tag="fence_broker"):
    """The broker is gone, or is about to go: it leads nothing and joins no ISR (KIP-841)."""

    id: BrokerNumber
    broker_epoch: Version


class UnfenceBroker(ClusterCommand, frozen=True, tag="unfence_broker"):
    """The broker serves."""

    id: BrokerNumber
    broker_epoch: Version


class CreateTopic(ClusterCommand, frozen=True, tag="create_topic"):
    """Gives the ``TopicRecord``. ``replication_factor`` 0 or None: 3, or all brokers if fewer.

    With the id of a topic that exists under this name it gives that one: who does not know whether
    the first attempt was applied may repeat it.
    """

    name: TopicName
    topic_id: Id
    partitions: Count
    replication_factor: Count | None = None
    overrides: Overrides = msgspec.field(default_factory=dict)


class DeleteTopic(ClusterCommand, frozen=True, tag="delete_topic"):
    """Gives the ``TopicRecord`` that was. With an id, only that topic and no later namesake."""

    name: TopicName
    topic_id: Id | None = None


class AlterTopic(ClusterCommand, frozen=True, tag="alter_topic"):
    """Set config keys; None puts one back to its default. Gives the ``TopicRecord``."""

    name: TopicName
    changes: Changes


class AddPartitions(ClusterCommand, frozen=True, tag="add_partitions"):
    """Raise the number of partitions to ``total``. Gives the ``TopicRecord``."""

    name: TopicName
    total: Count


class SetReplicas(ClusterCommand, frozen=True, tag="set_replicas"):
    """What a partition's own group has agreed on. Gives the ``TopicRecord``.

    ``version`` is that of the partition's state: an older one than was noted before is refused.
    """

    topic_id: Id
    partition: Count
    replicas: Brokers
    witnesses: Brokers
    version: Version


AnyClusterCommand: TypeAlias = (
    RegisterBroker
    | FenceBroker
    | UnfenceBroker
    | CreateTopic
    | DeleteTopic
    | AlterTopic
    | AddPartitions
    | SetReplicas
)

_encoder: Final = msgspec.msgpack.Encoder(order="deterministic")
_decoder: Final = msgspec.msgpack.Decoder(AnyClusterCommand)


def decode_command(data: bytes) -> AnyClusterCommand:
    """Raises ``InvalidRequestError`` for bytes that are no command, naming the field."""
    try:
        command: AnyClusterCommand = _decoder.decode(data)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise InvalidRequestError(f"no cluster command: {error}") from error
    return command
