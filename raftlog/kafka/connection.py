"""A broker's side of a Kafka connection as a state machine: bytes in, requests and bytes out.

Responses are sent in the order of the requests, as Kafka's clients require: a response that is
ready early waits for those before it. Input raises no exception: invalid input becomes
``KafkaBroken``, the last event. It has a response if the API and version of the request are known,
and responses of that version have an error of the request as a whole. Otherwise Kafka's protocol
has no place for the reason.

After a SaslHandshake of version 0, the messages of the mechanism are frames without a header, until
the client has authenticated. Each becomes a SaslAuthenticate request, and its response such a
frame; none if the exchange has failed: the connection must then be closed.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import Final, NamedTuple, TypeAlias

from raftlog import limits
from raftlog.kafka import api as apis
from raftlog.kafka import codec, errors
from raftlog.kafka.api import Api
from raftlog.kafka.codec import READ_ERRORS, BadMessageError, Message, Pieces, finish
from raftlog.types import Buffer

TOKEN: Final = -1  # in place of the version of a request
_EMPTY: Final = memoryview(b"")
PIECES_PER_STEP: Final = 1_024  # pieces of a response that are joined in one step


class KafkaRequest(NamedTuple):
    """A valid request. Call exactly one of ``reply()`` and ``finish()``, once.

    ``asked_version``: the version that the client sent. It differs from ``version`` only for an
    ApiVersions request of a version that is not served, and is ``TOKEN`` for a message of a SASL
    mechanism that was not a request.
    """

    api: Api
    version: int
    correlation_id: int
    client_id: str
    message: Message
    attachment: memoryview  # the request's bytes: its records are views of them
    header_bytes: int
    asked_version: int
    number: int  # of the request on its connection

    @property
    def expects_response(self) -> bool:
        """Whether the request has a response: a produce request with ``acks=0`` has none."""
        return self.api is not apis.PRODUCE or self.message.acks != 0


class KafkaUnread(NamedTuple):
    """A long request that is not decoded yet. ``read`` decodes it in steps and returns it. It
    raises ``BadMessageError`` if the request is invalid: handle ``broken`` of the error then.
    """

    size_bytes: int
    read: Pieces[KafkaRequest]
    request: KafkaRequest  # without its message

    def broken(self, error: BadMessageError) -> KafkaBroken:
        return _broken(error, self.request)


class KafkaBroken(NamedTuple):
    """The client sent invalid data. Close the connection, after ``reply(*answer)`` if there is an
    answer: a request without its message, and the response.
    """

    error: BadMessageError
    answer: tuple[KafkaRequest, Message] | None = None


KafkaEvent: TypeAlias = KafkaRequest | KafkaUnread | KafkaBroken


class KafkaConnectionState:
    """The state of a connection. The number of requests in flight is limited.

    While ``paused``, the caller must not read. After each response while ``paused``, it calls
    ``resume()`` and handles the returned events.
    """

    def __init__(
        self,
        bytes_max: int = limits.FRAME_BYTES_MAX,
        *,
        scratch: memoryview,
        requests_in_flight_max: int = limits.KAFKA_REQUESTS_IN_FLIGHT_MAX,
        may_trust: Callable[[], bool] = lambda: False,
        is_authenticated: Callable[[], bool] = lambda: False,
    ) -> None:
        """Create the state of a new connection; arguments as for ``FrameReader``."""
        self._is_authenticated = is_authenticated
        self._takes_tokens = False  # until the client has authenticated
        self._reader = codec.FrameReader(bytes_max, scratch=scratch, may_trust=may_trust)
        self._in_flight_max = requests_in_flight_max
        self._next_number = 0
        self._waiting: deque[list[Buffer] | None] = deque()  # responses; None: not ready
        self._first = 0  # number of the first waiting response
        self._ready_bytes = 0
        self._ended = False
        self._is_broken = False  # no input is processed, and responses are sent
        self.paused = False

    def permit(self, bytes_max: int) -> None:
        """Accept requests of up to ``bytes_max`` bytes from now on."""
        self._reader.permit(bytes_max)

    @property
    def in_flight(self) -> int:
        """Number of requests whose responses were not sent yet."""
        return len(self._waiting)

    @property
    def in_frame(self) -> bool:
        """Whether a request is incomplete."""
        return self._reader.in_frame

    @property
    def bytes_held(self) -> int:
        """Bytes of memory for incomplete requests, and for responses that wait for others."""
        return self._reader.bytes_held + self._ready_bytes

    def get_buffer(self, sizehint: int = -1) -> memoryview:  # noqa: ARG002 - asyncio's signature
        """Return the buffer for the next input; see ``asyncio.BufferedProtocol``."""
        return self._reader.get_buffer()

    def received(self, count: int) -> list[KafkaEvent]:
        """Process ``count`` new bytes in the buffer and return the events."""
        if self._ended or self._is_broken:
            return []
        room = self._in_flight_max - len(self._waiting)
        events: list[KafkaEvent] = []
        for data in self._reader.received(count, frames_max=room):
            event = self._request(data)
            events.append(event)
            if isinstance(event, KafkaBroken):
                break
        else:
            if self._reader.error is not None:
                events.append(self._unread(self._reader.error, self._reader.refused_head))
        if events and isinstance(last := events[-1], KafkaBroken):
            self._is_broken = True
            self._ended = last.answer is None
        self.paused = not self._is_broken and len(self._waiting) >= self._in_flight_max
        return events

    def _unread(self, error: BadMessageError, head: bytes) -> KafkaBroken:
        """Return the event of a request that is too long to be received."""
        if len(head) < codec.REQUEST_BYTES_MIN or self._takes_tokens:
            return KafkaBroken(error)
        key, version, correlation_id = codec.read_head(memoryview(head))
        api = apis.APIS.get(key)
        if api is None or not api.version_min <= version <= api.version_max:
            return KafkaBroken(error)
        request = self._admitted(api, version, correlation_id, None, _EMPTY, version)
        return _broken(error, request)

    def resume(self) -> list[KafkaEvent]:
        """Return the held-back requests when half of the permitted ones have responses."""
        if len(self._waiting) > self._in_flight_max // 2:
            return []
        return self.received(0)

    def end_with(self, request: KafkaRequest) -> None:
        """Process no input after ``request``, also none that was received and not handled."""
        self._is_broken = True
        self.paused = False
        while self._first + len(self._waiting) > request.number + 1:
            self._waiting.pop()

    def reply(self, request: KafkaRequest, message: Message) -> Pieces[list[Buffer]]:
        """Encode the response ``message`` in steps. Return the buffers that can be sent then."""
        if request.asked_version == TOKEN:
            return self._ready(request, _token_frame(message))
        if request.api is apis.SASL_HANDSHAKE and not request.version and not message.error_code:
            self._expect_tokens(are_next=True)
        pieces: list[Buffer] = []
        added: list[Buffer] = []
        write = codec.writer("response", request.api.key, request.version)
        for _ in write(message, added.append):
            if len(added) >= PIECES_PER_STEP:
                pieces += codec.joined(added)
                added.clear()
            yield None
        pieces += added
        flexible = request.api is not apis.API_VERSIONS and codec.is_flexible(
            request.api.key, request.version
        )
        return self._ready(
            request, codec.response(request.correlation_id, pieces, flexible=flexible)
        )

    def finish(self, request: KafkaRequest) -> list[Buffer]:
        """Mark a request without a response as processed. Returns buffers as ``reply`` does."""
        return self._ready(request, [])

    def end_of_stream(self) -> BadMessageError | None:
        """Process the end of the stream. Return an error if it ended inside a request."""
        error = BadMessageError("the stream ended inside a request") if self.in_frame else None
        is_first, self._ended = not self._ended, True
        return error if is_first else None

    def _ready(self, request: KafkaRequest, buffers: list[Buffer]) -> list[Buffer]:
        waiting, index = self._waiting, request.number - self._first
        assert index >= 0, "response sent twice"
        assert waiting[index] is None, "response sent twice"
        # guard: responses to a Kafka client leave in order
        if index:
            waiting[index] = buffers
            self._ready_bytes += sum(map(len, buffers))
            return []
        waiting.popleft()
        self._first += 1
        out = buffers
        while waiting and waiting[0] is not None:
            held = waiting.popleft()
            assert held is not None
            self._first += 1
            self._ready_bytes -= sum(map(len, held))
            out = out + held
        return [] if self._ended else out

    def _expect_tokens(self, *, are_next: bool) -> None:
        self._takes_tokens = are_next
        self._reader.expect_tokens(are_next=are_next)

    def _request(self, data: memoryview) -> KafkaEvent:
        if self._takes_tokens and not self._is_authenticated():
            token = codec.structs("request", apis.SASL_AUTHENTICATE.key).root(auth_bytes=data)
            return self._admitted(apis.SASL_AUTHENTICATE, 0, 0, token, data, TOKEN)
        if self._takes_tokens:
            self._expect_tokens(are_next=False)
            if len(data) < codec.REQUEST_BYTES_MIN:
                return KafkaBroken(BadMessageError(f"a request of {len(data)} bytes"))
        key, version, correlation_id = codec.read_head(data)
        api = apis.APIS.get(key)
        if api is apis.API_VERSIONS and not api.version_min <= version <= api.version_max:
            empty = codec.structs("request", key).root()
            return self._admitted(api, 0, correlation_id, empty, data, version)
        if api is None or not api.version_min <= version <= api.version_max:
            name = f"key {key}" if api is None else api.name
            return KafkaBroken(BadMessageError(f"API {name} version {version} is not served"))
        request = self._admitted(api, version, correlation_id, None, data, version)
        reading = _read(request, data)
        if len(data) > limits.FRAME_SMALL_BYTES_MAX:
            return KafkaUnread(len(data), reading, request)
        try:
            return finish(reading)
        except BadMessageError as error:
            return _broken(error, request)

    def _admitted(
        self,
        api: Api,
        version: int,
        correlation_id: int,
        message: Message,
        data: memoryview,
        asked_version: int,
    ) -> KafkaRequest:
        number = self._next_number
        self._next_number += 1
        self._waiting.append(None)
        is_produce = api is apis.PRODUCE
        return KafkaRequest(
            api,
            version,
            correlation_id,
            "",
            message,
            data if is_produce else _EMPTY,
            min(len(data), limits.KIB) if is_produce else len(data),
            asked_version,
            number,
        )


def _broken(error: BadMessageError, request: KafkaRequest) -> KafkaBroken:
    """Return the event of a request that cannot be decoded, with its response if it has one."""
    key, version = request.api.key, request.version
    if not codec.has_field("response", key, version, "error_code"):
        return KafkaBroken(error)
    response = codec.structs("response", key).root()
    response.error_code = errors.INVALID_REQUEST
    if hasattr(response, "error_message"):
        response.error_message = str(error)[: limits.ERROR_MESSAGE_CHARS_MAX]
    return KafkaBroken(error, (request, response))


def _token_frame(answer: Message) -> list[Buffer]:
    """Return the frame of a response to a message of a SASL mechanism."""
    if answer.error_code:
        return []
    return [len(answer.auth_bytes).to_bytes(codec.LENGTH_BYTES, "big"), answer.auth_bytes]


def _read(request: KafkaRequest, data: memoryview) -> Pieces[KafkaRequest]:
    """Decode the rest of a request, in steps."""
    key, version = request.api.key, request.version
    try:
        client_id, at = codec.read_client_id(data, flexible=codec.is_flexible(key, version))
        # Bytes behind the message are ignored, as in Kafka: librdkafka 2.16 sends three.
        message, _ = yield from codec.reader("request", key, version)(data, at)
    except READ_ERRORS as error:
        raise BadMessageError(
            f"{request.api.name} version {version} is invalid: {error}"
        ) from error
    return request._replace(message=message, client_id=client_id[: limits.CLIENT_ID_CHARS_MAX])
