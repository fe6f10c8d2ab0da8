"""Client side of consumer groups: coordinator, membership, heartbeats, offsets, commits."""
