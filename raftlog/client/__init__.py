"""The client library: producers, consumers and administration, synchronous and asynchronous.

One asynchronous core, two skins. Users import from ``raftlog`` and ``raftlog.aio``; nothing here
imports the server. From the wire upwards:

    connection          one connection: requests out, answers in
    cluster, metadata   connections to brokers, who leads what, requests with retries
    retry               what may be tried again, and when
    accumulator         records waiting to be sent       fetcher      batches waiting to be read
    sender              what is in flight, and retries   positions    where each partition is read
    producer, consumer, admin                            the synchronous skins, over ``loop_thread``
    aio                                                  the asynchronous skins
"""
