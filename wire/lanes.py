"""The streams between a client and a bookie: three methods of the bookie's gRPC service."""

from enum import StrEnum


class Lane(StrEnum):
    """A kind of stream."""

    ADD = "Add"
    """Adds of writers, and their acks."""
    READ = "Read"
    """Reads and long polls."""
    CONTROL = "Control"
    """Fences, recovery, LACs, repair and inspection. They never wait behind adds and reads."""
