"""What the handlers of both protocols do: plain values in and out, no messages of a protocol."""
