"""The asynchronous skins. Users import them from ``raftlog.aio``."""
