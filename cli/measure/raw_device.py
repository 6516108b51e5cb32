"""Measures durable writes of one size to a device, one after the other, as the upper bound for a journal.

The writes are of the same kind as the journal's: ``O_DIRECT|O_DSYNC`` to allocated blocks, so that the file system's
journal is not involved.
"""

from __future__ import annotations

import mmap
import os
import time
from pathlib import Path
from typing import Final, Self

from tallybook.core.errors import DiskFailed
from tallybook.core.limits import MIB
from tallybook.runtime.rng import SeededRng

FILE_BYTES: Final = 64 * MIB
"""The writes reuse a file of this size as a ring, as the journal does."""

_NS_PER_S: Final = 1_000_000_000


class RawDevice:
    """A file for direct writes. Use it in ``with``: it is closed, but not deleted.

    Raises:
        DiskFailed: the file system does not support direct writes, or is full.
    """

    def __init__(self, path: Path) -> None:
        self._buffer = mmap.mmap(-1, MIB)
        self._buffer[:] = SeededRng(1).token(MIB)
        self._offset = 0
        flags = os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | getattr(os, "O_DIRECT", 0) | getattr(os, "O_DSYNC", 0)
        try:
            self._descriptor = os.open(path, flags, 0o600)
            for offset in range(0, FILE_BYTES, MIB):
                os.pwrite(self._descriptor, self._buffer, offset)
        except OSError as error:
            raise DiskFailed(f"{path} does not take direct writes: {error.strerror}") from error

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        os.close(self._descriptor)
        self._buffer.close()

    def bytes_per_second(self, write_bytes: int, seconds: float) -> float:
        """Write for about ``seconds``, blocking the caller; returns bytes per second."""
        began = time.monotonic_ns()
        end = began + int(seconds * _NS_PER_S)
        written = 0
        with memoryview(self._buffer)[:write_bytes] as data:
            while (now := time.monotonic_ns()) < end:
                if self._offset + write_bytes > FILE_BYTES:
                    self._offset = 0
                written += os.pwrite(self._descriptor, data, self._offset)
                self._offset += write_bytes
        return written * _NS_PER_S / (now - began)
