"""Bytes as they are passed: entries, batches, and what is written to files and sockets."""

from __future__ import annotations

from typing import TypeAlias

Buffer: TypeAlias = bytes | bytearray | memoryview


ReceivedMessage: TypeAlias = bytes | bytearray
"""A message of a stream, as received. A large one is a bytearray, which stays as it is."""


def check_buffer(value: object, what: str) -> None:
    """Check that an entry or a record is bytes.

    Raises:
        TypeError: it is not.
    """
    if not isinstance(value, bytes | bytearray | memoryview):
        raise TypeError(f"{what} is bytes, not {type(value).__name__}")
