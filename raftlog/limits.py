"""All fixed limits, each with its unit in its name.

A length, count or rate from outside is compared with one of these before memory is allocated for
it. ``raftlog.config`` has the settings of operators; no setting can exceed these limits.
"""

from __future__ import annotations

from typing import Final

KIB: Final = 1024
MIB: Final = 1024 * KIB
GIB: Final = 1024 * MIB

# -- topics ----------------------------------------------------------------------------------------
TOPIC_NAME_CHARS_MAX: Final = 249  # Kafka's; leaves room for "-<partition>" in a 255-byte file name
PARTITIONS_PER_TOPIC_MAX: Final = 10_000
PARTITIONS_PER_BROKER_MAX: Final = 100_000
TOPICS_PER_REQUEST_MAX: Final = 1_000
PARTITIONS_PER_REQUEST_MAX: Final = 10_000
PARTITIONS_DESCRIBED_MAX: Final = 10_000  # in one page of describe_topics, or one topic
CONFIG_VALUE_CHARS_MAX: Final = 4_096
CONFIG_VALUE_CHARS_KEPT: Final = 32  # of a topic: longer ones are stored in their shortest text
CONFIG_KEYS_PER_TOPIC_MAX: Final = 256

# -- clusters --------------------------------------------------------------------------------------
BROKERS_PER_CLUSTER_MAX: Final = 63
VOTERS_PER_CLUSTER_MAX: Final = 15  # of the Raft group with the cluster state
REMOVED_BROKERS_MAX: Final = 1_000  # the newest decommissioned ones, which must not rejoin
LOST_DIRECTORIES_MAX: Final = 1_000  # the newest that a recovery has declared lost
RECOVERIES_KEPT: Final = 32  # IDs of the newest recoveries without a majority
CLUSTER_CHANGES_KEPT_MAX: Final = 1_000  # for brokers without a vote; others get a snapshot
CLUSTER_CHANGES_KEPT_BYTES_MAX: Final = 4 * 1024 * 1024
CLUSTER_STATE_WAIT_MS_MAX: Final = 10_000  # of a request for changes of the cluster state
PARTITIONS_PER_CLUSTER_MAX: Final = 100_000  # one broker may have a replica of each
MOVE_THROTTLE_DEFAULT: Final = 0  # bytes per second that moves copy to each broker; 0: no limit
MOVE_THROTTLE_BYTES_PER_S_MIN: Final = 1_024  # slower moves would appear to hang
MOVE_THROTTLE_BYTES_PER_S_MAX: Final = 1_000_000_000_000
REPLICATION_FACTOR_MAX: Final = 15
REPLICATION_FACTOR_DEFAULT: Final = 3  # or the number of brokers
PRODUCERS_PER_REQUEST_MAX: Final = 10_000  # to describe, of all partitions
LISTED_PRODUCERS_MAX: Final = 1_000  # in one response, of all partitions
ID_CHARS_MAX: Final = 64  # of a cluster, a data directory or a topic
HOST_CHARS_MAX: Final = 255
RACK_CHARS_MAX: Final = 256
CLUSTER_SECRET_CHARS_MIN: Final = 16
CLUSTER_SECRET_CHARS_MAX: Final = 4_096
LOSS_ID_CHARS_MAX: Final = 12  # hexadecimal: probability of equal ids 2^-48
PRINCIPAL_NAME_CHARS_MAX: Final = 256  # of a user; a distinguished name fits

# -- authentication --------------------------------------------------------------------------------
PROFILE_BYTES_MAX: Final = MIB  # of a file with profiles of clients
USERS_PER_CLUSTER_MAX: Final = 10_000
USERS_PER_REQUEST_MAX: Final = 100  # changes, or names to describe
PASSWORD_CHARS_MIN: Final = 8
PASSWORD_CHARS_MAX: Final = 256
SCRAM_ITERATIONS_MIN: Final = 4_096  # RFC 7677
SCRAM_ITERATIONS_MAX: Final = 16_384  # Kafka's; limits the cost of one attempt
SCRAM_ITERATIONS_DEFAULT: Final = 4_096
SCRAM_SALT_BYTES_MIN: Final = 12
SCRAM_SALT_BYTES_MAX: Final = 128
SASL_MESSAGE_BYTES_MAX: Final = 16 * KIB  # of one message of an exchange; tokens are the longest
SCRAM_MESSAGE_BYTES_MAX: Final = 1_536  # the longest name, each character as "=2C", fits
JWKS_BYTES_MAX: Final = 256 * KIB  # public keys of an identity provider
PRINCIPAL_RULES_CHARS_MAX: Final = 4_096  # of ssl.principal.mapping.rules
CERTIFICATE_NAME_CHARS_MAX: Final = 1_024  # a client certificate with a longer name has no user
OAUTH_TEXT_CHARS_MAX: Final = 1_024  # of an issuer, an audience, or the name of a claim
TOKEN_LIFETIME_S_MAX: Final = 7 * 86_400  # of a session, however long its token is valid
TOKEN_COMMAND_S: Final = 30.0  # for the command of a client that prints a bearer token
JWKS_TIMEOUT_S: Final = 10.0  # for each response of the provider
JWKS_RETRY_S: Final = 10.0  # between two loads of them for tokens with unknown keys
DELEGATION_TOKENS_PER_CLUSTER_MAX: Final = 10_000
DELEGATION_TOKENS_PER_OWNER_MAX: Final = 100
DELEGATION_TOKEN_RENEWERS_MAX: Final = 10  # of one token
DELEGATION_TOKEN_OWNERS_MAX: Final = 100  # in a request for descriptions
DELEGATION_TOKEN_LIFETIME_MS_MAX: Final = 366 * 86_400_000  # of delegation.token.max.lifetime.ms
DELEGATION_TOKEN_KEPT_MS: Final = 3_600_000  # in the cluster state after it has expired, at least
DELEGATION_TOKEN_CHECK_S: Final = 0.5  # between two comparisons of the clock with its expiry
AUTHENTICATION_FAILURES_MAX: Final = 20  # of one address at a time; further attempts are refused
AUTHENTICATION_FAILURE_S: Final = 0.5  # after which one failure of the address is deducted
AUTHENTICATION_DELAY_S: Final = 0.5  # delay of the response to a failed attempt
FAILING_ADDRESSES_MAX: Final = 10_000  # per broker; the oldest are removed
AUTHENTICATION_S: Final = 30.0  # for a new connection, if authentication is required
UNAUTHENTICATED_BYTES_MAX: Final = 64 * KIB  # of a request before authentication, if it is required
ACL_RESOURCE_CHARS_MAX: Final = 256  # name or prefix of a topic, a group or a producer
PRODUCER_NAME_CHARS_MAX: Final = 4_096
ACLS_PER_CLUSTER_MAX: Final = 10_000
ACLS_PER_REQUEST_MAX: Final = 1_000
ACL_FILTERS_PER_REQUEST_MAX: Final = 100  # each is compared with every rule
QUOTAS_PER_CLUSTER_MAX: Final = 10_000
QUOTAS_PER_REQUEST_MAX: Final = 1_000
QUOTA_MAX: Final = 1e15  # bytes per second, percent or connections
QUOTA_BURST_S: Final = 1.0  # of a rate: burst after an idle time
QUOTA_BUCKETS_MAX: Final = 10_000  # users, client ids and addresses that a broker counts
THROTTLE_MS_MAX: Final = 10_000  # for which a broker does not read from a connection
AUDIT_EVENTS_PENDING_MAX: Final = 1_000  # of a broker, until they are stored
AUDIT_EVENTS_PER_BATCH: Final = 100  # fewer, if they do not fit max.message.bytes
AUDIT_EVENTS_PER_S: Final = 100.0  # of a broker; more are dropped and counted
AUDIT_RESOURCES_MAX: Final = 20  # topics, groups or rules that an event names

assert PARTITIONS_PER_CLUSTER_MAX <= PARTITIONS_PER_BROKER_MAX
assert BROKERS_PER_CLUSTER_MAX >= 2 * REPLICATION_FACTOR_MAX - 1, "as many vote on a partition"

# -- consumer groups -------------------------------------------------------------------------------
GROUP_ID_CHARS_MAX: Final = 255
GROUPS_WITH_SETTINGS_MAX: Final = 10_000  # of a cluster
INSTANCE_ID_CHARS_MAX: Final = 255
ASSIGNOR_CHARS_MAX: Final = 64
OFFSET_METADATA_CHARS_MAX: Final = 4_096  # Kafka's offset.metadata.max.bytes
MEMBERS_PER_GROUP_MAX: Final = 1_000
TOPICS_PER_MEMBER_MAX: Final = 1_000
GROUPS_PER_REQUEST_MAX: Final = 1_000
GROUPS_PER_COORDINATOR_MAX: Final = 100_000  # of one partition of __consumer_offsets
OFFSETS_PER_GROUP_MAX: Final = 100_000
TRANSACTION_OFFSETS_MAX: Final = 5_000  # pending in one shard: they are committed in one step
TRANSACTION_MARKERS_KEPT_MAX: Final = 100_000  # producers whose last marker a shard remembers
SESSION_TIMEOUT_MS_MIN: Final = 100
SESSION_TIMEOUT_MS_MAX: Final = 1_800_000  # Kafka's group.max.session.timeout.ms
HEARTBEAT_WAIT_MS_MAX: Final = 60_000
INITIAL_REBALANCE_DELAY_MS: Final = 3_000  # Kafka's group.initial.rebalance.delay.ms
CLASSIC_PROTOCOLS_MAX: Final = 100  # assignors that a member of a classic group offers
CLASSIC_NAME_BYTES_MAX: Final = 32_767  # assignor, protocol type: longest text of old versions
CLASSIC_METADATA_BYTES_MAX: Final = MIB  # a subscription, or an assignment
# All subscriptions of a member, with its assignors' names: they and its assignment are one record.
CLASSIC_MEMBER_BYTES_MAX: Final = 6 * MIB
CLASSIC_GROUP_BYTES_MAX: Final = 8 * MIB  # all subscriptions, or all assignments, of a group
GROUP_ANSWERS_WAITING_MAX: Final = 10_000  # for one partition's log, without waiting heartbeats
COORDINATOR_LOOKUPS_MAX: Final = 10_000  # that wait for the creation of an internal topic

# -- transactions ----------------------------------------------------------------------------------
TRANSACTIONAL_ID_CHARS_MAX: Final = 1_024
TRANSACTIONAL_IDS_MAX: Final = 100_000  # of one partition of __transaction_state
LISTED_TRANSACTIONS_MAX: Final = 1_000  # transactional ids in one response
TRANSACTION_FILTERS_MAX: Final = 1_000  # producer ids in a request that lists transactions
TRANSACTION_PARTS_MAX: Final = 10_000  # partitions of one transaction
TRANSACTION_RESERVED_MAX: Final = 100  # partitions that a commit reserves for the next transaction
TRANSACTION_RESERVED_MS: Final = (
    5_000  # in which a client begins a transaction that it has reserved
)
TRANSACTION_ITEMS_PER_REQUEST_MAX: Final = 1_000  # markers, or questions, to another broker
TRANSACTION_ITEMS_QUEUED_MAX: Final = 100_000  # for another broker
MARKERS_NOTED_MAX: Final = 100_000  # newest transactions that a broker has ended, by partition

# -- schema registry ------------------------------------------------------------------------------
SCHEMA_BYTES_MAX: Final = MIB  # of one text
SCHEMA_PROTOBUF_BYTES_MAX: Final = 128 * KIB  # of one text: its parser takes 10 ms per KiB
SCHEMA_DEPTH_MAX: Final = 200  # nested arrays and objects of a schema in JSON
SCHEMA_REFERENCES_MAX: Final = 100  # of one schema, with those of the schemas that it refers to
SCHEMA_REFERENCE_DEPTH_MAX: Final = 20
SCHEMA_VERSIONS_MAX: Final = 10_000  # of one subject, with those that are deleted softly
SCHEMA_SUBJECTS_MAX: Final = 100_000
SCHEMAS_BYTES_MAX: Final = 256 * MIB  # of all texts, which are in memory
SCHEMA_COMPARED_BYTES_MAX: Final = 8 * MIB  # of all versions that a new one is compared with
SCHEMA_COMPARISONS_MAX: Final = 1_000_000  # of parts of two versions: takes a few seconds
SCHEMA_PROBLEMS_MAX: Final = 50  # that the answer to a check lists
SCHEMA_SUBJECT_CHARS_MAX: Final = 512
SCHEMA_PATH_CHARS_MAX: Final = 8 * KIB  # of a request, percent-encoded
SCHEMA_REQUEST_BYTES_MAX: Final = 4 * MIB  # the longest text, each character escaped, may be more
SCHEMA_CONFIG_BYTES_MAX: Final = 64 * KIB  # of a configuration, or of metadata and rules
SCHEMA_ID_MAX: Final = (1 << 31) - 1  # 32 bits in front of each value
SCHEMAS_PARSED_KEPT_MAX: Final = 256  # parsed schemas that a broker or client keeps
SCHEMA_IDS_KEPT_MAX: Final = 10_000  # known to a broker that checks records
SCHEMA_CALLS_WAITING_MAX: Final = 200  # requests of a broker that wait for their turn

# -- record batches --------------------------------------------------------------------------------
BATCH_BYTES_MAX: Final = 64 * MIB  # the highest max.message.bytes that a topic may have
BATCH_UNCOMPRESSED_BYTES_MAX: Final = 64 * MIB  # of a decompressed payload
RECORDS_PER_BATCH_MAX: Final = 1 << 20
HEADERS_PER_BATCH_MAX: Final = 1 << 22
TIMESTAMP_MS_MAX: Final = (
    253_402_300_799_999  # the end of the year 9999, the maximum of datetime and Spark
)
OFFSET_DELTA_MAX: Final = (1 << 31) - 1  # offsets of a batch after its first: 32 bits, as in Kafka
CODEC_BLOCKS_MAX: Final = 1 << 16  # of a Kafka batch: 64 MiB in the smallest of snappy-java
KEYLESS_ROWS_MAX: Final = 100  # records without a key that a rejected Kafka batch lists
CODEC_STATES_KEPT_MAX: Final = 4  # spare zstd (de)compressors, for each level
CODEC_STATE_BYTES_MAX: Final = 4 * MIB  # a larger spare is freed

# -- frames and connections ------------------------------------------------------------------------
FRAME_BYTES_MAX: Final = 100 * MIB  # Kafka's socket.request.max.bytes
FRAME_HEADER_BYTES_MAX: Final = 8 * MIB  # the msgpack header inside a frame
FRAME_SMALL_BYTES_MAX: Final = 16 * KIB  # received parts of frames up to this size are copied
FRAME_TRUSTED_BYTES_MAX: Final = 2 * MIB  # allocated by a client before the frame arrives
RAFT_ENVELOPE_BYTES_MAX: Final = 66 * MIB  # the state of a Raft group of 64 MiB fits
FIRST_FRAME_BYTES_MAX: Final = 64 * KIB  # the first request of a connection: api_versions fits
REQUEST_HEADER_BYTES_MAX: Final = 256 * KIB  # the header of a request without a long list
PARTITIONS_HEADER_BYTES_MAX: Final = 4 * MIB  # of one that lists partitions: 10,000 longest names
TOPICS_HEADER_BYTES_MAX: Final = MIB  # of one that lists 1,000 topics, or names of groups
PRODUCERS_HEADER_BYTES_MAX: Final = 512 * KIB  # of describe_producers: 10,000 ids
RECEIVE_BYTES: Final = 256 * KIB  # receive buffer of all connections of one event loop
SUBSCRIPTION_PATTERN_CHARS_MAX: Final = 4_096  # of a regular expression of a Kafka member
SUBSCRIPTION_PATTERN_BYTES_MAX: Final = MIB  # of memory to evaluate it
CLIENT_ID_CHARS_MAX: Final = 256
LOG_REPEATS_MAX: Final = 100  # lines that one message of a broker's log may have per interval
LOG_REPEATS_INTERVAL_S: Final = 10
LOG_MESSAGES_MAX: Final = 1_000  # whose lines are counted
LOG_WAITING_BYTES_MAX: Final = MIB  # of lines of a broker's log that stderr has not taken yet
LOG_FLUSH_S: Final = 1.0  # for stderr to take the last lines of a process that ends
LOGGERS_MAX: Final = 1_000  # whose levels a broker describes
LOGGER_NAME_CHARS_MAX: Final = 256
FEATURES_MAX: Final = 256  # formats and protocols that a broker reports
FEATURE_NAME_CHARS_MAX: Final = 64
TLS_HANDSHAKES_MAX: Final = 1_024  # unfinished at a time, on a broker
TLS_HANDSHAKE_S: Final = 5.0  # then the broker closes the connection
TLS_SHUTDOWN_S: Final = 1.0  # for the peer's close_notify, when the broker closes a connection
TLS_RELOAD_S: Final = 5.0  # between two checks of a broker for changed certificate files
LOBBY_CONNECTIONS_MAX: Final = 128  # beyond max.connections, not authenticated as brokers yet
REQUESTS_IN_FLIGHT_MAX: Final = 256  # per connection, on the broker
FETCH_WAIT_MS_MAX: Final = 60_000
FETCH_BYTES_MAX: Final = 52_428_800  # Kafka's fetch.max.bytes
ERROR_MESSAGE_CHARS_MAX: Final = 2_000
WRITE_BUFFER_HIGH_BYTES: Final = 64 * KIB  # unread responses, above which writing pauses
WRITE_BUFFER_LOW_BYTES: Final = 16 * KIB  # below which writing resumes
FREED_BYTES_KEPT_MAX: Final = 16 * MIB  # freed memory that glibc keeps, at the end of its heap
HEAP_BUFFER_BYTES_MAX: Final = 4 * MIB  # larger buffers go back to the system when they are freed
ADMIN_REQUESTS_PENDING_MAX: Final = 1_000  # queued changes of topics, per broker
SYNC_THREADS: Final = 4  # per log directory: concurrent fdatasyncs
LOG_DIRS_MAX: Final = 64  # per broker, besides data.dir
VERIFIED_BYTES_MAX: Final = 4 * MIB  # of a log, by one verify_copy request
TURN_SECONDS: Final = 0.005  # of one turn of a broker's loop, for all requests
SHARE_SECONDS: Final = 0.002  # of that, for one connection
VALIDATION_THREADS: Final = 2  # per broker: large batches that are validated at a time
VALIDATED_ON_LOOP_BYTES_MAX: Final = 2 * MIB  # uncompressed, of a batch: takes a few milliseconds
PRODUCE_UNCOMPRESSED_BYTES_MAX: Final = 128 * MIB  # of all batches of a produce request

assert BATCH_BYTES_MAX < FRAME_BYTES_MAX, "the largest batch must fit a frame"
assert BATCH_BYTES_MAX <= BATCH_UNCOMPRESSED_BYTES_MAX, "storage.admission checks the smaller"
assert FETCH_BYTES_MAX <= FRAME_BYTES_MAX, "the largest fetch response must fit a frame"
assert LOBBY_CONNECTIONS_MAX >= 2 * BROKERS_PER_CLUSTER_MAX, "all may reconnect at a time"
assert FRAME_SMALL_BYTES_MAX <= RECEIVE_BYTES, "a small frame must fit the scratch"

# -- Kafka's protocol ------------------------------------------------------------------------------
KAFKA_REQUESTS_IN_FLIGHT_MAX: Final = 64  # per connection: responses are sent in order
KAFKA_ITEMS_MAX: Final = 100_000  # partitions in a request, and numbers of one array
KAFKA_DECODED_BYTES_MAX: Final = 64 * MIB  # of the elements of a request, approximately
KAFKA_TAGS_MAX: Final = 10_000  # tagged fields of one structure in a request
KAFKA_REQUEST_BYTES_MAX: Final = 8 * MIB  # of a request without records
KAFKA_ALTERED_RESOURCES_MAX: Final = 10_000  # whose settings a request changes
# Settings, members or offsets in a response, approximately. What is beyond it has an error.
KAFKA_RESPONSE_BYTES_MAX: Final = 64 * MIB
KAFKA_CONVERTED_BYTES_MAX: Final = 16 * MIB  # of a broker: natively written batches, as rows

# -- storage ---------------------------------------------------------------------------------------
SEGMENT_BYTES_MIN: Final = 16 * KIB
SEGMENT_BYTES_MAX: Final = 2 * GIB - 1  # positions in an index are 32 bits
STATE_FILE_BYTES_MAX: Final = 64 * MIB
RESYNC_BYTES_MAX: Final = 256 * MIB  # of a file, searched for valid batches behind a bad one
RESYNC_CANDIDATES_MAX: Final = 100_000  # places there that look like the start of a batch
COPIES_SAVE_MS: Final = 1_000  # between two saves of durable end offsets
OPEN_SEALED_SEGMENTS_MAX: Final = 4  # per partition; the rest are opened when they are read
# Of all partitions, and at most half of RLIMIT_NOFILE; the least recently used one is closed.
OPEN_LOG_FILES_MAX: Final = 65_536
PRODUCERS_PER_PARTITION_MAX: Final = 100_000
HTTP_WORKER_ANSWER_BYTES_MAX: Final = 64 * MIB  # metrics that one worker tells another
WORKERS_PER_HOST_MAX: Final = 32  # brokers of one `raftlog broker --workers`
UNVERIFIED_BATCHES_MAX: Final = 100  # of a producer, in a partition
RESERVING_PRODUCERS_MAX: Final = 10_000  # of a partition; those of more ask their coordinators
TRANSACTIONS_OPEN_PER_PARTITION_MAX: Final = 10_000
# Of the records that a partition stores: more are possible when retention has deleted some.
TRANSACTIONS_ABORTED_PER_PARTITION_MAX: Final = 100_000
ABORTED_PER_RESPONSE_MAX: Final = 100_000  # of several partitions; 40 bytes each in its header
PRODUCERS_PER_TOPIC_MAX: Final = PARTITIONS_PER_TOPIC_MAX * PRODUCERS_PER_PARTITION_MAX
PRODUCER_BATCHES_REMEMBERED: Final = (
    5  # Kafka's: bounds an idempotent producer's requests in flight
)

# -- HTTP and events -------------------------------------------------------------------------------
HTTP_CONNECTIONS_MAX: Final = 32  # open at a time; further ones are closed
HTTP_CONNECTION_S: Final = 10.0  # for one request and its response; then it is closed
HTTP_HEADER_BYTES_MAX: Final = 16 * KIB  # of a request
HTTP_CREDENTIALS_KEPT_MAX: Final = 64  # verified passwords, as keyed hashes
HTTP_CREDENTIAL_KEPT_S: Final = 60.0  # then a password is verified again
HTTP_PARTITIONS_MAX: Final = 1_000  # of a topic in one response of /api/v1; also the default
# -- the console, on the HTTP port
CONSOLE_USERS_MAX: Final = 8  # with a client of the cluster; the one that waited longest is closed
CONSOLE_USER_IDLE_S: Final = 600.0  # then the client of a user is closed
CONSOLE_REQUESTS_MAX: Final = 4  # processed at a time; later ones wait
CONSOLE_READ_S: Final = 4.0  # of one read of records, less than HTTP_CONNECTION_S
CONSOLE_RECORDS_MAX: Final = 200  # on one page
CONSOLE_SCANNED_MAX: Final = 20_000  # records that one read looks through for a text
CONSOLE_READ_BYTES_MAX: Final = 16 * MIB  # of the records that one read looks through
CONSOLE_PARTITIONS_MAX: Final = 64  # that one read of records covers
CONSOLE_VALUE_BYTES_MAX: Final = 64 * KIB  # of a key or value that is decoded
CONSOLE_TEXT_MAX: Final = 256 * KIB  # characters of a decoded key or value
CONSOLE_AVRO_FILE_BYTES_MAX: Final = 256 * KIB  # of a schema file in http.console.avro.schemas
CONSOLE_AVRO_EMBEDDED_BYTES_MAX: Final = 16 * KIB  # of the schema in a container file
CONSOLE_AVRO_DEPTH_MAX: Final = 64  # of a schema
CONSOLE_AVRO_FREE_VALUES_MAX: Final = 1_000  # that a value has without bytes, such as nulls
CONSOLE_AVRO_READS_MAX: Final = 500_000  # of numbers and texts by one request; about 1 s
CONSOLE_AVRO_SCHEMAS_MAX: Final = 64  # parsed schemas kept
CONSOLE_LOOKUPS_MAX: Final = 20  # of schemas that the registry does not have, by one request
CONSOLE_DOWNLOAD_RECORDS_MAX: Final = 10_000
CONSOLE_DOWNLOAD_BYTES_MAX: Final = 16 * MIB
CONSOLE_FORM_BYTES_MAX: Final = 64 * KIB
CONSOLE_FORM_FIELDS_MAX: Final = 100
CONSOLE_FILTER_CHARS_MAX: Final = 200  # of a text to search for
CONSOLE_DESCRIPTIONS_MAX: Final = 8  # kept: of the cluster and of topics
CONSOLE_GROUPS_KEPT_MAX: Final = 64  # groups whose lag is sampled for plots
CONSOLE_GROUPS_DESCRIBED_MAX: Final = 200  # to find those of a topic
CONSOLE_CHECK_STEP_MS: Final = 1_000  # of a check of copies, for one request
CONSOLE_CHECKS_MAX: Final = 4  # kept, of each user
CONSOLE_SAMPLE_S: Final = 15.0  # between two samples of the cluster for plots, at least
CONSOLE_POINTS_MAX: Final = 960  # of a plot: 4 hours of samples
CLUSTER_SUMMARY_PARTITIONS_MAX: Final = 500  # with a problem, which a summary names
CLUSTER_PAGE_PARTITIONS_MAX: Final = 200  # of one broker, which a summary lists
METRICS_KEPT_S: Final = 1.0  # for which values are cached
METRICS_TOPICS_MAX: Final = 1_000  # with separate series; the others are only counted
METRICS_LAG_PARTITIONS_MAX: Final = 2_000  # whose lag in seconds is exported
METRICS_LAG_KEPT_S: Final = 600.0  # without a request for it; then another partition may have it
METRICS_LAG_SAMPLES_MAX: Final = 32  # of the high watermark of one partition
METRICS_GROUPS_MAX: Final = 1_000  # the same: pairs of a consumer group and a topic
EVENTS_KEPT_MAX: Final = 5_000  # per broker, in memory

# -- clocks (``replication.trusted_time``) ---------------------------------------------------------
CLOCK_STEP_MS: Final = 60_000  # clocks with a larger difference do not agree
CLOCK_SLEW: Final = 0.05  # part of elapsed time; correction rate of smaller differences
CLOCK_SETTLE_S: Final = 600.0  # agreement on a step must last this long before it applies
CLOCK_SAMPLE_S_MAX: Final = 30.0  # age of a sample of a peer's clock
CLOCK_ROUND_TRIP_S_MAX: Final = 10.0  # of the request for the sample
CLOCK_SAVE_S: Final = 15.0  # between two times that are saved for the next start

# -- clients ---------------------------------------------------------------------------------------
PRODUCER_BATCH_BYTES_MAX: Final = 12 * MIB  # the highest batch_bytes_max that a producer may have
CLIENT_WRITE_BYTES_MAX: Final = 4 * MIB  # written, but not accepted by the system
PRODUCE_REQUEST_BYTES_MAX: Final = 32 * MIB  # batches of several partitions in a request
FETCHES_IN_FLIGHT_MAX: Final = 4  # per broker, each for other partitions
FETCHES_OUTSTANDING_MAX: Final = 32  # including those that a seek has made obsolete
PREFETCH_BYTES_MAX: Final = 64 * MIB  # fetched and not yet read by the application, per consumer
PREFETCH_FETCHES_MAX: Final = 8  # the same for one partition, in max_partition_fetch_bytes
WAIT_MS_MAX: Final = 86_400_000 * 365  # that a caller may ask a client to wait
OFFSET_MAX: Final = (1 << 63) - 2  # so that the offset after it fits 63 bits too
ARROW_POLL_BYTES_MAX: Final = 16 * MIB  # decompressed, of batches that one poll_arrow joins
SCAN_SCHEMAS_MAX: Final = 1_000  # whose values one scan decodes
SCAN_FIELDS_MAX: Final = 10_000  # of a schema that become columns, with those in other fields
SQL_TABLE_ROWS_MAX: Final = 10_000  # that `raftlog sql` aligns and prints as a table

assert PRODUCE_UNCOMPRESSED_BYTES_MAX >= 4 * PRODUCE_REQUEST_BYTES_MAX, "a client's fits well"
assert PRODUCE_UNCOMPRESSED_BYTES_MAX >= BATCH_UNCOMPRESSED_BYTES_MAX, "one batch must fit"
assert PRODUCE_REQUEST_BYTES_MAX >= PRODUCER_BATCH_BYTES_MAX, "one batch must fit a request"
assert PRODUCE_REQUEST_BYTES_MAX < FRAME_BYTES_MAX, "a produce request must fit a frame"
