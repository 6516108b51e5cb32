"""Finding one batch in the journal of a bookie that runs: for an operator with a question, for no request on its way.

The journal has no index: it is read from its mark on, as a replay would, and whatever is written meanwhile may be seen
or not. So a batch that is not found may be there all the same, and nobody concludes anything from that.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from contextlib import aclosing
from typing import Final, NamedTuple, cast

from tallybook.core.errors import StorageError
from tallybook.runtime.disk import Disk

from .format import Mark
from .inspect import BlockView, RecordView, inspect_journal, live_blocks

LOCATE_SECONDS: Final = 5.0
"""After so long a batch counts as not found."""


class Located(NamedTuple):
    """Where a batch lies."""

    path: str
    mark: Mark
    offset: int
    """Of its block, in the file."""
    size: int
    """Of the batch."""


async def locate(disk: Disk, directory: str, ledger_id: int, entry_id: int) -> Located | None:
    """The block with the newest record of the batch that holds ``entry_id``, or ``None`` if it was not found."""
    try:
        async with asyncio.timeout(LOCATE_SECONDS):
            return await _located(disk, directory, ledger_id, entry_id)
    except (TimeoutError, StorageError):
        # It is being written while it is read: a block that is half there is no damage.
        return None


async def _located(disk: Disk, directory: str, ledger_id: int, entry_id: int) -> Located | None:
    found: Located | None = None
    view = await inspect_journal(disk, directory)
    async with aclosing(cast("AsyncGenerator[BlockView, None]", live_blocks(disk, view))) as blocks:
        async for block in blocks:
            for record in block.records:
                if record.ledger_id == ledger_id and _holds(record, entry_id):
                    found = Located(block.path, block.mark, block.offset, record.size_bytes)
    return found


def _holds(record: RecordView, entry_id: int) -> bool:
    first, last = record.first_entry_id, record.last_entry_id
    return first is not None and last is not None and first <= entry_id <= last
