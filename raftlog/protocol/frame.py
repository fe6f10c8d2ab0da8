"""Frames: the drawing, the encoder, and what is wrong with bytes that are no frame.

Nothing here knows what a message means, and nothing waits for bytes: ``frame_reader`` does.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from typing import Final, NamedTuple

from raftlog import limits
from raftlog.errors import InvalidRequestError, RaftlogError
from raftlog.protocol import schema
from raftlog.protocol.schema import Failure, Message
from raftlog.types import Buffer

# One drawing for both directions, little-endian. `length` counts the bytes after itself.
#
#   0        4       6               8         10      12               16              20
#   | length | magic | api or status | version | flags | correlation_id | header_length |
#   | u32    | u16   | u16           | u16     | u16   | u32            | u32           |
#   | header .......... | attachment .......... |
#
#   magic           "RL" as it lies on the wire: garbage is recognised by its sixth byte
#   api, status     in a request the API's number; in a response 0 when the header is the API's
#                   response message, 1 when it is a Failure
#   version         of the API; a response repeats its request's
#   flags           reserved: anything but 0 is refused
#   correlation_id  chosen by the client, repeated by the response; 0xFFFFFFFF is the broker's
#                   farewell, a Failure of the connection as a whole
#   header          msgpack, as raftlog.protocol.schema has it
#   attachment      record batches, back to back, in produce requests and fetch responses
FRAME: Final = struct.Struct("<IHHHHII")
assert FRAME.size == 20, "the drawing above and the code disagree"

MAGIC_BYTES: Final = b"RL"
MAGIC: Final = int.from_bytes(MAGIC_BYTES, "little")
STATUS_OK: Final = 0
STATUS_FAILURE: Final = 1
FAREWELL_CORRELATION_ID: Final = 0xFFFF_FFFF

FIXED_BYTES: Final = FRAME.size
LENGTH_BYTES: Final = 4  # of the length field, which does not count itself
LENGTH_MIN: Final = FIXED_BYTES - LENGTH_BYTES  # what `length` is with nothing in the frame
_MAGIC_END: Final = LENGTH_BYTES + len(MAGIC_BYTES)


class Frame(NamedTuple):
    """One whole frame. ``header`` and ``attachment`` are views.

    With ``owns_memory`` they are this frame's own and stay as they are. Without, they show the
    scratch that the frame was read into, and are valid until the next ``get_buffer()`` of any
    reader that shares it: be done with them by then, or ``keep()`` the frame.
    """

    api_or_status: int
    version: int
    correlation_id: int
    header: memoryview
    attachment: memoryview
    owns_memory: bool = False

    def keep(self) -> Frame:
        """This frame in memory of its own."""
        if self.owns_memory:
            return self
        return self._replace(
            header=memoryview(bytes(self.header)),
            attachment=memoryview(bytes(self.attachment)),
            owns_memory=True,
        )


# -- encoding --------------------------------------------------------------------------------------


def encode_request(
    api: int,
    *,
    version: int,
    correlation_id: int,
    message: Message,
    attachment: Sequence[Buffer] = (),
) -> list[Buffer]:
    """The buffers of one request, to be written in order. The attachment's are not copied."""
    return _encode(api, version, correlation_id, message, attachment)


def encode_response(
    *,
    version: int,
    correlation_id: int,
    message: Message,
    attachment: Sequence[Buffer] = (),
) -> list[Buffer]:
    """The buffers of one successful response. The attachment's are not copied."""
    return _encode(STATUS_OK, version, correlation_id, message, attachment)


def encode_failure(*, version: int, correlation_id: int, error: RaftlogError) -> list[Buffer]:
    """The buffers of a response that says why there is no answer."""
    return _encode(STATUS_FAILURE, version, correlation_id, Failure.of(error), ())


def _encode(
    api_or_status: int,
    version: int,
    correlation_id: int,
    message: Message,
    attachment: Sequence[Buffer],
) -> list[Buffer]:
    header = schema.encode(message)
    length = LENGTH_MIN + len(header)
    for part in attachment:
        length += part.nbytes if isinstance(part, memoryview) else len(part)
    if len(header) > limits.FRAME_HEADER_BYTES_MAX or length > limits.FRAME_BYTES_MAX:
        raise InvalidRequestError(
            f"{type(message).__name__} takes {length} bytes, {len(header)} of them in its header: "
            f"over FRAME_BYTES_MAX ({limits.FRAME_BYTES_MAX}) or FRAME_HEADER_BYTES_MAX "
            f"({limits.FRAME_HEADER_BYTES_MAX}); ask for fewer topics or partitions at once"
        )
    fixed = FRAME.pack(length, MAGIC, api_or_status, version, 0, correlation_id, len(header))
    return [fixed + header, *attachment]


# -- bytes that are no frame -----------------------------------------------------------------------

_HTTP_METHODS: Final = tuple(
    method.encode("ascii")
    for method in ("GET ", "POST", "HEAD", "PUT ", "OPTI", "DELE", "PATC", "CONN", "TRAC", "PRI ")
)
_NO_HTTP: Final = (
    "this port speaks the raftlog protocol, not HTTP; connect with a raftlog client, for example "
    "`raftlog topic list`"
)
_STRANGERS: Final[tuple[tuple[tuple[bytes, ...], str], ...]] = (
    (_HTTP_METHODS, _NO_HTTP),
    ((b"HTTP",), "an HTTP server is at this address, not a raftlog broker; check host and port"),
    ((b"\x16\x03",), "this port has no TLS; connect without it"),
    ((b"\x15\x03",), "a TLS server is at this address, not a raftlog broker; check host and port"),
)


def flaw(start: bytes, *, bytes_max: int) -> str | None:
    """What is wrong with the ``start`` of a frame, judged by as many of its bytes as have come."""
    if len(start) < LENGTH_BYTES:
        return None
    magic = start[LENGTH_BYTES:_MAGIC_END]
    # An HTTP method read as a length is over every limit, so four bytes are enough to tell.
    if magic != MAGIC_BYTES[: len(magic)] or start.startswith(_HTTP_METHODS):
        for prefixes, sentence in _STRANGERS:
            if start.startswith(prefixes):
                return sentence
        return (
            f"the bytes are no raftlog frame: they start with {start.hex(' ')}; connect with a "
            "raftlog client"
        )
    if len(start) < _MAGIC_END:
        return None
    length = int.from_bytes(start[:LENGTH_BYTES], "little")
    if length > bytes_max:
        return (
            f"a frame of {length} bytes is over the limit of {bytes_max} (FRAME_BYTES_MAX, or the "
            "broker's socket.request.max.bytes; FIRST_FRAME_BYTES_MAX for a connection's first "
            "request, which api_versions is to be); send smaller batches"
        )
    if length < LENGTH_MIN:
        return f"a frame of {length} bytes is shorter than the {LENGTH_MIN} that every frame has"
    return _flaw_behind_length(start, length) if len(start) >= FIXED_BYTES else None


def _flaw_behind_length(start: bytes, length: int) -> str | None:
    _, _, _, _, flags, _, header_length = FRAME.unpack_from(start)
    if flags:
        return f"a frame with the flags {flags:#06x}, which are reserved; upgrade the older side"
    if header_length > limits.FRAME_HEADER_BYTES_MAX:
        return (
            f"a frame's header of {header_length} bytes is over the limit of "
            f"{limits.FRAME_HEADER_BYTES_MAX} (FRAME_HEADER_BYTES_MAX)"
        )
    if header_length > length - LENGTH_MIN:
        return (
            f"a frame's header of {header_length} bytes does not fit the "
            f"{length - LENGTH_MIN} bytes that its frame has for it"
        )
    return None


_HTTP_BODY: Final = f"{_NO_HTTP}\n".encode("ascii")
_HTTP_ANSWER: Final = (
    b"HTTP/1.1 400 Bad Request\r\n"
    b"Content-Type: text/plain; charset=utf-8\r\n"
    b"Content-Length: %d\r\n"
    b"Connection: close\r\n"
    b"\r\n"
    b"%s"
) % (len(_HTTP_BODY), _HTTP_BODY)


def farewell(error: RaftlogError, first_bytes: bytes = b"") -> bytes:
    """What a broker writes before it closes a connection that cannot go on.

    A peer whose ``first_bytes`` are HTTP gets HTTP, so that a browser or curl shows the reason.
    """
    if first_bytes.startswith(_HTTP_METHODS):
        return _HTTP_ANSWER
    return b"".join(encode_failure(version=0, correlation_id=FAREWELL_CORRELATION_ID, error=error))
