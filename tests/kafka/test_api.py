"""The APIs that a broker serves are those in the manual."""

from __future__ import annotations

import re
from pathlib import Path

from raftlog.kafka import api as apis
from raftlog.kafka.api import Api

PAGE = Path(__file__).parents[2] / "docs/explanation/kafka.md"


def versions(api: Api) -> str:
    if api.version_min == api.version_max:
        return str(api.version_min)
    return f"{api.version_min}-{api.version_max}"


def test_the_manual_lists_the_apis_and_their_versions() -> None:
    section = PAGE.read_text().partition("## APIs")[2].partition("\n## ")[0]
    listed = dict(re.findall(r"\| (\w+) \| (\d+(?:-\d+)?)(?= )", section))
    assert listed == {api.name: versions(api) for api in apis.APIS.values()}
