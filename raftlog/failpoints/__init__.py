"""Failpoints: places in a running broker at which a test makes it crash, stall or fail.

Without the environment variable ``RAFTLOG_FAILPOINTS``, a broker has no failpoints. With it, the
broker wraps its disk (``disk``) and its sends (``raftlog.server.main``).
"""

from raftlog.failpoints.disk import FailpointDisk
from raftlog.failpoints.points import VARIABLE, Failpoints, Hit, hits_path, read_hits
from raftlog.failpoints.sites import SITES

__all__ = ["SITES", "VARIABLE", "FailpointDisk", "Failpoints", "Hit", "hits_path", "read_hits"]
