"""Two leaders of the schema registry are killed during registrations."""

from __future__ import annotations

import json
import threading
from itertools import count

import pytest

from raftlog import Admin
from raftlog.errors import RaftlogError
from raftlog.testing import Cluster, cluster
from raftlog.testing.cluster import wait_until
from raftlog.types import SCHEMAS_TOPIC

pytestmark = pytest.mark.integration
WRITERS = 3
AFTER_EACH_KILL = 40  # registrations


class Writer(threading.Thread):
    """Registers one schema after the other, each in its subject."""

    def __init__(self, bootstrap: str, number: int) -> None:
        super().__init__(daemon=True)
        self.acknowledged: dict[str, int] = {}  # ID by text
        self.stop = threading.Event()
        self._address = bootstrap
        self._number = number

    def run(self) -> None:
        with Admin(self._address) as admin:
            for step in count():
                if self.stop.is_set():
                    return
                text = json.dumps({"type": "fixed", "name": f"F{self._number}", "size": step})
                path = f"/subjects/s{self._number}-{step}/versions"
                try:
                    found = admin.call_schema_registry("POST", path, {"schema": text})
                except RaftlogError:
                    continue  # not acknowledged
                self.acknowledged[text] = found["id"]


def leader_of(running: Cluster) -> int:
    wait_until(lambda: running.leader(SCHEMAS_TOPIC, 0) is not None, what="a leader")
    leader = running.leader(SCHEMAS_TOPIC, 0)
    assert leader is not None
    return leader


def test_no_id_is_given_twice_and_none_is_lost() -> None:
    with cluster(brokers=3, with_relays=False) as running:
        with Admin(running.bootstrap) as admin:
            admin.call_schema_registry("GET", "/subjects")
        writers = [Writer(running.bootstrap, number) for number in range(WRITERS)]
        for writer in writers:
            writer.start()

        def go_on() -> None:
            enough = written() + AFTER_EACH_KILL
            wait_until(lambda: written() >= enough, what="registrations", timeout_s=30)

        def written() -> int:
            return sum(len(writer.acknowledged) for writer in writers)

        for _ in range(2):
            go_on()
            killed = running.broker(leader_of(running))
            killed.kill()
            go_on()
            killed.start()
        for writer in writers:
            writer.stop.set()
            writer.join(60)
        with Admin(running.bootstrap) as admin:
            found = admin.call_schema_registry("GET", "/schemas")
    by_text = {json.dumps(json.loads(each["schema"])): each["id"] for each in found}
    acknowledged = {text: given for w in writers for text, given in w.acknowledged.items()}
    assert acknowledged.items() <= by_text.items()
    assert len(set(by_text.values())) == len(by_text), "one ID for two schemas"
