"""Finds one batch in the journal of a running bookie, for ``trace`` only.

The journal has no index: it is scanned from its mark on, as by a replay, and records written meanwhile may be missed.
So a batch that is not found may still be there.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from contextlib import aclosing
from typing import Final, NamedTuple, cast

from tallybook.core.errors import StorageError
from tallybook.runtime.disk.port import Disk

from .format import JournalMark
from .inspect import BlockView, RecordView, inspect_journal, live_blocks

LOCATE_SECONDS: Final = 5.0
"""After this long a batch counts as not found."""


class JournalLocation(NamedTuple):
    """Where a batch is in the journal."""

    path: str
    mark: JournalMark
    offset: int
    """Offset of its block in the file."""
    size: int
    """Size of the batch."""


async def locate(disk: Disk, directory: str, ledger_id: int, entry_id: int) -> JournalLocation | None:
    """Find the block with the newest record of the batch that holds ``entry_id``; ``None`` if it was not found."""
    try:
        async with asyncio.timeout(LOCATE_SECONDS):
            return await _located(disk, directory, ledger_id, entry_id)
    except (TimeoutError, StorageError):
        # The journal is being written while it is read: an incomplete block is no damage.
        return None


async def _located(disk: Disk, directory: str, ledger_id: int, entry_id: int) -> JournalLocation | None:
    found: JournalLocation | None = None
    view = await inspect_journal(disk, directory)
    async with aclosing(cast("AsyncGenerator[BlockView, None]", live_blocks(disk, view))) as blocks:
        async for block in blocks:
            for record in block.records:
                if record.ledger_id == ledger_id and _holds(record, entry_id):
                    found = JournalLocation(block.path, block.mark, block.offset, record.size_bytes)
    return found


def _holds(record: RecordView, entry_id: int) -> bool:
    first, last = record.first_entry_id, record.last_entry_id
    return first is not None and last is not None and first <= entry_id <= last
