"""Tests of ``raftlog schema``."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from raftlog_cli import schema
from tests.cli.conftest import Raftlog

UNREACHABLE = "127.0.0.1:1"  # no broker: errors are found before a connection


def avro(*fields: dict[str, Any]) -> str:
    return json.dumps({"type": "record", "name": "R", "fields": list(fields)})


@pytest.mark.integration
def test_schemas_are_put_checked_read_and_deleted(
    raftlog: Raftlog, bootstrap: str, tmp_path: Path
) -> None:
    first, second, proto = (tmp_path / name for name in ("a.avsc", "b.avsc", "c.proto"))
    a, b = {"name": "a", "type": "int"}, {"name": "b", "type": "int"}
    first.write_text(avro(a))
    second.write_text(avro(a, b))
    proto.write_text('syntax = "proto3"; message M { int32 a = 1; }')
    put = raftlog("schema", "put", "cli-a", first, "--json").json
    assert put == {"subject": "cli-a", "version": 1, "id": put["id"]}
    assert raftlog("schema", "check", "cli-a", first).out == b"compatible\n"
    refused = raftlog("schema", "check", "cli-a", second)
    assert refused.status == schema.STATUS_INCOMPATIBLE
    assert b"READER_FIELD_MISSING_DEFAULT_VALUE" in refused.out
    failed = raftlog("schema", "put", "cli-a", second)
    assert failed.status == 1
    assert "incompatible" in failed.err
    level = raftlog("schema", "config", "cli-a", "--compatibility", "none")
    assert level.out == b"NONE\n"
    assert raftlog("schema", "put", "cli-a", second).status == 0
    assert raftlog("schema", "config", "cli-a", "--reset").out == b"BACKWARD\n"
    assert json.loads(raftlog("schema", "get", "cli-a:1").out) == json.loads(avro(a))
    assert raftlog("schema", "get", "--id", put["id"], "--json").json["schema"]
    assert raftlog("schema", "put", "cli-c", proto).status == 0
    listed = raftlog("schema", "list", "cli-", "--json").json
    assert [(row["subject"], row["type"], row["versions"]) for row in listed] == [
        ("cli-a", "AVRO", [1, 2]),
        ("cli-c", "PROTOBUF", [1]),
    ]
    assert b"1-2" in raftlog("schema", "list", "cli-").out
    assert raftlog("schema", "delete", "cli-a:2").status == 0
    deleted = raftlog("schema", "delete", "cli-a", "--json").json
    assert deleted == {"subject": "cli-a", "versions": [1], "permanent": False}
    assert "(--permanent)" in raftlog("schema", "delete", "cli-a").err
    assert raftlog("schema", "delete", "cli-a", "--permanent").out.endswith(b"versions 1-2\n")
    missing = raftlog("schema", "get", "cli-a")
    assert (missing.status, missing.out) == (1, b"")
    assert "'cli-a' not found. `raftlog schema list` lists all subjects" in missing.err
    assert "`raftlog schema get --id 7` prints" in raftlog("schema", "get", "7").err


@pytest.mark.parametrize(
    ("arguments", "complaint"),
    [
        (("get",), "SUBJECT or --id"),
        (("put", "s", "file.txt"), "--type"),
        (("put", "s", "file.avsc", "--reference", "x"), "NAME=SUBJECT:VERSION"),
        (("config", "s", "--reset", "--compatibility", "none"), "not both"),
        (("config", "s", "--compatibility", "some"), "some"),
    ],
)
def test_wrong_usage_is_explained(
    raftlog: Raftlog, tmp_path: Path, arguments: tuple[str, ...], complaint: str
) -> None:
    (tmp_path / "file.avsc").write_text("{}")
    given = [tmp_path / each if each.startswith("file") else each for each in arguments]
    ran = raftlog("schema", *given, "--bootstrap", UNREACHABLE)
    assert ran.status == 2
    assert complaint in ran.err
