"""Producer of work in numbered steps: the batches of a step and its number are one transaction.

The number is an offset that the transaction commits for a group without members. So a step that is
run again finds out whether it was stored, and compares no records. Reasons and limits:
docs/adr/0088.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

from raftlog.client.producer import Producer
from raftlog.errors import (
    OutcomeUnknownError,
    ProducerFencedError,
    TransactionAbortedError,
    UnknownTopicError,
)
from raftlog.protocol.records import NO_MEMBER_EPOCH
from raftlog.record import BatchBody
from raftlog.types import Offset, OffsetAndMetadata, TopicPartition


class Step(NamedTuple):
    """A step of work. ``number``: the offset that ``group`` commits for ``at``, 0 or more."""

    group: str
    at: TopicPartition
    number: Offset
    note: str = ""  # metadata of the offset


class StepProducer(Producer):
    """Producer that stores encoded batches, all of them or none, and a step once.

    Create it with a ``transactional_id`` of the work: it ends the transactions of earlier
    producers of that ID, which can store nothing afterwards.
    """

    def max_message_bytes(self, topic: str) -> int:
        """Return the maximum size of a batch in bytes. Raises ``UnknownTopicError``."""
        return self._prepare(topic).max_message_bytes

    def store(
        self,
        batches: Iterable[tuple[TopicPartition, BatchBody]],
        *,
        topic_ids: dict[str, str],
        step: Step | None = None,
    ) -> bool:
        """Store all batches in one transaction. Return False if the step is stored already.

        ``topic_ids``: expected ids of the topics: another topic may have the name now. ``step``:
        None for work that is not repeated.

        Raises ``ProducerFencedError`` if a later step is stored, or another producer has the
        transactional ID; ``TransactionAbortedError`` if nothing was stored; and
        ``OutcomeUnknownError`` if that is unknown: run the step again with a new producer. Raises
        ``UnknownTopicError`` for a topic that was created again, and the errors of ``transaction``.
        """
        try:
            with self.transaction():
                # guard: a step that is stored is not stored again
                if step is not None and self._is_stored(step):
                    return False
                for tp, body in batches:
                    self._append_encoded(tp, body, topic_ids[tp.topic])
                if step is not None:
                    self._commit(step, topic_ids)
        except OutcomeUnknownError as error:
            if not self.recover():
                raise TransactionAbortedError(f"nothing was stored: {error}") from error
        return True

    def _is_stored(self, step: Step) -> bool:
        """Whether the step is stored. The transactions of earlier producers have ended."""
        transactions = self._core.transactions
        last = self._run_in_thread(lambda: transactions.fetch_offset(step.group, step.at))
        # guard: a step before the last one is refused
        if last is not None and last.offset > step.number:
            raise ProducerFencedError(
                f"step {step.number} of {step.group!r} is late: step {last.offset} is stored"
            )
        return last is not None and last.offset == step.number

    def _append_encoded(self, tp: TopicPartition, body: BatchBody, topic_id: str) -> None:
        queues = self._accumulator.topics.get(tp.topic) or self._prepare(tp.topic)
        # guard: a step is stored in the topic that was planned
        if queues.id != topic_id:
            raise UnknownTopicError(
                f"topic {tp.topic!r} was deleted and created again: its id is {queues.id}, not "
                f"{topic_id}"
            )
        queues.check_partition(tp.partition)
        if body.size_bytes > queues.max_message_bytes:
            raise queues.too_large(body.size_bytes)
        deadline = self._core.monotonic() + self._max_block_s
        add = self._accumulator.add_encoded
        while add(queues, tp.partition, body, body.size_bytes) is None:
            self._wait_for_room(deadline)
        if self._accumulator.wake_needed:
            self._core.wake()

    def _commit(self, step: Step, topic_ids: dict[str, str]) -> None:
        offsets = {step.at: OffsetAndMetadata(step.number, step.note)}
        ids = {step.at.topic: topic_ids[step.at.topic]}
        self._run_in_thread(
            lambda: self._core.transactions.commit_offsets(
                step.group, ("", NO_MEMBER_EPOCH), offsets, ids
            )
        )
