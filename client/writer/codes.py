"""What the answers of bookies mean to a writer, by their wire codes."""

from __future__ import annotations

from typing import Final

from tallybook.core.errors import (
    AccessDenied,
    BookieUnavailable,
    Busy,
    Conflict,
    LedgerClosed,
    LedgerFenced,
    MetadataUnavailable,
    NoSuchLedger,
    RequestTimeout,
    Unauthorized,
)

FATAL_CODES: Final = frozenset(
    error.wire_code for error in (LedgerFenced, LedgerClosed, NoSuchLedger, Unauthorized, AccessDenied, Conflict)
)
"""Answers after which no bookie may be asked again: the ledger is not ours to write."""

CONNECTION_CODES: Final = frozenset(error.wire_code for error in (BookieUnavailable, RequestTimeout))
"""Answers that say the connection failed: the bookie may be back in a moment."""

PATIENCE_CODES: Final = frozenset(error.wire_code for error in (Busy, MetadataUnavailable))
"""Answers of a bookie that serves and asks for patience; one that meets a ledger first has to look at its metadata."""
