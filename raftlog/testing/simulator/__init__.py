"""The complete system in one thread, on virtual time, from one seed.

The real broker, the real clients and the real storage run on a deterministic event loop, over a
simulated network and simulated disks. The same seed gives the same events, so a failure can be
reproduced. Run ``python -m raftlog.testing.simulator --help``.
"""
