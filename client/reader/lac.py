"""Reads and follows the last add confirmed (LAC) of an open ledger.

One bookie proves little: it may be new, slow, or partitioned from the writer. The LAC is certain once members of every
write set answered, because then every ack quorum has answered.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection
from typing import Final, NamedTuple

from tallybook.core.answers import LacAnswer
from tallybook.core.errors import BookieUnavailable, Busy, EntryAbsent, TallybookError, is_defect
from tallybook.core.ids import NO_ENTRY
from tallybook.core.limits import KIB
from tallybook.metadata.ledger.model import LedgerMetadata
from tallybook.metadata.store import LedgerWatch
from tallybook.runtime.clock import Clock
from tallybook.runtime.concurrency.backoff import Backoff, jittered
from tallybook.runtime.rng import Rng
from tallybook.runtime.tasks import Tasks, run_until_set

from ..ports import Connections
from ..refusals import is_refusal, refusal_of_all

ASK_OTHERS_SECONDS: Final = 0.02
"""Silence of the only polled bookie after which the others are polled, too."""
PIGGYBACK_BYTES: Final = 256 * KIB
"""About how many bytes of entries a poll's answer contains; further entries are read."""
ASK_ALL_SECONDS: Final = 1.0
"""At most for this long a single bookie is polled alone."""


class TailUpdate(NamedTuple):
    """Why a wait at the tail of a ledger ended: an answer, changed metadata, or neither (timeout)."""

    answer: LacAnswer | None
    """The best answer of a bookie."""
    metadata_changed: bool


async def highest_lac(metadata: LedgerMetadata, connections: Connections, busy: Backoff) -> int:
    """The highest LAC that the bookies of the last fragment report.

    Args:
        busy: pauses before BUSY bookies are asked again, if the others are not enough.

    Raises:
        BookieUnavailable: the answers do not cover every write set.
        AccessDenied, Unauthenticated: every bookie refuses this client.
    """
    covered = metadata.quorum.covered
    lacs = await _reported(metadata, connections, busy, covered)
    if not covered(lacs):
        bookies = metadata.last_fragment.bookies
        silent = ", ".join(bookie_id for position, bookie_id in enumerate(bookies) if position not in lacs)
        raise BookieUnavailable(f"ledger {metadata.ledger_id}: too few bookies report its LAC; no answer from {silent}")
    return max(*lacs.values(), metadata.last_fragment.first_entry_id - 1, NO_ENTRY)


async def reported_lac(metadata: LedgerMetadata, connections: Connections, busy: Backoff) -> int:
    """The highest LAC that any bookie of the last fragment reports; a higher one may have been confirmed.

    Args:
        busy: pauses before BUSY bookies are asked again, if no other answers.

    Raises:
        BookieUnavailable: no bookie answers.
        AccessDenied, Unauthenticated: every bookie refuses this client.
    """
    lacs = await _reported(metadata, connections, busy, bool)
    if not lacs:
        raise BookieUnavailable(f"ledger {metadata.ledger_id}: no bookie reports its LAC")
    return max(*lacs.values(), metadata.last_fragment.first_entry_id - 1, NO_ENTRY)


async def _reported(
    metadata: LedgerMetadata, connections: Connections, busy: Backoff, suffice: Callable[[Collection[int]], bool]
) -> dict[int, int]:
    """The LAC that each bookie of the last fragment reports, by position.

    Args:
        suffice: whether answers from these positions are enough; then BUSY bookies are not asked again.

    Raises:
        AccessDenied, Unauthenticated: every bookie refuses this client.
    """
    lacs: dict[int, int] = {}
    failed: dict[int, TallybookError] = {}
    enough = asyncio.Event()

    async def ask(position: int, bookie_id: str) -> None:
        while True:
            answer = await _read_lac(metadata, bookie_id, connections)
            if isinstance(answer, int):
                lacs[position] = answer
                if suffice(lacs):
                    enough.set()
            else:
                failed[position] = answer
            if not isinstance(answer, Busy):
                return
            if not await run_until_set(enough, busy.pause(answer.retry_after_ms / 1000)) or enough.is_set():
                return

    asking = (ask(position, bookie_id) for position, bookie_id in enumerate(metadata.last_fragment.bookies))
    # A defect is raised only after all tasks have ended, so that none is left running.
    for outcome in await asyncio.gather(*asking, return_exceptions=True):
        if outcome is not None:
            raise outcome
    bookies = range(len(metadata.last_fragment.bookies))
    refusal = refusal_of_all([failed.get(position) for position in bookies], f"ledger {metadata.ledger_id}")
    if refusal is not None and not lacs:
        raise refusal
    return lacs


async def _read_lac(metadata: LedgerMetadata, bookie_id: str, connections: Connections) -> int | TallybookError:
    """The LAC that one bookie reports, or its error."""
    try:
        connection = await connections.get(bookie_id)
        return (await connection.read_lac(metadata.ledger_id, identity=metadata.identity)).lac
    except EntryAbsent:
        return NO_ENTRY
    except TallybookError as error:
        if is_defect(error):
            raise
        return error


def _value_of(polled: tuple[LacAnswer, str]) -> tuple[int, bool, int]:
    """Sort key of answers: the highest LAC, then a fence, then the most batches."""
    answer, _ = polled
    return answer.lac, answer.fenced, len(answer.batches)


class TailPolls:
    """Long polls at the tail of one ledger, and the watch of its metadata.

    The bookie that reported news first is polled alone while it keeps answering quickly. It may lag, or be partitioned
    from the writer. So after ``ASK_OTHERS_SECONDS`` without an answer, and at least every ``ASK_ALL_SECONDS``, all are
    polled, and the first to answer becomes the preferred one.

    Args:
        changed: the watch of the ledger's metadata.
        retry_s: pause before a failed bookie is polled again.
    """

    def __init__(
        self, connections: Connections, changed: LedgerWatch, *, clock: Clock, rng: Rng, tasks: Tasks, retry_s: float
    ) -> None:
        self._connections = connections
        self._watch = changed
        self._clock = clock
        self._rng = rng
        self._tasks = tasks
        self._retry_s = retry_s
        self._first: str | None = None
        self._first_until = clock.monotonic()
        self._refused: dict[str, TallybookError] = {}
        """Bookies that refused this client at the last poll, with their errors."""
        self._change: asyncio.Task[None] | None = None

    async def poll(self, metadata: LedgerMetadata, *, above: int, timeout_ms: int, with_entries: bool) -> TailUpdate:
        """Wait until a bookie reports a LAC above ``above`` or a fence, or the metadata may have changed.

        Args:
            with_entries: whether one bookie should send entries after ``above`` with its answer.

        Raises:
            AccessDenied, Unauthenticated: every bookie refuses this client.
        """
        name = f"tail-{metadata.ledger_id}"
        # Bookies that store the next entries learn the LAC with them, and can send them with the answer.
        holders = metadata.bookies_of(above + 1)
        bookies = sorted(metadata.last_fragment.bookies, key=lambda each: (each not in holders, each != self._first))
        alone = self._first == bookies[0] and self._clock.monotonic() < self._first_until
        change = self._watching(name)

        def ask(bookie_id: str) -> asyncio.Task[LacAnswer | None]:
            max_bytes = PIGGYBACK_BYTES if with_entries and bookie_id == bookies[0] else 0
            poll = self._poll(metadata, bookie_id, above, timeout_ms, max_bytes, bookies)
            return self._tasks.spawn(poll, name=name)

        polls = [ask(bookie_id) for bookie_id in (bookies[:1] if alone else bookies)]
        try:
            hedge_s = ASK_OTHERS_SECONDS if alone else None
            done, _ = await asyncio.wait([*polls, change], timeout=hedge_s, return_when=asyncio.FIRST_COMPLETED)
            if not done:
                polls += [ask(bookie_id) for bookie_id in bookies[1:]]
                await asyncio.wait([*polls, change], return_when=asyncio.FIRST_COMPLETED)
            # In the order of polling, for determinism.
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
        best, first = max(answers, key=_value_of, default=(None, None))
        if len(polls) > 1:
            self._first, self._first_until = first, self._clock.monotonic() + ASK_ALL_SECONDS
        return TailUpdate(best, self._has_changed(change))

    async def changed(self, timeout_s: float) -> bool:
        """Wait until the metadata may have changed; ``False`` on timeout."""
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
            await self._clock.sleep(jittered(self._rng, max(self._retry_s, timeout_ms / 1000)))
            return None

    async def close(self) -> None:
        """Stop watching."""
        if self._change is not None:
            self._change.cancel()
            await asyncio.gather(self._change, return_exceptions=True)
        await self._watch.close()
