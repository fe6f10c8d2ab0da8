"""The page of Spark's options has them all, no others, and the defaults that they have."""

from __future__ import annotations

import ast
import inspect
import re
from dataclasses import fields

import pytest

from pyspark_raftlog import planning, writer
from pyspark_raftlog.options import (
    ADDRESS_NAMES,
    CONNECTION_SETTINGS,
    READ_SETTINGS,
    SINK_OPTIONS,
    SOURCE_OPTIONS,
    WRITE_SETTINGS,
    SinkOptions,
    SourceOptions,
    dotted,
)
from raftlog import errors
from raftlog.client.readers import RangeReader
from raftlog.client.resumable import ResumableProducer
from raftlog.client.settings import OAUTHBEARER, SASL_MECHANISMS, SECURITY_PROTOCOLS, SOURCES
from raftlog.record import CODEC_NAMES, Codec
from tests.tidy.sources import ROOT

PAGE = (ROOT / "docs/reference/spark-options.md").read_text(encoding="utf-8")
ADDRESS = {"bootstrap.servers": "broker:9100"}
READ = {**ADDRESS, "subscribe": "clicks"}
Row = list[str]


def rows(section: str) -> dict[str, Row]:
    """The table of a section of the page: the other cells by the option's name."""
    (text,) = re.findall(rf"^## {section}\n(.*?)(?=^##|\Z)", PAGE, re.DOTALL | re.MULTILINE)
    lines = [line for line in text.splitlines() if line.startswith("| `")]
    found = [[cell.strip() for cell in line.strip("|").split("|")] for line in lines]
    return {row[0].strip("`"): row[1:] for row in found}


def code(cell: str) -> str | None:
    """What a cell has as code, first."""
    found = re.match("`([^`]+)`", cell)
    return found and found[1]


READING, WRITING, SETTINGS = rows("Reading"), rows("Writing"), rows("Settings of the client")


def test_every_option_is_on_the_page_and_no_other() -> None:
    assert tuple(rows("Where")) == ADDRESS_NAMES[:1]
    assert set(READING) == set(SOURCE_OPTIONS)
    assert set(WRITING) == set(SINK_OPTIONS)
    known = {*CONNECTION_SETTINGS, *READ_SETTINGS, *WRITE_SETTINGS}
    assert set(SETTINGS) == set(map(dotted, known))


def test_the_default_changes_nothing() -> None:
    for name in [*READING, *WRITING]:
        default, modes, _ = (READING | WRITING)[name]
        text = code(default)
        if text is None:
            continue
        if name in WRITING:
            assert SinkOptions.parse({**ADDRESS, name: text}, streaming=False) == (
                SinkOptions.parse(ADDRESS, streaming=False)
            )
            continue
        streaming = modes == "stream"
        noted = SourceOptions.parse({**READ, name: text}, streaming=streaming)
        assert _without_notices(noted) == _without_notices(
            SourceOptions.parse(READ, streaming=streaming)
        )


def _without_notices(options: SourceOptions) -> dict[str, object]:
    return {
        key.name: getattr(options, key.name) for key in fields(options) if key.name != "notices"
    }


def test_a_setting_has_the_default_of_the_client_and_its_direction() -> None:
    for name in SETTINGS:
        default, direction, _ = SETTINGS[name]
        setting = name.removeprefix("raftlog.").replace(".", "_")
        clients: dict[str, list[type]] = {"read": [RangeReader], "write": [ResumableProducer]}
        for client in clients.get(direction, [RangeReader, ResumableProducer]):
            parameter = inspect.signature(client).parameters.get(setting)
            if parameter is not None:
                expected = None if parameter.default is None else str(parameter.default).lower()
                assert code(default) == expected
            else:
                assert code(default) is None, "the writer's own, which depends on the topic"
        for mode, known in (("read", READ_SETTINGS), ("write", WRITE_SETTINGS)):
            is_taken = setting in known or setting in CONNECTION_SETTINGS
            assert is_taken == (direction in {mode, "both"})


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("raftlog.security.protocol", SECURITY_PROTOCOLS),
        ("raftlog.sasl.mechanism", (*SASL_MECHANISMS, OAUTHBEARER)),
        ("raftlog.read.from", SOURCES),
    ],
)
def test_every_word_on_the_page_is_accepted_as_the_client_writes_it(
    name: str, words: tuple[str, ...]
) -> None:
    noted = re.findall("`([^`]+)`", re.split(r"default:", SETTINGS[name][2])[0])
    assert set(noted) == set(words)
    setting = name.removeprefix("raftlog.").replace(".", "_")
    for word in words:
        for text in (word, word.lower(), word.upper()):
            parsed = SourceOptions.parse({**READ, name: text}, streaming=False)
            assert dict(parsed.connection + parsed.reading)[setting] == word


def test_every_codec_on_the_page_is_accepted() -> None:
    noted = re.findall("`([^`]+)`", WRITING["codec"][2].split(";")[0])
    assert set(noted) == set(CODEC_NAMES)
    for word in noted:
        assert (
            SinkOptions.parse({**ADDRESS, "codec": word.upper()}, streaming=False).codec
            == (Codec[word.upper()])
        )


# Messages of Spark, of Python and of the operating system in the page's troubleshooting.
OTHERS = (
    "[DATA_SOURCE_NOT_FOUND]",
    "No module named",
    "murmurhash2",
    "Cannot run program",
    "[UNSUPPORTED_DATA_SOURCE_SAVE_MODE]",
    "raftlog does not support Update mode",
    "[AVRO_NOT_LOADED",
)


def test_the_messages_in_the_troubleshooting_are_those_of_the_code() -> None:
    """Without the examples in them: names in quotes, numbers and what is left out (``...``)."""
    page = (ROOT / "docs/how-to/use-spark.md").read_text(encoding="utf-8")
    table = page[page.index("## Troubleshooting") :].splitlines()
    cells = [line.split(" | ")[0] for line in table if line.startswith("| `")]
    noted = [text for cell in cells for text in re.findall("`([^`]+)`", cell)]
    code = " ".join(
        node.value
        for folder in ("spark_source", "raftlog/client")
        for path in sorted((ROOT / folder).rglob("*.py"))
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
        if isinstance(node, ast.Constant) and isinstance(node.value, str)
    )
    names = {name for module in (errors, planning, writer) for name in vars(module)}
    wrong = []
    for text in noted:
        parts = [part.strip(" .?") for part in re.split(r"\.\.\.|'[^']*'|\d+|[()]", text)]
        is_known = all(part in code or part in names for part in parts)
        if not is_known and not text.startswith(OTHERS):
            wrong.append(text)
    assert len(noted) > 15
    assert not wrong, "no message of the data source"
