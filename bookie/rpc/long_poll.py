"""Adds to the answer of a long poll the batches that follow what the reader has, so that it need not read them.

They are optional. A bookie that does not have them, or has no space for them, sends the LAC alone, and the reader then
reads from the bookies as usual.
"""

from __future__ import annotations

from tallybook.core.answers import LacAnswer
from tallybook.core.errors import TallybookError, is_defect
from tallybook.wire.batches import MAX_FRAMES

from ..port import LedgerStore


async def with_batches(store: LedgerStore, ledger_id: int, above: int, answer: LacAnswer, max_bytes: int) -> LacAnswer:
    """``answer`` with the batches from entry ``above + 1`` up to the LAC, or about ``max_bytes``."""
    try:
        found = await store.read_batches(ledger_id, above + 1, answer.lac, max_bytes)
    except TallybookError as error:
        if is_defect(error):
            raise
        return answer
    return answer._replace(batches=found.batches[:MAX_FRAMES])
