"""The index port: the location of each batch, and the state of each ledger.

One row for each batch, and one opaque state for each ledger. Two drivers: ``RocksIndex`` on a real disk,
``MemoryIndex`` in simulation; one contract suite holds for both.

Changes are *pending* until ``sync``. After a crash the index holds everything up to the last sync, and of the later
changes a prefix: never a later one without the earlier ones, never half of one *write batch*. An ``apply`` of up to
``WRITE_BATCH_ROWS`` rows, states and drops together is one write batch; a larger one is split into several, in order.

ABSENT is a promise, so a method that finds nothing has really searched. If a row is damaged or the disk refuses to read
it, it raises ``EntryUnknown``; the message names the index and the row. Only a *survey* continues, and lists the
unreadable ranges.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Final, NamedTuple, Protocol

from tallybook.runtime.metrics.part_metrics import PartMetrics

from ..location import IndexRow
from .rocksdb_stats import TableFigures
from .survey import LedgerSurvey, RangeSurvey, RowKey

WRITE_BATCH_ROWS: Final = 1_000
"""Maximum of rows, states and drops together that become visible, and durable, atomically.

RocksDB's Python binding holds the GIL while it writes: this limits for how long.
"""

MAX_FIND_ROWS: Final = 1_000
"""Maximum number of rows that one ``find_range`` returns."""


class CacheBytes(NamedTuple):
    """Fill level of a cache."""

    used: int
    capacity: int


class Index(Protocol):
    """Rows and states. All ids are valid; ``first <= last``."""

    @property
    def cache_bytes(self) -> CacheBytes:
        """Fill level of the cache."""

    @property
    def figures(self) -> TableFigures:
        """Numbers about its tables, as of the last sync."""

    async def find(self, ledger_id: int, entry_id: int) -> IndexRow | None:
        """The row of the batch that holds the entry, or ``None`` if there is none.

        Raises:
            EntryUnknown: the index cannot be read there.
        """

    async def find_range(self, ledger_id: int, first: int, last: int, limit: int) -> list[IndexRow]:
        """The rows of batches with an entry in ``first .. last``, in order, the first ``limit`` of them.

        Fewer than ``limit`` (at most ``MAX_FIND_ROWS``) means that there are no more.

        Raises:
            EntryUnknown: one of these rows cannot be read; ``find`` may still answer for single entries.
        """

    async def known_among(self, rows: Sequence[IndexRow]) -> list[IndexRow]:
        """Return the members of ``rows``, at most ``WRITE_BATCH_ROWS``, that the index has unchanged.

        A lookup by key, not a search: deleted rows nearby do not slow it down.

        Raises:
            EntryUnknown: the index cannot be read at one of them.
        """

    async def rows_after(self, ledger_id: int, first_entry_id: int, limit: int) -> list[IndexRow]:
        """The rows after this one, of all ledgers, in order, the first ``limit`` of them; from -1 and -1, all.

        Raises:
            EntryUnknown: one of these rows cannot be read.
        """

    async def last_entry(self, ledger_id: int) -> int:
        """The highest entry id in a row of the ledger, ``NO_ENTRY`` if it has none.

        Raises:
            EntryUnknown: the index cannot be read there.
        """

    async def apply(
        self,
        rows: Sequence[IndexRow],
        states: Mapping[int, bytes],
        *,
        drop_ledgers: Sequence[int] = (),
        drop_rows: Sequence[int] = (),
        drop_keys: Sequence[RowKey] = (),
        frees_space: bool = False,
    ) -> None:
        """Drop all of ``drop_ledgers``, the rows of ``drop_rows``, and single rows; then put ``rows`` and ``states``.

        Visible at once, pending until ``sync``. A row replaces the one with the same ledger and first entry id. The
        caller has synced the entry logs that the rows point into.

        Args:
            drop_keys: keys of rows that may be damaged.
            frees_space: the change lets space be freed, so it may use some of what other changes must leave free.

        Raises:
            DiskFull: nothing is lost; may be retried when there is space.
            DiskFailed: the index takes no more changes.
        """

    async def sync(self) -> None:
        """Make everything applied durable.

        Raises:
            DiskFull: it is not durable; may be retried when there is space.
            DiskFailed: the state of pending changes is unknown; the index takes no more changes.
        """

    async def load_state(self, ledger_id: int) -> bytes | None:
        """The state of the ledger, or ``None`` if it has none.

        Raises:
            EntryUnknown: the index cannot be read there.
        """

    async def ledger_ids(self, after: int, limit: int) -> list[int]:
        """Ids above ``after`` that have a state or a row, ascending, the first ``limit`` of them.

        Raises:
            EntryUnknown: the index cannot be read there.
        """

    async def ledgers_with_rows(self, after: int, limit: int) -> list[int]:
        """Ids above ``after`` that have a row, ascending, the first ``limit`` of them.

        Raises:
            EntryUnknown: the index cannot be read there.
        """

    async def survey(self, ledger_id: int, first: int, last: int, limit: int) -> RangeSurvey:
        """``find_range`` that continues past unreadable parts. A damaged row counts towards ``limit``.

        Raises:
            EntryUnknown: the index is closed or being reopened.
        """

    async def survey_from(self, start: RowKey, limit: int) -> RangeSurvey:
        """``rows_after`` from a key on, that one included, that continues past unreadable parts.

        Raises:
            EntryUnknown: the index is closed or being reopened.
        """

    async def survey_ledgers(self, after: int, limit: int) -> LedgerSurvey:
        """``ledgers_with_rows`` that continues past unreadable parts.

        Raises:
            EntryUnknown: the index is closed or being reopened.
        """

    async def compact(self, first_ledger: int, last_ledger: int) -> None:
        """Free the space of dropped or replaced rows of these ledgers. May take long.

        No answer changes, and reads and changes continue meanwhile; a crash or a cancellation leaves it half done.

        Raises:
            DiskFull: there is too little space to rewrite the remaining rows; may be retried.
            DiskFailed, DamagedFile: it failed. Whether the index still takes changes, the next change shows.
        """

    async def close(self) -> None:
        """Close the files. Pending changes may be lost or kept."""


class WriteBatch(NamedTuple):
    """Changes that become visible atomically."""

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
    """Split an ``apply`` into write batches, in the promised order."""
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


METRICS: Final = (
    PartMetrics[Index]()
    .gauge(
        "index_cache_bytes",
        "tallybook_bookie_index_cache_bytes",
        "Bytes in the index cache.",
        lambda index: index.cache_bytes.used,
    )
    .gauge(
        "max_index_cache_bytes",
        "tallybook_bookie_max_index_cache_bytes",
        "Capacity of the index cache.",
        lambda index: index.cache_bytes.capacity,
    )
    .gauge(
        "index_table_bytes",
        "tallybook_bookie_index_table_bytes",
        "Size of the tables of the index, as of the last checkpoint.",
        lambda index: index.figures.table_bytes,
    )
    .gauge(
        "index_write_buffer_bytes",
        "tallybook_bookie_index_write_buffer_bytes",
        "Bytes of index changes in memory, not in a table yet, as of the last checkpoint.",
        lambda index: index.figures.write_buffer_bytes,
    )
    .gauge(
        "index_uncompacted_bytes",
        "tallybook_bookie_index_uncompacted_bytes",
        "Estimated bytes that compaction of the index has to rewrite, as of the last checkpoint.",
        lambda index: index.figures.uncompacted_bytes,
    )
    .gauge(
        "index_pinned_bytes",
        "tallybook_bookie_index_cache_pinned_bytes",
        "Bytes of the index cache that were pinned at the last checkpoint.",
        lambda index: index.figures.pinned_bytes,
    )
    .gauge(
        "index_writes_stopped",
        "tallybook_bookie_index_writes_stopped",
        "1 while RocksDB stops writes of the index until it has compacted, else 0; as of the last write.",
        lambda index: index.figures.writes_stopped,
    )
    .gauge(
        "index_write_rate_limit",
        "tallybook_bookie_index_write_rate_limit",
        "Bytes per second to which RocksDB limits writes for that reason; 0: no limit. As of the last write.",
        lambda index: index.figures.write_rate_limit,
    )
    .counter(
        "index_background_errors",
        "tallybook_bookie_index_background_errors_total",
        "Flushes and compactions of the index that failed, as of the last checkpoint.",
        lambda index: index.figures.background_errors,
    )
)
