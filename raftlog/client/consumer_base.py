"""Base of both consumers: the constructor, and the checks of arguments."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, Generic, Unpack

from raftlog import limits
from raftlog.client.consumer_core import ConsumerCore
from raftlog.client.consumer_groups.member import Member
from raftlog.client.consumer_groups.rebalancing import Listeners, Rebalancer, check_listener
from raftlog.client.defaults import CLIENT_ID_DEFAULT
from raftlog.client.environment import ClientEnvironment
from raftlog.client.fetch_state import PartitionFetchState
from raftlog.client.settings import (
    Arguments,
    Bootstrap,
    SecurityArguments,
    connection_settings,
    consumer_settings,
    function,
    group_settings,
)
from raftlog.client.subscription import check_partitions, check_topics
from raftlog.errors import InvalidRequestError
from raftlog.kafka_names import answers_kafka_names
from raftlog.types import (
    ConsumerRecord,
    GroupMetadata,
    K,
    OffsetAndMetadata,
    RebalanceListener,
    TopicPartition,
    V,
)

POLL_TIMEOUT_MS_DEFAULT = 1_000
POLL_RECORDS_DEFAULT = 500
POLL_RECORDS_MAX = 10_000_000
CLOSE_TIMEOUT_MS_DEFAULT = 5_000


@answers_kafka_names
class ConsumerBase(Generic[K, V]):
    """Settings of a consumer. See ``Consumer`` and ``AsyncConsumer``."""

    _records: Iterator[ConsumerRecord[Any, Any]]  # rest of the batch that is being iterated
    _part: PartitionFetchState  # partition of that batch

    def __init__(
        self,
        bootstrap: Bootstrap = None,
        *,
        group: str | None = None,
        group_instance_id: str | None = None,
        auto_commit: bool = True,
        auto_commit_interval_ms: int = 5_000,
        session_timeout_ms: int = 45_000,
        heartbeat_interval_ms: int = 5_000,
        max_poll_interval_ms: int = 300_000,
        assignor: str | None = None,
        auto_offset_reset: str = "latest",
        fetch_min_bytes: int = 1,
        fetch_max_wait_ms: int = 500,
        fetch_max_bytes: int = limits.FETCH_BYTES_MAX,
        max_partition_fetch_bytes: int = limits.MIB,
        check_crcs: bool = True,
        read_from: str = "leader",
        client_rack: str | None = None,
        key_deserializer: Callable[[bytes], K] | None = None,
        value_deserializer: Callable[[bytes], V] | None = None,
        request_timeout_ms: int = 30_000,
        client_id: str = CLIENT_ID_DEFAULT,
        bootstrap_timeout_ms: int = 3_000,
        metadata_max_age_ms: int = 30_000,
        host: ClientEnvironment | None = None,
        **security: Unpack[SecurityArguments],
    ) -> None:
        """Create the consumer. It opens its first connection when a topic or partition is named.

        ``bootstrap``: ``host:port[,host:port]`` of one or more brokers, or a list of addresses.
            Default: the environment variable RAFTLOG_BOOTSTRAP; without it, the brokers of `raftlog
            up`: 127.0.0.1:9100 to 9102.
        ``group``: name of the consumer group, 1 to 255 characters. Its members divide the
            partitions.
        ``group_instance_id``: id of a static member, 1 to 255 characters. After ``close`` or a
            crash, its partitions stay reserved for the next member with this id, for
            ``session_timeout_ms``.
        ``auto_commit``: commit processed records every ``auto_commit_interval_ms`` (1 to
            86,400,000), when partitions are revoked, and on ``close``.
        ``session_timeout_ms``: the group removes a member after this time without a heartbeat, 100
            to 1,800,000. ``heartbeat_interval_ms``: 1 to 60,000, at most a third of the session
            timeout.
        ``max_poll_interval_ms``: a member that does not poll for this time leaves; also the time
            limit to revoke a partition. 1 to 2,147,483,647.
        ``assignor``: assignment strategy, "uniform" or "range". Default: the coordinator's.
        ``auto_offset_reset``: start position without a committed offset, and after an offset is out
            of range: "earliest", "latest" (the end when the partition is assigned), or "error".
        ``fetch_min_bytes``, ``fetch_max_wait_ms``: a broker responds when it has this number of
            bytes, or after this wait: 0 to 52,428,800 bytes, 0 to 60,000 ms. If one byte is enough
            and no record arrives, it waits up to ten times as long; this delays no record.
        ``fetch_max_bytes``, ``max_partition_fetch_bytes``: maximum bytes of one fetch, in total and
            for each partition, 1 to 52,428,800. A larger batch is returned complete.
        ``check_crcs``: verify the CRC-32C of each batch.
        ``read_from``: "leader": fetch from the leader; if none is reachable for 1 s, from another
            replica. "replica": fetch from any in-sync replica, which learns of committed records a
            little later. Both return committed records only.
        ``client_rack``: with "replica", prefer replicas whose broker has this ``rack``.
        ``key_deserializer``, ``value_deserializer``: ``bytes -> anything``; not called for None.
        ``request_timeout_ms``: time limit for the response to one request, 1 to 86,400,000.
        ``client_id``: name of this client in the broker log, up to 256 characters.
        ``bootstrap_timeout_ms``: time limit for the first connection, 0 to 86,400,000.
        ``metadata_max_age_ms``: interval of metadata refreshes, which find new partitions.
        ``host``: environment of the client. ``security``: TLS arguments (`SecurityArguments`).

        Raises ``InvalidRequestError``, ``InvalidGroupError`` or ``TypeError``, with the argument.
        """
        self._wire(locals())
        self._setup()

    def _wire(self, arguments: Arguments) -> None:
        names = "key_deserializer", "value_deserializer"
        self._host = arguments["host"] or ClientEnvironment()
        self._core = ConsumerCore(
            connection_settings(arguments),
            consumer_settings(arguments),
            self._host,
            group=group_settings(arguments),
            **{name: function(name, arguments[name]) for name in names},
        )
        self._subscription = self._core.subscription
        self._records = iter(())
        self._member = self._core.member
        self._deserializes = self._core.has_deserializers
        self._rebalancer: Rebalancer | None = None
        if self._member is not None:
            self._rebalancer = Rebalancer(
                self._member, self._subscription, now=self._core.monotonic
            )

    def _setup(self) -> None:
        """Set up what only the synchronous or only the asynchronous consumer has."""

    def group_metadata(self) -> GroupMetadata:
        """Return the identity of this consumer in its group: member id, epoch and instance id.

        Raises ``InvalidRequestError`` without a group.
        """
        membership = self._grouped("group_metadata").membership
        settings = membership.settings
        return GroupMetadata(
            settings.group, membership.member_id, membership.epoch, settings.instance_id
        )

    def _grouped(self, what: str) -> Member:
        if self._member is None:
            raise InvalidRequestError(
                f"{what}() needs a consumer group. Set group=..., or store position() in the "
                "application and seek() to it after a restart"
            )
        return self._member

    def _listen(
        self,
        on_assign: RebalanceListener | None,
        on_revoke: RebalanceListener | None,
        on_lost: RebalanceListener | None,
        *,
        coroutines: bool = False,
    ) -> None:
        given = {"on_assign": on_assign, "on_revoke": on_revoke, "on_lost": on_lost}
        for name, listener in given.items():
            check_listener(name, listener, coroutines=coroutines)
        if self._rebalancer is not None:
            self._rebalancer.listeners = Listeners(on_assign, on_revoke, on_lost)
        elif any(listener is not None for listener in given.values()):
            raise InvalidRequestError(
                "on_assign, on_revoke and on_lost need a consumer group. Set group=..."
            )

    def _these(self, partitions: Iterable[TopicPartition] | None) -> list[TopicPartition]:
        """Return the checked ``partitions``; None selects all assigned partitions."""
        if partitions is None:
            return list(self._subscription.parts)
        return check_partitions(partitions)

    def _deserialized(self, record: ConsumerRecord) -> ConsumerRecord[Any, Any]:
        """Return the next record of an iteration, deserialized."""
        try:
            return self._core.deserialized(record)
        except Exception:
            self._subscription.all_processed()  # up to the record before this one
            raise

    def _check_readable(self) -> None:
        if not self._subscription.parts and not self._subscription.is_open:
            raise nothing_assigned()
        self._core.activate()


def check_interest(
    topics: Iterable[str] | None, pattern: str | re.Pattern[str] | None
) -> tuple[list[str], re.Pattern[str] | None]:
    """Check the arguments of ``subscribe``: topics, or a pattern for complete topic names.

    Raises ``InvalidRequestError`` or ``TypeError`` if they are wrong.
    """
    if (topics is None) == (pattern is None):
        raise InvalidRequestError(
            "subscribe() requires either topics or pattern. Pass exactly one of them"
        )
    if pattern is None:
        assert topics is not None, "one is given"
        return check_topics(topics), None
    text: object = getattr(pattern, "pattern", pattern)
    if not isinstance(text, str):
        raise TypeError(f"pattern={pattern!r} is not a str or a compiled str pattern")
    try:
        return [], re.compile(pattern)
    except re.error as error:
        raise InvalidRequestError(
            f"pattern={pattern!r} is not a regular expression: {error}"
        ) from error


def check_some(
    partitions: TopicPartition | Iterable[TopicPartition],
) -> tuple[list[TopicPartition], bool]:
    """Return the checked partitions, and True if the argument is a single partition."""
    if isinstance(partitions, TopicPartition):
        return check_partitions([partitions]), True
    return check_partitions(partitions), False


def check_callback(callback: object) -> None:
    if callback is not None and not callable(callback):
        raise TypeError(f"callback={callback!r} is not a function (offsets, error)")


def chosen(
    found: Mapping[TopicPartition, OffsetAndMetadata | None], *, is_one: bool, metadata: bool
) -> Any:
    """Return the result of ``committed`` in the form that the caller requested."""
    wanted: dict[TopicPartition, Any] = {
        tp: given if metadata or given is None else given.offset for tp, given in found.items()
    }
    return next(iter(wanted.values())) if is_one else wanted


def nothing_assigned() -> InvalidRequestError:
    return InvalidRequestError(
        "this consumer has no assignment. Call assign() or subscribe() first"
    )
