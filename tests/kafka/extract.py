"""``python -m tests.kafka.extract JAR``: create ``table.py`` from the ``kafka-clients`` jar.

The jar contains Kafka's message definitions as JSON. Only facts are extracted: names, types and
version ranges, of the APIs and versions in ``api``. Comments and descriptions are not.

A developer runs this after a change of ``api.py``; the broker does not use it.
"""

from __future__ import annotations

import json
import re
import sys
import zipfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

from raftlog.kafka import table
from raftlog.kafka.api import APIS, Api

HEAD: Final = '''"""Kafka's messages: facts extracted from its public message definitions.

Created by ``python -m tests.kafka.extract``, do not edit; ``schema`` documents the format.
"""

from __future__ import annotations

from typing import Final

# fmt: off
TABLE: Final = """\\
'''
_NO_VERSIONS: Final = (1, 0)


def _range(text: str | None, low: int, high: int) -> tuple[int, int]:
    """Return the part of a version range ("3", "3+", "3-7", "none") between ``low`` and
    ``high``.
    """
    if text is None or text == "none":
        return _NO_VERSIONS
    found = re.fullmatch(r"(\d+)(\+)?(?:-(\d+))?", text)
    assert found is not None, text
    first = int(found[1])
    last = high if found[2] else int(found[3] or first)
    return max(first, low), min(last, high)


def snake(name: str) -> str:
    """Return a field name of Kafka's in Python's style."""
    return re.sub(r"(?<=[a-z0-9])([A-Z])|(?<=[A-Z])([A-Z])(?=[a-z])", r"_\g<0>", name).lower()


def _field(field: dict[str, Any], low: int, high: int) -> str:
    """Return the line of a field, without its indentation; "" if no version has it."""
    tagged = _range(field.get("taggedVersions"), low, high)
    first, last = _range(field.get("versions"), low, high)
    if first > last:
        return ""
    words = [snake(field["name"]), field["type"]]
    if (first, last) != (low, high):
        words.append(f"{first}-{last}")
    null_first, null_last = _range(field.get("nullableVersions"), low, high)
    if null_first <= null_last:
        words.append(f"null={null_first}-{null_last}")
    if tagged[0] <= tagged[1]:
        words.append(f"tag={field['tag']}:{tagged[0]}-{tagged[1]}")
    default = str(field.get("default", ""))
    if default.lower() not in ("", "0", "false"):
        words.append(f"default={default}")
    return " ".join(words)


def _lines(
    fields: list[dict[str, Any]], common: dict[str, Any], low: int, high: int, depth: int
) -> Iterator[str]:
    for field in fields:
        line = _field(field, low, high)
        if not line:
            continue
        yield " " * depth + line
        struct = field["type"].removeprefix("[]")
        children = field.get("fields") or common.pop(struct, None)
        if children:
            yield from _lines(children, common, low, high, depth + 1)


def _message(definition: dict[str, Any], api: Api) -> Iterator[str]:
    low, high = api.version_min, api.version_max
    flexible, last = _range(definition["flexibleVersions"], 0, 99)
    first_flexible = flexible if flexible <= last else 99
    yield f"{definition['type']} {api.key} {api.name} {low}-{high} {first_flexible}"
    common = {each["name"]: each["fields"] for each in definition.get("commonStructs", ())}
    yield from _lines(definition["fields"], common, low, high, 1)


def extract(jar: Path) -> str:
    """Return the text of ``table.py``, from the definitions in ``jar``."""
    lines: list[str] = []
    with zipfile.ZipFile(jar) as archive:
        for api in sorted(APIS.values()):
            for kind in ("Request", "Response"):
                text = archive.read(f"common/message/{api.name}{kind}.json").decode()
                definition = json.loads(re.sub(r"^\s*//.*$", "", text, flags=re.MULTILINE))
                lines += _message(definition, api)
    return HEAD + "\n".join(lines) + '\n"""\n'


if __name__ == "__main__":
    Path(table.__file__).write_text(extract(Path(sys.argv[1])))
