"""The two sides of a connection as state machines: bytes in, events and bytes out.

Rule: all that decides what a connection may do next is in this file. Each side has a
``FrameReader`` and adds what the frames mean: which request a response answers, which requests
await an answer, what a peer that sends something wrong is told. No sockets, no clock, no handlers.

    a broker's connection                        a client's connection
    ---------------------                        ---------------------
    get_buffer(), received(n), resume() give     send(api, message) gives buffers to write
        Request   handle it, then reply()        get_buffer(), received(n) give
        Refusal   write its buffers                  Response   resolve the request
        Broken    write its farewell, close          Broken     close, fail all outstanding

Nothing that a peer sends raises here: it comes out as an event. ``Broken`` is the last one ever:
the state is then ERROR for good, and what still arrives is ignored. Events own their memory, so
they may outlive the buffers that they came through.
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
    """A connection lives in OPEN and PAUSED, and ends in CLOSED or ERROR, which are final."""

    OPEN = auto()
    PAUSED = auto()  # broker only: as many requests are in flight as may be; read no more
    CLOSED = auto()  # the stream ended
    ERROR = auto()  # the peer sent what cannot be


class _Change(Enum):
    FULL = auto()
    ROOM = auto()
    ENDED = auto()
    BROKE = auto()


# What is not in the table cannot happen: looking it up is our mistake, and raises KeyError.
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
    """A request that its API allows. ``reply()`` to it, ``fail()`` it or ``finish()`` it, once."""

    api: Api
    version: int
    correlation_id: int
    message: Message
    attachment: memoryview
    header_bytes: int = 0  # that the message came in

    @property
    def expects_response(self) -> bool:
        return expects_response(self.message)


class Refusal(NamedTuple):
    """A request that could not be understood, and the answer to it. The connection goes on."""

    correlation_id: int
    error: RaftlogError
    buffers: list[Buffer]


class Response(NamedTuple):
    """The answer to one request: its API's response message, or the error that the broker gave."""

    correlation_id: int
    api: Api
    message: Message | RaftlogError
    attachment: memoryview


class Broken(NamedTuple):
    """The connection cannot go on. Write ``farewell`` (empty on a client) and close."""

    error: RaftlogError
    farewell: bytes


ServerEvent: TypeAlias = Request | Refusal | Broken
ClientEvent: TypeAlias = Response | Broken


_ONE_WAY: Final = frozenset(api.request for api in apis.APIS.values() if api.one_way)


def expects_response(message: Message) -> bool:
    """False for what is never answered, not even if it fails.

    That is a produce request with ``acks=0``, and every request of an API that is one way.
    """
    if isinstance(message, ProduceRequest):
        return message.acks != 0
    return type(message) not in _ONE_WAY


# -- both sides ------------------------------------------------------------------------------------

_EMPTY: Final = memoryview(b"")


class _Connection:
    """What the two sides share: a reader, and a state that only the table above moves."""

    def __init__(self, reader: FrameReader) -> None:
        self._reader = reader
        self._state = State.OPEN

    @property
    def state(self) -> State:
        return self._state

    @property
    def ended(self) -> bool:
        """CLOSED or ERROR: nothing more comes in or goes out."""
        return self._state is State.ERROR or self._state is State.CLOSED

    @property
    def in_frame(self) -> bool:
        """Part of a frame has come: a peer that is silent now has stalled in the middle of it."""
        return self._reader.in_frame

    @property
    def bytes_held(self) -> int:
        """Memory that bytes not yet handed out take, for the bound over all connections."""
        return self._reader.bytes_held

    def get_buffer(self, sizehint: int = -1) -> memoryview:
        """Where to write what arrives next; see ``asyncio.BufferedProtocol``."""
        return self._reader.get_buffer(sizehint)

    def end_of_stream(self) -> FrameError | None:
        """The peer has closed: an error if that was in the middle of a frame."""
        error = None if self.ended else self._reader.end_of_stream()
        self._move(_Change.ENDED)
        return error

    def _move(self, change: _Change) -> None:
        self._state = _TRANSITIONS[self._state][change]


def _own(frame: Frame) -> memoryview:
    """The frame's attachment in memory that stays as it is."""
    if frame.owns_memory:
        return frame.attachment
    return memoryview(bytes(frame.attachment)) if frame.attachment else _EMPTY


def check_header(api: Api, header_bytes: int) -> None:
    """Raise ``InvalidRequestError`` for a header that is not worth decoding: see ``Api``."""
    if header_bytes > api.header_bytes_max:
        raise InvalidRequestError(
            f"a header of {header_bytes} bytes is over the {api.header_bytes_max} that {api.name} "
            "may have; ask for fewer topics or partitions at once"
        )


# -- the broker's side -----------------------------------------------------------------------------


class ServerConnectionState(_Connection):
    """Requests in, answers out, in any order, and at most so many in flight at a time.

    When ``paused``, stop reading. After every answer while ``paused``, call ``resume()`` and handle
    the events that it gives; read again when ``paused`` is over.
    """

    def __init__(
        self,
        bytes_max: int = limits.FRAME_BYTES_MAX,
        *,
        scratch: memoryview | None = None,
        requests_in_flight_max: int = limits.REQUESTS_IN_FLIGHT_MAX,
        may_trust: Callable[[], bool] = lambda: False,
    ) -> None:
        """``may_trust``: see ``FrameReader``."""
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

    @property
    def in_flight(self) -> int:
        """Requests handed out and not yet answered."""
        return len(self._in_flight)

    @property
    def paused(self) -> bool:
        return self._state is State.PAUSED

    def received(self, count: int) -> list[ServerEvent]:
        """What ``count`` new bytes in the buffer amount to."""
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
            # Frames that were refused took no room: there may be some for those held back.
            if reader.error is None and (full or not reader.waiting):
                break
        return events

    def resume(self) -> list[ServerEvent]:
        """What was held back, once half of what may be in flight has been answered."""
        if len(self._in_flight) > self._in_flight_max // 2:
            return []
        return self.received(0)

    def reply(
        self, request: Request, message: Message, attachment: Sequence[Buffer] = ()
    ) -> list[Buffer]:
        """The buffers of the answer; none when the connection has ended.

        An answer over the limits of a frame becomes a failure that says so.
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
        """The buffers of an answer that says what went wrong; none if the connection has ended."""
        buffers = encode_failure(
            version=request.version, correlation_id=request.correlation_id, error=error
        )
        return self._answer(request, buffers)

    def finish(self, request: Request) -> None:
        """A request that expects no response has been dealt with."""
        assert not request.expects_response
        self._in_flight.remove(request.correlation_id)

    def _answer(self, request: Request, buffers: list[Buffer]) -> list[Buffer]:
        assert request.expects_response, "acks=0 and one way are never answered: finish() it"
        assert request.correlation_id in self._in_flight, "answered twice, or elsewhere"
        self._in_flight.discard(request.correlation_id)
        return [] if self.ended else buffers

    def _event(self, frame: Frame) -> ServerEvent:
        correlation_id = frame.correlation_id
        if correlation_id == FAREWELL_CORRELATION_ID:
            return self._break(FrameError(f"correlation id {correlation_id:#x} is reserved"), b"")
        if correlation_id in self._in_flight:
            return self._break(
                FrameError(f"two requests in flight have the correlation id {correlation_id}"), b""
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
    """Requests out, answers in: gives correlation ids and matches responses to them."""

    def __init__(
        self, bytes_max: int = limits.FRAME_BYTES_MAX, *, scratch: memoryview | None = None
    ) -> None:
        trusted_bytes = limits.FRAME_TRUSTED_BYTES_MAX
        super().__init__(FrameReader(bytes_max, trusted_bytes=trusted_bytes, scratch=scratch))
        self._outstanding: dict[int, _Sent] = {}
        self._next_correlation_id = 0
        self._versions: dict[int, int] | None = None  # API number → version; None: not yet agreed

    def agree(self, ranges: Sequence[ApiVersionRange]) -> None:
        """Take what the broker speaks: from now on the highest version that both do is sent."""
        self._versions = {}
        for spoken in ranges:
            api = apis.APIS.get(spoken.api)
            if api is None:
                continue  # newer than this client, which therefore never asks for it
            version = min(api.version_max, spoken.version_max)
            if version >= max(api.version_min, spoken.version_min):
                self._versions[api.number] = version

    def send(
        self, api: Api, message: Message, attachment: Sequence[Buffer] = ()
    ) -> tuple[int, list[Buffer]]:
        """The new request's correlation id, and the buffers to write, in order.

        Raises, with nothing changed: ``BrokerUnavailableError`` when the connection has ended,
        ``UnsupportedVersionError`` when the broker speaks no version of it that this side does,
        ``InvalidRequestError`` when it does not fit a frame.
        """
        assert isinstance(message, api.request), f"{message!r} is no {api.name} request"
        if self.ended:
            raise BrokerUnavailableError("the connection has ended: open a new one")
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
        """What ``count`` new bytes in the buffer amount to."""
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
            )  # asked before anything is agreed, so every broker speaks it for ever
        if self._versions is None:
            return api.version_max
        version = self._versions.get(api.number)
        if version is None:
            raise UnsupportedVersionError(
                f"this broker speaks no version of {api.name} that this client does "
                f"({api.version_min} to {api.version_max}); upgrade the older side"
            )
        return version

    def _event(self, frame: Frame) -> ClientEvent:
        status = frame.api_or_status
        correlation_id = frame.correlation_id
        sent = self._outstanding.get(correlation_id)
        try:
            if status == STATUS_FAILURE:
                error = schema.decode(frame.header, Failure).to_error()
                if sent is None:  # a farewell, or the like: it concerns the connection as a whole
                    return self._break(error)
                del self._outstanding[correlation_id]
                return Response(correlation_id, sent.api, error, _EMPTY)
            if status != STATUS_OK:
                return self._break(FrameError(f"an answer of the unknown status {status}"))
            if sent is None:
                return self._break(
                    FrameError(f"an answer to request {correlation_id}, which awaits none")
                )
            if frame.version != sent.version:
                return self._break(
                    FrameError(
                        f"an answer in version {frame.version} to {sent.api.name} "
                        f"version {sent.version}"
                    )
                )
            message = schema.decode(frame.header, sent.api.response)
        except InvalidRequestError as error:
            # What the broker did is in those bytes: the outcome is unknown, so the request stays
            # outstanding and shares the fate of its connection.
            return self._break(FrameError(f"an answer from the broker cannot be read: {error}"))
        del self._outstanding[correlation_id]
        return Response(correlation_id, sent.api, message, _own(frame))

    def _break(self, error: RaftlogError) -> Broken:
        self._move(_Change.BROKE)
        return Broken(error, b"")
