"""Control: facilities of the machine for the harness: namespaces, file systems, limits, clocks."""
