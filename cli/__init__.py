"""The ``raftlog`` command: one module per command family. It calls ``raftlog``, then prints."""
