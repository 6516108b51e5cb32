"""Offset of a streaming query over ledgers. Pure. Ledgers close in any order, and ids are allocated in blocks.

    {"v": 1, "cluster": "5f0c", "seen": "0-41,43", "within": [44, 1000, 4999], "ledgers": [[43, 0, 99], [44, 0, 999]]}

``seen``: ledgers read completely. ``within``: the ledger that the last micro-batch read partially, its next entry and
its last entry. ``ledgers``: what the micro-batch that ends at this offset reads, so that a repeated batch reads the
same although other ledgers have closed since.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, Self

from tallybook.core.errors import InvalidArgument
from tallybook.core.ranges import LedgerEntryRange
from tallybook.metadata.records.format import check_format
from tallybook.metadata.records.json_errors import DECODE_ERRORS

from ..query.id_ranges import NO_IDS, IdRanges

FORMAT = 1


@dataclass(frozen=True, slots=True)
class ClosedLedger:
    """A closed ledger. ``last`` is -1 if it has no entries."""

    ledger_id: int
    last: int
    payload_bytes: int


@dataclass(frozen=True, slots=True)
class BatchLimit:
    """Size limit of one micro-batch."""

    entries: int
    payload_bytes: int


@dataclass(frozen=True, slots=True)
class StreamOffset:
    """An offset of a streaming query over ledgers."""

    cluster_id: str
    seen: IdRanges = NO_IDS
    within: LedgerEntryRange | None = None
    batch: tuple[LedgerEntryRange, ...] = ()

    @classmethod
    def parse(cls, found: dict[str, Any]) -> Self:
        """Parse an offset from Spark's checkpoint.

        Raises:
            InvalidArgument: it is not a valid offset: the checkpoint probably belongs to another source.
            NewerFormat: a newer Tallybook has written the checkpoint.
        """
        check_format("an offset of the checkpoint", found, FORMAT, key="v")
        if found.get("v") != FORMAT:
            raise InvalidArgument(f"the checkpoint has an offset of another kind: {found!r}")
        try:
            within = found["within"]
            return cls(
                str(found["cluster"]),
                IdRanges.parse(found["seen"]),
                LedgerEntryRange(*map(int, within)) if within else None,
                tuple(LedgerEntryRange(*map(int, each)) for each in found["ledgers"]),
            )
        except (*DECODE_ERRORS, InvalidArgument) as error:
            raise InvalidArgument(f"the checkpoint has an offset that cannot be decoded: {found!r}") from error

    def json(self) -> dict[str, Any]:
        """JSON for Spark. Deterministic: Spark compares offsets as text."""
        return {
            "v": FORMAT,
            "cluster": self.cluster_id,
            "seen": str(self.seen),
            "within": list(self.within) if self.within else [],
            "ledgers": [list(each) for each in self.batch],
        }

    def wants(self, ledger_id: int) -> bool:
        """Whether a ledger may have unread entries."""
        return ledger_id not in self.seen

    def advanced(self, closed: Iterable[ClosedLedger], limit: BatchLimit | None) -> StreamOffset:
        """The offset after the next micro-batch; ``self`` if there is nothing to read.

        Args:
            closed: closed ledgers for which ``wants`` is true.
            limit: size of the batch, at least one entry; ``None``: unlimited.
        """
        entries = limit.entries if limit else None
        size = limit.payload_bytes if limit else None
        batch: list[LedgerEntryRange] = []
        done, within = [], self.within
        for ledger in self._in_order(closed):
            first = within.first if within and within.ledger_id == ledger.ledger_id else 0
            if first <= ledger.last:
                if (entries is not None and entries <= 0) or (size is not None and size <= 0):
                    break
                average = max(1, ledger.payload_bytes // (ledger.last + 1))
                taken = ledger.last - first + 1
                if entries is not None:
                    taken = min(taken, entries)
                if size is not None:
                    taken = min(taken, max(1, size // average))
                batch.append(LedgerEntryRange(ledger.ledger_id, first, first + taken - 1))
                entries = None if entries is None else entries - taken
                size = None if size is None else size - taken * average
                if first + taken <= ledger.last:
                    within = LedgerEntryRange(ledger.ledger_id, first + taken, ledger.last)
                    break
            done.append(ledger.ledger_id)
            within = None if within and within.ledger_id == ledger.ledger_id else within
        if not batch and not done:
            return self
        return StreamOffset(self.cluster_id, self.seen | IdRanges.of(done), within, tuple(batch))

    def lag(self, closed: Iterable[ClosedLedger]) -> dict[str, int]:
        """Unread part of closed ledgers: ledgers, entries and approximate payload bytes."""
        ledgers = entries = payload_bytes = 0
        for ledger in closed:
            begun = self.within is not None and self.within.ledger_id == ledger.ledger_id
            left = ledger.last + 1 - (self.within.first if begun and self.within else 0)
            if left > 0 and self.wants(ledger.ledger_id):
                ledgers += 1
                entries += left
                payload_bytes += ledger.payload_bytes * left // (ledger.last + 1)
        return {"ledgers": ledgers, "entries": entries, "bytes": payload_bytes}

    def _in_order(self, closed: Iterable[ClosedLedger]) -> list[ClosedLedger]:
        """The ledgers by id, the partially read one first, also if it was deleted: its rest becomes a gap."""
        begun = self.within
        found = sorted(closed, key=lambda each: each.ledger_id)
        if begun is None:
            return found
        rest = next((each for each in found if each.ledger_id == begun.ledger_id), None)
        return [rest or ClosedLedger(begun.ledger_id, begun.last, 0), *(each for each in found if each is not rest)]
