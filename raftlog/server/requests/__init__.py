"""Work of the handlers of both protocols: plain values in and out, no messages of a protocol."""
