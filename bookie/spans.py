"""Catalog of the spans of a bookie. docs/operate/tracing.md shows it."""

from __future__ import annotations

from typing import Final

from tallybook.runtime.tracing.catalog import SpanInfo

SERVE: Final = "bookie.serve"
JOURNAL: Final = "bookie.journal"
JOURNAL_WRITE: Final = "bookie.journal.write"
INDEX: Final = "bookie.index"
ENTRY_LOG: Final = "bookie.entry_log"

SPANS: Final = (
    SpanInfo(
        SERVE,
        "bookie",
        "The work of a bookie for one request, from its arrival until the answer is queued.",
        (
            *("request", "bookie_id", "peer", "ledger_id", "first_entry_id", "entries", "batch_bytes"),
            *("code", "cached_batches", "stored_batches", "cancelled"),
        ),
        ("waits", "in the write cache"),
    ),
    SpanInfo(
        JOURNAL,
        "bookie",
        "From handing the batch to the journal until it is durable.",
    ),
    SpanInfo(
        JOURNAL_WRITE,
        "bookie",
        "The group commit that contains the batch: one durable write for all batches that had gathered.",
        ("commit_bytes", "commit_records"),
    ),
    SpanInfo(INDEX, "bookie", "A lookup of the positions of batches in the index.", ("rows", "cancelled")),
    SpanInfo(
        ENTRY_LOG, "bookie", "Batches, or an entry of one, read from entry logs.", ("batches", "bytes", "cancelled")
    ),
)
