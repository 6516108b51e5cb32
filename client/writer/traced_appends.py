"""Tracing of appends: a span for each traced batch, from its first append to its confirmation.

A batch is traced if its first append is in a trace, or by sampling. A later append from another trace adds a link to
the span. With tracing off, plain ``Appends`` is used, at no cost.
"""

from __future__ import annotations

from typing import Any

from tallybook.core.buffers import Buffer
from tallybook.core.errors import TallybookError
from tallybook.runtime.tracing.port import Span, Tracer

from ..spans import ADD
from .appends import AppendGroup, Appends, PendingAppend


class TracedAppends(Appends):
    """``Appends`` with a span for each traced batch.

    Args:
        tracer: begins spans.
        spans: gets those of unconfirmed batches, by first entry, in order.
        rest: arguments of ``Appends``.
    """

    def __init__(self, *, tracer: Tracer, spans: dict[int, Span], **rest: Any) -> None:
        super().__init__(**rest)
        self._tracer = tracer
        self._spans = spans
        self._decided_until = -1
        """First entry of the last batch for which sampling was decided."""
        self._around = ""
        """The trace of the previous append."""

    def gather(self, payload: Buffer) -> PendingAppend:
        """Give the entry the next id; see ``Appends``."""
        pending = super().gather(payload)
        first, around = pending.group.first_entry_id, self._tracer.surrounding()
        if first > self._decided_until:
            self._decided_until = first
            self._begin(first)
        elif around and around != self._around:
            span = self._spans.get(first)
            if span is None:
                self._begin(first)
            else:
                span.link(around)
        self._around = around
        return pending

    def _begin(self, first: int) -> None:
        span = self._tracer.root(ADD, ledger_id=self._machine.ledger_id, first_entry_id=first)
        if span is not None:
            self._spans[first] = span

    def _seal(self, group: AppendGroup) -> None:
        span = self._spans.get(group.first_entry_id)
        if span is not None:
            payload_bytes, entries = group.payload_bytes, group.entry_count
            span.set(last_entry_id=group.last_entry_id, entries=entries, payload_bytes=payload_bytes)
            span.event("sealed")
        super()._seal(group)

    def confirmed(self, last_entry_id: int) -> None:
        """Complete every group up to ``last_entry_id``."""
        while self._spans and (first := next(iter(self._spans))) <= last_entry_id:
            span = self._spans.pop(first)
            span.event("confirmed")
            span.end()
        super().confirmed(last_entry_id)

    def died(self, error: TallybookError) -> None:
        """Fail all unconfirmed appends."""
        for span in self._spans.values():
            span.end(error)
        self._spans.clear()
        super().died(error)
