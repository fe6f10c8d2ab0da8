"""Audit: authentication failures, denials and administrative requests, as records of a topic.

``note`` never waits. Events are written in batches, by each broker to the leader of the one
partition of ``__audit``. Their number is limited, in memory and per second; further ones are
dropped and counted. After an error whose outcome is unknown, a batch is written again, so that a
record may occur twice.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Callable, Sequence
from itertools import islice
from typing import Any, Final, Literal, NamedTuple, Protocol, TypeAlias

import msgspec

from raftlog import limits
from raftlog.errors import RaftlogError, RecordTooLargeError
from raftlog.record import Codec, encode, seal
from raftlog.security.acl import Principal
from raftlog.security.quota import DEFAULT, Bucket
from raftlog.server.metrics import Counters
from raftlog.types import TimestampMs

logger = logging.getLogger(__name__)

INTERVAL_SECONDS: Final = 0.2  # between an event and its batch, which contains later events too
RETRY_SECONDS: Final = 2.0

AuditKind: TypeAlias = Literal["authentication", "denial", "administration"]


class Event(NamedTuple):
    """What happened: who (``principal``), from where (``host``), what, and the outcome.

    ``request``: name of the API. ``resources``: what it names, some of them. ``outcome``: "ok", or
    the class of the error.
    """

    at_ms: TimestampMs
    broker: int
    kind: AuditKind
    principal: str
    host: str
    request: str
    resources: tuple[str, ...]
    outcome: str


class AuditLog(Protocol):
    """Stores batches of events."""

    async def write(self, batch: bytes) -> None:
        """Append a batch to the audit topic. Raises ``RaftlogError``."""
        ...


class Audit:
    """Events of one broker that are not stored yet."""

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        log: AuditLog,
        *,
        broker_id: int,
        counters: Counters,
        wall_ms: Callable[[], int],
        now: Callable[[], float],
    ) -> None:
        """``now``: monotonic seconds."""
        self._loop = loop
        self._log = log
        self._broker_id = broker_id
        self._counters = counters
        self._wall_ms = wall_ms
        self._now = now
        self._bucket = Bucket(limits.AUDIT_EVENTS_PER_S, now())
        self._pending: deque[Event] = deque()
        self._batch_events = limits.AUDIT_EVENTS_PER_BATCH  # fewer after a batch that was too large
        self._timer: asyncio.TimerHandle | None = None
        self._task: asyncio.Task[None] | None = None

    def note(
        self,
        kind: AuditKind,
        *,
        principal: str,
        host: str,
        request: str,
        resources: Sequence[str] = (),
        outcome: str = "ok",
    ) -> None:
        """Note an event, or drop it if there are too many."""
        # guard: events of the audit that are not stored are limited
        if len(self._pending) >= limits.AUDIT_EVENTS_PENDING_MAX or not self._may_add():
            self._counters.audit_dropped += 1
            return
        shown = tuple(name[: limits.ACL_RESOURCE_CHARS_MAX] for name in resources)
        self._pending.append(
            Event(
                at_ms=self._wall_ms(),
                broker=self._broker_id,
                kind=kind,
                principal=principal,
                host=host,
                request=request,
                resources=shown[: limits.AUDIT_RESOURCES_MAX],
                outcome=outcome,
            )
        )
        self._begin_after(INTERVAL_SECONDS)

    def authentication_failed(self, principal: Principal, host: str, how: str) -> None:
        """Note a failed attempt. The name that the client gave is not known to be its own."""
        self.note(
            "authentication",
            principal=str(principal),
            host=host,
            request=how,
            outcome="AuthenticationError",
        )

    def _may_add(self) -> bool:
        rate = limits.AUDIT_EVENTS_PER_S
        if self._bucket.take(0, rate, self._now()):
            return False
        self._bucket.take(1, rate, self._now())
        return True

    def _begin_after(self, seconds: float) -> None:
        if self._timer is None and self._task is None:
            self._timer = self._loop.call_later(seconds, self._begin)

    def _begin(self) -> None:
        self._timer = None
        self._task = self._loop.create_task(self._write())

    async def _write(self) -> None:
        """Write the oldest events. Those of a failed batch are written again later, and those of
        one that is too large in smaller ones.
        """
        events = list(islice(self._pending, self._batch_events))
        done, seconds = len(events), 0.0
        self._batch_events = limits.AUDIT_EVENTS_PER_BATCH
        try:
            await self._log.write(batch_of(events))
        except RecordTooLargeError as error:
            self._batch_events = max(done // 2, 1)
            if done > 1:
                done = 0
            else:
                self._counters.audit_dropped += 1
                logger.warning("audit event dropped: error=%s", error)
        except RaftlogError as error:
            done, seconds = 0, RETRY_SECONDS
            logger.warning("audit events not written, retrying: error=%s", error)
        except Exception:
            self._counters.audit_dropped += done
            logger.exception("audit events dropped: reason=internal_error. Report this error")
        for _ in range(done):
            self._pending.popleft()
        self._task = None
        if self._pending:
            self._begin_after(seconds)

    async def stop(self) -> None:
        """Stop. Events that are not stored yet are lost."""
        if self._timer is not None:
            self._timer.cancel()
        if self._task is not None:
            self._task.cancel()
            await asyncio.wait([self._task])


def batch_of(events: Sequence[Event]) -> bytes:
    """Return the events as records: the principal as the key, and JSON as the value."""
    body = encode(
        [msgspec.json.encode(event._asdict()) for event in events],
        keys=[event.principal.encode() for event in events],
        timestamps_ms=[event.at_ms for event in events],
        codec=Codec.LZ4,
    )
    return seal(body) + body.payload


# Fields of requests that name resources. No other field is shown: it could be a secret.
_LISTS: Final = (
    *("topics", "topic_names", "acls", "filters", "quotas", "groups", "groups_names"),
    *("resources", "creations", "entries", "partitions", "users", "changes"),
    *("topic_partitions", "deletions", "upsertions", "feature_updates"),
)
_NAMES: Final = (
    *("topic", "group", "group_id", "name", "resource_name", "logger", "token_id"),
    *("transactional_id", "feature"),
)


def resources_of(message: Any) -> list[str]:
    """Return what a request names: topics, groups, rules, some of them."""
    found = [_name(message)]
    for field in _LISTS:
        items = getattr(message, field, None)
        if isinstance(items, list):
            found += [_name(item) for item in items[: limits.AUDIT_RESOURCES_MAX]]
    return [name for name in found if name]


def _name(item: Any) -> str:
    if isinstance(item, str):
        return item
    if type(item).__module__.startswith("raftlog.security"):  # rules and filters
        return str(item)
    entity = getattr(item, "entity", None)
    if isinstance(entity, msgspec.Struct):
        return str(entity)
    if isinstance(entity, list):  # of a quota of a Kafka client
        return ", ".join(f"{one.entity_type} {one.entity_name or DEFAULT}" for one in entity)
    return next((name for field in _NAMES if (name := getattr(item, field, None))), "")
