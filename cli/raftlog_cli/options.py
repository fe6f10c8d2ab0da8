"""Options that several commands share, and parsers of their values."""

from __future__ import annotations

import math
import os
import re
import ssl
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from difflib import get_close_matches
from enum import Enum
from functools import partial, wraps
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Final, NamedTuple, TypeVar, cast
from urllib.parse import urlsplit

import click

from raftlog import limits
from raftlog.client import profiles
from raftlog.client.settings import (
    OAUTHBEARER,
    SASL_MECHANISM_DEFAULT,
    SASL_MECHANISMS,
    SECURITY_PROTOCOLS,
    TRUE,
    Security,
)
from raftlog.config.address import BOOTSTRAP_DEFAULT
from raftlog.config.broker import read_toml
from raftlog.errors import InvalidConfigError, RaftlogError, UnknownTopicError
from raftlog.tls import client_context
from raftlog.types import Offset, OffsetAndTimestamp, TimestampMs, TopicPartition
from raftlog_cli import completing
from raftlog_cli.output import WIDE

Command = TypeVar("Command", bound=Callable[..., Any])

# Units of amounts, in the unit in which settings and requests count. In either case of letters.
_UNITS: Final[Mapping[str, Mapping[str, int]]] = {
    "ms": {
        "ms": 1,
        "s": 1_000,
        "m": 60_000,
        "min": 60_000,
        "h": 3_600_000,
        "d": 86_400_000,
        "w": 604_800_000,
    },
    "bytes": {
        "b": 1,
        "kb": 1_000,
        "mb": 1_000_000,
        "gb": 1_000_000_000,
        "kib": limits.KIB,
        "mib": limits.MIB,
        "gib": limits.GIB,
    },
}
_AMOUNT: Final = re.compile(r"([0-9]{1,15})(?:\.([0-9]{1,6}))? *([A-Za-z]+)")


class FiniteRange(click.FloatRange):
    """Type of an option: a number in a range, but not "nan" or "inf", which Python accepts."""

    def convert(
        self, value: Any, param: click.Parameter | None, ctx: click.Context | None
    ) -> float:
        number: float = super().convert(value, param, ctx)
        if not math.isfinite(number):
            self.fail(f"{value!r} is not a number", param, ctx)
        return number


class ConnectionOption(click.Option):
    """Option of the connection to a cluster: listed by ``--help-connection``, not by ``--help``."""

    def get_help_record(self, ctx: click.Context) -> tuple[str, str] | None:
        return super().get_help_record(ctx) if ctx.meta.get(_CONNECTION_HELP) else None


_CONNECTION_HELP: Final = "raftlog.help-connection"  # key in the context of a command


def _show_connection_help(
    context: click.Context, _parameter: click.Parameter, wanted: bool
) -> None:
    if not wanted or context.resilient_parsing:
        return
    click.echo(connection_help(context))
    context.exit()


def connection_help(context: click.Context) -> str:
    """Return the help of the options of the connection."""
    context.meta[_CONNECTION_HELP] = True
    formatter = context.make_formatter()
    formatter.write_usage(context.command_path, "[OPTIONS] ...")
    with formatter.section("Connection options"):
        options = [p for p in context.command.params if isinstance(p, ConnectionOption)]
        formatter.write_dl([found for p in options if (found := p.get_help_record(context))])
    return formatter.getvalue().rstrip("\n")


def bootstrap(command: Command) -> Command:
    """Add ``--bootstrap`` (or RAFTLOG_BOOTSTRAP), and the security options of all clients.

    If the command fails because a topic does not exist, the error suggests similar names.
    """
    command = security(naming_topics(command))
    return click.option(
        "--bootstrap",
        cls=ConnectionOption,
        envvar="RAFTLOG_BOOTSTRAP",
        default=lambda: Security({}).bootstrap or BOOTSTRAP_DEFAULT,
        show_default=BOOTSTRAP_DEFAULT,
        show_envvar=True,
        metavar="HOST:PORT[,...]",
        help="Addresses of brokers; one reachable address is enough.",
    )(command)


_FILE: Final = click.Path(exists=True, dir_okay=False)
# Security arguments of clients: name, type, placeholder and help of their options.
_SECURITY: Final[tuple[tuple[str, Any, str | None, str], ...]] = (
    (
        "security-protocol",
        click.Choice(SECURITY_PROTOCOLS),
        None,
        "SSL: connect with TLS; SASL_SSL: with TLS, a user name and a password.",
    ),
    ("ssl-cafile", _FILE, "FILE", "Accepted CA certificates (PEM)."),
    ("ssl-certfile", _FILE, "FILE", "Certificate of this client (PEM)."),
    ("ssl-keyfile", _FILE, "FILE", "Key of --ssl-certfile (PEM)."),
    (
        "ssl-check-hostname",
        click.Choice(list(TRUE)),
        None,
        "Require the host name of the broker in its certificate.",
    ),
    ("ssl-ciphers", str, "LIST", "Ciphers of TLS 1.2, as a list of OpenSSL; default: Python's."),
    (
        "sasl-mechanism",
        click.Choice((*SASL_MECHANISMS, OAUTHBEARER)),
        None,
        f"Authentication mechanism; default {SASL_MECHANISM_DEFAULT}.",
    ),
    (
        "sasl-username",
        str,
        "NAME",
        "User name; the password is in RAFTLOG_SASL_PASSWORD.",
    ),
    (
        "sasl-token-auth",
        click.Choice(list(TRUE)),
        None,
        "User name and password are those of a delegation token (raftlog token create).",
    ),
    (
        "sasl-oauthbearer-token-file",
        click.Path(dir_okay=False),
        "FILE",
        "For OAUTHBEARER: a file with a token; read for each authentication.",
    ),
    (
        "sasl-oauthbearer-token-command",
        str,
        "COMMAND",
        "For OAUTHBEARER: a command that prints a token, for each authentication.",
    ),
)


def security(command: Command) -> Command:
    """Add the security arguments of clients as options, such as ``--ssl-cafile``.

    An option sets the environment variable of the argument. All clients of the command use it, also
    in processes that the command starts.
    """
    for name, kind, metavar, text in reversed(_SECURITY):
        variable = f"RAFTLOG_{name.replace('-', '_').upper()}"
        command = click.option(
            f"--{name}",
            cls=ConnectionOption,
            type=kind,
            metavar=metavar,
            expose_value=False,
            callback=partial(_export, variable),
            help=f"{text}  [env var: {variable}]",
        )(command)
    command = click.option(
        "--help-connection",
        is_flag=True,
        is_eager=True,
        expose_value=False,
        callback=_show_connection_help,
        help="Show the options of the connection: addresses, profile, TLS, authentication.",
    )(command)
    return click.option(
        "--profile",
        cls=ConnectionOption,
        metavar="NAME|FILE",
        is_eager=True,  # the options above override the profile
        expose_value=False,
        callback=_use_profile,
        help="Profile with the addresses and credentials of a cluster: a table of "
        f"~/.config/raftlog/config.toml, or a file.  [env var: {profiles.VARIABLE}]",
    )(command)


def _use_profile(context: click.Context, parameter: click.Parameter, profile: str | None) -> None:
    """Set the environment variables of all arguments to the values of the profile."""
    if profile is None:
        return
    values = profiles.load(profile)
    for key in profiles.KEYS:
        _export(f"RAFTLOG_{key.upper()}", context, parameter, values.get(key, ""))


_NO_TOPIC: Final = re.compile(r"topic '([^']+)' does not exist|no topic '([^']+)'")
SIMILAR_MAX: Final = 3
LOOKUP_MS: Final = 2_000  # limit of a query for names


def naming_topics(command: Command) -> Command:
    """Return ``command`` with similar names in the error that a topic does not exist."""

    @wraps(command)
    def called(*args: Any, **kwargs: Any) -> Any:
        try:
            return command(*args, **kwargs)
        except UnknownTopicError as error:
            found = _NO_TOPIC.search(str(error))
            if found is None:
                raise
            name = found[1] or found[2]
            raise UnknownTopicError(no_topic(name, topics(kwargs["bootstrap"]))) from error

    return cast(Command, called)


def no_topic(name: str, existing: Iterable[str], *, create: bool = False) -> str:
    """Return the error for a topic that does not exist. ``create``: the advice may be that."""
    similar = get_close_matches(name, existing, SIMILAR_MAX)
    if similar:
        advice = f"Did you mean {' or '.join(map(repr, similar))}?"
    else:
        advice = "`raftlog topic list` lists all topics"
    if create and not similar:
        advice += f", and `raftlog topic create {name}` creates it"
    return f"topic {name!r} does not exist. {advice}"


def topics(bootstrap: str) -> list[str]:
    """Return the names of the topics; none if no broker responds soon."""
    from raftlog import Admin

    try:
        with Admin(
            bootstrap, request_timeout_ms=LOOKUP_MS, bootstrap_timeout_ms=LOOKUP_MS
        ) as admin:
            return admin.list_topics()
    except RaftlogError:
        return []


def _export(
    variable: str, context: click.Context, _parameter: click.Parameter, value: str | None
) -> None:
    """Set an environment variable until the command ends."""
    if value is None:
        return
    before = os.environ.get(variable)
    os.environ[variable] = value

    def restore() -> None:
        if before is None:
            os.environ.pop(variable, None)
        else:
            os.environ[variable] = before

    context.call_on_close(restore)


def throttle(command: Command) -> Command:
    """Add ``--throttle``, the rate limit of replica moves."""
    return click.option(
        "--throttle",
        metavar="RATE",
        callback=parsed(_bytes_per_s),
        help="Limit of the bytes per second that each broker copies for moves, such as 10MB or "
        "512KiB; none removes the limit. It also applies to later moves. Replicas in sync are not "
        "limited.",
    )(command)


def _bytes_per_s(text: str) -> int:
    if text == "none":
        return 0
    rate = _amount(text.removesuffix("/s"), "bytes")
    if rate is None:
        raise ValueError(f"{text!r} is not a rate such as 10MB, 512KiB or none")
    return rate


def size_in_bytes(text: str) -> int:
    """Parse a size such as 64MiB. Raises ``ValueError``."""
    size = _amount(text, "bytes")
    if not size:
        raise ValueError(f"{text!r} is not a size such as 64MiB or 100000")
    return size


def _amount(text: str, unit: str) -> int | None:
    """Return ``7d``, ``1.5 GiB`` or ``100`` in ms or bytes, as ``unit`` says; None for other texts,
    and for parts of a ms or byte.
    """
    if _NUMBER.fullmatch(text):
        return int(text)
    found = _AMOUNT.fullmatch(text)
    factor = _UNITS[unit].get(found[3].lower()) if found else None
    if found is None or factor is None:
        return None
    decimals = found[2] or ""
    amount, rest = divmod(int(found[1] + decimals) * factor, 10 ** len(decimals))
    return None if rest else amount


def unit_of(setting: str) -> str:
    """Return ``ms`` or ``bytes``, in which a setting counts; "" for other settings."""
    unit = setting.rpartition(".")[2]
    return unit if unit in _UNITS else ""


def in_units(text: str, setting: str) -> str:
    """Return the value of a setting: an amount with a unit, such as ``7d`` or ``1.5 GiB``, in ms or
    bytes, as the setting counts; other texts unchanged, which brokers accept or refuse.
    """
    unit = unit_of(setting)
    amount = _amount(text, unit) if unit else None
    return text if amount is None else str(amount)


def read_text(path: Path) -> str:
    """Return the text of a file. Raises ``BadParameter``."""
    try:
        return path.read_text(encoding="utf-8")
    except OSError as error:
        raise click.BadParameter(f"{path}: {error.strerror}") from error
    except UnicodeDecodeError as error:
        raise click.BadParameter(f"{path}: it is not UTF-8") from error


def cluster_secret_file(command: Command) -> Command:
    """Add ``--cluster-secret-file`` (or RAFTLOG_CLUSTER_SECRET_FILE), and ``--config``."""
    from_config = click.option(
        "--config",
        type=click.Path(exists=True, dir_okay=False, path_type=Path),
        expose_value=False,
        is_eager=True,
        callback=_take_secret_file,
        help="Configuration file of a broker (TOML), whose cluster.secret.file is used.",
    )
    return secret_file(from_config(command))


def secret_file(command: Command) -> Command:
    """Add ``--cluster-secret-file`` (or RAFTLOG_CLUSTER_SECRET_FILE)."""
    return click.option(
        "--cluster-secret-file",
        envvar="RAFTLOG_CLUSTER_SECRET_FILE",
        show_envvar=True,
        type=click.Path(exists=True, dir_okay=False),
        help="File with the secret of the cluster, which the command requires.",
    )(command)


def _take_secret_file(
    context: click.Context, _parameter: click.Parameter, path: Path | None
) -> None:
    if path is None:
        return
    try:
        secret_file = read_toml(read_text(path)).get("cluster.secret.file")
    except InvalidConfigError as error:
        raise click.BadParameter(f"{path}: {error}") from error
    if secret_file is None:
        raise click.BadParameter(
            f"{path} does not set cluster.secret.file. Pass --cluster-secret-file with a file that "
            "contains the secret"
        )
    context.default_map = {"cluster_secret_file": secret_file, **(context.default_map or {})}


def ca_file(command: Command) -> Command:
    """Add ``--ssl-cafile`` for a command that connects to an HTTP port."""
    return click.option(
        "--ssl-cafile",
        "ca_file",
        envvar="RAFTLOG_SSL_CAFILE",
        show_envvar=True,
        type=click.Path(exists=True, dir_okay=False),
        metavar="FILE",
        help="Accepted CA certificates (PEM) for https.  [default: those of the system]",
    )(command)


def https(ca: str | None) -> ssl.SSLContext | None:
    """Return the TLS context for a file of CA certificates; None without a file."""
    return None if ca is None else client_context(ca=ca)


def http_url(text: str) -> str:
    """Return the address of an HTTP port. Raises ``ValueError``."""
    with suppress(ValueError):
        parts = urlsplit(text)
        if parts.scheme in {"http", "https"} and parts.hostname and parts.port != 0:
            return text
    raise ValueError(f"{text!r}: write http://HOST:PORT or https://HOST:PORT")


def as_json(command: Command) -> Command:
    """Add ``--json``: print one JSON value, or for a stream one per line."""
    return click.option("--json", "as_json", is_flag=True, help="Print JSON.")(command)


def internal(command: Command) -> Command:
    """Add ``--internal``: list internal topics, such as ``__consumer_offsets``, too."""
    return click.option(
        "--internal", is_flag=True, help="Include internal topics, which only brokers write."
    )(command)


def quiet(command: Command) -> Command:
    """Add ``-q``: print names only."""
    return click.option("-q", "--quiet", is_flag=True, help="Print only the names.")(command)


def wide(command: Command) -> Command:
    """Add ``--wide``: print tables with all columns, also if they do not fit the terminal."""
    return click.option(
        "--wide",
        is_flag=True,
        expose_value=False,
        callback=lambda context, _parameter, value: context.meta.update({WIDE: value}),
        help="Print all columns of tables, also if they do not fit the terminal.",
    )(command)


def topic_config(command: Command) -> Command:
    """Add ``--config k=v``, repeatable: the settings of a topic as a dict."""
    return click.option(
        "--config",
        "config",
        multiple=True,
        metavar="KEY=VALUE",
        shell_complete=completing.assignments,
        callback=lambda _context, _parameter, pairs: {
            key: in_units(value, key) for key, value in map(key_and_value, pairs)
        },
        help="A setting, such as retention.ms=7d or segment.bytes=64MiB; may be repeated.",
    )(command)


def parsed(parse: Callable[[str], Any]) -> Callable[[click.Context, click.Parameter, Any], Any]:
    """Return a callback that parses an option. A ``ValueError`` is reported as wrong usage."""

    def callback(_context: click.Context, _parameter: click.Parameter, text: str | None) -> Any:
        try:
            return None if text is None else parse(text)
        except (re.error, OverflowError, RecursionError) as error:
            raise click.BadParameter(f"{text!r} is not a regular expression: {error}") from error
        except ValueError as error:
            raise click.BadParameter(str(error)) from error

    return callback


def checked(parse: Callable[[str], Any]) -> Callable[[click.Context, click.Parameter, Any], Any]:
    """Return a callback that returns the unchanged text of an option if it can be parsed."""

    def unchanged(text: str) -> str:
        parse(text)
        return text

    return parsed(unchanged)


def broker_ids(text: str) -> list[int]:
    """Parse a list of different broker ids, such as 1,2,4. Raises ``ValueError``."""
    ids = [part.strip() for part in text.split(",")]
    if not all(part.isascii() and part.isdecimal() for part in ids) or len(set(ids)) < len(ids):
        raise ValueError(f"{text!r} is not a list of different broker ids, such as 1,2,4")
    return list(map(int, ids))


def pattern(name: str, of: str, **settings: Any) -> Callable[[Command], Command]:
    """Return the option ``name``: a regular expression that matches the whole of ``of``."""
    return click.option(
        name,
        metavar="RE",
        callback=checked(re.compile),
        show_default=True,
        help=f"Regular expression that matches whole {of}.",
        **settings,
    )


keep_settings = click.option(
    "--keep-settings",
    is_flag=True,
    help="Topics that exist keep their settings. Default: they get those of their source.",
)


def key_and_value(text: str) -> tuple[str, str]:
    """Parse ``k=v``. The value may contain more ``=``."""
    key, equals, value = text.partition("=")
    if not key or not equals:
        raise click.BadParameter(f"{text!r} is not KEY=VALUE")
    return key.strip(), value


def partition_and_offset(text: str) -> tuple[int, int]:
    """Parse ``P:OFFSET`` into two integers."""
    partition, colon, offset = text.partition(":")
    if not (colon and partition.isdecimal() and offset.isdecimal()):
        raise click.BadParameter(f"{text!r} is not P:OFFSET, as in 0:1000")
    return int(partition), int(offset)


def topic_partition(text: str) -> TopicPartition:
    """``TOPIC:P``."""
    topic, colon, partition = text.rpartition(":")
    if not (topic and colon and partition.isascii() and partition.isdecimal()):
        raise click.BadParameter(f"{text!r} is not TOPIC:P, as in clicks:0")
    return TopicPartition(topic, int(partition))


def check_confluent_kafka() -> None:
    """Raise ``UsageError`` if the client of Kafka's protocol is not installed."""
    if find_spec("confluent_kafka") is None:
        raise click.UsageError("this requires confluent-kafka. Run: pip install confluent-kafka")


# -- offsets ---------------------------------------------------------------------------------------
#
# The OFFSETS grammar of ``raftlog tail -o``: text to bounds, bounds to offsets. Pure.
#
#     earliest | latest | N | -N | +N | @TIME | @TIME1:TIME2 | N1:N2
#
# N is an offset; -N is N before the end and +N is N after the beginning of each partition. A range
# includes its first bound and excludes its second. TIME is ISO 8601 (default: UTC), milliseconds
# since 1970, or relative to now: -2h, -1h30m (units: ms s m h d w).


_RELATIVE: Final = re.compile(r"-((?:\d{1,12}(?:ms|[smhdw]))+)", re.ASCII)
_RELATIVE_PART: Final = re.compile(r"(\d+)(ms|[smhdw])", re.ASCII)
_NUMBER: Final = re.compile(r"\d{1,19}", re.ASCII)
_INT64_MAX: Final = (1 << 63) - 1
_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)

GRAMMAR: Final = "earliest, latest, N, -N, +N, @TIME, @TIME1:TIME2 or N1:N2"
TIME_GRAMMAR: Final = "ISO 8601, milliseconds since 1970, or relative to now as in -2h"


class From(Enum):
    """Base of the number of a bound."""

    BEGINNING = "beginning"
    END = "end"  # the number is subtracted from the end
    OFFSET = "offset"
    TIME = "time"


class Bound(NamedTuple):
    """One point in every partition."""

    kind: From
    number: int = 0


class Offsets(NamedTuple):
    """Start of a read and, optionally, its end."""

    start: Bound
    stop: Bound | None = None


EARLIEST: Final = Bound(From.BEGINNING)
LATEST: Final = Bound(From.END)


def parse_offsets(text: str, *, now_ms: TimestampMs) -> Offsets:
    """Parse OFFSETS. Raises ``ValueError`` with the accepted forms."""
    if text == "earliest":
        return Offsets(EARLIEST)
    if text == "latest":
        return Offsets(LATEST)
    if text.startswith("@"):
        return _parse_times(text[1:], now_ms=now_ms)
    if text[:1] in {"-", "+"}:
        kind = From.END if text[0] == "-" else From.BEGINNING
        return Offsets(Bound(kind, _integer(text[1:], text)))
    first, colon, second = text.partition(":")
    start = Bound(From.OFFSET, _integer(first, text))
    if not colon:
        return Offsets(start)
    stop = Bound(From.OFFSET, _integer(second, text))
    if stop.number < start.number:
        raise ValueError(f"{text!r} ends before it starts")
    return Offsets(start, stop)


def _integer(digits: str, text: str) -> int:
    if not _NUMBER.fullmatch(digits) or int(digits) > _INT64_MAX:
        raise ValueError(f"{text!r} is not one of {GRAMMAR}")
    return int(digits)


def _parse_times(text: str, *, now_ms: TimestampMs) -> Offsets:
    """Parse ``TIME`` or ``TIME1:TIME2``. ISO times contain colons: try a single TIME first."""
    whole = parse_time(text, now_ms=now_ms)
    if whole is not None:
        return Offsets(Bound(From.TIME, whole))
    pairs = [
        (parse_time(text[:at], now_ms=now_ms), parse_time(text[at + 1 :], now_ms=now_ms))
        for at, character in enumerate(text)
        if character == ":"
    ]
    ranges = [(start, stop) for start, stop in pairs if start is not None and stop is not None]
    if not ranges:
        raise ValueError(f"{'@' + text!r}: write @TIME or @TIME1:TIME2; TIME is {TIME_GRAMMAR}")
    if len(ranges) > 1:
        raise ValueError(f"{'@' + text!r} can be read in two ways: write milliseconds since 1970")
    start, stop = ranges[0]
    if stop < start:
        raise ValueError(f"{'@' + text!r} ends before it starts")
    return Offsets(Bound(From.TIME, start), Bound(From.TIME, stop))


def parse_time(text: str, *, now_ms: TimestampMs) -> TimestampMs | None:
    """Return TIME as milliseconds since 1970, or None if it is not a time."""
    if _NUMBER.fullmatch(text):
        return min(int(text), _INT64_MAX)
    relative = _RELATIVE.fullmatch(text)
    if relative:
        parts = _RELATIVE_PART.findall(relative[1])
        return max(0, now_ms - sum(int(count) * _UNITS["ms"][unit] for count, unit in parts))
    try:
        moment = datetime.fromisoformat(text)
    except ValueError:
        return None
    moment = moment if moment.tzinfo else moment.replace(tzinfo=UTC)
    # Rounded up, because records have whole milliseconds.
    return max(0, -((_EPOCH - moment) // timedelta(milliseconds=1)))


class Extent(NamedTuple):
    """Offsets of a partition: ``beginning`` is the first, ``end`` is one past the last."""

    beginning: Offset
    end: Offset


def resolve(bound: Bound, extent: Extent, *, at_time: Offset | None) -> Offset:
    """Return the offset of ``bound`` in one partition, which may be out of its range.

    ``at_time`` is the first offset at or after a TIME bound; None if there is none.
    """
    if bound.kind is From.BEGINNING:
        return min(extent.beginning + bound.number, extent.end)
    if bound.kind is From.END:
        return max(extent.end - bound.number, extent.beginning)
    if bound.kind is From.TIME:
        return extent.end if at_time is None else at_time
    return bound.number


def resolve_all(
    bound: Bound,
    extents: Mapping[TopicPartition, Extent],
    find: Callable[
        [dict[TopicPartition, TimestampMs]], Mapping[TopicPartition, OffsetAndTimestamp | None]
    ],
) -> dict[TopicPartition, Offset]:
    """Call ``resolve`` for each partition. ``find``: returns offsets for a TIME bound."""
    found = find(dict.fromkeys(extents, bound.number)) if bound.kind is From.TIME else {}
    at_times = {tp: hit.offset for tp, hit in found.items() if hit is not None}
    return {tp: resolve(bound, extent, at_time=at_times.get(tp)) for tp, extent in extents.items()}


def confine(offset: Offset, extent: Extent) -> Offset:
    """Return ``offset``, or the nearest offset of the partition."""
    return max(extent.beginning, min(offset, extent.end))
