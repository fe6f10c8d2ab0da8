"""Failpoints: places in a running broker where a test has it crash, stall or fail.

Off unless ``RAFTLOG_FAILPOINTS`` is set, and then nothing of this is in the broker's way: what is
hooked is what the composition root wraps (``disk`` here, ``raftlog.server.failpoints`` for sends).
"""

from raftlog.failpoints.disk import FailpointDisk
from raftlog.failpoints.points import VARIABLE, Failpoints, Hit, hits_path, read_hits
from raftlog.failpoints.sites import SITES

__all__ = ["SITES", "VARIABLE", "FailpointDisk", "Failpoints", "Hit", "hits_path", "read_hits"]
