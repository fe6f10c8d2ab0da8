"""Asynchronous clients. Applications import them from ``raftlog.aio``."""
