"""The manual says what the program does: commands, settings, errors and modules are all in it."""

from __future__ import annotations

import re

import click
import pytest

from docs import generate
from raftlog_cli.main import COMMANDS, root
from tests.tidy import sources
from tests.tidy.sources import ROOT

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
