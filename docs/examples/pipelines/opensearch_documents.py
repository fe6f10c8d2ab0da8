"""Each request as a document of OpenSearch, by writes that can be repeated."""

import os
import sys

from opensearchpy import OpenSearch, helpers

from raftlog import Consumer, TopicPartition

store = OpenSearch(os.environ["OPENSEARCH"])
store.indices.create(index="requests", ignore=400)  # it exists


def document(record):
    """Return a document whose ID is the place of the record: its repetition replaces it."""
    _, request, rest = record.value.decode().split('"', 2)
    place = f"{record.partition}-{record.offset}"
    fields = {"request": request, "status": int(rest.split()[0])}
    return {"_index": "requests", "_id": place, **fields}


with Consumer(group="to-opensearch", auto_offset_reset="earliest", auto_commit=False) as consumer:
    names = consumer.partitions_for("access-log")
    consumer.assign([TopicPartition("access-log", number) for number in names])
    while records := consumer.poll(timeout_ms=3_000, max_records=2_000):
        helpers.bulk(store, map(document, records))  # raises the first error
        if "--crash" in sys.argv:
            os.kill(os.getpid(), 9)  # before the commit: these documents are written again
        consumer.commit()

store.indices.refresh(index="requests")
print(store.count(index="requests")["count"], "documents")
by_status = {"terms": {"field": "status", "order": {"_key": "asc"}}}
found = store.search(index="requests", body={"size": 0, "aggs": {"status": by_status}})
for bucket in found["aggregations"]["status"]["buckets"]:
    print(bucket["key"], bucket["doc_count"])
query = {"match_phrase": {"request": "products 13"}}  # full text
print(store.count(index="requests", body={"query": query})["count"], "of /products/13")
