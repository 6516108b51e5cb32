"""Appends of which some are traced: a span for each batch that is, from its first append to its confirmation.

Whether a batch is traced is decided when its first entry comes, by the trace that surrounds that append or by chance.
A later append that comes out of another trace puts a link into the span, so both traces know of the batch. Where nobody
wants traces, ``Appends`` is what there is, and pays for none of this.
"""

from __future__ import annotations

from typing import Any

from tallybook.core.batch import Buffer
from tallybook.core.errors import TallybookError
from tallybook.runtime.span_catalogue import ADD
from tallybook.runtime.tracing import Span, Tracer

from .appends import Appends
from .pending import AppendGroup, PendingAppend


class TracedAppends(Appends):
    """Gathers, seals and settles, and tells a tracer of it.

    Args:
        tracer: begins spans.
    """

    def __init__(self, *needed: Any, tracer: Tracer) -> None:
        super().__init__(*needed)
        self._tracer = tracer
        self._decided_until = -1
        """First entry of the batch that was decided about last."""
        self._around = ""
        """The trace that surrounded the append before."""
        self.spans: dict[int, Span] = {}
        """Of batches that are not confirmed, by their first entry, in order."""

    def gather(self, payload: Buffer) -> PendingAppend:
        """Give the entry the next id and send it off; see ``Appends``."""
        pending = super().gather(payload)
        first, around = pending.group.first_entry_id, self._tracer.surrounding()
        if first > self._decided_until:
            self._decided_until = first
            self._begin(first)
        elif around and around != self._around:
            span = self.spans.get(first)
            if span is None:
                self._begin(first)
            else:
                span.link(around)
        self._around = around
        return pending

    def _begin(self, first: int) -> None:
        span = self._tracer.root(ADD, ledger_id=self._machine.ledger_id, first_entry_id=first)
        if span is not None:
            self.spans[first] = span

    def _seal(self, group: AppendGroup) -> None:
        span = self.spans.get(group.first_entry_id)
        if span is not None:
            payload_bytes, entries = group.payload_bytes, group.entry_count
            span.set(last_entry_id=group.last_entry_id, entries=entries, payload_bytes=payload_bytes)
            span.event("sealed")
        super()._seal(group)

    def confirmed(self, last_entry_id: int) -> None:
        """Settle every group up to ``last_entry_id``."""
        while self.spans and (first := next(iter(self.spans))) <= last_entry_id:
            span = self.spans.pop(first)
            span.event("confirmed")
            span.end()
        super().confirmed(last_entry_id)

    def died(self, error: TallybookError) -> None:
        """Fail whatever is not confirmed."""
        for span in self.spans.values():
            span.end(error)
        self.spans.clear()
        super().died(error)
