"""Reply to one request of a Kafka client."""

from __future__ import annotations

from asyncio import TimerHandle
from collections.abc import Callable
from typing import TypeAlias

from raftlog.errors import RaftlogError, RequestTimedOutError
from raftlog.kafka import codec, errors
from raftlog.kafka.codec import Message
from raftlog.kafka.connection import KafkaRequest
from raftlog.kafka.errors import Place
from raftlog.server.connection import Connection
from raftlog.server.reply import Exchange

# Returns the response to a request that failed as a whole: with the error wherever the API's
# response has a place for one.
Refusal: TypeAlias = Callable[[KafkaRequest, RaftlogError], Message]


class KafkaReply(Exchange):
    """Reply to a request of Kafka's protocol."""

    __slots__ = ("_refusal", "_timer", "is_over")

    request: KafkaRequest

    def __init__(self, connection: Connection, request: KafkaRequest, refusal: Refusal) -> None:
        super().__init__(connection, request)
        self._refusal = refusal
        self._timer: TimerHandle | None = None
        self.is_over = False  # replied to, possibly with a timeout

    def expire_after(self, timeout_ms: int) -> None:
        """Fail the request after the timeout of the client; its work continues."""
        if not self.is_over:
            loop = self.connection.services.loop
            self._timer = loop.call_later(max(timeout_ms, 0) / 1_000, self._expire, timeout_ms)

    def _expire(self, timeout_ms: int) -> None:
        self.fail(
            RequestTimedOutError(
                f"{self.name} was not complete after the request's timeout of {timeout_ms} ms. "
                "The change may still be made"
            )
        )

    def send(self, message: Message) -> None:
        if self.is_over:
            return  # it has timed out
        if self.amend is not None:
            self._send_amended(message)
            return
        self.is_over = True
        meter = self.connection.meter
        throttle_ms = 0 if meter is None else self._throttle(meter)
        if throttle_ms:
            message.throttle_time_ms = throttle_ms
        if self._timer is not None:
            self._timer.cancel()
        self.connection.respond_kafka(self.request, message)
        self._ended()

    def fail(self, error: RaftlogError) -> None:
        if self.request.expects_response:
            self.connection.services.counters.request_failed(error)
            self.outcome = type(error).__name__
            self.amend = None  # the error is that of every part of the request
            self.send(self._refusal(self.request, error))
        else:
            self.drop(error)


def refused_by_code(place: Place) -> Refusal:
    """Return the refusal of an API whose response has an error code, and possibly a text, for the
    request as a whole.
    """

    def refuse(request: KafkaRequest, error: RaftlogError) -> Message:
        response = codec.structs("response", request.api.key).root()
        response.error_code = errors.code_of(error, place)
        if hasattr(response, "error_message"):
            response.error_message = error.wire_text
        return response

    return refuse
