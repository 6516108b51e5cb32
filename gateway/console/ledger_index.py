"""Index of ledgers for sorted and filtered lists, built by each census from the metadata of every ledger."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Mapping, Sequence
from typing import Final, NamedTuple, TypeAlias

from tallybook.core.errors import InvalidArgument
from tallybook.metadata.ledger.model import LedgerMetadata, LedgerState

MAX_INDEXED: Final = 50_000
"""Ledgers in an index: those with the highest ids. Bounds its memory, and how long a sort holds the event loop."""
MAX_NAME_CHARS: Final = 100
"""Length of a name up to which it can be searched."""


class IndexedLedger(NamedTuple):
    """The properties by which ledgers are sorted and filtered."""

    created_at_ms: int
    ledger_id: int
    state: LedgerState
    entries: int
    """0 while it is not closed, as ``size_bytes``."""
    size_bytes: int
    name: str


_SortKey: TypeAlias = Callable[[IndexedLedger], tuple[int, ...]]

SORTS: Final[Mapping[str, tuple[_SortKey, bool]]] = {
    "newest": (lambda each: (each.created_at_ms, each.ledger_id), True),
    "oldest": (lambda each: (each.created_at_ms, each.ledger_id), False),
    "largest": (lambda each: (each.size_bytes, each.ledger_id), True),
    "smallest": (lambda each: (each.size_bytes, each.ledger_id), False),
    "most-entries": (lambda each: (each.entries, each.ledger_id), True),
    "fewest-entries": (lambda each: (each.entries, each.ledger_id), False),
}
"""Sort orders by name: the key, and whether it is reversed."""


class LedgerIndex:
    """The ledgers that one census has found."""

    def __init__(self) -> None:
        self._rows: deque[IndexedLedger] = deque(maxlen=MAX_INDEXED)
        self._sorted: dict[str, Sequence[IndexedLedger]] = {}
        self.total = 0
        """All ledgers that were found, also if they are not indexed."""

    def __len__(self) -> int:
        return len(self._rows)

    def add(self, found: LedgerMetadata) -> None:
        """Add a ledger. They come in ascending order of their ids."""
        closed, name = found.closed, found.custom.get("name", b"")[: 4 * MAX_NAME_CHARS].decode(errors="replace")
        self._rows.append(
            IndexedLedger(
                found.created_at_ms,
                found.ledger_id,
                found.state,
                found.last_entry_id + 1 if closed else 0,
                found.length if closed else 0,
                name[:MAX_NAME_CHARS].casefold(),
            )
        )
        self.total += 1

    def find(self, sort: str, state: str = "", search: str = "") -> Sequence[IndexedLedger]:
        """The ledgers in a state whose name contains ``search`` or whose id begins with it, in a sort order.

        Raises:
            InvalidArgument: unknown sort order or state.
        """
        rows = self._in_order(sort)
        if state:
            try:
                wanted = LedgerState(state)
            except ValueError:
                known = ", ".join(each.value for each in LedgerState)
                raise InvalidArgument(f"unknown state; a ledger is: {known}") from None
            rows = [each for each in rows if each.state is wanted]
        if search:
            text = search.casefold()
            rows = [each for each in rows if text in each.name or str(each.ledger_id).startswith(text)]
        return rows

    def _in_order(self, sort: str) -> Sequence[IndexedLedger]:
        if sort not in SORTS:
            raise InvalidArgument(f"unknown sort order; ledgers are sorted by: {', '.join(SORTS)}")
        found = self._sorted.get(sort)
        if found is None:
            key, descending = SORTS[sort]
            found = self._sorted[sort] = sorted(self._rows, key=key, reverse=descending)
        return found
