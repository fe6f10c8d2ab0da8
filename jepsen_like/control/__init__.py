"""Control: what the machine can do for the harness: name spaces, file systems, limits, clocks."""
