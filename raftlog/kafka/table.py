"""Kafka's messages: facts extracted from its public message definitions.

Created by ``python -m tests.kafka.extract``, do not edit; ``schema`` documents the format.
"""

from __future__ import annotations

from typing import Final

# fmt: off
TABLE: Final = """\
request 0 Produce 3-13 9
 transactional_id string null=3-13 default=null
 acks int16
 timeout_ms int32
 topic_data []TopicProduceData
  name string 3-12
  topic_id uuid 13-13
  partition_data []PartitionProduceData
   index int32
   records records null=3-13
response 0 Produce 3-13 9
 responses []TopicProduceResponse
  name string 3-12
  topic_id uuid 13-13
  partition_responses []PartitionProduceResponse
   index int32
   error_code int16
   base_offset int64
   log_append_time_ms int64 default=-1
   log_start_offset int64 5-13 default=-1
   record_errors []BatchIndexAndErrorMessage 8-13
    batch_index int32 8-13
    batch_index_error_message string 8-13 null=8-13 default=null
   error_message string 8-13 null=8-13 default=null
   current_leader LeaderIdAndEpoch 10-13 tag=0:10-13
    leader_id int32 10-13 default=-1
    leader_epoch int32 10-13 default=-1
 throttle_time_ms int32
 node_endpoints []NodeEndpoint 10-13 tag=0:10-13
  node_id int32 10-13
  host string 10-13
  port int32 10-13
  rack string 10-13 null=10-13 default=null
request 1 Fetch 4-18 12
 cluster_id string 12-18 null=12-18 tag=0:12-18 default=null
 replica_id int32 4-14 default=-1
 replica_state ReplicaState 15-18 tag=1:15-18
  replica_id int32 15-18 default=-1
  replica_epoch int64 15-18 default=-1
 max_wait_ms int32
 min_bytes int32
 max_bytes int32 default=0x7fffffff
 isolation_level int8
 session_id int32 7-18
 session_epoch int32 7-18 default=-1
 topics []FetchTopic
  topic string 4-12
  topic_id uuid 13-18
  partitions []FetchPartition
   partition int32
   current_leader_epoch int32 9-18 default=-1
   fetch_offset int64
   last_fetched_epoch int32 12-18 default=-1
   log_start_offset int64 5-18 default=-1
   partition_max_bytes int32
   replica_directory_id uuid 17-18 tag=0:17-18
   high_watermark int64 18-18 tag=1:18-18 default=9223372036854775807
 forgotten_topics_data []ForgottenTopic 7-18
  topic string 7-12
  topic_id uuid 13-18
  partitions []int32 7-18
 rack_id string 11-18
response 1 Fetch 4-18 12
 throttle_time_ms int32
 error_code int16 7-18
 session_id int32 7-18
 responses []FetchableTopicResponse
  topic string 4-12
  topic_id uuid 13-18
  partitions []PartitionData
   partition_index int32
   error_code int16
   high_watermark int64
   last_stable_offset int64 default=-1
   log_start_offset int64 5-18 default=-1
   diverging_epoch EpochEndOffset 12-18 tag=0:12-18
    epoch int32 12-18 default=-1
    end_offset int64 12-18 default=-1
   current_leader LeaderIdAndEpoch 12-18 tag=1:12-18
    leader_id int32 12-18 default=-1
    leader_epoch int32 12-18 default=-1
   snapshot_id SnapshotId 12-18 tag=2:12-18
    end_offset int64 default=-1
    epoch int32 default=-1
   aborted_transactions []AbortedTransaction null=4-18
    producer_id int64
    first_offset int64
   preferred_read_replica int32 11-18 default=-1
   records records null=4-18
 node_endpoints []NodeEndpoint 16-18 tag=0:16-18
  node_id int32 16-18
  host string 16-18
  port int32 16-18
  rack string 16-18 null=16-18 default=null
request 2 ListOffsets 1-11 6
 replica_id int32
 isolation_level int8 2-11
 topics []ListOffsetsTopic
  name string
  partitions []ListOffsetsPartition
   partition_index int32
   current_leader_epoch int32 4-11 default=-1
   timestamp int64
 timeout_ms int32 10-11
response 2 ListOffsets 1-11 6
 throttle_time_ms int32 2-11
 topics []ListOffsetsTopicResponse
  name string
  partitions []ListOffsetsPartitionResponse
   partition_index int32
   error_code int16
   timestamp int64 default=-1
   offset int64 default=-1
   leader_epoch int32 4-11 default=-1
request 3 Metadata 0-13 9
 topics []MetadataRequestTopic null=1-13
  topic_id uuid 10-13
  name string null=10-13
 allow_auto_topic_creation bool 4-13 default=true
 include_cluster_authorized_operations bool 8-10
 include_topic_authorized_operations bool 8-13
response 3 Metadata 0-13 9
 throttle_time_ms int32 3-13
 brokers []MetadataResponseBroker
  node_id int32
  host string
  port int32
  rack string 1-13 null=1-13 default=null
 cluster_id string 2-13 null=2-13 default=null
 controller_id int32 1-13 default=-1
 topics []MetadataResponseTopic
  error_code int16
  name string null=12-13
  topic_id uuid 10-13
  is_internal bool 1-13
  partitions []MetadataResponsePartition
   error_code int16
   partition_index int32
   leader_id int32
   leader_epoch int32 7-13 default=-1
   replica_nodes []int32
   isr_nodes []int32
   offline_replicas []int32 5-13
  topic_authorized_operations int32 8-13 default=-2147483648
 cluster_authorized_operations int32 8-10 default=-2147483648
 error_code int16 13-13
request 8 OffsetCommit 2-10 8
 group_id string
 generation_id_or_member_epoch int32 default=-1
 member_id string
 group_instance_id string 7-10 null=7-10 default=null
 retention_time_ms int64 2-4 default=-1
 topics []OffsetCommitRequestTopic
  name string 2-9
  topic_id uuid 10-10
  partitions []OffsetCommitRequestPartition
   partition_index int32
   committed_offset int64
   committed_leader_epoch int32 6-10 default=-1
   committed_metadata string null=2-10
response 8 OffsetCommit 2-10 8
 throttle_time_ms int32 3-10
 topics []OffsetCommitResponseTopic
  name string 2-9
  topic_id uuid 10-10
  partitions []OffsetCommitResponsePartition
   partition_index int32
   error_code int16
request 9 OffsetFetch 1-10 6
 group_id string 1-7
 topics []OffsetFetchRequestTopic 1-7 null=2-7
  name string 1-7
  partition_indexes []int32 1-7
 groups []OffsetFetchRequestGroup 8-10
  group_id string 8-10
  member_id string 9-10 null=9-10 default=null
  member_epoch int32 9-10 default=-1
  topics []OffsetFetchRequestTopics 8-10 null=8-10
   name string 8-9
   topic_id uuid 10-10
   partition_indexes []int32 8-10
 require_stable bool 7-10
response 9 OffsetFetch 1-10 6
 throttle_time_ms int32 3-10
 topics []OffsetFetchResponseTopic 1-7
  name string 1-7
  partitions []OffsetFetchResponsePartition 1-7
   partition_index int32 1-7
   committed_offset int64 1-7
   committed_leader_epoch int32 5-7 default=-1
   metadata string 1-7 null=1-7
   error_code int16 1-7
 error_code int16 2-7
 groups []OffsetFetchResponseGroup 8-10
  group_id string 8-10
  topics []OffsetFetchResponseTopics 8-10
   name string 8-9
   topic_id uuid 10-10
   partitions []OffsetFetchResponsePartitions 8-10
    partition_index int32 8-10
    committed_offset int64 8-10
    committed_leader_epoch int32 8-10 default=-1
    metadata string 8-10 null=8-10
    error_code int16 8-10
  error_code int16 8-10
request 10 FindCoordinator 0-6 3
 key string 0-3
 key_type int8 1-6
 coordinator_keys []string 4-6
response 10 FindCoordinator 0-6 3
 throttle_time_ms int32 1-6
 error_code int16 0-3
 error_message string 1-3 null=1-3
 node_id int32 0-3
 host string 0-3
 port int32 0-3
 coordinators []Coordinator 4-6
  key string 4-6
  node_id int32 4-6
  host string 4-6
  port int32 4-6
  error_code int16 4-6
  error_message string 4-6 null=4-6
request 11 JoinGroup 0-9 6
 group_id string
 session_timeout_ms int32
 rebalance_timeout_ms int32 1-9 default=-1
 member_id string
 group_instance_id string 5-9 null=5-9 default=null
 protocol_type string
 protocols []JoinGroupRequestProtocol
  name string
  metadata bytes
 reason string 8-9 null=8-9 default=null
response 11 JoinGroup 0-9 6
 throttle_time_ms int32 2-9
 error_code int16
 generation_id int32 default=-1
 protocol_type string 7-9 null=7-9 default=null
 protocol_name string null=7-9
 leader string
 skip_assignment bool 9-9
 member_id string
 members []JoinGroupResponseMember
  member_id string
  group_instance_id string 5-9 null=5-9 default=null
  metadata bytes
request 12 Heartbeat 0-4 4
 group_id string
 generation_id int32
 member_id string
 group_instance_id string 3-4 null=3-4 default=null
response 12 Heartbeat 0-4 4
 throttle_time_ms int32 1-4
 error_code int16
request 13 LeaveGroup 0-5 4
 group_id string
 member_id string 0-2
 members []MemberIdentity 3-5
  member_id string 3-5
  group_instance_id string 3-5 null=3-5 default=null
  reason string 5-5 null=5-5 default=null
response 13 LeaveGroup 0-5 4
 throttle_time_ms int32 1-5
 error_code int16
 members []MemberResponse 3-5
  member_id string 3-5
  group_instance_id string 3-5 null=3-5
  error_code int16 3-5
request 14 SyncGroup 0-5 4
 group_id string
 generation_id int32
 member_id string
 group_instance_id string 3-5 null=3-5 default=null
 protocol_type string 5-5 null=5-5 default=null
 protocol_name string 5-5 null=5-5 default=null
 assignments []SyncGroupRequestAssignment
  member_id string
  assignment bytes
response 14 SyncGroup 0-5 4
 throttle_time_ms int32 1-5
 error_code int16
 protocol_type string 5-5 null=5-5 default=null
 protocol_name string 5-5 null=5-5 default=null
 assignment bytes
request 15 DescribeGroups 0-6 5
 groups []string
 include_authorized_operations bool 3-6
response 15 DescribeGroups 0-6 5
 throttle_time_ms int32 1-6
 groups []DescribedGroup
  error_code int16
  error_message string 6-6 null=6-6 default=null
  group_id string
  group_state string
  protocol_type string
  protocol_data string
  members []DescribedGroupMember
   member_id string
   group_instance_id string 4-6 null=4-6 default=null
   client_id string
   client_host string
   member_metadata bytes
   member_assignment bytes
  authorized_operations int32 3-6 default=-2147483648
request 16 ListGroups 0-5 3
 states_filter []string 4-5
 types_filter []string 5-5
response 16 ListGroups 0-5 3
 throttle_time_ms int32 1-5
 error_code int16
 groups []ListedGroup
  group_id string
  protocol_type string
  group_state string 4-5
  group_type string 5-5
request 17 SaslHandshake 0-1 99
 mechanism string
response 17 SaslHandshake 0-1 99
 error_code int16
 mechanisms []string
request 18 ApiVersions 0-5 3
 client_software_name string 3-5
 client_software_version string 3-5
 cluster_id string 5-5 null=5-5 default=null
 node_id int32 5-5 default=-1
response 18 ApiVersions 0-5 3
 error_code int16
 api_keys []ApiVersion
  api_key int16
  min_version int16
  max_version int16
 throttle_time_ms int32 1-5
 supported_features []SupportedFeatureKey 3-5 tag=0:3-5
  name string 3-5
  min_version int16 3-5
  max_version int16 3-5
 finalized_features_epoch int64 3-5 tag=1:3-5 default=-1
 finalized_features []FinalizedFeatureKey 3-5 tag=2:3-5
  name string 3-5
  max_version_level int16 3-5
  min_version_level int16 3-5
 zk_migration_ready bool 3-5 tag=3:3-5
request 19 CreateTopics 2-7 5
 topics []CreatableTopic
  name string
  num_partitions int32
  replication_factor int16
  assignments []CreatableReplicaAssignment
   partition_index int32
   broker_ids []int32
  configs []CreatableTopicConfig
   name string
   value string null=2-7
 timeout_ms int32 default=60000
 validate_only bool
response 19 CreateTopics 2-7 5
 throttle_time_ms int32
 topics []CreatableTopicResult
  name string
  topic_id uuid 7-7
  error_code int16
  error_message string null=2-7
  topic_config_error_code int16 5-7 tag=0:5-7
  num_partitions int32 5-7 default=-1
  replication_factor int16 5-7 default=-1
  configs []CreatableTopicConfigs 5-7 null=5-7
   name string 5-7
   value string 5-7 null=5-7
   read_only bool 5-7
   config_source int8 5-7 default=-1
   is_sensitive bool 5-7
request 20 DeleteTopics 1-6 4
 topics []DeleteTopicState 6-6
  name string 6-6 null=6-6 default=null
  topic_id uuid 6-6
 topic_names []string 1-5
 timeout_ms int32
response 20 DeleteTopics 1-6 4
 throttle_time_ms int32
 responses []DeletableTopicResult
  name string null=6-6
  topic_id uuid 6-6
  error_code int16
  error_message string 5-6 null=5-6 default=null
request 21 DeleteRecords 0-2 2
 topics []DeleteRecordsTopic
  name string
  partitions []DeleteRecordsPartition
   partition_index int32
   offset int64
 timeout_ms int32
response 21 DeleteRecords 0-2 2
 throttle_time_ms int32
 topics []DeleteRecordsTopicResult
  name string
  partitions []DeleteRecordsPartitionResult
   partition_index int32
   low_watermark int64
   error_code int16
request 22 InitProducerId 0-5 2
 transactional_id string null=0-5
 transaction_timeout_ms int32
 producer_id int64 3-5 default=-1
 producer_epoch int16 3-5 default=-1
response 22 InitProducerId 0-5 2
 throttle_time_ms int32
 error_code int16
 producer_id int64 default=-1
 producer_epoch int16
request 23 OffsetForLeaderEpoch 2-4 4
 replica_id int32 3-4 default=-2
 topics []OffsetForLeaderTopic
  topic string
  partitions []OffsetForLeaderPartition
   partition int32
   current_leader_epoch int32 default=-1
   leader_epoch int32
response 23 OffsetForLeaderEpoch 2-4 4
 throttle_time_ms int32
 topics []OffsetForLeaderTopicResult
  topic string
  partitions []EpochEndOffset
   error_code int16
   partition int32
   leader_epoch int32 default=-1
   end_offset int64 default=-1
request 24 AddPartitionsToTxn 0-5 3
 transactions []AddPartitionsToTxnTransaction 4-5
  transactional_id string 4-5
  producer_id int64 4-5
  producer_epoch int16 4-5
  verify_only bool 4-5
  topics []AddPartitionsToTxnTopic 4-5
   name string
   partitions []int32
 v3_and_below_transactional_id string 0-3
 v3_and_below_producer_id int64 0-3
 v3_and_below_producer_epoch int16 0-3
 v3_and_below_topics []AddPartitionsToTxnTopic 0-3
response 24 AddPartitionsToTxn 0-5 3
 throttle_time_ms int32
 error_code int16 4-5
 results_by_transaction []AddPartitionsToTxnResult 4-5
  transactional_id string 4-5
  topic_results []AddPartitionsToTxnTopicResult 4-5
   name string
   results_by_partition []AddPartitionsToTxnPartitionResult
    partition_index int32
    partition_error_code int16
 results_by_topic_v3_and_below []AddPartitionsToTxnTopicResult 0-3
request 25 AddOffsetsToTxn 0-4 3
 transactional_id string
 producer_id int64
 producer_epoch int16
 group_id string
response 25 AddOffsetsToTxn 0-4 3
 throttle_time_ms int32
 error_code int16
request 26 EndTxn 0-5 3
 transactional_id string
 producer_id int64
 producer_epoch int16
 committed bool
response 26 EndTxn 0-5 3
 throttle_time_ms int32
 error_code int16
 producer_id int64 5-5 default=-1
 producer_epoch int16 5-5 default=-1
request 27 WriteTxnMarkers 1-2 1
 markers []WritableTxnMarker
  producer_id int64
  producer_epoch int16
  transaction_result bool
  topics []WritableTxnMarkerTopic
   name string
   partition_indexes []int32
  coordinator_epoch int32
  transaction_version int8 2-2
response 27 WriteTxnMarkers 1-2 1
 markers []WritableTxnMarkerResult
  producer_id int64
  topics []WritableTxnMarkerTopicResult
   name string
   partitions []WritableTxnMarkerPartitionResult
    partition_index int32
    error_code int16
request 28 TxnOffsetCommit 0-6 3
 transactional_id string
 group_id string
 producer_id int64
 producer_epoch int16
 generation_id_or_member_epoch int32 3-6 default=-1
 member_id string 3-6
 group_instance_id string 3-6 null=3-6 default=null
 topics []TxnOffsetCommitRequestTopic
  name string 0-5
  topic_id uuid 6-6
  partitions []TxnOffsetCommitRequestPartition
   partition_index int32
   committed_offset int64
   committed_leader_epoch int32 2-6 default=-1
   committed_metadata string null=0-6
response 28 TxnOffsetCommit 0-6 3
 throttle_time_ms int32
 topics []TxnOffsetCommitResponseTopic
  name string 0-5
  topic_id uuid 6-6
  partitions []TxnOffsetCommitResponsePartition
   partition_index int32
   error_code int16
request 29 DescribeAcls 1-3 2
 resource_type_filter int8
 resource_name_filter string null=1-3
 pattern_type_filter int8 default=3
 principal_filter string null=1-3
 host_filter string null=1-3
 operation int8
 permission_type int8
response 29 DescribeAcls 1-3 2
 throttle_time_ms int32
 error_code int16
 error_message string null=1-3
 resources []DescribeAclsResource
  resource_type int8
  resource_name string
  pattern_type int8 default=3
  acls []AclDescription
   principal string
   host string
   operation int8
   permission_type int8
request 30 CreateAcls 1-3 2
 creations []AclCreation
  resource_type int8
  resource_name string
  resource_pattern_type int8 default=3
  principal string
  host string
  operation int8
  permission_type int8
response 30 CreateAcls 1-3 2
 throttle_time_ms int32
 results []AclCreationResult
  error_code int16
  error_message string null=1-3
request 31 DeleteAcls 1-3 2
 filters []DeleteAclsFilter
  resource_type_filter int8
  resource_name_filter string null=1-3
  pattern_type_filter int8 default=3
  principal_filter string null=1-3
  host_filter string null=1-3
  operation int8
  permission_type int8
response 31 DeleteAcls 1-3 2
 throttle_time_ms int32
 filter_results []DeleteAclsFilterResult
  error_code int16
  error_message string null=1-3
  matching_acls []DeleteAclsMatchingAcl
   error_code int16
   error_message string null=1-3
   resource_type int8
   resource_name string
   pattern_type int8 default=3
   principal string
   host string
   operation int8
   permission_type int8
request 32 DescribeConfigs 1-4 4
 resources []DescribeConfigsResource
  resource_type int8
  resource_name string
  configuration_keys []string null=1-4
 include_synonyms bool
 include_documentation bool 3-4
response 32 DescribeConfigs 1-4 4
 throttle_time_ms int32
 results []DescribeConfigsResult
  error_code int16
  error_message string null=1-4
  resource_type int8
  resource_name string
  configs []DescribeConfigsResourceResult
   name string
   value string null=1-4
   read_only bool
   config_source int8 default=-1
   is_sensitive bool
   synonyms []DescribeConfigsSynonym
    name string
    value string null=1-4
    source int8
   config_type int8 3-4
   documentation string 3-4 null=1-4
request 33 AlterConfigs 0-2 2
 resources []AlterConfigsResource
  resource_type int8
  resource_name string
  configs []AlterableConfig
   name string
   value string null=0-2
 validate_only bool
response 33 AlterConfigs 0-2 2
 throttle_time_ms int32
 responses []AlterConfigsResourceResponse
  error_code int16
  error_message string null=0-2
  resource_type int8
  resource_name string
request 34 AlterReplicaLogDirs 1-2 2
 dirs []AlterReplicaLogDir
  path string
  topics []AlterReplicaLogDirTopic
   name string
   partitions []int32
response 34 AlterReplicaLogDirs 1-2 2
 throttle_time_ms int32
 results []AlterReplicaLogDirTopicResult
  topic_name string
  partitions []AlterReplicaLogDirPartitionResult
   partition_index int32
   error_code int16
request 35 DescribeLogDirs 1-4 2
 topics []DescribableLogDirTopic null=1-4
  topic string
  partitions []int32
response 35 DescribeLogDirs 1-4 2
 throttle_time_ms int32
 error_code int16 3-4
 results []DescribeLogDirsResult
  error_code int16
  log_dir string
  topics []DescribeLogDirsTopic
   name string
   partitions []DescribeLogDirsPartition
    partition_index int32
    partition_size int64
    offset_lag int64
    is_future_key bool
  total_bytes int64 4-4 default=-1
  usable_bytes int64 4-4 default=-1
request 36 SaslAuthenticate 0-2 2
 auth_bytes bytes
response 36 SaslAuthenticate 0-2 2
 error_code int16
 error_message string null=0-2
 auth_bytes bytes
 session_lifetime_ms int64 1-2
request 37 CreatePartitions 0-3 2
 topics []CreatePartitionsTopic
  name string
  count int32
  assignments []CreatePartitionsAssignment null=0-3
   broker_ids []int32
 timeout_ms int32
 validate_only bool
response 37 CreatePartitions 0-3 2
 throttle_time_ms int32
 results []CreatePartitionsTopicResult
  name string
  error_code int16
  error_message string null=0-3 default=null
request 38 CreateDelegationToken 1-3 2
 owner_principal_type string 3-3 null=3-3
 owner_principal_name string 3-3 null=3-3
 renewers []CreatableRenewers
  principal_type string
  principal_name string
 max_lifetime_ms int64
response 38 CreateDelegationToken 1-3 2
 error_code int16
 principal_type string
 principal_name string
 token_requester_principal_type string 3-3
 token_requester_principal_name string 3-3
 issue_timestamp_ms int64
 expiry_timestamp_ms int64
 max_timestamp_ms int64
 token_id string
 hmac bytes
 throttle_time_ms int32
request 39 RenewDelegationToken 1-2 2
 hmac bytes
 renew_period_ms int64
response 39 RenewDelegationToken 1-2 2
 error_code int16
 expiry_timestamp_ms int64
 throttle_time_ms int32
request 40 ExpireDelegationToken 1-2 2
 hmac bytes
 expiry_time_period_ms int64
response 40 ExpireDelegationToken 1-2 2
 error_code int16
 expiry_timestamp_ms int64
 throttle_time_ms int32
request 41 DescribeDelegationToken 1-3 2
 owners []DescribeDelegationTokenOwner null=1-3
  principal_type string
  principal_name string
response 41 DescribeDelegationToken 1-3 2
 error_code int16
 tokens []DescribedDelegationToken
  principal_type string
  principal_name string
  token_requester_principal_type string 3-3
  token_requester_principal_name string 3-3
  issue_timestamp int64
  expiry_timestamp int64
  max_timestamp int64
  token_id string
  hmac bytes
  renewers []DescribedDelegationTokenRenewer
   principal_type string
   principal_name string
 throttle_time_ms int32
request 42 DeleteGroups 0-2 2
 groups_names []string
response 42 DeleteGroups 0-2 2
 throttle_time_ms int32
 results []DeletableGroupResult
  group_id string
  error_code int16
request 43 ElectLeaders 0-2 2
 election_type int8 1-2
 topic_partitions []TopicPartitions null=0-2
  topic string
  partitions []int32
 timeout_ms int32 default=60000
response 43 ElectLeaders 0-2 2
 throttle_time_ms int32
 error_code int16 1-2
 replica_election_results []ReplicaElectionResult
  topic string
  partition_result []PartitionResult
   partition_id int32
   error_code int16
   error_message string null=0-2
request 44 IncrementalAlterConfigs 0-1 1
 resources []AlterConfigsResource
  resource_type int8
  resource_name string
  configs []AlterableConfig
   name string
   config_operation int8
   value string null=0-1
 validate_only bool
response 44 IncrementalAlterConfigs 0-1 1
 throttle_time_ms int32
 responses []AlterConfigsResourceResponse
  error_code int16
  error_message string null=0-1
  resource_type int8
  resource_name string
request 45 AlterPartitionReassignments 0-1 0
 timeout_ms int32 default=60000
 allow_replication_factor_change bool 1-1 default=true
 topics []ReassignableTopic
  name string
  partitions []ReassignablePartition
   partition_index int32
   replicas []int32 null=0-1 default=null
response 45 AlterPartitionReassignments 0-1 0
 throttle_time_ms int32
 allow_replication_factor_change bool 1-1 default=true
 error_code int16
 error_message string null=0-1
 responses []ReassignableTopicResponse
  name string
  partitions []ReassignablePartitionResponse
   partition_index int32
   error_code int16
   error_message string null=0-1
request 46 ListPartitionReassignments 0-0 0
 timeout_ms int32 default=60000
 topics []ListPartitionReassignmentsTopics null=0-0 default=null
  name string
  partition_indexes []int32
response 46 ListPartitionReassignments 0-0 0
 throttle_time_ms int32
 error_code int16
 error_message string null=0-0
 topics []OngoingTopicReassignment
  name string
  partitions []OngoingPartitionReassignment
   partition_index int32
   replicas []int32
   adding_replicas []int32
   removing_replicas []int32
request 47 OffsetDelete 0-0 99
 group_id string
 topics []OffsetDeleteRequestTopic
  name string
  partitions []OffsetDeleteRequestPartition
   partition_index int32
response 47 OffsetDelete 0-0 99
 error_code int16
 throttle_time_ms int32
 topics []OffsetDeleteResponseTopic
  name string
  partitions []OffsetDeleteResponsePartition
   partition_index int32
   error_code int16
request 48 DescribeClientQuotas 0-1 1
 components []ComponentData
  entity_type string
  match_type int8
  match string null=0-1
 strict bool
response 48 DescribeClientQuotas 0-1 1
 throttle_time_ms int32
 error_code int16
 error_message string null=0-1
 entries []EntryData null=0-1
  entity []EntityData
   entity_type string
   entity_name string null=0-1
  values []ValueData
   key string
   value float64
request 49 AlterClientQuotas 0-1 1
 entries []EntryData
  entity []EntityData
   entity_type string
   entity_name string null=0-1
  ops []OpData
   key string
   value float64
   remove bool
 validate_only bool
response 49 AlterClientQuotas 0-1 1
 throttle_time_ms int32
 entries []EntryData
  error_code int16
  error_message string null=0-1
  entity []EntityData
   entity_type string
   entity_name string null=0-1
request 50 DescribeUserScramCredentials 0-0 0
 users []UserName null=0-0
  name string
response 50 DescribeUserScramCredentials 0-0 0
 throttle_time_ms int32
 error_code int16
 error_message string null=0-0
 results []DescribeUserScramCredentialsResult
  user string
  error_code int16
  error_message string null=0-0
  credential_infos []CredentialInfo
   mechanism int8
   iterations int32
request 51 AlterUserScramCredentials 0-0 0
 deletions []ScramCredentialDeletion
  name string
  mechanism int8
 upsertions []ScramCredentialUpsertion
  name string
  mechanism int8
  iterations int32
  salt bytes
  salted_password bytes
response 51 AlterUserScramCredentials 0-0 0
 throttle_time_ms int32
 results []AlterUserScramCredentialsResult
  user string
  error_code int16
  error_message string null=0-0
request 55 DescribeQuorum 0-2 0
 topics []TopicData
  topic_name string
  partitions []PartitionData
   partition_index int32
response 55 DescribeQuorum 0-2 0
 error_code int16
 error_message string 2-2 null=2-2
 topics []TopicData
  topic_name string
  partitions []PartitionData
   partition_index int32
   error_code int16
   error_message string 2-2 null=2-2
   leader_id int32
   leader_epoch int32
   high_watermark int64
   current_voters []ReplicaState
    replica_id int32
    replica_directory_id uuid 2-2
    log_end_offset int64
    last_fetch_timestamp int64 1-2 default=-1
    last_caught_up_timestamp int64 1-2 default=-1
   observers []ReplicaState
 nodes []Node 2-2
  node_id int32 2-2
  listeners []Listener 2-2
   name string 2-2
   host string 2-2
   port uint16 2-2
request 57 UpdateFeatures 0-2 0
 timeout_ms int32 default=60000
 feature_updates []FeatureUpdateKey
  feature string
  max_version_level int16
  allow_downgrade bool 0-0
  upgrade_type int8 1-2 default=1
 validate_only bool 1-2
response 57 UpdateFeatures 0-2 0
 throttle_time_ms int32
 error_code int16
 error_message string null=0-2
 results []UpdatableFeatureResult 0-1
  feature string
  error_code int16
  error_message string null=0-2
request 60 DescribeCluster 0-2 0
 include_cluster_authorized_operations bool
 endpoint_type int8 1-2 default=1
 include_fenced_brokers bool 2-2
response 60 DescribeCluster 0-2 0
 throttle_time_ms int32
 error_code int16
 error_message string null=0-2 default=null
 endpoint_type int8 1-2 default=1
 cluster_id string
 controller_id int32 default=-1
 brokers []DescribeClusterBroker
  broker_id int32
  host string
  port int32
  rack string null=0-2 default=null
  is_fenced bool 2-2
 cluster_authorized_operations int32 default=-2147483648
request 61 DescribeProducers 0-0 0
 topics []TopicRequest
  name string
  partition_indexes []int32
response 61 DescribeProducers 0-0 0
 throttle_time_ms int32
 topics []TopicResponse
  name string
  partitions []PartitionResponse
   partition_index int32
   error_code int16
   error_message string null=0-0 default=null
   active_producers []ProducerState
    producer_id int64
    producer_epoch int32
    last_sequence int32 default=-1
    last_timestamp int64 default=-1
    coordinator_epoch int32
    current_txn_start_offset int64 default=-1
request 65 DescribeTransactions 0-0 0
 transactional_ids []string
response 65 DescribeTransactions 0-0 0
 throttle_time_ms int32
 transaction_states []TransactionState
  error_code int16
  transactional_id string
  transaction_state string
  transaction_timeout_ms int32
  transaction_start_time_ms int64
  producer_id int64
  producer_epoch int16
  topics []TopicData
   topic string
   partitions []int32
request 66 ListTransactions 0-2 0
 state_filters []string
 producer_id_filters []int64
 duration_filter int64 1-2 default=-1
 transactional_id_pattern string 2-2 null=2-2 default=null
response 66 ListTransactions 0-2 0
 throttle_time_ms int32
 error_code int16
 unknown_state_filters []string
 transaction_states []TransactionState
  transactional_id string
  producer_id int64
  transaction_state string
request 68 ConsumerGroupHeartbeat 0-1 0
 group_id string
 member_id string
 member_epoch int32
 instance_id string null=0-1 default=null
 rack_id string null=0-1 default=null
 rebalance_timeout_ms int32 default=-1
 subscribed_topic_names []string null=0-1 default=null
 subscribed_topic_regex string 1-1 null=1-1 default=null
 server_assignor string null=0-1 default=null
 topic_partitions []TopicPartitions null=0-1 default=null
  topic_id uuid
  partitions []int32
response 68 ConsumerGroupHeartbeat 0-1 0
 throttle_time_ms int32
 error_code int16
 error_message string null=0-1 default=null
 member_id string null=0-1 default=null
 member_epoch int32
 heartbeat_interval_ms int32
 assignment Assignment null=0-1 default=null
  topic_partitions []TopicPartitions
   topic_id uuid
   partitions []int32
request 69 ConsumerGroupDescribe 0-1 0
 group_ids []string
 include_authorized_operations bool
response 69 ConsumerGroupDescribe 0-1 0
 throttle_time_ms int32
 groups []DescribedGroup
  error_code int16
  error_message string null=0-1 default=null
  group_id string
  group_state string
  group_epoch int32
  assignment_epoch int32
  assignor_name string
  members []Member
   member_id string
   instance_id string null=0-1 default=null
   rack_id string null=0-1 default=null
   member_epoch int32
   client_id string
   client_host string
   subscribed_topic_names []string
   subscribed_topic_regex string null=0-1 default=null
   assignment Assignment
    topic_partitions []TopicPartitions
     topic_id uuid
     topic_name string
     partitions []int32
   target_assignment Assignment
   member_type int8 1-1 default=-1
  authorized_operations int32 default=-2147483648
request 71 GetTelemetrySubscriptions 0-0 0
 client_instance_id uuid
response 71 GetTelemetrySubscriptions 0-0 0
 throttle_time_ms int32
 error_code int16
 client_instance_id uuid
 subscription_id int32
 accepted_compression_types []int8
 push_interval_ms int32
 telemetry_max_bytes int32
 delta_temporality bool
 requested_metrics []string
request 72 PushTelemetry 0-0 0
 client_instance_id uuid
 subscription_id int32
 terminating bool
 compression_type int8
 metrics bytes
response 72 PushTelemetry 0-0 0
 throttle_time_ms int32
 error_code int16
request 74 ListConfigResources 0-1 0
 resource_types []int8 1-1
response 74 ListConfigResources 0-1 0
 throttle_time_ms int32
 error_code int16
 config_resources []ConfigResource
  resource_name string
  resource_type int8 1-1 default=16
request 75 DescribeTopicPartitions 0-0 0
 topics []TopicRequest
  name string
 response_partition_limit int32 default=2000
 cursor Cursor null=0-0 default=null
  topic_name string
  partition_index int32
response 75 DescribeTopicPartitions 0-0 0
 throttle_time_ms int32
 topics []DescribeTopicPartitionsResponseTopic
  error_code int16
  name string null=0-0
  topic_id uuid
  is_internal bool
  partitions []DescribeTopicPartitionsResponsePartition
   error_code int16
   partition_index int32
   leader_id int32
   leader_epoch int32 default=-1
   replica_nodes []int32
   isr_nodes []int32
   eligible_leader_replicas []int32 null=0-0 default=null
   last_known_elr []int32 null=0-0 default=null
   offline_replicas []int32
  topic_authorized_operations int32 default=-2147483648
 next_cursor Cursor null=0-0 default=null
  topic_name string
  partition_index int32
"""
