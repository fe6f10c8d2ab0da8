"""The client library: producers, consumers and administration, synchronous and asynchronous.

One asynchronous core, two skins. Users import from ``raftlog`` and ``raftlog.aio``; nothing here
imports the server. From the wire upwards:

    connection          one connection: requests out, answers in
    connections, hedge  all of them, opened once; several asked, the first answer counts
    cluster, metadata   whom to ask, who leads what, requests with retries
    links, retry        roads to leaders, and brokers that say nothing; what may be tried again
    accumulator         records waiting to be sent       fetcher       batches waiting to be read
    sender, flight      what is in flight, and retries   subscription  where each partition is read
    leaders, stand_ins  requests to leaders, and who stands in while there is none
    overview            one picture of the cluster from all brokers' answers
    producer, consumer, admin                            the synchronous skins, over ``loop_thread``
    aio                                                  the asynchronous skins
"""
