"""Recording of committed offsets in the history; see ``client`` for other operations.

Each call is a call of raftlog's client, with a recording around it. A fetched offset has to match
the note that was committed with it. If it does not, it is recorded as an offset that was never
committed.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final

from raftlog import errors
from raftlog.errors import RaftlogError
from raftlog.jepsen_like.client import AnyConsumer, Failed, describe
from raftlog.testing.history.entries import Commit, Committed, Recorder
from raftlog.types import Offset, OffsetAndMetadata, TopicPartition

NOTHING: Final = -1
MISMATCH: Final = 1 << 40  # above all existing offsets: an offset with the note of another one
# Errors after which certainly no offset was committed: the client or the broker validated the
# request first. Any other error may be about a later attempt than the one that committed.
CERTAIN: Final[tuple[type[RaftlogError], ...]] = (
    errors.InvalidGroupError,
    errors.InvalidRequestError,
    errors.UnsupportedFeatureError,
)


def outcome_of(error: RaftlogError) -> Failed:
    """Return the outcome of a commit that ended with this error."""
    return "fail" if isinstance(error, CERTAIN) else "info"


def noted(offsets: Mapping[TopicPartition, Offset]) -> dict[TopicPartition, OffsetAndMetadata]:
    """Return each offset with a note that contains it, too."""
    return {tp: OffsetAndMetadata(offset, str(offset)) for tp, offset in offsets.items()}


async def commit(
    recorder: Recorder,
    consumer: AnyConsumer,
    process: str,
    group: str,
    offsets: Mapping[TopicPartition, Offset],
) -> bool:
    """Commit these offsets, recorded. Returns whether they certainly are. Raises no error of
    raftlog."""
    named = {str(tp): offset for tp, offset in offsets.items()}
    recorder.record(Commit(time=0, process=process, type="invoke", group=group, offsets=named))
    done = Commit(time=0, process=process, type="ok", group=group, offsets=named)
    try:
        await consumer.commit(noted(offsets))
    except RaftlogError as error:
        done.type, done.error = outcome_of(error), describe(error)
    recorder.record(done)
    return done.type == "ok"


async def committed(
    recorder: Recorder,
    consumer: AnyConsumer,
    process: str,
    group: str,
    partitions: Sequence[TopicPartition],
) -> dict[TopicPartition, Offset] | None:
    """Fetch the committed offsets of the group, recorded. None without a response."""
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
    """The reported offset; ``NOTHING`` for none.

    A note is there only where it was committed by hand; it says the offset.
    """
    if found is None:
        return NOTHING
    is_right = found.metadata in {"", str(found.offset)}
    return found.offset if is_right else MISMATCH + found.offset
