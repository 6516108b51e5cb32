"""Catalog of the spans of a client. docs/operate/tracing.md shows it."""

from __future__ import annotations

from typing import Final

from tallybook.runtime.tracing.catalog import SpanInfo

ADD: Final = "tallybook.add"
READ: Final = "tallybook.read"
REQUEST: Final = "tallybook.request"
ARCHIVE: Final = "tallybook.archive"

SPANS: Final = (
    SpanInfo(
        ADD,
        "client",
        "The entries of one batch, from the first append to the confirmation.",
        ("ledger_id", "first_entry_id", "last_entry_id", "entries", "payload_bytes"),
        ("sealed", "confirmed"),
    ),
    SpanInfo(
        READ,
        "client",
        "One entry, or one piece of a range, from any source.",
        ("ledger_id", "first_entry_id", "cancelled"),
    ),
    SpanInfo(
        REQUEST,
        "client",
        "A request to one bookie, from sending it to its answer. A slow read has several.",
        ("request", "peer", "ledger_id", "first_entry_id", "entries", "batch_bytes", "code", "cancelled"),
        ("sent",),
    ),
    SpanInfo(
        ARCHIVE,
        "client",
        "The part of a read in the archive: the index of the object, then its pages, unless they are in memory.",
        ("ledger_id", "first_entry_id", "cancelled"),
    ),
)
