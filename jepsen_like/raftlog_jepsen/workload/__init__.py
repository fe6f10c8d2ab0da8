"""Workloads: the operations of clients, each with a description of its operations and anomalies."""
