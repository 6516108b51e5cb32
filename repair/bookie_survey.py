"""Asks all bookies for their status: what data they lost, and which damaged copies they know.

A bookie that does not answer is left out. Whether it is lost follows from the membership, not from its silence.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Mapping
from typing import Final, NamedTuple

from tallybook.client.connection.port import BookieConnection
from tallybook.client.ports import Connections
from tallybook.client.refusals import is_refusal
from tallybook.core.answers import BookieStatus, EntryRange
from tallybook.core.errors import TallybookError, is_defect
from tallybook.core.ids import MAX_ID
from tallybook.runtime.logging import logger

from .needs import BookieLimbo, DataLoss

_log = logger("repair")

PAGE: Final = 1_000
DAMAGED_PAGE: Final = 100
"""Page size for damaged copies; small, because the bookie reads each copy again before it reports it."""
MAX_DAMAGED_LEDGERS: Final = 10_000
"""Ledgers with damaged copies that are read from one bookie in a pass; the rest follows once these are repaired."""


class BookieDamage(NamedTuple):
    """The damaged copies that a bookie knows."""

    ledgers: Mapping[int, EntryRange]
    """For each ledger, the range from the first damaged entry to the last one."""
    known_up_to: int
    """Of ledgers up to this id, all damage is in ``ledgers``; ledgers with higher ids were not asked for."""

    def may_touch(self, ledger_id: int, first: int, last: int) -> bool:
        """Whether the bookie's copy of one of these entries may be damaged."""
        if ledger_id > self.known_up_to:
            return True
        known = self.ledgers.get(ledger_id)
        return known is not None and known.first <= last and known.last >= first


class BookieSurvey:
    """The status of all bookies, as of the last poll. Remembers which ones have got all their copies back."""

    def __init__(self, connections: Connections) -> None:
        self._connections = connections
        self._restored: dict[str, DataLoss] = {}
        """For each bookie that got everything back: the loss that it had reported."""
        self._states: dict[str, DataLoss] = {}
        """The last loss report of each bookie."""
        self.statuses: dict[str, BookieStatus] = {}
        """The status of each bookie that answered the last poll."""
        self.refusals: dict[str, str] = {}
        """Why a bookie refused this client at the last poll."""

    async def poll(self, names: Iterable[str]) -> None:
        """Ask these bookies for their status, all at the same time."""
        bookies = sorted(names)
        self._states = {name: state for name, state in self._states.items() if name in bookies}
        self.refusals = {}
        answers = await asyncio.gather(*map(self._status, bookies))
        self.statuses = {name: status for name, status in zip(bookies, answers, strict=True) if status is not None}

    @property
    def losses(self) -> dict[str, DataLoss]:
        """Bookies that lost data and have not got all of it back, as far as is known."""
        return {name: loss for name, loss in self._states.items() if loss.events and self._restored.get(name) != loss}

    def directory(self, name: str) -> str:
        """The uuid of the directory of a bookie that answered."""
        return self._states[name].directory

    @property
    def damages(self) -> dict[str, int]:
        """For each bookie that answered, the number of damaged copies that it knows. Some may be repaired already."""
        return {name: status.damaged_batches for name, status in self.statuses.items()}

    async def limbo(self) -> dict[str, BookieLimbo]:
        """The ledgers in limbo at each bookie that lost data and answers."""
        found: dict[str, BookieLimbo] = {}
        losses = self.losses
        for name, status in self.statuses.items():
            if name in losses:
                restored = await self._restored_ledgers(name)
                if restored is not None:
                    found[name] = BookieLimbo(status.limbo_below, restored)
        return found

    def mark_restored(self, names: Iterable[str]) -> None:
        """Record that these bookies have got all copies back. They count as whole until they report another loss."""
        for name in names:
            self._restored[name] = self._states[name]

    async def damaged(self) -> dict[int, int]:
        """Ledgers with a damaged copy at some bookie, each with the last damaged entry."""
        found: dict[int, int] = {}
        for damage in (await self.bookie_damage()).values():
            for ledger_id, known in damage.ledgers.items():
                found[ledger_id] = max(known.last, found.get(ledger_id, known.last))
        return dict(sorted(found.items())[:MAX_DAMAGED_LEDGERS])

    async def bookie_damage(self) -> dict[str, BookieDamage]:
        """The known damage of each bookie that answered. A bookie that does not report its damage is left out."""
        found: dict[str, BookieDamage] = {}
        for name, status in self.statuses.items():
            damage = await self._damaged_at(name) if status.damaged_batches else BookieDamage({}, MAX_ID)
            if damage is not None:
                found[name] = damage
        return found

    async def _status(self, name: str) -> BookieStatus | None:
        try:
            connection = await self._connections.get(name)
            status = await connection.status()
        except TallybookError as error:
            _check_no_defect(error)
            if is_refusal(error):
                self.refusals[name] = error.message
            _log.info("a bookie did not report its status", bookie_id=name, error=error.message)
            return None
        self._states[name] = DataLoss(connection.incarnation.directory_uuid, status.limbo_events, status.limbo_below)
        return status

    async def _restored_ledgers(self, name: str) -> set[int] | None:
        """Ledgers that are not in limbo at the bookie any more; ``None`` if it does not answer."""
        restored: set[int] = set()
        after: int | None = -1
        try:
            connection = await self._connections.get(name)
            while after is not None:
                page = await connection.held_ledgers(after, PAGE)
                restored.update(held.ledger_id for held in page.ledgers if not held.limbo)
                after = page.next_after()
        except TallybookError as error:
            _check_no_defect(error)
            _log.info("a bookie did not report its inventory", bookie_id=name, error=error.message)
            return None
        return restored

    async def _damaged_at(self, name: str) -> BookieDamage | None:
        try:
            return await _damage_at(await self._connections.get(name))
        except TallybookError as error:
            _check_no_defect(error)
            _log.info("a bookie did not report its damaged copies", bookie_id=name, error=error.message)
            return None


def _check_no_defect(error: TallybookError) -> None:
    """Re-raise defects of Tallybook itself. Other errors of one bookie must not keep the others from being asked.

    Raises:
        InvariantViolation: ``error``, if it is a defect.
    """
    if is_defect(error):
        raise error


async def _damage_at(connection: BookieConnection) -> BookieDamage:
    found: dict[int, EntryRange] = {}
    after = (-1, -1)
    while len(found) < MAX_DAMAGED_LEDGERS:
        page = await connection.damaged(after, DAMAGED_PAGE)
        if not page:
            return BookieDamage(found, MAX_ID)
        for batch in page:
            known = found.get(batch.ledger_id)
            first = batch.first_entry_id if known is None else known.first
            last = batch.last_entry_id if known is None else max(known.last, batch.last_entry_id)
            found[batch.ledger_id] = EntryRange(first, last)
        after = page[-1].ledger_id, page[-1].first_entry_id
    return BookieDamage(found, after[0] - 1)
