"""Message schema: the base class, bounded field types, and typed encoding and decoding.

A message is a msgpack map of named fields, so it is readable in a packet capture. A newer peer can
add fields with defaults, because older peers ignore unknown fields. The field types contain the
bounds: a decoded message satisfies all of them.
"""

from __future__ import annotations

from _thread import allocate_lock
from collections.abc import Sequence
from typing import Annotated, Any, Final, TypeVar

import msgspec
from msgspec import Meta

from raftlog import limits
from raftlog.errors import InvalidRequestError, RaftlogError, from_code
from raftlog.types import Buffer

TopicName = Annotated[str, Meta(min_length=1, max_length=4 * limits.TOPIC_NAME_CHARS_MAX)]
PartitionIndex = Annotated[int, Meta(ge=0, lt=limits.PARTITIONS_PER_TOPIC_MAX)]
PartitionCount = Annotated[int, Meta(ge=1, le=limits.PARTITIONS_PER_TOPIC_MAX)]
WireOffset = Annotated[int, Meta(ge=-1, le=(1 << 63) - 1)]
WireTimestamp = Annotated[int, Meta(ge=-1, le=(1 << 63) - 1)]
WireEpoch = Annotated[int, Meta(ge=-1, le=(1 << 31) - 1)]
ByteCount = Annotated[int, Meta(ge=0, le=limits.FRAME_BYTES_MAX)]
WaitMs = Annotated[int, Meta(ge=0, le=limits.FETCH_WAIT_MS_MAX)]
ConfigKey = Annotated[str, Meta(max_length=256)]
ConfigValue = Annotated[str, Meta(max_length=limits.CONFIG_VALUE_CHARS_MAX)]
ErrorCode = Annotated[int, Meta(ge=-1, le=32_767)]
NodeId = Annotated[int, Meta(ge=0, le=(1 << 31) - 1)]
NodeIds = Annotated[list[NodeId], Meta(max_length=limits.BROKERS_PER_CLUSTER_MAX)]
ClusterId = Annotated[str, Meta(max_length=limits.ID_CHARS_MAX)]  # empty: unknown
DirectoryId = Annotated[str, Meta(min_length=1, max_length=limits.ID_CHARS_MAX)]
TopicId = Annotated[str, Meta(min_length=1, max_length=limits.ID_CHARS_MAX)]
Host = Annotated[str, Meta(max_length=limits.HOST_CHARS_MAX)]
Port = Annotated[int, Meta(ge=0, le=65_535)]
Rack = Annotated[str, Meta(max_length=limits.RACK_CHARS_MAX)]
Counter = Annotated[int, Meta(ge=0, le=(1 << 63) - 1)]  # boots, versions, offsets of logs
BrokerEpoch = Annotated[int, Meta(ge=-1, le=(1 << 63) - 1)]  # -1: not registered yet
Note = Annotated[str, Meta(max_length=limits.ERROR_MESSAGE_CHARS_MAX)]


class Message(msgspec.Struct, frozen=True, omit_defaults=True, gc=False):
    """Base of every request, every response and their parts.

    The garbage collector does not track messages. They are frozen and contain no reference cycles,
    and one request can contain 10,000 of them.
    """


class PartitionRange(Message):
    """Partitions of a topic: those from number ``start``, ``count`` at most."""

    start: Annotated[int, Meta(ge=0, le=limits.PARTITIONS_PER_TOPIC_MAX)]
    count: PartitionCount

    def of(self, partitions: int) -> range:
        """Return the numbers of these in a topic with this number of partitions."""
        return range(min(self.start, partitions), min(self.start + self.count, partitions))


def numbers_of(span: PartitionRange | None, partitions: int) -> range:
    """Return the numbers of the partitions in ``span``; of all ``partitions`` for None."""
    return range(partitions) if span is None else span.of(partitions)


class NoResponse(Message):
    """Placeholder response type of one-way APIs. It is never sent."""


class Failure(Message):
    """An error on the wire: its code, and a human-readable message with the next action."""

    code: ErrorCode
    message: str = ""

    @classmethod
    def of(cls, error: RaftlogError) -> Failure:
        return cls(code=error.code, message=error.wire_text)

    def to_error(self) -> RaftlogError:
        return from_code(self.code, self.message)


MessageT = TypeVar("MessageT", bound=Message)

_encoder = msgspec.msgpack.Encoder()
_decoders: dict[type[Message], msgspec.msgpack.Decoder[Any]] = {}
_making: Final = allocate_lock()


def encode(message: Message) -> bytes:
    """Encode a message. Raises ``InvalidRequestError`` if a text or number is not encodable."""
    try:
        return _encoder.encode(message)
    except (UnicodeEncodeError, OverflowError) as error:
        raise InvalidRequestError(f"{type(message).__name__}: {error}") from error


def decode(data: Buffer, message_type: type[MessageT]) -> MessageT:
    """Decode and validate a message. Raises ``InvalidRequestError`` with the invalid field."""
    decoder = _decoders.get(message_type) or _decoder(message_type)
    try:
        message: MessageT = decoder.decode(data)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise InvalidRequestError(f"{message_type.__name__}: {error}") from error
    return message


def _decoder(message_type: type[Message]) -> msgspec.msgpack.Decoder[Any]:
    """Create the decoder of a type, under a lock that serializes creation in the process.

    msgspec stores information about a type in the type itself while it creates a decoder. If
    another thread decodes with the incomplete information, the process crashes (SIGSEGV).
    """
    with _making:
        decoder = _decoders.get(message_type)
        if decoder is None:
            decoder = _decoders[message_type] = msgspec.msgpack.Decoder(message_type)
        return decoder


# -- attachments -----------------------------------------------------------------------------------
#
# Division of an attachment into the parts given by the ``length`` fields of its message.


def slices(attachment: Buffer, lengths: Sequence[int]) -> list[memoryview]:
    """Return one view per length, in order. ``lengths`` are in bytes.

    Raises ``InvalidRequestError`` if a length is negative, or if the lengths do not add up to the
    size of the attachment.
    """
    view = memoryview(attachment)
    parts = []
    position = 0
    for length in lengths:
        if length < 0:
            raise InvalidRequestError(f"attachment part has a length of {length} bytes")
        parts.append(view[position : position + length])
        position += length
    if position != len(view):
        raise InvalidRequestError(
            f"attachment has {len(view)} bytes, but the lengths in the message add up to {position}"
        )
    return parts
