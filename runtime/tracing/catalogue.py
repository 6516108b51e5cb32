"""Catalogue of all spans: name, component, description, attributes and events. Pure.

docs/operate/tracing.md shows this table. Attributes are numbers, addresses, and names from this module or the metadata:
never a payload or a key. Texts are cut to ``MAX_ATTRIBUTE_CHARACTERS``.
"""

from __future__ import annotations

from typing import Final, NamedTuple

from ..metrics.catalogue import MetricInfo, MetricKind

MAX_ATTRIBUTE_CHARACTERS: Final = 256
MAX_ATTRIBUTES: Final = 32
MAX_EVENTS: Final = 64
MAX_LINKS: Final = 32

ADD: Final = "tallybook.add"
READ: Final = "tallybook.read"
REQUEST: Final = "tallybook.request"
ARCHIVE: Final = "tallybook.archive"
SERVE: Final = "bookie.serve"
JOURNAL: Final = "bookie.journal"
JOURNAL_WRITE: Final = "bookie.journal.write"
INDEX: Final = "bookie.index"
ENTRY_LOG: Final = "bookie.entry_log"
OBJECT_READ: Final = "objects.read"
CALL: Final = "gateway.call"

PREFIX: Final = "tallybook."
"""Prefix of attribute names in exported spans."""


class SpanInfo(NamedTuple):
    """One kind of span."""

    name: str
    where: str
    text: str
    attributes: tuple[str, ...] = ()
    events: tuple[str, ...] = ()


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
    SpanInfo(
        OBJECT_READ,
        "client",
        "Ranges read from the object store, including all attempts.",
        ("store", "object", "offset", "ranges", "bytes", "cancelled"),
        ("try failed",),
    ),
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
    SpanInfo(ENTRY_LOG, "bookie", "Batches read from entry logs.", ("batches", "bytes", "cancelled")),
    SpanInfo(
        CALL,
        "gateway",
        "A unary call of a client, or a stream that its client traces.",
        ("method", "peer", "cancelled"),
    ),
)

SPAN_NAMES: Final = {span.name: span for span in SPANS}

_SPANS_TEXT: Final = "Spans by outcome. dropped: the queue was full; failed: the endpoint did not accept them."

TRACE_METRICS: Final = tuple(
    MetricInfo(f"spans_{outcome}", "tallybook_trace_spans_total", MetricKind.COUNTER, _SPANS_TEXT, ("outcome", outcome))
    for outcome in ("sent", "dropped", "failed")
)
