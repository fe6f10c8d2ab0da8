"""S4's processing elements: one object per key, which gets the events of its key in order."""

from raftlog import Consumer, Producer


class Visitor:
    """The element of one host."""

    requests = errors = 0

    def process(self, line: bytes) -> None:
        """Count a request."""
        self.requests += 1
        status = line.split(b'" ', 2)[1].split(b" ", 1)[0]
        self.errors += status >= b"400"


elements: dict[bytes, Visitor] = {}
# Several copies of this program share the partitions: all events of a key go to one of them.
with (
    Consumer(group="visitors", auto_offset_reset="earliest", auto_commit=False) as consumer,
    Producer() as producer,
):
    consumer.subscribe(["requests"])
    while records := consumer.poll(timeout_ms=10_000, max_records=10_000):
        changed = {}
        for record in records:
            element = elements.setdefault(record.key, Visitor())
            element.process(record.value)
            changed[record.key] = b"%d %d" % (element.requests, element.errors)
        producer.send_many("visitors", list(changed.values()), keys=list(changed))
        producer.flush()
        consumer.commit()  # the state of the elements is in the compacted topic "visitors"

top = sorted(elements.items(), key=lambda item: (-item[1].requests, item[0]))[:5]
for host, element in top:
    print(host.decode(), element.requests, element.errors)
