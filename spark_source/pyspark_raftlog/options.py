"""Options of reads and writes: text in, checked and immutable values out.

Pure: all checks that need no cluster are here, before any work. Every error names the option, its
value and the remedy. Names are those of the manual, case-insensitive. No option is ignored without
a message: it is used, rejected, or mentioned in ``notices``, which the caller logs.

    option                                      in a batch read    in a stream        in a write
    ------------------------------------------  -----------------  -----------------  ------------
    subscribe, subscribePattern, assign         exactly one        exactly one        refused
    startingOffsets, -Timestamp, -ByTimestamp   not latest         used (first run)   refused
    endingOffsets, -Timestamp, -ByTimestamp     not earliest       refused, as Kafka  refused
    startingOffsetsByTimestampStrategy          used               used               refused
    includeHeaders, columns, value, onError     used               used               refused
    minPartitions, maxRecordsPerPartition       used               used               refused
    max-, minOffsetsPerTrigger,                 noted              used               refused
      maxBytesPerTrigger, maxTriggerDelay
    failOnDataLoss, isolation                   used               used               refused
    batchMaxRows, batchMaxBytes                 used               used               refused
    fetchTimeoutMs, numRetries,                 used               used               refused
      retryIntervalMs
    groupId, commitOffsets                      noted              used               refused
    topic, codec, acks                          refused            refused            used
    allowDuplicates, transactional              refused            refused            used
    idempotenceId, idempotenceVersion           refused            refused            batch only
    bootstrap.servers, raftlog.<setting>        used               used               used
    kafka.<setting>, also of raftlog            used               used               used
    kafka.<setting>, only of Kafka              refused            refused            refused
    path, and what Spark adds for itself        noted              noted              noted

"noted": the option has no effect, but its value is checked. Precedence of starting and ending
options: ``...Timestamp``, then ``...OffsetsByTimestamp``, then ``...Offsets``.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final, Literal, TypeAlias, TypedDict

from pyspark_raftlog.offsets import (
    EARLIEST,
    LATEST,
    Bound,
    Offsets,
    Time,
    Times,
    Word,
    check_covers,
    parse_offsets,
    parse_partitions,
    parse_times,
)
from pyspark_raftlog.planning import TASKS_MAX
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
from raftlog.errors import InvalidGroupError, InvalidRequestError, InvalidTopicError
from raftlog.record import CODEC_NAMES, Codec
from raftlog.record.compression import check_level
from raftlog.types import TopicPartition, check_group_id, check_not_internal, check_topic_name

# -- option values ---------------------------------------------------------------------------------
#
# Parsers for the text of one option: whole numbers, sizes, durations, words and flags.
#
# Pure. Every error names the option, its value, and the values that it accepts. Spark passes the
# names of options in lower case; here they have the case of the manual.


TEXT_CHARS_MAX: Final = limits.MIB  # of an option that is no list of offsets
DURATION_MS_MAX: Final = limits.WAIT_MS_MAX
_SHOWN_CHARS_MAX: Final = 200

_INTEGER: Final = re.compile(r"[+-]?[0-9]{1,19}")
_WITH_UNIT: Final = re.compile(r"([0-9]{1,19})\s*([a-zA-Z]*)")
# Spark's own units, for durations (a number alone counts milliseconds) and for sizes (bytes).
_DURATION_MS: Final[Mapping[str, int]] = {
    "": 1,
    "ms": 1,
    "s": 1_000,
    "m": 60_000,
    "min": 60_000,
    "h": 3_600_000,
    "d": 86_400_000,
}
_SIZE_BYTES: Final[Mapping[str, int]] = {
    "": 1,
    "b": 1,
    "k": limits.KIB,
    "kb": limits.KIB,
    "m": limits.MIB,
    "mb": limits.MIB,
    "g": limits.GIB,
    "gb": limits.GIB,
    "t": 1024 * limits.GIB,
    "tb": 1024 * limits.GIB,
}
# Other names of options, of Kafka's connector and its producers, in lower case.
ALIASES: Final[Mapping[str, str]] = {
    "compression": "codec",
    "kafka.compression.type": "codec",
    "kafka.acks": "acks",
    "fetchoffset.numretries": "numretries",
    "fetchoffset.retryintervalms": "retryintervalms",
    "kafkaconsumer.polltimeoutms": "fetchtimeoutms",
}
_FLAGS: Final[Mapping[str, bool]] = {"true": True, "false": False}


class Hidden(str):
    """A secret text. Its repr hides it, also inside the repr of values that contain it."""

    __slots__ = ()

    def __repr__(self) -> str:
        return "(hidden)"


class Texts:
    """Options by case-insensitive name. Spaces around their values are removed, not of secrets."""

    def __init__(self, options: Mapping[str, str]) -> None:
        """Raises ``InvalidRequestError`` for an option that has two values, by two names or in
        different case."""
        self._texts: dict[str, str] = {}
        for name, text in options.items():
            low = ALIASES.get(name.lower(), name.lower())
            value = text if setting_name(low) in SECRETS else text.strip()
            if self._texts.setdefault(low, value) != value:
                by = "by two names" if name.lower() in ALIASES else "in different case"
                raise InvalidRequestError(
                    f"option {name[:100]!r} is given twice, {by}: leave one out"
                )

    @property
    def names(self) -> list[str]:
        """The names of all options, in lower case, sorted."""
        return sorted(self._texts)

    def __contains__(self, name: str) -> bool:
        return name.lower() in self._texts

    def get(self, name: str) -> str | None:
        """Return the text of an option; None if it is not set.

        Raises ``InvalidRequestError`` if the text is empty.
        """
        text = self._texts.get(name.lower())
        if text == "":
            raise InvalidRequestError(f"option {name} is empty: set a value, or leave it out")
        return text

    def short(self, name: str) -> str | None:
        """Return ``get(name)``, limited to TEXT_CHARS_MAX characters."""
        text = self.get(name)
        if text is not None and len(text) > TEXT_CHARS_MAX:
            raise InvalidRequestError(
                f"option {name} has {len(text)} characters: {TEXT_CHARS_MAX} are allowed"
            )
        return text

    def flag(self, name: str, default: bool) -> bool:
        """true or false, in any case."""
        text = self.short(name)
        return default if text is None else flag(name, text)

    def integer(self, name: str, least: int, most: int) -> int | None:
        """Return a whole number from ``least`` to ``most``; None if it is not set."""
        text = self.short(name)
        return None if text is None else integer(name, text, least, most)

    def size(self, name: str, least: int, most: int) -> int | None:
        """Return bytes. The text can have a unit of Spark's sizes: 512k, 4m, 1g (by 1024)."""
        text = self.short(name)
        if text is None:
            return None
        units = "bytes, or a number with k, m, g or t (by 1024) behind it"
        return _within(name, text, _with_unit(name, text, _SIZE_BYTES, units), least, most, "bytes")

    def duration_ms(self, name: str, least: int, most: int = DURATION_MS_MAX) -> int | None:
        """Return milliseconds. The text can have a unit of Spark: 500ms, 30s, 15m, 2h, 1d."""
        text = self.short(name)
        if text is None:
            return None
        units = "milliseconds, or a number with ms, s, m, h or d behind it"
        return _within(name, text, _with_unit(name, text, _DURATION_MS, units), least, most, "ms")


def flag(name: str, text: str) -> bool:
    """Parse true or false, in any case. Raises ``InvalidRequestError``."""
    value = _FLAGS.get(text.lower())
    if value is None:
        raise InvalidRequestError(f"{shown(name, text)}: it is true or false")
    return value


def integer(name: str, text: str, least: int, most: int) -> int:
    """Parse a whole number from ``least`` to ``most``. Raises ``InvalidRequestError``."""
    if not _INTEGER.fullmatch(text):
        raise InvalidRequestError(
            f"{shown(name, text)}: it is a whole number from {least} to {most}"
        )
    return _within(name, text, int(text), least, most, "")


def choice(name: str, text: str, choices: tuple[str, ...]) -> str:
    """Return the word of ``choices`` that ``text`` is, in any case.

    Raises ``InvalidRequestError``.
    """
    for word in choices:
        if word.lower() == text.lower():
            return word
    raise InvalidRequestError(f"{shown(name, text)}: it is {' or '.join(choices)}")


def shown(name: str, text: str) -> str:
    """Return ``option name='text'`` for an error, truncated to _SHOWN_CHARS_MAX."""
    cut = text if len(text) <= _SHOWN_CHARS_MAX else f"{text[:_SHOWN_CHARS_MAX]}..."
    return f"option {name}={cut!r}"


def _with_unit(name: str, text: str, units: Mapping[str, int], what: str) -> int:
    match = _WITH_UNIT.fullmatch(text)
    unit = units.get(match[2].lower()) if match else None
    if match is None or unit is None:
        raise InvalidRequestError(f"{shown(name, text)}: it is a number of {what}")
    return int(match[1]) * unit


def _within(name: str, text: str, value: int, least: int, most: int, unit: str) -> int:
    if not least <= value <= most:
        behind = f" {unit}" if unit else ""
        raise InvalidRequestError(f"{shown(name, text)} is not from {least} to {most}{behind}")
    return value


# -- client options --------------------------------------------------------------------------------
#
# Options that concern raftlog's client: the brokers' address, and ``raftlog.<setting>``.
#
# Pure, except that a profile is read if no option has the brokers' address. A setting has the name
# that it has in the client's constructor, with dots or underscores: ``raftlog.request.timeout.ms``
# is ``request_timeout_ms``. ``kafka.`` in place of ``raftlog.`` is accepted, for settings that
# Kafka's clients have by the same name. Those of TLS and SASL are also accepted without the prefix,
# by the names that they have in Python: ``sasl_username``. A setting that the source controls is
# rejected, and the error names the option to use instead.


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
_NO_TRANSACTION: Final = "set transactional=true: the sink names its transactions itself"
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
    "transactional_id": _NO_TRANSACTION,
    "transaction_timeout_ms": _NO_TRANSACTION,
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
    for name in texts.names:
        if is_client_option(name) and setting_name(name) == "bootstrap_servers":
            text = texts.short(name)
            assert text is not None, "the name is one of texts.names"
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
            raise _unknown_client(name, setting, known)
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


def _unknown_client(name: str, setting: str, known: Mapping[str, _Parse]) -> InvalidRequestError:
    near = difflib.get_close_matches(setting, known, n=1)
    advice = (
        f"did you mean {dotted(near[0])}?" if near else f"there is {', '.join(map(dotted, known))}"
    )
    return InvalidRequestError(f"option {name[:200]} is no setting of raftlog's client: {advice}")


# -- selection -------------------------------------------------------------------------------------
#
# Selection of a read: partitions, start and end, by the options alone.
#
# Pure. ``pyspark_raftlog.bounds`` compares the selection with the cluster.


PATTERN_CHARS_MAX: Final = 10_000


@dataclass(frozen=True, slots=True)
class Topics:
    """``subscribe``: all partitions of these topics, including partitions added later."""

    names: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Pattern:
    """``subscribePattern``: all topics in whose name the pattern is found."""

    text: str

    def matches(self, topic: str) -> bool:
        """Return whether the pattern is found anywhere in the name, as in Kafka's connector."""
        return re.search(self.text, topic) is not None


@dataclass(frozen=True, slots=True)
class Assigned:
    """``assign``: exactly these partitions, sorted."""

    partitions: Mapping[str, tuple[int, ...]]


Selection: TypeAlias = Topics | Pattern | Assigned
TimestampStrategy: TypeAlias = Literal["error", "latest"]


@dataclass(frozen=True, slots=True)
class Bounds:
    """Start and end of a read, and the options that set them (for errors)."""

    starting_option: str
    starting: Bound
    ending_option: str
    ending: Bound


def parse_selection(texts: Texts) -> Selection:
    """Parse the options that select partitions. Raises ``InvalidRequestError``."""
    given = [name for name in SELECTING_OPTIONS if name in texts]
    if len(given) != 1:
        problem = f"{' and '.join(given)} are set" if given else "none is set"
        raise InvalidRequestError(
            "set exactly one of the options subscribe (topics, separated by commas), "
            f"subscribePattern and assign (JSON of partitions): {problem}"
        )
    name = given[0]
    text = texts.get(name)
    assert text is not None, "checked above"
    if name == "assign":
        return Assigned(parse_partitions(name, text))
    return Topics(_topics(text)) if name == "subscribe" else Pattern(_pattern(text))


def _topics(text: str) -> tuple[str, ...]:
    names = tuple(dict.fromkeys(name for name in map(str.strip, text.split(",")) if name))
    if not names:
        raise InvalidRequestError(f"{shown('subscribe', text)} names no topic")
    try:
        for name in names:
            check_topic_name(name)
    except InvalidTopicError as error:
        raise InvalidRequestError(
            f"{shown('subscribe', text)}: {error}. For topics by a pattern, use subscribePattern"
        ) from error
    return names


def _pattern(text: str) -> str:
    if len(text) > PATTERN_CHARS_MAX:
        raise InvalidRequestError(
            f"option subscribePattern has {len(text)} characters: {PATTERN_CHARS_MAX} are allowed"
        )
    try:
        re.compile(text)
    except (re.error, OverflowError, RecursionError) as error:
        raise InvalidRequestError(
            f"{shown('subscribePattern', text)} is not a regular expression of Python's: {error}"
        ) from error
    return text


def parse_strategy(texts: Texts) -> TimestampStrategy:
    """Behaviour of a start by time in a partition without a record at or after it."""
    text = texts.short("startingOffsetsByTimestampStrategy")
    if text is None:
        return "error"
    low = choice("startingOffsetsByTimestampStrategy", text, ("error", "latest"))
    return "latest" if low == "latest" else "error"


def parse_bounds(texts: Texts, selection: Selection, *, streaming: bool) -> Bounds:
    """Return start and end of the read, from the options with the highest precedence.

    After its first start, a stream continues from its checkpoint. So the options are not compared
    with ``selection`` here: the topics may have changed since. Raises
    ``InvalidRequestError``.
    """
    starting_option, starting = _bound(
        texts, STARTING_OPTIONS, Word.LATEST if streaming else Word.EARLIEST
    )
    ending_option, ending = _bound(texts, ENDING_OPTIONS, Word.LATEST)
    bounds = Bounds(starting_option, starting, ending_option, ending)
    if streaming:
        return bounds
    for option, bound, empty in (
        (starting_option, starting, LATEST),
        (ending_option, ending, EARLIEST),
    ):
        _check_reach(option, bound, empty)
        _check_named(option, bound, selection)
    _check_order(bounds)
    return bounds


def _bound(texts: Texts, options: tuple[str, str, str], default: Word) -> tuple[str, Bound]:
    """Return the bound and its option. All options are parsed; the first that is set applies."""
    by_time, by_times, by_offset = options
    found: list[tuple[str, Bound]] = []
    if (text := texts.short(by_time)) is not None:
        found.append((by_time, Time(integer(by_time, text, 0, limits.TIMESTAMP_MS_MAX))))
    if (text := texts.get(by_times)) is not None:
        found.append((by_times, parse_times(by_times, text)))
    if (text := texts.get(by_offset)) is not None:
        found.append((by_offset, parse_offsets(by_offset, text)))
    return found[0] if found else (by_offset, default)


def _check_reach(option: str, bound: Bound, empty: int) -> None:
    """Reject a batch read that starts at the end or ends at the start: it would read nothing."""
    word = "latest" if empty == LATEST else "earliest"
    if isinstance(bound, Word):
        names = [""] if bound.offset == empty else []
    elif isinstance(bound, Offsets):
        names = [f" for {name}" for name, offset in _named(bound) if offset == empty]
    else:
        names = []
    if names:
        verb, number = ("begin", "-1") if empty == LATEST else ("end", "-2")
        raise InvalidRequestError(
            f"option {option} is {word} ({number}){names[0]}: a batch read that would {verb} there "
            "reads nothing. Set an offset, a time, or leave it out"
        )


def _named(bound: Offsets | Times) -> Iterator[tuple[str, int]]:
    for topic, value in bound.by_topic.items():
        if isinstance(value, Word):
            yield topic, value.offset
        else:
            for partition, number in value.items():
                yield str(TopicPartition(topic, partition)), number


def _check_named(option: str, bound: Bound, selection: Selection) -> None:
    """Check that the bound names the partitions that the options select, where known."""
    if isinstance(selection, Assigned):
        check_covers(option, bound, selection.partitions)
    elif isinstance(selection, Topics) and isinstance(bound, Offsets | Times):
        known = {
            topic: () if isinstance(named := bound.by_topic.get(topic, ()), Word) else named
            for topic in selection.names
        }
        check_covers(option, bound, known)


def _check_order(bounds: Bounds) -> None:
    """Raise ``InvalidRequestError`` if an end is before its start by the options alone."""
    start, end = bounds.starting, bounds.ending
    if isinstance(start, Time) and isinstance(end, Time):
        pairs = [("", start.timestamp_ms, end.timestamp_ms)]
    elif (isinstance(start, Offsets) and isinstance(end, Offsets)) or (
        isinstance(start, Times) and isinstance(end, Times)
    ):
        ends = dict(_named(end))
        pairs = [
            (f" for {name}", first, ends[name]) for name, first in _named(start) if name in ends
        ]
    else:
        return
    for name, first, last in pairs:
        if first > last >= 0:
            raise InvalidRequestError(
                f"option {bounds.starting_option} is {first}{name}, and {bounds.ending_option} is "
                f"{last}: the end is before the start. Swap them"
            )


# -- options ---------------------------------------------------------------------------------------


BATCH_ROWS_DEFAULT: Final = 10_000
BATCH_ROWS_MAX: Final = limits.RECORDS_PER_BATCH_MAX
BATCH_BYTES_DEFAULT: Final = 4 * limits.MIB
SINK_BATCH_BYTES_MIN: Final = limits.KIB
BATCH_BYTES_MAX: Final = 256 * limits.MIB
FETCH_TIMEOUT_MS_DEFAULT: Final = 30_000
RETRIES_DEFAULT: Final = 3
RETRIES_MAX: Final = 1_000
RETRY_INTERVAL_MS_DEFAULT: Final = 100
RETRY_INTERVAL_MS_MAX: Final = 600_000
TRIGGER_DELAY_MS_DEFAULT: Final = 15 * 60_000
VALUES: Final = ("raw", "json", "typed")
ON_ERROR: Final = ("raise", "null")
TRIGGER_BYTES_MAX: Final = 1 << 62
IDEMPOTENCE_ID_CHARS_MAX: Final = 200

__all__ = ["Assigned", "Pattern", "Selection", "SinkOptions", "SourceOptions", "Topics"]


@dataclass(frozen=True, slots=True, kw_only=True)
class SourceOptions:
    """Checked options of a read. ``parse`` creates it; Spark sends it to the tasks.

    ``bootstrap``: ``host:port[,host:port]``. ``connection`` and ``reading``: the settings of the
    client that were set. ``starting`` and ``ending``: not resolved yet; ``ending`` of a stream is
    ``Word.LATEST``. ``columns``: names as written, None for all; ``schema`` checks them. None
    elsewhere: no limit. ``notices``: messages to log once.
    """

    streaming: bool
    bootstrap: str
    connection: Settings
    reading: Settings
    selection: Selection
    starting: Bound
    ending: Bound
    starting_option: str  # the option that ``starting`` comes from, for errors
    ending_option: str
    timestamp_strategy: TimestampStrategy
    include_headers: bool
    columns: tuple[str, ...] | None
    json: bool  # the value is JSON, whose fields are columns
    typed_topic: str | None  # of values with IDs of schemas, whose fields are columns
    null_on_error: bool
    min_partitions: int | None
    max_records_per_partition: int | None
    max_offsets_per_trigger: int | None
    max_bytes_per_trigger: int | None
    min_offsets_per_trigger: int | None
    max_trigger_delay_ms: int
    fail_on_data_loss: bool
    batch_max_rows: int
    batch_max_bytes: int
    fetch_timeout_ms: int
    retries: int
    retry_interval_ms: int
    group_id: str | None
    commit_offsets: bool
    notices: tuple[str, ...]

    @classmethod
    def parse(cls, options: Mapping[str, str], *, streaming: bool) -> SourceOptions:
        """Parse the options of a read. Raises ``InvalidRequestError``."""
        texts = Texts(options)
        check_names(texts, writing=False, streaming=streaming)
        settings = parse_settings(texts, writing=False)
        selection = parse_selection(texts)
        bounds = parse_bounds(texts, selection, streaming=streaming)
        isolation = texts.short("isolation")
        if isolation is not None:
            choice("isolation", isolation, ("committed",))
        value = _value(texts)
        return cls(
            streaming=streaming,
            bootstrap=parse_address_list(texts),
            connection=tuple(each for each in settings if each[0] in CONNECTION_SETTINGS),
            reading=tuple(each for each in settings if each[0] not in CONNECTION_SETTINGS),
            selection=selection,
            starting=bounds.starting,
            ending=bounds.ending,
            starting_option=bounds.starting_option,
            ending_option=bounds.ending_option,
            timestamp_strategy=parse_strategy(texts),
            include_headers=texts.flag("includeHeaders", False),
            columns=_columns(texts),
            json=value == "json",
            typed_topic=_one_topic(selection) if value == "typed" else None,
            null_on_error=choice("onError", texts.short("onError") or "raise", ON_ERROR) == "null",
            min_partitions=texts.integer("minPartitions", 1, TASKS_MAX),
            max_records_per_partition=texts.integer("maxRecordsPerPartition", 1, limits.OFFSET_MAX),
            **_trigger_limits(texts),
            fail_on_data_loss=texts.flag("failOnDataLoss", True),
            batch_max_rows=_or(
                texts.integer("batchMaxRows", 1, BATCH_ROWS_MAX), BATCH_ROWS_DEFAULT
            ),
            batch_max_bytes=_or(
                texts.size("batchMaxBytes", SINK_BATCH_BYTES_MIN, BATCH_BYTES_MAX),
                BATCH_BYTES_DEFAULT,
            ),
            fetch_timeout_ms=_or(
                texts.duration_ms("fetchTimeoutMs", 1, DAY_MS), FETCH_TIMEOUT_MS_DEFAULT
            ),
            retries=_or(texts.integer("numRetries", 0, RETRIES_MAX), RETRIES_DEFAULT),
            retry_interval_ms=_or(
                texts.duration_ms("retryIntervalMs", 0, RETRY_INTERVAL_MS_MAX),
                RETRY_INTERVAL_MS_DEFAULT,
            ),
            group_id=_group(texts),
            commit_offsets=texts.flag("commitOffsets", False),
            notices=notices(texts, writing=False, streaming=streaming),
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class SinkOptions:
    """Checked options of a write. ``parse`` creates it; Spark sends it to the tasks.

    ``topic``: of every row; None: the column ``topic`` of each row names it.
    ``idempotence_id`` and ``idempotence_version``: both or none; writes with the same pair are
    stored once. ``allow_duplicates``: continue if records of an earlier attempt were deleted, so
    that the task cannot determine which rows are stored. ``transactional``: store each write as a
    whole, in one transaction; requires ``topic``.
    """

    streaming: bool
    bootstrap: str
    settings: Settings
    topic: str | None
    codec: Codec
    idempotence_id: str | None
    idempotence_version: int | None
    allow_duplicates: bool
    transactional: bool
    notices: tuple[str, ...]

    @classmethod
    def parse(cls, options: Mapping[str, str], *, streaming: bool) -> SinkOptions:
        """Parse the options of a write. Raises ``InvalidRequestError``, ``InvalidTopicError``."""
        texts = Texts(options)
        check_names(texts, writing=True, streaming=streaming)
        settings = parse_settings(texts, writing=True)
        codec = _codec(texts.short("codec") or Codec.ZSTD.name)
        _check_together(dict(settings), codec)
        acks = texts.short("acks")
        if acks is not None and acks.lower() not in {"all", "-1"}:
            raise InvalidRequestError(
                f"{shown('acks', acks)}: only all is supported: exactly-once writes need every "
                "in-sync replica. Leave it out"
            )
        idempotence_id, version = _idempotence(texts, streaming=streaming)
        return cls(
            streaming=streaming,
            bootstrap=parse_address_list(texts),
            settings=settings,
            topic=_topic(texts),
            codec=codec,
            idempotence_id=idempotence_id,
            idempotence_version=version,
            allow_duplicates=texts.flag("allowDuplicates", False),
            transactional=_transactional(texts),
            notices=notices(texts, writing=True, streaming=streaming),
        )

    @property
    def is_repeatable(self) -> bool:
        """Whether the write can be repeated under its name: a stream's batch, or by options."""
        return self.streaming or self.idempotence_id is not None

    @property
    def write_id(self) -> str | None:
        """Name of the write, equal for its repetitions; None without idempotence options."""
        if self.idempotence_id is None:
            return None
        return f"{self.idempotence_id}/{self.idempotence_version}"

    def producer_settings(self) -> dict[str, Setting]:
        """Return keyword arguments for a producer."""
        return dict(self.settings)


# -- single options --------------------------------------------------------------------------------


class _TriggerLimits(TypedDict):
    max_offsets_per_trigger: int | None
    max_bytes_per_trigger: int | None
    min_offsets_per_trigger: int | None
    max_trigger_delay_ms: int


def _trigger_limits(texts: Texts) -> _TriggerLimits:
    most = texts.integer("maxOffsetsPerTrigger", 1, limits.OFFSET_MAX)
    bytes_most = texts.size("maxBytesPerTrigger", 1, TRIGGER_BYTES_MAX)
    least = texts.integer("minOffsetsPerTrigger", 1, limits.OFFSET_MAX)
    if most is not None and bytes_most is not None:
        raise InvalidRequestError(
            "options maxOffsetsPerTrigger and maxBytesPerTrigger exclude each other: leave one out"
        )
    if most is not None and least is not None and least > most:
        raise InvalidRequestError(
            f"option minOffsetsPerTrigger={least} is higher than maxOffsetsPerTrigger={most}: no "
            "batch could have that number. Lower it"
        )
    delay_ms = texts.duration_ms("maxTriggerDelay", 0)
    return {
        "max_offsets_per_trigger": most,
        "max_bytes_per_trigger": bytes_most,
        "min_offsets_per_trigger": least,
        "max_trigger_delay_ms": _or(delay_ms, TRIGGER_DELAY_MS_DEFAULT),
    }


def _columns(texts: Texts) -> tuple[str, ...] | None:
    text = texts.short("columns")
    if text is None:
        return None
    names = tuple(name for name in map(str.strip, text.split(",")) if name)
    if not names:
        raise InvalidRequestError(
            f"{shown('columns', text)} names no column: name some, as in offset,key,value"
        )
    return names


def _value(texts: Texts) -> str:
    found = choice("value", texts.short("value") or "raw", VALUES)
    if found == "json" and texts.short("columns") is not None:
        raise InvalidRequestError(
            "option columns cannot be combined with value=json: the columns are those of the "
            'schema, as in .schema("offset long, page string, ms int")'
        )
    if found == "raw" and (texts.short("onError") or "raise").lower() != "raise":
        raise InvalidRequestError(
            "option onError is for value=json and value=typed. Leave it out, or set value"
        )
    return found


def _one_topic(selection: Selection) -> str:
    """Return the topic of a read with ``value=typed``: its schema has the name of the topic."""
    names: Iterable[str] = ()
    if isinstance(selection, Topics):
        names = selection.names
    elif isinstance(selection, Assigned):
        names = selection.partitions
    found = list(names)
    if len(found) != 1:
        raise InvalidRequestError(
            "value=typed reads one topic, whose schema is TOPIC-value in the registry: name one "
            "in the option subscribe or assign, and join the results with union"
        )
    return found[0]


def _group(texts: Texts) -> str | None:
    group = texts.short("groupId")
    if group is None:
        if texts.flag("commitOffsets", False):
            raise InvalidRequestError(
                "option commitOffsets=true needs groupId: the consumer group that lag tools show"
            )
        return None
    try:
        return check_group_id(group)
    except InvalidGroupError as error:
        raise InvalidRequestError(f"{shown('groupId', group)}: {error}") from error


def _topic(texts: Texts) -> str | None:
    topic = texts.short("topic")
    if topic is None:
        return None
    try:
        check_not_internal(check_topic_name(topic))
    except InvalidTopicError as error:
        raise InvalidRequestError(f"{shown('topic', topic)}: {error}") from error
    return topic


def _codec(text: str) -> Codec:
    return Codec[choice("codec", text, CODEC_NAMES).upper()]


def _check_together(settings: Mapping[str, Any], codec: Codec) -> None:
    """Raise ``InvalidRequestError`` for settings that only a task would find to be wrong."""
    try:
        check_level(codec, settings.get("compression_level"))
    except InvalidRequestError as error:
        raise InvalidRequestError(f"option {dotted('compression_level')}: {error}") from None
    request_ms = settings.get("request_timeout_ms", 30_000)
    delivery_ms = settings.get("delivery_timeout_ms", 120_000)
    if delivery_ms < request_ms:
        raise InvalidRequestError(
            f"option {dotted('delivery_timeout_ms')}={delivery_ms} is less than "
            f"{dotted('request_timeout_ms')}={request_ms}: a batch is sent for the time of one "
            "request at least. Increase it, or lower the other"
        )


def _idempotence(texts: Texts, *, streaming: bool) -> tuple[str | None, int | None]:
    name, version = texts.short("idempotenceId"), texts.short("idempotenceVersion")
    if name is None and version is None:
        return None, None
    if streaming:
        raise InvalidRequestError(
            "options idempotenceId and idempotenceVersion are for batch writes: a stream uses "
            "its query id and batch number instead. Leave them out"
        )
    if name is None or version is None:
        raise InvalidRequestError(
            "options idempotenceId and idempotenceVersion go together: the id names the writer, "
            "such as a job, the version counts its writes. Set both, or none"
        )
    if not (len(name) <= IDEMPOTENCE_ID_CHARS_MAX and name.isprintable()):
        raise InvalidRequestError(
            f"{shown('idempotenceId', name)}: it is 1 to {IDEMPOTENCE_ID_CHARS_MAX} printable "
            "characters"
        )
    return name, integer("idempotenceVersion", version, 0, limits.OFFSET_MAX)


def _transactional(texts: Texts) -> bool:
    found = texts.flag("transactional", False)
    if found and "topic" not in texts:
        raise InvalidRequestError(
            "transactional=true needs the option topic: the number of the write is recorded with "
            "that topic. Set it, and leave the column `topic` out"
        )
    return found


def _or(value: int | None, default: int) -> int:
    return default if value is None else value


# -- option names ----------------------------------------------------------------------------------
#
# Names of the options, and messages for options that are unknown or have no effect.
#
# Pure. ``parse_settings`` checks options of the client.


_STREAM_ONLY: Final = (
    "maxOffsetsPerTrigger",
    "maxBytesPerTrigger",
    "minOffsetsPerTrigger",
    "maxTriggerDelay",
    "groupId",
    "commitOffsets",
)
ENDING_OPTIONS: Final = ("endingTimestamp", "endingOffsetsByTimestamp", "endingOffsets")
STARTING_OPTIONS: Final = ("startingTimestamp", "startingOffsetsByTimestamp", "startingOffsets")
SELECTING_OPTIONS: Final = ("subscribe", "subscribePattern", "assign")
SOURCE_OPTIONS: Final = (
    *SELECTING_OPTIONS,
    *STARTING_OPTIONS,
    *ENDING_OPTIONS,
    "startingOffsetsByTimestampStrategy",
    "includeHeaders",
    "columns",
    "value",
    "onError",
    "minPartitions",
    "maxRecordsPerPartition",
    "failOnDataLoss",
    "isolation",
    "batchMaxRows",
    "batchMaxBytes",
    "fetchTimeoutMs",
    "numRetries",
    "retryIntervalMs",
    *_STREAM_ONLY,
)
SINK_OPTIONS: Final = (
    "topic",
    "codec",
    "acks",
    "idempotenceId",
    "idempotenceVersion",
    "allowDuplicates",
    "transactional",
)

# Options that Spark adds for its own use, in the lower case that Spark passes.
_SPARKS: Final = frozenset(
    {
        "queryname",
        "checkpointlocation",
        "asyncprogresstrackingenabled",
        "asyncprogresstrackingcheckpointintervalms",
        "_asyncprogresstrackingoverridesinksupportcheck",
    }
)
# Prefix of the names of OPTIONS among the properties of a table that is being created.
_TABLES_OPTION: Final = "option."
_WHERE_USED: Final = (
    "CREATE VIEW v AS SELECT * FROM t WITH ('bootstrap.servers'='broker-1:9100', "
    "'subscribe'='clicks')"
)
_PATHS: Final = frozenset({"path", "paths"})  # load("..."), save("..."), start("...")
# Names that similar sources use, with raftlog's names. Other names of the same option: ALIASES.
_OTHER_NAMES: Final[Mapping[str, str]] = {
    "groupidprefix": "groupId",
    "topics": "subscribe",
    "txnappid": "idempotenceId",
    "txnversion": "idempotenceVersion",
}


def check_names(texts: Texts, *, writing: bool, streaming: bool) -> None:
    """Raise ``InvalidRequestError`` for an option that is unknown, or unknown in this mode."""
    if not texts.names:
        raise InvalidRequestError(_no_options(writing=writing))
    known = {name.lower(): name for name in (SINK_OPTIONS if writing else SOURCE_OPTIONS)}
    others = {name.lower(): name for name in (SOURCE_OPTIONS if writing else SINK_OPTIONS)}
    for name in texts.names:
        if name in known or name in _SPARKS or name in _PATHS or is_client_option(name):
            continue
        if name in others:
            raise InvalidRequestError(_of_the_other(others[name], writing=writing))
        raise InvalidRequestError(_unknown(name, known))
    for name in ENDING_OPTIONS if streaming else ():
        if name in texts:
            raise InvalidRequestError(
                f"option {name} is for batch reads: a stream has no end. Leave it out, or stop the "
                "query with trigger(availableNow=True)"
            )


def notices(texts: Texts, *, writing: bool, streaming: bool) -> tuple[str, ...]:
    """Return a message for each option that was set and has no effect here."""
    found = []
    if any(name in _PATHS for name in texts.names):
        where = "the topic by the option topic" if writing else "topics by the option subscribe"
        found.append(f"the path has no effect: name {where}")
    if writing:
        if texts.flag("transactional", False) and "allowDuplicates" in texts:
            found.append("option allowDuplicates has no effect with transactional=true")
        return tuple(found)
    if streaming:
        found += _notices_of_streams(texts)
    else:
        idle = [name for name in _STREAM_ONLY if name in texts]
        found += [f"option {name} has no effect in a batch read" for name in idle]
    for names in (STARTING_OPTIONS, ENDING_OPTIONS):
        given = [name for name in names if name in texts]
        found += [f"option {name} has no effect if {given[0]} is set" for name in given[1:]]
    return tuple(found)


def _notices_of_streams(texts: Texts) -> list[str]:
    found = []
    if "groupId" in texts and not texts.flag("commitOffsets", False):
        found.append("option groupId has no effect without commitOffsets=true")
    if "maxTriggerDelay" in texts and "minOffsetsPerTrigger" not in texts:
        found.append("option maxTriggerDelay has no effect without minOffsetsPerTrigger")
    return found


def check_table(properties: Mapping[str, str]) -> None:
    """Raise ``InvalidRequestError`` if a table is defined with options: Spark would drop them.

    ``properties``: those of ``CREATE TABLE`` as Spark passes them: Spark's own, and each of
    OPTIONS with the prefix ``option.``. When the table is used, Spark passes none of them.
    """
    given = [name for name in properties if name.startswith(_TABLES_OPTION)]
    if given:
        name = min(given).removeprefix(_TABLES_OPTION)
        raise InvalidRequestError(
            f"option {name[:100]} of CREATE TABLE would be lost: Spark does not pass a table's "
            "OPTIONS to a data source in Python when the table is used. Create the table without "
            f"OPTIONS, and set them where it is used: {_WHERE_USED}"
        )


def check_no_secrets(options: Mapping[str, str]) -> None:
    """Raise ``InvalidRequestError`` for a password or a token command.

    For options that may be in the text of a view, which SHOW CREATE TABLE prints.
    """
    for name in sorted(options):
        if setting_name(name.lower()) in SECRETS:
            raise InvalidRequestError(
                f"option {name[:100]} is a secret, and options after the name of a table, WITH "
                "(...), are part of the text of a view, which SHOW CREATE TABLE prints. Set "
                "'raftlog.profile' to a profile file that has it, or the environment variable "
                f"RAFTLOG_{setting_name(name.lower()).upper()}. In place of .schema(...), set the "
                "option columns"
            )


def _no_options(*, writing: bool) -> str:
    use = "INSERT INTO t WITH (...) SELECT ..." if writing else _WHERE_USED
    return (
        'no option is given: bootstrap.servers is needed, as in .option("bootstrap.servers", '
        '"broker-1:9100,broker-2:9100"). If this is a table: Spark does not pass its OPTIONS to a '
        f"data source in Python. Set them where the table is used: {use}"
    )


def _of_the_other(name: str, *, writing: bool) -> str:
    if writing:
        return f"option {name} is for reads: it has no effect in a write. Leave it out"
    if name == "topic":
        return "option topic is for writes: to read a topic, name it in the option subscribe"
    return f"option {name} is for writes: it has no effect in a read. Leave it out"


def _unknown(name: str, known: Mapping[str, str]) -> str:
    if name == "filterpushdown":
        return (
            "option filterPushdown does not exist any longer: Spark returns wrong rows if one "
            "load() is scanned twice with pushed filters. Leave it out, and read a part of a topic "
            "with pyspark_raftlog.read_range, or by startingOffsets and endingOffsets"
        )
    other = _OTHER_NAMES.get(name)
    if other is not None and other.lower() in known:
        return f"option {name} is called {other} here"
    choices = {**known, **dict(zip(ADDRESS_NAMES, ADDRESS_NAMES, strict=True))}
    near = difflib.get_close_matches(name[:100], choices, n=1, cutoff=0.7)
    if near:
        return f"unknown option {name[:100]}: did you mean {choices[near[0]]}?"
    return (
        f"unknown option {name[:100]}: there are {', '.join(known.values())}, bootstrap.servers, "
        "and settings of the client as raftlog.<setting>"
    )
