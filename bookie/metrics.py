"""The metrics of a bookie: what each number of ``Bookie.stats`` is called, and what it means."""

from __future__ import annotations

from typing import Final

from tallybook.core.setting_types import MAX_DIRECTORIES
from tallybook.runtime.metric_catalogue import Kind, MetricInfo, error_metrics, meter_metrics

from .boot_times import STEPS
from .service_load import REQUEST_KINDS
from .storage.checkpoint import STAGES

REFUSAL_REASONS: Final = (
    "adds that wait",
    "age of the journal queue",
    "bytes in flight",
    "closed",
    "ledgers that wait for a checkpoint",
    "read-only",
    "room for repairs",
    "room in the journal",
    "room in the write cache",
    "too large",
)
"""Every reason for which ``admission`` and ``adds`` refuse an add."""

BACKGROUND: Final = ("collector", "scrub")
"""What goes on beside requests, round after round."""

_C: Final = Kind.COUNTER
_G: Final = Kind.GAUGE
_H: Final = Kind.HISTOGRAM

_STAGE_HELP: Final = (
    "Of checkpoints, by what they do: batches to entry logs, these synced, rows to the index, that synced, marks."
)

_TABLES: Final = (
    ("table_bytes", "table_bytes", _G, "Size of the tables of the index, as of the last checkpoint."),
    (
        "write_buffer_bytes",
        "write_buffer_bytes",
        _G,
        "Changes of the index in memory, not in a table yet, as of the last checkpoint.",
    ),
    (
        "uncompacted_bytes",
        "uncompacted_bytes",
        _G,
        "What compaction of the index has to write anew, about, as of the last checkpoint.",
    ),
    (
        "pinned_bytes",
        "cache_pinned_bytes",
        _G,
        "Part of the cache of the index that was in use, and had to stay, at the last checkpoint.",
    ),
    (
        "writes_stopped",
        "writes_stopped",
        _G,
        "1 where RocksDB takes no writes of the index until it has compacted, else 0; as of the last write.",
    ),
    (
        "write_rate_limit",
        "write_rate_limit",
        _G,
        "Bytes a second at which it takes writes for that reason; 0: no limit. As of the last write.",
    ),
    (
        "background_errors",
        "background_errors_total",
        _C,
        "Flushes and compactions of the index that failed, as of the last checkpoint.",
    ),
)

BOOKIE_METRICS: Final = (
    MetricInfo("adds_batches_total", "tallybook_bookie_add_batches_total", _C, "Batches taken; not those refused."),
    MetricInfo("adds_bytes_total", "tallybook_bookie_add_bytes_total", _C, "Bytes of batches taken."),
    MetricInfo(
        "add_seconds",
        "tallybook_bookie_add_seconds",
        _H,
        "Of each batch that was taken, the time until it was durable and answered, or had failed.",
    ),
    MetricInfo(
        "cache_stall_seconds",
        "tallybook_bookie_add_stall_seconds_total",
        _C,
        "Seconds in which any add waited for room, by where.",
        ("where", "write_cache"),
    ),
    MetricInfo(
        "journal_stall_seconds",
        "tallybook_bookie_add_stall_seconds_total",
        _C,
        "Seconds in which any add waited for room, by where.",
        ("where", "journal"),
    ),
    MetricInfo("adds_waiting", "tallybook_bookie_adds_waiting", _G, "Adds that wait for a ledger's state or for room."),
    MetricInfo("inflight_bytes", "tallybook_bookie_inflight_bytes", _G, "Bytes of adds taken and not yet answered."),
    MetricInfo(
        "recovery_inflight_bytes", "tallybook_bookie_recovery_inflight_bytes", _G, "The same for recovery adds."
    ),
    MetricInfo(
        "max_inflight_bytes", "tallybook_bookie_max_inflight_bytes", _G, "What ordinary adds may have in flight."
    ),
    MetricInfo(
        "max_recovery_inflight_bytes",
        "tallybook_bookie_max_recovery_inflight_bytes",
        _G,
        "The same for recovery adds.",
    ),
    MetricInfo("write_cache_bytes", "tallybook_bookie_write_cache_bytes", _G, "Bytes in both write-cache buffers."),
    MetricInfo("max_write_cache_bytes", "tallybook_bookie_max_write_cache_bytes", _G, "What may be in them."),
    MetricInfo("index_cache_bytes", "tallybook_bookie_index_cache_bytes", _G, "Bytes of the index in its cache."),
    MetricInfo("max_index_cache_bytes", "tallybook_bookie_max_index_cache_bytes", _G, "What may be in it."),
    *(MetricInfo(f"index_{stat}", f"tallybook_bookie_index_{name}", kind, text) for stat, name, kind, text in _TABLES),
    MetricInfo("open_entry_logs", "tallybook_bookie_open_entry_logs", _G, "Entry logs that are open for reading."),
    MetricInfo(
        "max_open_entry_logs",
        "tallybook_bookie_max_open_entry_logs",
        _G,
        "How many stay open that nobody reads just now; those that are read come on top.",
    ),
    MetricInfo(
        "settled_ledgers",
        "tallybook_bookie_settled_ledgers",
        _G,
        "Ledgers of which it is remembered up to where no writer can be any more, for those who give back copies.",
    ),
    MetricInfo("max_settled_ledgers", "tallybook_bookie_max_settled_ledgers", _G, "How many that may be."),
    MetricInfo(
        "settled_hits_total",
        "tallybook_bookie_settled_hits_total",
        _C,
        "Copies taken back because of what is remembered.",
    ),
    MetricInfo(
        "settled_lookups_total", "tallybook_bookie_settled_lookups_total", _C, "Questions to the metadata instead."
    ),
    MetricInfo("ledgers_in_memory", "tallybook_bookie_ledgers_in_memory", _G, "Ledgers whose state is in memory."),
    MetricInfo("ledgers_dirty", "tallybook_bookie_ledgers_dirty", _G, "Of those, the ones newer than the index."),
    MetricInfo(
        "max_ledgers_dirty",
        "tallybook_bookie_max_ledgers_dirty",
        _G,
        "So many of these, and adds wait for a checkpoint.",
    ),
    MetricInfo(
        "limbo_events_total",
        "tallybook_bookie_limbo_events_total",
        _C,
        "Times, in all its lives, that it lost something: what it held then is in limbo until it was given back.",
    ),
    MetricInfo(
        "ledgers_in_limbo",
        "tallybook_bookie_ledgers_in_limbo",
        _G,
        "Ledgers that name it and may lack something of that, as of the collector's last round: it answers UNKNOWN.",
    ),
    MetricInfo(
        "ledgers_deleted",
        "tallybook_bookie_ledgers_deleted",
        _G,
        "Deleted ledgers that stay whole for collection.deleted_delay_s, as of the collector's last round.",
    ),
    MetricInfo(
        "ledgers_missing",
        "tallybook_bookie_ledgers_missing",
        _G,
        "Ledgers whose metadata are missing without a record of their deletion, as of the collector's last round.",
    ),
    MetricInfo(
        "collection_held",
        "tallybook_bookie_collection_held",
        _G,
        "1 while dropping deleted ledgers waits for an operator, because they are a large share of all.",
    ),
    MetricInfo(
        "metadata_behind",
        "tallybook_bookie_metadata_behind",
        _G,
        "1 while nothing is dropped, because the metadata store was restored from an older copy.",
    ),
    *(
        MetricInfo(
            f"boot_{step}_seconds",
            "tallybook_bookie_boot_seconds",
            _G,
            "Of the last start, how long each step took: journals looked through, entry logs opened, the index opened, "
            "or made again from entry logs because it was lost, journals replayed.",
            ("step", step),
        )
        for step in STEPS
    ),
    MetricInfo("streams", "tallybook_bookie_streams", _G, "Streams of clients served now: three for each connection."),
    MetricInfo("max_streams", "tallybook_bookie_max_streams", _G, "How many there may be."),
    MetricInfo("connections", "tallybook_bookie_connections", _G, "Clients connected now."),
    *(
        MetricInfo(f"requests_{kind}", "tallybook_bookie_requests_total", _C, "Requests besides adds.", ("kind", kind))
        for kind in REQUEST_KINDS
    ),
    *(
        MetricInfo(
            f"request_seconds_{kind}",
            "tallybook_bookie_request_seconds_total",
            _C,
            "Seconds that they took together, waiting for room for their answers included; long polls wait on purpose.",
            ("kind", kind),
        )
        for kind in REQUEST_KINDS
    ),
    *error_metrics(
        "errors", "tallybook_bookie_errors_total", "Errors answered to adds, requests and streams that were refused."
    ),
    MetricInfo(
        "answer_bytes",
        "tallybook_bookie_answer_bytes",
        _G,
        "Bytes of answers to reads that are being read or wait to be sent.",
    ),
    MetricInfo("max_answer_bytes", "tallybook_bookie_max_answer_bytes", _G, "How many there may be."),
    MetricInfo("lac_waiters", "tallybook_bookie_lac_waiters", _G, "Long polls waiting for a LAC."),
    MetricInfo(
        "reads_cached_batches_total",
        "tallybook_bookie_read_batches_total",
        _C,
        "Batches read, by where they were found.",
        ("source", "cache"),
    ),
    MetricInfo(
        "reads_stored_batches_total",
        "tallybook_bookie_read_batches_total",
        _C,
        "Batches read, by where they were found.",
        ("source", "entry_log"),
    ),
    MetricInfo("read_cache_bytes", "tallybook_bookie_read_cache_bytes", _G, "Bytes in the read cache."),
    MetricInfo("max_read_cache_bytes", "tallybook_bookie_max_read_cache_bytes", _G, "What may be in it."),
    MetricInfo("read_cache_hits_total", "tallybook_bookie_read_cache_hits_total", _C, "Batches the read cache had."),
    MetricInfo("read_cache_misses_total", "tallybook_bookie_read_cache_misses_total", _C, "Batches it did not have."),
    MetricInfo("read_ahead_bytes", "tallybook_bookie_read_ahead_bytes", _G, "Bytes read, or being read, ahead."),
    MetricInfo("max_read_ahead_bytes", "tallybook_bookie_max_read_ahead_bytes", _G, "How many there may be."),
    MetricInfo(
        "read_ahead_batches_total",
        "tallybook_bookie_read_ahead_batches_total",
        _C,
        "Batches read ahead of readers that go on in order.",
    ),
    MetricInfo(
        "read_ahead_used_batches_total",
        "tallybook_bookie_read_ahead_used_batches_total",
        _C,
        "Of those, what was asked for.",
    ),
    *meter_metrics("reads", "tallybook_bookie_read", "Reads, wherever the batches were"),
    *meter_metrics("lookups", "tallybook_bookie_index_lookup", "Questions of readers and adds to the index"),
    *meter_metrics("log_reads", "tallybook_bookie_entry_log_read", "Reads from entry logs, ahead of readers as well"),
    *meter_metrics("checkpoints", "tallybook_bookie_checkpoint", "Checkpoints"),
    *(
        MetricInfo(
            f"stage_{stage}_seconds",
            "tallybook_bookie_checkpoint_stage_seconds",
            _H,
            f"{_STAGE_HELP} How long each took.",
            ("stage", stage),
        )
        for stage in STAGES
    ),
    *(
        MetricInfo(
            f"stage_{stage}_busy_seconds",
            "tallybook_bookie_checkpoint_stage_busy_seconds_total",
            _C,
            f"{_STAGE_HELP} Seconds so far, those of what is under way included.",
            ("stage", stage),
        )
        for stage in STAGES
    ),
    MetricInfo("checkpoints_total", "tallybook_bookie_checkpoints_total", _C, "Checkpoints finished."),
    MetricInfo("flushed_batches_total", "tallybook_bookie_flushed_batches_total", _C, "Batches moved to entry logs."),
    MetricInfo("flushed_bytes_total", "tallybook_bookie_flushed_bytes_total", _C, "Bytes moved to entry logs."),
    MetricInfo("collector_rounds_total", "tallybook_bookie_collector_rounds_total", _C, "Rounds of the collector."),
    *meter_metrics("collections", "tallybook_bookie_collection", "Rounds of the collector, compaction included"),
    *(
        MetricInfo(
            f"{task}_failures_total",
            "tallybook_bookie_background_failures_total",
            _C,
            "How often the collector, or the scrub, had to put off what it was at: the log says why.",
            ("task", task),
        )
        for task in BACKGROUND
    ),
    MetricInfo(
        "leftovers_dropped_total",
        "tallybook_bookie_leftovers_dropped_total",
        _C,
        "Closed ledgers of which copies were dropped, because their metadata name other bookies by now.",
    ),
    MetricInfo(
        "ledgers_dropped_total",
        "tallybook_bookie_ledgers_dropped_total",
        _C,
        "Ledgers dropped because they were deleted, or released to the archive.",
    ),
    MetricInfo(
        "index_compactions_total",
        "tallybook_bookie_index_compactions_total",
        _C,
        "Compactions of the index, each after much was dropped from it.",
    ),
    MetricInfo("entry_log_bytes", "tallybook_bookie_entry_log_bytes", _G, "Size of all entry logs."),
    MetricInfo(
        "entry_logs_removed_total", "tallybook_bookie_entry_logs_removed_total", _C, "Entry logs removed as a whole."
    ),
    MetricInfo(
        "entry_log_bytes_removed_total", "tallybook_bookie_entry_log_bytes_removed_total", _C, "Their sizes, summed up."
    ),
    MetricInfo(
        "compacted_bytes_total",
        "tallybook_bookie_compacted_bytes_total",
        _C,
        "Bytes of batches that were copied out of entry logs of which little counted.",
    ),
    MetricInfo(
        "damaged_batches",
        "tallybook_bookie_damaged_batches",
        _G,
        "Batches whose copies here are known to be damaged and were not mended yet.",
    ),
    MetricInfo(
        "damage_met_total",
        "tallybook_bookie_damage_met_total",
        _C,
        "How often a reader, a scrub or compaction has met a damaged batch.",
    ),
    MetricInfo(
        "index_untold_total",
        "tallybook_bookie_index_untold_total",
        _C,
        "How often a scrub or a collection of garbage has passed over a part of the index that cannot be read.",
    ),
    MetricInfo("scrub_rounds_total", "tallybook_bookie_scrub_rounds_total", _C, "Scrubs of all entry logs."),
    MetricInfo("scrubbed_bytes_total", "tallybook_bookie_scrubbed_bytes_total", _C, "Bytes of batches scrubbed."),
    MetricInfo("journal_commits_total", "tallybook_journal_commits_total", _C, "Group commits with records in them."),
    MetricInfo("journal_bytes_total", "tallybook_journal_bytes_total", _C, "Bytes of journal blocks written."),
    MetricInfo(
        "journal_commit_seconds",
        "tallybook_journal_commit_seconds",
        _H,
        "Of each group commit, the time from its oldest record's append until it was durable.",
    ),
    MetricInfo(
        "journal_write_seconds",
        "tallybook_journal_write_seconds",
        _H,
        "How long the device took for each durable write of a journal.",
    ),
    *(
        MetricInfo(
            f"journal_device_seconds_{at}",
            "tallybook_journal_device_seconds_total",
            _C,
            "Seconds the device spent on journal writes, for each journal: 0 is the first of `journal_directories`.",
            ("journal", str(at)),
        )
        for at in range(MAX_DIRECTORIES)
    ),
    MetricInfo("journal_queued_bytes", "tallybook_journal_queued_bytes", _G, "Bytes that wait for the journal."),
    MetricInfo(
        "journal_max_queued_bytes",
        "tallybook_journal_max_queued_bytes",
        _G,
        "How many of them it has room for now; near it, adds wait for a checkpoint.",
    ),
    MetricInfo(
        "journal_used_fraction",
        "tallybook_journal_used_fraction",
        _G,
        "Part of the journal in use, 0 to 1.",
    ),
    MetricInfo("journals", "tallybook_journals", _G, "Journals, each with a device to write to."),
    MetricInfo("records_total", "tallybook_journal_records_total", _C, "Records handed to the journal."),
    MetricInfo("records_durable_total", "tallybook_journal_records_durable_total", _C, "Records durable."),
    MetricInfo(
        "disk_used_fraction", "tallybook_bookie_disk_used_fraction", _G, "Part of the fullest disk in use, 0 to 1."
    ),
    MetricInfo("disk_free_bytes", "tallybook_bookie_disk_free_bytes", _G, "Free bytes of the disk with most of them."),
    MetricInfo(
        "disk_full_seconds",
        "tallybook_bookie_disk_full_seconds_total",
        _C,
        "Seconds in which a checkpoint waited for room on a full disk.",
    ),
    MetricInfo(
        "compaction_suspended",
        "tallybook_bookie_compaction_suspended",
        _G,
        "1 while an operator has suspended compaction, else 0.",
    ),
    MetricInfo("read_only", "tallybook_bookie_read_only", _G, "1 while ordinary adds are refused, else 0."),
    *(
        MetricInfo(
            f"refused_{reason.replace(' ', '_')}_total",
            "tallybook_bookie_refused_adds_total",
            _C,
            "Adds refused, by reason.",
            ("reason", reason),
        )
        for reason in REFUSAL_REASONS
    ),
)
