"""What a long poll brings along: the batches behind what its reader has, so that it need not ask for them.

They are only ever extra. A bookie that has them not, or no room for them, tells the LAC alone, and the reader asks
the bookies that it would have asked anyway.
"""

from __future__ import annotations

from tallybook.core.answers import LacAnswer
from tallybook.core.errors import TallybookError, is_defect
from tallybook.runtime.wire import MAX_FRAMES

from .port import LedgerStore


async def with_batches(store: LedgerStore, ledger_id: int, above: int, answer: LacAnswer, max_bytes: int) -> LacAnswer:
    """``answer``, with batches from the one that holds entry ``above + 1`` up to the LAC, or about ``max_bytes``."""
    try:
        found = await store.read_batches(ledger_id, above + 1, answer.lac, max_bytes)
    except TallybookError as error:
        if is_defect(error):
            raise
        return answer
    return answer._replace(batches=found.batches[:MAX_FRAMES])
