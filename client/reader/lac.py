"""Learning the last add confirmed (LAC) of a ledger that is still being written.

One bookie proves little: it may be new, slow, or cut off from the writer. An answer counts
as certain once members of every write set gave one, because then every ack quorum is met.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection
from typing import NamedTuple

from tallybook.core.answers import LacAnswer
from tallybook.core.errors import BookieUnavailable, Busy, EntryAbsent, TallybookError, is_defect
from tallybook.core.ids import NO_ENTRY
from tallybook.metadata.model import LedgerMetadata
from tallybook.metadata.store import LedgerWatch
from tallybook.runtime.clock import Clock
from tallybook.runtime.tasks import Tasks, unless_set

from ..ports import Connections


class TailNews(NamedTuple):
    """Why a wait at the tail of a ledger ended. Neither: the poll did."""

    answer: LacAnswer | None
    """The best that a bookie told."""
    metadata_changed: bool


async def highest_lac(metadata: LedgerMetadata, connections: Connections, *, clock: Clock, deadline: float) -> int:
    """The highest LAC that the bookies of the last fragment answer.

    Args:
        deadline: monotonic second until which bookies that are BUSY are asked again, where the others do not suffice.

    Raises:
        BookieUnavailable: the answers do not cover every write set.
    """
    covered = metadata.quorum.covered
    told = await _told(metadata, connections, clock, deadline, covered)
    if not covered(told):
        bookies = metadata.last_fragment.bookies
        silent = [bookie_id for position, bookie_id in enumerate(bookies) if position not in told]
        raise BookieUnavailable(f"ledger {metadata.ledger_id}: too few bookies tell its LAC; no answer from {silent}")
    return max(*told.values(), metadata.last_fragment.first_entry_id - 1, NO_ENTRY)


async def told_lac(metadata: LedgerMetadata, connections: Connections, *, clock: Clock, deadline: float) -> int:
    """The highest LAC that any bookie of the last fragment answers; a higher one may have been confirmed.

    Args:
        deadline: monotonic second until which bookies that are BUSY are asked again, where nobody else answers.

    Raises:
        BookieUnavailable: none answers.
    """
    told = await _told(metadata, connections, clock, deadline, bool)
    if not told:
        raise BookieUnavailable(f"ledger {metadata.ledger_id}: no bookie tells its LAC")
    return max(*told.values(), metadata.last_fragment.first_entry_id - 1, NO_ENTRY)


async def _told(
    metadata: LedgerMetadata,
    connections: Connections,
    clock: Clock,
    deadline: float,
    suffice: Callable[[Collection[int]], bool],
) -> dict[int, int]:
    """The LAC that each bookie of the last fragment answers, by position.

    Args:
        suffice: whether answers from these positions do; if so, nobody waits for one that is BUSY.
    """
    told: dict[int, int] = {}
    enough = asyncio.Event()

    async def ask(position: int, bookie_id: str) -> None:
        while True:
            answer = await _read_lac(metadata.ledger_id, bookie_id, connections)
            if isinstance(answer, int):
                told[position] = answer
                if suffice(told):
                    enough.set()
            if not isinstance(answer, Busy):
                return
            pause_s = max(answer.retry_after_ms, 1) / 1000
            if clock.monotonic() + pause_s >= deadline:
                return
            await unless_set(enough, clock.sleep(pause_s))
            if enough.is_set():
                return

    asking = (ask(position, bookie_id) for position, bookie_id in enumerate(metadata.last_fragment.bookies))
    # A defect is raised only when all have ended: none is to go on with nobody to wait for it.
    for outcome in await asyncio.gather(*asking, return_exceptions=True):
        if outcome is not None:
            raise outcome
    return told


async def _read_lac(ledger_id: int, bookie_id: str, connections: Connections) -> int | TallybookError:
    """The LAC that one bookie answers, or why it does not."""
    try:
        connection = await connections.get(bookie_id)
        return (await connection.read_lac(ledger_id)).lac
    except EntryAbsent:
        return NO_ENTRY
    except TallybookError as error:
        if is_defect(error):
            raise
        # Whatever its reason: whether the others suffice is decided by coverage.
        return error


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
