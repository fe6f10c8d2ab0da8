"""Names of settings in Kafka's Python clients: the error for one gives raftlog's name."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import wraps
from typing import Any, Final, TypeVar

C = TypeVar("C", bound=type)

# Names of kafka-python and aiokafka; the value completes the sentence "use ...".
NAMES: Final[Mapping[str, str]] = {
    "batch_size": "batch_bytes_max",
    "bootstrap_servers": "bootstrap",
    "compression_type": "compression",
    "consumer_timeout_ms": "poll(timeout_ms=...): iteration waits without end",
    "default_offset_commit_callback": "commit_async(callback=...)",
    "enable_auto_commit": "auto_commit",
    "enable_idempotence": "idempotent",
    "group_id": "group",
    "isolation_level": "nothing: consumers return committed records only",
    "max_batch_size": "batch_bytes_max",
    "max_in_flight_requests_per_connection": "nothing: the order is kept with any number",
    "max_poll_records": "poll(max_records=...)",
    "max_request_size": "the topic's max.message.bytes",
    "num_partitions": "partitions",
    "partition_assignment_strategy": 'assignor ("uniform" or "range")',
    "retries": "delivery_timeout_ms: a record is retried until then",
    "retry_backoff_ms": "delivery_timeout_ms: a record is retried until then",
    "topic_configs": "config",
    "transactional_id": "ResumableProducer(name=...): there are no transactions yet",
}


def answers_kafka_names(client: C) -> C:
    """A class decorator: a keyword of ``NAMES`` raises ``TypeError`` with the name to use."""
    construct: Callable[..., None] = client.__init__  # type: ignore[misc]

    @wraps(construct)
    def checked(self: object, *args: Any, **kwargs: Any) -> None:
        for name in kwargs:
            if name in NAMES:
                raise TypeError(
                    f"{type(self).__name__}() has no argument {name!r}: use {NAMES[name]}"
                )
        construct(self, *args, **kwargs)

    client.__init__ = checked  # type: ignore[misc]
    return client
