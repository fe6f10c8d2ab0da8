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
from raftlog.protocol.frame import (
    FAREWELL_CORRELATION_ID,
    STATUS_FAILURE,
    STATUS_OK,
    Frame,
    encode_failure,
    encode_request,
    encode_response,
    farewell,
)
from raftlog.protocol.frame_reader import FrameReader
from raftlog.protocol.handshake import ApiVersionRange
from raftlog.protocol.produce import ProduceRequest
from raftlog.protocol.schema import Failure, Message
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
