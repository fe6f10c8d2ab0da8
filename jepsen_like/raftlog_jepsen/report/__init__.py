"""Reports: events and verdict of a run, as HTML and text."""
