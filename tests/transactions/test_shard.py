"""The coordinator of transactions decides as Kafka's clients expect, and loses no decision."""

from __future__ import annotations

from typing import Any

import pytest

from raftlog import limits
from raftlog.errors import InvalidRequestError
from raftlog.transactions import (
    BUMPING_VERSION,
    COMPLETION_SECONDS,
    EPOCH_MAX,
    FIRST_VERSION,
    Marker,
    TransactionSettings,
    TransactionShard,
    decode_key,
    decode_value,
    encode_key,
    partition_of_id,
)
from tests.transactions import explore
from tests.transactions.explore import Bounds, Explorer
from tests.transactions.scene import NOW_MS, A, B, Scene

# -- decisions -------------------------------------------------------------------------------------


FENCED = "ProducerFencedError"
MAPPING = "InvalidProducerMappingError"
STATE = "InvalidTransactionStateError"
CONCURRENT = "ConcurrentTransactionsError"
ABORTED = "TransactionAbortedError"
VERSIONS = (FIRST_VERSION, BUMPING_VERSION)


# -- initialize


def test_a_new_id_gets_a_producer_id_and_then_the_next_epochs() -> None:
    s = Scene()
    assert [s.init(), s.init(), s.init(name="y")] == [(1000, 0), (1000, 1), (1002, 0)]


@pytest.mark.parametrize(
    ("name", "timeout_ms", "error"),
    [
        ("", 1, "InvalidRequestError"),
        ("x" * (limits.TRANSACTIONAL_ID_CHARS_MAX + 1), 1, "InvalidRequestError"),
        ("x", 0, "InvalidTransactionTimeoutError"),
        ("x", 900_001, "InvalidTransactionTimeoutError"),
        ("y", 900_000, "ThrottledError"),
    ],
)
def test_what_cannot_be_initialized(name: str, timeout_ms: int, error: str) -> None:
    s = Scene(ids_max=1)
    s.init(name="first")
    assert s.init(name=name, timeout_ms=timeout_ms) == error
    assert list(s.shard.names()) == ["first"]


def test_another_instance_aborts_the_open_transaction_with_one_increment_in_total() -> None:
    s = Scene()
    old = s.init()
    s.add(old)
    assert s.init() is None, "it is asked again when that has ended"
    ending = s.shard.ending("x")
    assert ending is not None
    assert (ending.marker.producer_epoch, ending.marker.is_commit) == (1, False)
    assert s.init() == CONCURRENT
    s.mark()
    assert s.view().epoch == 1, "KAFKA-19367: not once for the fence and once for the abort"
    assert s.init() == (1000, 2)
    assert [s.add(old), s.end(old)] == [FENCED, FENCED]


def test_a_client_goes_on_from_its_epoch_unless_another_instance_has_begun() -> None:
    s = Scene()
    mine = s.init()
    assert s.init(mine) == (1000, 1)
    assert s.init(mine) == (1000, 1), "repeated: the answer was lost"
    assert s.init() == (1000, 2)
    assert s.init((1000, 1)) == FENCED
    assert s.init((77, 2)) == FENCED


@pytest.mark.parametrize("version", VERSIONS)
def test_a_client_that_went_on_cannot_be_answered_its_epoch_twice(version: int) -> None:
    """Else a second holder of the old epoch would share the epoch of an open transaction."""
    s = Scene(version=version)
    old = s.init()
    new = s.init(old)
    s.add(new)
    assert s.init(old) == FENCED
    s.end(new)
    s.mark()
    assert s.init(old) == FENCED


def test_after_the_last_epoch_comes_another_producer_id() -> None:
    s = Scene(epoch_max=2)
    assert [s.init(), s.init()] == [(1000, 0), (1000, 1)]
    assert s.init((1000, 1)) == (1002, 0)
    assert s.init((1000, 1)) == (1002, 0), "repeated"
    assert s.init((1000, 0)) == FENCED
    assert s.add((1000, 1)) == MAPPING


def test_an_id_of_another_principal_is_not_given_on() -> None:
    s = Scene()
    s.init()
    assert s.init(may_use=lambda producer_id: producer_id != 1000) == (1001, 0)


def test_an_epoch_over_the_last_one_in_the_log_is_no_obstacle() -> None:
    """KAFKA-20090."""
    s = Scene()
    for _ in range(EPOCH_MAX):
        who = s.init()
    assert who == (1000, EPOCH_MAX - 1)
    s.add(who)
    s.shard._transactions["x"].epoch = 32_767
    assert s.init() is None
    s.mark()
    s.tick(COMPLETION_SECONDS)
    s.fail_over()
    assert s.init()[1] == 0


# -- add and end


@pytest.mark.parametrize("version", VERSIONS)
@pytest.mark.parametrize("commit", [True, False])
def test_a_transaction_ends_when_all_its_partitions_have_its_marker(
    version: int, commit: bool
) -> None:
    s = Scene(version=version)
    who = s.init()
    s.add(who, A, B)
    assert s.add(who, A) is None
    assert not s.last.records, "known already"
    expected = (who[0], who[1] + (version == BUMPING_VERSION))
    assert s.end(who, commit=commit) == expected
    assert s.last.ending == ("x",)
    ending = s.shard.ending("x")
    assert ending is not None
    assert ending.parts == {A, B}
    assert ending.marker == Marker(*expected, commit, s.epoch, version == BUMPING_VERSION)
    s.mark(A)
    assert s.shard.ending("x") is not None
    s.mark(B)
    assert s.shard.ending("x") is None
    assert s.last.ended == ("x",)
    assert s.view().status == ("complete_commit" if commit else "complete_abort")
    assert s.add(expected) is None


def test_a_late_confirmation_of_an_earlier_transaction_counts_for_none() -> None:
    s = Scene(version=FIRST_VERSION)
    who = s.init()
    s.transaction(who)
    s.add(who)
    s.end(who, commit=False)
    s.call(s.shard.marked, "x", 1, [A])
    assert s.view().status == "prepare_abort"


@pytest.mark.parametrize("version", VERSIONS)
def test_who_asks_too_early_waits_and_is_not_fenced(version: int) -> None:
    """KAFKA-18464: the check of the epoch came before that of the state."""
    s = Scene(version=version)
    who = s.init()
    s.add(who)
    following = s.end(who)
    for asked in (s.add(following), s.init(), s.init(following), s.check(following)):
        assert asked == CONCURRENT
    if version == BUMPING_VERSION:
        assert s.end(following, commit=False) == CONCURRENT


# What a client hears that sends `end` (with which result) in a state, version 1 and 2.
ENDS = [
    ("empty", True, STATE, (1000, 1)),
    ("empty", False, STATE, (1000, 1)),
    ("complete_commit", True, (1000, 0), (1000, 2)),
    ("complete_commit", False, STATE, (1000, 2)),
    ("complete_abort", True, STATE, (1000, 2)),
    ("complete_abort", False, (1000, 0), (1000, 2)),
]


@pytest.mark.parametrize(("status", "commit", "first", "bumping"), ENDS)
def test_an_end_without_a_partition(
    status: str, commit: bool, first: object, bumping: object
) -> None:
    """Version 2 commits and aborts what has no partition (KAFKA-18401, Flink); a new epoch tells it
    from a repetition. Version 1 cannot tell: it takes the same result again.
    """
    for version, expected in ((FIRST_VERSION, first), (BUMPING_VERSION, bumping)):
        s = Scene(version=version)
        who = s.init()
        if status != "empty":
            s.transaction(who, commit=status == "complete_commit")
            who = (1000, s.view().epoch)
        assert s.end(who, commit=commit) == expected
        assert s.shard.ending("x") is None, "there is nothing to mark"


@pytest.mark.parametrize("version", VERSIONS)
@pytest.mark.parametrize("commit", [True, False])
@pytest.mark.parametrize("is_complete", [True, False])
def test_a_repeated_end_has_the_same_result(version: int, commit: bool, is_complete: bool) -> None:
    s = Scene(version=version)
    who = s.init()
    s.add(who)
    result = s.end(who, commit=commit)
    if is_complete:
        s.mark()
        s.fail_over()
    assert s.end(who, commit=commit) == result
    other = s.end(who, commit=not commit)
    is_told_to_abort = version == BUMPING_VERSION and not commit
    assert other == (ABORTED if is_told_to_abort else STATE)
    assert s.view().epoch == result[1]


def test_an_end_after_the_last_epoch_gives_another_producer_id() -> None:
    s = Scene(epoch_max=2)
    s.init()
    who = s.init()
    s.add(who)
    following = s.end(who)
    assert following == (1002, 0)
    assert s.end(who) == following, "repeated while the markers are sent"
    assert [s.add(following), s.end(following)] == [CONCURRENT, CONCURRENT]
    ending = s.shard.ending("x")
    assert ending is not None
    assert ending.marker[:2] == (1000, 2), "above the epoch of the batches"
    s.fail_over()
    s.mark()
    assert s.end(who) == following, "KAFKA-18660: repeated later"
    assert s.add(who) == MAPPING
    assert s.transaction(following) == (1002, 1)


@pytest.mark.parametrize("is_complete", [True, False])
@pytest.mark.parametrize("initializes", [True, False])
def test_an_abort_that_used_the_last_epoch_gives_its_client_another_producer_id(
    is_complete: bool, initializes: bool
) -> None:
    """Else its next epochs end where the log's do: a leader refuses a marker that has the epoch of
    the batches, and a transaction that is committed stays open there.
    """
    s = Scene(epoch_max=2)
    s.init()
    who = s.init(timeout_ms=5_000)
    s.add(who)
    s.tick(6.0)
    if is_complete or initializes:  # an init waits for it
        s.mark()
    again = (lambda: s.init(who)) if initializes else (lambda: s.end(who, commit=False))
    following = again()
    assert following[0] != who[0]
    assert following[1] == 0
    assert again() == following, "repeated"
    s.fail_over()
    assert again() == following
    if s.shard.ending("x") is not None:
        s.mark()
        assert again() == following
    assert s.transaction(following) == (following[0], 1)


@pytest.mark.parametrize("version", VERSIONS)
def test_who_has_another_identity_changes_nothing(version: int) -> None:
    s = Scene(version=version)
    s.init()
    who = s.init()
    s.add(who)
    written = len(s.log)
    for identity, error in (((5, 1), MAPPING), ((1000, 0), FENCED), ((1000, 2), FENCED)):
        assert [s.add(identity, B), s.end(identity), s.check(identity)] == [error] * 3
    for call in (s.add, s.end, s.check):
        assert call(who, name="unknown") == MAPPING
    assert len(s.log) == written


def test_only_partitions_of_the_open_transaction_are_verified() -> None:
    s = Scene()
    who = s.init()
    assert s.check(who) == ABORTED
    s.add(who, A)
    assert [s.check(who, A), s.check(who, A, B)] == [None, ABORTED]
    who = s.end(who)
    s.mark()
    assert s.check(who, A) == ABORTED


def test_a_transaction_has_a_limited_number_of_partitions(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(limits, "TRANSACTION_PARTS_MAX", 1)
    s = Scene()
    who = s.init()
    s.add(who, A)
    assert s.add(who, B) == "InvalidRequestError"
    assert s.view().parts == (A,)


# -- time


def test_a_transaction_that_takes_too_long_is_aborted_and_its_client_learns_it() -> None:
    s = Scene()
    who = s.init(timeout_ms=5_000)
    s.add(who)
    s.tick(4.9)
    assert s.view().status == "ongoing"
    s.add(who, B)
    s.tick(0.2)
    assert s.view().status == "prepare_abort", "from its begin, not from its last partition"
    assert s.last.ending == ("x",)
    s.mark()
    assert [s.add(who), s.end(who)] == [ABORTED, ABORTED]
    assert s.end(who, commit=False) == (1000, 1), "it goes on"
    assert s.transaction((1000, 1)) == (1000, 2)


def test_a_client_of_version_1_is_fenced_by_its_time_limit() -> None:
    s = Scene(version=FIRST_VERSION)
    who = s.init(timeout_ms=5_000)
    s.add(who)
    s.tick(6.0)
    assert s.end(who) == CONCURRENT
    s.mark()
    assert [s.add(who), s.end(who), s.end(who, commit=False)] == [FENCED] * 3


def test_the_time_limit_goes_on_at_another_coordinator() -> None:
    s = Scene()
    who = s.init(timeout_ms=5_000)
    s.add(who)
    s.now = 4.0
    s.fail_over()
    s.tick(0.9)
    assert s.view().status == "ongoing"
    s.tick(0.2)
    assert s.view().status == "prepare_abort"


def test_a_decided_transaction_has_no_time_limit() -> None:
    s = Scene()
    who = s.init(timeout_ms=5_000)
    s.add(who)
    s.end(who)
    s.tick(3_600.0)
    assert s.view().status == "prepare_commit"


def test_an_unused_id_expires_and_one_in_use_does_not() -> None:
    s = Scene(expiration_ms=10_000_000)
    who = s.init()
    s.init(name="open", timeout_ms=900_000)
    s.tick(9_999.0)
    s.add((1001, 0), name="open")
    s.tick(10.0, expiry_ms=0)
    assert set(s.shard.names()) == {"x", "open"}, "the time is not known"
    s.tick(601.0)
    assert list(s.shard.names()) == ["open"]
    s.end((1001, 0), name="open")
    s.tick(601.0, expiry_ms=1 << 60)
    assert list(s.shard.names()) == ["open"], "markers are missing"
    assert (encode_key("x"), None) in s.log
    assert s.add(who) == MAPPING


def test_timers_of_a_busy_id_do_not_pile_up() -> None:
    s = Scene()
    who = s.init(timeout_ms=1_000)
    for _ in range(1_500):
        who = s.transaction(who)
        s.tick(1.0)
    assert len(s.shard._timers) < 1_000


def test_an_operator_aborts_a_transaction() -> None:
    s = Scene()
    assert s.call(s.shard.abort, "x") == "UnknownTransactionError"
    who = s.init()
    assert s.call(s.shard.abort, "x") == STATE
    s.add(who)
    assert s.call(s.shard.abort, "x") is None
    assert s.call(s.shard.abort, "x") is None, "it is being aborted already"
    s.mark()
    assert s.view().status == "complete_abort"
    who = s.init()
    s.add(who)
    s.end(who)
    assert s.call(s.shard.abort, "x") == STATE, "its commit is decided"


# -- the log


def test_another_coordinator_carries_out_what_was_decided() -> None:
    s = Scene()
    who = s.init()
    s.add(who, A, B)
    following = s.end(who)
    s.mark(A)
    assert s.fail_over().ending == ("x",)
    ending = s.shard.ending("x")
    assert ending is not None
    assert ending.parts == {A, B}, "confirmations are not stored: it sends all of them again"
    assert ending.marker == Marker(*following, True, s.epoch, True), (
        "with the epoch of the coordinator"
    )
    s.mark()
    assert s.transaction(following) == (1000, 2)


def test_a_completion_is_written_later_or_with_the_next_change() -> None:
    s = Scene()
    following = s.end(_begun(s))
    s.mark()
    assert (s.view().status, s.last.records) == ("complete_commit", ())
    s.add(following)
    assert len(s.last.records) == 1
    s.end(following)
    s.mark()
    s.tick(COMPLETION_SECONDS)
    assert s.fail_over().ending == ()
    assert s.view().status == "complete_commit"


# -- reserved partitions ---------------------------------------------------------------------------


def _begun(s: Scene, *parts: tuple[str, int]) -> tuple[int, int]:
    who: tuple[int, int] = s.init()
    s.add(who, *(parts or (A,)))
    return who


def test_a_commit_reserves_partitions_of_its_transaction_for_the_next() -> None:
    s = Scene()
    following = s.end(_begun(s, A), reserved=(A, B))
    ending = s.shard.ending("x")
    assert ending is not None
    assert ending.reserved == {A}, "the others were never verified"
    wanted = frozenset({(1000, A), (1000, B)})
    assert s.shard.opened(wanted=wanted) == {(1000, A)}
    s.mark()
    assert (s.view().status, s.view().parts) == ("ongoing", (A,))
    assert s.add(following, A) is None
    assert not s.last.records
    s.add(following, B)
    s.end(following, reserved=(B,))
    s.mark()
    assert s.view().parts == (B,)


@pytest.mark.parametrize(("commit", "version"), [(False, BUMPING_VERSION), (True, FIRST_VERSION)])
def test_only_a_commit_of_version_2_reserves(commit: bool, version: int) -> None:
    s = Scene(version=version)
    s.end(_begun(s), commit=commit, reserved=(A,))
    s.mark()
    assert s.view().parts == ()


def test_a_commit_that_has_reserved_can_be_repeated_until_the_next_one_is_used() -> None:
    s = Scene()
    who = _begun(s)
    following = s.end(who, reserved=(A,))
    s.mark()
    assert s.end(who) == following
    s.tick(60)
    assert s.view().status == "ongoing", "its client has the full time limit from its begin on"
    s.tick(6)
    assert s.view().status == "prepare_abort"
    assert s.end(who) == (1000, 2), "it was committed, and the next one was aborted"
    s.fail_over()
    s.mark()
    assert s.end(who) == (1000, 2)
    assert s.end(following) == "TransactionAbortedError"
    assert s.end(following, commit=False) == (1000, 2)
    s.add((1000, 2))
    assert s.end(who) == FENCED


def test_a_reserved_transaction_ends_at_another_coordinator() -> None:
    s = Scene()
    following = s.end(_begun(s), reserved=(A,))
    s.mark()
    s.fail_over()
    s.mark()
    assert s.view().status == "ongoing"
    assert s.end(following) == (1000, 2)
    s.mark()
    assert s.view().status == "complete_commit"


def test_the_first_epoch_of_a_producer_id_is_not_reserved() -> None:
    s = Scene(epoch_max=1)
    s.end(_begun(s), reserved=(A,))
    s.mark()
    assert s.view().status == "complete_commit"


def test_all_of_a_state_is_in_its_last_record() -> None:
    s = Scene(version=FIRST_VERSION)
    who = s.init()
    s.transaction(who)
    s.add(who, A, B)
    before = s.shard._transactions["x"]
    s.fail_over()
    after = s.shard._transactions["x"]
    fields = (set(before.__slots__) & set(after.__slots__)) - {"left", "timer", "deadline"}
    assert {name: getattr(after, name) for name in fields} == {
        name: getattr(before, name) for name in fields
    }


def test_records_of_a_newer_release_are_counted_and_damaged_ones_refused() -> None:
    s = Scene()
    s.init()
    key, value = s.log[0]
    shard = TransactionShard(TransactionSettings(), 0)
    shard.replay(b"\x92\x02\xa1x", value)
    shard.replay(key, b"\x92\x02\xa1x")
    assert (shard.skipped_records, list(shard.names())) == (2, [])
    assert value is not None
    for damaged in (b"", b"\xc1", b"\x90", b"\x91\x01", value[:-1]):
        with pytest.raises(InvalidRequestError, match="transaction record"):
            decode_value(damaged)
    for damaged in (b"", b"\x91\xa1x", b"\x92\x01\x01"):
        with pytest.raises(InvalidRequestError, match="transaction record"):
            decode_key(damaged)
    shard.replay(key, value)
    shard.replay(key, None)
    assert list(shard.names()) == []


def test_the_partition_of_an_id_never_changes() -> None:
    assert [partition_of_id(name, 50) for name in ("a", "b", "éa")] == [24, 46, 18]


def test_a_tick_looks_at_a_limited_number_of_ids(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("raftlog.transactions.TICK_IDS_MAX", 1)
    s = Scene()
    for name in ("x", "y"):
        s.add(s.init(name=name, timeout_ms=1_000), name=name)
    step = s.shard.tick(now=2.0, now_ms=NOW_MS, expiry_ms=None)
    assert len(step.records) == 1
    assert s.shard.deadline() == 1.0


# -- exploration -----------------------------------------------------------------------------------

# No order of messages, failover or time limit breaks a promise of the coordinator.


STATES = 3_500  # of each world at most: together 24,000, in 3 seconds
WORLDS = (
    Bounds(),
    Bounds(instances=1, parts=1, inits=1, timeouts=0, guards=2),
    Bounds(parts=1, failovers=0),
    Bounds(instances=1, parts=1, transactions=1, inits=1, timeouts=0, guards=1),
    Bounds(instances=1, parts=1, inits=1, timeouts=0, guards=1),
)
ANY_VERSION = {
    *("empty", "ongoing", "prepare_commit", "prepare_abort", "complete_commit", "complete_abort"),
    *("init done", "init ConcurrentTransactionsError", "init ProducerFencedError"),
    *("end done", "end again", "end ProducerFencedError", "end InvalidProducerMappingError"),
    *("add ConcurrentTransactionsError", "add ProducerFencedError"),
    *("add InvalidProducerMappingError", "batch appended", "batch fenced"),
    *("mark again", "mark stale"),
}
REACHED = {
    FIRST_VERSION: ANY_VERSION
    | {"end ConcurrentTransactionsError", "end InvalidTransactionStateError"},
    BUMPING_VERSION: ANY_VERSION
    | {"end TransactionAbortedError", "add TransactionAbortedError"}
    | {"batch of a reserved partition"},
}


@pytest.mark.parametrize("version", [FIRST_VERSION, BUMPING_VERSION])
def test_every_state_keeps_the_promises(version: int) -> None:
    seen: set[str] = set()
    for bounds in WORLDS:
        explorer = Explorer(version, bounds)
        explorer.run(STATES)
        seen |= explorer.seen
    assert REACHED[version] <= seen, REACHED[version] - seen


def test_it_notices_a_leader_that_appends_what_was_verified_before_a_marker() -> None:
    class Careless(Explorer):
        def _delivered(self, world: Any, message: Any) -> Any:
            yield from super()._delivered(world, message)
            if message[0] == "verified":
                leader = explore._leader(world, message[1], message[2])
                if message[3] >= leader.epoch:
                    yield self._append(world, message[1], leader, message[3])

    with pytest.raises(AssertionError, match="is open after the transaction is complete"):
        Careless(FIRST_VERSION, WORLDS[1]).run(100_000)


def test_it_notices_a_coordinator_that_counts_late_confirmations(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def take_any(self: TransactionShard, name: str, number: int, parts: Any, **times: Any) -> Any:
        ending = self.ending(name)
        return marked(self, name, number if ending is None else ending.number, parts, **times)

    marked = TransactionShard.marked
    monkeypatch.setattr(TransactionShard, "marked", take_any)
    with pytest.raises(AssertionError, match="is open after the transaction is complete"):
        Explorer(FIRST_VERSION, WORLDS[1]).run(100_000)
