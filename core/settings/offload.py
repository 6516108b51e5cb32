"""Settings of an offloader."""

from __future__ import annotations

from typing import Annotated, Self

from pydantic import AfterValidator, Field, model_validator

from ..limits import MIB
from .base import Settings, byte_size
from .types import ArchiveKeysFile, BufferSize, Count, PositivePercent, Seconds, SecurityDirectory, Size, address


class OffloadSettings(Settings):
    """Settings of an offloader: what it archives, when, and how fast."""

    security: SecurityDirectory = ""
    archive_keys: ArchiveKeysFile = ""
    min_age_s: Seconds = Field(default=0, description="Age since creation from which a closed ledger may be archived.")
    min_bytes: Size = Field(default=byte_size(0), description="Payload below which a ledger is never archived.")
    own_object_bytes: Size = Field(
        default=byte_size(32 * MIB), description="Payload from which a ledger gets its own object."
    )
    set_object_bytes: Size = Field(
        default=byte_size(128 * MIB), description="Maximum payload of an object shared by small ledgers."
    )
    set_object_ledgers: Count = Field(default=1_000, description="Maximum ledgers in one object.")
    max_set_wait_s: Seconds = Field(
        default=600, description="How long a small ledger waits for others to share an object with."
    )
    compact_below_bytes: Size = Field(
        default=byte_size(32 * MIB),
        description="Payload of existing ledgers below which an object is merged with others.",
    )
    compact_dead_percent: PositivePercent = Field(
        default=50, description="Share of deleted ledgers from which an object is rewritten without them."
    )
    row_group_bytes: BufferSize = Field(default=byte_size(8 * MIB), description="Payload of a row group.")
    deletion_lag_s: Seconds = Field(
        default=14_400, description="Time between archiving a ledger and permitting bookies to drop their copies."
    )
    keep_copies: bool = Field(default=False, description="Never permit bookies to drop their copies.")
    attempt_ttl_s: Seconds = Field(
        default=3_600, description="Age from which an attempt, or an upload, counts as abandoned."
    )
    orphan_delay_s: Seconds = Field(
        default=600,
        description="Time between finding an unreferenced object and removing it: readers may still use it.",
    )
    transaction_ttl_s: Seconds = Field(
        default=604_800,
        description="Time since the creation of its youngest ledger after which an uncommitted transaction is "
        "abandoned and its ledgers are deleted.",
    )
    interval_s: Seconds = Field(default=30, description="Pause between searches for work.")
    retry_s: Seconds = Field(
        default=60, description="Pause before a failed ledger is tried again; it doubles, up to an hour."
    )
    tidy_interval_s: Seconds = Field(
        default=600,
        description="Time between listings of the bucket, to merge small objects and to remove orphans; "
        "0: with every search for work.",
    )
    concurrent_objects: Count = Field(default=2, description="Objects written concurrently.")
    bytes_per_second: Size = Field(
        default=byte_size(0), description="Payload read from bookies per second; 0 is no limit."
    )
    lease_s: Seconds = Field(default=10, description="Lease time: after a longer silence another offloader takes over.")
    http_listen: Annotated[str, AfterValidator(address)] = Field(
        default="127.0.0.1:0", description="Host and port of health and metrics; port 0 is any free one."
    )

    @model_validator(mode="after")
    def _consistent(self) -> Self:
        if self.own_object_bytes > self.set_object_bytes:
            raise ValueError("own_object_bytes must not exceed set_object_bytes")
        if self.lease_s < 1 or self.interval_s < 1 or self.attempt_ttl_s < 1:
            raise ValueError("lease_s, interval_s and attempt_ttl_s must be at least 1")
        return self
