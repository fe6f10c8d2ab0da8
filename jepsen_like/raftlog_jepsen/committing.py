"""Recording of committed offsets in the history; see ``client`` for other operations.

Each function calls raftlog's client and records the invocation and the completion. A fetched offset
must match the metadata that was committed with it. Otherwise it is recorded as an offset that was
never committed.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final

from raftlog import errors
from raftlog.errors import RaftlogError
from raftlog.testing.history.entries import Commit, Committed, Recorder
from raftlog.types import Offset, OffsetAndMetadata, TopicPartition
from raftlog_jepsen.client import AnyConsumer, Failed, describe

NOTHING: Final = -1
MISMATCH: Final = 1 << 40  # added to an offset whose metadata differs; above all existing offsets
# Errors after which certainly no offset was committed: the client or the broker validates the
# request first. Any other error can be that of a retry after an attempt that has committed.
CERTAIN: Final[tuple[type[RaftlogError], ...]] = (
    errors.InvalidGroupError,
    errors.InvalidRequestError,
    errors.UnsupportedFeatureError,
)


def commit_outcome_of(error: RaftlogError) -> Failed:
    """Return the outcome of a commit that ended with this error."""
    return "fail" if isinstance(error, CERTAIN) else "info"


def noted(offsets: Mapping[TopicPartition, Offset]) -> dict[TopicPartition, OffsetAndMetadata]:
    """Return each offset with the offset as text in its metadata."""
    return {tp: OffsetAndMetadata(offset, str(offset)) for tp, offset in offsets.items()}


async def commit(
    recorder: Recorder,
    consumer: AnyConsumer,
    process: str,
    group: str,
    offsets: Mapping[TopicPartition, Offset],
) -> bool:
    """Commit these offsets and record it. Returns whether they are certainly committed. Raises no
    error of raftlog."""
    named = {str(tp): offset for tp, offset in offsets.items()}
    recorder.record(Commit(time=0, process=process, type="invoke", group=group, offsets=named))
    done = Commit(time=0, process=process, type="ok", group=group, offsets=named)
    try:
        await consumer.commit(noted(offsets))
    except RaftlogError as error:
        done.type, done.error = commit_outcome_of(error), describe(error)
    recorder.record(done)
    return done.type == "ok"


async def committed(
    recorder: Recorder,
    consumer: AnyConsumer,
    process: str,
    group: str,
    partitions: Sequence[TopicPartition],
) -> dict[TopicPartition, Offset] | None:
    """Fetch the committed offsets of the group and record them. Returns None after an error."""
    recorder.record(Committed(time=0, process=process, type="invoke", group=group))
    done = Committed(time=0, process=process, type="ok", group=group)
    try:
        found = await consumer.committed(partitions, metadata=True)
    except RaftlogError as error:
        done.type, done.error = "fail", describe(error)
        recorder.record(done)
        return None
    reported = {tp: offset_of(found.get(tp)) for tp in partitions}
    done.offsets = {str(tp): offset for tp, offset in reported.items()}
    recorder.record(done)
    return reported


def offset_of(found: OffsetAndMetadata | None) -> Offset:
    """Return the reported offset; ``NOTHING`` if no offset is committed.

    Only manual commits have metadata, which contains the offset. Adds ``MISMATCH`` to an offset
    whose metadata differs.
    """
    if found is None:
        return NOTHING
    is_right = found.metadata in {"", str(found.offset)}
    return found.offset if is_right else MISMATCH + found.offset
