"""Options that concern raftlog's client: the brokers' address, and ``raftlog.<setting>``.

Pure, except that a profile is read if no option has the brokers' address. A setting has the name
that it has in the client's constructor, with dots or underscores: ``raftlog.request.timeout.ms`` is
``request_timeout_ms``. ``kafka.`` in place of ``raftlog.`` is accepted, for settings that Kafka's
clients have by the same name. Those of TLS and SASL are also accepted without the prefix, by the
names that they have in Python: ``sasl_username``. A setting that the source controls is rejected,
and the error names the option to use instead.
"""

from __future__ import annotations

import difflib
from collections.abc import Callable, Mapping
from typing import Final, TypeAlias

from pyspark_raftlog.option_values import Hidden, Texts, choice, flag, integer, shown
from raftlog import limits
from raftlog.client import profiles
from raftlog.client.settings import (
    BATCH_BYTES_MIN,
    BUFFER_BYTES_MAX,
    DAY_MS,
    LEVELS,
    OAUTHBEARER,
    SASL_MECHANISMS,
    SECURITY_PROTOCOLS,
    SOURCES,
)
from raftlog.config import Address, parse_address
from raftlog.errors import InvalidRequestError

ADDRESS_NAMES: Final = (
    "bootstrap.servers",
    "raftlog.bootstrap.servers",
    "kafka.bootstrap.servers",
)
PREFIX: Final = "raftlog."
KAFKA_PREFIX: Final = "kafka."

Setting: TypeAlias = int | str | bool
Settings: TypeAlias = tuple[tuple[str, Setting], ...]  # sorted by name: equal ones are equal
_Parse: TypeAlias = Callable[[str, str], Setting]


def _whole(least: int, most: int) -> _Parse:
    return lambda name, text: integer(name, text, least, most)


def _text(chars_max: int) -> _Parse:
    def parse(name: str, text: str) -> str:
        if len(text) > chars_max:
            raise InvalidRequestError(
                f"{shown(name, text)} has {len(text)} characters: {chars_max} are allowed"
            )
        return text

    return parse


def _hidden(chars_max: int) -> _Parse:
    def parse(name: str, text: str) -> str:
        if len(text) > chars_max:
            raise InvalidRequestError(
                f"option {name} has {len(text)} characters: {chars_max} are allowed"
            )
        return Hidden(text)

    return parse


_TEXT: Final = _text(limits.CONFIG_VALUE_CHARS_MAX)
# TLS and SASL. Spark hides the values of options whose names contain "password" or "token" (the
# setting spark.redaction.regex).
SECURITY_SETTINGS: Final[Mapping[str, _Parse]] = {
    "profile": _TEXT,
    "security_protocol": lambda name, text: choice(name, text, SECURITY_PROTOCOLS),
    "ssl_cafile": _TEXT,
    "ssl_certfile": _TEXT,
    "ssl_keyfile": _TEXT,
    "ssl_check_hostname": flag,
    "ssl_ciphers": _TEXT,
    "sasl_mechanism": lambda name, text: choice(name, text, (*SASL_MECHANISMS, OAUTHBEARER)),
    "sasl_username": _text(limits.PRINCIPAL_NAME_CHARS_MAX),
    "sasl_password": _hidden(limits.PASSWORD_CHARS_MAX),
    "sasl_token_auth": flag,
    "sasl_oauthbearer_token_file": _TEXT,
    "sasl_oauthbearer_token_command": _hidden(limits.CONFIG_VALUE_CHARS_MAX),
}
SECRETS: Final = frozenset({"sasl_password", "sasl_oauthbearer_token_command"})
CONNECTION_SETTINGS: Final[Mapping[str, _Parse]] = {
    "client_id": _text(limits.CLIENT_ID_CHARS_MAX),
    "request_timeout_ms": _whole(1, DAY_MS),
    "bootstrap_timeout_ms": _whole(0, DAY_MS),
    **SECURITY_SETTINGS,
}
_METADATA_AGE: Final[Mapping[str, _Parse]] = {"metadata_max_age_ms": _whole(100, DAY_MS)}
READ_SETTINGS: Final[Mapping[str, _Parse]] = {
    **_METADATA_AGE,
    "fetch_max_wait_ms": _whole(0, limits.FETCH_WAIT_MS_MAX),
    "fetch_max_bytes": _whole(1, limits.FETCH_BYTES_MAX),
    "max_partition_fetch_bytes": _whole(1, limits.FETCH_BYTES_MAX),
    "check_crcs": flag,
    "read_from": lambda name, text: choice(name, text, SOURCES),
    "client_rack": _text(limits.RACK_CHARS_MAX),
}
WRITE_SETTINGS: Final[Mapping[str, _Parse]] = {
    **_METADATA_AGE,
    "compression_level": _whole(*LEVELS),
    "batch_bytes_max": _whole(BATCH_BYTES_MIN, limits.PRODUCER_BATCH_BYTES_MAX),
    "buffer_memory": _whole(BATCH_BYTES_MIN, BUFFER_BYTES_MAX),
    "max_block_ms": _whole(0, DAY_MS),
    "delivery_timeout_ms": _whole(1, DAY_MS),
}

_CHECKPOINT: Final = (
    "offsets are stored in the query's checkpoint; to show them in lag tools, set "
    "commitOffsets=true and groupId"
)
_GROUP: Final = (
    "a read is not a member of a consumer group; groupId with commitOffsets=true names the group "
    "that lag tools show"
)
_BINARY_OUT: Final = (
    'key and value are binary columns; decode them with Spark, as in df.selectExpr("cast(value as '
    'string)"), from_json or from_avro'
)
_BINARY_IN: Final = "write key and value as string or binary columns, with to_json or to_avro"
_FIXED: Final = "writes are always idempotent and wait for all in-sync replicas; leave it out"
_NO_SECRET: Final = "reads and writes need no secret, only changes of the cluster do; leave it out"  # noqa: S105 - a name, no secret
# Settings that the source controls, or that have another name here, with the replacement.
_OWNED: Final[Mapping[str, str]] = {
    "auto_offset_reset": "set startingOffsets to earliest or latest",
    "enable_auto_commit": _CHECKPOINT,
    "auto_commit": _CHECKPOINT,
    "auto_commit_interval_ms": _CHECKPOINT,
    "isolation": "only committed records are ever read; leave it out, or set isolation=committed",
    "isolation_level": "only committed records are ever read; leave it out",
    "group": _GROUP,
    "group_id": _GROUP,
    "group_instance_id": _GROUP,
    "session_timeout_ms": _GROUP,
    "heartbeat_interval_ms": _GROUP,
    "max_poll_interval_ms": _GROUP,
    "assignor": _GROUP,
    "partition_assignment_strategy": _GROUP,
    "key_deserializer": _BINARY_OUT,
    "value_deserializer": _BINARY_OUT,
    "key_serializer": _BINARY_IN,
    "value_serializer": _BINARY_IN,
    "interceptor_classes": "change the records with Spark's own functions",
    "max_poll_records": "set batchMaxRows",
    "fetch_min_bytes": "a read fetches records that exist already; leave it out",
    "linger_ms": "a write sends batches without a delay, as large as the rows allow; leave it out",
    "default_api_timeout_ms": "set fetchTimeoutMs",
    "retry_backoff_ms": "set retryIntervalMs",
    "compression": "set codec",
    "compression_type": "set codec",
    "acks": "set acks (all is the only one)",
    "idempotent": _FIXED,
    "enable_idempotence": _FIXED,
    "max_in_flight_requests_per_connection": _FIXED,
    "retries": "set raftlog.delivery.timeout.ms: the time for which a write is retried",
    "transactional_id": "there are no transactions; a stream's writes are stored once without one, "
    "a batch's with idempotenceId and idempotenceVersion",
    "partitioner": "write a column `partition`",
    "partitioner_class": "write a column `partition`",
    "batch_size": "set raftlog.batch.bytes.max",
    "bootstrap": "set bootstrap.servers",
    "cluster_secret": _NO_SECRET,
    "cluster_secret_file": _NO_SECRET,
    "host": "it is for embedding",
}
_SECURITY: Final = ("security_", "ssl_", "sasl_")
_SECURITY_ADVICE: Final = f"there is {', '.join(SECURITY_SETTINGS)}"


def parse_address_list(texts: Texts) -> str:
    """Return the broker addresses, ``host:port[,host:port]``: of the options, else of the profile.

    Raises ``InvalidRequestError``.
    """
    found: dict[str, tuple[Address, ...]] = {}
    for name in (*ADDRESS_NAMES, "raftlog.bootstrap_servers"):
        text = texts.short(name)
        if text is not None:
            found[name] = _addresses(name, text)
    if not found and (profile := _profile(texts)) is not None:
        found["raftlog.profile"] = profile
    if not found:
        raise InvalidRequestError(
            "option bootstrap.servers is missing: name some brokers, as in "
            '.option("bootstrap.servers", "broker-1:9100,broker-2:9100")'
        )
    if len({frozenset(addresses) for addresses in found.values()}) > 1:
        raise InvalidRequestError(
            f"options {' and '.join(found)} name different brokers: leave all but one out"
        )
    return ",".join(str(address) for address in next(iter(found.values())))


def _profile(texts: Texts) -> tuple[Address, ...] | None:
    """Return the addresses of the profile in the options; None without a profile."""
    name = texts.short("raftlog.profile") or texts.short("profile")
    if name is None:
        return None
    text = profiles.load(name).get("bootstrap")
    if not text:
        raise InvalidRequestError(
            f"{shown('raftlog.profile', name)} has no bootstrap: add it to the profile, or set the "
            "option bootstrap.servers"
        )
    return _addresses("raftlog.profile", text)


def _addresses(name: str, text: str) -> tuple[Address, ...]:
    found: list[Address] = []
    for each in filter(None, map(str.strip, text.split(","))):
        try:
            address = parse_address(each)
        except ValueError as error:
            raise InvalidRequestError(
                f"{shown(name, text)}: {error}; write host:port[,host:port]"
            ) from error
        if address.port == 0:
            raise InvalidRequestError(f"{shown(name, text)}: port 0 in {each!r} is no port")
        if address not in found:
            found.append(address)
    if not found:
        raise InvalidRequestError(f"{shown(name, text)}: write host:port[,host:port]")
    return tuple(found)


def is_client_option(name: str) -> bool:
    """Return whether this module parses the option (and not the table of the source's options)."""
    return (
        name in ADDRESS_NAMES
        or name in SECURITY_SETTINGS
        or name.startswith((PREFIX, KAFKA_PREFIX))
    )


def parse_settings(texts: Texts, *, writing: bool) -> Settings:
    """Return the client's settings among the options, as arguments of its constructor.

    Raises ``InvalidRequestError`` for an unknown setting, for a setting that has no effect here,
    and for a value that is out of range.
    """
    known = {**CONNECTION_SETTINGS, **(WRITE_SETTINGS if writing else READ_SETTINGS)}
    others = READ_SETTINGS if writing else WRITE_SETTINGS
    found: dict[str, Setting] = {}
    for name in texts.names:
        setting = setting_name(name)
        if name.startswith(KAFKA_PREFIX) and setting not in {*known, "bootstrap_servers"}:
            raise _kafka(name, known)
        is_setting = name.startswith((PREFIX, KAFKA_PREFIX)) or name in SECURITY_SETTINGS
        if not is_setting or setting == "bootstrap_servers":
            continue
        if setting in _OWNED:
            raise InvalidRequestError(f"option {name} is not supported here: {_OWNED[setting]}")
        if setting.startswith(_SECURITY) and setting not in SECURITY_SETTINGS:
            raise InvalidRequestError(f"option {name} is not supported here: {_SECURITY_ADVICE}")
        if setting in others.keys() - known.keys():
            raise InvalidRequestError(
                f"option {name} has no effect here: it is a setting of "
                f"{'reading' if writing else 'writing'}. Leave it out"
            )
        if setting not in known:
            raise _unknown(name, setting, known)
        if setting in found:
            raise InvalidRequestError(f"option {name} is given twice, by two names: leave one out")
        text = texts.short(name)
        assert text is not None, "the name is one of texts.names"
        found[setting] = known[setting](name, text)
    if found.get("read_from") == "leader" and "client_rack" in found:
        raise InvalidRequestError(
            "option raftlog.client.rack selects a replica: it requires raftlog.read.from=replica"
        )
    return tuple(sorted(found.items()))


def setting_name(name: str) -> str:
    """Map ``raftlog.request.timeout.ms`` to ``request_timeout_ms``; likewise ``kafka.``."""
    bare = name.removeprefix(PREFIX).removeprefix(KAFKA_PREFIX)
    return bare.replace(".", "_").replace("-", "_")


def dotted(setting: str) -> str:
    """Map ``request_timeout_ms`` to ``raftlog.request.timeout.ms``, the form of the manual."""
    return PREFIX + setting.replace("_", ".")


def _kafka(name: str, known: Mapping[str, _Parse]) -> InvalidRequestError:
    setting = setting_name(name)
    if setting in _OWNED:
        advice = _OWNED[setting]
    elif setting.startswith(_SECURITY):
        advice = _SECURITY_ADVICE
    else:
        near = difflib.get_close_matches(setting, known, n=1)
        there = dotted(near[0]) if near else ", ".join(map(dotted, known))
        advice = f"raftlog has no setting of that name; leave it out (there is {there})"
    return InvalidRequestError(f"option {name} is one of Kafka's clients: {advice}")


def _unknown(name: str, setting: str, known: Mapping[str, _Parse]) -> InvalidRequestError:
    near = difflib.get_close_matches(setting, known, n=1)
    advice = (
        f"did you mean {dotted(near[0])}?" if near else f"there is {', '.join(map(dotted, known))}"
    )
    return InvalidRequestError(f"option {name[:200]} is no setting of raftlog's client: {advice}")
