"""What a writer's driver tells: the port to whom its batches, and its fate, matter."""

from __future__ import annotations

from typing import Protocol

from tallybook.core.errors import TallybookError
from tallybook.metadata.model import LedgerMetadata


class WriterEvents(Protocol):
    """Whom the driver tells."""

    def confirmed(self, last_entry_id: int) -> None:
        """Every entry up to ``last_entry_id`` is confirmed."""

    def released(self, size: int) -> None:
        """So many bytes of batches are no longer held."""

    def ensemble_changed(self, metadata: LedgerMetadata) -> None:
        """The metadata store has confirmed another ensemble."""

    def sizes_known(self) -> None:
        """It is known how large a batch may be."""

    def died(self, error: TallybookError) -> None:
        """Nothing more will be confirmed."""
