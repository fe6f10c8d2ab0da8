"""Transactions: the pure part of their coordinator. ``raftlog.server.transactions`` runs it."""
