"""Guards of producers with a name: what they are told is stored, and what their places are."""

from __future__ import annotations

from typing import Final

from tests.mutation.guard import Guard

_HANDLER: Final = "raftlog/server/handlers/describe_producers.py"
_FLIGHT: Final = "raftlog/client/flight.py"
_CLIENT: Final = "raftlog/client/resumable.py"
_TEST_HANDLER: Final = "tests/server/handlers/test_describe_producers.py"
_TEST_FLIGHT: Final = "tests/client/test_resumable_flight.py"
_TEST_CLIENT: Final = "tests/client/test_resumable.py"

GUARDS: Final = [
    Guard(
        name="what is stored under a name is committed",
        why="a run leaves out records that the next leader cuts away: they are lost",
        module=_HANDLER,
        old=(
            "        host.when_committed(end_offset, "
            "partial(self._committed, index, query, host, answer))\n"
        ),
        new="        self._committed(index, query, host, answer, None)\n",
        tests=(
            f"{_TEST_HANDLER}::test_what_is_not_committed_is_waited_for",
            f"{_TEST_HANDLER}::test_the_followers_have_to_have_it_first",
        ),
    ),
    Guard(
        name="all producers of an answer are waited for",
        why="the end of the last one asked for stands for all: another one's is not committed",
        module=_HANDLER,
        old="        end_offset = max(end_offset, written.last_offset + 1)\n",
        new="        end_offset = written.last_offset + 1\n",
        tests=(f"{_TEST_HANDLER}::test_the_last_of_all_that_are_asked_for_is_waited_for",),
    ),
    Guard(
        name="only the leader says what is stored under a name",
        why="a replica that lags knows less, and a run is refused for nothing",
        module=_HANDLER,
        old="            leadership = host.check_leading()\n",
        new="            leadership = host.leadership  # type: ignore[assignment]\n",
        tests=(f"{_TEST_HANDLER}::test_who_leads_no_more_says_that_it_is_not_known",),
    ),
    Guard(
        name="what is stored under a name is confirmed",
        why="a leader that was cut off tells less than its successor has",
        module=_HANDLER,
        old="        if error is not None or cluster is None:\n",
        new="        if error is not None or cluster is not None or cluster is None:\n",
        tests=(f"{_TEST_HANDLER}::test_nobody_else_may_lead_by_then",),
    ),
    Guard(
        name="a lost batch breaks its partition",
        why="later batches are sent into a gap; were it filled by another run, in its place",
        module=_FLIGHT,
        old="        self._break(self._order_of(batch), error)\n",
        new="        self._break(1 << 62, error)\n",
        tests=(f"{_TEST_FLIGHT}::test_what_is_refused_takes_all_later_ones_with_it",),
    ),
    Guard(
        name="a topic made anew breaks its partitions",
        why="a run goes on in a log that has none of what it counted",
        module=_FLIGHT,
        old="        self._break(0, reason)\n",
        new="        self._break(1 << 62, reason)\n",
        tests=(f"{_TEST_FLIGHT}::test_in_another_topic_of_the_name_nothing_goes_on",),
    ),
    Guard(
        name="a number is not given back after Ctrl-C",
        why="two batches have one number: the second is taken for a repeat, and lost",
        module=_CLIENT,
        old="            except RaftlogError:\n",
        new="            except BaseException:\n",
        tests=(f"{_TEST_CLIENT}::test_an_interrupt_between_a_number_and_its_batch_is_no_repeat",),
    ),
    Guard(
        name="a sequence of a name ends",
        why="the number after the last is 0: a run that is late is let in, and stores all twice",
        module=_CLIENT,
        old="            if after > RECORDS_MAX:\n",
        new="            if after < 0:\n",
        tests=(f"{_TEST_CLIENT}::test_no_sequence_begins_again_from_0",),
    ),
    Guard(
        name="what is stored is asked before the first append",
        why="a run that does not ask begins at 0, and looks like a repeat of the first",
        module=_CLIENT,
        old="            number = self._next.get(tp)\n",
        new="            number = self._next.get(tp, 0)\n",
        tests=(f"{_TEST_CLIENT}::test_what_is_stored_has_to_be_asked_first",),
    ),
    Guard(
        name="a later epoch is told before anything is appended",
        why="a run that is over counts its records from 0, as if none were stored",
        module=_CLIENT,
        old="        if written.producer_epoch > self.epoch:\n",
        new="        if written.producer_epoch < -1:\n",
        tests=(f"{_TEST_CLIENT}::test_a_later_epoch_counts_anew_and_ends_the_earlier_ones",),
    ),
]
