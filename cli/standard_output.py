"""Standard output of a command. Its errors are distinguished from those of the cluster's storage."""

from __future__ import annotations

import io
import os
import sys
from typing import Any, Final

STDOUT: Final = 1


class OutputFailed(Exception):
    """Standard output cannot be written. The command may have taken effect."""


class _Descriptor(io.FileIO):
    """The descriptor of standard output."""

    def write(self, data: Any, /) -> int:
        """Write some of ``data``; see ``write_some``."""
        return write_some(self.fileno(), data)


def write_some(descriptor: int, data: bytes | memoryview) -> int:
    """Write at least one byte of ``data``, and return how many.

    Raises:
        OutputFailed: the write failed, for example because the disk is full.
        BrokenPipeError: nothing reads it any more.
    """
    try:
        return os.write(descriptor, data)
    except BrokenPipeError:
        raise
    except OSError as error:
        raise OutputFailed(f"standard output cannot be written: {error.strerror}") from error


def guard() -> None:
    """Make ``sys.stdout`` raise ``OutputFailed`` on errors, and escape characters that its encoding does not have."""
    buffered = io.BufferedWriter(_Descriptor(STDOUT, "wb", closefd=False))
    sys.stdout = io.TextIOWrapper(
        buffered, sys.stdout.encoding, errors="backslashreplace", line_buffering=sys.stdout.isatty()
    )
