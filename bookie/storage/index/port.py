"""The index port: where each batch lies, and what is known of each ledger.

One row for each batch, and one opaque state for each ledger. Two drivers: ``RocksIndex`` on
a real disk, ``MemoryIndex`` in simulation; one contract suite holds for both.

Changes are *pending* until ``sync``. After a crash the index holds everything up to the last
sync, and of the changes since then those before some point: never a later one without the
earlier ones, never half of one *write batch*. An ``apply`` of up to ``WRITE_BATCH_ROWS`` rows,
states and drops together is one write batch; a larger one is cut into several, in order.

ABSENT is a promise, so a method that answers "nothing" has really looked. What cannot be
told, because a row is damaged or the disk refuses, raises ``EntryUnknown``, and the message
names the index and the row. Only a *survey* goes on behind it: it says what it passed over.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Final, NamedTuple, Protocol

from .index_figures import TableFigures
from .location import IndexRow
from .told import LedgersTold, RowKey, Told

WRITE_BATCH_ROWS: Final = 1_000
"""Most rows, states and drops together that become visible, and durable, as one.

RocksDB's Python binding holds the interpreter while it writes: this bounds for how long.
"""

MAX_FIND_ROWS: Final = 1_000
"""Most rows that one ``find_range`` returns."""


class CacheBytes(NamedTuple):
    """How full a cache is."""

    held: int
    most: int


class Index(Protocol):
    """Rows and states. All ids are valid; ``first <= last``."""

    @property
    def cache_bytes(self) -> CacheBytes:
        """What is kept in memory for those who ask."""

    @property
    def figures(self) -> TableFigures:
        """What its tables are like, as of the last sync."""

    async def find(self, ledger_id: int, entry_id: int) -> IndexRow | None:
        """The row of the batch that holds the entry, or ``None`` where none does.

        Raises:
            EntryUnknown: it cannot be told.
        """

    async def find_range(self, ledger_id: int, first: int, last: int, limit: int) -> list[IndexRow]:
        """The rows of batches with an entry in ``first .. last``, in order, the first ``limit`` of them.

        Fewer than ``limit`` (at most ``MAX_FIND_ROWS``) means that there are no more.

        Raises:
            EntryUnknown: one of these rows cannot be told; ``find`` may still answer for single entries.
        """

    async def known_among(self, rows: Sequence[IndexRow]) -> list[IndexRow]:
        """Those of ``rows``, at most ``WRITE_BATCH_ROWS``, that the index has exactly so.

        No search: it costs the same whatever is, or was, beside them.

        Raises:
            EntryUnknown: what it has in the place of one of them cannot be told.
        """

    async def rows_after(self, ledger_id: int, first_entry_id: int, limit: int) -> list[IndexRow]:
        """The rows behind this one, of all ledgers, in order, the first ``limit`` of them; from -1 and -1, all.

        Raises:
            EntryUnknown: one of these rows cannot be told.
        """

    async def last_entry(self, ledger_id: int) -> int:
        """The highest entry id in a row of the ledger, ``NO_ENTRY`` if it has none.

        Raises:
            EntryUnknown: it cannot be told.
        """

    async def apply(
        self,
        rows: Sequence[IndexRow],
        states: Mapping[int, bytes],
        *,
        drop_ledgers: Sequence[int] = (),
        drop_rows: Sequence[int] = (),
        drop_keys: Sequence[RowKey] = (),
        makes_room: bool = False,
    ) -> None:
        """Forget all of ``drop_ledgers``, the rows of ``drop_rows``, and single rows; put ``rows``, then ``states``.

        Visible at once, pending until ``sync``. A row replaces the one with the same ledger and
        first entry id. The caller has synced the entry logs that the rows point into.

        Args:
            drop_keys: of rows that may be damaged.
            makes_room: room comes back for it, so it may use some of what other changes must leave free.

        Raises:
            DiskFull: nothing is lost, and it may be tried again when there is room.
            DiskFailed: the index takes no more changes.
        """

    async def sync(self) -> None:
        """Make everything applied durable.

        Raises:
            DiskFull: it is not durable; the sync may be tried again when there is room.
            DiskFailed: nothing may be concluded about what was pending; the index takes no more changes.
        """

    async def load_state(self, ledger_id: int) -> bytes | None:
        """The state of the ledger, or ``None`` where it has none.

        Raises:
            EntryUnknown: it cannot be told.
        """

    async def ledger_ids(self, after: int, limit: int) -> list[int]:
        """Ids above ``after`` that have a state or a row, ascending, the first ``limit`` of them.

        Raises:
            EntryUnknown: it cannot be told.
        """

    async def ledgers_with_rows(self, after: int, limit: int) -> list[int]:
        """Ids above ``after`` that have a row, ascending, the first ``limit`` of them.

        Raises:
            EntryUnknown: it cannot be told.
        """

    async def survey(self, ledger_id: int, first: int, last: int, limit: int) -> Told:
        """``find_range`` that goes on behind what cannot be told. A damaged row counts among the first ``limit``.

        Raises:
            EntryUnknown: the index is not there to be asked.
        """

    async def survey_from(self, start: RowKey, limit: int) -> Told:
        """``rows_after`` from a key on, that one included, and on behind what cannot be told.

        Raises:
            EntryUnknown: the index is not there to be asked.
        """

    async def survey_ledgers(self, after: int, limit: int) -> LedgersTold:
        """``ledgers_with_rows`` that goes on behind what cannot be told.

        Raises:
            EntryUnknown: the index is not there to be asked.
        """

    async def compact(self, first_ledger: int, last_ledger: int) -> None:
        """Give back the room of what was dropped or replaced of these ledgers. May take long.

        No answer changes, and reads and changes go on beside it; a crash in the middle, and whoever
        is cancelled here leaves it half done.

        Raises:
            DiskFull: there is too little room to write anew what stays; it may be tried again.
            DiskFailed, DamagedFile: it came to no end. Whether the index still takes changes, the next one tells.
        """

    async def close(self) -> None:
        """Let go of the files. What is pending may be lost or kept."""


class WriteBatch(NamedTuple):
    """What becomes visible as one."""

    drop_ledgers: Sequence[int]
    drop_rows: Sequence[int]
    drop_keys: Sequence[RowKey]
    rows: Sequence[IndexRow]
    states: Mapping[int, bytes]


def write_batches(
    rows: Sequence[IndexRow],
    states: Mapping[int, bytes],
    drop_ledgers: Sequence[int],
    drop_rows: Sequence[int],
    drop_keys: Sequence[RowKey],
) -> Iterator[WriteBatch]:
    """Cut an ``apply`` into write batches, in the order that it promises."""
    if len(rows) + len(states) + len(drop_ledgers) + len(drop_rows) + len(drop_keys) <= WRITE_BATCH_ROWS:
        yield WriteBatch(drop_ledgers, drop_rows, drop_keys, rows, states)
        return
    for start in range(0, len(drop_ledgers), WRITE_BATCH_ROWS):
        yield WriteBatch(drop_ledgers[start : start + WRITE_BATCH_ROWS], (), (), (), {})
    for start in range(0, len(drop_rows), WRITE_BATCH_ROWS):
        yield WriteBatch((), drop_rows[start : start + WRITE_BATCH_ROWS], (), (), {})
    for start in range(0, len(drop_keys), WRITE_BATCH_ROWS):
        yield WriteBatch((), (), drop_keys[start : start + WRITE_BATCH_ROWS], (), {})
    for start in range(0, len(rows), WRITE_BATCH_ROWS):
        yield WriteBatch((), (), (), rows[start : start + WRITE_BATCH_ROWS], {})
    ledger_ids = list(states)
    for start in range(0, len(ledger_ids), WRITE_BATCH_ROWS):
        yield WriteBatch((), (), (), (), {each: states[each] for each in ledger_ids[start : start + WRITE_BATCH_ROWS]})
