"""Settings: one frozen model per kind of process, validated when it is made.

The models live here because every part reads them; finding the values (defaults, then file,
then environment, then flags, each overriding the one before even with 0 or an empty value)
is ``runtime/settings``. The reference in docs/configuration.md is generated from the
descriptions below. Sizes accept "64MiB" or plain bytes; durations are milliseconds.
"""

from __future__ import annotations

from typing import Annotated, ClassVar, Self

from pydantic import AfterValidator, BaseModel, ByteSize, ConfigDict, Field, model_validator

from .limits import BLOCK_BYTES, MAX_BATCH_BYTES, MAX_COMMIT_BYTES, MAX_ENTRY_BYTES, MAX_MESSAGE_BYTES, MIB
from .setting_types import (
    NAMING_MS,
    Addresses,
    ArchiveKeysFile,
    Count,
    Directories,
    Hosts,
    Insecure,
    Milliseconds,
    Percent,
    PlacementPolicy,
    Room,
    Seconds,
    SecurityDirectory,
    Share,
    Size,
    Traces,
    Wait,
    address,
    address_or_none,
    bookie_id_or_none,
    number,
)


def _size(value: int) -> ByteSize:
    return ByteSize(value)


class Settings(BaseModel):
    """Shared behaviour of all settings: immutable, unknown names refused."""

    # A command needs one of the models, and building them all would take longer than most commands do.
    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False, validate_default=True, defer_build=True)


class JournalSettings(Settings):
    """The write-ahead journal of a bookie."""

    segment_bytes: Size = Field(_size(64 * MIB), description="Size of one journal segment; a multiple of 4 KiB.")
    segment_count: Count = Field(8, description="Segments in the ring; their total must exceed the write cache.")
    max_commit_bytes: Size = Field(
        _size(MAX_COMMIT_BYTES),
        description="Largest group commit; at most 1 MiB. Clients make no larger batches than fit it.",
    )
    seal_after_ms: Milliseconds = Field(50, description="Silence after which the last block is vouched for.")

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

    write_cache_bytes: Room = Field(_size(128 * MIB), description="Both write-cache buffers together.")
    read_cache_bytes: Size = Field(_size(64 * MIB), description="Batches kept after they were read from disk.")
    read_ahead_bytes: Size = Field(
        _size(32 * MIB), description="Batches read ahead of those who go through ledgers in order; 0: none."
    )
    index_cache_bytes: Size = Field(
        _size(32 * MIB),
        description="Memory for blocks of the index. Changes that are not in its tables yet take up to six buffers "
        "more, each a quarter of this, but at least 1 and at most 8 MiB.",
    )
    entry_log_bytes: Room = Field(_size(1024 * MIB), description="Size at which an entry log is finished.")
    give_back_bytes: Room = Field(
        _size(8 * MIB),
        description="The room of an entry log that was removed goes back to the disk in pieces of this size, a hundred "
        "a second and a thousand for a log at most: a disk that is told of much at once serves nobody meanwhile.",
    )
    flush_interval_ms: Milliseconds = Field(10_000, description="Longest time between two checkpoints.")
    flush_bytes_per_second: Size = Field(_size(0), description="Pace of checkpoint writes; 0 is unpaced.")
    read_threads: Count = Field(2, description="Threads that read entry logs.")
    min_free_bytes: Size = Field(_size(256 * MIB), description="Disk space that the journal and a start leave free.")
    disk_warn_percent: Share = Field(90, description="Part of the disk in use from which on compaction is in a hurry.")
    disk_read_only_percent: Share = Field(
        95, description="Part of the disk in use from which on only recoveries are taken, and no repairs either."
    )
    disk_back_percent: Share = Field(92, description="Part in use below which all is taken again.")

    @model_validator(mode="after")
    def _consistent(self) -> Self:
        if 0 < self.flush_bytes_per_second < MIB:
            raise ValueError("flush_bytes_per_second must be 0 or at least 1 MiB: slower, a checkpoint would never end")
        if not self.disk_warn_percent <= self.disk_back_percent <= self.disk_read_only_percent:
            raise ValueError("disk_warn_percent <= disk_back_percent <= disk_read_only_percent is wanted")
        return self


class AdmissionSettings(Settings):
    """When a bookie says BUSY."""

    max_inflight_bytes: Room = Field(_size(64 * MIB), description="Adds taken and not yet answered.")
    max_queue_age_ms: Milliseconds = Field(
        1_000, description="Age of the oldest unanswered add above which new ones are refused."
    )
    max_cache_wait_ms: Milliseconds = Field(
        1_000, description="How long an add waits for room in the write cache or the journal."
    )
    stream_credit_bytes: Room = Field(_size(4 * MIB), description="Unanswered bytes granted to one client stream.")
    max_read_bytes: Size = Field(
        _size(128 * MIB),
        ge=MAX_MESSAGE_BYTES,
        description="Answers to reads in memory, being read or waiting to be sent; an eighth more for recoveries.",
    )
    max_streams: Count = Field(
        4_096, description="Client streams served at once; fewer where the limit of open files (ulimit -n) is lower."
    )


class CollectionSettings(Settings):
    """How a bookie drops ledgers that it need not keep."""

    interval_ms: Milliseconds = Field(
        60_000, description="Pause between looks for ledgers that were deleted, or released to the archive; 0: never."
    )
    unnamed_delay_s: Seconds = Field(
        3_600,
        description="How long copies of closed ledgers stay that name other bookies by now. A repair copies first and "
        "names later: it must never take so long in between. At least 10 s more than admission.max_cache_wait_ms.",
    )
    deleted_delay_s: Seconds = Field(
        3_600,
        description="How long a deleted ledger stays whole, and comes back if its metadata do; not waited for while a "
        "disk is short of space.",
    )
    missing_delay_s: Seconds = Field(
        14_400,
        description="How long a ledger must be missing from the metadata, without a record of its deletion, before an "
        "operator may have it dropped (POST /api/v1/bookie/gc/approve_drop).",
    )
    max_deleted_percent: Share = Field(
        50,
        description="A round that would drop more than this part of all ledgers, and more than 1,000, because they are "
        "deleted waits for an operator (POST /api/v1/bookie/gc/approve_drop), unless a disk is short of space.",
    )
    lookups_per_second: Count = Field(200, description="Ledgers that the metadata store is asked about for it.")
    compact_below_percent: Share = Field(
        20,
        description="Entry logs of which less counts are compacted at once; 0: none is, but what is dead is removed.",
    )
    compact_above_garbage_percent: Share = Field(
        25,
        description="Where more than this part of all finished entry logs is garbage, logs of which less than "
        "compact_all_below_percent counts are compacted at once, those with most garbage first, until no more "
        "than this part is; 100: never. Without effect where compact_below_percent is 0.",
    )
    compact_all_below_percent: Share = Field(80, description="The same, once in compact_all_interval_ms.")
    compact_all_interval_ms: Milliseconds = Field(
        86_400_000, description="Pause between looks for logs of which less than compact_all_below_percent counts."
    )
    compact_bytes_per_second: Size = Field(
        _size(64 * MIB), description="Pace at which compaction copies; 0 is unpaced."
    )
    compact_index_after: Annotated[int, Field(ge=0, le=1_000_000_000), number] = Field(
        100_000, description="Ledgers and rows dropped from the index after which it gives back their room; 0: never."
    )


class ScrubSettings(Settings):
    """How a bookie reads its copies again, to find damage while there are others."""

    period_s: Seconds = Field(7 * 86_400, description="Seconds in which everything is read again once; 0: never.")
    min_bytes_per_second: Size = Field(
        _size(MIB), description="It is read at least so fast, within max_bytes_per_second."
    )
    max_bytes_per_second: Size = Field(
        _size(32 * MIB), description="And at most so fast, even if a round takes longer for it; 0 is no limit."
    )


class BookieSettings(Settings):
    """One bookie."""

    bookie_id: Annotated[str, AfterValidator(bookie_id_or_none)] = Field(
        "", description="Configured identity; empty: taken from the data directory."
    )
    data_directory: str = Field(..., description="Where journal, entry logs and index live.", min_length=1)
    journal_directories: Directories = Field(
        (),
        description="Directories of journals, each best on a disk of its own: a list in the file, paths with commas "
        "between them in the environment; empty: DIR/journal. Each ledger belongs to one of them. Which there are may "
        "be changed after a clean stop only.",
    )
    ledger_directories: Directories = Field(
        (),
        description="Every directory that entry logs lie in, each best on a disk of its own: a list in the file, paths "
        "with commas between them in the environment; empty: DIR/ledgers. One may be added at any start, and one be "
        "taken away that holds no entry logs.",
    )
    listen: Annotated[str, AfterValidator(address)] = Field(
        "127.0.0.1:0", description="Host and port of the gRPC server; port 0 is any free one."
    )
    advertise: Annotated[str, AfterValidator(address_or_none)] = Field(
        "", description="Address that clients are told; empty: the address listened on."
    )
    http_listen: Annotated[str, AfterValidator(address)] = Field(
        "127.0.0.1:0", description="Host and port of health and metrics."
    )
    metadata: str = Field(..., description="URI of the metadata store.", min_length=1)
    security: SecurityDirectory = ""
    insecure: Insecure = False
    traces: Traces = ""
    rack: str = Field("", description="Failure domain of this bookie.", max_length=128)
    direct_io: bool = Field(
        True, description="Write journal and entry logs past the page cache (O_DIRECT) where the file system allows it."
    )
    journal: JournalSettings = Field(default_factory=JournalSettings)
    storage: StorageSettings = Field(default_factory=StorageSettings)
    admission: AdmissionSettings = Field(default_factory=AdmissionSettings)
    collection: CollectionSettings = Field(default_factory=CollectionSettings)
    scrub: ScrubSettings = Field(default_factory=ScrubSettings)

    @model_validator(mode="after")
    def _consistent(self) -> Self:
        journal_bytes = self.journal.segment_bytes * (self.journal.segment_count - 1)
        if journal_bytes < self.storage.write_cache_bytes:
            raise ValueError(
                "the journal must hold more than both write-cache buffers: raise segment_bytes or segment_count"
            )
        if self.collection.unnamed_delay_s * 1_000 < self.admission.max_cache_wait_ms + NAMING_MS:
            raise ValueError(
                "collection.unnamed_delay_s must be at least 10 s more than admission.max_cache_wait_ms: a repair that "
                "has just copied must have the time to name the bookie"
            )
        if set(self.journal_directories) & set(self.ledger_directories):
            raise ValueError("a directory is either one of journals or one of entry logs")
        return self


class ClientSettings(Settings):
    """One client."""

    service: ClassVar[str] = "tallybook-client"
    """What it is called in traces."""

    security: SecurityDirectory = ""
    traces: Traces = ""
    archive_keys: ArchiveKeysFile = ""
    max_batch_bytes: Size = Field(_size(528 * 1024), description="Encoded size at which a batch is sealed.")
    max_in_flight_batches: Count = Field(8, description="Unconfirmed batches of one ledger before appends gather.")
    max_pending_bytes: Size = Field(_size(64 * MIB), description="Appends not yet confirmed, over all ledgers.")
    max_entry_bytes: Size = Field(_size(MAX_ENTRY_BYTES), description="Largest entry accepted.")
    add_timeout_ms: Wait = Field(10_000, description="Time without an ack after which a bookie has failed.")
    away_timeout_ms: Wait = Field(
        4_000,
        description="Absence after which another bookie takes a member's place; a quarter of it where nothing can be "
        "confirmed without that member.",
    )
    ensemble_change: bool = Field(True, description="Replace bookies that fail while a ledger is written.")
    max_ensemble_changes: Count = Field(1_000, description="Changes of one ledger's ensemble before its writer fails.")
    delay_ensemble_change: bool = Field(
        False,
        description="Replace an absent bookie only when the members that serve cannot confirm every entry. A bookie "
        "that refuses entries (read-only, failed disk) is replaced at once.",
    )
    request_timeout_ms: Wait = Field(5_000, description="Deadline of one read, fence or LAC request.")
    connect_timeout_ms: Wait = Field(3_000, description="Deadline of opening a connection to a bookie.")
    reconnect_ms: Wait = Field(500, description="Pause between attempts to reach a lost bookie.")
    metadata_timeout_ms: Wait = Field(10_000, description="Deadline of one metadata operation.")
    explicit_lac_ms: Wait = Field(5, description="Silence after which the LAC is sent on its own.")
    read_bytes: Room = Field(_size(2 * MIB), description="Bytes asked for in one read request.")
    tail_wait_ms: Wait = Field(5_000, description="Longest long poll for new entries.")
    speculative_read_ms: Milliseconds = Field(
        20,
        description="Shortest wait for an answer to a read before another replica is asked as well; how long it really "
        "is follows from the answers before. 0 asks one replica at a time.",
    )
    archive_index_bytes: Size = Field(
        _size(64 * MIB), description="Memory for what says where in archived objects an entry lies."
    )
    archive_cache_bytes: Size = Field(
        _size(32 * MIB), description="Memory for pages of archived entries that may be asked for again."
    )
    placement: PlacementPolicy = Field(
        "rack_aware", description="How bookies are chosen: spread over racks (`rack_aware`) or regardless (`random`)."
    )
    quarantine_ms: Milliseconds = Field(
        60_000,
        description="How long new ensembles avoid a bookie that failed; doubled, up to 30 min, if it fails again; "
        "0 is not at all.",
    )

    @model_validator(mode="after")
    def _consistent(self) -> Self:
        if not 256 <= self.max_batch_bytes <= MAX_BATCH_BYTES:
            raise ValueError(f"max_batch_bytes must lie in 256 .. {MAX_BATCH_BYTES}")
        if self.max_entry_bytes > MAX_ENTRY_BYTES:
            raise ValueError(f"max_entry_bytes must not exceed {MAX_ENTRY_BYTES}")
        if self.max_pending_bytes < self.max_batch_bytes:
            raise ValueError("max_pending_bytes must hold at least one batch")
        return self


class OffloadSettings(Settings):
    """The offloader: what goes to the archive, when, and how fast."""

    security: SecurityDirectory = ""
    archive_keys: ArchiveKeysFile = ""
    min_age_s: Seconds = Field(0, description="Age since its creation at which a closed ledger may be archived.")
    min_bytes: Size = Field(_size(0), description="Payload below which a ledger is never archived.")
    own_object_bytes: Size = Field(_size(32 * MIB), description="Payload from which a ledger has its own object.")
    set_object_bytes: Size = Field(_size(128 * MIB), description="Payload that small ledgers share an object up to.")
    set_object_ledgers: Count = Field(1_000, description="Most ledgers in one object.")
    max_set_wait_s: Seconds = Field(
        600, description="How long a small ledger waits for others to share an object with, once it may be archived."
    )
    compact_below_bytes: Size = Field(
        _size(32 * MIB), description="Payload of living ledgers below which an object is merged with others."
    )
    compact_dead_percent: Percent = Field(
        50, description="Part of an object that deleted ledgers leave behind at which it is written anew without them."
    )
    row_group_bytes: Room = Field(_size(8 * MIB), description="Payload of a row group.")
    deletion_lag_s: Seconds = Field(
        14_400, description="Time between archiving a ledger and letting bookies drop their copies of it."
    )
    keep_copies: bool = Field(False, description="Never let bookies drop their copies.")
    attempt_ttl_s: Seconds = Field(3_600, description="Age at which an attempt, or an upload, is taken for dead.")
    orphan_delay_s: Seconds = Field(
        600, description="Time between finding that no ledger names an object and removing it: readers may be at it."
    )
    transaction_ttl_s: Seconds = Field(
        604_800,
        description="Time since the creation of its youngest ledger after which a transaction that nobody has "
        "committed is given up, and its ledgers are deleted.",
    )
    interval_s: Seconds = Field(30, description="Pause between looks for work.")
    retry_s: Seconds = Field(
        60, description="Pause before a ledger that could not be archived is tried again; it doubles, up to an hour."
    )
    tidy_interval_s: Seconds = Field(
        600,
        description="Time between listings of the bucket, to merge small objects and to remove what belongs to nobody; "
        "0: with every look for work.",
    )
    concurrent_objects: Count = Field(2, description="Objects written at a time.")
    bytes_per_second: Size = Field(_size(0), description="Payload read from bookies per second; 0 is no limit.")
    lease_s: Seconds = Field(10, description="Silence after which another offloader takes over.")
    http_listen: Annotated[str, AfterValidator(address)] = Field(
        "127.0.0.1:0", description="Host and port of health and metrics; port 0 is any free one."
    )

    @model_validator(mode="after")
    def _consistent(self) -> Self:
        if self.own_object_bytes > self.set_object_bytes:
            raise ValueError("own_object_bytes must not exceed set_object_bytes")
        if self.lease_s < 1 or self.interval_s < 1 or self.attempt_ttl_s < 1:
            raise ValueError("lease_s, interval_s and attempt_ttl_s must be at least 1")
        return self


class RepairSettings(Settings):
    """The repair: when a bookie counts as lost, how often copies are looked at, and how fast they are made."""

    security: SecurityDirectory = ""
    archive_keys: ArchiveKeysFile = ""
    lost_after_s: Seconds = Field(
        300,
        description="Absence after which a bookie counts as lost, and others take its places; longer than a restart.",
    )
    open_grace_s: Seconds = Field(
        60,
        description="How long an open ledger may name a bookie that is lost, draining, or lost its data in its last "
        "fragment before it is recovered, which ends its writer; and one without a writer may lack copies there.",
    )
    interval_s: Seconds = Field(30, description="Pause between looks at bookies and ledgers.")
    check_period_s: Seconds = Field(
        7 * 86_400, description="Seconds in which all copies of all ledgers are looked at once; 0: never."
    )
    concurrent_ledgers: Count = Field(
        16, description="Ledgers mended at a time by one process; a periodic check looks at 2."
    )
    bytes_per_second: Size = Field(_size(0), description="Copied per second by one process; 0 is no limit.")
    lease_s: Seconds = Field(10, description="Silence after which another auditor, or replicator, takes over.")
    placement: PlacementPolicy = Field("rack_aware", description="How replacements are chosen, as for clients.")
    http_listen: Annotated[str, AfterValidator(address)] = Field(
        "127.0.0.1:0", description="Host and port of health and metrics; port 0 is any free one."
    )

    @model_validator(mode="after")
    def _consistent(self) -> Self:
        if self.lease_s < 1 or self.interval_s < 1:
            raise ValueError("lease_s and interval_s must be at least 1")
        return self


class GatewayClientSettings(ClientSettings):
    """The client of a gateway."""

    service: ClassVar[str] = "tallybook-gateway"

    # Messages come one at a time, so with many batches in flight each is sent as soon as it is there, and a batch costs
    # a bookie about the same, small or large. With fewer in flight, more messages share one.
    max_in_flight_batches: Count = Field(3, description="Unconfirmed batches of one ledger before appends gather.")


class GatewaySettings(Settings):
    """A gateway: where it serves, and what its clients may take of it."""

    security: SecurityDirectory = ""
    insecure: Insecure = False
    traces: Traces = ""
    listen: Annotated[str, AfterValidator(address)] = Field(
        "127.0.0.1:0", description="Host and port of the gRPC server; port 0 is any free one."
    )
    token_listen: Annotated[str, AfterValidator(address_or_none)] = Field(
        "",
        description="With security, host and port for gRPC clients that have a token in place of a certificate; empty: "
        "none.",
    )
    http_listen: Annotated[str, AfterValidator(address)] = Field(
        "127.0.0.1:0", description="Host and port of health and metrics; port 0 is any free one."
    )
    metadata: str = Field(..., description="URI of the metadata store.", min_length=1)
    max_connections: Count = Field(
        1_024,
        description="Connections of clients; of more, those without an authenticated call are dropped first.",
    )
    advertise: str = Field(
        "",
        max_length=255,
        description="Host and port at which clients reach this gateway, as others tell those who want a stream that it "
        "writes; if not given, the address that it serves at.",
    )
    max_streams: Count = Field(1_024, description="Append, Read, Tail and Subscribe streams at once; more are refused.")
    max_connection_streams: Count = Field(64, description="The same on one connection.")
    max_reserved_bytes: Size = Field(
        _size(512 * MIB),
        ge=8 * MIB,
        description="Memory for the data of all streams: an Append stream reserves its credit, a Read, Tail or "
        "Subscribe two reads of `client.read_bytes`, a batch and a message, about 5.5 MiB. Streams that do not fit are "
        "refused.",
    )
    max_connection_bytes: Size = Field(_size(128 * MIB), ge=8 * MIB, description="The same for one connection.")
    credit_bytes: Size = Field(
        _size(16 * MIB),
        ge=MIB // 16,
        le=64 * MIB,
        description="Most credit that an Append stream is given; never more than an eighth of the room that is left.",
    )
    message_bytes: Room = Field(
        _size(MIB // 2),
        le=2 * MIB,
        description="Payload of a message of Read, Tail and Subscribe, unless the client asks for other.",
    )
    slow_reader_ms: Wait = Field(
        30_000, description="Time in which a client must take a message, or be cut off as too slow."
    )
    max_writers: Count = Field(
        1_024,
        description="Streams of records that are written through this gateway at once; more are refused, unless one of "
        "them is idle.",
    )
    max_id_bytes: Size = Field(
        _size(512 * MIB),
        description="Memory for the ids by which streams that are written through this gateway know records again: 700 "
        "bytes and the id for each of the last `dedup_records` that has one. One stream is given no more than is left. "
        "Records that do not fit are refused.",
    )
    writer_idle_ms: Milliseconds = Field(
        5_000,
        description="How long the writer of a stream is kept when nobody appends any more; others wait for it.",
    )
    owner_wait_ms: Annotated[int, Field(ge=0, le=60_000), number] = Field(
        20_000,
        description="How long a client waits for a stream, or a subscription, that somebody else has, unless it says "
        "otherwise. One that died is known to be gone after ten seconds.",
    )
    keep_streams_s: Seconds = Field(
        60,
        description="Pause between looks at all streams, for what retention, truncation and deletions leave behind; "
        "one gateway of a cluster does it. 0: none.",
    )
    stop_ms: Milliseconds = Field(
        10_000, description="How long a gateway that stops may take to close the ledgers and streams that it writes."
    )
    client: GatewayClientSettings = Field(default_factory=GatewayClientSettings)

    @model_validator(mode="after")
    def _consistent(self) -> Self:
        if self.token_listen and not self.security:
            raise ValueError("token_listen is for a gateway with security")
        return self


class ConsoleSettings(Settings):
    """A console: where it serves operators, and which cluster it shows."""

    security: SecurityDirectory = ""
    listen: Annotated[str, AfterValidator(address)] = Field(
        "127.0.0.1:7480",
        description="Host and port of page and endpoints; port 0 is any free one. Without security, of loopback only.",
    )
    hosts: Hosts = Field(
        (),
        max_length=64,
        description="Names that browsers reach it by, besides addresses, `localhost`, the name of its machine and "
        "those of its certificate; in the environment with commas between them.",
    )
    processes: Addresses = Field(
        (),
        max_length=1_000,
        description="Addresses, HOST:PORT, of health and metrics of gateways, offloaders and repairs, for the "
        "diagnosis; bookies are found by themselves. In the environment with commas between them.",
    )
    metadata: str = Field(..., description="URI of the metadata store.", min_length=1)
    client: ClientSettings = Field(default_factory=ClientSettings)
