"""How far a stream over ledgers has come: pure. Ledgers close in any order, and ids are handed out in blocks.

    {"v": 1, "cluster": "5f0c", "seen": "0-41,43", "within": [44, 1000, 4999], "ledgers": [[43, 0, 99], [44, 0, 999]]}

``seen`` are the ledgers that need not be looked at again, ``within`` the one that was cut off, with the entry that is
next and its last one, and ``ledgers`` what the micro-batch that ends here reads: a batch that is run again reads the
same, whatever has closed since.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, Self

from tallybook.archive.entry_range import EntryRange
from tallybook.core.errors import InvalidArgument
from tallybook.metadata.record_format import check_format
from tallybook.metadata.record_json import NOT_UNDERSTOOD

from .id_ranges import NO_IDS, IdRanges

FORMAT = 1


@dataclass(frozen=True, slots=True)
class Closed:
    """A ledger that has an end. ``last`` is -1 if it has no entries."""

    ledger_id: int
    last: int
    payload_bytes: int


@dataclass(frozen=True, slots=True)
class Admission:
    """What one micro-batch may take."""

    entries: int
    payload_bytes: int


@dataclass(frozen=True, slots=True)
class StreamOffset:
    """One offset."""

    cluster_id: str
    seen: IdRanges = NO_IDS
    within: EntryRange | None = None
    batch: tuple[EntryRange, ...] = ()

    @classmethod
    def parse(cls, found: dict[str, Any]) -> Self:
        """Understand what Spark has kept.

        Raises:
            InvalidArgument: it is not ours: most likely the checkpoint belongs to another source.
            NewerFormat: a newer Tallybook has gone on with the checkpoint.
        """
        check_format("an offset of the checkpoint", found, FORMAT, key="v")
        if found.get("v") != FORMAT:
            raise InvalidArgument(f"the checkpoint has an offset of another kind: {found!r}")
        try:
            within = found["within"]
            return cls(
                str(found["cluster"]),
                IdRanges.parse(found["seen"]),
                EntryRange(*map(int, within)) if within else None,
                tuple(EntryRange(*map(int, each)) for each in found["ledgers"]),
            )
        except (*NOT_UNDERSTOOD, InvalidArgument) as error:
            raise InvalidArgument(f"the checkpoint has an offset that cannot be understood: {found!r}") from error

    def json(self) -> dict[str, Any]:
        """For Spark, which compares offsets as text: the same offset gives the same."""
        return {
            "v": FORMAT,
            "cluster": self.cluster_id,
            "seen": str(self.seen),
            "within": list(self.within) if self.within else [],
            "ledgers": [list(each) for each in self.batch],
        }

    def wants(self, ledger_id: int) -> bool:
        """Whether a ledger may have entries that were not read."""
        return ledger_id not in self.seen

    def advanced(self, closed: Iterable[Closed], limit: Admission | None) -> StreamOffset:
        """The offset after one more micro-batch; this one, if there is nothing to read.

        Args:
            closed: ledgers that have ended, and that ``wants``.
            limit: what the batch may take, at least one entry; ``None``: everything.
        """
        entries = limit.entries if limit else None
        size = limit.payload_bytes if limit else None
        batch: list[EntryRange] = []
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
                batch.append(EntryRange(ledger.ledger_id, first, first + taken - 1))
                entries = None if entries is None else entries - taken
                size = None if size is None else size - taken * average
                if first + taken <= ledger.last:
                    within = EntryRange(ledger.ledger_id, first + taken, ledger.last)
                    break
            done.append(ledger.ledger_id)
            within = None if within and within.ledger_id == ledger.ledger_id else within
        if not batch and not done:
            return self
        return StreamOffset(self.cluster_id, self.seen | IdRanges.of(done), within, tuple(batch))

    def lag(self, closed: Iterable[Closed]) -> dict[str, int]:
        """What of closed ledgers comes after this offset: ledgers, entries and, about, bytes of payload."""
        ledgers = entries = payload_bytes = 0
        for ledger in closed:
            begun = self.within is not None and self.within.ledger_id == ledger.ledger_id
            left = ledger.last + 1 - (self.within.first if begun and self.within else 0)
            if left > 0 and self.wants(ledger.ledger_id):
                ledgers += 1
                entries += left
                payload_bytes += ledger.payload_bytes * left // (ledger.last + 1)
        return {"ledgers": ledgers, "entries": entries, "bytes": payload_bytes}

    def _in_order(self, closed: Iterable[Closed]) -> list[Closed]:
        """The ledger that was cut off first, also if it has been deleted meanwhile: its rest is missing then."""
        begun = self.within
        found = sorted(closed, key=lambda each: each.ledger_id)
        if begun is None:
            return found
        rest = next((each for each in found if each.ledger_id == begun.ledger_id), None)
        return [rest or Closed(begun.ledger_id, begun.last, 0), *(each for each in found if each is not rest)]
