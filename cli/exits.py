"""Exit codes, and the one sentence that goes with a failure.

The code tells a script what kind of thing went wrong, and so whether trying again can help;
docs/cli.md shows the table. ``--json`` turns the sentence into an object on standard error.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from enum import IntEnum
from typing import Final

from tallybook.core.errors import (
    CallerError,
    DiskFailed,
    Fault,
    InvalidArgument,
    InvalidConfig,
    NewerFormat,
    Outcome,
    PeerError,
    StorageError,
    TallybookError,
)


class Exit(IntEnum):
    """Exit codes of every command."""

    OK = 0
    FOUND_WRONG = 1
    USAGE = 2
    REFUSED_TO_START = 3
    CALLER = 4
    PEER = 5
    STORAGE = 6
    DEFECT = 70
    OUTPUT_FAILED = 74
    INTERRUPTED = 130
    BROKEN_PIPE = 141
    TERMINATED = 143


MEANINGS: Final = {
    Exit.OK: "done",
    Exit.FOUND_WRONG: "a check found something wrong (`verify`, `demo`, `cluster`, `trace`, `fsck`, `health`), records "
    "were missing that `stream read` or `stream tail` went on behind, or every bookie of `up` has ended",
    Exit.USAGE: "the command line or a setting cannot be understood, or a value lies outside its domain",
    Exit.REFUSED_TO_START: "a bookie refused to start: its data directory, its port or the metadata do not allow it",
    Exit.CALLER: "the request cannot be met: no such ledger, stream or bookie, closed, ended, fenced, taken by "
    "another writer, wrong password, past the end",
    Exit.PEER: "bookies or the metadata store did not do their part; the same command may succeed later",
    Exit.STORAGE: "stored bytes are damaged or missing, a device refused, or a newer Tallybook has written them",
    Exit.DEFECT: "a defect in Tallybook; also a bookie that stopped at once because it could not keep its promises",
    Exit.OUTPUT_FAILED: "standard output could not be written (a full disk); the command may have taken effect",
    Exit.INTERRUPTED: "ended by Ctrl-C (SIGINT)",
    Exit.BROKEN_PIPE: "the reader of the output has gone",
    Exit.TERMINATED: "ended by SIGTERM",
}
"""What each code means; the table of docs/cli.md."""


class Interrupted(Exception):
    """A signal ended the command. ``code`` is the exit code that says so."""

    def __init__(self, signal_number: int) -> None:
        super().__init__(f"ended by signal {signal_number}")
        self.code = 128 + signal_number


class RefusedToStart(Exception):
    """A bookie could not start. Carries the error that says why; whatever it is, the start did not take effect."""

    def __init__(self, cause: TallybookError) -> None:
        super().__init__(str(cause))
        cause.outcome = Outcome.NOT_DONE
        self.cause = cause


@contextmanager
def reading_only() -> Iterator[None]:
    """For a command that changes nothing: when it fails, no outcome is left to be unknown."""
    try:
        yield
    except TallybookError as error:
        error.outcome = Outcome.NOT_DONE
        raise


def disk_failed(error: OSError) -> DiskFailed:
    """An error of the operating system, in words."""
    where = "" if error.filename is None else f"{error.filename}: "
    return DiskFailed(f"{where}{error.strerror or error}")


def exit_code(error: TallybookError) -> Exit:
    """The code for an error of any command but ``bookie run``."""
    if isinstance(error, InvalidArgument | InvalidConfig):
        return Exit.USAGE
    if isinstance(error, CallerError):
        return Exit.CALLER
    if isinstance(error, PeerError):
        return Exit.PEER
    if isinstance(error, StorageError):
        return Exit.STORAGE
    return Exit.DEFECT


def sentence(error: TallybookError) -> str:
    """What went wrong, whose fault it is, whether a retry helps, and what is not known."""
    whose = {
        Fault.CALLER: "the request is at fault",
        Fault.PEER: "another process is at fault",
        Fault.STORAGE: "the storage is at fault",
        Fault.INTERNAL: "this is a defect in Tallybook",
    }[error.fault]
    retry = "trying again may help" if error.retriable else "trying again will not help"
    unknown = "; whether it took effect is not known" if error.outcome is Outcome.UNKNOWN else ""
    return f"{error.message or type(error).__name__} ({whose}; {retry}{unknown})"


def error_object(error: TallybookError, code: int) -> str:
    """The same for programs, as one line of JSON."""
    return json.dumps(
        {
            "error": {
                "type": type(error).__name__,
                "code": error.wire_code,
                "message": error.message,
                "fault": error.fault.value,
                "retriable": error.retriable,
                "outcome": error.outcome.value,
                "exit_code": int(code),
            }
        }
    )


def refuse_later_formats(found: Sequence[str]) -> None:
    """End a command that has told everything it can, and has met what it cannot read.

    Args:
        found: what there is of a later format, in sentences.

    Raises:
        NewerFormat: there is something.
    """
    if found:
        more = f" ({len(found) - 1} more like this)" if found[1:] else ""
        raise NewerFormat(f"{found[0]}{more}")
