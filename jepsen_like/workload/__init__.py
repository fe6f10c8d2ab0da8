"""Workloads: what the clients do, each with the prose of its operations and anomalies."""
