"""Page of the producers of a topic or a partition."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from raftlog import limits
from raftlog.client.descriptions import ProducerPage
from raftlog.types import check_topic_name
from raftlog_cli.console.paging import PARTITION_ROWS, Page, fetched
from raftlog_cli.http_parameters import whole

if TYPE_CHECKING:
    from raftlog_cli.console.pages import Pages


def producers(pages: Pages, parameters: Mapping[str, str]) -> dict[str, Any]:
    """Return a page of producers. Raises ``UnknownTopicError`` or ``UnknownPartitionError``."""
    name, text = check_topic_name(parameters["name"]), parameters.get("partition", "")
    partitions = [whole(parameters, "partition", 0)] if text else None

    def fetch(number: int) -> ProducerPage:
        skip = min((number - 1) * PARTITION_ROWS, limits.PRODUCERS_PER_TOPIC_MAX)
        return pages.admin.describe_producers(name, partitions, skip=skip, limit=PARTITION_ROWS)

    number, found = fetched(fetch, lambda page: page.total, PARTITION_ROWS, parameters)
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
