"""The metrics of a bookie: those of its parts, each declared where it is counted. ``rpc`` has those of its requests."""

from __future__ import annotations

from typing import Final

from tallybook.runtime.metrics.part_metrics import PartMetrics

from . import boot_times
from .background import budget
from .directories import disk_monitor
from .gc import collector
from .journal import journals
from .ledgers import confirmed_prefix, table
from .parts import BookieParts
from .read import last_add_confirmed, read_path
from .scrub import damage_list, scrubber
from .storage import checkpoint, entry_tables, read_ahead, read_cache, write_cache
from .storage.entry_log import logs
from .storage.index import port as index
from .write import add_path, admission, pending_acks, space_waiters

BOOKIE_METRICS: Final = (
    PartMetrics[BookieParts]()
    .gauge(
        "read_only",
        "tallybook_bookie_read_only",
        "1 while ordinary adds are refused, else 0.",
        lambda parts: int(parts.read_only),
    )
    .meter("lookups", "tallybook_bookie_index_lookup", "Index lookups of reads and adds", lambda parts: parts.lookups)
    .of(add_path.METRICS, lambda parts: parts.adds)
    .of(space_waiters.METRICS, lambda parts: parts.waiters)
    .of(admission.METRICS, lambda parts: parts.admission)
    .of(pending_acks.METRICS, lambda parts: parts.commits)
    .of(journals.METRICS, lambda parts: parts.journals)
    .of(write_cache.METRICS, lambda parts: parts.cache)
    .of(checkpoint.METRICS, lambda parts: parts.checkpointer)
    .of(checkpoint.FLUSH_METRICS, lambda parts: parts.flush)
    .of(logs.METRICS, lambda parts: parts.logs)
    .of(index.METRICS, lambda parts: parts.index)
    .of(read_path.METRICS, lambda parts: parts.reads)
    .of(read_cache.METRICS, lambda parts: parts.read_cache)
    .of(entry_tables.METRICS, lambda parts: parts.tables)
    .of(read_ahead.METRICS, lambda parts: parts.read_ahead)
    .of(last_add_confirmed.METRICS, lambda parts: parts.lacs)
    .of(table.METRICS, lambda parts: parts.table)
    .of(confirmed_prefix.METRICS, lambda parts: parts.confirmed)
    .of(collector.METRICS, lambda parts: parts.collector)
    .of(damage_list.METRICS, lambda parts: parts.damage)
    .of(scrubber.METRICS, lambda parts: parts.scrub)
    .of(disk_monitor.METRICS, lambda parts: parts.disk_monitor)
    .of(budget.METRICS, lambda parts: parts.background)
    .of(boot_times.METRICS, lambda parts: parts.boot_times)
)
