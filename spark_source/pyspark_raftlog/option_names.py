"""Names of the options, and messages for options that are unknown or have no effect.

Pure. The table of options is in ``options``; ``client_options`` checks options of the client.
"""

from __future__ import annotations

import difflib
from collections.abc import Mapping
from typing import Final

from pyspark_raftlog.client_options import (
    ADDRESS_NAMES,
    SECRETS,
    is_client_option,
    setting_name,
)
from pyspark_raftlog.option_values import Texts
from raftlog.errors import InvalidRequestError

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
# Names that similar sources use, with raftlog's names. Other names of the same option:
# ``option_values.ALIASES``.
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
