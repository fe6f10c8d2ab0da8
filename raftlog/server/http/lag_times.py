"""Lag of consumer groups in seconds, from high watermarks over time. Pure.

The time at which a record was committed lies between two samples of the high watermark; it is
interpolated. So no log is read, and values are as accurate as the interval of the samples. Samples
begin with the first request for metrics: until then, a lag can be longer than reported.
"""

from __future__ import annotations

from bisect import bisect_right
from collections import OrderedDict
from operator import itemgetter

from raftlog import limits
from raftlog.types import Offset


class LagTimes:
    """High watermarks of the partitions whose consumer groups lag.

    Of the partitions over ``METRICS_LAG_PARTITIONS_MAX``, those are forgotten that were not asked
    for the longest time. A partition keeps ``METRICS_LAG_SAMPLES_MAX`` samples; older ones become
    sparse.
    """

    def __init__(self) -> None:
        self._samples: OrderedDict[tuple[str, int], list[tuple[float, Offset]]] = OrderedDict()

    def age_s(
        self, topic_id: str, partition: int, committed: Offset, high_watermark: Offset, now: float
    ) -> float:
        """Add a sample, and return the seconds since the record at ``committed`` was committed by
        the log; 0 if there is none. ``now``: monotonic seconds.
        """
        samples = self._samples.setdefault((topic_id, partition), [])
        self._samples.move_to_end((topic_id, partition))
        while len(self._samples) > limits.METRICS_LAG_PARTITIONS_MAX:
            self._samples.popitem(last=False)
        if samples and high_watermark < samples[-1][1]:
            samples.clear()  # an unclean election has removed records
        if len(samples) > 1 and samples[-2][1] == high_watermark == samples[-1][1]:
            samples.pop()  # nothing was added for longer
        samples.append((now, high_watermark))
        if len(samples) > limits.METRICS_LAG_SAMPLES_MAX:
            del samples[1:-2:2]
        if committed >= high_watermark:
            return 0.0
        place = bisect_right(samples, committed, key=itemgetter(1))  # the first one above it
        after_s, above = samples[place]
        if not place:
            return now - after_s
        before_s, below = samples[place - 1]
        part = (committed - below) / (above - below)
        return now - (before_s + part * (after_s - before_s))
