"""Client library: producers, consumers and administration, synchronous and asynchronous.

Both variants share one asynchronous core. Applications import from ``raftlog`` and ``raftlog.aio``.
No module in this package imports the server. From the wire upwards:

    connection                 one connection: sends requests, receives responses
    connections                all connections of a client, at most one per broker
    hedged_request             starts another attempt if one is slow, uses the first response
    cluster, metadata          broker selection, partition leaders, requests with retries
    broker_connections, retry  connections to leaders, overdue requests, retry rules
    accumulator                records that wait to be sent
    sender, in_flight          batches in flight, and their retries
    fetcher, subscription      fetched batches; the position of each partition
    partition_requests         requests to partition leaders
    replica_selector           the replica to fetch from, also while there is no leader
    describe_cluster           one cluster description from the responses of all brokers
    describe_features          the versions of formats and requests of all brokers
    upgrade_features           require the newest protocol between brokers, after an upgrade
    producer, consumer, admin  the synchronous clients, which use ``loop_thread``
    aio                        the asynchronous clients
"""
