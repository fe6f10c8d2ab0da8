"""Both sides of a connection as state machines: bytes in, events and bytes out.

All decisions about the state of a connection are in this module. Each side has a ``FrameReader``
and adds the meaning of frames: the match of responses to requests, the requests in flight, and the
response to invalid input. No sockets, no clock, no handlers.

    a broker's connection                        a client's connection
    ---------------------                        ---------------------
    get_buffer(), received(n), resume() return   send(api, message) returns buffers to write
        Request   handle it, then reply()        get_buffer(), received(n) return
        Refusal   write its buffers                  Response   resolve the request
        Broken    write its farewell, close          Broken     close, fail all outstanding

Input from a peer never raises: it becomes an event. ``Broken`` is the last event. The state is then
permanently ERROR, and further input is ignored. Events own their memory, so they stay valid after
the receive buffers are reused.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Sequence
from enum import Enum, auto
from typing import Final, NamedTuple, TypeAlias

from raftlog import limits
from raftlog.errors import (
    BrokerUnavailableError,
    FrameError,
    InvalidRequestError,
    RaftlogError,
    UnsupportedApiError,
    UnsupportedVersionError,
)
from raftlog.protocol import api as apis
from raftlog.protocol import schema
from raftlog.protocol.api import Api
from raftlog.protocol.records import ProduceRequest
from raftlog.protocol.schema import Failure, Message
from raftlog.protocol.security import ApiVersionRange
from raftlog.types import Buffer

# -- state -----------------------------------------------------------------------------------------


class State(Enum):
    """State of a connection. OPEN and PAUSED are active; CLOSED and ERROR are final."""

    OPEN = auto()
    PAUSED = auto()  # broker only: too many requests in flight, the socket must not be read
    CLOSED = auto()  # the stream ended
    ERROR = auto()  # the peer sent invalid data


class _Change(Enum):
    FULL = auto()
    ROOM = auto()
    ENDED = auto()
    BROKE = auto()


# A transition that is not in the table is an internal error and raises KeyError.
_TRANSITIONS: Final[dict[State, dict[_Change, State]]] = {
    State.OPEN: {
        _Change.FULL: State.PAUSED,
        _Change.ROOM: State.OPEN,
        _Change.ENDED: State.CLOSED,
        _Change.BROKE: State.ERROR,
    },
    State.PAUSED: {
        _Change.FULL: State.PAUSED,
        _Change.ROOM: State.OPEN,
        _Change.ENDED: State.CLOSED,
        _Change.BROKE: State.ERROR,
    },
    State.CLOSED: {_Change.ENDED: State.CLOSED},
    State.ERROR: {_Change.ENDED: State.ERROR},
}

# -- events ----------------------------------------------------------------------------------------


class Request(NamedTuple):
    """A valid request. Call exactly one of ``reply()``, ``fail()`` and ``finish()``, once."""

    api: Api
    version: int
    correlation_id: int
    message: Message
    attachment: memoryview
    header_bytes: int = 0  # bytes; size of the encoded message

    @property
    def expects_response(self) -> bool:
        return expects_response(self.message)


class Refusal(NamedTuple):
    """An invalid request, and the response to write. The connection stays open."""

    correlation_id: int
    error: RaftlogError
    buffers: list[Buffer]


class Response(NamedTuple):
    """Response to one request: the response message of its API, or the broker's error."""

    correlation_id: int
    api: Api
    message: Message | RaftlogError
    attachment: memoryview


class Broken(NamedTuple):
    """The connection is unusable. Write ``farewell`` (empty on a client), then close it."""

    error: RaftlogError
    farewell: bytes


ServerEvent: TypeAlias = Request | Refusal | Broken
ClientEvent: TypeAlias = Response | Broken


_ONE_WAY: Final = frozenset(api.request for api in apis.APIS.values() if api.one_way)


def expects_response(message: Message) -> bool:
    """Return False for requests without a response, not even after a failure.

    These are produce requests with ``acks=0`` and all requests of one-way APIs.
    """
    if isinstance(message, ProduceRequest):
        return message.acks != 0
    return type(message) not in _ONE_WAY


# -- both sides ------------------------------------------------------------------------------------

_EMPTY: Final = memoryview(b"")


class _Connection:
    """Base of both sides: a frame reader, and a state that changes by the transition table only."""

    def __init__(self, reader: FrameReader) -> None:
        self._reader = reader
        self._state = State.OPEN

    @property
    def state(self) -> State:
        return self._state

    @property
    def ended(self) -> bool:
        """True in CLOSED and ERROR: no further input or output."""
        return self._state is State.ERROR or self._state is State.CLOSED

    @property
    def in_frame(self) -> bool:
        """True if a frame is incomplete. A peer that then stops sending has stalled."""
        return self._reader.in_frame

    @property
    def bytes_held(self) -> int:
        """Bytes of memory held for unprocessed input; counts for the limit of all connections."""
        return self._reader.bytes_held

    def get_buffer(self, sizehint: int = -1) -> memoryview:
        """Return the buffer for the next input; see ``asyncio.BufferedProtocol``."""
        return self._reader.get_buffer(sizehint)

    def end_of_stream(self) -> FrameError | None:
        """Process the end of the stream. Return an error if it ended inside a frame."""
        error = None if self.ended else self._reader.end_of_stream()
        self._move(_Change.ENDED)
        return error

    def _move(self, change: _Change) -> None:
        self._state = _TRANSITIONS[self._state][change]


def _own(frame: Frame) -> memoryview:
    """Return the frame's attachment in memory that is not reused."""
    if frame.owns_memory:
        return frame.attachment
    return memoryview(bytes(frame.attachment)) if frame.attachment else _EMPTY


def check_header(api: Api, header_bytes: int) -> None:
    """Check the size of a header, in bytes, before it is decoded.

    Raises ``InvalidRequestError`` if it is larger than ``api.header_bytes_max``.
    """
    if header_bytes > api.header_bytes_max:
        raise InvalidRequestError(
            f"header of {header_bytes} bytes exceeds the limit of {api.header_bytes_max} bytes for "
            f"{api.name}. Request fewer topics or partitions at once"
        )


# -- the broker's side -----------------------------------------------------------------------------


class ServerConnectionState(_Connection):
    """Broker side of a connection. It receives requests and sends responses in any order.

    The number of requests in flight is limited. While ``paused``, the caller must not read. After
    each response while ``paused``, it calls ``resume()`` and handles the returned events. It reads
    again when ``paused`` is False.
    """

    def __init__(
        self,
        bytes_max: int = limits.FRAME_BYTES_MAX,
        *,
        scratch: memoryview | None = None,
        requests_in_flight_max: int = limits.REQUESTS_IN_FLIGHT_MAX,
        may_trust: Callable[[], bool] = lambda: False,
    ) -> None:
        """Create the state of a new connection.

        ``bytes_max``: longest frame in bytes. ``scratch``: shared receive buffer, or None.
        ``requests_in_flight_max``: limit at which the connection pauses. ``may_trust``: see
        ``FrameReader``.
        """
        super().__init__(
            FrameReader(
                bytes_max,
                first_bytes_max=limits.FIRST_FRAME_BYTES_MAX,
                may_trust=may_trust,
                scratch=scratch,
            )
        )
        self._in_flight: set[int] = set()  # correlation ids
        self._in_flight_max = requests_in_flight_max

    def permit(self, bytes_max: int) -> None:
        """Accept requests of up to ``bytes_max`` bytes from now on."""
        self._reader.permit(bytes_max)

    @property
    def in_flight(self) -> int:
        """Number of requests without a response so far."""
        return len(self._in_flight)

    @property
    def paused(self) -> bool:
        return self._state is State.PAUSED

    def received(self, count: int) -> list[ServerEvent]:
        """Process ``count`` new bytes in the buffer and return the events."""
        events: list[ServerEvent] = []
        reader = self._reader
        while not self.ended:
            try:
                frames = reader.received(
                    count, frames_max=self._in_flight_max - len(self._in_flight)
                )
            except FrameError as error:
                events.append(self._break(error, reader.first_bytes))
                break
            for frame in frames:
                event = self._event(frame)
                events.append(event)
                if isinstance(event, Broken):
                    return events
            count = 0
            full = len(self._in_flight) >= self._in_flight_max
            self._move(_Change.FULL if full else _Change.ROOM)
            # Refused frames are not in flight, so held-back frames may fit now.
            if reader.error is None and (full or not reader.waiting):
                break
        return events

    def resume(self) -> list[ServerEvent]:
        """Return the held-back events after half of the permitted requests are answered."""
        if len(self._in_flight) > self._in_flight_max // 2:
            return []
        return self.received(0)

    def reply(
        self, request: Request, message: Message, attachment: Sequence[Buffer] = ()
    ) -> list[Buffer]:
        """Return the buffers of the response; none if the connection has ended.

        A response that exceeds the frame limits is replaced by a failure.
        """
        assert isinstance(message, request.api.response), f"{message!r} answers no {request.api}"
        try:
            buffers = encode_response(
                version=request.version,
                correlation_id=request.correlation_id,
                message=message,
                attachment=attachment,
            )
        except InvalidRequestError as error:
            return self.fail(request, error)
        return self._answer(request, buffers)

    def fail(self, request: Request, error: RaftlogError) -> list[Buffer]:
        """Return the buffers of a failure response; none if the connection has ended."""
        buffers = encode_failure(
            version=request.version, correlation_id=request.correlation_id, error=error
        )
        return self._answer(request, buffers)

    def finish(self, request: Request) -> None:
        """Mark a request without a response as processed."""
        assert not request.expects_response
        self._in_flight.remove(request.correlation_id)

    def _answer(self, request: Request, buffers: list[Buffer]) -> list[Buffer]:
        assert request.expects_response, "acks=0 and one-way requests: call finish()"
        assert request.correlation_id in self._in_flight, "response sent twice"
        self._in_flight.discard(request.correlation_id)
        return [] if self.ended else buffers

    def _event(self, frame: Frame) -> ServerEvent:
        correlation_id = frame.correlation_id
        if correlation_id == FAREWELL_CORRELATION_ID:
            return self._break(FrameError(f"correlation ID {correlation_id:#x} is reserved"), b"")
        if correlation_id in self._in_flight:
            return self._break(
                FrameError(f"two requests in flight have the correlation ID {correlation_id}"), b""
            )
        try:
            api = apis.lookup(frame.api_or_status, frame.version)
            check_header(api, len(frame.header))
            message = schema.decode(frame.header, api.request)
        except (UnsupportedApiError, UnsupportedVersionError, InvalidRequestError) as error:
            return Refusal(
                correlation_id,
                error,
                encode_failure(version=frame.version, correlation_id=correlation_id, error=error),
            )
        self._in_flight.add(correlation_id)
        return Request(api, frame.version, correlation_id, message, _own(frame), len(frame.header))

    def _break(self, error: FrameError, first_bytes: bytes) -> Broken:
        self._move(_Change.BROKE)
        return Broken(error, farewell(error, first_bytes))


# -- the client's side -----------------------------------------------------------------------------


class _Sent(NamedTuple):
    api: Api
    version: int


class ClientConnectionState(_Connection):
    """Client side of a connection: assigns correlation IDs and matches responses to requests."""

    def __init__(
        self, bytes_max: int = limits.FRAME_BYTES_MAX, *, scratch: memoryview | None = None
    ) -> None:
        trusted_bytes = limits.FRAME_TRUSTED_BYTES_MAX
        super().__init__(FrameReader(bytes_max, trusted_bytes=trusted_bytes, scratch=scratch))
        self._outstanding: dict[int, _Sent] = {}
        self._next_correlation_id = 0
        self._versions: dict[int, int] | None = None  # API number → version; None: no handshake yet

    def agree(self, ranges: Sequence[ApiVersionRange]) -> None:
        """Store the broker's API versions. Later requests use the highest common version."""
        self._versions = {}
        for spoken in ranges:
            api = apis.APIS.get(spoken.api)
            if api is None:
                continue  # unknown to this client
            version = min(api.version_max, spoken.version_max)
            if version >= max(api.version_min, spoken.version_min):
                self._versions[api.number] = version

    def send(
        self, api: Api, message: Message, attachment: Sequence[Buffer] = ()
    ) -> tuple[int, list[Buffer]]:
        """Return the correlation ID of a new request, and the buffers to write, in order.

        Raises ``BrokerUnavailableError`` if the connection has ended, ``UnsupportedVersionError``
        if there is no common version, and ``InvalidRequestError`` if the request exceeds the frame
        limits. The state is then unchanged.
        """
        assert isinstance(message, api.request), f"{message!r} is no {api.name} request"
        if self.ended:
            raise BrokerUnavailableError("the connection is closed. Open a new one")
        version = self._version(api)
        correlation_id = self._next_correlation_id
        while correlation_id in self._outstanding or correlation_id == FAREWELL_CORRELATION_ID:
            correlation_id = (correlation_id + 1) & 0xFFFF_FFFF
        buffers = encode_request(
            api.number,
            version=version,
            correlation_id=correlation_id,
            message=message,
            attachment=attachment,
        )
        self._next_correlation_id = (correlation_id + 1) & 0xFFFF_FFFF
        if expects_response(message):
            self._outstanding[correlation_id] = _Sent(api, version)
        return correlation_id, buffers

    def received(self, count: int) -> list[ClientEvent]:
        """Process ``count`` new bytes in the buffer and return the events."""
        if self.ended:
            return []
        events: list[ClientEvent] = []
        try:
            frames = self._reader.received(count)
        except FrameError as error:
            return [self._break(error)]
        for frame in frames:
            event = self._event(frame)
            events.append(event)
            if isinstance(event, Broken):
                return events
        if self._reader.error is not None:
            events.append(self._break(self._reader.error))
        return events

    def _version(self, api: Api) -> int:
        if api is apis.API_VERSIONS:
            return (
                api.version_min
            )  # sent before versions are known, so every broker must support it
        if self._versions is None:
            return api.version_max
        version = self._versions.get(api.number)
        if version is None:
            raise UnsupportedVersionError(
                f"this broker supports no version of {api.name} that this client supports "
                f"({api.version_min} to {api.version_max}). Upgrade the older side"
            )
        return version

    def _event(self, frame: Frame) -> ClientEvent:
        status = frame.api_or_status
        correlation_id = frame.correlation_id
        sent = self._outstanding.get(correlation_id)
        try:
            if status == STATUS_FAILURE:
                error = schema.decode(frame.header, Failure).to_error()
                if sent is None:  # a farewell: the failure concerns the connection
                    return self._break(error)
                del self._outstanding[correlation_id]
                return Response(correlation_id, sent.api, error, _EMPTY)
            if status != STATUS_OK:
                return self._break(FrameError(f"response has the unknown status {status}"))
            if sent is None:
                return self._break(FrameError(f"unexpected response to request {correlation_id}"))
            if frame.version != sent.version:
                return self._break(
                    FrameError(
                        f"response has version {frame.version}, but the {sent.api.name} request "
                        f"has version {sent.version}"
                    )
                )
            message = schema.decode(frame.header, sent.api.response)
        except InvalidRequestError as error:
            # The outcome is unknown, so the request stays outstanding and fails with its
            # connection.
            return self._break(FrameError(f"cannot decode the response of the broker: {error}"))
        del self._outstanding[correlation_id]
        return Response(correlation_id, sent.api, message, _own(frame))

    def _break(self, error: RaftlogError) -> Broken:
        self._move(_Change.BROKE)
        return Broken(error, b"")


# -- frame -----------------------------------------------------------------------------------------
#
# Frames: the layout, the encoder, and error messages for invalid frames.
#
# ``FrameReader`` decodes frames from a stream. This module does not interpret messages.


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
    and are valid until the next ``get_buffer()`` of any reader that shares it.
    """

    api_or_status: int
    version: int
    correlation_id: int
    header: memoryview
    attachment: memoryview
    owns_memory: bool = False


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


# -- frame reader ----------------------------------------------------------------------------------
#
# ``FrameReader``: bytes in, complete frames out. It uses no sockets and does not know the APIs.
#
# Its owner is an ``asyncio.BufferedProtocol``, or an object with the same methods: the kernel
# writes into ``get_buffer()``, and ``received(n)`` returns the frames that n bytes complete.


_unpack_from: Final = FRAME.unpack_from


class FrameReader:
    """Frame reader of one direction of a connection. It holds no memory between frames.

    It parses frames in ``scratch``, which all readers of a thread can share: ``received`` copies
    the bytes of an incomplete frame before it returns. An incomplete frame that is larger than
    ``limits.FRAME_SMALL_BYTES_MAX`` gets a separate buffer. ``get_buffer`` then returns the free
    part of that buffer, so that the kernel writes directly into the frame. The buffer grows with
    the number of received bytes, not with the length in the frame.

    ``bytes_max``: longest frame, in bytes. ``first_bytes_max``: the same for the first frame;
    default ``bytes_max``. ``trusted_bytes``: bytes to allocate for a frame before its data arrives,
    for trusted peers; default 0. ``may_trust``: returns whether to allocate as much as the largest
    earlier frame of the peer, up to ``limits.FRAME_TRUSTED_BYTES_MAX``, because growing a buffer
    is more expensive than filling it. ``scratch``: receive buffer; None creates one.
    """

    __slots__ = (
        "_bytes_max",
        "_bytes_max_later",
        "_earned_bytes",
        "_filled",
        "_held",
        "_held_position",
        "_large",
        "_large_total",
        "_may_trust",
        "_scratch",
        "_small_max",
        "_trusted_bytes",
        "_waiting",
        "error",
        "first_bytes",
    )

    def __init__(
        self,
        bytes_max: int = limits.FRAME_BYTES_MAX,
        *,
        first_bytes_max: int | None = None,
        trusted_bytes: int = 0,
        may_trust: Callable[[], bool] = lambda: False,
        scratch: memoryview | None = None,
    ) -> None:
        if scratch is None:
            scratch = memoryview(bytearray(limits.RECEIVE_BYTES))
        assert len(scratch) > FIXED_BYTES and not scratch.readonly
        assert bytes_max <= limits.FRAME_BYTES_MAX
        self._bytes_max = bytes_max if first_bytes_max is None else min(first_bytes_max, bytes_max)
        self._bytes_max_later = bytes_max  # limit after the first complete frame
        self._trusted_bytes = trusted_bytes
        self._may_trust = may_trust
        self._earned_bytes = 0  # largest large frame received so far, within the limit
        self._scratch = scratch
        # Invariant: the held part of an incomplete frame is shorter than the scratch buffer.
        self._small_max = min(limits.FRAME_SMALL_BYTES_MAX, len(scratch))
        self._held = b""
        self._held_position = 0  # not 0 only while waiting
        self._waiting = False
        self._large: bytearray | None = None
        self._large_total = 0  # bytes; final size of the frame in _large
        self._filled = 0  # bytes of _large that have arrived
        self.error: FrameError | None = None  # after it is set, the reader returns no frames
        self.first_bytes = b""  # start of the invalid input

    def permit(self, bytes_max: int) -> None:
        """Accept frames of up to ``bytes_max`` bytes from now on."""
        self._bytes_max = self._bytes_max_later = bytes_max

    @property
    def waiting(self) -> bool:
        """True if ``frames_max`` held back frames. Call ``received(0)`` before the next read."""
        return self._waiting

    @property
    def bytes_held(self) -> int:
        """Bytes of memory of this connection, without the shared scratch buffer."""
        return len(self._held) if self._large is None else len(self._large)

    @property
    def pending_bytes(self) -> int:
        """Number of received bytes that are not part of a returned frame."""
        return len(self._held) - self._held_position if self._large is None else self._filled

    @property
    def in_frame(self) -> bool:
        """True if a frame is incomplete. A peer that then stops sending has stalled."""
        return self.pending_bytes > 0 and not self._waiting

    def get_buffer(self, sizehint: int = -1) -> memoryview:  # noqa: ARG002 - asyncio's signature
        """Return the buffer for the next input. It is never empty."""
        assert not self._waiting, "call received(0) first: held frames occupy the scratch buffer"
        large = self._large
        if large is not None:
            if self._filled == len(large):
                large = self._grow(large)
            return memoryview(large)[self._filled :]
        held = self._held
        if not held:
            return self._scratch
        self._scratch[: len(held)] = held
        return self._scratch[len(held) :]

    def received(self, count: int, *, frames_max: int | None = None) -> list[Frame]:
        """Process ``count`` new bytes and return the complete frames, at most ``frames_max``.

        Raises ``FrameError`` if the bytes are not a valid frame, and on every later call. Valid
        frames before the invalid bytes are returned first, with ``error`` set.
        """
        if self.error is not None:
            raise self.error
        if self._large is not None:
            return self._received_large(self._large, count)
        if count:
            return self._parse(self._scratch, 0, len(self._held) + count, frames_max)
        if self._waiting:
            held = memoryview(self._held)
            return self._parse(held, self._held_position, len(held), frames_max)
        return []

    def end_of_stream(self) -> FrameError | None:
        """Return an error if the stream ended inside a frame, else None."""
        if not self.in_frame:
            return None
        return FrameError(f"the connection ended after {self.pending_bytes} bytes of a frame")

    def _parse(
        self, view: memoryview, position: int, end: int, frames_max: int | None
    ) -> list[Frame]:
        frames: list[Frame] = []
        owns_memory = view is not self._scratch
        bytes_max = self._bytes_max
        self._waiting = False
        while end - position >= FIXED_BYTES:
            length, magic, api_or_status, version, flags, correlation_id, header_length = (
                _unpack_from(view, position)
            )
            if (
                magic != MAGIC
                or flags
                or not LENGTH_MIN + header_length <= length <= bytes_max
                or header_length > limits.FRAME_HEADER_BYTES_MAX
            ):
                return self._break(bytes(view[position : position + FIXED_BYTES]), frames)
            header = position + FIXED_BYTES
            attachment = header + header_length
            following = position + LENGTH_BYTES + length
            if following > end:
                break
            if len(frames) == frames_max:
                self._waiting = True
                break
            frames.append(
                Frame(
                    api_or_status,
                    version,
                    correlation_id,
                    view[header:attachment],
                    view[attachment:following],
                    owns_memory,
                )
            )
            position = following
            bytes_max = self._bytes_max = self._bytes_max_later
        return self._set_aside(view, position, end, frames)

    def _set_aside(
        self, view: memoryview, position: int, end: int, frames: list[Frame]
    ) -> list[Frame]:
        """Copy the rest of ``view``, which other readers may share."""
        if position == end:
            self._hold(b"")
            return frames
        rest = view[position:end]
        if self._waiting:
            if view is self._scratch:
                self._hold(bytes(rest))
            else:
                self._held_position = position
        elif len(rest) < FIXED_BYTES:
            start = bytes(rest)
            if flaw(start, bytes_max=self._bytes_max) is not None:
                return self._break(start, frames)
            self._hold(start)
        else:
            total = LENGTH_BYTES + int.from_bytes(rest[:LENGTH_BYTES], "little")
            room = max(self._trusted(), 2 * len(rest)) if total > self._small_max else 0
            if room >= self._small_max:
                self._begin_large(rest, total, room)
            else:
                self._hold(bytes(rest))
        return frames

    def _hold(self, held: bytes) -> None:
        self._held, self._held_position = held, 0

    def _break(self, start: bytes, frames: list[Frame]) -> list[Frame]:
        problem = flaw(start, bytes_max=self._bytes_max)
        assert problem is not None, "the reader and flaw() disagree"
        self.error = FrameError(problem)
        self.first_bytes = start
        self._hold(b"")
        if frames:
            return frames
        raise self.error

    # -- large frames in a separate buffer

    def _trusted(self) -> int:
        """Return the bytes to allocate before the data of a frame arrives."""
        if self._trusted_bytes or not self._earned_bytes:
            return self._trusted_bytes
        return self._earned_bytes if self._may_trust() else 0

    def _begin_large(self, start: memoryview, total: int, room: int) -> None:
        # guard: memory grows with the received bytes
        large = bytearray(min(total, room))
        memoryview(large)[: len(start)] = start
        self._large, self._large_total, self._filled = large, total, len(start)
        self._hold(b"")

    def _grow(self, large: bytearray) -> bytearray:
        """Double the buffer. Its free part is never larger than the received part."""
        # A new buffer, because the owner may still hold a view of the old one.
        larger = bytearray(min(self._large_total, 2 * len(large)))
        memoryview(larger)[: len(large)] = large
        self._large = larger
        return larger

    def _received_large(self, large: bytearray, count: int) -> list[Frame]:
        self._filled += count
        assert self._filled <= len(large), "received more bytes than get_buffer() returned"
        if self._filled < self._large_total:
            return []
        self._large, self._filled = None, 0
        self._bytes_max = self._bytes_max_later
        self._earned_bytes = min(
            max(self._earned_bytes, self._large_total), limits.FRAME_TRUSTED_BYTES_MAX
        )
        _, _, api_or_status, version, _, correlation_id, header_length = _unpack_from(large)
        view = memoryview(large).toreadonly()
        attachment = FIXED_BYTES + header_length
        header = view[FIXED_BYTES:attachment]
        return [Frame(api_or_status, version, correlation_id, header, view[attachment:], True)]
