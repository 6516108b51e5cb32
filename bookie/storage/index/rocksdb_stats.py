"""RocksDB statistics of an index: sizes of its tables, and whether it holds back writes.

Read once per checkpoint, on the thread that has just synced the index: RocksDB takes its lock for the answers, and
nothing that waits for that lock belongs on an event loop. It costs microseconds. Whether writes are held back is also
read before each write of a thousand rows, since a checkpoint with delayed writes reaches its sync only afterwards.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Final, NamedTuple, TypeAlias

_OF_EACH: Final = {
    "table_bytes": "rocksdb.live-sst-files-size",
    "write_buffer_bytes": "rocksdb.cur-size-all-mem-tables",
    "uncompacted_bytes": "rocksdb.estimate-pending-compaction-bytes",
}
"""Summed up over column families."""
_HELD_BACK: Final = {
    "writes_stopped": "rocksdb.is-write-stopped",
    "write_rate_limit": "rocksdb.actual-delayed-write-rate",
}
_OF_ALL: Final = {
    **_HELD_BACK,
    "pinned_bytes": "rocksdb.block-cache-pinned-usage",
    "background_errors": "rocksdb.background-errors",
}
"""Any column family has the same numbers for these: cache, log and threads are shared."""

Property: TypeAlias = Callable[[str], int | None]
"""Reads a property of one column family; ``None`` if there is no such property."""


class TableFigures(NamedTuple):
    """Numbers as of the last checkpoint. All zero if there are no tables."""

    table_bytes: int = 0
    write_buffer_bytes: int = 0
    uncompacted_bytes: int = 0
    pinned_bytes: int = 0
    writes_stopped: int = 0
    write_rate_limit: int = 0
    background_errors: int = 0


def figures_of(families: Sequence[Property]) -> TableFigures:
    """Read the numbers of all families. May wait for a lock."""
    of_each = {stat: sum(ask(name) or 0 for ask in families) for stat, name in _OF_EACH.items()}
    of_all = {stat: families[0](name) or 0 for stat, name in _OF_ALL.items()}
    return TableFigures(**of_each, **of_all)


def before_write(figures: TableFigures, family: Property) -> TableFigures:
    """The numbers, updated with whether the next write will wait. May wait for a lock."""
    return figures._replace(**{stat: family(name) or 0 for stat, name in _HELD_BACK.items()})
