"""The reading handle of the blocking client: the asyncio one, driven from the threads that read.

Ranges and tails come over a batch at a time, and a batch or two ahead of whoever asks for them. An
iterator that is left early ends the read behind it, as far as it is dropped then; keep one only
under ``contextlib.closing``.
"""

from __future__ import annotations

from typing import Final

from tallybook.core.batch import BatchHeader, Buffer, Entry
from tallybook.metadata.model import LedgerMetadata
from tallybook.runtime.blocking import LoopThread
from tallybook.runtime.loop_iteration import ItemIterator, LoopIterator

from .reader import handle
from .reader.ahead import Sealed

_ENTRIES_TOGETHER: Final = 16
"""Entries that cross over at a time where they do not come in batches. Each may be as large as an entry can be."""


class LedgerReader:
    """Reads one ledger up to its last add confirmed (LAC), which never falls. Several threads may share it."""

    def __init__(self, engine: handle.LedgerReader, loop: LoopThread) -> None:
        self._engine = engine
        self._loop = loop

    @property
    def id(self) -> int:
        """The ledger's id."""
        return self._engine.id

    @property
    def metadata(self) -> LedgerMetadata:
        """The ledger's metadata as last read."""
        return self._engine.metadata

    @property
    def last_add_confirmed(self) -> int:
        """Highest entry id that may be read, -1 for none."""
        return self._engine.last_add_confirmed

    @property
    def closed(self) -> bool:
        """Whether the end of the ledger is settled, as far as this handle knows."""
        return self._engine.closed

    # -- ranges -----------------------------------------------------------------------

    def read(self, first: int, last: int) -> ItemIterator[Entry]:
        """The entries ``first .. last``, both included, in order.

        Raises:
            InvalidArgument: negative ids, or last < first.
            ReadBeyondLac: ``last`` lies past the last add confirmed.
            EntryCorrupt, EntryUnknown, DataMissing: no replica has a good copy.
            PeerError, StorageError: none has, and this is the most serious of their answers. ``Busy``: all of them
                stayed so for as long as a request may take; read again later.
            MetadataUnavailable, DamagedFile: none has, and who has others by now cannot be read.
            NoSuchLedger: none has, because the ledger was deleted.
            HandleClosed: the client is closed.
        """
        return ItemIterator(self.read_batches(first, last))

    def read_batches(self, first: int, last: int) -> LoopIterator[list[Entry]]:
        """Like ``read``, but hands out the entries of a batch at a time: cheaper for bulk.

        Raises:
            As ``read``.
        """
        return self._loop.iterate(self._engine.read_batches(first, last))

    def read_sealed(self, first: int, last: int) -> LoopIterator[Sealed]:
        """Whole batches as the writer sealed them, verified, from the one that holds ``first`` to that of ``last``.

        For whoever copies a ledger: what comes back is byte for byte what bookies hold.

        Raises:
            As ``read``.
        """
        return self._loop.iterate(self._engine.read_sealed(first, last))

    def read_unconfirmed(self, first: int, last: int | None = None) -> LoopIterator[Entry]:
        """Like ``read``, but also past the last add confirmed: what the bookies have, up to the first gap.

        Good for a look at what a writer has under way, or has left behind, when a recovery is not wanted. Nothing
        above the last add confirmed is promised: an entry that was seen may yet vanish when the ledger is recovered.
        Past the end of a closed ledger there is nothing, whatever bookies still hold.

        Args:
            last: the last entry wanted; ``None``: whatever there is, which ends before the first entry that every
                bookie says it does not have.

        Raises:
            EntryAbsent: no bookie has this entry; those before it were handed out. Never without ``last``.
            As ``read`` otherwise, but for ``ReadBeyondLac``.
        """
        return self._loop.iterate(self._engine.read_unconfirmed(first, last), together=_ENTRIES_TOGETHER)

    def read_entry(self, entry_id: int) -> Entry:
        """One entry.

        Raises:
            As ``read``.
        """
        return self._loop.run(self._engine.read_entry(entry_id))

    def read_batch(self, entry_id: int) -> tuple[BatchHeader, Buffer]:
        """The verified batch that holds ``entry_id``, as the writer sealed it.

        Raises:
            As ``read``.
        """
        return self._loop.run(self._engine.read_batch(entry_id))

    # -- last add confirmed and tail --------------------------------------------------

    def refresh(self) -> bool:
        """Read the metadata again; say whether they are others than before. They never go back.

        Raises:
            NoSuchLedger: the ledger was deleted.
            MetadataUnavailable: the store does not answer.
            DamagedFile, NewerFormat: they cannot be decoded.
            HandleClosed: the client is closed.
        """
        return self._loop.run(self._engine.refresh())

    def read_last_add_confirmed(self) -> int:
        """Read the metadata, then ask the bookies for the last add confirmed; it never falls.

        Raises:
            BookieUnavailable: too few bookies answered to be sure.
            NoSuchLedger: the ledger was deleted.
            MetadataUnavailable, DamagedFile: the metadata cannot be read.
            HandleClosed: the client is closed.
        """
        return self._loop.run(self._engine.read_last_add_confirmed())

    def ask_last_add_confirmed(self) -> int:
        """Like ``read_last_add_confirmed``, but read the metadata only where too few bookies answer.

        What comes back was confirmed. There is more only if the ledger has gone to other bookies meanwhile.

        Raises:
            As ``read_last_add_confirmed``, but for ``MetadataUnavailable``.
        """
        return self._loop.run(self._engine.ask_last_add_confirmed())

    def try_read_last_add_confirmed(self) -> int:
        """Like ``read_last_add_confirmed``, but content with whatever bookies answer, and without the metadata.

        What comes back was confirmed; there may be more.

        Raises:
            BookieUnavailable: none answered.
            HandleClosed: the client is closed.
        """
        return self._loop.run(self._engine.try_read_last_add_confirmed())

    def tail(self, first: int = 0) -> ItemIterator[Entry]:
        """Entries from ``first`` on, as they are confirmed; ends when the ledger is closed and read.

        While the metadata store is away, a read that fails is tried again: other bookies may have the ledger by now.

        Raises:
            As ``read``; also NoSuchLedger when the ledger is deleted meanwhile, and DamagedFile where its metadata
                cannot be decoded. Never MetadataUnavailable.
        """
        return ItemIterator(self.tail_batches(first))

    def tail_batches(self, first: int = 0) -> LoopIterator[list[Entry]]:
        """Like ``tail``, but hands out the entries of a batch at a time: cheaper for bulk.

        Raises:
            As ``tail``.
        """
        return self._loop.iterate(self._engine.tail_batches(first))
