"""Kafka's messages as data: the parsed ``TABLE``.

A message begins with ``request|response KEY NAME VERSIONS FIRST-FLEXIBLE-VERSION``. Each further
line is a field, indented by its depth: ``NAME TYPE [VERSIONS] [null=VERSIONS] [tag=N:VERSIONS]
[default=VALUE]``. Without versions, all versions of the message have the field. ``[]`` before a
type is an array. A type with a capital letter is a structure; its fields follow, once.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from typing import Final, Literal, NamedTuple, TypeAlias

from raftlog.kafka.table import TABLE

Kind: TypeAlias = Literal["request", "response"]

_NO_VERSIONS: Final = range(0)


class Field(NamedTuple):
    """One field. ``default``: the text of its default value, or "" for the type's."""

    name: str
    type: str
    versions: range
    nullable: range
    tag: int
    tagged: range
    default: str

    @property
    def element(self) -> str:
        """The type of the array's elements, or else of the value."""
        return self.type.removeprefix("[]")

    @property
    def is_array(self) -> bool:
        return self.type.startswith("[]")


class Definition(NamedTuple):
    """One message. ``structs`` begins with the message itself; nested structures follow."""

    kind: Kind
    key: int
    name: str
    versions: range
    first_flexible: int
    structs: dict[str, tuple[Field, ...]]


def is_struct(type_name: str) -> bool:
    """Return whether a type is a structure of the message."""
    return type_name[0].isupper()


@cache
def definitions() -> Mapping[tuple[Kind, int], Definition]:
    """Return all messages, by kind and API key."""
    blocks: list[list[str]] = []
    for line in TABLE.splitlines():
        if not line.startswith(" "):
            blocks.append([])
        blocks[-1].append(line)
    parsed = [_definition(block) for block in blocks]
    return {(each.kind, each.key): each for each in parsed}


def is_flexible(key: int, version: int) -> bool:
    """Return whether requests and responses of an API have tagged fields in ``version``."""
    return version >= definitions()["request", key].first_flexible


def _definition(block: list[str]) -> Definition:
    kind, key, name, versions, first_flexible = block[0].split()
    served = _range(versions)
    structs: dict[str, list[Field]] = {name: []}
    path = [name]
    for line in block[1:]:
        depth = len(line) - len(line.lstrip())
        del path[depth:]
        field = _field(line.split(), served)
        structs[path[-1]].append(field)
        if is_struct(field.element):
            structs.setdefault(field.element, [])
            path.append(field.element)
    assert kind in ("request", "response")
    return Definition(
        "request" if kind == "request" else "response",
        int(key),
        name,
        served,
        int(first_flexible),
        {each: tuple(fields) for each, fields in structs.items()},
    )


def _field(words: list[str], served: range) -> Field:
    versions, nullable, tagged, tag, default = served, _NO_VERSIONS, _NO_VERSIONS, -1, ""
    for word in words[2:]:
        option, _, value = word.partition("=")
        if option == "null":
            nullable = _range(value)
        elif option == "tag":
            number, _, of_tag = value.partition(":")
            tag, tagged = int(number), _range(of_tag)
        elif option == "default":
            default = value
        else:
            versions = _range(option)
    return Field(words[0], words[1], versions, nullable, tag, tagged, default)


def _range(text: str) -> range:
    first, _, last = text.partition("-")
    return range(int(first), int(last) + 1)
