"""What both consumers have: the constructor, and the checks of what they are given."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping
from typing import Any, Generic

from raftlog import limits
from raftlog.client.consumer_core import ConsumerCore
from raftlog.client.consumer_groups.member import Member
from raftlog.client.consumer_groups.rebalancing import Listeners, Rebalancer, check_listener
from raftlog.client.environment import ClientEnvironment
from raftlog.client.settings import (
    CLIENT_ID_DEFAULT,
    Arguments,
    Bootstrap,
    connection_settings,
    consumer_settings,
    function,
    group_settings,
)
from raftlog.client.subscription import check_partitions, check_topics
from raftlog.errors import InvalidRequestError
from raftlog.kafka_names import answers_kafka_names
from raftlog.types import (
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
    """The settings of a consumer; see ``Consumer`` and ``AsyncConsumer``."""

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
    ) -> None:
        """Nothing is connected before the first partition or topic is named.

        ``bootstrap``: ``host:port[,host:port]`` of any of the cluster's brokers, or a list of such;
            default: the environment's RAFTLOG_BOOTSTRAP, else the brokers of `raftlog up`, which
            are 127.0.0.1:9100 to 9102.
        ``group``: the consumer group: its members share partitions; 1 to 255 characters.
        ``group_instance_id``: a static member's: after ``close`` or a crash its partitions stay
            reserved for the next one of that id, for ``session_timeout_ms``.
        ``auto_commit``: commit what was processed, every ``auto_commit_interval_ms`` (1 to
            86,400,000), when partitions are given up, and on ``close``.
        ``session_timeout_ms``: a member that is not heard of for so long has left: 100 to
            1,800,000; ``heartbeat_interval_ms``: how often it is, when there is nothing to tell: 1
            to 60,000, and never more than a third of the session timeout.
        ``max_poll_interval_ms``: a member that does not ask for records for so long leaves; so
            long it may take to give a partition up: 1 to 2,147,483,647.
        ``assignor``: shares the partitions out, "uniform" or "range"; default: the coordinator's.
        ``auto_offset_reset``: where to begin (in a group: where it has committed nothing), and to
            go on when an offset is out of range: "earliest", "latest" (the end, as it is when the
            partition is assigned), or "error".
        ``fetch_min_bytes``, ``fetch_max_wait_ms``: a broker answers when it has so many bytes, or
            has waited so long: 0 to 52,428,800 bytes, 0 to 60,000 ms. Where one byte is enough and
            none comes, it waits up to ten times as long: that delays no record.
        ``fetch_max_bytes``, ``max_partition_fetch_bytes``: the most that one fetch brings, in all
            and of one partition: 1 to 52,428,800. A larger batch comes whole nevertheless.
        ``check_crcs``: check each batch's CRC-32C.
        ``read_from``: "leader": each partition from its leader, and while that cannot be reached
            for a second and there is no other, from another replica; "replica": from any in-sync
            replica, which knows of what is committed a little later. Both read committed records
            only.
        ``client_rack``: with "replica", rather one whose broker's ``rack`` this is.
        ``key_deserializer``, ``value_deserializer``: ``bytes -> anything``; not called for None.
        ``request_timeout_ms``: how long a broker may take to answer one request.
        ``client_id``: names this client in the broker's log.
        ``bootstrap_timeout_ms``: how long to look for the cluster the first time.
        ``metadata_max_age_ms``: how often to ask for partitions added to topics subscribed to.
        ``host``: where the client lives; for embedding and tests.

        Raises ``InvalidRequestError`` or ``TypeError`` naming the argument that is wrong, and
        ``InvalidGroupError`` for what is no name of a group, or of an instance.
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
        self._member = self._core.member
        self._rebalancer: Rebalancer | None = None
        if self._member is not None:
            self._rebalancer = Rebalancer(
                self._member, self._subscription, now=self._core.monotonic
            )

    def _setup(self) -> None:
        """What only one of the skins has."""

    def group_metadata(self) -> GroupMetadata:
        """Who this consumer is in its group. Raises ``InvalidRequestError`` without one."""
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
        """``partitions``, checked; None for all that are assigned."""
        if partitions is None:
            return list(self._subscription.parts)
        return check_partitions(partitions)

    def _check_readable(self) -> None:
        if not self._subscription.parts and not self._subscription.is_open:
            raise nothing_assigned()
        self._core.activate()


def check_interest(
    topics: Iterable[str] | None, pattern: str | re.Pattern[str] | None
) -> tuple[list[str], re.Pattern[str] | None]:
    """What ``subscribe`` takes: topics, or a pattern of whole names."""
    if (topics is None) == (pattern is None):
        raise InvalidRequestError(
            "subscribe(topics) or subscribe(pattern=...): one of them, not both"
        )
    if pattern is None:
        assert topics is not None, "one is given"
        return check_topics(topics), None
    text: object = getattr(pattern, "pattern", pattern)
    if not isinstance(text, str):
        raise TypeError(f"pattern={pattern!r}: a text (str), or what re.compile makes of one")
    try:
        return [], re.compile(pattern)
    except re.error as error:
        raise InvalidRequestError(
            f"pattern={pattern!r} is no regular expression: {error}"
        ) from error


def check_some(
    partitions: TopicPartition | Iterable[TopicPartition],
) -> tuple[list[TopicPartition], bool]:
    """One partition, or several; and whether it was one."""
    if isinstance(partitions, TopicPartition):
        return check_partitions([partitions]), True
    return check_partitions(partitions), False


def check_callback(callback: object) -> None:
    if callback is not None and not callable(callback):
        raise TypeError(f"callback={callback!r}: a function of the offsets and an error")


def chosen(
    found: Mapping[TopicPartition, OffsetAndMetadata | None], *, is_one: bool, metadata: bool
) -> Any:
    """What ``committed`` gives of what was found."""
    wanted: dict[TopicPartition, Any] = {
        tp: given if metadata or given is None else given.offset for tp, given in found.items()
    }
    return next(iter(wanted.values())) if is_one else wanted


def nothing_assigned() -> InvalidRequestError:
    return InvalidRequestError(
        "nothing is assigned to this consumer: assign() or subscribe() first"
    )
