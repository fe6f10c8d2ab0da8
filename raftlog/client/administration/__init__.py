"""Administration by a client: topics, clusters, groups and access rules."""
