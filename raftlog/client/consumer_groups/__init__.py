"""The consumer's side of consumer groups: the coordinator, membership, offsets, commits."""
