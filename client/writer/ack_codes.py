"""What the answers of bookies mean to a writer, by their wire codes.

A refusal that is the caller's fault would be the same from every bookie: it ends the writer, or asks for patience where
a retry may help, and never costs a bookie its place in the ensemble. Everything else is the bookie's own trouble.
"""

from __future__ import annotations

from typing import Final

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
    error_class,
    error_classes,
    error_from_wire,
)

CONNECTION_CODES: Final = frozenset(error.wire_code for error in (BookieUnavailable, RequestTimeout))
"""Answers that say the connection failed: the bookie may be back in a moment."""

_OF_THE_BOOKIE: Final = (InvalidBatch, NewerFormat)
"""Caller errors by class that say something of one bookie.

A writer checks that its batch is well-formed before it blames the bookie for ``InvalidBatch``. ``NewerFormat`` is said
by a bookie that is too old for what it has stored.
"""

_CALLER_CODES: Final = range(100, 200)
"""Where the wire codes of caller errors lie, those of a newer Tallybook included."""


def _is_callers(error: type[TallybookError]) -> bool:
    return error.fault is Fault.CALLER and error not in _OF_THE_BOOKIE


PATIENCE_CODES: Final = frozenset(
    error.wire_code
    for error in error_classes()
    if error in (Busy, MetadataUnavailable) or (_is_callers(error) and error.retriable)
)
"""Answers of a bookie that serves and asks for patience; one that meets a ledger first has to look at its metadata."""


def ends_writer(code: int) -> bool:
    """Whether no bookie may be asked again: the ledger is not ours to write, or no bookie would take the batch."""
    error = error_class(code)
    if error is TallybookError:
        return code in _CALLER_CODES
    return _is_callers(error) and not error.retriable


def refusal(bookie: str, code: int, batch_bytes: int) -> TallybookError:
    """What a writer ends with.

    Args:
        bookie: that refuses, with the ledger.
        batch_bytes: of what was refused.
    """
    kind = error_class(code)
    if kind is TallybookError:
        return error_from_wire(code, f"{bookie} refuses a batch for a reason that only a newer client knows")
    why = ""
    if kind is AccessDenied:
        why = ": this client may not write there"
    elif kind is EntryTooLarge:
        why = f" to a batch of {batch_bytes} bytes: lower max_batch_bytes, or raise its journal.max_commit_bytes"
    return kind(f"{bookie} answers {kind.__name__}{why}")
