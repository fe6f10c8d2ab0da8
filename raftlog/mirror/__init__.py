"""Mirror: copies topics of one cluster to another, with their offsets.

``topics`` selects them and creates the copies, ``positions`` decides where each copy continues,
``batches`` builds what is appended, ``groups`` selects committed offsets, ``session`` copies, and
``mirror`` repeats sessions. Reasons and limits: docs/adr/0034.
"""

from raftlog.mirror.mirror import Mirror, Progress

__all__ = ["Mirror", "Progress"]
