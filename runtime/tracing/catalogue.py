"""Every span there is: its name, where it is made, what it is of, and what is said of it. Pure.

docs/tracing.md shows this table. Attributes are numbers, addresses and names that stand here or in the cluster's own
records: never a payload, never a key, and of a text no more than ``MAX_ATTRIBUTE_CHARACTERS``.
"""

from __future__ import annotations

from typing import Final, NamedTuple

from .metric_catalogue import Kind, MetricInfo

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
"""Before the name of each attribute, where it is shown."""


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
        "One entry, or one piece of a range, whoever gives it.",
        ("ledger_id", "first_entry_id", "cancelled"),
    ),
    SpanInfo(
        REQUEST,
        "client",
        "What one bookie is asked, from the question to the answer. Of a read that takes long there are several.",
        ("request", "peer", "ledger_id", "first_entry_id", "entries", "batch_bytes", "code", "cancelled"),
        ("sent",),
    ),
    SpanInfo(
        ARCHIVE,
        "client",
        "What a read asks of the archive: the index of the object, then its pages, unless they are in memory.",
        ("ledger_id", "first_entry_id", "cancelled"),
    ),
    SpanInfo(
        OBJECT_READ,
        "client",
        "Ranges read from the object store, all tries included.",
        ("store", "object", "offset", "ranges", "bytes", "cancelled"),
        ("try failed",),
    ),
    SpanInfo(
        SERVE,
        "bookie",
        "What a bookie does for one request, from its arrival until the answer is queued.",
        (
            *("request", "bookie_id", "peer", "ledger_id", "first_entry_id", "entries", "batch_bytes"),
            *("code", "cached_batches", "stored_batches", "cancelled"),
        ),
        ("waits", "in the write cache"),
    ),
    SpanInfo(
        JOURNAL,
        "bookie",
        "From the moment when the batch is given to the journal until it is durable.",
    ),
    SpanInfo(
        JOURNAL_WRITE,
        "bookie",
        "The group commit with the batch in it: one durable write of the device, for all that had gathered.",
        ("commit_bytes", "commit_records"),
    ),
    SpanInfo(INDEX, "bookie", "A look into the index for where batches lie.", ("rows", "cancelled")),
    SpanInfo(ENTRY_LOG, "bookie", "Batches read from entry logs.", ("batches", "bytes", "cancelled")),
    SpanInfo(
        CALL,
        "gateway",
        "A call of a client with one answer, or one that is traced by whoever makes it.",
        ("method", "peer", "cancelled"),
    ),
)

SPAN_NAMES: Final = {span.name: span for span in SPANS}

_SPANS_TEXT: Final = "Spans that were made, by what became of them; dropped: more waited to be sent than may."

TRACE_METRICS: Final = tuple(
    MetricInfo(f"spans_{outcome}", "tallybook_trace_spans_total", Kind.COUNTER, _SPANS_TEXT, ("outcome", outcome))
    for outcome in ("sent", "dropped", "failed")
)
