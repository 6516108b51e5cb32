"""A reader's view of its ledger: the metadata as last read, and the last add confirmed. Neither goes back."""

from __future__ import annotations

from tallybook.core.errors import PeerError
from tallybook.metadata.ledger.model import LedgerMetadata
from tallybook.runtime.concurrency.handle_lifetime import while_open

from .context import ReaderContext


class LedgerView:
    """The state of one reader.

    Attributes:
        metadata: the ledger's metadata as last read.
        lac: the last add confirmed: the highest entry id that may be read, -1 for none.
    """

    def __init__(self, metadata: LedgerMetadata, lac: int, context: ReaderContext) -> None:
        self.metadata = metadata
        self.lac = metadata.last_entry_id if metadata.closed else lac
        self._version: int | None = None
        self._context = context
        self._lifetime = context.lifetime

    def seen(self, lac: int) -> None:
        """Note a last add confirmed that a bookie has reported."""
        if not self.metadata.closed:
            self.lac = max(self.lac, lac)

    @while_open
    async def refresh(self) -> bool:
        """Read the metadata again; return whether they have changed. See ``LedgerReader.refresh``."""
        before = self.metadata
        found = await self._context.read_metadata(self.metadata.ledger_id)
        # Concurrent reads may complete in any order.
        if self._version is None or found.version > self._version:
            self.metadata, self._version = found
            # All entries before the last fragment are confirmed.
            last_fragment = self.metadata.last_fragment
            confirmed = self.metadata.last_entry_id if self.metadata.closed else last_fragment.first_entry_id - 1
            self.lac = max(self.lac, confirmed)
        return self.metadata != before

    async def changed_since(self, known: LedgerMetadata, *, needed: bool = False) -> bool:
        """Read the metadata again; return whether they differ from ``known``.

        Args:
            needed: raise if the store does not answer, instead of returning ``False``.

        Raises:
            NoSuchLedger: the ledger was deleted.
            DamagedFile, NewerFormat: the metadata cannot be read.
            PeerError: the store does not answer.
        """
        try:
            await self.refresh()
        except PeerError:
            if needed:
                raise
            return False
        # Compare with ``known``: another task may have read the change already.
        return self.metadata != known
