"""One client connection: requests, responses, and limits for the client's use of the broker.

``raftlog.protocol`` decodes the bytes, and handlers process requests. This module decides when to
read:

- while the client does not read its responses (``pause_writing``), its requests wait, and so do its
  fetches;
- while too many of its requests are in flight, further ones wait
  (``ServerConnectionState.paused``);
- while requests use too much memory, it waits its turn (``RequestBudget``);
- while a request is processed in steps, those behind it wait (``turns``);
- while its client has used more than its quota, it waits (``throttle``).

A connection is a raftlog client's or a Kafka client's: its first bytes decide (``choice``). Both
kinds are one set with the same limits.
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import logging
import math
import socket
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from itertools import count
from typing import TYPE_CHECKING, Any, Final, NamedTuple, Protocol, TypeAlias, cast

from raftlog import limits
from raftlog.config import Address, BrokerConfig
from raftlog.config.address import PrincipalRule
from raftlog.errors import (
    AuthenticationError,
    BrokerUnavailableError,
    FrameError,
    RaftlogError,
    ThrottledError,
)
from raftlog.kafka.codec import CHOICE_BYTES, BadMessageError, is_kafka
from raftlog.kafka.codec import Message as KafkaMessage
from raftlog.kafka.connection import KafkaConnectionState, KafkaEvent, KafkaRequest, KafkaUnread
from raftlog.protocol import api as apis
from raftlog.protocol.connection import (
    Broken,
    Refusal,
    Request,
    ServerConnectionState,
    ServerEvent,
    farewell,
)
from raftlog.protocol.peer import PeerIdentity
from raftlog.protocol.schema import Message
from raftlog.protocol.security import Answering, Granting
from raftlog.record.kafka_batch import KafkaProducer
from raftlog.security.acl import ANONYMOUS, of_certificate
from raftlog.security.credentials import UsedCredential
from raftlog.security.quota import QuotaKey, Quotas
from raftlog.server.metrics import Counters
from raftlog.server.scheduling import Reading, RequestBudget, ResponseBudget, Steps, Turns, Workers
from raftlog.types import Buffer

if TYPE_CHECKING:
    from raftlog.security.sasl import Exchange as SaslExchange


_numbers = count(1)

# Seconds after the last response during which received bytes are discarded, so that the response
# arrives: a close with unread bytes would reset the connection.
LINGER_SECONDS: Final = 1.0
# Memory of a decoded message per received byte, and of a request in addition to its message:
# measured with fetches, rounded up.
MESSAGE_FACTOR: Final = 10
REQUEST_BYTES: Final = 2 * limits.KIB
# Below it, the requests of a connection are not counted.
IN_FLIGHT_NOTED_BYTES: Final = 16 * limits.KIB
# Of requests that wait for earlier ones; above it, reading stops.
HELD_BYTES_MAX: Final = limits.MIB
_REQUESTS: Final = (Request, KafkaRequest)  # an expression would create a type for each request
REFUSALS_LOGGED_MAX: Final = 10  # per connection: a faulty client must not fill the broker's log


class ConnectionServices(Protocol):
    """Services of the broker for a connection."""

    loop: asyncio.AbstractEventLoop
    scratch: memoryview
    requests: RequestBudget
    responses: ResponseBudget
    request_bytes_max: int
    first_bytes_max: int  # of a request of a client that has not authenticated
    kafka_enabled: bool
    # For names of certificates; None: certificates of clients do not authenticate users.
    principal_rules: tuple[PrincipalRule, ...] | None
    counters: Counters
    turns: Turns
    workers: Workers

    def connected(self, connection: Connection) -> bool:
        """Register a new connection. Returns False if there are too many, and it must be closed."""
        ...

    def disconnected(self, connection: Connection) -> None: ...

    def proved(self, connection: Connection) -> None:
        """Note that the connection belongs to an authenticated peer."""
        ...

    def handle(self, connection: Connection, request: Request) -> Steps | None:
        """Respond with ``respond``, ``refuse`` or ``finish``: now, in the returned steps, or
        later.
        """
        ...

    def handle_kafka(self, connection: Connection, request: KafkaRequest) -> Steps | None:
        """Respond with ``respond_kafka`` or ``finish``, as ``handle``."""
        ...


class _Work(NamedTuple):
    """A request that is processed in steps, and its bytes that stay in memory until it ends."""

    steps: Steps
    size_bytes: int


class Connection(asyncio.BufferedProtocol):
    """Invariant: requests are handled in the order of arrival, one after the other."""

    def __init__(self, services: ConnectionServices) -> None:
        self.services = services
        self._request_bytes_max = services.first_bytes_max
        self._state: ServerConnectionState | KafkaConnectionState | ProtocolChoice = (
            ProtocolChoice(self._request_bytes_max, services.scratch, self.choose)
            if services.kafka_enabled
            else self._native_state()
        )
        self._transport: asyncio.Transport | None = None
        self._held: deque[Event] = deque()  # received, and not handled yet
        self._work: deque[_Work] = deque()  # started; continues before the held events
        # Result or error of the thread work of the first request.
        self._step_outcome: tuple[Any, Exception | None] = (None, None)
        self._in_thread = False  # the first request waits for a thread
        self._in_queue = False  # waits for a turn
        self._in_flight_bytes = 0  # of dispatched requests without a response yet, approximately
        # Responses of this turn of the loop, sent with one write.
        self._unwritten: list[Buffer] = []
        self._unwritten_bytes = 0
        self._held_bytes = 0
        self._when_writable: list[Callable[[], None]] = []
        self._writing_paused = False
        self._writing_paused_seconds = 0.0
        self._memory_paused = False
        self._reading = True
        self._lingering = False
        self._throttled = False  # its client has used more than its quota
        self.meter: Meter | None = None  # while quotas may apply
        self._draining = False  # the broker stops: close when nothing is in flight
        self._refusals = 0
        # Of a Kafka client: first refused batch of the producer that wrote last, by partition.
        self.refused_batches: dict[tuple[str, int], KafkaProducer] = {}
        self.peer = "?"
        self.peer_host = "?"
        self.principal = ANONYMOUS
        self.client_id = ""  # the client's name for itself
        self.number = next(_numbers)  # higher for connections that begin later
        self.local_host = ""
        self.exchange: SaslExchange | None = None  # in progress
        self.used: UsedCredential | None = None  # for ``principal``
        self.has_sasl = False  # ``principal`` is from an exchange
        # Why an exchange has failed: the connection ends soon.
        self.rejection: AuthenticationError | None = None
        self.session_ends_seconds: float | None = None  # loop time; None: with the connection
        self.granting: Granting | None = None  # since the client claimed operator rights
        self.is_operator = False  # the client has proved that it knows the cluster secret
        self.answering: Answering | None = None  # since the other side claimed to be a broker
        self.peer_identity: PeerIdentity | None = None  # once that is proved
        self.began_seconds = 0.0
        self.last_active_seconds = 0.0
        self.received_bytes = 0  # total since the connection was opened
        self._is_noted = False  # the budget counts memory of this connection
        self._frame_began_seconds: float | None = None  # while a request is incomplete
        self._processing = False

    def _native_state(self) -> ServerConnectionState:
        services = self.services
        return ServerConnectionState(
            self._request_bytes_max,
            scratch=services.scratch,
            may_trust=services.requests.has_plenty,
        )

    def choose(self, *, is_kafka: bool) -> ServerConnectionState | KafkaConnectionState:
        """Set the protocol of the client before its first request. Returns its state."""
        services = self.services
        self._state = state = (
            KafkaConnectionState(
                self._request_bytes_max,
                scratch=services.scratch,
                may_trust=services.requests.has_plenty,
                is_authenticated=lambda: self.is_authenticated,
            )
            if is_kafka
            else self._native_state()
        )
        return state

    @property
    def certificate(self) -> Mapping[str, Any] | None:
        """Return the verified certificate of the other side; None or empty without."""
        return None if self._transport is None else self._transport.get_extra_info("peercert")

    # -- callbacks of asyncio ----------------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = transport = cast(asyncio.Transport, transport)
        name = transport.get_extra_info("peername")
        self.peer_host = str(name[0]) if isinstance(name, tuple) else "local"
        self.peer = f"{name[0]}:{name[1]}" if isinstance(name, tuple) else str(name or "local")
        certificate, rules = self.certificate, self.services.principal_rules
        if certificate and rules is not None:
            # guard: names of certificates are mapped as configured
            self.principal = of_certificate(certificate, rules) or ANONYMOUS
            if self.is_authenticated:
                self.permit_long_requests()
        local = transport.get_extra_info("sockname")
        self.local_host = str(local[0]) if isinstance(local, tuple) else ""
        transport.set_write_buffer_limits(
            high=limits.WRITE_BUFFER_HIGH_BYTES, low=limits.WRITE_BUFFER_LOW_BYTES
        )
        self.began_seconds = self.last_active_seconds = self.services.loop.time()
        if not self.services.connected(self):
            transport.abort()

    def connection_lost(self, exc: Exception | None) -> None:  # noqa: ARG002 - asyncio's signature
        self._transport = None
        self._state.end_of_stream()
        self._unwritten.clear()
        self._held.clear()
        self._end_work()
        self._when_writable.clear()
        self.services.requests.forget(self)
        self.services.responses.set(self, 0)
        self.services.disconnected(self)

    def eof_received(self) -> bool:
        error = self._state.end_of_stream()
        self._flush()
        if error is not None and not self._lingering:
            logger.info("connection ended by the peer: peer=%s error=%s", self.peer, error)
        return False  # asyncio closes the connection after all writes

    def get_buffer(self, sizehint: int) -> memoryview:
        return self.services.scratch if self._lingering else self._state.get_buffer(sizehint)

    def buffer_updated(self, nbytes: int) -> None:
        if self._lingering:
            return
        state = self._state
        events = state.received(nbytes)
        self.last_active_seconds = self.services.loop.time()
        self.received_bytes += nbytes
        if state.in_frame or self._frame_began_seconds is not None:
            self._note_partial_frame(is_new=bool(events))
        if self.peer_identity is None:  # brokers have no shares
            self.services.turns.begin_share()
        self._process(events)
        if state.paused:
            self._adjust_reading()

    def pause_writing(self) -> None:
        self._writing_paused = True
        self._writing_paused_seconds = self.services.loop.time()
        self._adjust_reading()

    def resume_writing(self) -> None:
        self._writing_paused = False
        self.last_active_seconds = self.services.loop.time()
        self.services.responses.set(self, 0)
        waiting, self._when_writable = self._when_writable, []
        for ready in waiting:
            ready()
        self.services.turns.begin_share()
        self._process(())
        self._adjust_reading()

    # -- flow control and shutdown -----------------------------------------------------------------

    def pause_for_memory(self) -> None:
        self._memory_paused = True
        self._adjust_reading()

    def resume_from_memory(self) -> None:
        self._memory_paused = False
        self._adjust_reading()

    @property
    def in_flight(self) -> int:
        """Number of requests without a response."""
        return self._state.in_flight

    @property
    def stalled_since_seconds(self) -> float | None:
        """Time at which the request began that is being read and is incomplete; else None."""
        return self._frame_began_seconds if self._reading else None

    @property
    def not_taking_since_seconds(self) -> float | None:
        """Time since which the client has not read pending responses; else None."""
        return self._writing_paused_seconds if self._writing_paused else None

    @property
    def is_closed(self) -> bool:
        return self._transport is None

    @property
    def is_encrypted(self) -> bool:
        """Whether the connection uses TLS."""
        return self._transport is not None and bool(self._transport.get_extra_info("ssl_object"))

    @property
    def is_authenticated(self) -> bool:
        """Whether the other side has proved who it is, in any way."""
        return self.principal is not ANONYMOUS or self.peer_identity is not None or self.is_operator

    @property
    def may_answer_at_length(self) -> bool:
        """Whether the client reads its responses: then a fetch may read for it."""
        return not self._writing_paused

    def when_writable(self, ready: Callable[[], None]) -> None:
        """Call ``ready`` when the client reads its responses again; never, if it disconnects."""
        self._when_writable.append(ready)

    def prove(self, peer: PeerIdentity) -> None:
        """Note that ``peer`` has authenticated on this connection."""
        self.peer_identity = peer
        self.permit_long_requests()
        assert not isinstance(self._state, ProtocolChoice), "a peer has sent requests"
        # The state of a group may be longer than socket.request.max.bytes.
        self._state.permit(limits.FRAME_BYTES_MAX)
        self.services.proved(self)

    def permit_long_requests(self) -> None:
        """Accept requests of any permitted length: the other side has authenticated."""
        self._request_bytes_max = self.services.request_bytes_max
        if not isinstance(self._state, ProtocolChoice):
            self._state.permit(self._request_bytes_max)

    def begin(self, steps: Steps) -> None:
        """Continue a request that was dispatched before, after those in progress."""
        if self._transport is None:
            steps.close()
            return
        self._work.append(_Work(steps, 0))
        self.services.turns.begin_share()
        self._process(())

    def throttle(self, seconds: float) -> None:
        """Neither read nor handle requests for ``seconds``. Those that were started continue, and
        responses are sent.
        """
        if self._throttled or self._transport is None:
            return
        self._throttled = True
        self._adjust_reading()
        self.services.loop.call_later(seconds, self._end_throttling)

    def _end_throttling(self) -> None:
        self._throttled = False
        self.last_active_seconds = self.services.loop.time()
        self.services.turns.begin_share()
        self._process(())
        self._adjust_reading()

    def take_turn(self) -> None:
        """Continue in a turn assigned by ``turns``."""
        self._in_queue = False
        self._process(())

    def drain(self) -> None:
        """Stop reading requests, respond to the received ones, then close."""
        self._draining = True
        self._adjust_reading()
        self._check_drained()

    def abort(self, reason: str) -> None:
        """Close at once."""
        if self._transport is not None:
            logger.info("connection closed: peer=%s reason=%s", self.peer, reason)
            self._transport.abort()

    def end(self, error: RaftlogError) -> None:
        """Send the error, handle no further input, and close."""
        self._say_farewell(Broken(error, farewell(error)))

    def hang_up(self, reason: str) -> None:
        """Close after all writes; handle no further input."""
        logger.info("connection closed: peer=%s reason=%s", self.peer, reason)
        self._hang_up()

    # -- answers -----------------------------------------------------------------------------------

    def respond(
        self, request: Request, message: Message, attachment: Sequence[Buffer] = ()
    ) -> None:
        """Send a response. If the client has disconnected, nothing happens."""
        state = cast(ServerConnectionState, self._state)
        self._answered(request, state.reply(request, message, attachment))

    def respond_kafka(self, request: KafkaRequest, message: KafkaMessage) -> None:
        """Send a response to a Kafka client, after the responses to its earlier requests. A long
        one is encoded in steps.
        """
        steps = self._encode(request, message)
        for _ in steps:
            if not self.services.turns.has_time():
                self.begin(steps)
                return

    def _encode(self, request: KafkaRequest, message: KafkaMessage) -> Steps:
        try:
            buffers = yield from cast(KafkaConnectionState, self._state).reply(request, message)
        except Exception:
            # guard: a response that cannot be encoded ends its connection
            self.abort(f"internal error: a response to {request.api.name} cannot be encoded")
            raise
        self._answered(request, buffers)

    def refuse(self, request: Request, error: RaftlogError) -> None:
        """Send an error response."""
        self._answered(request, cast(ServerConnectionState, self._state).fail(request, error))

    def finish(self, request: Request | KafkaRequest) -> None:
        """End a request that needs no response."""
        if isinstance(request, KafkaRequest):
            self._answered(request, cast(KafkaConnectionState, self._state).finish(request))
        else:
            cast(ServerConnectionState, self._state).finish(request)
            self._answered(request, [])

    def note_refusal(self, what: str, error: RaftlogError, request_id: int) -> None:
        """Log a refusal. After ``REFUSALS_LOGGED_MAX``, further ones are not logged.

        ``request_id``: correlation id of the request. With the client's address, it identifies it.
        """
        self._refusals += 1
        if self._refusals <= REFUSALS_LOGGED_MAX:
            more = (
                ". Further refusals of this connection are not logged"
                if self._refusals == REFUSALS_LOGGED_MAX
                else ""
            )
            logger.info(
                "request refused: peer=%s request_id=%d request=%s error=%s%s",
                self.peer,
                request_id,
                what,
                error,
                more,
            )

    def _answered(self, request: Request | KafkaRequest, buffers: list[Buffer]) -> None:
        self._in_flight_bytes -= memory_of(request)
        if self._is_noted:
            self._note_memory()
        if buffers:
            self._write(buffers)
        if self._state.paused:
            self._process(self._state.resume())
            self._adjust_reading()
        if self._draining:
            self._check_drained()

    def _write(self, buffers: list[Buffer]) -> None:
        """Write at the end of this turn of the loop: one send per response costs more than the
        response.
        """
        if self._transport is None or self._lingering:
            return
        # Now, not at the flush: the check for idle connections may run in between.
        self.last_active_seconds = self.services.loop.time()
        if not self._unwritten:
            self.services.loop.call_soon(self._flush)
        self._unwritten += buffers
        self._unwritten_bytes += sum(map(len, buffers))
        if self._unwritten_bytes >= limits.WRITE_BUFFER_HIGH_BYTES:
            self._flush()

    def _flush(self) -> None:
        transport, buffers = self._transport, self._unwritten
        if transport is None or not buffers:
            return
        self._unwritten, self._unwritten_bytes = [], 0
        if len(buffers) == 1:
            transport.write(buffers[0])
        else:
            transport.writelines(buffers)
        if self._writing_paused:
            self.services.responses.set(self, transport.get_write_buffer_size())

    # -- requests ----------------------------------------------------------------------------------

    def _process(self, events: Sequence[Event]) -> None:
        """Continue started requests, then handle held events and ``events``, while there is time
        and the client reads responses.

        A response may admit more events from within a handler: they are queued here.
        """
        self._held.extend(events)
        if self._processing or self._in_queue:
            return
        self._processing = True
        try:
            self._go_on()
        finally:
            self._processing = False
        if self._held or self._work or self._held_bytes:
            self._held_bytes = sum(map(_size_of, self._held))
            self._held_bytes += sum(work.size_bytes for work in self._work)
            self._note_memory()
            self._adjust_reading()
        if self._draining and not self._in_queue:
            self._check_drained()

    def _go_on(self) -> None:
        held, work, turns = self._held, self._work, self.services.turns
        # guard: work in a thread delays its connection
        while (work or (held and not self._throttled)) and not (
            self._writing_paused or self._in_thread
        ):
            if self.peer_identity is None and not turns.has_time():
                self._in_queue = True
                turns.wait(self)
                return
            began = self.services.counters.now() if self.meter is not None else 0.0
            if work:
                self._step(work[0].steps)
            else:
                self._handle(held.popleft())
            if self.meter is not None and began:
                self.meter.ran(self.services.counters.now() - began)

    def _step(self, steps: Steps) -> None:
        (result, error), self._step_outcome = self._step_outcome, (None, None)
        try:
            thread_work = steps.send(result) if error is None else steps.throw(error)
        except StopIteration:
            # Otherwise the connection has ended during the step.
            if self._work and self._work[0].steps is steps:
                self._work.popleft()
            return
        if thread_work is not None:
            self._in_thread = True
            self.services.workers.submit(thread_work, partial(self._thread_done, steps))

    def _thread_done(self, steps: Steps, result: Any, error: Exception | None) -> None:
        if not (self._work and self._work[0].steps is steps):
            return  # the connection has ended
        self._in_thread = False
        self._step_outcome = result, error
        self.services.turns.begin_share()
        self._process(())

    def _end_work(self) -> None:
        """Cancel started requests: no client waits for them."""
        work = list(self._work)[1 if self._processing else 0 :]  # a step cannot end itself
        self._work.clear()
        self._in_thread = False
        for begun in work:
            begun.steps.close()

    def _handle(self, event: Event) -> None:
        if isinstance(event, _REQUESTS):
            self._in_flight_bytes += memory_of(event)
            if isinstance(event, Request):
                steps = self.services.handle(self, event)
            else:
                steps = self.services.handle_kafka(self, event)
            if steps is not None and self._transport is not None:
                self._work.append(_Work(steps, len(event.attachment)))
            if self._in_flight_bytes >= IN_FLIGHT_NOTED_BYTES:
                self._note_memory()
        elif isinstance(event, KafkaUnread):
            self._work.append(_Work(self._read(event), event.size_bytes))
        elif isinstance(event, Refusal):
            self.note_refusal("a request", event.error, event.correlation_id)
            self._write(event.buffers)
        elif isinstance(event, Broken):
            self._say_farewell(event)
        elif event.answer is not None:
            self._say_why(event.error, *event.answer)
        else:
            logger.info("connection closed: peer=%s reason=%s", self.peer, event.error)
            self._hang_up()

    def _read(self, unread: KafkaUnread) -> Steps:
        """Decode a long request, and handle it."""
        try:
            request = yield from unread.read
        except BadMessageError as error:
            self._handle(unread.broken(error))
            return
        self._in_flight_bytes += memory_of(request)
        steps = self.services.handle_kafka(self, request)
        self._note_memory()
        if steps is not None:
            yield from steps

    def _say_farewell(self, broken: Broken) -> None:
        """Send the error and close: message framing is lost."""
        logger.info("connection closed: peer=%s reason=%s", self.peer, broken.error)
        if self._transport is not None:
            self._write([broken.farewell])
            self._hang_up()

    def _say_why(
        self, error: BadMessageError, request: KafkaRequest, response: KafkaMessage
    ) -> None:
        """Respond to an invalid request of a Kafka client, after the responses to its earlier
        requests, and close.
        """
        logger.info("connection closed: peer=%s reason=%s", self.peer, error)
        self._held.clear()
        cast(KafkaConnectionState, self._state).end_with(request)
        self._in_flight_bytes += memory_of(request)
        self.respond_kafka(request, response)
        self.drain()

    def _check_drained(self) -> None:
        if not (self._state.in_flight or self._held or self._work):
            self._hang_up()

    def _hang_up(self) -> None:
        """Close this side after all writes, and the connection when the peer has closed its
        side.
        """
        transport = self._transport
        if transport is None or self._lingering:
            return
        self._flush()
        self._lingering = True
        self._held.clear()
        self._end_work()
        self.services.requests.forget(self)
        if not transport.can_write_eof():
            transport.close()
            return
        transport.write_eof()
        self._adjust_reading()
        self.services.loop.call_later(LINGER_SECONDS, self._end_lingering)

    def _end_lingering(self) -> None:
        if self._transport is not None:
            self._transport.abort()

    def _note_partial_frame(self, *, is_new: bool) -> None:
        """Track an incomplete request; ``is_new``: another one has just ended."""
        if not self._state.in_frame:
            self._frame_began_seconds = None
        elif is_new or self._frame_began_seconds is None:
            self._frame_began_seconds = self.last_active_seconds
        self._note_memory()

    def _note_memory(self) -> None:
        """Report the memory of this connection to the budget. A peer's memory is limited by what a
        peer sends.
        """
        held_bytes = self._state.bytes_held + self._held_bytes
        if self._in_flight_bytes >= IN_FLIGHT_NOTED_BYTES:
            held_bytes += self._in_flight_bytes
        if self.peer_identity is not None or self._lingering:
            held_bytes = 0
        self._is_noted = held_bytes > 0
        self.services.requests.set(self, held_bytes)

    def _adjust_reading(self) -> None:
        """Start or stop reading. This is the only place that decides it; every wait calls it
        again.
        """
        transport = self._transport
        if transport is None or transport.is_closing():
            return
        wanted = self._lingering or not (
            self._writing_paused
            or self._memory_paused
            or self._state.paused
            or self._throttled
            or self._draining
            or self._held_bytes > HELD_BYTES_MAX
        )
        if wanted is self._reading:
            return
        self._reading = wanted
        if wanted:
            if self._frame_began_seconds is not None:  # until now this broker did not read
                self._frame_began_seconds = self.services.loop.time()
            transport.resume_reading()
        else:
            transport.pause_reading()


def _size_of(event: Event) -> int:
    """Return the memory of a held event, in bytes."""
    if isinstance(event, _REQUESTS):
        return len(event.attachment) + memory_of(event)
    return event.size_bytes if isinstance(event, KafkaUnread) else 0


def memory_of(request: Request | KafkaRequest) -> int:
    """Return the approximate memory, in bytes, of a request without its attachment until it is
    answered.
    """
    return REQUEST_BYTES + MESSAGE_FACTOR * request.header_bytes


# -- listener --------------------------------------------------------------------------------------
#
# Listening sockets and the set of connections: connection limits, idle and slow clients.


logger = logging.getLogger(__name__)

BACKLOG: Final = 1_024
SWEEP_SECONDS_MAX: Final = 5.0
RELIEF_SECONDS: Final = 1.0  # seconds between two checks for slow senders
LOBBY_SECONDS: Final = 15.0  # for a handshake: four round trips of at most 2 s each
# APIs of a connection beyond max.connections: it may be a broker's.
LOBBY_APIS: Final = (apis.API_VERSIONS, apis.PEER_HELLO, apis.PEER_PROVE)


def bind(address: Address, option: str = "--listen ") -> socket.socket:
    """Return a listening socket. Raises ``BrokerUnavailableError`` with the reason.

    ``option``: how an operator sets another address, for the error.
    """
    try:
        family, kind, protocol, _name, where = socket.getaddrinfo(
            address.host, address.port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )[0]
    except OSError as error:
        raise BrokerUnavailableError(
            f"cannot listen on {address}: the host name does not resolve ({error.strerror}). Set "
            f"an address of this machine with {option}HOST:PORT"
        ) from error
    listening = socket.socket(family, kind, protocol)
    try:
        listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listening.bind(where)
        listening.listen(BACKLOG)
        listening.setblocking(False)
    except OSError as error:
        listening.close()
        raise BrokerUnavailableError(_why_not(address, error, option)) from error
    return listening


def _why_not(address: Address, error: OSError, option: str) -> str:
    if error.errno == errno.EADDRINUSE:
        return (
            f"port {address.port} on {address.host} is in use. Stop the process that uses it, or "
            f"select another port with {option}{Address(address.host, 0)} (0: any free port)"
        )
    if error.errno == errno.EACCES:
        return (
            f"this user has no permission for port {address.port} on {address.host}. Select a port "
            f"of 1024 or above with {option}HOST:PORT"
        )
    return (
        f"cannot listen on {address}: {error.strerror}. Set an address of this machine with "
        f"{option}HOST:PORT"
    )


def address_of(listening: socket.socket) -> Address:
    """Return the address of a listening socket, with its actual port."""
    host, port = listening.getsockname()[:2]
    return Address(host, port)


class Connections:
    """All connections of a broker, and their shared state. It is their ``ConnectionServices``."""

    def __init__(
        self,
        config: BrokerConfig,
        loop: asyncio.AbstractEventLoop,
        *,
        responses: ResponseBudget,
        counters: Counters,
        turns: Turns,
        workers: Workers,
        on_request: Callable[[Connection, Request], Steps | None],
        on_kafka_request: Callable[[Connection, KafkaRequest], Steps | None],
        on_lost: Callable[[Connection], None],
        may_connect: Callable[[Connection], bool] = lambda _connection: True,
        make_connection: Callable[[ConnectionServices], Connection] = Connection,
    ) -> None:
        self.loop = loop
        # Shared: between get_buffer and buffer_updated of a connection, nothing else runs.
        self.scratch = memoryview(bytearray(limits.RECEIVE_BYTES))
        self.requests = RequestBudget(config.queued_max_request_bytes, on_short=self._relieve_soon)
        self.responses = responses
        self.request_bytes_max = self.first_bytes_max = config.socket_request_max_bytes
        # guard: a client that has not authenticated sends short requests only
        if config.authentication_required:
            self.first_bytes_max = min(self.request_bytes_max, limits.UNAUTHENTICATED_BYTES_MAX)
        # guard: certificates of brokers authenticate no user
        self.principal_rules = (
            config.ssl_principal_mapping_rules if config.tls_client_ca_file else None
        )
        self.kafka_enabled = config.kafka_protocol_enable and config.kafka_listen is None
        self.counters = counters
        self.turns = turns
        self.workers = workers
        self._on_request = on_request
        self._on_kafka_request = on_kafka_request
        self._may_connect = may_connect
        self._on_lost = on_lost
        self._make_connection = make_connection
        self._config = config
        self._open: dict[Connection, None] = {}
        self._peers: set[Connection] = set()  # open connections that have authenticated as peers
        # Connections accepted beyond max.connections, oldest first, with the time: they must
        # authenticate.
        self._lobby: dict[Connection, float] = {}
        self._relief: asyncio.TimerHandle | None = None  # while memory for requests is short
        self._received: dict[Reading, int] = {}  # at the last check, by sender
        self._empty: asyncio.Future[None] | None = None  # while the last connections end
        self._refusing = False
        shortest_ms = min(
            config.connections_max_idle_ms,
            config.request_receive_timeout_ms,
            config.queued_max_wait_ms,
        )
        self._sweep_seconds = min(shortest_ms / 4_000, SWEEP_SECONDS_MAX)
        self._sweeper = loop.call_later(self._sweep_seconds, self._sweep)

    def __len__(self) -> int:
        return len(self._open)

    def make(self) -> Connection:
        """Return a protocol for a new transport."""
        return self._make_connection(self)

    def make_for_kafka(self) -> Connection:
        """Return a protocol for a new transport of a Kafka client."""
        connection = self._make_connection(self)
        connection.choose(is_kafka=True)
        return connection

    def connected(self, connection: Connection) -> bool:
        if self._refusing:
            return False
        if not self._may_connect(connection):
            self.counters.quota_refusals += 1
            return False
        if len(self._open) - len(self._peers) - len(self._lobby) >= self._config.max_connections:
            # guard: peers have separate connection slots
            if not self._config.has_secret:
                self._refuse(connection)
                return False
            if len(self._lobby) >= limits.LOBBY_CONNECTIONS_MAX:
                self._make_room_in_lobby()
            self._lobby[connection] = self.loop.time()
        self.counters.connections_accepted += 1
        self._open[connection] = None
        return True

    def _refuse(self, connection: Connection) -> None:
        self.counters.connections_refused += 1
        logger.warning(
            "connection refused: peer=%s max.connections=%d. Increase max.connections or close "
            "unused clients",
            connection.peer,
            self._config.max_connections,
        )

    def _make_room_in_lobby(self) -> None:
        """Close the oldest connection that has not begun a handshake, or else the oldest."""
        oldest = next(iter(self._lobby))
        waiting = (connection for connection in self._lobby if connection.answering is None)
        connection = next(waiting, oldest)
        del self._lobby[connection]
        self._refuse(connection)
        connection.abort("max.connections reached, and the reserve is for brokers")

    def handle(self, connection: Connection, request: Request) -> Steps | None:
        if connection in self._lobby and request.api not in LOBBY_APIS:
            self._refuse(connection)
            connection.end(
                ThrottledError(
                    f"max.connections={self._config.max_connections} connections are open. Close "
                    "some, or increase max.connections on the broker"
                )
            )
            return None
        return self._on_request(connection, request)

    def handle_kafka(self, connection: Connection, request: KafkaRequest) -> Steps | None:
        if connection in self._lobby:  # a Kafka client cannot prove to be a broker
            self._refuse(connection)
            connection.abort("max.connections reached")
            return None
        return self._on_kafka_request(connection, request)

    def proved(self, connection: Connection) -> None:
        """Note that the connection belongs to a peer: it has a separate slot."""
        self._lobby.pop(connection, None)
        self._peers.add(connection)

    def disconnected(self, connection: Connection) -> None:
        self._open.pop(connection, None)
        self._peers.discard(connection)
        self._lobby.pop(connection, None)
        self._received.pop(connection, None)
        self._on_lost(connection)
        if self._empty is not None and not self._open and not self._empty.done():
            self._empty.set_result(None)

    async def drain(self, *, seconds_max: float) -> None:
        """Accept nothing more, respond to received requests, then close all connections; at once
        after ``seconds_max``.
        """
        self._refusing = True
        self._stop_timers()
        for connection in tuple(self._open):
            connection.drain()
        if self._open:
            self._empty = self.loop.create_future()
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._empty, seconds_max)
        self.abort("the broker stops")

    def abort(self, reason: str) -> None:
        """Close every connection at once."""
        self._stop_timers()
        for connection in tuple(self._open):
            connection.abort(reason)

    def close_each(self, wanted: Callable[[Connection], bool], reason: str) -> None:
        """Close each connection for which ``wanted`` returns True, at once."""
        for connection in tuple(self._open):
            if wanted(connection):
                connection.abort(reason)

    def _stop_timers(self) -> None:
        self._sweeper.cancel()
        if self._relief is not None:
            self._relief.cancel()

    def _relieve_soon(self) -> None:
        if self._relief is None and not self._refusing:
            self._received.clear()
            self._relief = self.loop.call_later(RELIEF_SECONDS, self._relieve)

    def _relieve(self) -> None:
        """While connections wait for memory: close those that hold it and send too little.

        The rate since the last check counts, during which they were read from. So the memory of
        slow senders is released after two checks, regardless of what they sent.
        """
        self._relief = None
        if not self.requests.is_waited_for:
            return
        least = self._config.queued_min_bytes_per_second * RELIEF_SECONDS
        last_check = self.loop.time() - RELIEF_SECONDS
        before, self._received = self._received, {}
        for connection in self.requests.holders():
            since = connection.stalled_since_seconds
            if since is None:
                continue
            received = before.get(connection)
            # guard: slow senders do not block others
            if (
                received is not None
                and since <= last_check
                and connection.received_bytes - received < least
            ):
                connection.abort(
                    "the request arrives at less than queued.min.bytes.per.second="
                    f"{self._config.queued_min_bytes_per_second} while other requests wait for "
                    "memory"
                )
            else:
                self._received[connection] = connection.received_bytes
        self._relief = self.loop.call_later(RELIEF_SECONDS, self._relieve)

    def _sweep(self) -> None:
        """Check the timeouts of all connections with one timer: idle connections cost nothing
        else.
        """
        now = self.loop.time()
        idle_seconds = self._config.connections_max_idle_ms / 1_000
        receive_seconds = self._config.request_receive_timeout_ms / 1_000
        pressed_seconds = self._config.queued_max_wait_ms / 1_000
        if self.requests.is_waited_for:
            receive_seconds = min(receive_seconds, pressed_seconds)
        take_seconds = pressed_seconds if self.responses.is_waited_for else math.inf
        lobby_began = now - LOBBY_SECONDS
        for connection in [one for one, since in self._lobby.items() if since < lobby_began]:
            self._refuse(connection)
            connection.abort("max.connections reached, and the peer did not prove to be a broker")
        for connection in tuple(self._open):
            stalled_since = connection.stalled_since_seconds
            not_taking_since = connection.not_taking_since_seconds
            if stalled_since is not None and now - stalled_since > receive_seconds:
                connection.abort(
                    f"the request was incomplete after {receive_seconds:g} s "
                    "(request.receive.timeout.ms, or queued.max.wait.ms when memory is short)"
                )
            elif not_taking_since is not None and now - not_taking_since > take_seconds:
                connection.abort(
                    f"the peer did not read its responses for {take_seconds:g} s "
                    "(queued.max.wait.ms) while other requests wait for memory"
                )
            # guard: a client must authenticate in time
            elif self._must_leave(connection, now):
                connection.abort(
                    f"the client did not authenticate within {limits.AUTHENTICATION_S:g} s"
                )
            elif not connection.in_flight and now - connection.last_active_seconds > idle_seconds:
                connection.abort(
                    "the connection was idle for connections.max.idle.ms="
                    f"{self._config.connections_max_idle_ms}"
                )
        self._sweeper = self.loop.call_later(self._sweep_seconds, self._sweep)

    def _must_leave(self, connection: Connection, now: float) -> bool:
        """Whether the connection had to authenticate, and has not in its time."""
        return (
            self._config.authentication_required
            and not connection.is_authenticated
            and now - connection.began_seconds > limits.AUTHENTICATION_S
        )


# -- choice ----------------------------------------------------------------------------------------
#
# The choice of a connection's protocol by its first bytes.
#
# Both protocols share a port. The first six bytes of a raftlog frame and of a Kafka request never
# look alike; anything else is treated as raftlog's, whose errors are readable text.


# What a client has sent, of either protocol.
Event: TypeAlias = ServerEvent | KafkaEvent


class Chosen(Protocol):
    """Sets the state of a connection to that of a protocol, and returns it."""

    def __call__(self, *, is_kafka: bool) -> ServerConnectionState | KafkaConnectionState: ...


class ProtocolChoice:
    """The state of a connection before its protocol is known."""

    in_flight = 0
    bytes_held = 0
    paused = False

    def __init__(self, request_bytes_max: int, scratch: memoryview, chosen: Chosen) -> None:
        """``request_bytes_max``: longest request, in bytes. ``scratch``: receive buffer that
        connections share. ``chosen``: called once.
        """
        self._request_bytes_max = request_bytes_max
        self._scratch = scratch
        self._chosen = chosen
        self._first = b""  # while there are too few

    @property
    def in_frame(self) -> bool:
        """Whether some of the first bytes have arrived."""
        return bool(self._first)

    def get_buffer(self, sizehint: int = -1) -> memoryview:  # noqa: ARG002 - asyncio's signature
        """Return the buffer for received bytes."""
        return self._scratch

    def received(self, count: int) -> list[Event]:
        """Process ``count`` new bytes. With the first six, the chosen protocol processes them."""
        self._first += bytes(self._scratch[:count])
        if len(self._first) < CHOICE_BYTES:
            return []
        return self._choose(is_kafka=is_kafka(self._first, self._request_bytes_max))

    def resume(self) -> list[Event]:
        """Return no events: none are held back."""
        return []

    def end_of_stream(self) -> FrameError | None:
        """Process the end of the stream. Return an error if it ended inside the first bytes."""
        if self._first:
            self._choose(is_kafka=False)
            return FrameError("the stream ended inside the first frame")
        return None

    def _choose(self, *, is_kafka: bool) -> list[Event]:
        state = self._chosen(is_kafka=is_kafka)
        data = self._first
        events: list[Event] = []
        while data:
            buffer = state.get_buffer()
            count = min(len(buffer), len(data))
            buffer[:count] = data[:count]
            data = data[count:]
            events += state.received(count)
        return events


# -- meter -----------------------------------------------------------------------------------------
#
# Meter of one connection: what its client uses of its quotas, and how long it has to wait.


class Meter:
    """Created at the first request that quotas may apply to.

    ``user``, ``client_id``: as the client is known now.
    """

    __slots__ = ("_now", "_quotas", "_wait_seconds", "client_id", "user")

    def __init__(self, quotas: Quotas, now: Callable[[], float]) -> None:
        """``now``: monotonic seconds."""
        self._quotas = quotas
        self._now = now
        self._wait_seconds = 0.0
        self.user = ""
        self.client_id = ""

    def use(self, key: QuotaKey, amount: float) -> None:
        """Count the use of a rate."""
        wait_seconds = self._quotas.use(key, self.user, self.client_id, amount, self._now())
        self._wait_seconds = max(self._wait_seconds, wait_seconds)

    def ran(self, seconds: float) -> None:
        """Count time in which the broker worked for the client."""
        self.use("request_percentage", 100 * seconds)

    def take_wait_ms(self) -> int:
        """Return for how long the client has to wait now, in ms; its next wait begins at 0."""
        wait_seconds, self._wait_seconds = self._wait_seconds, 0.0
        return int(min(wait_seconds * 1_000, limits.THROTTLE_MS_MAX))  # infinite for a tiny rate
