"""Exit codes, and the error message of a failed command.

The code tells a script which kind of error happened, and so whether a retry can help; docs/reference/cli/README.md has
the table. With ``--json`` the message is an object on standard error.
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
    EnsembleTooLarge,
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
    Exit.FOUND_WRONG: "a check found a problem (`verify`, `demo`, `cluster`, `trace`, `fsck`, `health`), `stream read` "
    "or `stream tail` skipped missing records, a question such as that of `rm` was not answered with yes, or every "
    "bookie of `up` has ended",
    Exit.USAGE: "the command line or a setting is invalid, or a value is out of range",
    Exit.REFUSED_TO_START: "a server refused to start: its data directory, its port or the metadata do not allow it",
    Exit.CALLER: "the request cannot be met: no such ledger, stream or bookie, fewer bookies than the ensemble has "
    "members, closed, sealed, fenced, taken by another writer, wrong password, past the end",
    Exit.PEER: "bookies or the metadata store failed or did not answer; the same command may succeed later",
    Exit.STORAGE: "stored bytes are damaged or missing, a device failed, or a newer Tallybook has written them",
    Exit.DEFECT: "a defect in Tallybook; also a bookie that stopped at once because it could not guarantee durability",
    Exit.OUTPUT_FAILED: "standard output could not be written (a full disk); the command may have taken effect",
    Exit.INTERRUPTED: "ended by Ctrl-C (SIGINT)",
    Exit.BROKEN_PIPE: "the reader of the output has exited",
    Exit.TERMINATED: "ended by SIGTERM",
}
"""The meaning of each code, for the table in docs/reference/cli/README.md."""


class Interrupted(Exception):
    """A signal ended the command. ``code`` is the exit code."""

    def __init__(self, signal_number: int) -> None:
        super().__init__(f"ended by signal {signal_number}")
        self.code = 128 + signal_number


class RefusedToStart(Exception):
    """A server could not start, because of the error ``cause``. The outcome is always "not done"."""

    def __init__(self, cause: TallybookError) -> None:
        super().__init__(str(cause))
        cause.outcome = Outcome.NOT_DONE
        self.cause = cause


@contextmanager
def reading_only() -> Iterator[None]:
    """For a command that changes nothing: the outcome of its errors is "not done", never unknown."""
    try:
        yield
    except TallybookError as error:
        error.outcome = Outcome.NOT_DONE
        raise


def disk_failed(error: OSError) -> DiskFailed:
    """An OSError as an error of Tallybook."""
    where = "" if error.filename is None else f"{error.filename}: "
    return DiskFailed(f"{where}{error.strerror or error}")


def exit_code(error: TallybookError) -> Exit:
    """The exit code for an error, unless a server failed to start."""
    if isinstance(error, InvalidArgument | InvalidConfig):
        return Exit.USAGE
    if isinstance(error, CallerError | EnsembleTooLarge):
        return Exit.CALLER
    if isinstance(error, PeerError):
        return Exit.PEER
    if isinstance(error, StorageError):
        return Exit.STORAGE
    return Exit.DEFECT


def sentence(error: TallybookError) -> str:
    """The message of an error, with hints: a defect, whether a retry may help, whether the outcome is unknown."""
    hints = ["this is a defect in Tallybook"] if error.fault is Fault.INTERNAL else []
    hints += ["a retry may help"] if error.retriable and error.fault is not Fault.CALLER else []
    hints += ["it is not known whether the command took effect"] if error.outcome is Outcome.UNKNOWN else []
    return (error.message or type(error).__name__) + (f" ({'; '.join(hints)})" if hints else "")


def error_object(error: TallybookError, code: int) -> str:
    """The error as one line of JSON."""
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
    """Fail a command that has printed what it can read, and has found data of a later format.

    Args:
        found: what has a later format, as sentences.

    Raises:
        NewerFormat: ``found`` is not empty.
    """
    if found:
        more = f" ({len(found) - 1} more like this)" if found[1:] else ""
        raise NewerFormat(f"{found[0]}{more}")
