"""Tests of ``raftlog txn``."""

from __future__ import annotations

import pytest

from raftlog import Producer, TopicPartition, TransactionDescription, TransactionListing
from raftlog.errors import TransactionAbortedError
from raftlog_cli.txn import COLUMNS, listing_row, partition_rows, summary
from tests.cli.conftest import Raftlog

NOW_MS = 1_700_000_000_000


def check_and_abort(raftlog: Raftlog, name: str, topic: str) -> None:
    """The transaction of ``name`` is open in partition 1."""
    explained = raftlog("explain", "partition", f"{topic}:1").out.decode()
    assert "`raftlog txn list` shows whose it is, `raftlog txn abort ID` ends it" in explained
    listed = raftlog("txn", "list", "--state", "ongoing", "--json").json
    (found,) = [row for row in listed if row["transactional_id"] == name]
    assert name in raftlog("txn", "list", "--open-for", "0", "-q").out.decode().split()
    header, *rows = raftlog("txn", "list", "--wide").out.decode().splitlines()
    assert header.split()[:3] == ["id", "state", "open"]
    assert [name, "ongoing"] in [row.split()[:2] for row in rows]
    described = raftlog("txn", "describe", name, "--json").json
    assert described.pop("partitions") == [{"topic": topic, "partition": 1}]
    assert described == found
    printed = raftlog("txn", "describe", name).out.decode()
    assert f"{name}  ongoing  open for " in printed
    aborted = raftlog("txn", "abort", name).out.decode()
    assert aborted == f"aborted the transaction of {name}\n"


@pytest.mark.integration
def test_an_open_transaction_is_found_and_aborted(
    raftlog: Raftlog, bootstrap: str, topic: str
) -> None:
    """What `raftlog explain partition` says to do about readers that are held back."""
    name = f"tx-{topic}"
    with Producer(bootstrap, transactional_id=name) as producer:

        def hang_and_be_aborted() -> None:
            with producer.transaction() as txn:
                txn.send(topic, b"a", partition=1).result(20)
                check_and_abort(raftlog, name, topic)
                txn.send(topic, b"late", partition=1)

        with pytest.raises(TransactionAbortedError):
            hang_and_be_aborted()
        with producer.transaction() as txn:
            txn.send(topic, b"b", partition=1)
    assert raftlog("tail", topic, "--format", "%v\n").out == b"b\n"
    again = raftlog("txn", "abort", name)
    assert (again.status, "is not open" in again.err) == (1, True)


def test_a_listing_tells_how_long_a_transaction_has_been_open() -> None:
    row = TransactionListing("tx", "ongoing", 7, 2, 60_000, NOW_MS - 1_500, 1)
    cells = dict(zip(COLUMNS, listing_row(row, NOW_MS), strict=True))
    assert (cells["open (s)"], cells["timeout (s)"]) == ("1.5", "60")
    idle = TransactionListing("tx", "empty", 7, 2, 60_000, None, 1)
    assert listing_row(idle, NOW_MS)[2] == "-"


def test_a_description_has_the_partitions_of_each_topic() -> None:
    parts = tuple(TopicPartition(*each) for each in (("a", 0), ("a", 1), ("a", 4), ("b", 2)))
    found = TransactionDescription("tx", "ongoing", 7, 2, 60_000, NOW_MS - 1_500, 1, parts)
    assert partition_rows(found) == [("a", "0-1,4"), ("b", "2")]
    assert summary(found, NOW_MS) == (
        "tx  ongoing  open for 1.5 s  4 partitions  timeout 60 s  producer 7  epoch 2  "
        "coordinator 1"
    )
