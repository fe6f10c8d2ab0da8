"""The manual: what it says of the program is so, in words that the writing guide permits."""

from __future__ import annotations

import ast
import inspect
import re
from dataclasses import fields
from pathlib import Path
from typing import Final

import click
import pytest

from docs import generate
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
from raftlog_cli.main import COMMANDS, root
from tests.tidy import sources
from tests.tidy.sources import ROOT

# -- commands, settings, errors and modules --------------------------------------------------------

# The manual says what the program does: commands, settings, errors and modules are all in it.


ALL_COMMANDS = dict(generate.commands(root, ("raftlog",)))


def same(written: str, now: str) -> bool:
    """Equal; or, for a page laid out by another version of click, of the same sections."""
    by_click = "<!-- click "
    if by_click in written and f"{by_click}{generate.click_version()} -->" not in written:
        written, now = (re.sub(r"```.*?```", "", t, flags=re.DOTALL) for t in (written, now))
        written = re.sub(rf"{by_click}.*", f"{by_click}{generate.click_version()} -->", written)
    return written == now


def test_generated_pages_are_up_to_date() -> None:
    stale = [
        path.relative_to(ROOT).as_posix()
        for path, text in generate.pages().items()
        if not path.exists() or not same(path.read_text(encoding="utf-8"), text)
    ]
    assert not stale, f"run `make docs` (or python docs/generate.py): {stale}"


def test_every_command_has_help_with_an_example() -> None:
    for name, context in ALL_COMMANDS.items():
        text = context.command.help or ""
        assert text.strip(), f"write the docstring of {name}"
        assert "Example:" in text, "show one call that works as it stands"
        assert "\\b" not in text, (
            "a raw docstring: click's mark has to be the character, not its name"
        )
        for parameter in context.command.params:
            if isinstance(parameter, click.Option):
                assert parameter.help, f"{parameter.opts[0]} has no help"


def test_the_command_table_has_the_first_line_of_each_help() -> None:
    for name, entry in COMMANDS.items():
        command = ALL_COMMANDS[f"raftlog {name}"].command
        assert entry.help == (command.short_help or (command.help or "").partition("\n")[0])


def test_the_help_has_one_line_for_each_command() -> None:
    for context in ALL_COMMANDS.values():
        if isinstance(context.command, click.Group):
            text = context.get_help()
            rows = text[text.index("Commands:\n") :].splitlines()[1:]
            assert [row.split()[0] for row in rows] == context.command.list_commands(context)
            assert not [row for row in rows if row.endswith("...") or len(row) > 80]


def test_every_command_takes_json_or_prints_no_result() -> None:
    silent = {
        "raftlog broker",  # logs to stderr
        "raftlog completion",  # prints a script, whatever the format
    }
    without = [
        name
        for name, context in ALL_COMMANDS.items()
        if not isinstance(context.command, click.Group)
        and name not in silent
        and not any("--json" in parameter.opts for parameter in context.command.params)
    ]
    assert not without, f"give these --json: {without}"


def unknown_in(call: str) -> str:
    """Return what does not exist in a call such as ``raftlog topic list -q``; "" for nothing."""
    words = re.split(r"\s*[|>&;#]", call)[0].split()
    length = max(n for n in range(1, len(words) + 1) if " ".join(words[:n]) in ALL_COMMANDS)
    command, rest = ALL_COMMANDS[" ".join(words[:length])].command, words[length:]
    if isinstance(command, click.Group) and rest and re.fullmatch("[a-z][a-z-]*", rest[0]):
        return rest[0]
    known = {"--help", "--version", *(name for each in command.params for name in each.opts)}
    given = [word.partition("=")[0] for word in rest if re.match("--[a-z]", word)]
    return next((name for name in given if name not in known), "")


def test_every_command_that_a_text_names_exists() -> None:
    pages = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
    texts = {path.as_posix(): path.read_text(encoding="utf-8") for path in pages}
    texts |= {source.path: source.text for source in sources.packages()}
    wrong = [
        f"{path}: {call}: there is no {unknown}"
        for path, text in texts.items()
        for call in re.findall(r"`(raftlog (?!does )[a-z][^`\n]*)`", text)
        if (unknown := unknown_in(call))
    ]
    assert not wrong


def test_every_module_is_in_the_list_of_modules() -> None:
    text = (ROOT / "docs/contributing/modules.md").read_text(encoding="utf-8")
    missing = [
        source.path
        for source in sources.packages()
        if source.text.strip() and f"- `{source.path.rpartition('/')[2]}`: " not in text
    ]
    assert not missing


def test_every_page_is_in_a_table_of_contents() -> None:
    docs = ROOT / "docs"
    entries = (docs / "index.md").read_text(encoding="utf-8").splitlines()
    pages = {path.relative_to(docs).with_suffix("") for path in docs.rglob("*.md")}
    lost = [
        page.as_posix()
        for page in pages
        if page.parts[0] not in {"_build", "index"}
        and not any(map(page.match, filter(None, entries)))
    ]
    assert not lost, f"add these to a toctree of docs/index.md: {lost}"


@pytest.mark.parametrize("page", ["architecture", "consensus", "groups", "storage", "testing"])
def test_every_file_that_a_page_names_exists(page: str) -> None:
    text = (ROOT / f"docs/contributing/{page}.md").read_text(encoding="utf-8")
    named = set(re.findall(r"`((?:raftlog|jepsen_like|tests)/[\w/]+(?:\.py|/))`", text))
    missing = sorted(name for name in named if not (ROOT / name).exists())
    assert not missing, "a module has moved: name its new place"


# -- spark options ---------------------------------------------------------------------------------

# The page of Spark's options has them all, no others, and the defaults that they have.


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


# -- words -----------------------------------------------------------------------------------------

# Words that docs/contributing/writing.md avoids, in the manual and in the product's texts.


WORDS: Final = re.compile(
    r"(?<!\.)\b(anew|beside|but\s+for|for\s+ever|for\s+good|for\s+want\s+of|in\s+vain|meanwhile"
    r"|nevertheless|nobody|no\s+more(?!\s+than)|of\s+(?:its|their|his)\s+own|rather(?!\s+than)"
    r"|shall|so\s+far\s+as|somebody|whatever|whoever)\b",
    re.IGNORECASE,
)
LISTS_THE_WORDS: Final = "docs/contributing/writing.md"
# Written from the sources of the product and of the tests, which are searched themselves.
GENERATED: Final = re.compile(r"<!-- Written by .*-->")


def places(path: Path) -> list[str]:
    text = path.read_text(encoding="utf-8")
    if GENERATED.match(text):
        return []
    name = path.relative_to(ROOT)
    return [
        f"{name}:{text.count(chr(10), 0, found.start()) + 1}: {found[0]!r}"
        for found in WORDS.finditer(text)
    ]


def searched() -> list[Path]:
    pages = [path for path in (ROOT / "docs").rglob("*.md") if "_build" not in path.parts]
    code = [
        path
        for folder in ("raftlog", "cli", "jepsen_like", "spark_source")
        for path in (ROOT / folder).rglob("*.py")
    ]
    return [*ROOT.glob("*.md"), *pages, *code]


def test_avoided_words_do_not_come_back() -> None:
    found = []
    for path in searched():
        name = path.relative_to(ROOT).as_posix()
        if name != LISTS_THE_WORDS:
            found += places(path)
    assert not found, "docs/contributing/writing.md has the words to use:\n" + "\n".join(found)
