"""Cluster mode of a broker: membership, partition leadership and replication."""
