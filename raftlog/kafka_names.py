"""Names of settings in Kafka's Python clients. The error for each contains raftlog's name."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import wraps
from typing import Any, Final, TypeVar

C = TypeVar("C", bound=type)

_HAS_KEYWORDS: Final = 0x08  # inspect.CO_VARKEYWORDS; importing inspect takes 7 ms

_RETRIED: Final = "use delivery_timeout_ms: a record is retried until then"

# Names of kafka-python, aiokafka and, with "_" for ".", confluent-kafka. The value is an argument
# of raftlog's clients, or a sentence.
NAMES: Final[Mapping[str, str]] = {
    "batch_num_messages": "batch_bytes_max",
    "batch_size": "batch_bytes_max",
    "bootstrap_servers": "bootstrap",
    "compression_codec": "compression",
    "compression_type": "compression",
    "consumer_timeout_ms": "use poll(timeout_ms=...): iteration waits indefinitely",
    "default_offset_commit_callback": "use commit_async(callback=...)",
    "enable_auto_commit": "auto_commit",
    "enable_idempotence": "idempotent",
    "fetch_wait_max_ms": "fetch_max_wait_ms",
    "group_id": "group",
    "isolation_level": "remove it: consumers return committed records only",
    "max_batch_size": "batch_bytes_max",
    "max_in_flight": "remove it: the order is kept",
    "max_in_flight_requests_per_connection": "remove it: the order is kept",
    "max_poll_records": "use poll(max_records=...)",
    "max_request_size": "use the topic's max.message.bytes",
    "message_timeout_ms": "delivery_timeout_ms",
    "num_partitions": "partitions",
    "on_commit": "use commit_async(callback=...)",
    "partition_assignment_strategy": "assignor",
    "queue_buffering_max_ms": "linger_ms",
    "replica_assignment": "use `raftlog cluster reassign`, after the topic is created",
    "replica_assignments": "use `raftlog cluster reassign`, after the topic is created",
    "request_required_acks": "acks",
    "retries": _RETRIED,
    "retry_backoff_ms": _RETRIED,
    "sasl_mechanisms": "sasl_mechanism",
    "sasl_plain_password": "sasl_password",
    "sasl_plain_username": "sasl_username",
    "ssl_ca_location": "ssl_cafile",
    "ssl_certificate_location": "ssl_certfile",
    "ssl_cipher_suites": "ssl_ciphers",
    "ssl_key_location": "ssl_keyfile",
    "topic": "name",
    "topic_configs": "config",
}
_SECURITY_PREFIXES: Final = ("sasl_", "security_", "ssl_")  # of arguments that all clients have


def answers_kafka_names(client: C) -> C:
    """Decorate a client class: an argument in ``NAMES`` raises ``TypeError`` with the name to use.

    raftlog's names with dots, such as ``linger.ms``, also raise it.
    """
    construct: Callable[..., None] = client.__init__  # type: ignore[misc]
    code = construct.__code__
    count = code.co_argcount + code.co_kwonlyargcount + bool(code.co_flags & _HAS_KEYWORDS)
    arguments = frozenset(code.co_varnames[:count])

    def refusal(name: str) -> str | None:
        plain = name.replace(".", "_")
        use = NAMES.get(plain, "" if plain == name else plain)
        if " " in use:
            return use
        if use in arguments or ("security" in arguments and use.startswith(_SECURITY_PREFIXES)):
            return f"use {use}"
        return "remove it: there is no such setting" if plain in NAMES else None

    @wraps(construct)
    def checked(self: object, *args: Any, **kwargs: Any) -> None:
        for name in kwargs.keys() - arguments:
            use = refusal(name)
            if use is not None:
                raise TypeError(f"{type(self).__name__}() has no argument {name!r}: {use}")
        construct(self, *args, **kwargs)

    client.__init__ = checked  # type: ignore[misc]
    return client
