"""Learning the last add confirmed (LAC) of a ledger that is still being written.

One bookie proves little: it may be new, slow, or cut off from the writer. An answer counts
as certain once members of every write set gave one, because then every ack quorum is met.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection
from typing import Final, NamedTuple

from tallybook.core.answers import LacAnswer
from tallybook.core.errors import BookieUnavailable, Busy, EntryAbsent, TallybookError, is_defect
from tallybook.core.ids import NO_ENTRY
from tallybook.core.limits import KIB
from tallybook.metadata.model import LedgerMetadata
from tallybook.metadata.store import LedgerWatch
from tallybook.runtime.clock import Clock
from tallybook.runtime.tasks import Tasks, unless_set

from ..ports import Connections
from ..refusals import is_refusal, refusal_of_all

ASK_OTHERS_SECONDS: Final = 0.02
"""Silence of the bookie that is asked alone after which the others are asked, too."""
BROUGHT_BYTES: Final = 256 * KIB
"""About how much the answer of one bookie brings along; the rest is read."""
ASK_ALL_SECONDS: Final = 1.0
"""For so long at the most one bookie is asked alone."""


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
        AccessDenied, Unauthenticated: no bookie lets this client in.
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
        AccessDenied, Unauthenticated: none lets this client in.
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

    Raises:
        AccessDenied, Unauthenticated: none lets this client in.
    """
    told: dict[int, int] = {}
    failed: dict[int, TallybookError] = {}
    enough = asyncio.Event()

    async def ask(position: int, bookie_id: str) -> None:
        while True:
            answer = await _read_lac(metadata, bookie_id, connections)
            if isinstance(answer, int):
                told[position] = answer
                if suffice(told):
                    enough.set()
            else:
                failed[position] = answer
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
    bookies = range(len(metadata.last_fragment.bookies))
    refusal = refusal_of_all([failed.get(position) for position in bookies], f"ledger {metadata.ledger_id}")
    if refusal is not None and not told:
        raise refusal
    return told


async def _read_lac(metadata: LedgerMetadata, bookie_id: str, connections: Connections) -> int | TallybookError:
    """The LAC that one bookie answers, or why it does not."""
    try:
        connection = await connections.get(bookie_id)
        return (await connection.read_lac(metadata.ledger_id, identity=metadata.identity)).lac
    except EntryAbsent:
        return NO_ENTRY
    except TallybookError as error:
        if is_defect(error):
            raise
        # Whatever its reason: whether the others suffice is decided by coverage.
        return error


def _news_of(told: tuple[LacAnswer, str]) -> tuple[int, bool, int]:
    """Of several answers, the one that tells most."""
    answer, _ = told
    return answer.lac, answer.fenced, len(answer.batches)


class TailPolls:
    """Long polls at the tail of one ledger, and the watch of its metadata.

    Whoever told of news first is asked alone while it keeps answering soon. It may be behind the others, or cut off
    from the writer: so after ``ASK_OTHERS_SECONDS`` without an answer all are asked, and in any case every
    ``ASK_ALL_SECONDS``, and the first to answer is asked from then on.

    Args:
        changed: tells that the metadata may have changed.
        retry_s: pause before a bookie that failed is asked again.
    """

    def __init__(
        self, connections: Connections, changed: LedgerWatch, *, clock: Clock, tasks: Tasks, retry_s: float
    ) -> None:
        self._connections = connections
        self._watch = changed
        self._clock = clock
        self._tasks = tasks
        self._retry_s = retry_s
        self._first: str | None = None
        self._first_until = clock.monotonic()
        self._refused: dict[str, TallybookError] = {}
        """Who did not let this client in when it was asked last, and why."""
        self._change: asyncio.Task[None] | None = None

    async def news(self, metadata: LedgerMetadata, *, above: int, timeout_ms: int, bring: bool) -> TailNews:
        """Wait until a bookie tells of a LAC above ``above`` or of a fence, or the metadata may have changed.

        Args:
            bring: whether one of them is to bring along what is behind ``above``.

        Raises:
            AccessDenied, Unauthenticated: no bookie lets this client in.
        """
        name = f"tail-{metadata.ledger_id}"
        # Who gets the next entries hears of the LAC with them, and can bring them along.
        holders = metadata.bookies_of(above + 1)
        bookies = sorted(metadata.last_fragment.bookies, key=lambda each: (each not in holders, each != self._first))
        alone = self._first == bookies[0] and self._clock.monotonic() < self._first_until
        change = self._watching(name)

        def ask(bookie_id: str) -> asyncio.Task[LacAnswer | None]:
            max_bytes = BROUGHT_BYTES if bring and bookie_id == bookies[0] else 0
            poll = self._poll(metadata, bookie_id, above, timeout_ms, max_bytes, bookies)
            return self._tasks.spawn(poll, name=name)

        polls = [ask(bookie_id) for bookie_id in (bookies[:1] if alone else bookies)]
        try:
            patience_s = ASK_OTHERS_SECONDS if alone else None
            done, _ = await asyncio.wait([*polls, change], timeout=patience_s, return_when=asyncio.FIRST_COMPLETED)
            if not done:
                polls += [ask(bookie_id) for bookie_id in bookies[1:]]
                await asyncio.wait([*polls, change], return_when=asyncio.FIRST_COMPLETED)
            # In the order of the asking, so that the same run always takes the same answer.
            answers = [
                (answer, bookie_id)
                for poll, bookie_id in zip(polls, bookies, strict=False)
                if poll.done() and (answer := poll.result()) is not None
            ]
        finally:
            for poll in polls:
                poll.cancel()
            await asyncio.gather(*polls, return_exceptions=True)
        refusal = refusal_of_all([*map(self._refused.get, bookies)], f"ledger {metadata.ledger_id}")
        if refusal is not None:
            raise refusal
        best, first = max(answers, key=_news_of, default=(None, None))
        if len(polls) > 1:
            self._first, self._first_until = first, self._clock.monotonic() + ASK_ALL_SECONDS
        return TailNews(best, self._has_changed(change))

    async def changed(self, timeout_s: float) -> bool:
        """Wait until the metadata may have changed; ``False``: they have not."""
        change = self._watching("tail")
        await asyncio.wait([change], timeout=timeout_s)
        return self._has_changed(change)

    def _watching(self, name: str) -> asyncio.Task[None]:
        if self._change is None:
            self._change = self._tasks.spawn(self._watch.changed(), name=name)
        return self._change

    def _has_changed(self, change: asyncio.Task[None]) -> bool:
        if not change.done():
            return False
        self._change = None
        change.result()
        return True

    async def _poll(
        self,
        metadata: LedgerMetadata,
        bookie_id: str,
        above: int,
        timeout_ms: int,
        max_bytes: int,
        others: Collection[str],
    ) -> LacAnswer | None:
        try:
            connection = await self._connections.get(bookie_id)
            self._refused.pop(bookie_id, None)
            return await connection.wait_lac(
                metadata.ledger_id, above, timeout_ms, max_bytes, identity=metadata.identity
            )  # fmt: skip
        except TallybookError as error:
            if is_defect(error):
                raise
            self._refused.pop(bookie_id, None)
            if is_refusal(error):
                self._refused[bookie_id] = error
                if all(other in self._refused for other in others):
                    return None
            # Others may answer; ask this one again only after a pause.
            await self._clock.sleep(max(self._retry_s, timeout_ms / 1000))
            return None

    async def close(self) -> None:
        """Stop watching."""
        if self._change is not None:
            self._change.cancel()
            await asyncio.gather(self._change, return_exceptions=True)
        await self._watch.close()
