"""The schema registry, without I/O: state, formats, the HTTP interface, values with schema IDs."""
