"""How far a stream over ledgers has come: pure. Ledgers close in any order, and ids are handed out in blocks.

    {"v": 1, "seen": "0-41,43", "within": [44, 1000], "ledgers": [[43, 0, 99], [44, 0, 999]]}

``seen`` are the ledgers that need not be looked at again, ``within`` the one that was cut off, with the entry that is
next, and ``ledgers`` what the micro-batch that ends here reads: a batch that is run again reads the same, whatever has
closed since.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, Self

from tallybook.archive.entry_range import EntryRange
from tallybook.core.errors import InvalidArgument

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

    seen: IdRanges = NO_IDS
    within: tuple[int, int] | None = None
    batch: tuple[EntryRange, ...] = ()

    @classmethod
    def parse(cls, found: dict[str, Any]) -> Self:
        """Understand what Spark has kept.

        Raises:
            InvalidArgument: it is not ours: most likely the checkpoint belongs to another source.
        """
        if found.get("v") != FORMAT:
            raise InvalidArgument(f"the checkpoint has an offset of another kind: {found!r}")
        try:
            within = found["within"]
            return cls(
                IdRanges.parse(found["seen"]),
                (int(within[0]), int(within[1])) if within else None,
                tuple(EntryRange(*map(int, each)) for each in found["ledgers"]),
            )
        except (AttributeError, LookupError, TypeError, ValueError) as error:
            raise InvalidArgument(f"the checkpoint has an offset that cannot be understood: {found!r}") from error

    def json(self) -> dict[str, Any]:
        """For Spark, which compares offsets as text: the same offset gives the same."""
        return {
            "v": FORMAT,
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
        for ledger in sorted(closed, key=lambda each: (each.ledger_id != (self.within or (-1,))[0], each.ledger_id)):
            first = within[1] if within and within[0] == ledger.ledger_id else 0
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
                    within = (ledger.ledger_id, first + taken)
                    break
            done.append(ledger.ledger_id)
            within = None if within and within[0] == ledger.ledger_id else within
        if not batch and not done:
            return self
        return StreamOffset(self.seen | IdRanges.of(done), within, tuple(batch))
