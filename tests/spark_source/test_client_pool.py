"""The clients of a process: made once, lent to one at a time, dropped after an error."""

from __future__ import annotations

import os
import subprocess
import sys
import textwrap
from collections.abc import Generator, Iterator

import pytest

from pyspark_raftlog import clients
from pyspark_raftlog.clients import ClientPool, Connection, connection_of
from pyspark_raftlog.options import SourceOptions
from raftlog.errors import RequestTimedOutError

HERE = Connection("127.0.0.1:1")
THERE = Connection("127.0.0.1:2")


class FakeClient:
    """Counts how often it is closed."""

    def __init__(self, connection: Connection) -> None:
        self.connection = connection
        self.closed = 0

    def close(self) -> None:
        self.closed += 1


@pytest.fixture
def lender() -> Iterator[ClientPool[FakeClient]]:
    made = ClientPool(FakeClient, idle_max=2)
    yield made
    made.close()


def test_a_client_is_kept_for_the_next_user(lender: ClientPool[FakeClient]) -> None:
    with lender.lend(HERE) as first:
        pass
    with lender.lend(THERE) as other:
        assert other.connection == THERE
    with lender.lend(Connection("127.0.0.1:1")) as second:
        assert second is first
    assert not first.closed


def test_two_users_at_once_have_two_clients(lender: ClientPool[FakeClient]) -> None:
    with lender.lend(HERE) as one, lender.lend(HERE) as other:
        assert one is not other


def test_an_error_drops_the_client(lender: ClientPool[FakeClient]) -> None:
    with pytest.raises(RequestTimedOutError), lender.lend(HERE) as broken:
        raise RequestTimedOutError("nothing came")
    assert broken.closed == 1
    with lender.lend(HERE) as fresh:
        assert fresh is not broken


def test_a_read_that_is_left_in_the_middle_drops_the_client(lender: ClientPool[FakeClient]) -> None:
    def reading() -> Generator[FakeClient]:
        with lender.lend(HERE) as client:
            yield client

    left = reading()
    client = next(left)
    left.close()
    assert client.closed == 1


def test_only_a_few_are_kept_and_the_oldest_go(lender: ClientPool[FakeClient]) -> None:
    with lender.lend(HERE) as one, lender.lend(HERE) as two, lender.lend(THERE) as three:
        pass
    # They come back in the opposite order.
    assert [three.closed, two.closed, one.closed] == [1, 0, 0]
    lender.close()
    assert [three.closed, two.closed, one.closed] == [1, 1, 1]


def test_closing_goes_on_after_a_client_that_fails() -> None:
    class Stubborn(FakeClient):
        def close(self) -> None:
            super().close()
            raise RequestTimedOutError("no")

    lender = ClientPool(Stubborn)
    with lender.lend(HERE) as one, lender.lend(THERE) as other:
        pass
    with pytest.raises(RequestTimedOutError):
        lender.close()
    assert one.closed == other.closed == 1


def test_a_forked_child_makes_clients_of_its_own(lender: ClientPool[FakeClient]) -> None:
    with lender.lend(HERE) as parents:
        pass
    lender.leave_behind()  # what os.fork() has called in the child
    with lender.lend(HERE) as childs:
        assert childs is not parents
    assert not parents.closed


@pytest.mark.integration
@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
def test_every_lender_hears_of_a_fork() -> None:
    script = """
        import os
        from pyspark_raftlog.clients import Connection, ClientPool
        class Client:
            def __init__(self, connection): pass
            def close(self): print("closed", flush=True)
        lender, here = ClientPool(Client), Connection("127.0.0.1:1")
        with lender.lend(here) as parents:
            pass
        child = os.fork()
        if not child:
            with lender.lend(here) as childs:
                print(childs is parents, flush=True)
            os._exit(0)
        assert os.waitpid(child, 0)[1] == 0
        with lender.lend(here) as again:
            print(again is parents, flush=True)
    """
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(script)], capture_output=True, text=True, check=False
    )
    # The last word is the parent's, at exit.
    assert (done.stdout, done.stderr) == ("False\nTrue\nclosed\n", "")


def test_the_connection_that_options_describe() -> None:
    given = {
        "bootstrap.servers": "127.0.0.1:1",
        "subscribe": "t",
        "fetchTimeoutMs": "7000",
        "numRetries": "5",
        "retryIntervalMs": "9",
        "raftlog.client.id": "me",
        "raftlog.read.from": "leader",
    }
    found = connection_of(SourceOptions.parse(given, streaming=False))
    assert found == Connection(
        "127.0.0.1:1", 7_000, 5, 9, (("client_id", "me"),), (("read_from", "leader"),)
    )
    assert found.arguments(reading=False) == {"request_timeout_ms": 7_000, "client_id": "me"}
    assert found.arguments(reading=True)["read_from"] == "leader"


def test_every_setting_that_is_allowed_is_taken_by_the_clients() -> None:
    connecting = (
        ("bootstrap_timeout_ms", 10),
        ("client_id", "me"),
        ("metadata_max_age_ms", 1_000),
        ("request_timeout_ms", 10),
    )
    reading = (
        ("check_crcs", False),
        ("client_rack", "r"),
        ("fetch_max_bytes", 1_000_000),
        ("fetch_max_wait_ms", 10),
        ("fetch_min_bytes", 1),
        ("max_partition_fetch_bytes", 100_000),
        ("read_from", "replica"),
    )
    connection = Connection("127.0.0.1:1", connecting=connecting, reading=reading)
    with clients.range_readers.lend(connection), clients.catalogs.lend(connection):
        pass  # nothing is connected before it is used
    clients.range_readers.close()
    clients.catalogs.close()
