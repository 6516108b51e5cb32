"""Settings of a repair process: auditor and replicator."""

from __future__ import annotations

from typing import Annotated, Self

from pydantic import AfterValidator, Field, model_validator

from .base import Settings, byte_size
from .types import ArchiveKeysFile, Count, PlacementPolicy, Seconds, SecurityDirectory, Size, address


class RepairSettings(Settings):
    """Settings of a repair process: when a bookie counts as lost, how often and how fast it checks copies."""

    security: SecurityDirectory = ""
    archive_keys: ArchiveKeysFile = ""
    lost_after_s: Seconds = Field(
        default=300,
        description="Absence after which a bookie counts as lost and is replaced; longer than a restart.",
    )
    open_grace_s: Seconds = Field(
        default=60,
        description="How long the last fragment of an open ledger may name a bookie that is lost, draining, or lost "
        "its data, "
        "before the ledger is recovered, which ends its writer; also how long one without a writer may lack copies "
        "there.",
    )
    interval_s: Seconds = Field(default=30, description="Pause between checks of bookies and ledgers.")
    check_period_s: Seconds = Field(
        default=7 * 86_400, description="Seconds in which all copies of all ledgers are checked once; 0: never."
    )
    concurrent_ledgers: Count = Field(
        default=16, description="Ledgers repaired concurrently by one process; a periodic check takes 2."
    )
    bytes_per_second: Size = Field(
        default=byte_size(0), description="Bytes copied per second by one process; 0 is no limit."
    )
    lease_s: Seconds = Field(
        default=10, description="Lease time: after a longer silence another auditor, or replicator, takes over."
    )
    placement: PlacementPolicy = Field(default="rack_aware", description="How replacements are chosen, as for clients.")
    http_listen: Annotated[str, AfterValidator(address)] = Field(
        default="127.0.0.1:0", description="Host and port of health and metrics; port 0 is any free one."
    )

    @model_validator(mode="after")
    def _consistent(self) -> Self:
        if self.lease_s < 1 or self.interval_s < 1:
            raise ValueError("lease_s and interval_s must be at least 1")
        return self
