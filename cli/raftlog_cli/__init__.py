"""The ``raftlog`` command: one module per family of commands, on the public API."""
