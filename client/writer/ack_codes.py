"""Classifies the wire codes of bookies' answers for a writer.

A caller error would be the same from every bookie: it ends the writer, or is retried, but never gets a bookie replaced.
Every other error is a failure of the bookie.
"""

from __future__ import annotations

from typing import Final

from tallybook.core.error_codes import error_class, error_classes, error_from_wire
from tallybook.core.errors import (
    AccessDenied,
    BookieUnavailable,
    Busy,
    EntryTooLarge,
    Fault,
    InvalidBatch,
    MetadataUnavailable,
    NewerFormat,
    RequestTimeout,
    TallybookError,
)

CONNECTION_CODES: Final = frozenset(error.wire_code for error in (BookieUnavailable, RequestTimeout))
"""Answers that mean that the connection failed: the bookie may come back soon."""

_BOOKIE_CODES: Final = (InvalidBatch, NewerFormat)
"""Caller errors by class that are failures of one bookie.

On ``InvalidBatch`` the writer first checks that its batch is well-formed. ``NewerFormat`` comes from a bookie whose
version is older than its stored data.
"""

_CALLER_CODES: Final = range(100, 200)
"""The range of caller errors' wire codes, including those of newer versions."""


def _is_callers(error: type[TallybookError]) -> bool:
    return error.fault is Fault.CALLER and error not in _BOOKIE_CODES


RETRIED_CODES: Final = frozenset(
    error.wire_code
    for error in error_classes()
    if error in (Busy, MetadataUnavailable) or (_is_callers(error) and error.retriable)
)
"""Answers after which a batch is sent again (MetadataUnavailable: the bookie reads a new ledger's metadata first)."""


def ends_writer(code: int) -> bool:
    """Whether the code ends the writer: it may not write the ledger any more, or no bookie would take the batch."""
    error = error_class(code)
    if error is TallybookError:
        return code in _CALLER_CODES
    return _is_callers(error) and not error.retriable


def refusal(bookie: str, code: int, batch_bytes: int) -> TallybookError:
    """The error that ends a writer.

    Args:
        bookie: the refusing bookie, with the ledger, for the message.
        batch_bytes: size of the refused batch.
    """
    kind = error_class(code)
    if kind is TallybookError:
        return error_from_wire(code, f"{bookie} refuses a batch with error code {code}, which needs a newer client")
    why = ""
    if kind is AccessDenied:
        why = ": this client may not write there"
    elif kind is EntryTooLarge:
        why = f" to a batch of {batch_bytes} bytes: lower max_batch_bytes, or raise its journal.max_commit_bytes"
    return kind(f"{bookie} answers {kind.__name__}{why}")
