"""What every message is made of: the base class, bounded field types, and typed encode/decode.

A message is a msgpack map of named fields, so that it explains itself in a capture and a newer peer
may add fields (with defaults) without breaking an older one, which ignores what it does not know.
Bounds stand in the field types: a message that decodes is inside all of them.
"""

from __future__ import annotations

from _thread import allocate_lock
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
ClusterId = Annotated[str, Meta(max_length=limits.ID_CHARS_MAX)]  # empty: not known yet
DirectoryId = Annotated[str, Meta(min_length=1, max_length=limits.ID_CHARS_MAX)]
TopicId = Annotated[str, Meta(min_length=1, max_length=limits.ID_CHARS_MAX)]
Host = Annotated[str, Meta(max_length=limits.HOST_CHARS_MAX)]
Port = Annotated[int, Meta(ge=0, le=65_535)]
Rack = Annotated[str, Meta(max_length=limits.RACK_CHARS_MAX)]
Counter = Annotated[int, Meta(ge=0, le=(1 << 63) - 1)]  # boots, versions, offsets of logs
BrokerEpoch = Annotated[int, Meta(ge=-1, le=(1 << 63) - 1)]  # -1: not registered yet
Note = Annotated[str, Meta(max_length=limits.ERROR_MESSAGE_CHARS_MAX)]


class Message(msgspec.Struct, frozen=True, omit_defaults=True, gc=False):
    """Base of every request, response and part of one.

    The garbage collector does not track messages: frozen and decoded from bytes, they are in no
    cycles, and a request may be made of 10,000 of them.
    """


class NoResponse(Message):
    """In the place of a response in the row of an API that has none: it is never on the wire."""


class Failure(Message):
    """An error as it travels: its code, and a sentence for people that says what to do next."""

    code: ErrorCode
    message: str = ""

    @classmethod
    def of(cls, error: RaftlogError) -> Failure:
        # A path that is no text has surrogates in it, which no encoder takes.
        message = str(error)[: limits.ERROR_MESSAGE_CHARS_MAX].encode("utf-8", "replace")
        return cls(code=error.code, message=message.decode("utf-8"))

    def to_error(self) -> RaftlogError:
        return from_code(self.code, self.message)


MessageT = TypeVar("MessageT", bound=Message)

_encoder = msgspec.msgpack.Encoder()
_decoders: dict[type[Message], msgspec.msgpack.Decoder[Any]] = {}
_making: Final = allocate_lock()


def encode(message: Message) -> bytes:
    """Raises ``InvalidRequestError`` for a text or number that the wire cannot carry."""
    try:
        return _encoder.encode(message)
    except (UnicodeEncodeError, OverflowError) as error:
        raise InvalidRequestError(f"{type(message).__name__}: {error}") from error


def decode(data: Buffer, message_type: type[MessageT]) -> MessageT:
    """Decode and validate; raises ``InvalidRequestError`` naming the field that is wrong."""
    decoder = _decoders.get(message_type) or _decoder(message_type)
    try:
        message: MessageT = decoder.decode(data)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise InvalidRequestError(f"{message_type.__name__}: {error}") from error
    return message


def _decoder(message_type: type[Message]) -> msgspec.msgpack.Decoder[Any]:
    """Make the decoder, one at a time in a process.

    What msgspec learns of a type it keeps with the type, as it goes: another thread that decodes
    with what is there by then ends the process (SIGSEGV).
    """
    with _making:
        decoder = _decoders.get(message_type)
        if decoder is None:
            decoder = _decoders[message_type] = msgspec.msgpack.Decoder(message_type)
        return decoder
