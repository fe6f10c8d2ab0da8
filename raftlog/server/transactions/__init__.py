"""Transactions on a broker: their coordinator, and the markers that it sends to leaders."""
