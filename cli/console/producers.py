"""Page of the producers of a topic or a partition."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from raftlog import limits
from raftlog.cli.console.paging import PARTITION_ROWS, Page, number_of, pages_of
from raftlog.cli.http_parameters import whole
from raftlog.types import check_topic_name

if TYPE_CHECKING:
    from raftlog.cli.console.pages import Pages


def producers(pages: Pages, parameters: Mapping[str, str]) -> dict[str, Any]:
    """Return a page of producers. Raises ``UnknownTopicError`` or ``UnknownPartitionError``."""
    name, text = check_topic_name(parameters["name"]), parameters.get("partition", "")
    partitions = [whole(parameters, "partition", 0)] if text else None
    number = number_of(parameters)
    skip = min((number - 1) * PARTITION_ROWS, limits.PRODUCERS_PER_TOPIC_MAX)
    found = pages.admin.describe_producers(name, partitions, skip=skip, limit=PARTITION_ROWS)
    if found.total <= skip and skip:  # the number is beyond the last page
        number = pages_of(found.total, PARTITION_ROWS)
        skip = (number - 1) * PARTITION_ROWS
        found = pages.admin.describe_producers(name, partitions, skip=skip, limit=PARTITION_ROWS)
    kept = {"partition": text, "page": parameters.get("page", "")}
    return {
        "topic": name,
        "partition": text,
        "page": Page(
            found.producers,
            number,
            PARTITION_ROWS,
            found.total,
            f"/topics/{name}/producers",
            kept,
        ),
        "problems": sorted(found.problems.items()),
    }
