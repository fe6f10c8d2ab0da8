"""Requests: one room per capability, with the operation and the handler of raftlog's protocol.

An operation has plain values in and out; handlers of both protocols call it.
"""
