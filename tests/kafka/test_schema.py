"""The table of messages, parsed."""

from __future__ import annotations

from raftlog.kafka import api as apis
from raftlog.kafka.codec import definitions, is_flexible


def test_a_structure_and_its_fields() -> None:
    fetch = definitions()["request", apis.FETCH.key]
    assert list(fetch.structs) == [
        "Fetch", "ReplicaState", "FetchTopic", "FetchPartition", "ForgottenTopic"
    ]  # fmt: skip
    by_name = {field.name: field for field in fetch.structs["FetchPartition"]}
    epoch = by_name["current_leader_epoch"]
    assert (epoch.type, epoch.versions, epoch.default) == ("int32", range(9, 19), "-1")
    mark = by_name["high_watermark"]
    assert (mark.tag, mark.tagged) == (1, range(18, 19))
    topics = fetch.structs["Fetch"][-3]
    assert (topics.name, topics.is_array, topics.element) == ("topics", True, "FetchTopic")


def test_flexible_versions() -> None:
    assert not is_flexible(apis.PRODUCE.key, 8)
    assert is_flexible(apis.PRODUCE.key, 9)
