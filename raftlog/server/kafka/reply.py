"""Reply to one request of a Kafka client."""

from __future__ import annotations

from asyncio import TimerHandle
from collections.abc import Callable, Generator, Iterable
from typing import Any, TypeAlias, TypeVar

from raftlog import limits
from raftlog.errors import InvalidRequestError, RaftlogError, RequestTimedOutError, ThrottledError
from raftlog.kafka import codec, errors
from raftlog.kafka.codec import Message, Structs
from raftlog.kafka.connection import KafkaRequest
from raftlog.kafka.errors import Place
from raftlog.server.apis.offsets import leader_of
from raftlog.server.connection import Connection
from raftlog.server.context import BrokerContext
from raftlog.server.exchange import Exchange
from raftlog.server.partition import Partition
from raftlog.server.scheduling import ITEMS_PER_STEP

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


# -- parts -----------------------------------------------------------------------------------------
#
# The topics and partitions of Kafka requests: names for ids, limits, and hints for clients.


T = TypeVar("T")
R = TypeVar("R")


def topic_name(context: BrokerContext, name: str, topic_id: bytes, *, by_id: bool) -> str:
    """Return the name of a topic that a request contains by name or by id.

    Raises ``UnknownTopicError`` or ``ClusterNotReadyError``.
    """
    return context.topics.by_id(topic_id.hex()).name if by_id else name


def unsigned(partition: int) -> int:
    """Return a partition number of a request; for one below 0, a number that no topic has."""
    return partition if partition >= 0 else limits.PARTITIONS_PER_TOPIC_MAX


def host_of(context: BrokerContext, topic: str, partition: int) -> Partition:
    """Return this broker's copy of a partition. Raises the errors of ``TopicTable.host``."""
    return context.topics.host(topic, unsigned(partition))


def check_count(what: str, count: int) -> None:
    """Raise ``InvalidRequestError`` if a request has too many partitions.

    Clients do not divide requests, and Kafka has no limit: this one only bounds memory.
    """
    if count > limits.KAFKA_ITEMS_MAX:
        raise InvalidRequestError(
            f"the {what} request has {count} partitions or more, over KAFKA_ITEMS_MAX "
            f"({limits.KAFKA_ITEMS_MAX}). Send several requests"
        )


class ResponseRoom:
    """Bytes that the parts of a response may still have, approximately. The first part always
    fits.
    """

    __slots__ = ("_left",)

    def __init__(self) -> None:
        self._left = limits.KAFKA_RESPONSE_BYTES_MAX

    def check(self, what: str) -> None:
        """Raise ``ThrottledError`` if the parts before this one have filled the response."""
        if self._left <= 0:
            raise ThrottledError(
                f"{what} is not in this response, which has about KAFKA_RESPONSE_BYTES_MAX "
                f"({limits.KAFKA_RESPONSE_BYTES_MAX}) bytes. Request it again"
            )

    def use(self, size_bytes: int) -> None:
        """Note the size of a part."""
        self._left -= size_bytes


def by_topic(
    topics: Iterable[Message],
    parts_of: Callable[[Message], Iterable[T]],
    part: Callable[[Message, T], R],
    topic: Callable[[Message, list[R]], Message],
) -> Generator[None, Any, list[Message]]:
    """Return ``topic(each, parts)`` of all topics, where ``parts`` are ``part(each, one)`` of all
    its parts; some parts in each step.
    """
    made: list[Message] = []
    count = 0
    for each in topics:
        parts: list[R] = []
        for one in parts_of(each):
            parts.append(part(each, one))
            count += 1
            if not count % ITEMS_PER_STEP:
                yield None
        made.append(topic(each, parts))
        count += 1
        if not count % ITEMS_PER_STEP:
            yield None
    return made


def hint_leaders(
    context: BrokerContext,
    structs: Structs,
    response: Message,
    local_host: str,
    failed: Iterable[tuple[str, int, Any]],
) -> None:
    """Add the current leaders to the partitions of a response that are led by other brokers, so
    that the client continues there at once (KIP-951).

    ``failed``: topic name, partition and the partition's part of ``response``.
    """
    leaders: set[int] = set()
    for topic, partition, part in failed:
        if part.error_code != errors.NOT_LEADER_OR_FOLLOWER:
            continue
        leader = leader_of(context, topic, partition)
        if leader.broker_id < 0 or leader.broker_id == context.broker_id:
            continue
        part.current_leader = structs.LeaderIdAndEpoch(
            leader_id=leader.broker_id, leader_epoch=leader.epoch
        )
        leaders.add(leader.broker_id)
    if leaders:
        response.node_endpoints = [
            structs.NodeEndpoint(node_id=each.id, host=each.host, port=each.port, rack=each.rack)
            for each in context.brokers(local_host, for_kafka=True)
            if each.id in leaders
        ]
