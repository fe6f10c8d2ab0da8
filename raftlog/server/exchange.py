"""Reply to one request: handlers keep it until they have a result.

``Exchange`` is what the code for both protocols uses; ``Reply`` is that of raftlog's protocol.
"""

from __future__ import annotations

import logging
from abc import ABC, abstractmethod
from collections.abc import Callable, Generator, Hashable, Sequence
from typing import TYPE_CHECKING, Any, Final, Generic, Self, TypeVar, cast

import msgspec

from raftlog.errors import InvalidRequestError, OutcomeUnknownError, RaftlogError
from raftlog.kafka.connection import KafkaRequest
from raftlog.protocol.connection import Request
from raftlog.protocol.schema import Message
from raftlog.server.connection import Connection, Meter, memory_of
from raftlog.server.scheduling import Steps
from raftlog.types import Buffer

if TYPE_CHECKING:
    from raftlog.server.context import BrokerContext

RequestT = TypeVar("RequestT", Request, KafkaRequest)

logger = logging.getLogger(__name__)

_EMPTY: Final = memoryview(b"")


class Exchange(ABC):
    """A request and its reply, of either protocol. Replied to once, at any time."""

    __slots__ = ("amend", "audit", "began", "connection", "outcome", "request")

    def __init__(self, connection: Connection, request: Request | KafkaRequest) -> None:
        self.connection = connection
        # Without the attachment: a response may take long, and megabytes would stay in memory.
        self.request: Request | KafkaRequest = (
            request._replace(attachment=_EMPTY) if request.attachment else request
        )
        # Monotonic seconds; start of the share of the event loop in which the request is handled.
        self.began = connection.services.turns.share_began
        # Returns, in steps, the response to send in place of the handler's (``access.rules``).
        self.audit: Callable[[str], None] | None = None  # called at the end with the outcome
        self.outcome = "ok"  # or the class of the error
        self.amend: Callable[[Any], Generator[None, Any, Any]] | None = None

    @property
    def name(self) -> str:
        """The name of the request's API, for the log."""
        return self.request.api.name

    @property
    def request_id(self) -> int:
        """The correlation id of the request, for the log."""
        return self.request.correlation_id

    @property
    def size_bytes(self) -> int:
        """Approximate memory of the request while it waits, in bytes."""
        return memory_of(self.request)

    @abstractmethod
    def send(self, message: Any, *attachment: Any) -> None:
        """Send the response ``message`` of the protocol."""

    def _send_amended(self, message: Any, *attachment: Any) -> None:
        """Send the response once it is amended."""
        assert self.amend is not None
        amended, self.amend = self.amend(message), None

        def steps() -> Steps:
            self.send((yield from amended), *attachment)

        self.connection.begin(self.guarded(steps()))

    def none(self) -> None:
        """End a request that has no response."""
        if self.connection.meter is not None:
            self._throttle(self.connection.meter)
        self.connection.finish(self.request)
        self._ended()

    @abstractmethod
    def fail(self, error: RaftlogError) -> None:
        """Send an error. If the request has no response, the connection is closed."""

    def refuse(self, error: RaftlogError) -> None:
        """``fail``, and log it."""
        self.connection.note_refusal(self.name, error, self.request_id)
        self.fail(error)

    def drop(self, error: RaftlogError) -> None:
        """Close the connection after a failed request without a response, so that the client
        notices.
        """
        self.connection.services.counters.request_failed(error)
        self.none()
        self.connection.abort(f"a request with acks=0 failed: {error}")

    def _throttle(self, meter: Meter) -> int:
        """Let the client wait if it has used more than its quota. Returns for how long, in ms."""
        wait_ms = meter.take_wait_ms()
        if wait_ms:
            self.connection.services.counters.throttled += 1
            # guard: a client over its quota waits
            self.connection.throttle(wait_ms / 1_000)
        return wait_ms

    def _ended(self) -> None:
        if self.audit is not None:
            self.audit(self.outcome)
        # ``self.name`` without a call: this runs for each request.
        self.connection.services.counters.request_ended(self.request.api.name, self.began)

    def run(
        self,
        handle: Callable[[BrokerContext, RequestT, Self], Steps | None],
        context: BrokerContext,
        request: RequestT,
    ) -> Steps | None:
        """Handle the request, or return the steps that do. Every error becomes a response, so that
        an error ends only this request.
        """
        try:
            steps = handle(context, request, self)
        except RaftlogError as error:
            self.refuse(error)
        except Exception as error:  # noqa: BLE001 - reported, logged and counted
            self.fail_by_mistake(error)
        else:
            return None if steps is None else self.guarded(steps)
        return None

    def guarded(self, steps: Steps) -> Steps:
        """Return steps that convert errors to a response, so that an error ends only this
        request.
        """
        try:
            yield from steps
        except RaftlogError as error:
            self.refuse(error)
        except Exception as error:  # noqa: BLE001 - reported, logged and counted
            self.fail_by_mistake(error)

    def go_on(self, steps: Steps) -> None:
        """Continue the request in ``steps``, after those of the connection that are in progress."""
        self.connection.begin(self.guarded(steps))

    def fail_by_mistake(self, error: Exception) -> None:
        """Log an unexpected exception and fail this request only, with ``OutcomeUnknownError``."""
        self.connection.services.counters.mistakes += 1
        logger.error(
            "request failed: peer=%s request_id=%d api=%s reason=internal_error. Report this error",
            self.connection.peer,
            self.request_id,
            self.name,
            exc_info=error,
        )
        self.fail(
            OutcomeUnknownError(
                f"internal broker error ({type(error).__name__}). The outcome is unknown. See "
                f"request_id={self.request_id} in the broker log, and report this error"
            )
        )

    @property
    def is_wanted(self) -> bool:
        """Whether the client is still connected."""
        return not self.connection.is_closed


class Reply(Exchange):
    """Reply to a request of raftlog's protocol."""

    __slots__ = ()

    request: Request

    def send(self, message: Message, attachment: Sequence[Buffer] = ()) -> None:
        if self.amend is not None:
            self._send_amended(message, attachment)
            return
        meter = self.connection.meter
        throttle_ms = 0 if meter is None else self._throttle(meter)
        if throttle_ms and "throttle_ms" in message.__struct_fields__:
            message = msgspec.structs.replace(message, throttle_ms=throttle_ms)
        self.connection.respond(self.request, message, attachment)
        self._ended()

    def fail(self, error: RaftlogError) -> None:
        """Send an error. If the request has no response, the connection is closed."""
        if self.request.expects_response:
            self.connection.services.counters.request_failed(error)
            self.outcome = type(error).__name__
            self.connection.refuse(self.request, error)
            self._ended()
        else:
            self.drop(error)


# -- once ------------------------------------------------------------------------------------------
#
# Rejects requests that contain a partition, topic or group more than once.
#
# Duplicates only cost work.


def check_once(api: str, names: Sequence[Hashable]) -> None:
    """Raise ``InvalidRequestError`` for a name that a request of ``api`` has more than once."""
    # guard: a request names each partition once
    if len(names) < 2 or len(set(names)) == len(names):
        return
    seen: set[Hashable] = set()
    for name in names:
        if name in seen:
            shown = ":".join(map(str, name)) if isinstance(name, tuple) else name
            raise InvalidRequestError(
                f"{api} contains {shown} twice. Nothing was done. Specify each one once"
            )
        seen.add(name)


# -- outcomes of the parts of one request ----------------------------------------------------------
#
# They are known at different times.

T = TypeVar("T")


class Outcomes(Generic[T]):
    """``complete`` is called once every part has an outcome, with all of them in order.

    Without parts, it is called at once.
    """

    __slots__ = ("_complete", "_missing", "_outcomes")

    def __init__(self, count: int, complete: Callable[[list[T]], None]) -> None:
        self._outcomes: list[T | None] = [None] * count
        self._missing = count
        self._complete = complete
        if not count:
            complete([])

    def resolve(self, index: int, outcome: T) -> None:
        """Set the outcome of a part."""
        assert self._outcomes[index] is None, "a part of a request has one outcome"
        self._outcomes[index] = outcome
        self._missing -= 1
        if not self._missing:
            self._complete(cast(list[T], self._outcomes))

    @property
    def missing(self) -> list[int]:
        """The parts without an outcome."""
        return [index for index, outcome in enumerate(self._outcomes) if outcome is None]
