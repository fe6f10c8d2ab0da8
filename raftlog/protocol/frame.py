"""Frames: the layout, the encoder, and error messages for invalid frames.

``frame_reader`` decodes frames from a stream. This module does not interpret messages.
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

# Layout for both directions, little-endian. `length` counts the bytes after itself.
#
#   0        4       6               8         10      12               16              20
#   | length | magic | api or status | version | flags | correlation_id | header_length |
#   | u32    | u16   | u16           | u16     | u16   | u32            | u32           |
#   | header .......... | attachment .......... |
#
#   magic           "RL" on the wire: invalid input is detected after six bytes
#   api, status     in a request the API number; in a response 0 if the header is the API's
#                   response message, 1 if it is a Failure
#   version         of the API; a response repeats the version of its request
#   flags           reserved; must be 0
#   correlation_id  set by the client, repeated in the response; 0xFFFFFFFF is the broker's
#                   farewell, a Failure of the whole connection
#   header          msgpack, see raftlog.protocol.schema
#   attachment      concatenated record batches, in produce requests and fetch responses
FRAME: Final = struct.Struct("<IHHHHII")
assert FRAME.size == 20, "FRAME differs from the documented layout"

MAGIC_BYTES: Final = b"RL"
MAGIC: Final = int.from_bytes(MAGIC_BYTES, "little")
STATUS_OK: Final = 0
STATUS_FAILURE: Final = 1
FAREWELL_CORRELATION_ID: Final = 0xFFFF_FFFF

FIXED_BYTES: Final = FRAME.size
LENGTH_BYTES: Final = 4  # size of the length field, which does not count itself
LENGTH_MIN: Final = FIXED_BYTES - LENGTH_BYTES  # `length` of an empty frame
_MAGIC_END: Final = LENGTH_BYTES + len(MAGIC_BYTES)


class Frame(NamedTuple):
    """One complete frame. ``header`` and ``attachment`` are views.

    With ``owns_memory``, the views stay valid. Without it, they refer to the shared scratch buffer
    and are valid until the next ``get_buffer()`` of any reader that shares it. Call ``keep()`` to
    use the frame longer.
    """

    api_or_status: int
    version: int
    correlation_id: int
    header: memoryview
    attachment: memoryview
    owns_memory: bool = False

    def keep(self) -> Frame:
        """Return this frame with its own copy of the memory."""
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
    """Return the buffers of a request, to be written in order. Does not copy the attachment.

    Raises ``InvalidRequestError`` if the request exceeds the frame limits.
    """
    return _encode(api, version, correlation_id, message, attachment)


def encode_response(
    *,
    version: int,
    correlation_id: int,
    message: Message,
    attachment: Sequence[Buffer] = (),
) -> list[Buffer]:
    """Return the buffers of a successful response. Does not copy the attachment.

    Raises ``InvalidRequestError`` if the response exceeds the frame limits.
    """
    return _encode(STATUS_OK, version, correlation_id, message, attachment)


def encode_failure(*, version: int, correlation_id: int, error: RaftlogError) -> list[Buffer]:
    """Return the buffers of a failure response."""
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
            f"{type(message).__name__} has {length} bytes, {len(header)} of them in its header. "
            f"This exceeds FRAME_BYTES_MAX ({limits.FRAME_BYTES_MAX}) or FRAME_HEADER_BYTES_MAX "
            f"({limits.FRAME_HEADER_BYTES_MAX}). Request fewer topics or partitions at once"
        )
    fixed = FRAME.pack(length, MAGIC, api_or_status, version, 0, correlation_id, len(header))
    return [fixed + header, *attachment]


# -- invalid frames --------------------------------------------------------------------------------

_HTTP_METHODS: Final = tuple(
    method.encode("ascii")
    for method in ("GET ", "POST", "HEAD", "PUT ", "OPTI", "DELE", "PATC", "CONN", "TRAC", "PRI ")
)
_NO_HTTP: Final = (
    "this port uses the raftlog protocol, not HTTP. Connect with a raftlog client, for example "
    "`raftlog topic list`"
)
_NO_TLS: Final = (
    "this broker does not use TLS on this port. Set security_protocol='PLAINTEXT' on the client, "
    "or tls.certificate.file on the broker"
)
_TLS: Final = (
    "a TLS server is at this address. If it is a raftlog broker, set security_protocol='SSL' and "
    "ssl_cafile"
)
_STRANGERS: Final[tuple[tuple[tuple[bytes, ...], str], ...]] = (
    (_HTTP_METHODS, _NO_HTTP),
    ((b"HTTP",), "an HTTP server is at this address, not a raftlog broker. Check host and port"),
    ((b"\x16\x03",), _NO_TLS),
    ((b"\x15\x03",), _TLS),
)


def flaw(start: bytes, *, bytes_max: int) -> str | None:
    """Return why the ``start`` of a frame is invalid, or None if it is valid so far.

    ``bytes_max``: longest permitted frame, in bytes.
    """
    if len(start) < LENGTH_BYTES:
        return None
    magic = start[LENGTH_BYTES:_MAGIC_END]
    # An HTTP method read as a length exceeds every limit, so four bytes are sufficient.
    if magic != MAGIC_BYTES[: len(magic)] or start.startswith(_HTTP_METHODS):
        for prefixes, sentence in _STRANGERS:
            if start.startswith(prefixes):
                return sentence
        return (
            f"the bytes are not a raftlog frame: they start with {start.hex(' ')}. Connect with a "
            "raftlog client"
        )
    if len(start) < _MAGIC_END:
        return None
    length = int.from_bytes(start[:LENGTH_BYTES], "little")
    if length > bytes_max:
        return (
            f"frame of {length} bytes exceeds the limit of {bytes_max} (FRAME_BYTES_MAX, or the "
            "broker's socket.request.max.bytes; FIRST_FRAME_BYTES_MAX for the first request of a "
            "connection, which must be api_versions). Send smaller batches"
        )
    if length < LENGTH_MIN:
        return f"frame of {length} bytes is shorter than the minimum of {LENGTH_MIN}"
    return _flaw_behind_length(start, length) if len(start) >= FIXED_BYTES else None


def _flaw_behind_length(start: bytes, length: int) -> str | None:
    _, _, _, _, flags, _, header_length = FRAME.unpack_from(start)
    if flags:
        return f"frame has the reserved flags {flags:#06x}. Upgrade the older side"
    if header_length > limits.FRAME_HEADER_BYTES_MAX:
        return (
            f"frame header of {header_length} bytes exceeds the limit of "
            f"{limits.FRAME_HEADER_BYTES_MAX} (FRAME_HEADER_BYTES_MAX)"
        )
    if header_length > length - LENGTH_MIN:
        return (
            f"frame header of {header_length} bytes does not fit into the "
            f"{length - LENGTH_MIN} bytes after the fixed part"
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
    """Return the final output of a broker before it closes an unusable connection.

    If ``first_bytes`` are an HTTP request, it is an HTTP response, so that a browser or curl shows
    the reason.
    """
    if first_bytes.startswith(_HTTP_METHODS):
        return _HTTP_ANSWER
    return b"".join(encode_failure(version=0, correlation_id=FAREWELL_CORRELATION_ID, error=error))
