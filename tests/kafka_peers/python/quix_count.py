"""Counts the words of a topic with Quix Streams, exactly once: BOOTSTRAP DIRECTORY."""

import sys

from quixstreams import Application

BOOTSTRAP, DIRECTORY = sys.argv[1:3]
app = Application(
    broker_address=BOOTSTRAP,
    consumer_group="word-count",
    auto_offset_reset="earliest",
    processing_guarantee="exactly-once",
    commit_interval=0.2,
    state_dir=DIRECTORY,
    consumer_extra_config={"session.timeout.ms": 6_000},
    loglevel="ERROR",
)


def count(word, state):
    total = state.get("total", 0) + 1
    state.set("total", total)
    return str(total)


strings = {"key_serializer": "string", "value_serializer": "string"}
words = app.dataframe(app.topic("words", key_deserializer="string", value_deserializer="string"))
words.apply(count, stateful=True).to_topic(app.topic("counts", **strings))

if __name__ == "__main__":
    app.run()
