"""Group coordinator: the broker side of consumer groups."""
