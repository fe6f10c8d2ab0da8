"""A broker of three crashes, stalls or fails wherever it writes, syncs, renames or sends."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from random import Random
from typing import Final

import pytest

from raftlog import Admin
from raftlog.failpoints import SITES, Hit
from raftlog.testing import wait_until
from tests.integration.failpoint_tour import (
    HIT_S,
    STEPS,
    TARGET,
    Step,
    World,
    traffic,
    visit,
    world,
)
from tests.integration.load import TOPIC

pytestmark = [pytest.mark.integration, pytest.mark.timeout(900)]

# Every broker that has records to store comes by these: no tour has to be recorded for them.
STORING: Final = tuple(
    f"{what}.{operation}.{when}"
    for what in ("segment", "journal")
    for operation in ("write", "sync")
    for when in ("before", "after")
)
SAMPLE: Final = 2  # sites of each run of the quick test
SHARDS: Final = 8

Recording = Mapping[str, Sequence[Step]]  # the steps that come by a site
# A busy machine may not come by what happens in the background before a step is over.
TOURS_MAX: Final = 3


@pytest.fixture(scope="module")
def recording(tmp_path_factory: pytest.TempPathFactory) -> Recording:
    """Which failpoints each step of the tour comes by."""
    found: dict[str, list[Step]] = {}
    with world(tmp_path_factory.mktemp("recording")) as made:
        for _ in range(TOURS_MAX):
            for step in STEPS:
                visit(made, step, [f"*=note # {step.name}"], lambda: False)
                made.recover()
            found = steps_by_site([hit for hit in made.switch.hits if hit.action == "note"])
            if found.keys() >= set(SITES):
                break
    return found


def steps_by_site(noted: Sequence[Hit]) -> dict[str, list[Step]]:
    by_name = {step.name: step for step in STEPS}
    found: dict[str, list[Step]] = {}
    for hit in noted:
        step = by_name[hit.text.rpartition("# ")[2]]
        if step not in found.setdefault(hit.site, []):
            found[hit.site].append(step)
    return found


@pytest.mark.nightly
def test_the_list_of_failpoints_is_what_a_broker_comes_by(recording: Recording) -> None:
    assert sorted(recording) == sorted(SITES)


# -- crashes ---------------------------------------------------------------------------------------


def crash(made: World, site: str, steps: Sequence[Step]) -> None:
    """The target is killed right there, whatever it has to do to get there, and starts again."""
    made.switch.forget_hits()
    others = [step for step in STEPS if step not in steps]  # it came by late, and seemed another's
    # A restarted target can count as in sync before it has come by: the first visit ends too early.
    for step in (*steps, *steps, *others):
        visit(made, step, [f"{site}=crash"], lambda: made.hit(site) and made.is_down)
        if made.hit(site):
            break
        made.recover()
    (hit,) = (hit for hit in made.switch.hits if hit.site == site)
    wait_until(lambda: made.target.pid != hit.pid, timeout_s=HIT_S, what=f"the end at {site}")
    made.recover()


def crash_at_all(directory: Path, sites: Sequence[str], recording: Recording) -> None:
    with world(directory) as made:
        for site in sites:
            made.load.goes_on(count=30)
            crash(made, site, recording[site])


def test_a_crash_at_a_failpoint_loses_nothing(tmp_path: Path, seed: int) -> None:
    traffic = STEPS[:1]
    crash_at_all(tmp_path, Random(seed).sample(STORING, SAMPLE), dict.fromkeys(STORING, traffic))


@pytest.mark.nightly
@pytest.mark.timeout(600)
@pytest.mark.parametrize("shard", range(SHARDS))
def test_a_crash_at_any_failpoint_loses_nothing(
    tmp_path: Path, recording: Recording, shard: int
) -> None:
    crash_at_all(tmp_path, sorted(SITES)[shard::SHARDS], recording)


# -- errors ----------------------------------------------------------------------------------------


@pytest.mark.nightly
def test_a_failed_sync_ends_the_broker_and_loses_nothing(tmp_path: Path) -> None:
    """S30: what the disk holds is unknown then, and only a start can find out."""
    with world(tmp_path) as made:
        sites = ("segment.sync.before", "segment.sync.after", "journal.sync.before")
        for number, site in enumerate(sites):
            made.switch.forget_hits()
            made.switch.arm([f"{site}=fail(EIO)x1"])
            with Admin(made.cluster.bootstrap) as admin:  # it has something to agree on
                admin.alter_topic(TOPIC, {"retention.ms": f"{10**9 + number}"})
            wait_until(lambda: made.is_down, timeout_s=HIT_S, what=f"the end, by {site}")
            assert made.hit(site)
            assert made.target.exit_status == 1, "it ended by itself, and said so"
            made.recover()


@pytest.mark.nightly
def test_a_full_disk_refuses_writes_until_there_is_room(tmp_path: Path) -> None:
    """S31: the broker goes on, and so do writes once there is room."""
    with world(tmp_path) as made:
        pid = made.target.pid
        made.led_by(TARGET)
        for moment in ("before", "after"):
            made.switch.forget_hits()
            made.switch.arm(
                [f"*.{what}.{moment}=fail(ENOSPC)" for what in ("create", "write")]
                if moment == "before"
                else [f"segment.write.{moment}=fail(ENOSPC)"]
            )
            wait_until(
                lambda: len([h for h in made.switch.hits if h.site.startswith("segment.")]) > 3,
                timeout_s=HIT_S,
                what="writes that were refused",
            )
            made.recover()
        assert made.target.pid == pid, "it has not ended"


# -- stalls ----------------------------------------------------------------------------------------


def stall(made: World, sites: Sequence[str]) -> None:
    """Each of these takes a second, once, while records are coming."""
    made.switch.arm([f"{site}=stall(1)x1" for site in sites])
    wait_until(
        lambda: {hit.site for hit in made.switch.hits} == {*sites},
        timeout_s=HIT_S + 10 * len(sites),
        what="every stall",
    )
    made.recover()


@pytest.mark.nightly
@pytest.mark.timeout(900)
def test_a_second_of_standing_still_loses_nothing(tmp_path: Path, recording: Recording) -> None:
    """The session lasts as long: the others may take over, and it may not know."""
    traffic_sites = sorted(s for s, steps in recording.items() if steps[0].act is traffic)
    with world(tmp_path) as made:
        stall(made, traffic_sites)
