"""Druid's place: requests by status in Redis, exactly once: offsets and counts in one MULTI."""

import os
from collections import Counter

import redis

from raftlog import Consumer, TopicPartition

store = redis.Redis.from_url(os.environ["REDIS"], decode_responses=True)
with Consumer() as consumer:
    partitions = [TopicPartition("access-log", n) for n in consumer.partitions_for("access-log")]
    consumer.assign(partitions)
    for tp in partitions:  # the position is in Redis, with the counts that belong to it
        consumer.seek(tp, int(store.hget("offsets:access-log", str(tp.partition)) or 0))
    while records := consumer.poll(timeout_ms=3_000, max_records=2_000):
        counts = Counter(record.value.split(b'" ', 2)[1][:3].decode() for record in records)
        with store.pipeline(transaction=True) as multi:
            for status, count in counts.items():
                multi.hincrby("requests-by-status", status, count)
            for tp in partitions:
                multi.hset("offsets:access-log", str(tp.partition), consumer.position(tp))
            multi.execute()

for status, count in sorted(store.hgetall("requests-by-status").items()):
    print(status, count)
