"""Reports: events and verdict of a run, for people."""
