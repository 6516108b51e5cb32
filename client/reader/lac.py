"""Learning the last add confirmed (LAC) of a ledger that is still being written.

One bookie proves little: it may be new, slow, or cut off from the writer. An answer counts
as certain once members of every write set gave one, because then every ack quorum is met.
"""

from __future__ import annotations

import asyncio
from typing import NamedTuple

from tallybook.core.answers import LacAnswer
from tallybook.core.errors import BookieUnavailable, EntryAbsent, TallybookError, is_defect
from tallybook.core.ids import NO_ENTRY
from tallybook.metadata.model import LedgerMetadata
from tallybook.metadata.store import LedgerWatch
from tallybook.runtime.clock import Clock
from tallybook.runtime.tasks import Tasks

from ..ports import Connections


class TailNews(NamedTuple):
    """Why a wait at the tail of a ledger ended. Neither: the poll did."""

    answer: LacAnswer | None
    """The best that a bookie told."""
    metadata_changed: bool


async def highest_lac(metadata: LedgerMetadata, connections: Connections) -> int:
    """The highest LAC that the bookies of the last fragment answer.

    Raises:
        BookieUnavailable: the answers do not cover every write set.
    """
    told = await _told(metadata, connections)
    if not metadata.quorum.covered(told):
        bookies = metadata.last_fragment.bookies
        silent = [bookie_id for position, bookie_id in enumerate(bookies) if position not in told]
        raise BookieUnavailable(f"ledger {metadata.ledger_id}: too few bookies tell its LAC; no answer from {silent}")
    return max(*told.values(), metadata.last_fragment.first_entry_id - 1, NO_ENTRY)


async def told_lac(metadata: LedgerMetadata, connections: Connections) -> int:
    """The highest LAC that any bookie of the last fragment answers; a higher one may have been confirmed.

    Raises:
        BookieUnavailable: none answers.
    """
    told = await _told(metadata, connections)
    if not told:
        raise BookieUnavailable(f"ledger {metadata.ledger_id}: no bookie tells its LAC")
    return max(*told.values(), metadata.last_fragment.first_entry_id - 1, NO_ENTRY)


async def _told(metadata: LedgerMetadata, connections: Connections) -> dict[int, int]:
    """The LAC that each bookie of the last fragment answers, by position."""
    answers = await asyncio.gather(
        *(_read_lac(metadata.ledger_id, bookie_id, connections) for bookie_id in metadata.last_fragment.bookies)
    )
    return {position: lac for position, lac in enumerate(answers) if lac is not None}


async def _read_lac(ledger_id: int, bookie_id: str, connections: Connections) -> int | None:
    try:
        connection = await connections.get(bookie_id)
        return (await connection.read_lac(ledger_id)).lac
    except EntryAbsent:
        return NO_ENTRY
    except TallybookError as error:
        if is_defect(error):
            raise
        # No answer, whatever its reason; whether the others suffice is decided by coverage.
        return None


async def wait_for_lac(
    metadata: LedgerMetadata,
    connections: Connections,
    *,
    above: int,
    timeout_ms: int,
    changed: LedgerWatch,
    clock: Clock,
    tasks: Tasks,
    retry_s: float,
) -> TailNews:
    """Wait until a bookie tells of a LAC above ``above`` or of a fence, or the metadata may have changed.

    All bookies of the last fragment are asked, because any one of them may be cut off from the
    writer.
    """

    async def poll(bookie_id: str) -> LacAnswer | None:
        try:
            connection = await connections.get(bookie_id)
            return await connection.wait_lac(metadata.ledger_id, above, timeout_ms)
        except TallybookError as error:
            if is_defect(error):
                raise
            # Others may answer; ask this one again only after a pause.
            await clock.sleep(max(retry_s, timeout_ms / 1000))
            return None

    name = f"tail-{metadata.ledger_id}"
    polls = [tasks.spawn(poll(bookie_id), name=name) for bookie_id in metadata.last_fragment.bookies]
    change = tasks.spawn(_change(changed), name=name)
    waiting = [*polls, change]
    try:
        await asyncio.wait(waiting, return_when=asyncio.FIRST_COMPLETED)
        # In the order of the ensemble, so that the same run always takes the same answer.
        finished = [poll.result() for poll in polls if poll.done()]
        answers = [answer for answer in finished if answer is not None]
        best = max(answers, key=lambda answer: (answer.lac, answer.fenced), default=None)
        return TailNews(best, change.done())
    finally:
        for future in waiting:
            future.cancel()
        await asyncio.gather(*waiting, return_exceptions=True)


async def _change(watch: LedgerWatch) -> LacAnswer | None:
    await watch.changed()
    return None
