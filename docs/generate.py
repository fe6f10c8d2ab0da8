"""The reference pages that a program writes: commands, settings, errors, modules.

    python docs/generate.py            write them
    python docs/generate.py --check    exit 1 if one is not what it would be

A test runs the check, so that a page can be read in the repository and is never out of date.
"""

from __future__ import annotations

import ast
import inspect
import json
import re
import sys
from collections.abc import Iterator
from importlib.metadata import version
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

import click  # noqa: E402 - the repository has to be importable first

import raftlog  # noqa: E402
from raftlog import errors, limits  # noqa: E402
from raftlog.config import BROKER_KEYS, TOPIC_KEYS, ConfigKey  # noqa: E402
from raftlog.server.http.collect import METRICS  # noqa: E402
from raftlog_cli.main import root  # noqa: E402
from raftlog_cli.options import connection_help  # noqa: E402
from tests.scenarios.index import SCENARIOS  # noqa: E402

PACKAGES = ("raftlog", "cli", "spark_source", "jepsen_like")
NOTICE = "<!-- Written by docs/generate.py: run `make docs`, do not edit. -->\n"
HELP_WIDTH = 96


def pages() -> dict[Path, str]:
    """Path -> text of every generated page."""
    docs = ROOT / "docs"
    return {
        docs / "reference" / "cli.md": cli_page(),
        docs / "reference" / "python.md": python_page(),
        docs / "reference" / "config.md": config_page(),
        docs / "reference" / "errors.md": errors_page(),
        docs / "reference" / "limits.md": limits_page(),
        docs / "reference" / "metrics.md": metrics_page(),
        docs / "reference" / "kafka-clients.md": kafka_clients_page(),
        docs / "reference" / "kafka-differences.md": kafka_differences_page(),
        docs / "contributing" / "scenarios.md": scenarios_page(),
        docs / "contributing" / "modules.md": modules_page(),
    }


# -- commands -------------------------------------------------------------------------------------


SETTINGS: dict[str, Any] = dict(root.context_settings)


def commands(command: click.Command, names: tuple[str, ...]) -> Iterator[tuple[str, click.Context]]:
    """Each command below ``command``, itself first, with the context that its help needs."""
    parent = (
        click.Context(click.Group(), info_name=" ".join(names[:-1]), **SETTINGS)
        if names[:-1]
        else None
    )
    context = click.Context(command, parent=parent, info_name=names[-1], **SETTINGS)
    context.terminal_width = HELP_WIDTH
    yield " ".join(names), context
    if isinstance(command, click.Group):
        for name in command.list_commands(context):
            child = command.get_command(context, name)
            assert child is not None, f"{names} lists {name} and does not have it"
            yield from commands(child, (*names, name))


def click_version() -> str:
    """Major and minor: help is laid out a little differently by each."""
    return ".".join(version("click").split(".")[:2])


def cli_page() -> str:
    parts = [NOTICE, f"<!-- click {click_version()} -->\n", "# Commands\n"]
    for name, context in commands(root, ("raftlog",)):
        parts.append(f"## {name}\n\n```text\n{context.get_help().strip()}\n```\n")
    for name, context in commands(root, ("raftlog",)):
        if name == "raftlog tail":
            text = connection_help(context).partition("\n")[2].strip()
            parts.append(f"## Connection options\n\n```text\n{text}\n```\n")
    return "\n".join(parts)


# -- the library ----------------------------------------------------------------------------------

PYTHON_INTRODUCTION = """\
Everything here is imported from `raftlog`. `raftlog.aio` has `AsyncProducer`, `AsyncConsumer` and
`AsyncAdmin`: the same arguments, and the same methods as coroutines. All clients are context
managers; nothing is connected before it is needed.
"""


def python_page() -> str:
    parts = [NOTICE, "# Python\n", PYTHON_INTRODUCTION]
    names = [name for name in dir(raftlog) if not name.startswith("_")]
    for value in (getattr(raftlog, name) for name in names):
        if inspect.isclass(value):
            parts += class_section(value)
        elif inspect.isfunction(value):
            parts.append(function_section(f"raftlog.{value.__name__}", value, level=2))
    return "\n".join(parts)


def class_section(kind: type) -> Iterator[str]:
    yield f"## {kind.__name__}\n\n{prose(kind.__doc__)}"
    base = next((base for base in kind.__mro__ if "bootstrap" in settings_of(base)), None)
    if base is None:
        yield call_block(kind.__name__, kind)
    else:
        yield function_section(kind.__name__, base.__init__, level=3)  # type: ignore[misc]
    for name, value in methods_of(kind):
        yield function_section(f"{kind.__name__}.{name}", value, level=3)


def methods_of(kind: type) -> Iterator[tuple[str, Any]]:
    """The documented methods of a class of ours: its own, then those of the parts it is made of."""
    told: set[str] = set()
    for part in kind.__mro__:
        for name, value in vars(part).items() if part.__module__.startswith("raftlog") else ():
            is_public = inspect.isfunction(value) and not name.startswith("_") and value.__doc__
            if is_public and name not in told:
                told.add(name)
                yield name, value


def settings_of(kind: type) -> list[str]:
    """The keyword arguments of a client's documented constructor."""
    function = vars(kind).get("__init__")
    documented = inspect.isfunction(function) and function.__doc__
    return list(inspect.signature(function).parameters) if documented and function else []


def function_section(name: str, function: Any, *, level: int) -> str:
    call = call_block(name, function)
    return f"{'#' * level} {name}\n\n{call}\n{prose(function.__doc__)}"


def call_block(name: str, function: Any) -> str:
    """How it is called, as a block of code."""
    signature = inspect.signature(function)
    if isinstance(function, type):  # a msgspec.Struct's signature has types, not their names
        written = vars(function).get("__annotations__", {})
        signature = signature.replace(
            parameters=[
                argument.replace(annotation=written.get(argument.name, argument.annotation))
                for argument in signature.parameters.values()
            ]
        )
    arguments = [a for a in signature.parameters.values() if a.name not in {"self", "_cls"}]
    listed = [argument_text(argument) for argument in arguments]
    kinds = [argument.kind for argument in arguments]
    if inspect.Parameter.KEYWORD_ONLY in kinds and inspect.Parameter.VAR_POSITIONAL not in kinds:
        listed.insert(kinds.index(inspect.Parameter.KEYWORD_ONLY), "*")
    returns = signature.return_annotation
    arrow = "" if returns in {inspect.Signature.empty, "None", None} else f" -> {returns}"
    call = f"{name}({', '.join(listed)}){arrow}"
    if len(call) > HELP_WIDTH:
        call = f"{name}(\n" + "".join(f"    {text},\n" for text in listed) + f"){arrow}"
    return f"```python\n{call}\n```\n"


def argument_text(argument: inspect.Parameter) -> str:
    prefix = {inspect.Parameter.VAR_POSITIONAL: "*", inspect.Parameter.VAR_KEYWORD: "**"}
    text = prefix.get(argument.kind, "") + argument.name
    if argument.annotation is not inspect.Parameter.empty:
        text += f": {getattr(argument.annotation, '__forward_arg__', argument.annotation)}"
    if argument.default is inspect.Parameter.empty:
        return text
    return f"{text} = {argument.default!r}".replace("<factory>", "{}")


def prose(docstring: str | None) -> str:
    """A docstring as Markdown: a paragraph with hanging lines becomes a list."""
    text = inspect.cleandoc(docstring or "").replace("``", "`")
    blocks = []
    for paragraph in text.split("\n\n"):
        lines = paragraph.split("\n")
        if any(line.startswith("    ") for line in lines[1:]) and not lines[0].startswith(" "):
            lines = [line if line.startswith(" ") else f"- {line}" for line in lines]
            lines = [line if line.startswith("- ") else f"  {line.strip()}" for line in lines]
        blocks.append("\n".join(lines))
    return "\n\n".join(blocks) + "\n"


# -- settings and errors --------------------------------------------------------------------------


def table(columns: tuple[str, ...], rows: list[tuple[str, ...]]) -> str:
    lines = [columns, tuple("---" for _ in columns), *rows]
    return "".join("| " + " | ".join(line) + " |\n" for line in lines)


def settings(keys: tuple[ConfigKey[Any], ...]) -> str:
    rows = [
        (f"`{key.name}`", "" if key.default is None else f"`{key.default}`", key.accepts, key.help)
        for key in keys
    ]
    return table(("setting", "default", "takes", "meaning"), rows)


def config_page() -> str:
    return "\n".join(
        [
            NOTICE,
            "# Settings\n",
            "## Topics\n",
            "Set with `raftlog topic create NAME --config KEY=VALUE` or `raftlog topic alter`.\n",
            settings(TOPIC_KEYS),
            "## Brokers\n",
            "Set in the TOML file of `raftlog broker --config FILE`, or with `--set KEY=VALUE`.\n",
            settings(BROKER_KEYS),
        ]
    )


def errors_page() -> str:
    tree = (errors.__doc__ or "").partition("\n\n")[2]
    rows = [
        (str(code), f"`{error.__name__}`", f"`{error.__base__.__name__}`", summary(error.__doc__))
        for code, error in sorted(errors.ERRORS_BY_CODE.items())
        if code > 0 and error.__base__ is not None
    ]
    return "\n".join(
        [
            NOTICE,
            "# Errors\n",
            "What an error is a kind of says what the caller may do next.\n",
            f"```text\n{tree.partition('Each leaf')[0].rstrip()}\n```\n",
            "The code is the error's number on the wire.\n",
            table(("code", "error", "is a", "meaning"), rows),
        ]
    )


LIMITS_INTRODUCTION = """\
The constants of `raftlog/limits.py`. They cannot be changed; [settings](config.md) stay below them.
The unit is in the name: bytes, chars (characters), ms, S (seconds).
"""
LIMIT = re.compile(r"^([A-Z_]+): Final = (?:\(\n)?.*?(?:  # (.*))?$", re.MULTILINE)


def limits_page() -> str:
    parts = [NOTICE, "# Limits\n", LIMITS_INTRODUCTION]
    for section in inspect.getsource(limits).split("\n# -- ")[1:]:
        title, _, body = section.partition("\n")
        rows = [
            (f"`{name}`", f"{getattr(limits, name):,}", note.replace("``", "`"))
            for name, note in LIMIT.findall(body)
        ]
        parts.append(f"## {title.partition(' (')[0].rstrip(' -').capitalize()}\n")
        parts.append(table(("limit", "value", "note"), rows))
    return "\n".join(parts)


METRICS_INTRODUCTION = """\
A broker with `http.listen` serves these metrics at `/metrics`, in the text format of Prometheus
and in OpenMetrics. It also serves the `process_*` and `python_*` metrics of prometheus-client. A
histogram has the series `_bucket`, `_sum` and `_count`. See
[Monitoring](../how-to/monitoring.md).

With `--workers`, the first worker serves the metrics of all, each sample with the label `worker`,
and `raftlog_worker_up`: 1 for each worker that answers, else 0.
"""


def metrics_page() -> str:
    rows = [
        (f"`{m.name}`", m.kind, ", ".join(f"`{label}`" for label in m.labels), m.help)
        for m in METRICS
    ]
    columns = ("metric", "type", "labels", "meaning")
    return "\n".join([NOTICE, "# Metrics\n", METRICS_INTRODUCTION, table(columns, rows)])


KAFKA_CLIENTS_INTRODUCTION = """\
`make kafka-peers` runs these clients and tools against three brokers, with raftlog's own clients.
This page lists the last outcomes. Each client reads what the others have written and the other way
round, with the same offsets and groups.

- produce CODEC: an idempotent producer writes. raftlog's consumer reads the same records at the
  same offsets.
- group.protocol=TYPE: a member of a group reads half of a topic, raftlog's consumer continues in
  this group, and then the client again. The topic has batches of all clients and codecs.
- administration: create a topic, change settings, add partitions, describe, list offsets, delete.
- failover: the leader is killed while an idempotent producer writes. No record is lost or repeated.
- its own tests: the tests of the client's own repository that use a broker, against one broker
  (confluent-kafka: three).
  Excepted are share groups, and the tests that `CANNOT_PASS` and `NOT_RUN` in
  `tests/kafka_peers/test_suites.py` lists with their reasons. An excepted test that passes is a
  failure, too.

[Kafka protocol](../explanation/kafka.md) lists the APIs and all differences from Kafka.
"""


def kafka_clients_page() -> str:
    results = json.loads((ROOT / "tests" / "kafka_peers" / "results.json").read_text())
    rows = []
    for name, client in sorted(results["clients"].items()):
        features = client["features"]
        works = [feature for feature, passed in features.items() if passed]
        fails = [feature for feature, passed in features.items() if not passed]
        rows.append(
            (name, client["version"], client["date"], "; ".join(works), "; ".join(fails) or "-")
        )
    columns = ("client", "version", "last run", "works", "does not work")
    head = KAFKA_CLIENTS_INTRODUCTION
    return "\n".join([NOTICE, "# Kafka clients\n", head, table(columns, rows)])


KAFKA_DIFFERENCES_INTRODUCTION = """\
`make kafka-differential` sends the same requests to three Kafka {version} brokers and to three of
raftlog, and compares the responses field by field. Topics have three replicas, and a client sends
each request to the leader or coordinator. Requests "another broker" go to one that is neither.
These are the permitted differences: another one fails the test, and so does one of these that no
longer occurs. Topic IDs, producer IDs, member IDs, leaders, addresses and error texts are not
compared. [Kafka protocol](../explanation/kafka.md) explains the differences
that applications notice.
"""


def kafka_differences_page() -> str:
    folder = ROOT / "tests" / "kafka_peers"
    rows = [
        (each["step"].replace("|", "\\|"), f"`{plain_path(each['field'])}`", each["reason"])
        for each in json.loads((folder / "allowed_differences.json").read_text())
    ]
    pom = (folder / "java" / "pom.xml").read_text()
    found = re.search(r"kafka-tools</artifactId>\s*<version>(.*?)<", pom)
    assert found is not None
    head = KAFKA_DIFFERENCES_INTRODUCTION.format(version=found[1])
    columns = ("request", "field", "reason")
    return "\n".join([NOTICE, "# Differences from Kafka's responses\n", head, table(columns, rows)])


def plain_path(pattern: str) -> str:
    """The last part of a field's path, from its regular expression."""
    last = re.split(r"(?<=\])\\\.", pattern)[-1]
    return last.replace("\\", "").replace("|", ", ").replace(".*", "").strip("()")


def summary(docstring: str | None) -> str:
    return " ".join((docstring or "").partition("\n\n")[0].split()).replace("``", "`")


# -- scenarios ------------------------------------------------------------------------------------

SCENARIOS_INTRODUCTION = """\
What has broken replicated logs before, each told as a test by that name. A test checks this index.
"""


def scenarios_page() -> str:
    rows = [
        (
            number,
            scenario.name.replace("_", " "),
            scenario.noted,
            scenario.why_none
            or "<br>".join(f"`{path}`: `{function}`" for path, function in scenario.tests),
        )
        for number, scenario in SCENARIOS.items()
    ]
    columns = ("", "scenario", "what happens", "told by")
    return "\n".join([NOTICE, "# Scenarios\n", SCENARIOS_INTRODUCTION, table(columns, rows)])


# -- modules --------------------------------------------------------------------------------------


def modules_page() -> str:
    parts = [
        NOTICE,
        "# Modules\n",
        "One line for each module: the first of its docstring.\n",
    ]
    for package in PACKAGES:
        folders = sorted({path.parent for path in (ROOT / package).rglob("*.py")})
        for folder in folders:
            rows = [module_line(path) for path in sorted(folder.glob("*.py"))]
            heading = folder.relative_to(ROOT).as_posix()
            parts.append(f"## {heading}\n\n" + "\n".join(filter(None, rows)) + "\n")
    return "\n".join(parts)


def module_line(path: Path) -> str:
    docstring = ast.get_docstring(ast.parse(path.read_text(encoding="utf-8")))
    return f"- `{path.name}`: {summary(docstring)}" if docstring else ""


def main() -> int:
    stale = [
        path
        for path, text in pages().items()
        if not path.exists() or path.read_text(encoding="utf-8") != text
    ]
    check = sys.argv[1:] == ["--check"]
    for path in stale:
        name = path.relative_to(ROOT)
        print(f"{name} is out of date: run `make docs`" if check else f"wrote {name}")
        if not check:
            path.write_text(pages()[path], encoding="utf-8")
    return 1 if check and stale else 0


if __name__ == "__main__":
    sys.exit(main())
