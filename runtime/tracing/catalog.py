"""A line in a catalog of spans, the limits of a span, and the metrics of tracing. Pure.

Each part declares its spans: ``client/spans.py``, ``bookie/spans.py``, ``archive/objects/retries.py``,
``gateway/interceptor.py``; docs/operate/tracing.md shows them all. Attributes are numbers, addresses, and names from
the catalogs or the metadata: never a payload or a key. Texts are cut to ``MAX_ATTRIBUTE_CHARACTERS``.
"""

from __future__ import annotations

from typing import Final, NamedTuple

from ..metrics.catalog import MetricInfo, MetricKind

MAX_ATTRIBUTE_CHARACTERS: Final = 256
MAX_ATTRIBUTES: Final = 32
MAX_EVENTS: Final = 64
MAX_LINKS: Final = 32

PREFIX: Final = "tallybook."
"""Prefix of attribute names in exported spans."""


class SpanInfo(NamedTuple):
    """One kind of span."""

    name: str
    where: str
    text: str
    attributes: tuple[str, ...] = ()
    events: tuple[str, ...] = ()


_SPANS_TEXT: Final = "Spans by outcome. dropped: the queue was full; failed: the endpoint did not accept them."

TRACE_METRICS: Final = tuple(
    MetricInfo(f"spans_{outcome}", "tallybook_trace_spans_total", MetricKind.COUNTER, _SPANS_TEXT, ("outcome", outcome))
    for outcome in ("sent", "dropped", "failed")
)
