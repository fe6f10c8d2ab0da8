"""A streaming query of a test: what each of its batches had, over as many runs as there are."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming import StreamingQuery

Place = tuple[str, int, int]  # topic, partition, offset
During = Callable[[int], object]


def nothing(batch_id: int) -> None:
    pass


class Query:
    """One checkpoint. ``batches``: the sorted records of each batch, as it was run last."""

    def __init__(self, spark: SparkSession, checkpoint: Path, **options: str) -> None:
        self.checkpoint = checkpoint
        self.batches: dict[int, list[Place]] = {}
        self.progress: list[dict[str, Any]] = []
        self._spark = spark
        self._options = options

    def start(
        self, trigger: dict[str, Any], *, during: During = nothing, **options: str
    ) -> StreamingQuery:
        """Start a run; ``during`` is called with the number of each batch, in the midst of it."""

        def keep(frame: DataFrame, batch_id: int) -> None:
            rows = frame.select("topic", "partition", "offset").collect()
            self.batches[batch_id] = sorted((row[0], row[1], row[2]) for row in rows)
            during(batch_id)

        reader = (
            self._spark.readStream.format("raftlog").options(**self._options).options(**options)
        )
        writer = reader.load().writeStream.foreachBatch(keep).trigger(**trigger)
        return writer.option("checkpointLocation", str(self.checkpoint)).start()

    def drain(self, *, during: During = nothing, **options: str) -> None:
        """One run with Trigger.AvailableNow, to its end."""
        query = self.start({"availableNow": True}, during=during, **options)
        try:
            query.awaitTermination()
        finally:
            self.progress = [json.loads(each.json) for each in query.recentProgress]

    def read(self) -> list[Place]:
        """All that was read, sorted."""
        return sorted(place for batch in self.batches.values() for place in batch)

    def numbers(self, folder: str) -> list[int]:
        """The batches that the checkpoint has in ``offsets`` or ``commits``."""
        return sorted(int(each.name) for each in (self.checkpoint / folder).glob("[0-9]*"))

    def forget_commit(self, batch_id: int) -> None:
        """As if Spark had died after the batch, before it was noted down."""
        for name in (str(batch_id), f".{batch_id}.crc"):
            (self.checkpoint / "commits" / name).unlink()

    def planned(self, batch_id: int) -> dict[str, Any]:
        """Where a batch ends, by the checkpoint."""
        lines = (self.checkpoint / "offsets" / str(batch_id)).read_text().splitlines()
        found: dict[str, Any] = json.loads(lines[-1])
        return found


def places(topic: str, partition: int, start: int, end: int) -> list[Place]:
    """The records of one partition from an offset to before another."""
    return [(topic, partition, offset) for offset in range(start, end)]
