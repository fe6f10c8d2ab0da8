"""``raftlog schema``: list, get, put, check and delete schemas, and set compatibility levels."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

import click

from raftlog import Admin
from raftlog.client.registry import path_of
from raftlog.errors import SchemaError
from raftlog_cli import options, output
from raftlog_cli.main import Commands, Failed

STATUS_INCOMPATIBLE: Final = 3
TYPES: Final = ("avro", "json", "protobuf")
# By the end of the name of a file.
_TYPE_OF: Final = {".avsc": "avro", ".proto": "protobuf", ".json": "json"}
LEVELS: Final = (
    *("BACKWARD", "BACKWARD_TRANSITIVE", "FORWARD", "FORWARD_TRANSITIVE"),
    *("FULL", "FULL_TRANSITIVE", "NONE"),
)

schema_file = click.argument("file", type=click.Path(dir_okay=False, path_type=Path))
schema_type = click.option(
    "--type",
    "kind",
    type=click.Choice(TYPES),
    help="Type of the schema. Default: by the name of the file, .avsc, .proto or .json.",
)
references_option = click.option(
    "--reference",
    "references",
    multiple=True,
    metavar="NAME=SUBJECT:VERSION",
    help="A schema that the file refers to by NAME: the name of an Avro type, a path of an import "
    "of Protobuf, or a URL of JSON Schema. May be repeated.",
)


@click.group(cls=Commands)
def schema() -> None:
    """List, get, put, check and delete schemas of the schema registry.

    The values of topic `clicks` have the subject `clicks-value`, its keys `clicks-key`.

    \b
    Example:
      raftlog schema put clicks-value click.avsc
    """


@schema.command(name="list")
@click.argument("prefix", default="")
@click.option("--deleted", is_flag=True, help="Also what is deleted, but not permanently.")
@options.as_json
@options.bootstrap
def list_(prefix: str, deleted: bool, as_json: bool, bootstrap: str) -> None:
    """List subjects: those that begin with PREFIX, or all.

    \b
    Example:
      raftlog schema list
      raftlog schema list clicks --json
    """
    query = {"subjectPrefix": prefix, "deleted": str(deleted).lower()}
    with Admin(bootstrap) as admin:
        found = admin.call_schema_registry("GET", "/schemas", query=query)
    subjects: dict[str, list[Any]] = {}
    for each in found:
        subjects.setdefault(each["subject"], []).append(each)
    rows = [
        {
            "subject": subject,
            "type": versions[-1].get("schemaType", "AVRO"),
            "id": versions[-1]["id"],
            "versions": [each["version"] for each in versions],
        }
        for subject, versions in sorted(subjects.items())
    ]
    if as_json:
        output.print_json(rows)
        return
    output.print_table(
        ("subject", "type", "latest id", "versions"),
        [(row["subject"], row["type"], row["id"], _spans(row["versions"])) for row in rows],
    )


@schema.command(short_help="Print a schema, of a subject or by its ID.")
@click.argument("subject", required=False)
@click.option("--id", "schema_id", type=click.IntRange(1), help="Get the schema with this ID.")
@options.as_json
@options.bootstrap
def get(subject: str | None, schema_id: int | None, as_json: bool, bootstrap: str) -> None:
    """Print a schema: the latest of SUBJECT, a version as SUBJECT:VERSION, or by its ID.

    \b
    Example:
      raftlog schema get clicks-value
      raftlog schema get clicks-value:1 --json
      raftlog schema get --id 7
    """
    if (subject is None) == (schema_id is None):
        raise click.UsageError("pass SUBJECT or --id")
    path = path_of("schemas", "ids", schema_id) if subject is None else _version_path(subject)
    with Admin(bootstrap) as admin, _hints(subject or ""):
        found = admin.call_schema_registry("GET", path)
    if as_json:
        output.print_json(found)
    else:
        click.echo(found["schema"])


@contextmanager
def _hints(subject: str) -> Iterator[None]:
    """Add to an error of the registry what to do next."""
    try:
        yield
    except SchemaError as error:
        from raftlog.registry import state  # here, since it takes 30 ms

        hint = ""
        if error.registry_code in (state.SUBJECT_SOFT_DELETED, state.VERSION_SOFT_DELETED):
            hint = " (--permanent)"
        elif error.registry_code == state.SUBJECT_NOT_FOUND and subject.isdigit():
            hint = f" `raftlog schema get --id {subject}` prints the schema with this ID"
        elif error.registry_code == state.SUBJECT_NOT_FOUND:
            hint = " `raftlog schema list` lists all subjects"
        raise Failed(f"{error}{hint}") from error


@schema.command()
@click.argument("subject")
@schema_file
@schema_type
@references_option
@click.option("--normalize", is_flag=True, help="Store the normal form of the text.")
@options.as_json
@options.bootstrap
def put(
    subject: str,
    file: Path,
    kind: str | None,
    references: tuple[str, ...],
    normalize: bool,
    as_json: bool,
    bootstrap: str,
) -> None:
    """Register the schema in FILE as the next version of SUBJECT.

    Does nothing if it is a version of the subject already. Exits with status 1 if it is not
    compatible with earlier versions: `raftlog schema check` shows why.

    \b
    Example:
      raftlog schema put clicks-value click.avsc
      raftlog schema put orders-value order.proto --reference item.proto=items-value:1
    """
    body = _body(file, kind, references)
    with Admin(bootstrap) as admin:
        added = admin.call_schema_registry(
            "POST",
            path_of("subjects", subject, "versions"),
            body,
            {"normalize": str(normalize).lower()},
        )
        found = admin.call_schema_registry("POST", path_of("subjects", subject), body)
    report = {"subject": subject, "version": found["version"], "id": added["id"]}
    text = f"{subject} has version {found['version']} with the ID {added['id']}"
    output.report(report, text, as_json=as_json)


@schema.command()
@click.argument("subject")
@schema_file
@schema_type
@references_option
@options.as_json
@options.bootstrap
@click.pass_context
def check(
    context: click.Context,
    subject: str,
    file: Path,
    kind: str | None,
    references: tuple[str, ...],
    as_json: bool,
    bootstrap: str,
) -> None:
    """Check if the schema in FILE could be the next version of SUBJECT. Changes nothing.

    Exits with status 3 if it is not compatible with earlier versions, and prints the reasons.
    SUBJECT:VERSION compares with this version alone.

    \b
    Example:
      raftlog schema check clicks-value click.avsc
    """
    name, version = _split(subject)
    parts = ["compatibility", "subjects", name, "versions", *([version] if version else [])]
    with Admin(bootstrap) as admin:
        found = admin.call_schema_registry(
            "POST", path_of(*parts), _body(file, kind, references), {"verbose": "true"}
        )
    is_compatible, texts = found["is_compatible"], found["messages"]
    if as_json:
        output.print_json({"compatible": is_compatible, "problems": texts})
    else:
        click.echo("compatible" if is_compatible else "not compatible:")
        for text in texts:
            click.echo(f"  {text}")
    context.exit(0 if is_compatible else STATUS_INCOMPATIBLE)


@schema.command()
@click.argument("subject")
@click.option(
    "--permanent",
    is_flag=True,
    help="Remove it permanently, after a deletion without this option. Values with its ID can then "
    "not be read.",
)
@options.as_json
@options.bootstrap
def delete(subject: str, permanent: bool, as_json: bool, bootstrap: str) -> None:
    """Delete SUBJECT, or one version as SUBJECT:VERSION.

    Values with its ID can still be read until it is deleted permanently.

    \b
    Example:
      raftlog schema delete clicks-value:2
      raftlog schema delete clicks-value --permanent
    """
    name, version = _split(subject)
    path = _version_path(subject) if version else path_of("subjects", name)
    query = {"permanent": str(permanent).lower()}
    with Admin(bootstrap) as admin, _hints(name):
        found = admin.call_schema_registry("DELETE", path, query=query)
    versions = found if isinstance(found, list) else [found]
    how = "permanently deleted" if permanent else "deleted"
    report = {"subject": name, "versions": versions, "permanent": permanent}
    output.report(report, f"{how} {name}: versions {_spans(versions)}", as_json=as_json)


@schema.command(short_help="Show or set a compatibility level.")
@click.argument("subject", default="")
@click.option(
    "--compatibility",
    type=click.Choice(LEVELS, case_sensitive=False),
    help="Set this level.",
)
@click.option("--reset", is_flag=True, help="Remove the level of the subject.")
@options.as_json
@options.bootstrap
def config(
    subject: str, compatibility: str | None, reset: bool, as_json: bool, bootstrap: str
) -> None:
    """Show or set the compatibility level of SUBJECT; without SUBJECT, that of all others.

    \b
    Example:
      raftlog schema config
      raftlog schema config clicks-value --compatibility full
    """
    if reset and compatibility:
        raise click.UsageError("pass --compatibility or --reset, not both")
    path = path_of("config", *([subject] if subject else []))
    with Admin(bootstrap) as admin:
        if compatibility:
            admin.call_schema_registry("PUT", path, {"compatibility": compatibility})
        elif reset:
            admin.call_schema_registry("DELETE", path)
        found = admin.call_schema_registry("GET", path, query={"defaultToGlobal": "true"})
    level = found["compatibilityLevel"]
    report = {"subject": subject or None, "compatibility": level}
    output.report(report, level, as_json=as_json)


def _split(subject: str) -> tuple[str, str]:
    """Return the name and the version of SUBJECT[:VERSION]; "" without a version."""
    name, colon, version = subject.rpartition(":")
    if colon and name and (version.isdecimal() or version == "latest"):
        return name, version
    return subject, ""


def _version_path(subject: str) -> str:
    name, version = _split(subject)
    return path_of("subjects", name, "versions", version or "latest")


def _body(file: Path, kind: str | None, references: tuple[str, ...]) -> dict[str, Any]:
    """Return the schema in a file, for the registry."""
    kind = kind or _TYPE_OF.get(file.suffix.lower())
    if kind is None:
        raise click.UsageError(f"{file} does not end with {', '.join(_TYPE_OF)}: pass --type")
    body: dict[str, Any] = {"schema": options.read_text(file), "schemaType": kind.upper()}
    if references:
        body["references"] = [_reference(text) for text in references]
    return body


def _reference(text: str) -> dict[str, Any]:
    name, equals, place = text.rpartition("=")
    subject, version = _split(place)
    if not (equals and name and version.isdecimal()):
        raise click.UsageError(f"--reference {text!r} is not NAME=SUBJECT:VERSION")
    return {"name": name, "subject": subject, "version": int(version)}


def _spans(versions: list[int]) -> str:
    """Return sorted numbers in short, such as 1-4,6."""
    spans: list[list[int]] = []
    for number in versions:
        if spans and number == spans[-1][1] + 1:
            spans[-1][1] = number
        else:
            spans.append([number, number])
    return ",".join(f"{a}" if a == b else f"{a}-{b}" for a, b in spans)
