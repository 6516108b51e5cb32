"""Settings of a bookie: journal, storage, admission, garbage collection, scrub, background work."""

from __future__ import annotations

from typing import Annotated, Self

from pydantic import AfterValidator, Field, model_validator

from ..limits import BLOCK_BYTES, KIB, MAX_COMMIT_BYTES, MAX_MESSAGE_BYTES, MIB
from .base import Settings, byte_size
from .types import (
    REPAIR_COMMIT_MS,
    BufferSize,
    Count,
    Directories,
    Insecure,
    Milliseconds,
    Percent,
    Seconds,
    SecurityDirectory,
    Size,
    Traces,
    address,
    address_off_or_none,
    address_or_none,
    bookie_id_or_none,
    no_boolean,
)


class JournalSettings(Settings):
    """The write-ahead journal of a bookie."""

    segment_bytes: Size = Field(
        default=byte_size(64 * MIB), description="Size of one journal segment; a multiple of 4 KiB."
    )
    segment_count: Count = Field(
        default=8, description="Segments in the ring; their total must exceed the write cache."
    )
    max_commit_bytes: Size = Field(
        default=byte_size(MAX_COMMIT_BYTES),
        description="Largest group commit; at most 1 MiB. Limits the batches of clients too.",
    )
    seal_after_ms: Milliseconds = Field(
        default=50, description="Idle time after which the last journal block is sealed."
    )

    @model_validator(mode="after")
    def _consistent(self) -> Self:
        if self.segment_bytes % BLOCK_BYTES or self.max_commit_bytes % BLOCK_BYTES:
            raise ValueError("segment_bytes and max_commit_bytes must be multiples of 4 KiB")
        if not 2 * BLOCK_BYTES <= self.max_commit_bytes <= MAX_COMMIT_BYTES:
            raise ValueError("max_commit_bytes must lie in 8 KiB .. 1 MiB")
        if self.segment_bytes < 2 * self.max_commit_bytes:
            raise ValueError("a segment must hold at least two of the largest group commits")
        if self.segment_count < 3:
            raise ValueError("segment_count must be at least 3")
        return self


class StorageSettings(Settings):
    """Caches, entry logs and index of a bookie."""

    write_cache_bytes: BufferSize = Field(
        default=byte_size(128 * MIB), description="Both write-cache buffers together."
    )
    read_cache_bytes: Size = Field(
        default=byte_size(64 * MIB), description="Batches, and tables of batches, kept after they were read from disk."
    )
    read_ahead_bytes: Size = Field(
        default=byte_size(32 * MIB), description="Cache of batches read ahead for sequential readers; 0: no read-ahead."
    )
    index_cache_bytes: Size = Field(
        default=byte_size(32 * MIB),
        description="Block cache of the index. Its memtables take up to six buffers "
        "more, each a quarter of this, but at least 1 and at most 8 MiB.",
    )
    entry_log_bytes: BufferSize = Field(
        default=byte_size(1024 * MIB), description="Size at which an entry log is finished."
    )
    give_back_bytes: BufferSize = Field(
        default=byte_size(8 * MIB),
        description="Removed entry logs are truncated in steps of this size, a hundred steps "
        "per second and at most a thousand per log: freeing much space at once stalls the disk.",
    )
    flush_interval_ms: Milliseconds = Field(default=10_000, description="Longest time between two checkpoints.")
    read_threads: Count = Field(default=2, description="Threads that read entry logs.")
    min_free_bytes: Size = Field(
        default=byte_size(256 * MIB), description="Disk space that the journal and the start of a bookie leave free."
    )
    disk_warn_percent: Percent = Field(default=90, description="Disk usage from which compaction runs unpaced.")
    disk_read_only_percent: Percent = Field(
        default=95,
        description="Disk usage from which the bookie is read-only: it accepts recovery adds only, no repair adds.",
    )
    disk_back_percent: Percent = Field(
        default=92, description="Disk usage below which the bookie accepts all adds again."
    )

    @model_validator(mode="after")
    def _consistent(self) -> Self:
        if not self.disk_warn_percent <= self.disk_back_percent <= self.disk_read_only_percent:
            raise ValueError("disk_warn_percent <= disk_back_percent <= disk_read_only_percent must hold")
        return self


class AdmissionSettings(Settings):
    """Admission control: when a bookie answers BUSY."""

    max_inflight_bytes: BufferSize = Field(
        default=byte_size(64 * MIB), description="Accepted adds that are not yet answered."
    )
    max_queue_age_ms: Milliseconds = Field(
        default=1_000, description="Age of the oldest unanswered add above which new adds are refused."
    )
    max_cache_wait_ms: Milliseconds = Field(
        default=1_000, description="How long an add waits for space in the write cache or the journal."
    )
    stream_credit_bytes: BufferSize = Field(
        default=byte_size(4 * MIB), description="Unanswered bytes granted to one client stream."
    )
    max_read_bytes: Size = Field(
        default=byte_size(128 * MIB),
        ge=MAX_MESSAGE_BYTES,
        description="Memory for answers to reads, being read or waiting to be sent; recoveries get an eighth more.",
    )
    max_streams: Count = Field(
        default=4_096,
        description="Client streams served at once; fewer if the limit of open files (ulimit -n) is lower.",
    )


class CollectionSettings(Settings):
    """Garbage collection: how a bookie drops ledgers and compacts entry logs."""

    interval_ms: Milliseconds = Field(
        default=60_000,
        description="Pause between searches for ledgers that were deleted or released to the archive; 0: never.",
    )
    unnamed_delay_s: Seconds = Field(
        default=3_600,
        description="How long copies of closed ledgers are kept after the metadata names other bookies. A repair "
        "copies first and updates the metadata later, and must not take longer in between. At least 10 s more than "
        "admission.max_cache_wait_ms.",
    )
    deleted_delay_s: Seconds = Field(
        default=3_600,
        description="How long a deleted ledger is kept, and can be restored with its metadata; not observed while a "
        "disk is short of space.",
    )
    missing_delay_s: Seconds = Field(
        default=14_400,
        description="How long a ledger must be missing from the metadata, without a record of its deletion, before an "
        "operator may drop it (POST /api/v1/bookie/gc/approve_drop).",
    )
    max_deleted_percent: Percent = Field(
        default=50,
        description="A pass that would drop more than this share of all ledgers, and more than 1,000, because they are "
        "deleted waits for an operator (POST /api/v1/bookie/gc/approve_drop), unless a disk is short of space.",
    )
    lookups_per_second: Count = Field(default=200, description="Lookups of ledgers in the metadata store per second.")
    compact_below_percent: Percent = Field(
        default=20,
        description="Entry logs with a smaller share of live data are compacted immediately; 0: no compaction, but "
        "logs without live data are removed.",
    )
    compact_above_garbage_percent: Percent = Field(
        default=25,
        description="If garbage exceeds this share of all finished entry logs, logs with less live data than "
        "compact_all_below_percent are compacted immediately, most garbage first, until garbage is below "
        "this share; 100: never. No effect if compact_below_percent is 0.",
    )
    compact_all_below_percent: Percent = Field(default=80, description="The same, once every compact_all_interval_ms.")
    compact_all_interval_ms: Milliseconds = Field(
        default=86_400_000,
        description="Pause between compactions of logs with less live data than compact_all_below_percent.",
    )
    compact_index_after: Annotated[int, Field(ge=0, le=1_000_000_000), no_boolean] = Field(
        default=100_000,
        description="Ledgers and rows dropped from the index after which it is compacted to free their space; 0: "
        "never.",
    )


class ScrubSettings(Settings):
    """Scrub: a bookie rereads its copies, to find damage while other good copies exist."""

    period_s: Seconds = Field(default=7 * 86_400, description="Seconds in which all data is read once; 0: never.")
    min_bytes_per_second: Size = Field(
        default=byte_size(MIB), description="Minimum read rate, within max_bytes_per_second."
    )
    max_bytes_per_second: Size = Field(
        default=byte_size(32 * MIB),
        description="Maximum read rate, even if a pass takes longer than period_s; 0 is no limit.",
    )


class BackgroundSettings(Settings):
    """The budget that repair, offload, scrub, compaction, read-ahead and checkpoints share.

    Between the two limits, they give way while adds or reads take longer than usual.
    """

    min_bytes_per_second: Size = Field(
        default=byte_size(8 * MIB), ge=64 * KIB, description="Bytes per second that background work always gets."
    )
    max_bytes_per_second: Size = Field(
        default=byte_size(0),
        description="Maximum bytes per second; 0 is no limit. Requests of repairs exceed it rather than time out.",
    )

    @model_validator(mode="after")
    def _consistent(self) -> Self:
        if 0 < self.max_bytes_per_second < self.min_bytes_per_second:
            raise ValueError("max_bytes_per_second must be 0 or at least min_bytes_per_second")
        return self


class BookieSettings(Settings):
    """Settings of a bookie process."""

    bookie_id: Annotated[str, AfterValidator(bookie_id_or_none)] = Field(
        default="", description="Configured identity; empty: taken from the data directory."
    )
    data_directory: str = Field(default=..., description="Where journal, entry logs and index live.", min_length=1)
    journal_directories: Directories = Field(
        default=(),
        description="Journal directories, each best on its own disk: a list in the file, comma-separated paths "
        "in the environment; empty: DIR/journal. Each ledger belongs to one of them. May be changed only "
        "after a clean stop.",
    )
    ledger_directories: Directories = Field(
        default=(),
        description="Entry log directories, each best on its own disk: a list in the file, comma-separated paths "
        "in the environment; empty: DIR/ledgers. A directory may be added at any start, and an empty one "
        "removed.",
    )
    listen: Annotated[str, AfterValidator(address)] = Field(
        default="127.0.0.1:0", description="Host and port of the gRPC server; port 0 is any free one."
    )
    tcp_listen: Annotated[str, AfterValidator(address_off_or_none)] = Field(
        default="",
        description="Host and port for adds and reads over TCP without gRPC, which takes less processor time. Clients "
        "find the port themselves, at the host of the published address, and use gRPC if they cannot reach it. Empty: "
        "any free port of the host of `listen`; off: gRPC only. The port must be reachable under its own number.",
    )
    advertise: Annotated[str, AfterValidator(address_or_none)] = Field(
        default="", description="Address published to clients; empty: the listen address."
    )
    http_listen: Annotated[str, AfterValidator(address)] = Field(
        default="127.0.0.1:0", description="Host and port of health and metrics."
    )
    metadata: str = Field(default=..., description="URI of the metadata store.", min_length=1)
    security: SecurityDirectory = ""
    insecure: Insecure = False
    traces: Traces = ""
    rack: str = Field(
        default="", description="Failure domain of this bookie: a rack, or an availability zone.", max_length=128
    )
    direct_io: bool = Field(
        default=True,
        description="Write journal and entry logs past the page cache (O_DIRECT) where the file system allows it.",
    )
    journal: JournalSettings = Field(default_factory=JournalSettings)
    storage: StorageSettings = Field(default_factory=StorageSettings)
    admission: AdmissionSettings = Field(default_factory=AdmissionSettings)
    collection: CollectionSettings = Field(default_factory=CollectionSettings)
    scrub: ScrubSettings = Field(default_factory=ScrubSettings)
    background: BackgroundSettings = Field(default_factory=BackgroundSettings)

    @model_validator(mode="after")
    def _consistent(self) -> Self:
        journal_bytes = self.journal.segment_bytes * (self.journal.segment_count - 1)
        if journal_bytes < self.storage.write_cache_bytes:
            raise ValueError(
                "the journal must be larger than both write-cache buffers: raise segment_bytes or segment_count"
            )
        if self.collection.unnamed_delay_s * 1_000 < self.admission.max_cache_wait_ms + REPAIR_COMMIT_MS:
            raise ValueError(
                "collection.unnamed_delay_s must be at least 10 s more than admission.max_cache_wait_ms: a repair "
                "needs this time to name the bookie in the metadata after its last copy"
            )
        if set(self.journal_directories) & set(self.ledger_directories):
            raise ValueError("a directory is either a journal directory or a ledger directory, not both")
        return self
