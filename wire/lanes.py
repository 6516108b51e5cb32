"""The streams between a client and a bookie: three methods of the bookie's gRPC service."""

from enum import StrEnum


class Lane(StrEnum):
    """The kinds of stream between a client and a bookie. Each is one method of the gRPC service."""

    ADD = "Add"
    """Ordinary adds and their acks: bulk."""
    READ = "Read"
    """Reads and tail waits."""
    CONTROL = "Control"
    """Fences, recovery adds, LAC: small, and never behind bulk."""
