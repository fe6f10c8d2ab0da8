"""Mirror: copies topics of one cluster to another, with their offsets.

``mirror`` selects topics, decides where each copy continues, and copies in sessions; ``compacted``
decides whether a copy has every tombstone; ``table`` is a compacted topic as a map. Reasons and
limits: docs/adr/0034.
"""

from raftlog.mirror.mirror import Mirror, Progress

__all__ = ["Mirror", "Progress"]
