"""A consensus journal that loses its end between two blocks, on real processes.

It looks whole to the broker that has it. The others have heard of more, and refuse it.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from raftlog.testing import cluster, wait_until
from tests.consensus.journals import block_ends
from tests.integration.load import PATIENCE_S, Load, create, same_everywhere, until_in_sync

pytestmark = pytest.mark.integration

LATER = [pytest.mark.nightly, pytest.mark.timeout(300)]


@pytest.mark.parametrize("lost", ["many", pytest.param("three", marks=LATER)])
def test_a_broker_is_refused_and_comes_back_whole_once_its_directory_is_empty(
    tmp_path: Path, lost: str
) -> None:
    with cluster(brokers=3, directory=tmp_path, with_relays=False) as running:
        create(running, copies=3)
        broker = running.broker(2)
        with Load(running.bootstrap) as load:
            load.goes_on(count=50)
            broker.kill()
            journal = broker.data_dir / "consensus.journal"
            ends = block_ends(journal.read_bytes())
            assert len(ends) > 6
            # Block 1 is the new file's, and block 2 has the number of this boot, the only one.
            end = ends[2] if lost == "many" else ends[-4]
            with journal.open("r+b") as file:
                file.truncate(end)
            broker.start()
            wait_until(
                lambda: "has lost acknowledged blocks" in broker.log_path.read_text("utf-8"),
                timeout_s=PATIENCE_S,
                what=f"broker 2 is told what is wrong ({broker.log_path})",
            )
            (sentence, *_) = [
                line
                for line in broker.log_path.read_text("utf-8").splitlines()
                if "has lost acknowledged blocks" in line and "ERROR" in line
            ]
            assert "the consensus journal of broker 2" in sentence
            assert "Start the broker with an empty data directory" in sentence
            load.goes_on(count=50)
            broker.kill()
            running.wipe(2)
            broker.start()
            until_in_sync(running)
            load.goes_on(count=50)
        load.check(running.bootstrap)
        same_everywhere(running)
