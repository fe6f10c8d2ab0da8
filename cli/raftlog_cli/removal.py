"""Progress of ``raftlog cluster decommission``."""

from __future__ import annotations

import sys
import time
from typing import Final

import click

from raftlog import Admin
from raftlog.client.descriptions import DecommissionProgress
from raftlog_cli import output

POLL_INTERVAL_S: Final = 0.5


def wait(admin: Admin, broker: int, progress: DecommissionProgress) -> DecommissionProgress:
    """Wait until the broker is removed. Shows a progress bar and what the removal waits for."""
    shown = ""
    with click.progressbar(
        length=progress.partitions, label=f"broker {broker}: partitions moved", file=sys.stderr
    ) as bar:
        left = progress.partitions
        while not progress.removed:
            if progress.waits_for and progress.waits_for != shown:
                output.note(f"waiting: {progress.waits_for}")
            shown = progress.waits_for
            time.sleep(POLL_INTERVAL_S)
            progress = admin.decommission_broker(broker)
            bar.update(max(0, left - progress.partitions))
            left = min(left, progress.partitions)
    return progress
