"""Settings of a client."""

from __future__ import annotations

from typing import ClassVar, Self

from pydantic import Field, model_validator

from ..limits import MAX_BATCH_BYTES, MAX_ENTRY_BYTES, MIB
from .base import Settings, byte_size
from .types import (
    ArchiveKeysFile,
    BufferSize,
    Count,
    Milliseconds,
    PlacementPolicy,
    PositiveMilliseconds,
    SecurityDirectory,
    Size,
    Traces,
)


class ClientSettings(Settings):
    """Settings of a client."""

    service: ClassVar[str] = "tallybook-client"
    """Service name in traces."""

    security: SecurityDirectory = ""
    traces: Traces = ""
    archive_keys: ArchiveKeysFile = ""
    max_batch_bytes: Size = Field(default=byte_size(528 * 1024), description="Encoded size at which a batch is sealed.")
    max_in_flight_batches: Count = Field(
        default=8, description="Unconfirmed batches of one ledger before appends gather."
    )
    max_pending_bytes: Size = Field(
        default=byte_size(64 * MIB), description="Appends not yet confirmed, over all ledgers."
    )
    max_entry_bytes: Size = Field(default=byte_size(MAX_ENTRY_BYTES), description="Largest entry accepted.")
    add_timeout_ms: PositiveMilliseconds = Field(
        default=10_000, description="Time without an ack after which a bookie has failed."
    )
    away_timeout_ms: PositiveMilliseconds = Field(
        default=4_000,
        description="Absence after which another bookie replaces an ensemble member; a quarter of it if nothing can be "
        "confirmed without that member.",
    )
    ensemble_change: bool = Field(default=True, description="Replace bookies that fail while a ledger is written.")
    max_ensemble_changes: Count = Field(
        default=1_000, description="Changes of one ledger's ensemble before its writer fails."
    )
    delay_ensemble_change: bool = Field(
        default=False,
        description="Replace an absent bookie only when the remaining members cannot confirm every entry. A bookie "
        "that refuses entries (read-only, failed disk) is replaced at once.",
    )
    request_timeout_ms: PositiveMilliseconds = Field(
        default=5_000, description="Deadline of one read, fence or LAC request."
    )
    connect_timeout_ms: PositiveMilliseconds = Field(
        default=3_000, description="Deadline of opening a connection to a bookie."
    )
    reconnect_ms: PositiveMilliseconds = Field(
        default=500, description="Pause between attempts to reach a lost bookie."
    )
    metadata_timeout_ms: PositiveMilliseconds = Field(default=10_000, description="Deadline of one metadata operation.")
    explicit_lac_ms: PositiveMilliseconds = Field(
        default=5,
        description="Idle time after which the LAC is sent without a batch; at most 20 times as long while batches are "
        "unconfirmed.",
    )
    read_bytes: BufferSize = Field(default=byte_size(2 * MIB), description="Bytes requested in one read.")
    tail_wait_ms: PositiveMilliseconds = Field(default=5_000, description="Longest long poll for new entries.")
    speculative_read_ms: Milliseconds = Field(
        default=20,
        description="Minimum wait for an answer to a read before another replica is asked too; the actual wait "
        "follows from earlier answers. 0 asks one replica at a time.",
    )
    archive_index_bytes: Size = Field(
        default=byte_size(64 * MIB), description="Memory for the page indexes of archived objects."
    )
    archive_cache_bytes: Size = Field(
        default=byte_size(32 * MIB), description="Memory for cached pages of archived entries."
    )
    placement: PlacementPolicy = Field(
        default="rack_aware",
        description="How bookies are chosen: spread over racks (`rack_aware`) or at random (`random`).",
    )
    quarantine_ms: Milliseconds = Field(
        default=60_000,
        description="How long new ensembles avoid a bookie that failed; doubled, up to 30 min, if it fails again; "
        "0: no quarantine.",
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
